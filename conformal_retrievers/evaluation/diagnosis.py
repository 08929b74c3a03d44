"""The values of a diagnosis: numbers, findings in words with their evidence, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.evaluation.sweeps import Band, DepthPoint, SweepPoint
from conformal_retrievers.theory.exchangeability import Comparison
from conformal_retrievers.theory.intervals import Interval

Severity = Literal["problem", "notice", "fine"]


@dataclass(frozen=True)
class Judgements:
    """What judged queries show; recall and end-to-end coverage are NaN where misses are unknown."""

    n_measured: int  # queries with a relevant snippet that counts
    n_relevant: int
    n_missed: int
    recall_at_k: Interval
    coverage: Interval  # of retrieved relevant snippets, in the sense of the guarantee
    end_to_end: Interval  # of all known ones
    p_value: float  # of a coverage this low or lower; by group the worst, Bonferroni-corrected
    relevant_kept: float  # share of queries that keep a relevant snippet
    only_irrelevant: float  # share that keep irrelevant snippets only; with the former, m1
    irrelevant_share: float  # share of the kept snippets that is irrelevant
    auc_within: Interval  # mean over queries of P(an irrelevant score is above a relevant one)
    auc_over: float  # the same over the snippets of all queries


@dataclass(frozen=True)
class ScoreQuality:
    """How fine the scores are."""

    n_scores: int
    distinct: int
    at_threshold: float  # share of these scores that equal their threshold
    calibration_ties: float  # the same of the calibration's relevant scores
    unscorable: float  # share of snippets without a score


@dataclass(frozen=True)
class GroupRow:
    """The queries of one group, at the calibration's alpha; groups that it merged are one."""

    group: str
    threshold: float
    n_queries: int
    n_measured: int
    m1: Interval
    m2: Interval
    removal: float
    recall_at_k: Interval | None
    coverage: Interval | None
    p_value: float | None  # None if the group keeps everything, so that nothing can fail


@dataclass(frozen=True)
class Finding:
    """One thing that a diagnosis found: its name, how bad it is, a sentence, and the numbers."""

    name: str
    severity: Severity
    sentence: str
    evidence: Mapping[str, float]


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found."""

    calibration: Calibration = field(repr=False)
    level: float
    n_queries: int
    n_snippets: int
    m1: Interval
    m2: Interval
    removal: float
    keep_all: float  # share of queries without a finite threshold, which keep everything
    keep_none: float  # share with threshold −inf, which keep only unscorable snippets
    held_out_verified: bool  # ids prove it; queries without judgements are taken for new
    m1_band: Band | None  # where m1 of exchangeable queries lies with probability `level`
    m2_band: Band | None
    comparison: Comparison | None  # with the reference; None if there are no scores to compare
    judgements: Judgements | None  # None if no query has a known relevant snippet
    scores: ScoreQuality
    sweep: tuple[SweepPoint, ...] = field(repr=False)
    depths: tuple[DepthPoint, ...] = field(repr=False)
    groups: tuple[GroupRow, ...] = field(repr=False)
    findings: tuple[Finding, ...] = ()  # the problems first

    @property
    def target(self) -> float:
        """The coverage that is guaranteed, 1 − alpha."""
        return 1 - self.calibration.alpha

    @property
    def coverage(self) -> Interval | None:
        """Coverage in the sense of the guarantee: end to end if missed snippets count."""
        if self.judgements is None:
            return None
        counted = self.calibration.count_missed
        return self.judgements.end_to_end if counted else self.judgements.coverage

    @property
    def fails(self) -> bool:
        """Whether any finding is a problem: a reason not to rely on the guarantee here."""
        return any(finding.severity == "problem" for finding in self.findings)

    @property
    def summary(self) -> str:
        """One sentence that sums the findings up."""
        if self.fails:
            return "Do not rely on this calibration for these queries."
        if self.judgements is not None and self.judgements.n_measured:
            return "Coverage on these queries gives no evidence against the guarantee."
        if self.comparison is not None:
            return (
                "Nothing contradicts the guarantee, but these queries have no judgements to "
                "confirm it. Judge some of them to measure coverage."
            )
        return (
            "These queries say nothing about the guarantee: they have no judgements, and there "
            "are no scores to compare them with. Judge some, or give reference queries."
        )

    @property
    def verdict(self) -> str:
        """One paragraph: the summary, and the findings that matter."""
        problems, fine, notices = (
            [f for f in self.findings if f.severity == s] for s in ("problem", "fine", "notice")
        )
        confirmed = [f for f in fine if f.name in ("coverage", "scores")]
        return " ".join([self.summary, *(f.sentence for f in problems + confirmed + notices)])

    def __str__(self) -> str:
        marks = {"problem": "✗", "notice": "!", "fine": "✓"}
        lines = [f"{marks[f.severity]} {f.name}: {f.sentence}" for f in self.findings]
        return "\n".join([self.summary, "", *lines])
