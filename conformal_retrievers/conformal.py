"""Split conformal prediction over arrays of nonconformity scores (lower = more relevant).

Calibration scores A_1 … A_n come from K queries; A_i is one of the N_q(i) relevant snippets of its
query, so 1/N_q(i) is its share of that query. A threshold is the smallest calibration score with
enough of the calibration at or below it:

    snippet        τ = the k-th smallest of A_1 … A_n,  k = ⌈(n + 1)(1 − α)⌉
    query-recall   τ = min { v :  Σ_{A_i ≤ v} 1/N_q(i)  ≥  (1 − α)(K + 1) }

and +inf, keep everything, where even the largest score has not enough: never the maximum, which
would under-cover. The +1 is the new query, which might lie above all the others.

α is read as the decimal its user wrote (0.1 is 1/10, not 0.1000000000000000055…), and ranks and
sums are exact fractions of it: floats pick the wrong rank in some (n, α) and depend on the order
of the sum.

Sources: Vovk, Gammerman, Shafer 2005, "Algorithmic Learning in a Random World"; Angelopoulos et
al. 2024, "Conformal Risk Control" (arXiv 2208.02814, the loss is the share of a query's relevant
snippets that is dropped); Lee, Barber, Willett 2023 (arXiv 2306.06342, the same threshold as a
quantile over hierarchical data).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

# --- alpha and ranks ------------------------------------------------------------------------------


def exact_alpha(alpha: float) -> Fraction:
    """Read alpha as the decimal that it prints as.

    Raises ValueError unless 0 < alpha < 1, TypeError unless it is a number.
    """
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float, np.floating, np.integer)):
        raise TypeError(f"alpha is {alpha!r}; give the miscoverage rate as a number, such as 0.1")
    if not 0 < alpha < 1:  # NaN fails every comparison
        raise ValueError(
            f"alpha is {alpha!r}; give a miscoverage rate strictly between 0 and 1, such as 0.1 "
            "to keep relevant snippets with probability at least 0.9"
        )
    return Fraction(str(alpha))


def conformal_rank(n: int, alpha: float) -> int:
    """Return k = ⌈(n + 1)(1 − α)⌉, exactly; k may be n + 1, which no calibration score has."""
    return n + 1 - math.floor((n + 1) * exact_alpha(alpha))


def queries_needed(alpha: float) -> int:
    """Return the smallest n with k(n, α) ≤ n, below which every threshold is +inf: ⌈(1 − α)/α⌉."""
    a = exact_alpha(alpha)
    return math.ceil((1 - a) / a)


# --- thresholds -----------------------------------------------------------------------------------


def conformal_quantile(scores: ArrayLike, alpha: float) -> float:
    """Return the k(n, α)-th smallest of n exchangeable scores, or +inf when k(n, α) > n.

    A fresh exchangeable score is at most this with probability ≥ 1 − α, and, without ties, at most
    1 − α + 1/(n + 1). O(n).
    """
    v = np.asarray(scores, dtype=np.float64)
    k = conformal_rank(len(v), alpha)
    return math.inf if k > len(v) else float(np.partition(v, k - 1)[k - 1])


def query_recall_threshold(scores: ArrayLike, sizes: ArrayLike, alpha: float) -> float:
    """Return the first score v with Σ_{A_i ≤ v} 1/N_q(i) ≥ (1 − α)(K + 1), or +inf.

    `scores` (n,) are the relevant snippets of K queries, and `sizes` (n,) says for each how many
    its query has, N_q. For a new exchangeable query, the expected share of its relevant snippets
    with a score at most this is ≥ 1 − α, and ≤ 1 − α + 2/(K + 1) without ties. O(n log n).
    """
    v = np.asarray(scores, dtype=np.float64)
    order = np.argsort(v)
    ordered_sizes = np.asarray(sizes, dtype=np.int64)[order]
    needed = (1 - exact_alpha(alpha)) * (recall_mass(ordered_sizes) + 1)
    # The mass of the i smallest scores grows with i: find the first i that reaches what is needed.
    i = bisect_left(range(len(v) + 1), needed, key=lambda i: recall_mass(ordered_sizes[:i]))
    return math.inf if i > len(v) else float(v[order[i - 1]])


def recall_mass(sizes: NDArray[np.int64]) -> Fraction:
    """Return Σ 1/N_q(i), exactly; over whole queries it is their number K.

    >>> recall_mass(np.array([3, 3, 1]))  # two of a query's three, and another query's only one
    Fraction(5, 3)
    """
    counts = np.bincount(sizes)
    return sum((Fraction(int(counts[m]), int(m)) for m in np.flatnonzero(counts)), Fraction(0))


# --- p-values -------------------------------------------------------------------------------------


def p_value_steps(sizes: ArrayLike) -> NDArray[np.float64]:
    """Return p after 0, 1, …, n of the ordered calibration scores lie strictly below: (n + 1,).

    p = (1 + Σ_{not below} 1/N_q(i)) / (K + 1), each correctly rounded from the exact fraction.
    `sizes` (n,) are ordered as the scores are; all ones gives the classical p-value of n scores.
    """
    sizes = np.asarray(sizes, dtype=np.int64)
    unit = math.lcm(*np.unique(sizes).tolist())  # every 1/N_q is a whole number of 1/unit
    queries = int(recall_mass(sizes))
    # Beyond 2^53 a float no longer holds every whole number, so Python's own integers take over.
    kind = np.int64 if unit * (queries + 1) < 2**53 else np.object_
    shares = unit // sizes.astype(kind)
    not_below = np.concatenate([np.cumsum(shares[::-1])[::-1], np.zeros(1, kind)])
    return np.asarray((not_below + unit) / (unit * (queries + 1)), dtype=np.float64)


def p_values(
    ordered_scores: NDArray[np.float64], steps: NDArray[np.float64], scores: ArrayLike
) -> NDArray[np.float64]:
    """Return the conformal p-value of each of `scores` (m,), from calibration scores in order.

    A score is at most the threshold for α exactly if its p-value is above α, for every α that is
    not the p-value itself but for rounding. A relevant snippet of a new query has p ≤ α with
    probability at most α. NaN stays NaN.
    """
    s = np.asarray(scores, dtype=np.float64)
    p = steps[np.searchsorted(ordered_scores, s, side="left")]
    return np.where(np.isnan(s), np.nan, p)


# --- intervals ------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """An estimate of a share in [0, 1] with the ends of its confidence interval."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:6.1%} [{self.low:.1%}, {self.high:.1%}]"


def wilson_interval(share: float, n: float, level: float = 0.95) -> Interval:
    """Return Wilson's score interval for a share seen in n independent units (n > 0).

    centre (p + z²/2n)/(1 + z²/n), half-width z √(p(1 − p)/n + z²/4n²)/(1 + z²/n). Wilson 1927.
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    scale = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / scale
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / scale
    # At a share of 0 or 1 one end is the share itself, but for rounding.
    return Interval(share, max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)))


def cluster_interval(parts: ArrayLike, wholes: ArrayLike, level: float = 0.95) -> Interval:
    """Return the interval of the share Σ parts / Σ wholes with the query as the unit.

    `parts` and `wholes` (K,) are one number a query, such as relevant snippets kept and relevant
    snippets, with 0 ≤ part ≤ whole. Snippets of a query succeed and fail together, so their number
    overstates what is known: this is Wilson's interval at the effective number of units of
    `effective_n`. With no query it is [nan, 0, 1].
    """
    a = np.asarray(parts, dtype=np.float64)
    b = np.asarray(wholes, dtype=np.float64)
    if b.sum() == 0:
        return Interval(math.nan, 0.0, 1.0)
    return wilson_interval(float(a.sum() / b.sum()), effective_n(a, b), level)


def effective_n(parts: ArrayLike, wholes: ArrayLike) -> float:
    """Return how many independent units carry as much information on Σ parts / Σ wholes.

    p(1 − p)/V with the share p and its linearised cluster variance
    V = K/(K − 1) · Σ_q (part_q − p whole_q)² / (Σ wholes)² (Cochran 1977, "Sampling Techniques",
    section 6.3); the number of queries K where V is 0 and says nothing.
    """
    a = np.asarray(parts, dtype=np.float64)
    b = np.asarray(wholes, dtype=np.float64)
    queries = int(np.count_nonzero(b))
    p = a.sum() / b.sum()
    if queries < 2:
        return float(queries)
    variance = queries / (queries - 1) * np.sum((a - p * b) ** 2) / b.sum() ** 2
    return float(p * (1 - p) / variance) if variance > 0 and 0 < p < 1 else float(queries)
