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
from conformal_retrievers.evaluation.measures import guaranteed, shares
from conformal_retrievers.theory.exchangeability import m1_band, m2_band
from conformal_retrievers.theory.intervals import Interval

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

    `recall` counts the relevant snippets beyond the first k too; None if no query is judged, or the
    number that the whole lists miss is unknown.
    """

    k: int
    m1: float
    m2: float
    m1_band: Band | None
    m2_band: Band | None
    recall: Interval | None


def over_alpha(
    calibration: Calibration,
    queries: Columns,
    reference: Columns | None,
    alphas: Sequence[float],
    level: float,
) -> tuple[SweepPoint, ...]:
    """Return a point for each alpha and for the calibration's own, if its delta allows that."""

    def point(c: Calibration) -> SweepPoint:
        measured = shares(queries.counts(queries.keeps(c)), level, misses_known=True)
        return SweepPoint(
            c.alpha,
            None if c.by_group else c.threshold(),
            measured["m1"].estimate,
            measured["m2"].estimate,
            measured["removal"].estimate,
            *bands(c, queries, reference, level),
            measured[guaranteed(c)].interval if queries.judged else None,
        )

    chosen = sorted({float(alpha) for alpha in (*alphas, calibration.alpha)})
    if calibration.delta is not None and not calibration.by_group:
        units = calibration.units()
        chosen = [a for a in chosen if units.n >= units.n_needed(a, calibration.delta)]
    return tuple(point(calibration.at(alpha)) for alpha in chosen)


def over_depth(
    calibration: Calibration, queries: Columns, reference: Columns | None, level: float
) -> tuple[DepthPoint, ...]:
    """Return a point for each depth up to the longest list, at most `MOST_DEPTHS` of them."""
    known = queries.judged and (calibration.count_missed or bool(queries.missed.any()))

    def point(k: int) -> DepthPoint:
        cut = queries.cut(k)
        measured = shares(cut.counts(cut.keeps(calibration)), level, misses_known=True)
        both = (None, None)  # the calibration has its lowest scores at its own depth only
        return DepthPoint(
            k,
            measured["m1"].estimate,
            measured["m2"].estimate,
            *(both if reference is None else bands(calibration, cut, reference.cut(k), level)),
            measured["recall@K"].interval if known else None,
        )

    deepest = int(queries.sizes.max(initial=0))
    ks = np.geomspace(1, deepest, MOST_DEPTHS) if deepest > MOST_DEPTHS else range(1, deepest + 1)
    return tuple(point(k) for k in sorted({round(float(k)) for k in ks}))


def bands(
    calibration: Calibration, queries: Columns, reference: Columns | None, level: float
) -> tuple[Band | None, Band | None]:
    """Return the bands of m1 and m2 for queries that are exchangeable with the reference."""
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
