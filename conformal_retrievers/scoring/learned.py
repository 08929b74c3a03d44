"""Several scorers as one, weighed by logistic regression: score = −log-odds of being relevant.

    log-odds = intercept + Σ_j coefficient_j (feature_j − mean_j) / scale_j

The features (`features.py`) are the scorers' scores, where each stands among those of the query,
and, where documents and positions are known, the scores around it in its document. Fitted by
scikit-learn on queries that are then no longer fit to calibrate on; scored with numpy alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from conformal_retrievers.data.queries import JudgedQuery, Snippet, as_snippets
from conformal_retrievers.extras import require
from conformal_retrievers.scoring.features import (
    Context,
    Values,
    context_of,
    feature_names,
    features,
    placed,
)
from conformal_retrievers.scoring.scorer import (
    Scorer,
    ascore_together,
    check_scorer,
    query_digest,
    score_snippets,
)

Unit = Literal["snippet", "query"]

FORMAT = "conformal-retrievers/learned-scorer"
VERSION = 1
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
        # Row by row, not as a matrix product: no score depends on another, not in its last bit.
        terms = (table - self.means) / self.scales * self.coefficients
        return np.asarray(terms.sum(axis=1) + self.intercept)


def regress(
    table: Values, relevant: NDArray[np.bool_], weights: Values | None = None
) -> Regression:
    """Fit a logistic regression to features (n, d) and judgements (n,), penalised by L2.

    Weights (n,) have the mean 1. Raises ModuleNotFoundError without the extra `learned`.
    """
    require("learned", "sklearn")
    from sklearn.linear_model import LogisticRegression

    means, scales = table.mean(axis=0), table.std(axis=0)
    scales[np.ptp(table, axis=0) == 0] = 1.0
    fitted = LogisticRegression(C=C, max_iter=10_000)
    fitted.fit((table - means) / scales, relevant, sample_weight=weights)
    return Regression(
        tuple(means.tolist()),
        tuple(scales.tolist()),
        tuple(fitted.coef_[0].tolist()),
        float(fitted.intercept_[0]),
    )


def weights_by_query(relevant: Sequence[NDArray[np.bool_]]) -> Values:
    """Return weights of mean 1 for the snippets of queries, given which are relevant in each.

    In every query, the relevant ones weigh as much together as in any other, and the irrelevant
    ones too.
    """
    weights = [np.where(r, 1 / max(1, r.sum()), 1 / max(1, (~r).sum())) for r in relevant]
    joined = np.concatenate(weights)
    return np.asarray(joined / joined.mean())


@dataclass(frozen=True)
class LearnedScorer:
    """Scores by −log-odds of being relevant, as learned from judged queries; made by `fit`.

    Calibrate on other queries than those it was fitted on, which `fitted_on` tells (their
    `query_digest`). `context` says what the features take from where snippets come from: a snippet
    without the document or position that they take, or with a part that is NaN or infinite, cannot
    be scored: NaN. It is left out of what the others are compared with.
    """

    scorers: tuple[Scorer, ...]
    context: Context
    regression: Regression = field(repr=False)
    fitted_on: frozenset[str] = field(repr=False)
    unit: Unit = "snippet"
    relative_to_query: ClassVar[bool] = True

    @classmethod
    def fit(
        cls,
        judged: Iterable[JudgedQuery],
        scorers: Iterable[Scorer],
        *,
        unit: Unit = "snippet",
    ) -> LearnedScorer:
        """Return the scorer that logistic regression makes of `scorers`, from judged queries.

        `unit` says what weighs the same. With "snippet", each snippet does: that keeps the fewest
        snippets in all, at the expense of long lists. With "query", what is relevant in a query
        weighs as much as in any other, and so does the rest: that keeps the smallest share of a
        query's snippets, on average over queries. Lists of equal length make it much the same.
        Documents and positions are taken into account if every snippet has them. Snippets that a
        part cannot score are left out. Raises ValueError where there are no scorers, two of one
        name, or not both relevant and irrelevant snippets; ModuleNotFoundError without the extra
        `learned`.
        """
        judged, parts = list(judged), _checked(scorers)
        context = context_of([s for query in judged for s in query.snippets])
        rows, relevant = [], []
        for query in judged:
            known, table = _table(
                _scores(parts, query.query, query.snippets), query.snippets, context
            )
            rows.append(table)
            relevant.append(np.array(query.relevant, dtype=bool)[known])
        if unit not in get_args(Unit):
            raise ValueError(f"unit is {unit!r}; give one of 'snippet' and 'query'")
        labels = np.concatenate([np.empty(0, dtype=bool), *relevant])
        if len(set(labels.tolist())) < 2:
            raise ValueError(
                f"judged holds {labels.sum()} relevant and {(~labels).sum()} irrelevant snippets "
                "that all parts can score; give judged queries with both"
            )
        digests = frozenset(query_digest(query.query) for query in judged)
        weights = None if unit == "snippet" else weights_by_query(relevant)
        return cls(parts, context, regress(np.vstack(rows), labels, weights), digests, unit)

    @classmethod
    def from_provenance(
        cls, provenance: Mapping[str, JsonValue], scorers: Iterable[Scorer]
    ) -> LearnedScorer:
        """Return the scorer whose `provenance` this is, bit for bit, with its parts.

        Raises ValueError where the parts are others than those it was fitted with, or where this is
        no provenance of a learned scorer that this version knows.
        """
        parts = _checked(scorers)
        names = [part.name for part in parts]
        if provenance.get("scorers", names) != names:
            raise ValueError(
                f"the learned scorer was fitted with {provenance['scorers']}, but scorers are "
                f"{names}; give the same ones in the same order"
            )
        try:
            learned = cls(parts, *_read(provenance))
            same = learned.provenance == dict(provenance)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"provenance is not that of a learned scorer: {error!r}") from None
        if not same:
            raise ValueError(
                "provenance does not say what this version of the library would fit (format "
                f"{provenance.get('format')!r}, version {provenance.get('version')!r}); fit again"
            )
        return learned

    @property
    def parts(self) -> tuple[Scorer, ...]:
        """The scorers that it combines."""
        return self.scorers

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What the scorer was made of, as JSON: parts, features, coefficients, queries."""
        names = [part.name for part in self.scorers]
        means, scales, coefficients, intercept = self.regression
        columns = zip(feature_names(names, self.context), means, scales, coefficients, strict=True)
        return {
            "format": FORMAT,
            "version": VERSION,
            "scorers": [*names],
            "context": self.context,
            "unit": self.unit,
            "intercept": intercept,
            "features": [
                {"name": name, "mean": mean, "scale": scale, "coefficient": coefficient}
                for name, mean, scale, coefficient in columns
            ],
            "n_queries": len(self.fitted_on),
            "fitted_on": [*sorted(self.fitted_on)],
        }

    @cached_property
    def name(self) -> str:
        """The parts' names, what is known of documents, and a digest of what was fitted."""
        text = json.dumps(self.provenance, sort_keys=True, allow_nan=False)
        parts = ", ".join(part.name for part in self.scorers)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return f"learned({parts}; context={self.context}, fit={digest})"

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> Values:
        """Return −log-odds of each snippet, (n,)."""
        snippets = as_snippets(snippets)
        return self._combined(_scores(self.scorers, query, snippets), snippets)

    async def ascore(self, query: str, snippets: Sequence[Snippet | str]) -> Values:
        """Return what `score` returns, waiting for all parts at once."""
        snippets = as_snippets(snippets)
        columns = await ascore_together(self.scorers, query, snippets)
        return self._combined(np.column_stack(columns), snippets)

    def _combined(self, scores: Values, snippets: Sequence[Snippet]) -> Values:
        known, table = _table(scores, snippets, self.context)
        combined = np.full(len(snippets), np.nan)
        combined[known] = -self.regression.log_odds(table)
        return combined


def _checked(scorers: Iterable[Scorer]) -> tuple[Scorer, ...]:
    parts = tuple(scorers)
    if not parts:
        raise ValueError("scorers is empty; give the scorers to combine")
    for part in parts:
        check_scorer(part)
    names = [part.name for part in parts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"scorers holds {twice!r} twice; give each scorer once")
    return parts


def _scores(scorers: Sequence[Scorer], query: str, snippets: Sequence[Snippet]) -> Values:
    return np.column_stack([score_snippets(part, query, snippets) for part in scorers])


def _table(
    scores: Values, snippets: Sequence[Snippet], context: Context
) -> tuple[NDArray[np.bool_], Values]:
    """Return which snippets (n,) can be scored, and the features of those."""
    known = np.isfinite(scores).all(axis=1) & placed(snippets, context)
    chosen = [s for s, k in zip(snippets, known, strict=True) if k]
    return known, features(scores[known], chosen, context)


def _read(provenance: Mapping[str, Any]) -> tuple[Context, Regression, frozenset[str], Unit]:
    context, columns, unit = (provenance[field] for field in ("context", "features", "unit"))
    if context not in get_args(Context) or unit not in get_args(Unit):
        raise ValueError(f"context is {context!r} and unit is {unit!r}")
    rows = [(column["mean"], column["scale"], column["coefficient"]) for column in columns]
    numbers = np.array([provenance["intercept"], *(x for row in rows for x in row)], dtype=float)
    if not np.isfinite(numbers).all():
        raise ValueError("a mean, scale or coefficient is not finite")
    means, scales, coefficients = zip(*rows, strict=True)
    regression = Regression(means, scales, coefficients, provenance["intercept"])
    return context, regression, frozenset(provenance["fitted_on"]), unit
