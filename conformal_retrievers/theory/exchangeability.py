"""Whether new queries look like those of a reference, from one number per query: its lowest score.

A filter keeps any snippet of a query exactly if its lowest score is at most the threshold, so

    m1(τ) = share of queries with a lowest score ≤ τ

is the distribution function of the lowest scores. It needs no judgements. Two-sample tests ask for
one number per query, because the snippets of a query come together and are not exchangeable.

If N reference and n new queries are exchangeable, every choice of n of the N + n was as likely to
be the new ones. Two exact tests follow:

- Everywhere: the largest distance between the two m1 over all thresholds (Kolmogorov, Smirnov).
- At one threshold: if c reference and x new queries are below it, the number of new ones among the
  c + x lowest is hypergeometric. This is exact for a threshold that was fixed beforehand or is the
  c-th lowest score of the reference, and close to exact for a conformal threshold.

Ties make both tests conservative. The tests find a change of scores. Such a change is neither
necessary nor sufficient for a loss of coverage, which only judgements can show.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.theory.intervals import auc

DISTANCE = 0.25  # of two m1, that should not pass unseen
MAX_EXACT = 10_000  # queries of a sample; beyond, the limiting distribution is as good


@dataclass(frozen=True)
class Comparison:
    """New queries compared to a reference, by the lowest score of each query that has one."""

    n_reference: int
    n_new: int
    distance: float  # the largest difference of the two m1 over all thresholds
    p_everywhere: float
    p_at_threshold: float | None  # None if the thresholds of the reference differ by group
    higher: float  # P(a new query's lowest score > a reference query's), ties count half
    overlap: float  # share of new queries with a lowest score in the range of the reference

    @property
    def p_value(self) -> float:
        """The p-value of both tests together, corrected for two tests (Bonferroni)."""
        if self.p_at_threshold is None:
            return self.p_everywhere
        return min(1.0, 2 * min(self.p_everywhere, self.p_at_threshold))

    def needed(self, level: float = 0.95) -> tuple[float, int]:
        """Return how many new queries show m1 that differ by 25 points, and how many in reference.

        A distance D has p ≤ q from √(N n/(N + n)) D ≥ K_q on, with the quantile K_q of Kolmogorov's
        law, and q = 1 − level, or half that for two tests. The new ones are inf if this reference
        is too small for any number. Beside a reference of the second number, these new queries are
        enough, or as many as there are in it.
        """
        from scipy.special import kolmogi

        q = (1 - level) / (1 if self.p_at_threshold is None else 2)
        least = (float(kolmogi(q)) / DISTANCE) ** 2
        room = 1 / least - 1 / self.n_reference
        reference = 1 / (1 / least - 1 / max(self.n_new, 2 * least))
        return math.ceil(1 / room) if room > 0 else math.inf, math.ceil(reference)


def two_sample_test(
    reference: NDArray[np.float64], new: NDArray[np.float64], passed: tuple[int, int] | None
) -> Comparison:
    """Compare the lowest scores of reference (N,) and new queries (n,), N, n ≥ 1.

    `passed` has the numbers of reference and of new queries whose lowest score is kept.

    >>> found = two_sample_test(np.array([1.0, 2, 3]), np.array([4.0, 5, 6]), passed=(3, 0))
    >>> found.distance, round(found.p_everywhere, 3)  # 2 of the 20 ways to choose 3 of 6
    (1.0, 0.1)
    """
    from scipy.stats import ks_2samp

    exact = max(len(reference), len(new)) <= MAX_EXACT
    ks = ks_2samp(reference, new, method="exact" if exact else "asymp")
    sizes = len(reference), len(new)
    return Comparison(
        n_reference=len(reference),
        n_new=len(new),
        distance=float(ks.statistic),
        p_everywhere=float(ks.pvalue),
        p_at_threshold=None if passed is None else p_at_threshold(*passed, *sizes),
        higher=auc(reference, new),
        overlap=float(np.mean((new >= reference.min()) & (new <= reference.max()))),
    )


def p_at_threshold(c: int, x: int, n_reference: int, n_new: int) -> float:
    """Return the two-sided p-value of c of N reference and x of n new queries being kept.

    >>> p_at_threshold(c=3, x=0, n_reference=3, n_new=3)  # 1 of 20 ways in each direction
    0.1

    It is 2 min(P(X ≤ x), P(X ≥ x)), at most 1, with X hypergeometric: the new ones among the c + x
    lowest of N + n (Fisher's exact test with doubled tails).
    """
    fewer, more = _tails(c, x, n_reference, n_new)
    return min(1.0, 2 * min(fewer, more))


def m1_band(c: int, n_reference: int, n_new: int, level: float = 0.95) -> tuple[float, float]:
    """Return the lowest and the highest m1 of n new queries that `p_at_threshold` does not reject.

    c of the N reference queries are kept. At one threshold, exchangeable queries have an m1 in the
    band with probability `level` at least.

    >>> m1_band(c=90, n_reference=100, n_new=100)
    (0.8, 0.97)
    """
    tail = (1 - level) / 2
    counts = range(n_new + 1)
    low = bisect_left(counts, True, key=lambda x: _tails(c, x, n_reference, n_new)[0] > tail)
    beyond = bisect_left(counts, True, key=lambda x: _tails(c, x, n_reference, n_new)[1] <= tail)
    return low / n_new, (beyond - 1) / n_new


def _tails(c: int, x: int, n_reference: int, n_new: int) -> tuple[float, float]:
    """Return P(at most x new ones are among the c + x lowest of N + n), and P(at least x)."""
    from scipy.stats import hypergeom

    law = (n_reference + n_new, n_new, c + x)
    return float(hypergeom.cdf(x, *law)), float(hypergeom.sf(x - 1, *law))


def m2_band(
    reference: NDArray[np.float64], n_new: int, level: float = 0.95
) -> tuple[float, float] | None:
    """Return the band of the mean of n new shares, from the kept shares (N,) of reference queries.

    mean ± z s √(1/N + 1/n), within [0, 1]; None for fewer than two reference queries. If all N + n
    are exchangeable, the difference of the two means has that variance over the ways to choose the
    new ones, with the s² of all N + n, and tends to a normal law (Hoeffding 1951, Ann. Math. Stat.
    22). The s used is that of the reference: a change in the new queries would widen the band that
    is to find it. Unlike the band of m1, this one is approximate.

    >>> low, high = m2_band(np.array([0.2, 0.4, 0.4, 0.6]), n_new=100)
    >>> round(low, 2), round(high, 2)
    (0.24, 0.56)
    """
    from scipy.special import ndtri

    if len(reference) < 2:
        return None
    spread = float(reference.std(ddof=1)) * (1 / len(reference) + 1 / n_new) ** 0.5
    half = float(ndtri((1 + level) / 2)) * spread
    mean = float(reference.mean())
    return max(0.0, mean - half), min(1.0, mean + half)
