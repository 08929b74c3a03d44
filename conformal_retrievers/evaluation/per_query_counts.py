"""What a diagnosis takes from queries: what is kept at each alpha of a sweep, and the AUCs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.evaluation import measures
from conformal_retrievers.evaluation.measures import Column, QueryCounts
from conformal_retrievers.theory.intervals import auc

ALPHAS = tuple(k / 40 for k in range(1, 21))  # 0.025, 0.05, … 0.5
CELLS = 2**18  # scores that are compared at a time, which bounds the memory


@dataclass(frozen=True, eq=False)
class Observed:
    """What `diagnose` takes from K queries.

    An A × K array has a row for each alpha of the sweep.
    """

    counts: QueryCounts  # at the calibration's own alpha
    kept: NDArray[np.int32]  # (A, K)
    relevant_kept: NDArray[np.int32]  # (A, K)
    lowest: Column  # (K,), the lowest finite score; +inf without one
    lowest_kept: NDArray[np.intp]  # (A,), how many lowest scores are at most the threshold
    thresholds: tuple[float | None, ...]  # at each alpha; None if it depends on the group
    aucs: Column  # (K,), NaN for a query without both kinds of snippets
    auc_over: float  # of all scores of queries that pass; NaN without both kinds
    n_scores: int  # of these
    n_values: int  # how many different ones
    at_threshold: int  # how many are equal to their threshold

    @classmethod
    def of(cls, calibration: Calibration, scored: measures.Given, name: str = "scored") -> Observed:
        """Return what a diagnosis of this calibration takes from queries; raise as `evaluate`."""
        queries = measures.checked(scored, calibration, name)
        passed, lowest = measures.passed(queries), queries.lowest
        groups = queries.groups.tolist() if calibration.by_group else []
        alphas = alphas_of(calibration)
        thresholds = [calibration.thresholds_at(alpha) for alpha in alphas]
        limits = [
            np.array([at.get(group, math.inf) for group in groups]) if groups else at[None]
            for at in thresholds
        ]
        kept = np.zeros((len(limits), len(queries)), dtype=np.int32)
        relevant_kept = np.zeros_like(kept)
        judged = bool(queries.relevant.any())
        for i, limit in enumerate(limits):
            below = measures.below(queries, limit)
            kept[i] = queries.number_in(below) * passed
            if judged:
                relevant_kept[i] = queries.number_in(below & queries.relevant) * passed
        scores = queries.scores
        if not passed.all():
            scores = np.where(np.repeat(passed, queries.sizes), scores, math.nan)
        own = limits[alphas.index(calibration.alpha)]
        of_each = np.repeat(own, queries.sizes) if groups else own
        known = scores[~np.isnan(scores)]
        return cls(
            counts=measures.counts(queries, measures.keeps(queries, calibration)),
            kept=kept,
            relevant_kept=relevant_kept,
            lowest=lowest,
            lowest_kept=np.array(
                [np.count_nonzero((lowest <= limit) & np.isfinite(lowest)) for limit in limits]
            ),
            thresholds=tuple(None if groups else at[None] for at in thresholds),
            aucs=aucs(queries, scores),
            auc_over=auc(scores[queries.relevant], scores[~queries.relevant]),
            n_scores=len(known),
            n_values=len(np.unique(known)),
            at_threshold=int(np.count_nonzero(scores == of_each)),
        )

    def at(self, i: int) -> QueryCounts:
        """Return the counts at alpha number i of the sweep."""
        return self.counts._replace(
            kept=self.kept[i].astype(np.float64),
            relevant_kept=self.relevant_kept[i].astype(np.float64),
        )


def alphas_of(calibration: Calibration) -> list[float]:
    """Return the alphas of the sweep: a grid, and the calibration's own."""
    return calibration.possible_alphas(ALPHAS)


def aucs(queries: ScoredQueries, scores: Column) -> Column:
    """Return the AUC of each query, (n,), of scores (S,); NaN for one without both kinds.

    Of a query of r relevant and m irrelevant scores it is Σ (relevant ones below an irrelevant one
    + those up to it) / 2 r m, over its irrelevant ones, in the order of its scores.
    """
    areas = np.full(len(queries), math.nan)
    known = ~np.isnan(scores)
    r = queries.number_in(queries.relevant & known)
    m = queries.number_in(known) - r
    mixed = np.flatnonzero((r > 0) & (m > 0))
    for size in np.unique(queries.sizes[mixed]).tolist():
        alike = mixed[queries.sizes[mixed] == size]
        for some in np.array_split(alike, math.ceil(len(alike) * size / CELLS)):
            cells = queries.offsets[some][:, None] + np.arange(size)
            cells = np.take_along_axis(cells, np.argsort(scores[cells], axis=1), axis=1)
            ordered = scores[cells]
            relevant, place = queries.relevant[cells] & known[cells], np.arange(size)
            up_to = np.cumsum(relevant, axis=1)
            new = np.ones_like(relevant)  # than the score before
            new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
            first = np.maximum.accumulate(np.where(new, place, 0), axis=1)
            last = np.roll(new, -1, axis=1)
            last[:, -1] = True
            last = np.minimum.accumulate(np.where(last, place, size)[:, ::-1], axis=1)[:, ::-1]
            twice = np.take_along_axis(up_to - relevant, first, axis=1)
            twice = twice + np.take_along_axis(up_to, last, axis=1)
            areas[some] = (twice * (known[cells] & ~relevant)).sum(axis=1) / 2 / r[some] / m[some]
    return areas
