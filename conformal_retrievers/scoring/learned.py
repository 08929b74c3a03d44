"""Hits and scorers as one score, weighed by logistic regression: score = −log-odds of relevance.

    log-odds = intercept + Σ_j coefficient_j (feature_j − mean_j) / scale_j

The features (`features.py`) are what each retriever and scorer knows of a snippet, where it stands
among those of the query, and, if documents and positions are known, in its document. scikit-learn
fits the regression on queries that must not calibrate; numpy alone scores, and asks no model for
what the hits have. Given an alpha, it fits twice: the second time, snippets count by how near they
are to the threshold, since only there the score decides what is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, ClassVar, NamedTuple, TypeVar

import numpy as np
import pydantic
from pydantic import JsonValue

from conformal_retrievers.data.files import explain
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.llm.prompt import short_hash
from conformal_retrievers.scoring.combine import CombinedScorer
from conformal_retrievers.scoring.features import feature_names, features
from conformal_retrievers.scoring.scorer import Scorer, query_digest, score_snippets
from conformal_retrievers.scoring.sources import Context, Kind, Known, Sources, Values, sources_of
from conformal_retrievers.theory.ranks import exact_alpha

FORMAT, VERSION = "conformal-retrievers/learned-scorer", 2
# The inverse of the L2 penalty on standardised features. Of 0.001, 0.01, 0.1, 1 and 10, tried on
# three data sets with 20, 60 and 200 queries, it kept at most 3 % more context than the best.
C = 0.1


class Regression(NamedTuple):
    """A logistic regression on d standardised features."""

    means: tuple[float, ...]
    scales: tuple[float, ...]
    coefficients: tuple[float, ...]
    intercept: float

    def log_odds(self, table: Values) -> Values:
        """Return the log-odds (n,) of features (n, d)."""
        # Row by row, not as a matrix product: no score depends on another, even in its last bit.
        means, scales, coefficients = np.array(self[:3])
        terms = (table - means) / scales * coefficients
        return np.asarray(terms.sum(axis=1) + self.intercept)


def regress(
    table: Values, relevant: Known, weights: Values | None = None, *, alpha: float | None = None
) -> Regression:
    """Fit a logistic regression with an L2 penalty to features (n, d) and judgements (n,).

    Weights (n,) have the mean 1. With an alpha, a second fit has the weights that `focused` gives.

    >>> table = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> regress(table, np.array([True, True, False, False])).log_odds(table).round(1)
    array([ 0.2,  0.1, -0.1, -0.2])
    """
    from sklearn.linear_model import LogisticRegression

    means, scales = table.mean(axis=0), table.std(axis=0)
    scales[np.ptp(table, axis=0) == 0] = 1.0
    fitted = LogisticRegression(C=C, max_iter=10_000)
    fitted.fit((table - means) / scales, relevant, sample_weight=weights)
    rows = [tuple(row.tolist()) for row in (means, scales, fitted.coef_[0])]
    regression = Regression._make([*rows, float(fitted.intercept_[0])])
    if alpha is None:
        return regression
    every = np.ones(len(table)) if weights is None else weights
    return regress(table, relevant, focused(every, regression.log_odds(table), relevant, alpha))


Numbers = Sequence[pydantic.FiniteFloat]


class Fitted(pydantic.BaseModel):
    """The fields of a provenance that all that is learned has."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)

    format: str
    version: int
    retrievers: dict[str, Kind]
    scorers: list[str]
    features: list[str]
    means: Numbers
    scales: Sequence[Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]]
    coefficients: Numbers
    intercept: pydantic.FiniteFloat
    fitted_on: list[str]

    def regression(self, features: int) -> Regression:
        """Return the regression; ValueError unless it is on so many features."""
        columns = [self.means, self.scales, self.coefficients]
        if {len(self.features), *map(len, columns)} != {features}:
            raise ValueError(
                "scorer_provenance: features, means, scales and coefficients do not have the "
                f"length {features} that its retrievers give; calibrate again"
            )
        return Regression._make([*map(tuple, columns), self.intercept])


class Stored(Fitted):
    """The fields of a provenance of a `LearnedScorer`."""

    context: Context


F = TypeVar("F", bound=Fitted)


def stored(model: type[F], provenance: Mapping[str, JsonValue], needed: Mapping[str, object]) -> F:
    """Return the fields of a provenance; ValueError, naming one, if these are not as needed."""
    for name, value in needed.items():
        if provenance.get(name) != value:
            raise ValueError(
                f"{name} is {provenance.get(name)!r} in the provenance and {value!r} here; give "
                "the scorers of the fit in their order, or fit again"
            )
    try:
        return model.model_validate({**provenance})
    except pydantic.ValidationError as error:
        raise ValueError(f"scorer_provenance: {explain(error)}; calibrate again") from None


@dataclass(frozen=True)
class LearnedScorer(CombinedScorer):
    """Scores by −log-odds of being relevant, learned from judged queries; `fit` makes one.

    A snippet that none of the retrievers found, or that lacks a score, document or position that
    the fit had, or with a part's score that is NaN or infinite, is unscorable: NaN. It does not
    enter the features of the others. If no snippet has the hits, that is a ValueError.

    >>> from conformal_retrievers.data.queries import with_hits
    >>> fit_part = [JudgedQuery("q", with_hits(["a", "b", "c"]), [True, False, False])]
    >>> learned = LearnedScorer.fit(fit_part)
    >>> learned.retrievers, learned.score("r", with_hits(["d", "e"])).argsort()
    (('retriever',), array([0, 1]))
    """

    scorers: tuple[Scorer, ...]
    sources: Sources
    regression: Regression = field(repr=False)
    fitted_on: frozenset[str] = field(repr=False)  # digests of the queries
    relative_to_query: ClassVar[bool] = True

    @classmethod
    def fit(
        cls,
        judged: Iterable[JudgedQuery],
        scorers: Iterable[Scorer] = (),
        *,
        alpha: float | None = None,
    ) -> LearnedScorer:
        """Return the scorer that is learned from hits, from `scorers`, and from where snippets are.

        The fit uses all retrievers of the hits, and documents and positions if every snippet has
        them. It leaves out unscorable snippets. It is best near the threshold that drops a share
        `alpha` of the relevant ones, if given. Raises ValueError for an alpha outside (0, 1), if
        there are neither hits nor scorers, if scorers share a name, and unless there are relevant
        and irrelevant snippets.
        """
        if alpha is not None:
            exact_alpha(alpha)
        judged, parts = list(judged), tuple(scorers)
        names = [part.name for part in parts]
        sources = sources_of(judged, names)
        if len(set(names)) < len(names) or not sources.names:
            raise ValueError(
                f"scorers are {names}, hits are of {len(sources.retrievers)} retrievers; give "
                "each scorer once, and one or more if the snippets of judged have no hits"
            )
        rows, relevant = [], [np.empty(0, dtype=bool)]
        for query in judged:
            columns = [score_snippets(part, query.query, query.snippets) for part in parts]
            known, table = features(sources, columns, query.snippets)
            rows.append(table)
            relevant.append(np.array(query.relevant, dtype=bool)[known])
        labels = np.concatenate(relevant)
        if len(set(labels.tolist())) < 2:
            raise ValueError(
                f"judged has {labels.sum()} relevant and {(~labels).sum()} irrelevant snippets "
                "that can be scored; give judged queries with both"
            )
        regression = regress(np.vstack(rows), labels, weights_of(relevant), alpha=alpha)
        digests = frozenset(query_digest(query.query) for query in judged)
        return cls(parts, sources, regression, digests)

    @classmethod
    def from_provenance(
        cls, provenance: Mapping[str, JsonValue], scorers: Iterable[Scorer] = ()
    ) -> LearnedScorer:
        """Return the scorer with this `provenance`, bit for bit, from its parts.

        Raises ValueError, naming the field, if another version wrote the provenance, if the parts
        are not those that it was fitted with, and for a field of another type or length.
        """
        parts = tuple(scorers)
        needed = {"format": FORMAT, "version": VERSION, "scorers": [part.name for part in parts]}
        fields = stored(Stored, provenance, needed)
        sources = Sources(tuple(fields.retrievers.items()), tuple(fields.scorers), fields.context)
        regression = fields.regression(len(feature_names(sources)))
        return cls(parts, sources, regression, frozenset(fields.fitted_on))

    @property
    def parts(self) -> tuple[Scorer, ...]:
        """The scorers, in order."""
        return self.scorers

    @property
    def retrievers(self) -> tuple[str, ...]:
        """The names of the retrievers whose hits it reads."""
        return tuple(name for name, _ in self.sources.retrievers)

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What the scorer was made of, as JSON: sources, features, coefficients, queries."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "retrievers": dict(self.sources.retrievers),
            "scorers": [*self.sources.scorers],
            "context": self.sources.context,
            "features": [*feature_names(self.sources)],
            **self.regression._asdict(),
            "fitted_on": [*sorted(self.fitted_on)],
        }

    @cached_property
    def name(self) -> str:
        """The retrievers and parts, the context, and a digest of the fit."""
        read = [*(f"hits of {name}" for name in self.retrievers), *self.sources.scorers]
        fit = short_hash(self.provenance)
        return f"learned({', '.join(read)}; context={self.sources.context}, fit={fit})"

    def combine(self, columns: Sequence[Values], snippets: Sequence[Snippet]) -> Values:
        """Return −log-odds of each snippet, (n,)."""
        known, table = features(self.sources, columns, snippets)
        combined = np.full(len(snippets), np.nan)
        combined[known] = -self.regression.log_odds(table)
        return combined


def weights_of(relevant: Iterable[Known]) -> Values:
    """Return the weight of each snippet in the fit, of mean 1, from the judgements of each query.

    The guarantee counts a relevant snippet as 1 / N_q of its query's N_q, and what is kept counts
    an irrelevant one as 1 / n_q of its n_q.

    >>> weights_of([np.array([True, False, False])])
    array([1.5 , 0.75, 0.75])
    """
    weights = [np.where(r, 1 / max(1, r.sum()), 1 / max(1, (~r).sum())) for r in relevant]
    joined = np.concatenate(weights)
    return np.asarray(joined / joined.mean())


def focused(weights: Values, log_odds: Values, relevant: Known, alpha: float) -> Values:
    """Return the weights (n,) of a second fit, of mean 1, from those and the log-odds of the first.

    With t the threshold, below which a share alpha of the weight of relevant snippets is, weights
    are multiplied by 1 / cosh²((log-odds − t) / 4), and those of relevant ones by exp(−t) too, or
    by e or 1/e if that is nearer to 1: so the second fit has its log-odds 0 nearer to t.

    >>> log_odds, relevant = np.array([-9.0, 0.0, 0.0, 9.0]), np.array([False, False, True, True])
    >>> focused(np.ones(4), log_odds, relevant, alpha=0.1).round(2)
    array([0.08, 1.92, 1.92, 0.08])
    """
    order = np.argsort(log_odds[relevant])
    below = np.cumsum(weights[relevant][order]) / weights[relevant].sum()
    first = int(np.searchsorted(below, alpha, side="right"))
    t = log_odds[relevant][order][min(first, len(order) - 1)]
    near = weights / np.cosh((log_odds - t) / 4) ** 2
    near = np.where(relevant, near * np.exp(np.clip(-t, -1, 1)), near)
    return np.asarray(near / near.mean())
