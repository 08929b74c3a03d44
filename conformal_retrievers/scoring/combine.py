"""Scorers made of scorers, such as z-scores within the query.

Each is a scorer like any other and calibrated once as a whole, so one guarantee covers all of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from conformal_retrievers.data.queries import Snippet, as_scores, as_snippets
from conformal_retrievers.data.snippets import Retrieved
from conformal_retrievers.scoring.hits import RetrievalScorer
from conformal_retrievers.scoring.scorer import (
    Rebuilt,
    Scorer,
    Scores,
    ascore_snippets,
    check_scorer,
    score_snippets,
)
from conformal_retrievers.scoring.shared_scores import at_once


class CombinedScorer(ABC):
    """A scorer whose scores follow from those of its parts."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Scorer, ...]:
        """The scorers that it combines."""

    @abstractmethod
    def combine(self, query: str, columns: Sequence[Scores], snippets: Retrieved) -> Scores:
        """Return the scores (n,) from those of each part, (n,) each."""

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Return the combined score of each snippet, (n,)."""
        given = as_snippets(snippets)
        return self.combine(query, [score_snippets(p, query, given) for p in self.parts], given)

    async def ascore(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Asynchronous twin of `score`; it awaits all parts at once, and stops all if one fails."""
        given = as_snippets(snippets)
        columns = await at_once(*(ascore_snippets(part, query, given) for part in self.parts))
        return self.combine(query, columns, given)


@dataclass(frozen=True)
class QueryZScore(Rebuilt, CombinedScorer):
    """Scores by the z-score of a scorer's scores among the snippets of the same query.

    It is 0 if all scores are equal, and for a single one. NaN and infinite scores stay as they are
    and do not enter mean and standard deviation. Of a store that turns out to return distances
    instead of similarities, or the other way round, it is the same.

    >>> from conformal_retrievers.scoring import FunctionScorer
    >>> length = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")
    >>> QueryZScore(length).score("q", ["a", "bcd"])
    array([-1.,  1.])
    """

    scorer: Scorer
    kind: ClassVar[str] = "zscore"
    relative_to_query: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_scorer(self.scorer)
        if isinstance(self.scorer, RetrievalScorer):
            object.__setattr__(self, "scorer", replace(self.scorer, only_compared=True))

    @property
    def parts(self) -> tuple[Scorer, ...]:
        """The scorer inside."""
        return (self.scorer,)

    @property
    def name(self) -> str:
        """The name of the scorer inside, marked as a z-score."""
        return f"zscore({self.scorer.name})"

    def combine(self, query: str, columns: Sequence[Scores], snippets: Retrieved) -> Scores:
        """Return the z-scores (n,) of the scores."""
        return z_scores(columns[0])


def z_scores(scores: ArrayLike) -> Scores:
    """Return (score − mean) / sd of the finite scores (n,); 0 if they are all equal.

    >>> z_scores([1.0, np.inf, 3.0])
    array([-1., inf,  1.])
    """
    z = np.array(as_scores(scores, "scores"))
    finite = np.isfinite(z)
    values = np.sort(z[finite])  # sums of floats depend on the order, a z-score must not
    if n := len(values):
        # Squares of large numbers overflow; a power of two takes nothing from their digits.
        exponent = -np.frexp(max(-values[0], values[-1]))[1]
        scaled = np.ldexp(values, exponent)
        mean = scaled.sum() / n  # `mean` and `std` take several times as long
        spread = np.sqrt(np.square(scaled - mean).sum() / n) if values[0] < values[-1] else 0.0
        z[finite] = (np.ldexp(z[finite], exponent) - mean) / spread if spread > 0 else 0.0
    return z
