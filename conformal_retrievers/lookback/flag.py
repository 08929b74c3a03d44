"""Flagging answers of low confidence, so that few inconsistent answers pass unflagged.

The threshold is the ⌈(n+1)(1−α)⌉-th smallest confidence of n inconsistent answers. A new answer is
flagged iff its confidence is at most the threshold:

    P(answer flagged | answer inconsistent) ≥ 1 − α
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.file_schema import details_of
from conformal_retrievers.calibration.subjects import FLAGS
from conformal_retrievers.data.checks import all_of, check_type
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.text import filled
from conformal_retrievers.evaluation.share import Share
from conformal_retrievers.evaluation.verdict import UNVERIFIED, Verdict, verdict_on, with_groups
from conformal_retrievers.lookback.classifier import FactualityClassifier
from conformal_retrievers.lookback.ratios import JudgedRatios, LookbackRatios, check_digests
from conformal_retrievers.lookback.wording import say
from conformal_retrievers.theory.intervals import check_level, ordered_pairs, percent
from conformal_retrievers.theory.ranks import exact_alpha


@dataclass(frozen=True)
class Confidence:
    """The confidence in an answer, from 0 to 1 or NaN, and whether the answer is flagged."""

    value: float
    flagged: bool

    @property
    def details(self) -> dict[str, float | bool | None]:
        """The same as plain values, with None for NaN."""
        value = None if math.isnan(self.value) else self.value
        return {"confidence": value, "flagged": self.flagged}


WITHOUT_CONFIDENCE = Confidence(math.nan, flagged=True)
LOADED = 'FactualityClassifier.load("factuality.json")'  # the remedy in errors


@dataclass(frozen=True)
class FactualityFlag:
    """Flags answers whose confidence is at most the threshold; NaN is flagged.

    Raises `CalibrationMismatch` for a calibration of another classifier or subject.
    """

    classifier: FactualityClassifier
    calibration: Calibration  # of the flag that `calibrate_flag` made

    def __post_init__(self) -> None:
        check_type(FactualityClassifier, LOADED, classifier=self.classifier)
        checks.check_subject(self.calibration, FLAGS)
        checks.check_same_scorer(self.classifier.name, calibrated=self.calibration.scorer)

    def __call__(self, ratios: LookbackRatios, group: str | None = None) -> Confidence:
        """Return the confidence in an answer and whether it is flagged, as for an unknown group."""
        check_type(LookbackRatios, "lookback_ratios(attention)", ratios=ratios)
        c = self.calibration
        c.warn_if_unknown(group, "its answer is flagged")
        [confidence] = self.classifier.predict_proba([ratios])
        [flagged] = c.keep([confidence], group)
        return Confidence(float(confidence), bool(flagged))

    def evaluate(self, answers: Iterable[JudgedRatios], *, level: float = 0.95) -> FlagEvaluation:
        """Return the shares of new answers that are flagged, and test the guarantee.

        Raises ValueError for no answers, or if one occurs twice, was calibrated on (by its tokens
        or its id), or was fitted on (by its tokens).
        """
        check_level(level)
        c = self.calibration
        given = all_of(JudgedRatios, answers, "answers")
        if not given:
            raise ValueError("there are no answers; give judged ones that are new to the flag")
        ids = [answer.id for answer in given]
        checks.check_unique_ids(ids, FLAGS.unit)
        held_out_verified = c.held_out(ids)
        calibrated = details_of(c).answers
        used = {"fit the classifier": self.classifier.fitted_on, "calibrate the flag": calibrated}
        check_digests(given, used)
        evaluation: FlagEvaluation = with_groups(c, given, partial(self._measured, level))
        return replace(evaluation, held_out_verified=held_out_verified)

    def _measured(
        self, level: float, answers: Sequence[JudgedRatios], group: str | None, tests: int
    ) -> FlagEvaluation:
        """Return the measures of answers, flagged by their groups; the verdict is on `group`."""
        flagged = np.array([self(a.ratios, a.group).flagged for a in answers], dtype=bool)
        consistent = np.array([answer.consistent for answer in answers], dtype=bool)
        inconsistent = Share.of_units(flagged[~consistent], level)
        return FlagEvaluation(
            float(1 - exact_alpha(self.calibration.alpha)),
            inconsistent,
            Share.of_units(flagged[consistent], level),
            verdict_on(self.calibration, inconsistent, group, tests=tests),
        )


def calibrate_flag(
    answers: Iterable[JudgedRatios],
    classifier: FactualityClassifier,
    *,
    alpha: float,
    delta: float | None = None,
    by_group: bool = False,
    labels: Mapping[str, JsonValue] | None = None,
) -> FactualityFlag:
    """Return the flag for which P(answer flagged | answer inconsistent) ≥ 1 − alpha.

    `answers` are judged ones that are new to the classifier. `alpha` in (0, 1) is the share of
    inconsistent answers that may pass unflagged. `delta`, `by_group` and `labels` are as in
    `calibrate`; `ConsistencyLabels.labels` are such labels. Raises ValueError if an answer occurs
    twice, has no token or was fitted on, none is inconsistent, or there are too few for delta.
    """
    checks.check_flags(by_group=by_group)
    given = all_of(JudgedRatios, answers, "answers")
    check_type(FactualityClassifier, LOADED, classifier=classifier)
    check_digests(given, {"fit the classifier": classifier.fitted_on})
    checks.check_unique_ids((answer.id for answer in given), FLAGS.unit)
    confidence = classifier.predict_proba(answer.ratios for answer in given)
    unread = np.flatnonzero(np.isnan(confidence))
    if len(unread):
        raise ValueError(f"answers[{unread[0]}] has no token, so no confidence; leave it out")
    consistent = np.array([answer.consistent for answer in given], dtype=bool)
    inconsistent = [answer for answer in given if not answer.consistent]
    if not inconsistent:
        raise ValueError(say("none inconsistent", n=len(given)))
    ordered, pairs = ordered_pairs(confidence[~consistent], confidence[consistent])
    checks.warn_if_reversed(ordered, pairs, FLAGS, len(given))
    calibration = Calibration(
        alpha,
        "all",  # with one score an answer, every guarantee has the same rank
        classifier.name,
        ScoredQueries.of_units(confidence[~consistent], inconsistent),
        subject=FLAGS,
        delta=delta,
        by_group=by_group,
        n_without_relevant=len(given) - len(inconsistent),
        other_ids=tuple(answer.id for answer in given if answer.consistent and answer.id),
        labels=checks.json_copy("labels", labels),
        details={"answers": [*sorted(answer.ratios.digest for answer in given)]},
    )
    checks.warn_if_large(alpha=calibration.alpha, delta=calibration.delta)
    return FactualityFlag(classifier, calibration)


@dataclass(frozen=True)
class FlagEvaluation:
    """What a flag does to new answers; a share is NaN if there is no such answer."""

    target: float  # guaranteed share of inconsistent answers that are flagged
    inconsistent: Share  # of inconsistent answers that are flagged
    consistent: Share  # of consistent answers that are flagged: the price
    verdict: Verdict | None  # on the inconsistent ones; None if nothing could be tested
    held_out_verified: bool = True  # whether ids prove that no answer was calibrated on
    by_group: Mapping[str | None, FlagEvaluation] = field(default_factory=dict)

    def __str__(self) -> str:
        shares = (
            f"flagged: {self.inconsistent} of {self.inconsistent.n:g} inconsistent answers "
            f"(guaranteed: {percent(self.target, exact=True)}), "
            f"{self.consistent} of {self.consistent.n:g} consistent ones"
        )
        why = "every answer is flagged" if self.inconsistent.n else "no answer is inconsistent"
        notes = [shares, str(self.verdict or f"The guarantee is not tested: {why}.")]
        if not self.held_out_verified:
            notes.append(UNVERIFIED)
        return filled("\n".join(notes))
