"""Thresholds that are chosen by something else than one alpha: by a budget, or after a look at all.

A budget looks at no judgement, so `certify` says what its threshold promises. A look at judgements
is paid for: all the thresholds that were looked at hold together, with probability 1 − δ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from conformal_retrievers.calibration import Calibration
from conformal_retrievers.conformal import exact_alpha
from conformal_retrievers.guarantees import check_guarantee
from conformal_retrievers.tolerance import check_delta, query_recall_tolerance


@dataclass(frozen=True)
class CurvePoint:
    """A threshold whose coverage is at least `coverage`, together with all others of its curve."""

    coverage: float
    threshold: float


def coverage_curve(
    calibration: Calibration, *, delta: float, alphas: Sequence[float]
) -> list[CurvePoint]:
    """Return, for each alpha, a threshold that covers 1 − alpha, all of them at once.

    With probability 1 − delta over calibrations every point holds, so that one may be chosen after
    looking at them all. For "all" and "any" by the Dvoretzky-Kiefer-Wolfowitz inequality with
    Massart's constant, F(t) ≥ F_n(t) − √(ln(1/δ)/2n) for all t (δ ≤ 1/2); for "query-recall" by the
    betting bound at level delta / len(alphas). +inf where no threshold can. Raises ValueError for
    "snippet", for a calibration by group or with weights, and for arguments out of range.
    """
    if not isinstance(calibration, Calibration):
        raise TypeError(f"calibration is {calibration!r:.60}; give a Calibration")
    check_guarantee(calibration.guarantee, check_delta(delta))
    for alpha in alphas:
        exact_alpha(alpha)
    if not len(alphas):
        raise ValueError("alphas is empty; give the miscoverage rates to choose from")
    if calibration.by_group or calibration.weighted:
        raise ValueError(
            "coverage_curve takes a calibration without groups and weights; calibrate one"
        )
    units = calibration.units()
    if calibration.guarantee == "query-recall":
        by_query = units.in_fixed_order()
        level = delta / len(alphas)
        return [CurvePoint(1 - a, query_recall_tolerance(by_query, a, level)) for a in alphas]
    if delta > 0.5:
        raise ValueError(f"delta is {delta:g}; the band holds for delta up to 0.5")
    ordered = np.sort(units.scores)
    margin = math.sqrt(math.log(1 / delta) / (2 * len(ordered)))
    points = []
    for alpha in alphas:
        k = math.ceil(len(ordered) * (1 - alpha + margin))  # F_n at the k-th smallest is k/n
        points.append(
            CurvePoint(1 - alpha, math.inf if k > len(ordered) else float(ordered[k - 1]))
        )
    return points


def threshold_for_budget(
    unjudged: Sequence[ArrayLike],
    *,
    keep_share: float | None = None,
    tokens: float | None = None,
    lengths: Sequence[ArrayLike] | None = None,
) -> float:
    """Return the largest threshold that keeps no more than a budget on average over queries.

    `unjudged` has the scores (n,) of each query's snippets. The budget is a share of a query's
    snippets, or a number of `tokens` a query with `lengths` (n,) in tokens beside the scores. It
    looks at no judgement, so that `certify` says what the threshold promises. -inf where even the
    lowest score is too much, +inf where everything fits. Raises ValueError for arguments that are
    out of range or do not go together.
    """
    if (keep_share is None) == (tokens is None) or (tokens is None) != (lengths is None):
        raise ValueError("give keep_share=, or tokens= with lengths=")
    if keep_share is not None and not 0 < keep_share <= 1:
        raise ValueError(f"keep_share is {keep_share!r}; give a share above 0 and at most 1")
    if tokens is not None and not tokens > 0:
        raise ValueError(f"tokens is {tokens!r}; give a positive number of tokens a query")
    scores = [np.asarray(s, dtype=np.float64) for s in unjudged]
    if any(s.ndim != 1 for s in scores):
        raise ValueError("unjudged has no scores by query; give one list of scores for each query")
    if not scores:
        raise ValueError("unjudged is empty; give the scores of some queries' snippets")
    costs = (
        [np.full(len(s), 1 / max(1, len(s))) for s in scores]
        if lengths is None
        else [np.asarray(length, dtype=np.float64) for length in lengths]
    )
    if [s.shape for s in scores] != [c.shape for c in costs]:
        raise ValueError("lengths does not fit unjudged; give one length for each score")
    if any(not (cost >= 0).all() for cost in costs):  # NaN is not ≥ 0
        raise ValueError("lengths holds a number that is negative or NaN; give numbers of tokens")
    budget = (keep_share if keep_share is not None else tokens or 0.0) * len(scores)
    v, cost = np.concatenate(scores), np.concatenate(costs)
    unscorable = np.isnan(v)  # kept whatever the threshold
    budget -= float(cost[unscorable].sum())
    order = np.argsort(v[~unscorable])
    v, spent = v[~unscorable][order], np.cumsum(cost[~unscorable][order])
    affordable = int(np.searchsorted(spent, budget * (1 + 1e-12), side="right"))
    if affordable == len(v):
        return math.inf
    # Equal scores are kept together or not at all.
    affordable = int(np.searchsorted(v, v[affordable], side="left"))
    return float(v[affordable - 1]) if affordable else -math.inf
