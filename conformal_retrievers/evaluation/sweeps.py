"""m1 and m2 over alpha and over K, beside the bands of exchangeable queries.

Over alpha the scores stay and the threshold moves; over K the threshold stays and each list is cut
after its first k snippets, as a shallower retriever would return it (Geissler et al. 2026, arXiv
2605.05244, figures 3 and 4). The bands are those of `exchangeability.py`, each at one point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.evaluation.columns import Columns
from conformal_retrievers.evaluation.measures import END_TO_END, shares
from conformal_retrievers.theory.exchangeability import m1_band, m2_band
from conformal_retrievers.theory.intervals import Interval
from conformal_retrievers.theory.ranks import exact_alpha

ALPHAS = tuple(k / 40 for k in range(1, 21))  # 0.025, 0.05, … 0.5
MOST_DEPTHS = 25

Band = tuple[float, float]


@dataclass(frozen=True)
class SweepPoint:
    """The queries at one alpha: m1, m2, removal and, if they are judged, coverage.

    A band is where m1 or m2 of exchangeable queries lie, None if it is unknown.
    """

    alpha: float
    threshold: float | None
    m1: float
    m2: float
    removal: float
    m1_band: Band | None
    m2_band: Band | None
    coverage: Interval | None


@dataclass(frozen=True)
class DepthPoint:
    """The queries with only the first k of their snippets, at the same threshold.

    `recall` and `end_to_end` count all known relevant snippets, those beyond the first k included;
    None if no query is judged, or the number that the whole lists miss is unknown.
    """

    k: int
    m1: float
    m2: float
    m1_band: Band | None
    m2_band: Band | None
    recall: Interval | None
    end_to_end: Interval | None


def over_alpha(
    calibration: Calibration,
    queries: Columns,
    reference: Columns | None,
    alphas: Sequence[float],
    level: float,
) -> tuple[SweepPoint, ...]:
    """Return a point for each alpha and for the calibration's own, if its delta allows that."""
    return tuple(
        sweep_point(calibration.at(alpha), queries, reference, level)
        for alpha in _feasible(calibration, alphas)
    )


def over_depth(
    calibration: Calibration, queries: Columns, reference: Columns | None, level: float
) -> tuple[DepthPoint, ...]:
    """Return a point for each depth up to the longest list, at most `MOST_DEPTHS` of them."""
    return tuple(
        _depth_point(calibration, queries, reference, k, level) for k in _depths(queries.sizes)
    )


def _feasible(calibration: Calibration, alphas: Sequence[float]) -> list[float]:
    for alpha in alphas:
        exact_alpha(alpha)
    chosen = sorted({float(alpha) for alpha in (*alphas, calibration.alpha)})
    if calibration.delta is None or calibration.by_group:
        return chosen
    units = calibration.units()
    return [alpha for alpha in chosen if units.n >= units.n_needed(alpha, calibration.delta)]


def _depths(sizes: NDArray[np.intp]) -> list[int]:
    deepest = int(sizes.max(initial=0))
    if deepest <= MOST_DEPTHS:
        return list(range(1, deepest + 1))
    return sorted({round(k) for k in np.geomspace(1, deepest, MOST_DEPTHS).tolist()})


def sweep_point(
    calibration: Calibration, queries: Columns, reference: Columns | None, level: float
) -> SweepPoint:
    """Return the queries at the calibration's alpha."""
    keeps = queries.keeps(calibration)
    measured = shares(queries.counts(keeps), level, misses_known=False)
    one, two = _bands(calibration, queries, reference, level)
    return SweepPoint(
        alpha=calibration.alpha,
        threshold=None if calibration.by_group else calibration.threshold(),
        m1=measured["m1"].estimate,
        m2=measured["m2"].estimate,
        removal=measured["removal"].estimate,
        m1_band=one,
        m2_band=two,
        coverage=_coverage(calibration, queries, keeps, level),
    )


def _coverage(
    calibration: Calibration, queries: Columns, keeps: NDArray[np.bool_], level: float
) -> Interval | None:
    """Return the coverage in the sense of the guarantee, None if no query is judged."""
    if not queries.judged:
        return None
    name = (END_TO_END if calibration.count_missed else "") + calibration.guarantee
    return shares(queries.counts(keeps), level, misses_known=True)[name].interval


def _depth_point(
    calibration: Calibration, queries: Columns, reference: Columns | None, k: int, level: float
) -> DepthPoint:
    cut = queries.cut(k)
    keeps = cut.keeps(calibration)
    measured = shares(cut.counts(keeps), level, misses_known=True)
    one, two = (
        (None, None)  # the calibration knows its lowest scores at its own depth only
        if reference is None
        else _bands(calibration, cut, reference.cut(k), level)
    )
    known = queries.judged and (calibration.count_missed or bool(queries.missed.any()))
    return DepthPoint(
        k=k,
        m1=measured["m1"].estimate,
        m2=measured["m2"].estimate,
        m1_band=one,
        m2_band=two,
        recall=measured["recall@K"].interval if known else None,
        end_to_end=measured[END_TO_END + calibration.guarantee].interval if known else None,
    )


# --- bands ----------------------------------------------------------------------------------------


def _bands(
    calibration: Calibration, queries: Columns, reference: Columns | None, level: float
) -> tuple[Band | None, Band | None]:
    n_scored = int(np.count_nonzero(np.isfinite(queries.lowest)))
    lowest, passed = reference_lowest(calibration, reference)
    one = two = None
    if n_scored and len(lowest) and passed is not None:
        one = m1_band(passed, len(lowest), n_scored, level)
    n_new = int(np.count_nonzero(queries.sizes))
    if reference is not None and n_new:
        kept, some = reference.count(reference.keeps(calibration)), reference.sizes > 0
        two = m2_band(kept[some] / reference.sizes[some], n_new, level)
    return one, two


def reference_lowest(
    calibration: Calibration, reference: Columns | None
) -> tuple[NDArray[np.float64], int | None]:
    """Return the lowest scores (N,) to compare queries with, and how many of them are kept.

    They are those of the reference, or else of the calibration's own queries. The number is None
    for a calibration by group, which does not record the group of each lowest score.
    """
    if reference is not None:
        scored = np.isfinite(reference.lowest)
        kept = reference.lowest <= reference.thresholds(calibration)
        return reference.lowest[scored], int(np.count_nonzero(kept & scored))
    lowest = np.array(calibration.lowest_scores)
    if calibration.by_group:
        return lowest, None
    return lowest, int(np.count_nonzero(lowest <= calibration.threshold()))
