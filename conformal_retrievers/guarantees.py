"""What 1 − α is a probability of, and the units that are counted for it.

    "query-recall"  E[share of a new query's relevant snippets that is kept] ≥ 1 − α
    "snippet"       P(a new relevant snippet is kept) ≥ 1 − α
    "all"           P(no relevant snippet of a new query is dropped) ≥ 1 − α
    "any"           P(at least one relevant snippet of a new query is kept) ≥ 1 − α

Exchangeable are the units: the snippets for "snippet", else the queries. A query enters with all
its relevant scores, with their maximum for "all", with their minimum for "any". A relevant snippet
that was not retrieved has the score +inf where missed snippets count, and does not exist where they
do not: then each promise is one about retrieved snippets.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers import conformal, tolerance
from conformal_retrievers.conformal import Masses
from conformal_retrievers.judged import ScoredQuery

Guarantee = Literal["query-recall", "snippet", "all", "any"]


def check_guarantee(guarantee: str, delta: float | None) -> None:
    """Raise ValueError unless the guarantee is known and can be had for all but a share delta."""
    if guarantee not in get_args(Guarantee):
        known = ", ".join(map(repr, get_args(Guarantee)))
        raise ValueError(f"guarantee is {guarantee!r}; give one of {known}")
    if delta is None:
        return
    tolerance.check_delta(delta)
    if guarantee == "snippet":
        raise ValueError(
            f"delta is {delta:g} with guarantee 'snippet', but the snippets of a query come "
            "together, so that coverage varies more over calibrations than any bound for single "
            "snippets says; give delta with 'query-recall', 'all' or 'any'"
        )


@dataclass(frozen=True, eq=False)
class Units:
    """The units of a guarantee in some calibration queries: all of them, or those of one group."""

    guarantee: Guarantee
    queries: Sequence[ScoredQuery]
    count_missed: bool

    @cached_property
    def entering(self) -> list[ScoredQuery]:
        """The queries that have a relevant score."""
        return [q for q in self.queries if q.relevant.any() or (self.count_missed and q.missed)]

    @cached_property
    def scores_by_query(self) -> list[NDArray[np.float64]]:
        """What each entering query's unit, or units, have as scores."""
        scores = [
            np.concatenate([q.scores[q.relevant], np.full(q.missed * self.count_missed, math.inf)])
            for q in self.entering
        ]
        if self.guarantee == "all":
            return [s.max(keepdims=True) for s in scores]
        if self.guarantee == "any":
            return [s.min(keepdims=True) for s in scores]
        return scores

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """The scores of all units, (n,)."""
        return np.concatenate([np.empty(0), *self.scores_by_query])

    @property
    def n(self) -> int:
        """The number of units."""
        return len(self.scores) if self.guarantee == "snippet" else len(self.entering)

    @cached_property
    def masses(self) -> Masses:
        """What each score counts: its query's weight over the number of scores of its unit."""
        lengths = np.array([len(s) for s in self.scores_by_query], dtype=np.int64)
        sizes = np.ones_like(lengths) if self.guarantee == "snippet" else lengths
        weights = np.array([q.weight for q in self.entering])
        alike = bool((weights == 1).all())
        return Masses.of(sizes.repeat(lengths), None if alike else weights.repeat(lengths))

    def threshold(self, alpha: float, delta: float | None) -> float:
        """Return the largest score to keep, +inf where no finite one gives the guarantee."""
        if delta is None:
            return conformal.mass_threshold(self.scores, self.masses, alpha)
        if self.guarantee == "query-recall":
            # An order that does not depend on the scores, and is the same in every run.
            order = sorted(range(self.n), key=lambda i: _digest(self.entering[i].id, i))
            in_order = [self.scores_by_query[i] for i in order]
            return tolerance.query_recall_tolerance(in_order, alpha, delta)
        k = tolerance.tolerance_rank(self.n, alpha, delta)
        return math.inf if k > self.n else float(np.partition(self.scores, k - 1)[k - 1])

    def n_needed(self, alpha: float, delta: float | None) -> int:
        """Return the smallest number of units of weight 1 that allows a finite threshold."""
        if delta is None:
            return conformal.queries_needed(alpha)
        if self.guarantee == "query-recall":
            return tolerance.betting_n(alpha, delta)
        return tolerance.tolerance_n(alpha, delta)

    def p_values(self, scores: ArrayLike) -> NDArray[np.float64]:
        """Return the conformal p-value of each score (m,)."""
        return conformal.p_values(*self._ordered_with_steps, scores)

    @cached_property
    def _ordered_with_steps(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        order = np.argsort(self.scores)
        ordered = Masses(self.masses.parts[order], self.masses.new)
        return self.scores[order], conformal.p_value_steps(ordered)


def _digest(id: str | None, position: int) -> str:
    return hashlib.sha256((id or f"#{position}").encode()).hexdigest()
