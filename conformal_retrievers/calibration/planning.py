"""How many judged queries it takes, and what so many can promise.

Over calibrations with n scalar units, the coverage of the k-th smallest score is Beta(k, n + 1 − k)
(Vovk 2012, arXiv 1209.2673), which gives the chance that it lies within some distance of 1 − α. For
"query-recall" that law is a guide, not a theorem: the share of a query's snippets that is kept
varies less than a yes or no. Units that come in clusters count for less: give a design effect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from conformal_retrievers.calibration.guarantees import Guarantee, Units, check_guarantee
from conformal_retrievers.theory.ranks import check_probability, conformal_rank, exact_alpha
from conformal_retrievers.theory.tolerance import betting_p_value, tolerance_rank

LEAST = 1e-4  # the least distance, and alpha, that is planned for: some 10⁷ queries
SURE = 0.9  # how surely the coverage of a calibration lies where `within` says


@dataclass(frozen=True)
class Plan:
    """How many units it takes: judged queries, or relevant snippets for "snippet".

    `feasible` is the number below which everything is kept. `enough` is the number from which on
    the coverage of a calibration lies within ± `within` of its target with probability 0.9, None if
    no `within` was asked for.
    """

    alpha: float
    delta: float | None
    guarantee: Guarantee
    within: float | None
    design_effect: float
    feasible: int
    enough: int | None

    def __str__(self) -> str:
        unit = "relevant snippets" if self.guarantee == "snippet" else "judged queries"
        text = f"{self.feasible} {unit} for a threshold that drops anything"
        if self.enough is not None:
            about = "" if self.guarantee in ("all", "any") else "about "
            text += (
                f"; {about}{self.enough} for a coverage within ± {self.within:g} of "
                f"{1 - self.alpha:g} in {SURE:.0%} of calibrations"
            )
        return text


def plan(
    alpha: float,
    *,
    delta: float | None = None,
    within: float | None = None,
    guarantee: Guarantee = "query-recall",
    design_effect: float = 1.0,
) -> Plan:
    """Return how many units a calibration needs.

    `within` in (0, 1) is the distance from 1 − α that realised coverage may have. `design_effect`
    ≥ 1 multiplies all numbers, for units that come in clusters. Raises ValueError or TypeError,
    naming the argument, for anything out of range.
    """
    exact_alpha(alpha)
    check_guarantee(guarantee, delta)
    if within is not None and check_probability("within", within, "a distance") < LEAST:
        raise ValueError(f"within is {within!r}; give a distance of {LEAST:g} or more")
    if within is not None and not LEAST <= alpha <= 1 - LEAST:
        raise ValueError(f"alpha is {alpha!r}, too near to 0 or 1 to plan a distance from it for")
    _check_design_effect(design_effect)
    feasible = Units(guarantee, (), False).n_needed(alpha, delta)
    enough = None if within is None else _enough(alpha, delta, within, feasible)
    return Plan(
        alpha,
        delta,
        guarantee,
        within,
        design_effect,
        math.ceil(feasible * design_effect),
        None if enough is None else math.ceil(enough * design_effect),
    )


def _check_design_effect(design_effect: float) -> None:
    if not 1 <= design_effect < math.inf:
        raise ValueError(f"design_effect is {design_effect!r}; give a number of 1 or more")


def chance_within(n: int, alpha: float, within: float, delta: float | None = None) -> float:
    """Return P(|C − (1 − α)| ≤ within) for the coverage C of a calibration with n scalar units.

    The rank is that of `conformal_rank`, or of `tolerance_rank` where delta is given. C is 1 where
    there is no such rank, because everything is kept.
    """
    k = conformal_rank(n, alpha) if delta is None else tolerance_rank(n, alpha, delta)
    if k > n:
        return float(within >= alpha)
    return _beta_cdf(1 - alpha + within, k, n) - _beta_cdf(1 - alpha - within, k, n)


def _beta_cdf(x: float, k: int, n: int) -> float:
    """Return P(Beta(k, n + 1 − k) ≤ x) = P(Bin(n, x) ≥ k)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    from scipy.special import bdtrc

    return float(bdtrc(k - 1, n, x))


def _enough(alpha: float, delta: float | None, within: float, feasible: int) -> int:
    """Return the smallest n from which on the chance is high enough for every larger n tried."""
    # The chance rises like that of a normal law, with saw teeth from the rank that jumps: search
    # for the first whole tooth, 1/α or 1/(1 − α) units, that is high enough, by doubling and
    # halving; then look at each n before it.
    tooth = math.ceil(1 / min(alpha, 1 - alpha))

    def good(n: int) -> bool:
        return chance_within(n, alpha, within, delta) >= SURE

    def whole(number: int) -> bool:
        start = feasible + number * tooth
        return all(good(n) for n in range(start, start + tooth))

    above = 1
    while not whole(above):
        above *= 2
    below = above // 2 if above > 1 else -1
    while above - below > 1:
        middle = (above + below) // 2
        below, above = (below, middle) if whole(middle) else (middle, above)
    n = feasible + above * tooth
    while n > feasible and good(n - 1):
        n -= 1
    return n


@dataclass(frozen=True)
class Promise:
    """What n units can promise: `smallest_alpha` still drops something, and none below it does."""

    n: int
    delta: float | None
    guarantee: Guarantee
    smallest_alpha: float

    def __str__(self) -> str:
        unit = "relevant snippets" if self.guarantee == "snippet" else "judged queries"
        most = (
            math.floor((1 - self.smallest_alpha) * 10_000 + 1e-6) / 10_000
        )  # never more than is true
        text = f"{self.n} {unit} can promise up to {most:g}"
        return text if self.delta is None else f"{text} with delta {self.delta:g}"


def promise(
    n: int,
    *,
    delta: float | None = None,
    guarantee: Guarantee = "query-recall",
    design_effect: float = 1.0,
) -> Promise:
    """Return what n units can promise, the inverse of `plan`: alpha to 1e-6, from above.

    With a `design_effect` d they count as ⌊n/d⌋. Raises ValueError unless that is 1 or more, and as
    `plan` does.
    """
    check_guarantee(guarantee, delta)
    _check_design_effect(design_effect)
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise TypeError(f"n is {n!r}; give a whole number of units")
    if n < design_effect:
        raise ValueError(
            f"n is {n!r} with design_effect {design_effect:g}; give at least so many units"
        )
    independent = math.floor(n / design_effect)

    def feasible(n: int, alpha: float) -> bool:
        if delta is None:
            return conformal_rank(n, alpha) <= n
        if guarantee == "query-recall":
            return betting_p_value([0.0] * n, alpha, delta) <= delta
        return tolerance_rank(n, alpha, delta) <= n

    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if feasible(independent, middle) else (middle, high)
    plain = round(low, 4)  # 0.05 rather than 0.0500003, where it is feasible
    if low < plain < high and feasible(independent, plain):
        high = plain
    return Promise(n, delta, guarantee, high)
