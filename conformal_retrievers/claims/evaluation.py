"""What a filter of claims does to annotated answers: factuality, and what it costs.

An answer without a kept claim counts as factual, so a small alpha can look perfect by keeping
nothing: see the shares of empty answers and of kept claims too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_subject, check_unique_ids
from conformal_retrievers.calibration.subjects import CLAIMS
from conformal_retrievers.claims.answers import AnnotatedAnswer
from conformal_retrievers.claims.calibrate import share_of
from conformal_retrievers.data.checks import all_of
from conformal_retrievers.data.text import filled, labelled, shown
from conformal_retrievers.evaluation.share import Share
from conformal_retrievers.evaluation.verdict import UNVERIFIED, Verdict, verdict_on, with_groups
from conformal_retrievers.theory.intervals import check_level, percent


@dataclass(frozen=True)
class ClaimEvaluation:
    """Shares measured on annotated answers, each with its interval over answers."""

    n_answers: int
    left_out: int  # answers without claims, or with an unannotated one
    factuality: Share  # answers whose kept claims are factual (all, or a share), or none is kept
    factuality_if_any: Share  # the same, of answers with a kept claim
    empty: Share  # answers without a kept claim
    kept: Share  # mean share of an answer's claims that is kept
    kept_factual: Share  # mean share of an answer's factual claims that is kept
    verdict: Verdict | None  # on factuality; None if no claim can be kept
    held_out_verified: bool = True  # whether ids prove that no answer was calibrated on
    share: float = 1.0  # of an answer's kept claims that must be factual
    by_group: Mapping[str | None, ClaimEvaluation] = field(default_factory=dict)

    @property
    def fails(self) -> bool:
        """Whether factuality is significantly below the target: p < 0.05, one-sided."""
        return self.verdict is not None and self.verdict.fails

    @property
    def untested(self) -> bool:
        """Whether no claim is kept, or half of all could not be scored, which tests nothing."""
        return not self.factuality_if_any.n or (self.verdict is not None and self.verdict.untested)

    _repr_pretty_ = shown

    def __str__(self) -> str:
        enough = "factual" if self.share == 1 else f"at least {self.share:g} factual"
        shares = {
            enough: self.factuality,
            f"{enough}, if not empty": self.factuality_if_any,
            "empty answers": self.empty,
            "claims kept": self.kept,
            "factual claims kept": self.kept_factual,
        }
        rows = {name: share.interval.written(width=5) for name, share in shares.items()}
        for group, evaluation in self.by_group.items():
            factual = evaluation.factuality.interval.written(width=5)
            rows[f"  {enough} in {'no group' if group is None else group}"] = (
                f"{factual} of {evaluation.n_answers}, empty {percent(evaluation.empty.estimate)}"
            )
        lines = [f"Answers: {self.n_answers}, {self.left_out} left out", *labelled(rows, 28)]
        untested = "The guarantee is not tested, because no claim of any answer is kept."
        lines.append(filled(str(self.verdict) if self.factuality_if_any.n else untested))
        return "\n".join(lines if self.held_out_verified else [*lines, filled(UNVERIFIED)])


def evaluate_claims(
    calibration: Calibration, answers: Iterable[AnnotatedAnswer], *, level: float = 0.95
) -> ClaimEvaluation:
    """Measure what the threshold does to annotated answers that are new to the calibration.

    Raises ValueError if no answer has annotated claims, an id occurs twice or was calibrated on, or
    the level is not in (0, 1); `CalibrationMismatch` for a calibration of another subject.
    """
    check_subject(calibration, CLAIMS)
    check_level(level)
    given = all_of(AnnotatedAnswer, answers, "answers")
    ids = [answer.id for answer in given]
    check_unique_ids(ids, CLAIMS.unit)
    verified = calibration.held_out(ids)
    used = [answer for answer in given if answer.factual and answer.annotated]
    if not used:
        raise ValueError(f"none of {len(given)} answers has annotated claims; annotate some")
    whole: ClaimEvaluation = with_groups(calibration, used, partial(_measured, calibration, level))
    verdict = whole.verdict and replace(whole.verdict, unscorable=_unscorable(used))
    left_out = len(given) - len(used)
    return replace(whole, verdict=verdict, left_out=left_out, held_out_verified=verified)


def _unscorable(answers: Sequence[AnnotatedAnswer]) -> float:
    """Return the share of the claims of all answers that could not be scored."""
    return float(np.isnan(np.concatenate([answer.relevance for answer in answers])).mean())


def _measured(
    calibration: Calibration,
    level: float,
    answers: Sequence[AnnotatedAnswer],
    group: str | None,
    tests: int,
) -> ClaimEvaluation:
    """Return the measures of answers, filtered by their groups; the verdict is on `group`."""
    share = share_of(calibration)
    keeps = [calibration.keep(answer.relevance, answer.group) for answer in answers]
    # An unannotated claim has no relevance, so it is dropped, and counts as not factual.
    facts = [np.array([f is True for f in answer.factual]) for answer in answers]
    claims = np.array([len(f) for f in facts])
    kept = np.array([k.sum() for k in keeps])
    factual = np.array([f.sum() for f in facts])
    kept_factual = np.array([(k & f).sum() for k, f in zip(keeps, facts, strict=True)])
    right = kept_factual * share.denominator >= kept * share.numerator
    any_kept, some = kept > 0, factual > 0
    factuality = Share.of_units(right, level)
    verdict = verdict_on(calibration, factuality, group, tests=tests)
    return ClaimEvaluation(
        n_answers=len(answers),
        left_out=0,
        factuality=factuality,
        factuality_if_any=Share.of_units(right[any_kept], level),
        empty=Share.of_units(~any_kept, level),
        kept=Share.of_clusters(kept / claims, np.ones(len(answers)), level),
        kept_factual=Share.of_clusters(kept_factual[some] / factual[some], some[some], level),
        verdict=verdict and replace(verdict, unscorable=_unscorable(answers)),
        share=float(share),
    )
