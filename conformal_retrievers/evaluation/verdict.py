"""Whether a coverage measured on new judged queries contradicts what a calibration guarantees.

One of three verdicts follows from m new units, with coverage c and the target 1 − α:

    fails             P(a coverage ≤ c, if the guarantee just holds) < 0.05
    no evidence       not so, and P(a coverage ≥ c, if it is 1 − α − 0.05) < 0.05: that is ruled out
    too few to tell   neither, whatever c is; with the number of units that is needed
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.evaluation import measures, power
from conformal_retrievers.evaluation.share import Share
from conformal_retrievers.evaluation.wording import say
from conformal_retrievers.theory.intervals import percent
from conformal_retrievers.theory.ranks import exact_alpha

NOTHING_TESTED, OUT_OF_REACH = say("nothing tested"), say("out of reach")
COVER_EACH, UNLUCKY, UNVERIFIED = say("cover each"), say("unlucky"), say("unverified")


@dataclass(frozen=True)
class Verdict:
    """Whether a measured coverage contradicts the guarantee.

    In a calibration by group it is the verdict on the group with the lowest p-value, `p_value` is
    corrected for the number of groups (Bonferroni), and `n` is that of the group that lacks most.
    """

    measure: str  # what was measured, such as "query-recall coverage"
    target: float  # 1 − alpha
    coverage: Share
    p_value: float  # P(a coverage this low or lower) if the guarantee just holds
    n: int  # units that were measured: queries or answers, or independent snippets for "snippet"
    needed: float  # how many distinguish the target from 5 points less, see `n_to_tell`
    group: str | None = None
    unscorable: float = 0.0  # share of all items; those without a score raise coverage
    group_p_value: float = math.nan  # before the correction
    tests: int = 1  # groups that were tested
    units: str = "queries"
    items: str = "snippets"

    @property
    def fails(self) -> bool:
        """Whether coverage is significantly below the target: p < 0.05, one-sided."""
        return self.p_value < power.SIGNIFICANT

    def among(self, tests: int) -> "Verdict":
        """Return the verdict as one of several tests (Bonferroni)."""
        p_value = min(1.0, tests * self.p_value)
        return replace(self, p_value=p_value, group_p_value=self.p_value, tests=tests)

    @property
    def untested(self) -> bool:
        """Whether half of the items or more could not be scored, which tests nothing."""
        return self.unscorable >= measures.MOSTLY

    @property
    def too_few(self) -> bool:
        """Whether the guarantee does not fail, but too little was measured to tell."""
        return not self.fails and self.n < self.needed

    @property
    def short(self) -> Fraction:
        """The coverage to distinguish from the target: 5 points less."""
        return power.shortfall(self.target)

    @property
    def ruled_out(self) -> str:
        """The coverage that is ruled out, as the end of a sentence."""
        return f", {say('ruled out', short=percent(self.short, exact=True))}" if self.short else ""

    @property
    def shortage(self) -> str:
        """How much was measured, and how much is needed."""
        facts = {
            "units": f"independent {self.items}" if "snippet" in self.measure else self.units,
            "where": "in one group, " if self.tests > 1 else "",
            "short": percent(self.short, exact=True),
        }
        if self.needed == math.inf:
            each = " in each group" if self.tests > 1 else ""
            return say("small calibration", each=each, **facts)
        target = percent(self.target, exact=True)
        return say("shortage", n=self.n, needed=self.needed, target=target, **facts)

    def __str__(self) -> str:
        where = f" in group {self.group!r}" if self.group is not None else ""
        seen = say("seen", v=self, where=where, target=percent(self.target, exact=True))
        p_value = f"p = {self.p_value:.2g}"
        if self.tests > 1:
            p_value = f"p = {self.group_p_value:.2g}, {self.p_value:.2g} for {self.tests} groups"
        kept = "dropped" if self.items == "claims" else "kept"  # both raise the coverage
        unscored = say("unscored", share=percent(self.unscorable), items=self.items, kept=kept)
        if self.untested and not self.fails:
            return say("untested", unscored=unscored, seen=seen)
        outcome = "fails" if self.fails else "too few" if self.too_few else "holds"
        text = say(outcome, v=self, seen=seen, p_value=p_value)
        return f"{text} {unscored}" if self.unscorable > 0 else text


def verdict_on(
    calibration: Calibration, coverage: Share, group: str | None = None, *, tests: int = 1
) -> Verdict | None:
    """Return the verdict on the coverage of new units, in a group if given, one of `tests` groups.

    It is None if nothing was measured, or the calibration keeps everything (threshold +inf) and
    cannot fail.
    """
    if calibration.threshold(group) == math.inf or not coverage.n:
        return None
    return Verdict(
        measure=calibration.subject.measure.format(measures.guaranteed(calibration)),
        target=float(1 - exact_alpha(calibration.alpha)),
        coverage=coverage,
        p_value=power.coverage_p_value(calibration, coverage, group),
        n=power.independent(calibration, coverage),
        needed=power.n_to_tell(calibration, coverage, group, power.SIGNIFICANT / tests),
        group=group,
        units=calibration.subject.new,
        items=calibration.subject.name,
    )


def worst_of(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """Return the verdict with the lowest p-value, times the number of verdicts (Bonferroni)."""
    given = [verdict for verdict in verdicts if verdict is not None]
    if not given:
        return None
    worst = min(given, key=lambda verdict: verdict.p_value)
    shortest = max(given, key=lambda verdict: verdict.needed - verdict.n)
    return replace(worst.among(len(given)), n=shortest.n, needed=shortest.needed)


def n_tested(c: Calibration, groups: Iterable[str | None]) -> int:
    """Return how many groups can fail: the others keep everything."""
    return sum(c.threshold(group) < math.inf for group in groups)


def with_groups(c: Calibration, units: Sequence[Any], measured: Callable[..., Any]) -> Any:
    """Return what is measured of units, and of each group if the calibration is by group.

    `measured` takes units, the group that they are tested as, and how many groups are tested.
    """
    whole = measured(units, None, 1)
    members = c.by_threshold(units) if c.by_group else {}
    parts = {g: measured(members[g], g, n_tested(c, members)) for g in sorted(members, key=str)}
    verdict = worst_of(part.verdict for part in parts.values() or [whole])
    return replace(whole, verdict=verdict, by_group=parts)
