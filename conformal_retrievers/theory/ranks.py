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
from collections.abc import Sequence
from fractions import Fraction
from statistics import NormalDist
from typing import Any, NamedTuple

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


def exact_share(share: float) -> Fraction:
    """Read a share as the decimal that it prints as; raises ValueError unless 0 < share ≤ 1."""
    if isinstance(share, bool) or not isinstance(share, (int, float, np.floating, np.integer)):
        raise TypeError(f"share is {share!r}; give a number, such as 0.9, or 1 for all")
    if not 0 < share <= 1:
        raise ValueError(f"share is {share!r}; give a number above 0 and at most 1, which is all")
    return Fraction(str(share))


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
    return mass_threshold(scores, Masses.of(sizes), alpha)


class Masses(NamedTuple):
    """What each calibration score counts, in whole numbers of a common unit: sums are exact.

    `parts` (n,) are the scores' own, `new` is what a new query counts.
    """

    parts: NDArray[Any]
    new: int

    @classmethod
    def of(cls, sizes: ArrayLike) -> Masses:
        """Return the masses 1/N_q(i) of scores whose units have `sizes` N_q, (n,); a new query's 1.

        >>> Masses.of([3, 3, 1])  # two of a query's three scores, and another query's only one
        Masses(parts=array([1, 1, 3]), new=3)
        """
        n_q = np.asarray(sizes, dtype=np.int64)
        occurring = np.flatnonzero(np.bincount(n_q, minlength=2))
        unit = math.lcm(*occurring.tolist())
        # Python's own integers take over where 64 bits do not hold the sum.
        kind = np.int64 if unit * (len(n_q) + 1) < 2**63 else np.object_
        share = np.zeros(occurring.max(initial=1) + 1, dtype=kind)
        share[occurring] = [unit // m for m in occurring.tolist()]
        return cls(share[n_q], unit)

    @classmethod
    def weighted(cls, masses: Sequence[Fraction], new: Fraction) -> Masses:
        """Return masses (n,) that are any positive fractions, and a new query's."""
        unit = math.lcm(new.denominator, *(mass.denominator for mass in masses))
        parts = [mass.numerator * (unit // mass.denominator) for mass in masses]
        return cls(np.array(parts, dtype=np.object_), new.numerator * (unit // new.denominator))


def mass_threshold(scores: ArrayLike, masses: Masses, alpha: float) -> float:
    """Return the first score v with Σ_{A_i ≤ v} mass_i ≥ (1 − α)(Σ mass_i + new mass), or +inf.

    The other rules are cases of this one: masses of 1 give the k(n, α)-th smallest, masses of 1/N_q
    the query-recall threshold, likelihood ratios weighted conformal prediction (Tibshirani et al.
    2019, arXiv 1904.06019).
    """
    v = np.asarray(scores, dtype=np.float64)
    total = int(masses.parts.sum())
    # Seen from above: the mass of what scores higher must be ≤ α (total + new) − new.
    may_lose = math.floor(exact_alpha(alpha) * (total + masses.new)) - masses.new
    if may_lose < 0:
        return math.inf
    # Only the highest scores need sorting, those above a cut that a sample of all suggests.
    sample = np.sort(v[:: 1 + len(v) // 10_000])
    share = 1.2 * float(Fraction(may_lose + int(masses.new), total))
    while True:
        start = int((1 - share) * len(sample))
        highest = np.flatnonzero(v >= sample[start]) if start > 0 else np.arange(len(v))
        highest = highest[np.argsort(v[highest])[::-1]]
        lost = np.cumsum(masses.parts[highest])
        if lost[-1] > may_lose:
            return float(v[highest[np.searchsorted(lost, may_lose, side="right")]])
        share *= 2  # all of them weigh more than may be lost, so that this ends


# --- p-values -------------------------------------------------------------------------------------


def p_value_steps(masses: Masses) -> NDArray[np.float64]:
    """Return p after 0, 1, …, n of the ordered calibration scores lie strictly below: (n + 1,).

    p = (new mass + Σ_{not below} mass_i) / (new mass + Σ mass_i), each correctly rounded from the
    exact fraction. `masses` are ordered as the scores are; masses of 1 give the classical p-value.
    """
    not_below = np.concatenate([np.cumsum(masses.parts[::-1])[::-1], [0]]) + masses.new
    if int(not_below[0]) >= 2**53:  # beyond, a float does not hold every whole number
        not_below = not_below.astype(np.object_)
    return np.asarray(not_below / not_below[0], dtype=np.float64)


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


def check_level(level: float) -> None:
    """Raise ValueError unless an interval can have this confidence."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level!r}; give a confidence between 0 and 1, such as 0.95")


def wilson_interval(share: float, n: float, level: float = 0.95) -> Interval:
    """Return Wilson's score interval for a share seen in n > 0 independent units.

    centre (p + z²/2n)/(1 + z²/n), half-width z √(p(1 − p)/n + z²/4n²)/(1 + z²/n), with the normal
    quantile z. Wilson 1927, JASA 22.
    """
    return _score_interval(share, n, NormalDist().inv_cdf((1 + level) / 2))


def _score_interval(share: float, n: float, z: float) -> Interval:
    scale = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / scale
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / scale
    # At a share of 0 or 1 one end is the share itself, but for rounding.
    return Interval(share, max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)))


def cluster_interval(parts: ArrayLike, wholes: ArrayLike, level: float = 0.95) -> Interval:
    """Return the interval of the share Σ parts / Σ wholes with the query as the unit.

    `parts` and `wholes` (K,) are one number a query, such as relevant snippets kept and relevant
    snippets, with 0 ≤ part ≤ whole. Snippets of a query are kept and dropped together, so that
    their number overstates what is known: this is Wilson's interval at `effective_n`, with the
    quantile of Student's t at as many degrees of freedom as there are queries of equal size, (Σ
    wholes)² / Σ wholes², less 1. Approximate; with no query it is [nan, 0, 1].
    """
    from scipy.special import stdtrit

    a = np.asarray(parts, dtype=np.float64)
    b = np.asarray(wholes, dtype=np.float64)
    if b.sum() == 0:
        return Interval(math.nan, 0.0, 1.0)
    freedom = b.sum() ** 2 / (b**2).sum() - 1
    share = float(a.sum() / b.sum())
    if freedom < 1:  # the spread of the queries says nothing of that of the share
        return Interval(share, 0.0, 1.0)
    t = float(stdtrit(freedom, (1 + level) / 2))
    return _score_interval(share, effective_n(a, b), t)


def effective_n(parts: ArrayLike, wholes: ArrayLike) -> float:
    """Return how many independent units carry as much information on Σ parts / Σ wholes.

    p(1 − p)/V with the share p and its linearised cluster variance
    V = K/(K − 1) · Σ_q (part_q − p whole_q)² / (Σ wholes)² (Cochran 1977, "Sampling Techniques",
    section 6.3). It may be more than there are: shares of a query vary less than a yes or no. It is
    the number of queries K where V is 0 and says nothing.
    """
    a = np.asarray(parts, dtype=np.float64)
    b = np.asarray(wholes, dtype=np.float64)
    queries = int(np.count_nonzero(b))
    p = a.sum() / b.sum()
    if queries < 2:
        return float(queries)
    residuals = a - p * b
    variance = queries / (queries - 1) * np.sum(residuals**2) / b.sum() ** 2
    if p in (0, 1) or np.allclose(residuals, 0, rtol=0, atol=1e-9 * b.max()):
        return float(queries)
    return float(p * (1 - p) / variance)
