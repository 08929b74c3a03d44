"""How many judged queries a calibration needs, and the smallest alpha that n queries allow.

Over calibrations with n scalar units, the coverage of the k-th smallest score is Beta(k, n + 1 − k)
(Vovk 2012, arXiv 1209.2673), which gives the chance that it lies within some distance of 1 − α. For
"query-recall" that law is a guide, not a theorem: the share of a query's snippets that is kept
varies less than a yes or no.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from conformal_retrievers.calibration.guarantees import Guarantee, Units, check_guarantee
from conformal_retrievers.theory.intervals import percent
from conformal_retrievers.theory.ranks import check_probability, conformal_rank, exact_alpha
from conformal_retrievers.theory.tolerance import tolerance_rank

MIN_DISTANCE = 1e-4  # the smallest distance, and alpha, to plan for: about 10⁷ queries
PROBABILITY = 0.9  # that the coverage of a calibration is `within` its target


@dataclass(frozen=True)
class Plan:
    """The number of units needed: judged queries, or relevant snippets for "snippet"."""

    alpha: float
    delta: float | None
    guarantee: Guarantee
    within: float | None
    feasible: int  # with fewer units everything is kept
    enough: int | None  # from here on the coverage is `within` its target with probability 0.9

    def __str__(self) -> str:
        unit = "relevant snippets" if self.guarantee == "snippet" else "judged queries"
        text = f"{self.feasible} {unit} before any snippet can be dropped"
        if self.enough is None:
            return text
        about = "" if self.guarantee in ("all", "any") else "about "
        return (
            f"{text}; {about}{self.enough} for a coverage within ± {self.within:g} of "
            f"{1 - self.alpha:g} in {percent(PROBABILITY)} of calibrations"
        )


def plan(
    alpha: float,
    *,
    delta: float | None = None,
    within: float | None = None,
    guarantee: Guarantee = "query-recall",
) -> Plan:
    """Return how many units a calibration needs, as a `Plan` that prints as a sentence.

    Raises ValueError for an argument out of range.

    >>> print(plan(0.1))
    9 judged queries before any snippet can be dropped

    Parameters
    ----------
    alpha, delta, guarantee
        As in `calibrate`.
    within
        Distance from 1 − alpha, in (0, 1), that the coverage of a calibration may have.

    Notes
    -----
    A finite threshold needs n ≥ ⌈(1 − α)/α⌉ without delta; `enough` follows from the Beta law.
    """
    exact_alpha(alpha)
    check_guarantee(guarantee, delta)
    feasible = Units(guarantee, (), False).n_needed(alpha, delta)
    enough = None
    if within is not None:
        check_probability("within", within, "a distance")
        if min(within, alpha, 1 - alpha) < MIN_DISTANCE:
            raise ValueError(
                f"within is {within!r} and alpha is {alpha!r}; give a distance and an alpha that "
                f"are {MIN_DISTANCE:g} or more"
            )
        enough = _enough(alpha, delta, within, feasible)
    return Plan(alpha, delta, guarantee, within, feasible, enough)


def chance_within(n: int, alpha: float, within: float, delta: float | None = None) -> float:
    """Return P(|C − (1 − α)| ≤ within) for the coverage C of a calibration with n scalar units.

    >>> chance_within(5, alpha=0.1, within=0.1)  # too few units: everything is kept, and C is 1
    1.0

    Parameters
    ----------
    n
        The number of units, 1 or more.
    alpha, within, delta
        As in `plan`.
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
        return Units(guarantee, (), False).n_needed(alpha, delta) <= n

    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if feasible(middle) else (middle, high)
    plain = round(low, 4)  # 0.05, not 0.0500003
    return plain if low < plain < high and feasible(plain) else high
