"""What a calibration with n judged queries gives, and how many it needs.

Over calibrations with n scalar units, the coverage of the k-th smallest score is Beta(k, n + 1 − k)
(Vovk 2012, arXiv 1209.2673). That is exact for "all" and "any" without ties. For "query-recall" it
is a guide: the share of a query's snippets that is kept varies less than a yes or no. On five data
sets, 79 to 96 % of calibrations are within the bounds of 80 % (benchmarks/plans.py).

`delta` takes a higher rank k'. On average that keeps as much as alpha = 1 − k'/(n + 1) without it.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable

import numpy as np

from conformal_retrievers.calibration.guarantees import Guarantee, check_guarantee, n_needed
from conformal_retrievers.calibration.outlook import DELTA, PROBABILITY, Outlook, Plan
from conformal_retrievers.theory.intervals import Interval
from conformal_retrievers.theory.ranks import check_probability, conformal_rank, exact_alpha
from conformal_retrievers.theory.tolerance import tolerance_rank

MIN_DISTANCE = 1e-4  # the smallest distance, and alpha, to plan for: about 10⁷ queries
SPREAD = 0.8  # of calibrations: one in ten is below, one in ten above
SIZES = (20, 50, 100, 200, 500, 1000)


def plan(
    alpha: float,
    n: int | None = None,
    *,
    delta: float | None = None,
    within: float | None = None,
    guarantee: Guarantee = "query-recall",
) -> Plan:
    """Return how many units a calibration needs and what n give, as a `Plan` that prints as text.

    Raises ValueError for an argument out of range.

    >>> print(plan(0.1, 50).sentences)
    9 judged queries before any snippet can be dropped.
    With 50 judged queries, the mean coverage of calibrations is about 90.2 % [84.6,
    95.1], with 8 in 10 of them inside the brackets. The smallest possible alpha is
    0.0196.
    With delta = 0.1, all but 10 % of calibrations cover 90 % or more. It needs 25
    judged queries, and keeps about as much on average as alpha = 0.039 without
    delta.

    Parameters
    ----------
    alpha, delta, guarantee
        As in `calibrate`.
    n
        How many units there are: judged queries, or relevant snippets for "snippet".
    within
        Distance from 1 − alpha, in (0, 1), that the coverage of a calibration may have.

    Notes
    -----
    A finite threshold needs n ≥ ⌈(1 − α)/α⌉ without delta; `enough` follows from the Beta law.
    """
    exact_alpha(alpha)
    check_guarantee(guarantee, delta)
    feasible = n_needed(guarantee, alpha, delta)
    enough = None
    if within is not None:
        check_probability("within", within, "a distance")
        if min(within, alpha, 1 - alpha) < MIN_DISTANCE:
            raise ValueError(
                f"within is {within!r} and alpha is {alpha!r}; give a distance and an alpha that "
                f"are {MIN_DISTANCE:g} or more"
            )
        enough = _enough(alpha, delta, within, feasible)
    return Plan(
        alpha,
        delta,
        guarantee,
        within,
        n,
        feasible,
        enough,
        smallest_alpha=None if n is None else smallest_alpha(n, delta=delta, guarantee=guarantee),
        outlooks=_outlooks((n, 2 * n, 4 * n) if n else SIZES, alpha, delta, guarantee),
    )


def _outlooks(
    sizes: Iterable[int], alpha: float, delta: float | None, guarantee: Guarantee
) -> tuple[Outlook, ...]:
    """Return what calibrations of these sizes give."""
    outlooks = []
    for n in sizes:
        rank = tolerance_rank(n, alpha, delta or DELTA)
        possible = guarantee != "snippet" and n >= n_needed(guarantee, alpha, delta or DELTA)
        as_alpha = 1 - rank / (n + 1) if possible else None
        outlooks.append(Outlook(n, coverage_of(n, alpha, delta, guarantee), as_alpha))
    return tuple(outlooks)


def coverage_of(
    n: int, alpha: float, delta: float | None = None, guarantee: Guarantee = "query-recall"
) -> Interval:
    """Return the coverage of calibrations with n ≥ 1 units: the average, and the ends of 8 in 10.

    >>> print(coverage_of(50, alpha=0.1))  # Beta(46, 5)
    90.2 % [84.6, 95.1]
    """
    from scipy.special import betaincinv

    if n < n_needed(guarantee, alpha, delta):
        return Interval(1.0, 1.0, 1.0)
    k = conformal_rank(n, alpha) if delta is None else tolerance_rank(n, alpha, delta)
    low, high = betaincinv(k, n + 1 - k, [(1 - SPREAD) / 2, (1 + SPREAD) / 2])
    return Interval(k / (n + 1), float(low), float(high))


def chance_within(n: int, alpha: float, within: float, delta: float | None = None) -> float:
    """Return P(|C − (1 − α)| ≤ within) for the coverage C of a calibration with n scalar units.

    >>> chance_within(5, alpha=0.1, within=0.1)  # too few units: everything is kept, and C is 1
    1.0
    """
    from scipy.special import bdtrc

    k = conformal_rank(n, alpha) if delta is None else tolerance_rank(n, alpha, delta)
    if k > n:  # everything is kept, and C is 1
        return float(within >= alpha)
    ends = np.clip([1 - alpha - within, 1 - alpha + within], 0, 1)
    low, high = bdtrc(k - 1, n, ends)  # P(Beta(k, n + 1 − k) ≤ x) = P(Bin(n, x) ≥ k)
    return float(high - low)


def _enough(alpha: float, delta: float | None, within: float, feasible: int) -> int:
    """Return the smallest n from which on the chance is high enough for all larger n tried."""
    # The chance rises with saw teeth, because the rank jumps. Search for the first whole tooth that
    # is high enough; then look at each n before it.
    tooth = math.ceil(1 / min(alpha, 1 - alpha))

    def good(n: int) -> bool:
        return chance_within(n, alpha, within, delta) >= PROBABILITY

    def whole(number: int) -> bool:
        start = feasible + number * tooth
        return all(good(n) for n in range(start, start + tooth))

    above = 1
    while not whole(above):
        above *= 2
    n = feasible + bisect_left(range(above), True, key=whole) * tooth
    while n > feasible and good(n - 1):
        n -= 1
    return n


def smallest_alpha(
    n: int, *, delta: float | None = None, guarantee: Guarantee = "query-recall"
) -> float:
    """Return the smallest alpha, to 1e-6 from above, for which n units give a finite threshold.

    This is the inverse of `plan`. Raises ValueError for an n below 1, and as `plan` does.

    >>> smallest_alpha(19)
    0.05
    """
    check_guarantee(guarantee, delta)
    given: object = n
    if not isinstance(given, (int, np.integer)) or n < 1:
        raise ValueError(f"n is {n!r}; give the number of judged queries, 1 or more")

    def feasible(alpha: float) -> bool:
        return n_needed(guarantee, alpha, delta) <= n

    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if feasible(middle) else (middle, high)
    plain = round(low, 4)  # 0.05, not 0.0500003
    return plain if low < plain < high and feasible(plain) else high
