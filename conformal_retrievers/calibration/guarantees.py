"""What 1 − α is a probability of, and the units that are counted for it.

    "query-recall"  E[share of a new query's relevant snippets that is kept] ≥ 1 − α
    "snippet"       P(a new relevant snippet is kept) ≥ 1 − α
    "all"           P(no relevant snippet of a new query is dropped) ≥ 1 − α
    "any"           P(at least one relevant snippet of a new query is kept) ≥ 1 − α

Exchangeable are the units: the snippets for "snippet", else the queries. A query enters with all
its relevant scores, with their maximum for "all", with their minimum for "any". A relevant snippet
that was not retrieved has the score +inf where missed snippets count, and does not exist where they
do not: then each promise is one about retrieved snippets. Where they count, the promise is kept on
average over calibrations that include those whose threshold is +inf, which say that it is out of
reach: no query can be said to lose what no calibration claimed to keep.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.theory import ranks, tolerance
from conformal_retrievers.theory.ranks import Masses

Guarantee = Literal["query-recall", "snippet", "all", "any"]


def loss(
    query: ScoredQuery, keeps: NDArray[np.bool_], guarantee: Guarantee, *, count_missed: bool
) -> float | None:
    """Return what a query loses by keeping some snippets (n,), None without a relevant one.

    That is the share of its relevant snippets that is dropped for "query-recall", and 0 or 1 for
    "all" (one is dropped) and "any" (all are dropped); missed ones are dropped where they count.
    """
    known = int(query.relevant.sum()) + query.missed * count_missed
    if not known:
        return None
    share = float((keeps & query.relevant).sum()) / known
    if guarantee == "query-recall":
        return 1 - share
    return float(share < 1 if guarantee == "all" else share == 0)


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


def check_relative(guarantee: str, relative_to_query: bool, scorer: str) -> None:
    """Raise ValueError for "snippet" with scores that depend on the query's other snippets."""
    if relative_to_query and guarantee == "snippet":
        raise ValueError(
            f"guarantee is 'snippet', but {scorer!r} scores a snippet by the others of its query "
            "too, so that snippets are not exchangeable one by one; choose 'query-recall', 'all' "
            "or 'any', where the query is the unit"
        )


@dataclass(frozen=True, eq=False)
class Units:
    """The units of a guarantee in some calibration queries: all of them, or those of one group.

    The queries hold their relevant scores alone, ascending, as those of a `Calibration` do.
    """

    guarantee: Guarantee
    queries: Sequence[ScoredQuery]
    count_missed: bool

    @cached_property
    def entering(self) -> list[ScoredQuery]:
        """The queries that have a relevant score."""
        return [q for q in self.queries if len(q.scores) or (self.count_missed and q.missed)]

    @cached_property
    def scores_by_query(self) -> list[NDArray[np.float64]]:
        """The scores of each entering query's unit, or units, ascending."""
        scores = [
            np.append(q.scores, np.full(q.missed, math.inf))
            if self.count_missed and q.missed
            else q.scores
            for q in self.entering
        ]
        if self.guarantee == "all":
            return [s[-1:] for s in scores]
        if self.guarantee == "any":
            return [s[:1] for s in scores]
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
        """What each score counts: 1/N_q for "query-recall", else 1."""
        lengths = np.array([len(s) for s in self.scores_by_query], dtype=np.int64)
        sizes = lengths if self.guarantee == "query-recall" else np.ones_like(lengths)
        return Masses.of(sizes.repeat(lengths))

    @property
    def reach(self) -> float:
        """The share of the judged mass that some finite threshold keeps: the rest scores +inf."""
        finite = self.scores < math.inf
        total = int(self.masses.parts.sum())
        return float(Fraction(int(self.masses.parts[finite].sum()), total)) if total else math.nan

    def threshold(self, alpha: float, delta: float | None) -> float:
        """Return the largest score to keep, +inf where no finite one gives the guarantee."""
        if delta is None:
            return ranks.mass_threshold(self.scores, self.masses, alpha)
        if self.guarantee == "query-recall":
            return tolerance.query_recall_tolerance(self.in_fixed_order(), alpha, delta)
        k = tolerance.tolerance_rank(self.n, alpha, delta)
        return math.inf if k > self.n else float(np.partition(self.scores, k - 1)[k - 1])

    def in_fixed_order(self) -> list[NDArray[np.float64]]:
        """Return the scores by query, in an order that is no matter of scores and always the same.

        Bets come one after the other; the order is that of a hash of the queries' ids.
        """
        order = sorted(range(len(self.entering)), key=lambda i: digest(self.entering[i].id, i))
        return [self.scores_by_query[i] for i in order]

    def n_needed(self, alpha: float, delta: float | None) -> int:
        """Return the smallest number of units that allows a finite threshold."""
        if delta is None:
            return ranks.queries_needed(alpha)
        if self.guarantee == "query-recall":
            return tolerance.betting_n(alpha, delta)
        return tolerance.tolerance_n(alpha, delta)

    def p_values(self, scores: ArrayLike) -> NDArray[np.float64]:
        """Return the conformal p-value of each score (m,)."""
        return ranks.p_values(*self._ordered_with_steps, scores)

    @cached_property
    def _ordered_with_steps(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        order = np.argsort(self.scores)
        ordered = Masses(self.masses.parts[order], self.masses.new)
        return self.scores[order], ranks.p_value_steps(ordered)


def digest(id: str | None, position: int) -> str:
    """Return what orders queries the same in every run: a hash of the id, or of the position."""
    return hashlib.sha256((id or f"#{position}").encode()).hexdigest()
