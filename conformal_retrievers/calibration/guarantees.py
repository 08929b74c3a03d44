"""What 1 − α is a probability of, and the units that are counted for it.

    "query-recall"  E[share of a new query's relevant snippets that is kept] ≥ 1 − α
    "snippet"       P(a new relevant snippet is kept) ≥ 1 − α
    "all"           P(no relevant snippet of a new query is dropped) ≥ 1 − α
    "any"           P(at least one relevant snippet of a new query is kept) ≥ 1 − α

The exchangeable units are the snippets for "snippet" and the queries otherwise. A query contributes
all its relevant scores, their maximum for "all", or their minimum for "any". Each guarantee is
about retrieved snippets, unless missed ones count: then their score is +inf.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.calibration.wording import say
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.theory import ranks, tolerance
from conformal_retrievers.theory.ranks import Masses

Guarantee = Literal["query-recall", "snippet", "all", "any"]


def loss(
    query: ScoredQuery, keeps: NDArray[np.bool_], guarantee: Guarantee, *, count_missed: bool
) -> float | None:
    """Return the loss of a query of which a mask (n,) of the snippets is kept.

    It is the dropped share of relevant snippets for "query-recall", and 0 or 1 for "all" (one is
    dropped) and "any" (all are). None for a query without a relevant snippet, and for one without
    `missed` if missed snippets count.
    """
    if count_missed and query.missed is None:
        return None
    known = int(query.relevant.sum()) + query.n_missed * count_missed
    if not known:
        return None
    share = float((keeps & query.relevant).sum()) / known
    if guarantee == "query-recall":
        return 1 - share
    return float(share < 1 if guarantee == "all" else share == 0)


def check_guarantee(guarantee: str, delta: float | None) -> float | None:
    """Return delta; raise ValueError for an unknown guarantee, or one that cannot have a delta."""
    if guarantee not in get_args(Guarantee):
        known = ", ".join(map(repr, get_args(Guarantee)))
        raise ValueError(f"guarantee is {guarantee!r:.80}; give one of {known}")
    if delta is not None and guarantee == "snippet":
        raise ValueError(say("delta of snippets", delta=delta))
    return None if delta is None else tolerance.check_delta(delta)


def n_needed(guarantee: Guarantee, alpha: float, delta: float | None) -> int:
    """Return the smallest number of units that allows a finite threshold."""
    if delta is None:
        return ranks.queries_needed(alpha)
    if guarantee == "query-recall":
        return tolerance.betting_n(alpha, delta)
    return tolerance.tolerance_n(alpha, delta)


@dataclass(frozen=True, eq=False)
class Units:
    """The units of a guarantee in queries that hold only their relevant scores, ascending."""

    guarantee: Guarantee
    queries: ScoredQueries
    count_missed: bool

    @cached_property
    def contributes(self) -> NDArray[np.bool_]:
        """Whether each query has a relevant score, (K,)."""
        return (self.queries.sizes > 0) | (self._missed > 0)

    @cached_property
    def scores(self) -> NDArray[np.float64]:
        """The scores of all units, query by query and ascending in each; +inf if missed."""
        scores = self.queries.scores
        if self._missed.any():
            scores = np.insert(scores, self.queries.offsets[1:].repeat(self._missed), math.inf)
        ends = np.cumsum(self._known)
        if self.guarantee == "all":
            return scores[ends - 1]
        return scores[ends - self._known] if self.guarantee == "any" else scores

    @cached_property
    def sizes(self) -> NDArray[np.intp]:
        """The number of scores of each contributing query."""
        return np.ones_like(self._known) if self.guarantee in ("all", "any") else self._known

    @property
    def n(self) -> int:
        """The number of units."""
        return len(self.scores) if self.guarantee == "snippet" else len(self.sizes)

    @cached_property
    def masses(self) -> Masses:
        """What each score counts: 1/N_q for "query-recall", 1 for the other guarantees."""
        sizes = self.sizes if self.guarantee == "query-recall" else np.ones_like(self.sizes)
        return Masses.of(sizes.repeat(self.sizes))

    @property
    def ceiling(self) -> float:
        """The share of the judged mass that some finite threshold keeps: the rest scores +inf."""
        parts = self.masses.parts
        return int(parts[self.scores < math.inf].sum()) / int(parts.sum())

    def threshold(self, alpha: float, delta: float | None) -> float:
        """Return the largest score to keep, +inf if no finite threshold gives the guarantee."""
        if delta is None:
            return ranks.mass_threshold(self.scores, self.masses, alpha)
        if self.guarantee == "query-recall":
            parts = np.split(self.scores, np.cumsum(self.sizes)[:-1])
            given = [parts[i] for i in self._order], alpha, delta
            # A lucky beginning wins its bet even where all together lose more than alpha.
            return max(tolerance.query_recall_tolerance(*given), self.threshold(alpha, None))
        k = tolerance.tolerance_rank(self.n, alpha, delta)
        return math.inf if k > self.n else float(np.partition(self.scores, k - 1)[k - 1])

    def p_values(self, scores: ArrayLike) -> NDArray[np.float64]:
        """Return the conformal p-value of each score (m,)."""
        return ranks.p_values(*self._ordered_with_steps, scores)

    @cached_property
    def _missed(self) -> NDArray[np.intp]:
        """How many missed snippets of each query count, (K,)."""
        return np.nan_to_num(self.queries.missed).astype(np.intp) * self.count_missed

    @cached_property
    def _known(self) -> NDArray[np.intp]:
        """How many relevant snippets of each contributing query count."""
        return (self.queries.sizes + self._missed)[self.contributes]

    @cached_property
    def _order(self) -> list[int]:
        """The contributing queries in the order of bets, whichever of them has which scores."""
        return in_hashed_order(self.queries.ids[self.contributes].tolist(), self.queries.scores)

    @cached_property
    def _ordered_with_steps(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        order = np.argsort(self.scores)
        ordered = Masses(self.masses.parts[order], self.masses.new)
        return self.scores[order], ranks.p_value_steps(ordered)


def in_hashed_order(ids: Sequence[str | None], scores: NDArray[np.float64]) -> list[int]:
    """Return the places of ids in an order as good as random, which is the same in every run.

    It is that of the hashes of each id, or place, with all scores in ascending order: it does not
    depend on which query has which. By ids or places alone, the bets on a file that begins with
    easy queries would come to its hard ones at the same time in each sample of queries.
    """
    salt = np.sort(scores).tobytes()
    digests = [hashlib.sha256(salt + (id or f"#{i}").encode()).digest() for i, id in enumerate(ids)]
    return sorted(range(len(ids)), key=digests.__getitem__)
