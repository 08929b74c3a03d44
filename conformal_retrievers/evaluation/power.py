"""The test of a coverage measured on new units, and how many of them it needs.

m units with the coverage c are enough if one of two hypotheses is rejected:

    the guarantee just holds       by P(a coverage ≤ c) < 0.05, see `coverage_p_value`
    coverage is 5 points below     by P(Bin(m, 1 − α − 0.05) ≥ c m) < 0.05

"snippet" counts independent snippets, and the law is a guide, since snippets cluster by query.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.evaluation.share import Share
from conformal_retrievers.theory import tolerance
from conformal_retrievers.theory.ranks import conformal_rank, exact_alpha

SIGNIFICANT = 0.05
SHORTFALL = 0.05  # a coverage this far below the target should not pass unseen
POWER = 0.8  # with which a coverage that is the target rules it out
STEP = 20  # numbers of units that are needed are multiples of it


def coverage_p_value(calibration: Calibration, coverage: Share, group: str | None = None) -> float:
    """Return the probability of a coverage as low as this or lower if the guarantee just holds.

    A threshold of rank k of n calibration units keeps BetaBinomial(m; k, n + 1 − k) of m new ones
    (Marques 2023, arXiv 2303.02770): coverage varies with the calibration too. This is exact for
    "all" and "any" without ties and conservative with them; usually conservative for
    "query-recall", where a query's share counts as all or nothing; approximate for "snippet", where
    n and m are effective numbers, and for all groups together. With delta, the guarantee is about
    nearly every calibration, and the number kept is Binomial(m, 1 − alpha). It is 1 if nothing was
    measured.
    """
    m = independent(calibration, coverage)
    if not m:
        return 1.0
    return float(_cdf_of_kept(calibration, m, group)[math.ceil(coverage.estimate * m - 1e-9)])


def _cdf_of_kept(calibration: Calibration, m: int, group: str | None) -> NDArray[np.float64]:
    """Return P(0 … m of m new units are kept) if the guarantee just holds, cumulated, (m + 1,)."""
    if calibration.delta is not None:
        return tolerance.binomial_cdf(m, float(1 - exact_alpha(calibration.alpha)))
    units = sum(calibration.n_units.values()) if group is None else calibration.n_units[group]
    if calibration.guarantee == "snippet":
        units = max(1, round(units * calibration.effective_n / calibration.n_relevant))
    k = min(units, conformal_rank(units, calibration.alpha))
    return tolerance.beta_binomial_cdf(m, k, units + 1 - k)


def n_to_tell(
    calibration: Calibration, coverage: Share, group: str | None = None, level: float = SIGNIFICANT
) -> float:
    """Return how many units distinguish the target from 5 points less; inf if none do.

    They do if the guarantee fails, or the coverage 5 points below is ruled out, both at `level`. If
    the units measured do, it is their number. Otherwise it is the lowest multiple of 20 that rules
    it out with probability 0.8 where the coverage is the target. If that many were measured, it is
    the lowest multiple that is enough at this coverage; after a small calibration, whose own
    coverage varies more, there may be none.
    """
    target = Fraction(1) - exact_alpha(calibration.alpha)
    short = float(shortfall(target))
    m = independent(calibration, coverage)

    def enough_at(m: int) -> bool:
        kept = coverage.estimate * m
        if _rule_out(m, short, level)[math.floor(kept + 1e-9)]:
            return True
        return bool(_cdf_of_kept(calibration, m, group)[math.ceil(kept - 1e-9)] < level)

    if short == 0 or enough_at(m):
        return m
    enough = n_to_rule_out(target, level)
    return enough if m < enough else _first(enough_at, m)


def n_to_rule_out(target: Fraction, level: float = SIGNIFICANT) -> float:
    """Return how many units rule 5 points less out in 80 % of cases if coverage is the target.

    It is a multiple of 20.

    >>> n_to_rule_out(Fraction(9, 10))
    300
    """
    short = float(shortfall(target))

    def likely(m: int) -> bool:
        fewest = m + 1 - np.count_nonzero(_rule_out(m, short, level))
        return bool(1 - np.append(0.0, tolerance.binomial_cdf(m, float(target)))[fewest] >= POWER)

    return _first(likely, 0)


def _rule_out(m: int, short: float, level: float) -> NDArray[np.bool_]:
    """Return whether 0 … m of m kept rule the coverage `short` out, (m + 1,)."""
    return 1 - np.concatenate([[0.0], tolerance.binomial_cdf(m, short)[:-1]]) < level


def shortfall(target: float | Fraction) -> Fraction:
    """Return the coverage 5 points below a target, or 0."""
    return max(Fraction(0), Fraction(str(target)) - Fraction(str(SHORTFALL)))


def independent(calibration: Calibration, coverage: Share) -> int:
    """Return how many independent units a coverage was measured on, at most."""
    if calibration.guarantee == "snippet":
        return round(min(coverage.n, coverage.effective_n))
    return round(coverage.n)


def _first(holds: Callable[[int], bool], above: int) -> float:
    """Return the first multiple of `STEP` above a number for which it holds; inf if none is found.

    It is exact where it holds for all larger ones.
    """
    start = above // STEP + 1
    end = next((start + 2**j for j in range(14) if holds(STEP * (start + 2**j))), None)
    if end is None:
        return math.inf
    return STEP * bisect_left(range(end), True, lo=start, key=lambda steps: holds(STEP * steps))
