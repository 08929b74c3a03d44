"""What queries contribute to a calibration: all that it needs of them, and no other score.

    reduced   of each query its relevant scores, ascending, and its lowest score

Reductions of parts merge to the reduction of all, whatever the parts are, so a calibration of many
machines is that of one. Only the AUC, which warns of reversed scores, has no share of that: it
compares the scores within each part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.theory.intervals import ordered_pairs


class Lost(NamedTuple):
    """A relevant snippet that has no score."""

    query: int  # its place among the queries
    snippet: int  # its place in the query
    why: str | None  # if that is known


@dataclass(frozen=True, eq=False)
class Reduced:
    """What scored queries contribute to a calibration; `Calibration.from_scores` takes it.

    >>> from conformal_retrievers.data.columns import ScoredQueries
    >>> queries = ScoredQueries([0.3, 0.8, 0.1, 0.2, 0.9], [1, 0, 1, 1, 0], [0, 3, 5])
    >>> halves = [queries.select([0]), queries.select([1])]
    >>> Reduced.merged(map(Reduced.of, halves)).queries.scores
    array([0.1, 0.3, 0.2])
    """

    queries: ScoredQueries  # all of them, see `ScoredQueries.relevant_only`
    lowest_scores: NDArray[np.float64]  # of each query that has a finite one
    first_lost: Lost | None
    n_lost: int  # the number of relevant snippets without a score
    ordered: float  # pairs of a relevant and an irrelevant score in order, ties as a half
    pairs: int

    @classmethod
    def of(cls, scored: ScoredQueries) -> Reduced:
        """Return the reduction of scored queries."""
        relevant = np.flatnonzero(scored.relevant)
        lost = relevant[np.isnan(scored.scores[relevant])]
        first = None
        for i in lost[:1].tolist():
            query = int(np.searchsorted(scored.offsets, i, side="right")) - 1
            first = Lost(query, i - int(scored.offsets[query]), scored.unscorable.get(i))
        ordered, pairs = ordered_pairs(scored.scores[relevant], scored.scores[~scored.relevant])
        lowest = scored.lowest[scored.lowest < math.inf]
        return cls(scored.relevant_only(), lowest, first, len(lost), ordered, pairs)

    @classmethod
    def merged(cls, parts: Iterable[Reduced]) -> Reduced:
        """Return the reduction of the queries of all parts, in their order.

        Raises ValueError for parts of whole snippets and of sentences.
        """
        given = list(parts)
        starts = np.cumsum([0, *[len(part.queries) for part in given]]).tolist()
        lost = [
            part.first_lost._replace(query=start + part.first_lost.query)
            for part, start in zip(given, starts, strict=False)
            if part.first_lost
        ]
        return cls(
            ScoredQueries.joined(part.queries for part in given),
            np.concatenate([part.lowest_scores for part in given]),
            lost[0] if lost else None,
            sum(part.n_lost for part in given),
            sum(part.ordered for part in given),
            sum(part.pairs for part in given),
        )
