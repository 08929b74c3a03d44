"""Whether new queries look like those of a reference, from one number a query: its lowest score.

A filter keeps anything of a query exactly if its lowest score is at most the threshold, so that

    m1(τ) = share of queries with a lowest score ≤ τ

is the distribution function of the lowest scores. No judgement is needed, and one number a query
is what two-sample tests ask for: snippets of a query come together and are not exchangeable.

If N reference and n new queries are exchangeable, each choice of n among the N + n was as likely to
be the new ones. Two exact tests follow. Everywhere: Kolmogorov and Smirnov's largest distance
between the two m1, over all thresholds at once. At one threshold, below which c reference and x new
queries lie: the number of new ones among the c + x lowest is hypergeometric. That is exact for a
threshold that was fixed beforehand, for one that is itself the c-th lowest score of the reference,
and close to it for a conformal threshold, which follows from the reference's relevant scores. Ties
make both tests conservative. m2 has a band that is approximate, see `m2_band`. They see a change of
scores, which is neither necessary nor sufficient for a loss of coverage: that takes judgements.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.theory.intervals import auc

MOST_EXACT = 10_000  # queries of a sample; beyond, the limiting distribution does as well


@dataclass(frozen=True)
class Comparison:
    """New queries held against a reference, by the lowest score of each query that has one.

    `m1_reference` and `m1_new` are the shares whose lowest score is kept, None where the
    reference's thresholds differ by group. `distance` is the largest difference of the two m1 over
    all thresholds. `higher` is the probability that a new query's lowest score is above that of a
    reference query, ties counted half: 0.5 where they are alike. `overlap` is the share of new
    queries whose lowest score is within the range of the reference.
    """

    n_reference: int
    n_new: int
    distance: float
    p_everywhere: float
    m1_reference: float | None
    m1_new: float | None
    p_at_threshold: float | None
    higher: float
    overlap: float

    @property
    def p_value(self) -> float:
        """The p-value of both tests together, corrected for there being two (Bonferroni)."""
        if self.p_at_threshold is None:
            return self.p_everywhere
        return min(1.0, 2 * min(self.p_everywhere, self.p_at_threshold))


def two_sample_test(
    reference: NDArray[np.float64],
    new: NDArray[np.float64],
    passed: tuple[int, int] | None,
) -> Comparison:
    """Compare the lowest scores of reference (N,) and new queries (n,), N, n ≥ 1.

    `passed` is how many of the reference and of the new queries have theirs kept.
    """
    from scipy.stats import ks_2samp

    exact = max(len(reference), len(new)) <= MOST_EXACT
    ks = ks_2samp(reference, new, method="exact" if exact else "asymp")
    return Comparison(
        n_reference=len(reference),
        n_new=len(new),
        distance=float(ks.statistic),
        p_everywhere=float(ks.pvalue),
        m1_reference=None if passed is None else passed[0] / len(reference),
        m1_new=None if passed is None else passed[1] / len(new),
        p_at_threshold=(
            None if passed is None else p_at_threshold(*passed, len(reference), len(new))
        ),
        higher=auc(reference, new),
        overlap=float(np.mean((new >= reference.min()) & (new <= reference.max()))),
    )


def p_at_threshold(c: int, x: int, n_reference: int, n_new: int) -> float:
    """Return the two-sided p-value of c of N reference and x of n new queries being kept."""
    fewer, more = _fewer(c, x, n_reference, n_new), _more(c, x, n_reference, n_new)
    return min(1.0, 2 * min(fewer, more))


def m1_band(c: int, n_reference: int, n_new: int, level: float = 0.95) -> tuple[float, float]:
    """Return the lowest and the highest m1 of n new queries that `p_at_threshold` does not reject.

    c of N reference queries are kept. The band holds at one threshold, with probability ≥ level.
    """
    tail = (1 - level) / 2
    counts = range(n_new + 1)
    low = bisect_left(counts, True, key=lambda x: _fewer(c, x, n_reference, n_new) > tail)
    beyond = bisect_left(counts, True, key=lambda x: _more(c, x, n_reference, n_new) <= tail)
    return low / n_new, (beyond - 1) / n_new


def _fewer(c: int, x: int, n_reference: int, n_new: int) -> float:
    """Return P(at most x new ones are among the c + x lowest of N + n)."""
    from scipy.stats import hypergeom

    return float(hypergeom.cdf(x, n_reference + n_new, n_new, c + x))


def _more(c: int, x: int, n_reference: int, n_new: int) -> float:
    """Return P(at least x new ones are among the c + x lowest of N + n)."""
    from scipy.stats import hypergeom

    return float(hypergeom.sf(x - 1, n_reference + n_new, n_new, c + x))


def m2_band(
    reference: NDArray[np.float64], n_new: int, level: float = 0.95
) -> tuple[float, float] | None:
    """Return the band of the mean of n new shares, from the shares kept (N,) of reference queries.

    mean ± z s √(1/N + 1/n), within [0, 1]. If all N + n are exchangeable, the difference of the two
    means has that variance over the ways to choose the new ones among them, s² that of all N + n,
    and tends to a normal law (Hoeffding 1951, Ann. Math. Stat. 22). s is that of the reference, for
    the new ones' would widen the band by what it is to find. Approximate, unlike the band of m1; no
    paper gives one for m2. None with fewer than two reference queries.
    """
    from scipy.special import ndtri

    if len(reference) < 2:
        return None
    spread = float(reference.std(ddof=1)) * (1 / len(reference) + 1 / n_new) ** 0.5
    half = float(ndtri((1 + level) / 2)) * spread
    mean = float(reference.mean())
    return max(0.0, mean - half), min(1.0, mean + half)
