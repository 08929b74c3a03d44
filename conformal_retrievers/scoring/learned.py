"""Several scorers as one, weighed by logistic regression: score = −log-odds of being relevant.

    log-odds = intercept + Σ_j coefficient_j (feature_j − mean_j) / scale_j

The features (`features.py`) are the scorers' scores, where each stands among those of the query,
and, if documents and positions are known, the scores around it in its document. scikit-learn fits
the regression on queries that must not calibrate; numpy alone scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.extras import require
from conformal_retrievers.llm.prompt import short_hash
from conformal_retrievers.scoring.combine import CombinedScorer
from conformal_retrievers.scoring.features import (
    Context,
    Values,
    context_of,
    feature_names,
    features,
)
from conformal_retrievers.scoring.scorer import Scorer, query_digest, score_snippets

FORMAT, VERSION = "conformal-retrievers/learned-scorer", 1
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
        terms = (table - self.means) / self.scales * self.coefficients
        return np.asarray(terms.sum(axis=1) + self.intercept)


def regress(
    table: Values, relevant: NDArray[np.bool_], weights: Values | None = None
) -> Regression:
    """Fit a logistic regression with an L2 penalty to features (n, d) and judgements (n,).

    Weights (n,) have the mean 1. Raises ModuleNotFoundError without the extra `learned`.

    >>> table = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> regress(table, np.array([True, True, False, False])).log_odds(table).round(1)
    array([ 0.2,  0.1, -0.1, -0.2])
    """
    require("learned", "sklearn")
    from sklearn.linear_model import LogisticRegression

    means, scales = table.mean(axis=0), table.std(axis=0)
    scales[np.ptp(table, axis=0) == 0] = 1.0
    fitted = LogisticRegression(C=C, max_iter=10_000)
    fitted.fit((table - means) / scales, relevant, sample_weight=weights)
    rows = [tuple(row.tolist()) for row in (means, scales, fitted.coef_[0])]
    return Regression._make([*rows, float(fitted.intercept_[0])])


@dataclass(frozen=True)
class LearnedScorer(CombinedScorer):
    """Scores by −log-odds of being relevant, learned from judged queries; `fit` makes one.

    A snippet without the document or position that `context` needs, or with a part's score that is
    NaN or infinite, is unscorable: NaN. It does not enter the features of the others.

    >>> from conformal_retrievers.scoring import FunctionScorer
    >>> length = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")
    >>> fit_part = [JudgedQuery("q", ["a", "bcd", "ef"], [True, False, True])]
    >>> LearnedScorer.fit(fit_part, [length]).score("r", ["a", "bcdef"]).argsort()
    array([0, 1])
    """

    scorers: tuple[Scorer, ...]
    context: Context  # what the features take from where snippets come from
    regression: Regression = field(repr=False)
    fitted_on: frozenset[str] = field(repr=False)  # digests of the queries
    relative_to_query: ClassVar[bool] = True

    @classmethod
    def fit(cls, judged: Iterable[JudgedQuery], scorers: Iterable[Scorer]) -> LearnedScorer:
        """Return the scorer that logistic regression makes of `scorers`, from judged queries.

        The fit uses documents and positions if every snippet has them, and leaves out snippets that
        a part cannot score. Raises ValueError unless there are scorers with different names, and
        both relevant and irrelevant snippets; ModuleNotFoundError without the extra `learned`.
        """
        judged, parts = list(judged), tuple(scorers)
        names = [part.name for part in parts]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"scorers are {names}; give one or more, each once")
        context = context_of([s for query in judged for s in query.snippets])
        rows, relevant = [], [np.empty(0, dtype=bool)]
        for query in judged:
            columns = [score_snippets(part, query.query, query.snippets) for part in parts]
            known, table = _table(columns, query.snippets, context)
            rows.append(table)
            relevant.append(np.array(query.relevant, dtype=bool)[known])
        labels = np.concatenate(relevant)
        if len(set(labels.tolist())) < 2:
            raise ValueError(
                f"judged has {labels.sum()} relevant and {(~labels).sum()} irrelevant snippets "
                "that all parts can score; give judged queries with both"
            )
        digests = frozenset(query_digest(query.query) for query in judged)
        return cls(parts, context, regress(np.vstack(rows), labels), digests)

    @classmethod
    def from_provenance(
        cls, provenance: Mapping[str, JsonValue], scorers: Iterable[Scorer]
    ) -> LearnedScorer:
        """Return the scorer with this `provenance`, bit for bit, from its parts.

        Raises ValueError if another version wrote the provenance, or if the parts are not those
        that it was fitted with.
        """
        fields: Mapping[str, Any] = provenance
        parts = tuple(scorers)
        needed = {"format": FORMAT, "version": VERSION, "scorers": [part.name for part in parts]}
        for name, value in needed.items():
            if fields.get(name) != value:
                raise ValueError(
                    f"{name} is {fields.get(name)!r} in the provenance and {value!r} here; give "
                    "the scorers of the fit in their order, or fit again"
                )
        rows = [tuple(fields[name]) for name in ("means", "scales", "coefficients")]
        regression = Regression._make([*rows, fields["intercept"]])
        return cls(parts, fields["context"], regression, frozenset(fields["fitted_on"]))

    @property
    def parts(self) -> tuple[Scorer, ...]:
        """The scorers, in order."""
        return self.scorers

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What the scorer was made of, as JSON: parts, features, coefficients, queries."""
        names = [part.name for part in self.scorers]
        return {
            "format": FORMAT,
            "version": VERSION,
            "scorers": [*names],
            "context": self.context,
            "features": [*feature_names(names, self.context)],
            **self.regression._asdict(),
            "fitted_on": [*sorted(self.fitted_on)],
        }

    @cached_property
    def name(self) -> str:
        """The parts' names, the context, and a digest of the fit."""
        parts = ", ".join(part.name for part in self.scorers)
        return f"learned({parts}; context={self.context}, fit={short_hash(self.provenance)})"

    def combine(self, columns: Sequence[Values], snippets: Sequence[Snippet]) -> Values:
        """Return −log-odds of each snippet, (n,)."""
        known, table = _table(columns, snippets, self.context)
        combined = np.full(len(snippets), np.nan)
        combined[known] = -self.regression.log_odds(table)
        return combined


def _table(
    columns: Sequence[Values], snippets: Sequence[Snippet], context: Context
) -> tuple[NDArray[np.bool_], Values]:
    """Return which snippets (n,) can be scored, and the features of those."""
    scores = np.column_stack(columns)
    contexts = get_args(Context)  # from the least to the most
    too_little = contexts[: contexts.index(context)]
    known = np.isfinite(scores).all(axis=1)
    known &= np.array([context_of([s]) not in too_little for s in snippets], dtype=bool)
    chosen = [s for s, k in zip(snippets, known, strict=True) if k]
    return known, features(scores[known], chosen, context)
