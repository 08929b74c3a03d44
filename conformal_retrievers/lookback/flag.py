"""Flagging answers of low confidence, so that few inconsistent ones pass unflagged.

The confidences of n inconsistent answers, sorted, give the threshold: the ⌈(n+1)(1−α)⌉-th smallest.
A new answer is flagged iff its confidence is at most that,

    P(answer flagged | answer inconsistent) ≥ 1 − α

which is the guarantee for retrieval, with the confidence as the score of an answer and inconsistent
answers in the place of relevant snippets.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import (
    CalibrationMismatch,
    check_flags,
    check_groups,
    check_same_scorer,
    check_subject,
    check_unique_ids,
    json_copy,
)
from conformal_retrievers.calibration.subjects import FLAGS
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.lookback.classifier import (
    FactualityClassifier,
    JudgedRatios,
    check_once,
    judged_answers,
)
from conformal_retrievers.lookback.ratios import LookbackRatios, check_ratios, kind_of
from conformal_retrievers.theory import intervals, ranks
from conformal_retrievers.theory.ranks import exact_alpha


@dataclass(frozen=True)
class Confidence:
    """The confidence in an answer, from 0 to 1 or NaN, and whether the answer is flagged."""

    value: float
    flagged: bool

    @property
    def details(self) -> dict[str, float | bool | None]:
        """The same as plain values, with None for NaN."""
        return {
            "confidence": None if math.isnan(self.value) else self.value,
            "flagged": self.flagged,
        }


WITHOUT_CONFIDENCE = Confidence(math.nan, flagged=True)


@dataclass(frozen=True)
class FactualityFlag:
    """Flags answers whose confidence is at most a threshold, which inconsistent answers set.

    An answer without a confidence (NaN) is flagged. Classifier and calibration are saved and loaded
    separately. Raises `CalibrationMismatch` for a calibration of another classifier or subject.
    """

    classifier: FactualityClassifier
    calibration: Calibration

    def __post_init__(self) -> None:
        _check_classifier(self.classifier)
        if not isinstance(self.calibration, Calibration):
            raise TypeError(
                f"calibration is {kind_of(self.calibration)}; give Calibration.load(…) of the file "
                "that flag.calibration.save wrote"
            )
        check_subject(self.calibration.subject, FLAGS)
        check_same_scorer(self.classifier.name, calibrated=self.calibration.scorer)

    def __call__(self, ratios: LookbackRatios, group: str | None = None) -> Confidence:
        """Return the confidence in an answer and whether it is flagged.

        By group, an answer to a question of no known group is flagged, with a warning.
        """
        check_ratios("ratios", ratios)
        self._warn_of_no_group(group)
        [confidence] = self.classifier.predict_proba([ratios])
        [flagged] = self.calibration.keep([confidence], group)
        return Confidence(float(confidence), bool(flagged))

    def _warn_of_no_group(self, group: str | None) -> None:
        c = self.calibration
        if c.knows(group):
            return
        # One text and one place, so that Python says it once.
        known = ", ".join(map(repr, c.n_units))
        warnings.warn(
            f"the flag is by group ({known}), and a question has none of these, so its answer is "
            "flagged; give the group of each question, or calibrate with more groups",
            stacklevel=1,
        )

    def evaluate(self, answers: Iterable[JudgedRatios], *, level: float = 0.95) -> FlagEvaluation:
        """Return which shares of new answers are flagged, with Wilson's intervals.

        An answer without a token is flagged. Raises ValueError for no answers, one that is there
        twice or that the flag was calibrated on, by its tokens or its id, one that the classifier
        was fitted on, by its tokens, and for a level that is none.
        """
        intervals.check_level(level)
        answers = judged_answers("answers", answers)
        if not answers:
            raise ValueError("there are no answers; give judged ones that are new to the flag")
        self.classifier.check_new(answers)
        check_once(answers)
        check_unique_ids((one.id for one in answers), "answer")
        self._check_new(answers)
        flagged = np.array([self(one.ratios, one.group).flagged for one in answers])
        consistent = np.array([one.consistent for one in answers], dtype=bool)
        return FlagEvaluation(
            float(1 - ranks.exact_alpha(self.calibration.alpha)),
            _share(flagged[~consistent], level),
            _share(flagged[consistent], level),
            int((~consistent).sum()),
            int(consistent.sum()),
        )

    def _check_new(self, answers: Sequence[JudgedRatios]) -> None:
        stored, ids = self.calibration.details.get("answers"), self.calibration.ids
        digests = frozenset(map(str, stored)) if isinstance(stored, list) else frozenset()
        for i, one in enumerate(answers):
            if one.ratios.digest in digests or one.id in ids:
                named = "" if one.id is None else f", id {one.id!r},"
                raise ValueError(
                    f"answers[{i}]{named} is one that the flag was calibrated on, which says "
                    "nothing of new ones; give others"
                )

    @property
    def statement(self) -> str:
        """One paragraph: what is promised, assuming what, from how many answers."""
        return self.calibration.statement


@dataclass(frozen=True)
class FlagEvaluation:
    """What a flag does to answers that are new to it, made by `FactualityFlag.evaluate`.

    `inconsistent` is the share of the inconsistent answers that is flagged, `target` what is
    promised of it at least; `consistent` is that of the consistent ones, which is the price. Either
    is None where there is no such answer.
    """

    target: float
    inconsistent: intervals.Interval | None
    consistent: intervals.Interval | None
    n_inconsistent: int
    n_consistent: int

    def __str__(self) -> str:
        inconsistent, consistent = (
            "–" if share is None else str(share).strip()
            for share in (self.inconsistent, self.consistent)
        )
        return (
            f"flagged are {inconsistent} of {self.n_inconsistent} inconsistent answers, of which "
            f"at least {100 * self.target:.6g} % are promised, and {consistent} of "
            f"{self.n_consistent} consistent ones"
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

    Parameters
    ----------
    answers
        Judged answers, new to the classifier, with at least one that is inconsistent.
    classifier
        Gives each answer its confidence.
    alpha
        Miscoverage rate in (0, 1): the share of inconsistent answers that may pass unflagged.
    delta, by_group
        As in `calibrate`.
    labels
        Facts about the judgements, as in `ConsistencyLabels.labels`; written into the file.

    Returns
    -------
    FactualityFlag
        Its `calibration` has `subject` "flags", and the answers' digests in `details`.

    Raises
    ------
    ValueError
        For answers that the classifier was fitted on, that are repeated or have no token, for no
        inconsistent answer, or too few for delta.

    Warns
    -----
    UserWarning
        If consistent answers have clearly less confidence than inconsistent ones.
    """
    _check_classifier(classifier)
    check_flags(by_group=by_group)
    if labels is not None and not isinstance(labels, Mapping):
        raise TypeError(
            f"labels is {kind_of(labels)}; give a mapping, such as ConsistencyLabels.labels"
        )
    answers = judged_answers("answers", answers)
    classifier.check_new(answers)
    check_once(answers)
    check_unique_ids((one.id for one in answers), "answer")
    confidence = classifier.predict_proba(answer.ratios for answer in answers)
    unread = np.flatnonzero(np.isnan(confidence))
    if len(unread):
        raise ValueError(f"answers[{unread[0]}] has no token, so no confidence; leave it out")
    if all(answer.consistent for answer in answers):
        raise ValueError(
            f"all {len(answers)} answers are consistent; the threshold comes from inconsistent "
            "ones, so judge more answers"
        )
    check_groups(answers, by_group, None, FLAGS)
    _warn_if_reversed(confidence, answers)
    one = np.ones(1, dtype=bool)
    consistent = [answer for answer in answers if answer.consistent]
    calibration = Calibration(
        float(exact_alpha(alpha)),
        "all",  # with one score an answer, every guarantee has the same rank
        classifier.name,
        tuple(
            ScoredQuery(np.array([c]), one, id=answer.id, group=answer.group)
            for c, answer in zip(confidence, answers, strict=True)
            if not answer.consistent
        ),
        subject=FLAGS,
        delta=None if delta is None else float(delta),
        by_group=by_group,
        n_without_relevant=len(consistent),
        other_ids=tuple(answer.id for answer in consistent if answer.id),
        labels=json_copy("labels", labels),
        details={"answers": [*sorted(answer.ratios.digest for answer in answers)]},
    )
    return FactualityFlag(classifier, calibration)


def _check_classifier(classifier: object) -> None:
    if not isinstance(classifier, FactualityClassifier):
        raise TypeError(
            f"classifier is {kind_of(classifier)}; give a FactualityClassifier, from fit or "
            "FactualityClassifier.load(…)"
        )


def _share(flagged: NDArray[np.bool_], level: float) -> intervals.Interval | None:
    if not len(flagged):
        return None
    return intervals.wilson_interval(float(flagged.mean()), len(flagged), level)


class AttentionModel(Protocol):
    """What a flag must know of the model whose attention it reads, such as a `LocalModel`."""

    @property
    def name(self) -> str:
        """What the model is called in the classifiers that are fitted on it."""
        ...

    @property
    def layers(self) -> int:
        """How many layers it has."""
        ...

    @property
    def heads(self) -> int:
        """How many heads a layer has."""
        ...


def check_flag(flag: object, model: AttentionModel) -> None:
    """Raise TypeError for what is no flag, `CalibrationMismatch` for one of another model.

    Other weights under the same name, with as many layers and heads, cannot be told apart.
    """
    if not isinstance(flag, FactualityFlag):
        raise TypeError(
            f"flag is {kind_of(flag)}; give FactualityFlag(FactualityClassifier.load(…), "
            "Calibration.load(…))"
        )
    made_for = flag.classifier
    if (model.layers, model.heads) != (made_for.layers, made_for.heads):
        raise CalibrationMismatch(
            f"flag is for the model {made_for.model!r} of {made_for.layers} layers and "
            f"{made_for.heads} heads, but llm is {model.name!r}, which has {model.layers} and "
            f"{model.heads}: give the model that the flag was made for, or fit and calibrate with "
            "this one"
        )
    if model.name != made_for.model:
        raise CalibrationMismatch(
            f"flag is for the model {made_for.model!r}, but llm is {model.name!r}, which is its "
            "name as it was loaded: if it is the same model, give LocalModel(model, tokenizer, "
            f"name={made_for.model!r}); if it is another, fit and calibrate with it"
        )


def _warn_if_reversed(confidence: NDArray[np.float64], answers: Sequence[JudgedRatios]) -> None:
    # No error: calibrations that pass such a check by luck would flag less than is promised.
    consistent = np.array([answer.consistent for answer in answers])
    if not consistent.any():
        return
    area = intervals.auc(confidence[~consistent], confidence[consistent])
    # Where confidence tells nothing, an AUROC has the variance (m + n + 1)/12mn (Mann and Whitney).
    m, n = int(consistent.sum()), int((~consistent).sum())
    if area < 0.5 - 1.96 * math.sqrt((m + n + 1) / (12 * m * n)):
        warnings.warn(
            f"consistent answers have less confidence than inconsistent ones (AUROC {area:.2f}, "
            "clearly below 0.5), so that they are flagged more often: check that True means "
            "consistent, or fit on more answers",
            UserWarning,
            stacklevel=3,
        )
