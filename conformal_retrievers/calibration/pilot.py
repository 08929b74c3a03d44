"""How much a filter keeps with more judged queries, expected from those of a pilot.

The share s_q(v) of a query's relevant snippets has a score of at most v. The threshold T of n
queries is at most v if these shares sum to (1 − α)(n + 1) or more. For queries like the pilot's,
with the mean μ(v) and the standard deviation σ(v) of their shares, the sum is nearly normal:

    P(T ≤ v) = Φ((n μ(v) − (1 − α)(n + 1)) / (√n σ(v))),    E[kept] = Σ_v P(T = v) kept(v)

where kept(v) is the share of the pilot's snippets with a score of at most v. If all shares are 0 or
1, as with one relevant snippet for each query, the sum is binomial: P(T ≤ v) = P(Bin(n, μ(v)) ≥ k)
with k = ⌈(1 − α)(n + 1)⌉. Intervals are of the bootstrap over the pilot's queries. On five data
sets, those of 80 % have the true share for 70 to 86 % of pilots of 30 queries, and for 76 to 87 %
of larger ones (benchmarks/pilots.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.choosing import choose
from conformal_retrievers.calibration.costs import Aim
from conformal_retrievers.calibration.guarantees import Guarantee, Units, n_needed
from conformal_retrievers.data.checks import all_of
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.data.retrieved import check_not_only_relevant
from conformal_retrievers.scoring.scorer import Scorer, judged_queries, score_queries
from conformal_retrievers.theory.intervals import Interval

Array = NDArray[np.float64]
STEPS = 1000  # thresholds that are looked at
RESAMPLES = 200
SMALLEST = 30  # queries of a pilot: the intervals of smaller ones are far too short
SPREAD = 0.8  # of the resamples, and of calibrations: one in ten is below, one in ten above


@dataclass(frozen=True)
class Pilot:
    """The queries of a pilot at each of some thresholds, in resamples; the first is the pilot."""

    n: int  # queries with a relevant snippet
    mean: Array  # (1 + resamples, thresholds) of the shares of relevant snippets kept
    variance: Array  # the same
    kept: Array  # the same, of the share of all snippets kept
    binary: bool  # whether each share is 0 or 1

    @classmethod
    def of(cls, scored: Iterable[ScoredQuery], guarantee: Guarantee) -> Pilot:
        """Return the pilot of scored queries, (n,) scores each.

        Raises ValueError for "snippet", whose units cluster by query, and for fewer than 30 queries
        with a relevant snippet.
        """
        if guarantee == "snippet":
            raise ValueError(
                "pilot is given with guarantee 'snippet', whose snippets cluster by query; give "
                "'query-recall', 'all' or 'any'"
            )
        queries = list(scored)
        counts = np.array([query.relevant.any() for query in queries], dtype=np.bool_)
        n = int(counts.sum())
        if n < SMALLEST:
            raise ValueError(
                f"pilot has {n} queries with a relevant snippet; give {SMALLEST} or more"
            )
        pooled = Units(guarantee, ScoredQueries.of(queries).relevant_only(), False)
        units = np.split(pooled.scores, np.cumsum(pooled.sizes)[:-1])
        values = np.sort(pooled.scores)
        values = np.unique(values[np.linspace(0, len(values) - 1, STEPS).astype(int)])
        shares = np.zeros((len(queries), len(values)))
        shares[counts] = [_at_most(values, of_one) for of_one in units]
        sizes = np.array([len(query.scores) for query in queries], dtype=np.float64)
        kept = np.stack([_at_most(values, query.scores) for query in queries]) * sizes[:, None]
        rng = np.random.default_rng(0)
        drawn = rng.multinomial(len(queries), np.full(len(queries), 1 / len(queries)), RESAMPLES)
        weights = np.concatenate([np.ones((1, len(queries))), drawn])
        weights = weights[weights @ counts > 0]
        of = weights / (weights @ counts)[:, None]
        mean = of @ shares
        variance = np.maximum(0, of @ shares**2 - mean**2)
        kept = weights @ kept / (weights @ sizes)[:, None]
        return cls(n, mean, variance, kept, bool(np.isin(shares, (0, 1)).all()))

    def expected(self, n: int, alpha: float) -> Array:
        """Return the share of snippets that n queries are expected to keep, (1 + resamples,)."""
        from scipy.special import bdtrc, ndtr

        if self.binary:
            rank = math.ceil((1 - alpha) * (n + 1) - 1e-9)
            below = bdtrc(rank - 1, n, self.mean.round(12))  # a mean of 1 is exact
        else:
            spare = n * self.mean - (1 - alpha) * (n + 1)
            spread = np.sqrt(n * self.variance)
            certain = spread < 1e-6  # rounding errors of a variance of 0
            below = np.where(certain, spare > -1e-9, ndtr(spare / np.where(certain, 1, spread)))
        below = np.maximum.accumulate(below, axis=1)
        chances = np.diff(below, axis=1, prepend=0, append=1)
        kept = np.append(self.kept, np.ones((len(self.kept), 1)), axis=1)
        return np.asarray((chances * kept).sum(axis=1))


def scored_pilot(
    pilot: Iterable[JudgedQuery] | Iterable[ScoredQuery],
    alpha: float,
    guarantee: Guarantee,
    delta: float | None,
    scorers: Sequence[Scorer] = (),
) -> list[ScoredQuery]:
    """Return the queries of a pilot that would calibrate, scored as `calibrate` would score them.

    Scored queries are returned as they are. `scorers` compete with what the hits give.
    """
    given: list[Any] = list(pilot)
    if not given or not isinstance(given[0], JudgedQuery):
        return all_of(ScoredQuery, given, "pilot")
    check_not_only_relevant(given)
    needed = n_needed(guarantee, alpha, delta)
    aim = Aim(guarantee, alpha, None, False, delta)
    chosen = choose(judged_queries(given), list(scorers) or None, aim, needed=needed)
    return score_queries(chosen.scorer, chosen.calibration)


def interval(drawn: Array) -> Interval:
    """Return the first number, of the pilot, with the ends of 8 in 10 resamples."""
    low, high = np.quantile(drawn[1:], [(1 - SPREAD) / 2, (1 + SPREAD) / 2])
    return Interval(float(drawn[0]), float(low), float(high))


def _at_most(values: Array, scores: Array) -> Array:
    """Return the share of scores that are at most each value; a missing score is."""
    known = np.sort(scores[~np.isnan(scores)])
    below = np.searchsorted(known, values, side="right") + len(scores) - len(known)
    return np.asarray(below / max(1, len(scores)), dtype=np.float64)
