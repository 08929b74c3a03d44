"""Confidence intervals of shares, with the query as the unit, and the area under a ROC curve."""

import math
from fractions import Fraction
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from conformal_retrievers.theory.ranks import check_probability


class Interval(NamedTuple):
    """An estimate of a share in [0, 1] and the ends of its confidence interval.

    >>> print(Interval(0.9, 0.851, 1.0))
    90.0 % [85.1, 100.0]
    """

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return self.written()

    def written(self, unit: str = " %", width: int = 0) -> str:
        """Write the interval, with the estimate right-aligned in `width` characters.

        >>> Interval(0.9, 0.851, 1.0).written(unit="")  # in a table whose header has the unit
        '90.0 [85.1, 100.0]'
        """
        if math.isnan(self.estimate):
            return "–".rjust(width)
        estimate = round(100 * self.estimate, 1) + 0.0  # 0.0, not -0.0
        return f"{estimate:{width}.1f}{unit} {in_percent(self.low, self.high)}"


def in_percent(low: float, high: float, sign: str = "") -> str:
    """Write the ends of an interval in percent, with their signs if `sign` is "+".

    >>> in_percent(0.851, 1.0)
    '[85.1, 100.0]'
    """
    low, high = (round(100 * end, 1) + 0.0 for end in (low, high))  # 0.0, not -0.0
    return f"[{low:{sign}.1f}, {high:{sign}.1f}]"


def percent(share: float | Fraction, unit: str = " %", *, exact: bool = False) -> str:
    """Write a share in percent: a measured one to 0.1 %, an `exact` one with its own digits.

    >>> percent(0.9217), percent(0.875, exact=True), percent(2 / 3, exact=True)
    ('92.2 %', '87.5 %', '66.67 %')
    """
    if not exact:
        return "–" if math.isnan(share) else f"{100 * share:.1f}{unit}"
    value = float(100 * Fraction(str(share)))
    text = f"{value:.16g}"
    if len(text) > 15 and value < 99.99:  # as 2/3, it has no end; only 1 is written as 100 %
        text = f"{value:.4g}"
    return text + unit


def check_level(level: float) -> float:
    """Return the level of a confidence interval; raise unless it is a number in (0, 1).

    >>> check_level(0.95)
    0.95
    """
    return check_probability("level", level, "a confidence")


def wilson_interval(share: float, n: float, level: float = 0.95) -> Interval:
    """Return Wilson's score interval for a share of n > 0 independent units.

    centre (p + z²/2n)/(1 + z²/n), half-width z √(p(1 − p)/n + z²/4n²)/(1 + z²/n), with the normal
    quantile z (Wilson 1927, JASA 22).

    >>> print(wilson_interval(0.9, n=20))
    90.0 % [69.9, 97.2]
    """
    return _score_interval(share, n, NormalDist().inv_cdf((1 + level) / 2))


def _score_interval(share: float, n: float, z: float) -> Interval:
    scale = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / scale
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / scale
    # At a share of 0 or 1 one end is the share itself, up to rounding.
    return Interval(share, max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)))


def cluster_interval(parts: ArrayLike, wholes: ArrayLike, level: float = 0.95) -> Interval:
    """Return the interval of the share Σ parts / Σ wholes with the query as the unit.

    `parts` and `wholes` (K,) are one number per query, such as relevant snippets kept and relevant
    snippets, with 0 ≤ part ≤ whole. The snippets of a query are kept and dropped together, so the
    number of snippets overstates the information. This is Wilson's interval at `effective_n`, with
    the quantile of Student's t instead of the normal one; the degrees of freedom are the number of
    queries of equal size, (Σ wholes)² / Σ wholes², less 1. Approximate; [nan, 0, 1] for no query.

    >>> print(cluster_interval(parts=[3, 2, 4, 4], wholes=[4, 4, 4, 4]))
    81.2 % [34.8, 97.2]
    """
    return clustered(parts, wholes, level)[0]


def clustered(parts: ArrayLike, wholes: ArrayLike, level: float = 0.95) -> tuple[Interval, float]:
    """Return the `cluster_interval` and the `effective_n` of a share; (…, 0) for no query.

    >>> clustered(parts=[4, 0, 4], wholes=[4, 4, 4])[1]
    2.0
    """
    from scipy.special import stdtrit

    a = np.asarray(parts, dtype=np.float64)
    b = np.asarray(wholes, dtype=np.float64)
    total = b.sum()
    if total == 0:
        return Interval(math.nan, 0.0, 1.0), 0.0
    n = effective_n(a, b)
    freedom = total**2 / (b**2).sum() - 1
    share = float(a.sum() / total)
    if freedom < 1:  # the spread of the queries does not bound that of the share
        return Interval(share, 0.0, 1.0), n
    return _score_interval(share, n, float(stdtrit(freedom, (1 + level) / 2))), n


def effective_n(parts: ArrayLike, wholes: ArrayLike) -> float:
    """Return how many independent units carry as much information on Σ parts / Σ wholes.

    p(1 − p)/V with the share p and its linearised cluster variance
    V = K/(K − 1) · Σ_q (part_q − p whole_q)² / (Σ wholes)² (Cochran 1977, "Sampling Techniques",
    section 6.3). It may exceed the number of units, because shares vary less than a yes or no. It
    is the number of queries K if V is 0.

    >>> effective_n(parts=[4, 0, 4], wholes=[4, 4, 4])  # all of a query or nothing: K − 1
    2.0
    """
    a = np.asarray(parts, dtype=np.float64)
    b = np.asarray(wholes, dtype=np.float64)
    queries = int(np.count_nonzero(b))
    p = a.sum() / b.sum()
    if queries < 2:
        return float(queries)
    residuals = a - p * b
    variance = queries / (queries - 1) * np.sum(residuals**2) / b.sum() ** 2
    if p in (0, 1) or np.abs(residuals).max() <= 1e-9 * b.max():
        return float(queries)
    return float(p * (1 - p) / variance)


def auc(lower: ArrayLike, higher: ArrayLike) -> float:
    """Return P(X < Y) + P(X = Y)/2 for X drawn from `lower` (m,) and Y from `higher` (n,).

    This is the area under the ROC curve (Mann and Whitney 1947, Ann. Math. Stat. 18): 1 if every X
    is below every Y, 0.5 if they are alike. NaNs are left out; NaN if nothing is left of either.

    >>> auc([0.1, 0.5], [0.5, 0.9])  # three of the four pairs are in order, and one is tied
    0.875
    """
    ordered, pairs = ordered_pairs(lower, higher)
    return ordered / pairs if pairs else math.nan


def ordered_pairs(lower: ArrayLike, higher: ArrayLike) -> tuple[float, int]:
    """Return how many pairs of X (m,) and Y (n,) have X < Y, ties as a half, and the number of all.

    NaNs are left out.

    >>> ordered_pairs([0.1, 0.5], [0.5, 0.9])
    (3.5, 4)
    """
    x, y = (np.sort(np.asarray(scores, dtype=np.float64)) for scores in (lower, higher))
    x, y = x[: np.searchsorted(x, math.nan)], y[: np.searchsorted(y, math.nan)]  # NaNs are last
    not_above = np.searchsorted(y, x, side="left") + np.searchsorted(y, x, side="right")
    pairs = len(x) * len(y)
    return pairs - int(not_above.sum()) / 2, pairs
