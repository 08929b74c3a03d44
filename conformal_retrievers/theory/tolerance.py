"""Bounds that hold for all calibrations but a share delta, and for fixed thresholds.

A conformal threshold covers 1 − α on average over calibrations; about half of them cover less. For
n exchangeable scalars without ties, the coverage of the k-th smallest varies over calibrations as
Beta(k, n + 1 − k). The smallest k with

    P(Beta(k, n + 1 − k) < 1 − α) ≤ δ,   that is   P(Bin(n, α) ≤ n − k) ≤ δ,

covers 1 − α in all but a share δ of calibrations (Vovk 2012, arXiv 1209.2673).

The loss of a query, the dropped share of its relevant snippets, does not follow that law. There,
the bound bets against "the mean loss is above α" (Waudby-Smith and Ramdas 2024, arXiv 2010.09686).
The wealth

    W_i = Π_{j ≤ i} (1 + ν_j (α − x_j)),   ν_j in [0, 1] chosen from x_1 … x_{j−1},

does not grow in expectation if the mean is above α, so 1 / max_i W_i is a p-value (Ville).
Thresholds are tried from the largest down until one fails (Bates et al. 2021, arXiv 2101.02703).
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.theory.intervals import Interval
from conformal_retrievers.theory.ranks import check_probability, conformal_rank, exact_alpha

MAX_COUNTED = 2**20  # the largest number of queries that is found exactly


def check_delta(delta: float) -> float:
    """Return delta; raise TypeError or ValueError unless it is a probability in (0, 1).

    >>> check_delta(0.1)
    0.1
    """
    return check_probability("delta", delta, "the share of calibrations that may fall short")


def tolerance_rank(n: int, alpha: float, delta: float | None) -> int:
    """Return the smallest k with P(Bin(n, α) ≤ n − k) ≤ δ, exactly; n + 1 if there is none.

    Without δ it is the `conformal_rank`.

    >>> tolerance_rank(100, alpha=0.1, delta=0.1)  # the conformal rank is 91
    95
    """
    if delta is None:
        return conformal_rank(n, alpha)
    exact_alpha(alpha)
    cdf = binomial_cdf(n, alpha)
    below = check_delta(delta) * (1 - 1e-9)
    above = int(np.searchsorted(cdf, below, side="right"))  # how many may lie above the k-th
    while above <= n and cdf[above] <= delta * (1 + 1e-9):  # too close to decide in floats
        if _exact_binomial_cdf(n, alpha, above) > Fraction(str(delta)):
            break
        above += 1
    return n + 1 - above


def _exact_binomial_cdf(n: int, alpha: float, j: int) -> Fraction:
    p = exact_alpha(alpha)
    yes, no = p.numerator, p.denominator - p.numerator
    ways = sum(math.comb(n, i) * yes**i * no ** (n - i) for i in range(j + 1))
    return Fraction(ways, p.denominator**n)


def tolerance_n(alpha: float, delta: float) -> int:
    """Return the smallest n for which a `tolerance_rank` exists: (1 − α)^n ≤ δ.

    Beyond `MAX_COUNTED` it is exact to the precision of floats.

    >>> tolerance_n(alpha=0.1, delta=0.1)  # 0.9^21 = 0.109, 0.9^22 = 0.098
    22
    """
    exact_alpha(alpha)
    # As fractions, because for a tiny α their ratio exceeds the largest float.
    n = math.ceil(Fraction(math.log(check_delta(delta))) / Fraction(math.log1p(-alpha)))
    if n > MAX_COUNTED:
        return n
    n = max(1, n - 1)
    while tolerance_rank(n, alpha, delta) > n:
        n += 1
    return n


def binomial_cdf(n: int, p: float) -> NDArray[np.float64]:
    """Return P(Bin(n, p) ≤ j) for j = 0 … n, (n + 1,).

    >>> binomial_cdf(2, 0.5)
    array([0.25, 0.75, 1.  ])
    """
    from scipy.special import bdtr

    return np.asarray(bdtr(np.arange(n + 1), n, p), dtype=np.float64)


def binomial_lower(kept: int, n: int, delta: float) -> float:
    """Return Clopper and Pearson's lower limit: the largest p with P(Bin(n, p) ≥ kept) ≤ δ.

    The true share is below it with probability at most δ (Clopper and Pearson 1934, Biometrika 26).

    >>> round(binomial_lower(9, n=10, delta=0.05), 3)
    0.606
    """
    from scipy.special import betaincinv

    return float(betaincinv(kept, n - kept + 1, delta)) if kept else 0.0


def binomial_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    """Return Clopper and Pearson's interval for a share of n units; [nan, 0, 1] for no unit.

    The units are independent. The ends are the p with P(Bin(n, p) ≥ successes) = a and those with
    P(Bin(n, p) ≤ successes) = a, for a = (1 − level)/2. The interval holds the true share with
    probability at least level, for every n (Clopper and Pearson 1934, Biometrika 26).

    >>> print(binomial_interval(9, n=10))
    90.0 % [55.5, 99.7]
    """
    if n == 0:
        return Interval(math.nan, 0.0, 1.0)
    low, lost = (binomial_lower(k, n, (1 - level) / 2) for k in (successes, n - successes))
    return Interval(successes / n, low, 1 - lost)


def beta_binomial_cdf(m: int, a: int, b: int) -> NDArray[np.float64]:
    """Return P(BetaBinomial(m; a, b) ≤ j) for j = 0 … m, (m + 1,); a, b > 0.

    A threshold of rank k of n calibration units keeps BetaBinomial(m; k, n + 1 − k) of m new ones,
    exactly without ties (Marques 2023, arXiv 2303.02770).

    >>> beta_binomial_cdf(2, 1, 1).round(3).tolist()
    [0.333, 0.667, 1.0]
    """
    from scipy.special import betaln

    j = np.arange(m + 1)
    log_choose = -math.log(m + 1) - betaln(j + 1, m - j + 1)
    mass = np.exp(log_choose + betaln(j + a, m - j + b) - betaln(a, b))
    return np.asarray(np.minimum(1.0, np.cumsum(mass)))


def betting_p_value(losses: ArrayLike, alpha: float, delta: float) -> float:
    """Return a p-value of "the mean loss is above α" from losses in [0, 1], in a fixed order.

    The bets ν_j = min(1, √(2 ln(1/δ) / (n σ²_{j−1}))), with the running variance σ², are tuned to
    the level δ; the p-value is valid at every level.

    >>> round(betting_p_value([0.0] * 30, alpha=0.1, delta=0.1), 3)  # 30 queries lose nothing
    0.059
    """
    return math.exp(-_log_wealth(np.asarray(losses, dtype=np.float64), alpha, delta))


def betting_lower(shares: ArrayLike, delta: float) -> float:
    """Return the largest c for which a bet rejects "the mean share is at most c" at level δ.

    The true mean is below it with probability at most δ. The order of `shares` (n,) must not depend
    on which is which.

    >>> round(betting_lower([1.0] * 50, delta=0.05), 3)
    0.938
    """
    losses = 1 - np.asarray(shares, dtype=np.float64)
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        c = (low + high) / 2
        low, high = (c, high) if betting_p_value(losses, 1 - c, delta) <= delta else (low, c)
    return low


def _log_wealth(x: NDArray[np.float64], alpha: float, delta: float) -> float:
    """Return the logarithm of the largest wealth, max_i W_i, or 0 if no bet is won."""
    n = len(x)
    counts = np.arange(1, n + 1)
    means = (0.5 + np.cumsum(x)) / (1 + counts)
    variances = (0.25 + np.cumsum((x - means) ** 2)) / (1 + counts)
    before = np.concatenate([[0.25], variances[:-1]])
    bets = np.minimum(1.0, np.sqrt(2 * math.log(1 / delta) / (n * before)))
    wealth = np.cumsum(np.log1p(bets * (alpha - x)))
    return max(0.0, float(wealth.max(initial=0.0)))


def betting_n(alpha: float, delta: float) -> int:
    """Return the smallest number of queries without loss that have a `betting_p_value` ≤ δ.

    Beyond `MAX_COUNTED` it is exact to a thousandth.

    >>> betting_n(alpha=0.1, delta=0.1)
    25
    """
    exact_alpha(alpha)
    check_delta(delta)

    def enough(n: int) -> bool:
        return betting_p_value(np.zeros(n), alpha, delta) <= delta

    above = 1
    while not enough(above):
        if above == MAX_COUNTED:  # from here on, the mean gain per query stays the same
            won = Fraction(_log_wealth(np.zeros(above), alpha, delta)) / above
            return math.ceil(Fraction(-math.log(delta)) / won)
        above *= 2
    return bisect_left(range(above), True, lo=above // 2 + 1, key=enough)


def query_recall_tolerance(
    scores_by_query: Sequence[ArrayLike], alpha: float, delta: float
) -> float:
    """Return the smallest score t such that every t' ≥ t passes the bet at level δ, or +inf.

    `scores_by_query` has the relevant scores of each query. The order of the queries must not
    depend on the scores. A query's loss at t is its share of scores above t.

    >>> query_recall_tolerance([[0.1, 0.2]] * 40, alpha=0.3, delta=0.1)  # at 0.1 all lose a half
    0.2
    """
    queries = [np.asarray(scores, dtype=np.float64) for scores in scores_by_query]
    values = np.concatenate([np.empty(0), *queries])
    if not len(values):
        return math.inf
    owner = np.repeat(np.arange(len(queries)), [len(q) for q in queries])
    share = 1.0 / np.array([len(q) for q in queries], dtype=np.float64)
    losses = np.zeros(len(queries))
    threshold = math.inf
    # From the largest candidate down; the scores strictly above it are lost.
    order = np.argsort(values)[::-1]
    for tied in np.split(order, np.flatnonzero(values[order][1:] < values[order][:-1]) + 1):
        if values[tied[0]] < math.inf:  # else dropped at every threshold
            if betting_p_value(np.minimum(1.0, losses), alpha, delta) > delta:
                return threshold
            threshold = float(values[tied[0]])
        np.add.at(losses, owner[tied], share[owner[tied]])
    return threshold
