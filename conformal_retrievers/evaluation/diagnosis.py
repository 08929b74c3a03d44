"""The values of a diagnosis: an evaluation, what else was compared, and the findings in words."""

import math
from dataclasses import dataclass, field
from typing import Literal

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.fitting import SHARE
from conformal_retrievers.calibration.subjects import ANSWERS
from conformal_retrievers.data.text import filled, shown
from conformal_retrievers.evaluation.evaluate import Evaluation
from conformal_retrievers.evaluation.measures import guaranteed
from conformal_retrievers.evaluation.power import n_to_rule_out, shortfall
from conformal_retrievers.evaluation.wording import say
from conformal_retrievers.theory.exchangeability import Comparison
from conformal_retrievers.theory.intervals import Interval, percent
from conformal_retrievers.theory.ranks import exact_alpha

Band = tuple[float, float]
Severity = Literal["problem", "notice", "fine"]

MEANING = {
    "query-recall": "the mean share of a query's relevant snippets that is kept",
    "snippet": "the share of all relevant snippets that is kept",
    "all": "the share of queries that keep every relevant snippet",
    "any": "the share of queries that keep at least one relevant snippet",
}


@dataclass(frozen=True)
class Ties:
    """How fine the scores are."""

    n_scores: int
    distinct: int
    at_threshold: float  # share that equals its threshold


@dataclass(frozen=True)
class SweepPoint:
    """The queries at one alpha; a band is where m1 or m2 of exchangeable queries lie, if known."""

    alpha: float
    threshold: float | None  # None if it depends on the group
    m1: float
    m2: float
    removal: float
    m1_band: Band | None
    m2_band: Band | None
    coverage: Interval


@dataclass(frozen=True)
class Finding:
    """One thing that a diagnosis found: its name, how bad it is, and a sentence."""

    name: str
    severity: Severity
    sentence: str


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found."""

    calibration: Calibration = field(repr=False)
    level: float
    evaluation: Evaluation  # its coverage is NaN if the queries are not judged
    m1_band: Band | None  # where m1 of exchangeable queries lies with probability `level`
    m2_band: Band | None
    comparison: Comparison | None  # with the reference; None if there are no scores to compare
    auc_within: Interval  # mean over queries of P(an irrelevant score is above a relevant one)
    auc_over: float  # the same over the snippets of all queries
    ties: Ties
    empty_before: tuple[int, int]  # reference queries without a snippet, of how many
    sweep: tuple[SweepPoint, ...] = field(repr=False)
    findings: tuple[Finding, ...] = ()  # the problems first

    @property
    def target(self) -> float:
        """The coverage that is guaranteed, 1 − alpha."""
        return float(1 - exact_alpha(self.calibration.alpha))

    @property
    def judged(self) -> bool:
        """Whether any relevant snippet is known; without one the queries count as not judged."""
        return self.evaluation.n_relevant + self.evaluation.n_missed > 0

    @property
    def coverage(self) -> Interval:
        """Coverage in the sense of the guarantee: end to end if missed snippets count."""
        return self.evaluation.shares[guaranteed(self.calibration)].interval

    @property
    def fails(self) -> bool:
        """Whether any finding is a problem: a reason not to rely on the guarantee here."""
        return any(finding.severity == "problem" for finding in self.findings)

    @property
    def few_scores(self) -> str:
        """A sentence on how many queries it takes to see that scores differ; "" for enough."""
        c = self.comparison
        if c is None or c.p_value <= 1 - self.level:
            return ""
        needed, reference = c.needed(self.level)
        if c.n_new >= needed:
            return ""
        these = [say("like these", n=needed)] if needed <= 10 * reference else []
        if c.n_reference < reference:
            judged = math.ceil(reference * SHARE / (SHARE - 1))
            kind = "a calibration" if self.calibration.choice is None else "that fits"
            these.append(say(kind, n=reference, judged=judged))
        return say("needed", these=", or ".join(these))

    @property
    def summary(self) -> str:
        """One sentence that sums the findings up."""
        verdict = self.evaluation.verdict
        if self.fails:
            return say("unreliable")
        if verdict is not None:
            no_evidence = say("no evidence", ruled_out=verdict.ruled_out)
            return verdict.shortage if verdict.too_few else no_evidence
        if not math.isnan(self.coverage.estimate):
            return say("nothing dropped")
        if self.comparison is None:
            return say("not comparable")
        target = 1 - exact_alpha(self.calibration.alpha)
        outside = any(f.name == "m1" and f.severity == "notice" for f in self.findings)
        fine = "few scores" if self.few_scores else "m1 alone" if outside else "no contradiction"
        return say(
            "not asked" if self.calibration.subject == ANSWERS else "not judged",
            known=say(fine, share=percent(1 - self.level, exact=True)),
            n=n_to_rule_out(target),
            target=percent(target, exact=True),
            least=percent(shortfall(target), exact=True),
        )

    @property
    def paragraph(self) -> str:
        """The summary, and the findings that matter."""
        problems, fine, notices = (
            [f for f in self.findings if f.severity == s] for s in ("problem", "fine", "notice")
        )
        confirmed = [f for f in fine if f.name in ("coverage", "scores")]
        return " ".join([self.summary, *(f.sentence for f in problems + confirmed + notices)])

    _repr_pretty_ = shown

    def __str__(self) -> str:
        marks = {"problem": "✗", "notice": "!", "fine": "✓"}
        lines = [f"{marks[f.severity]} {f.name}: {f.sentence}" for f in self.findings]
        lead = (self.summary, self.evaluation.too_shallow, self.evaluation.equal_recall)
        return filled("\n".join([*(f"{part}\n" for part in lead if part), *lines]))
