"""Whether the coverage measured on new judged queries speaks against what was promised."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.evaluation.measures import MOSTLY, Share
from conformal_retrievers.theory.ranks import conformal_rank, exact_alpha
from conformal_retrievers.theory.tolerance import beta_binomial_cdf, binomial_cdf

# What is said where a measured coverage tells nothing.
OUT_OF_REACH = (
    "Do not rely on this calibration: it promises nothing, because end-to-end coverage is out of "
    "reach: too many relevant snippets are missing, or too few queries judged. Everything is kept."
)
NOT_TOLD_APART = (
    "Nobody can tell whether these queries are new: of them, or of those that the calibration was "
    "made from, some have no id. Measured on its own queries, coverage says nothing: give every "
    "judged query an id, calibrate again, and measure on queries of other ids."
)


@dataclass(frozen=True)
class Verdict:
    """Whether the coverage that a calibration promises was seen, and how surprising it would be.

    `p_value` is the probability of a coverage as low as this or lower if the promise holds, see
    `promise_p_value`. Of a calibration by group it is that of the worst `group`, times the number
    of groups tested, `tests` (Bonferroni), and `own_p_value` is the group's alone. `unscorable` is
    the share of all snippets that could not be scored: they are kept whatever they are, and
    coverage rises with them.
    """

    guarantee: Guarantee
    end_to_end: bool
    target: float
    coverage: Share
    p_value: float
    group: str | None = None
    unscorable: float = 0.0
    own_p_value: float = math.nan
    tests: int = 1

    @property
    def fails(self) -> bool:
        """Whether coverage is significantly below the target: p < 0.05, one-sided."""
        return self.p_value < 0.05

    @property
    def untested(self) -> bool:
        """Whether half of the snippets or more could not be scored, so that nothing is tested."""
        return self.unscorable >= MOSTLY

    def __str__(self) -> str:
        c = self.coverage
        what = f"{'end-to-end ' if self.end_to_end else ''}{self.guarantee}"
        where = f" in group {self.group!r}" if self.group is not None else ""
        seen = (
            f"{what} coverage{where} is {c.estimate:.1%} [{c.low:.1%}, {c.high:.1%}], promised is "
            f"{100 * self.target:.6g}%"
        )
        unscored = f"{self.unscorable:.1%} of the snippets could not be scored, and are kept"
        p_value = f"p = {self.p_value:.2g}"
        if self.tests > 1:
            p_value = f"p = {self.own_p_value:.2g}, {self.p_value:.2g} for {self.tests} groups"
        if self.fails:
            text = f"The promise fails: {seen} ({p_value} if it held)."
        elif self.untested:
            return f"The promise is not tested: {unscored} whatever they are, so that {seen}."
        else:
            text = f"Nothing speaks against the promise: {seen} ({p_value})."
        return f"{text} {unscored[0].upper()}{unscored[1:]}." if self.unscorable > 0 else text


def verdict_on(
    calibration: Calibration, coverage: Share, group: str | None = None
) -> Verdict | None:
    """Return the verdict on the promise of a calibration, None where it makes none.

    `coverage` is what was measured of the calibration's own guarantee, in the `group` if there is
    one. A calibration that keeps everything promises nothing that could fail; one that keeps
    nothing that has a score (−inf) is tested like any other.
    """
    if calibration.threshold(group) == math.inf or not coverage.n:
        return None
    return Verdict(
        calibration.guarantee,
        calibration.count_missed,
        float(1 - exact_alpha(calibration.alpha)),
        coverage,
        promise_p_value(calibration, coverage, group),
        group,
    )


def worst_of(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Return the verdict of the lowest p-value, times the number of verdicts (Bonferroni)."""
    given = list(verdicts)
    if not given:
        return None
    worst = min(given, key=lambda verdict: verdict.p_value)
    n = len(given)
    return replace(worst, p_value=min(1.0, n * worst.p_value), own_p_value=worst.p_value, tests=n)


def promise_p_value(calibration: Calibration, coverage: Share, group: str | None = None) -> float:
    """Return the probability of a coverage as low as this or lower if the promise just holds.

    A threshold of rank k of n calibration queries keeps BetaBinomial(m; k, n + 1 − k) of m new ones
    (Marques 2023, arXiv 2303.02770): coverage varies with the calibration too. That is exact for
    "all" and "any" without ties, and cautious with them. For "query-recall" a query's share counts
    as all or nothing, which varies most: cautious too. For "snippet", n and m are
    effective numbers, and it is approximate, as it is for all groups together. With delta the
    promise is about nearly every calibration, and what is kept is Binomial(m, 1 − alpha). It is 1
    where nothing was measured.
    """
    m = round(min(coverage.n, coverage.effective_n))
    if not m:
        return 1.0
    kept = math.ceil(coverage.estimate * m - 1e-9)
    if calibration.delta is not None:
        return float(binomial_cdf(m, float(1 - exact_alpha(calibration.alpha)))[kept])
    units = sum(calibration.n_units.values()) if group is None else calibration.n_units[group]
    worth = 1.0
    if calibration.guarantee == "snippet":
        worth = calibration.effective_n / calibration.n_relevant
    n = max(1, round(units * worth))
    k = min(n, conformal_rank(n, calibration.alpha))
    return float(beta_binomial_cdf(m, k, n + 1 - k)[kept])
