"""The calibration of claims: a claim is kept iff its relevance is above the threshold.

The answers' scores S (answers.py) go into a `Calibration` with the guarantee "all", one score an
answer: its threshold q is the k(n, α)-th smallest S, and a new exchangeable answer has S ≤ q with
probability ≥ 1 − α. What differs is what is kept: a relevance is high for a good claim, it must be
above q and not at it, and q = +inf keeps nothing.

    keep c  iff  R(c) > q

Sources: Feng et al. 2025, Conformal-RAG (arXiv 2506.20978, eq. 4, which keeps R(c) ≥ q and so keeps
the very claim that is not factual where relevances tie); Mohri and Hashimoto 2024 (arXiv
2402.10978, theorem 4.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import JsonValue

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import (
    ANSWERS,
    check_flags,
    check_merging,
    check_name,
    json_copy,
)
from conformal_retrievers.claims.answers import AnnotatedAnswer, answer_name, answer_scores
from conformal_retrievers.claims.statement import statement
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.theory.ranks import exact_alpha, exact_share

if TYPE_CHECKING:
    from conformal_retrievers.claims.file import ClaimsRecord

OnUnscorable = Literal["raise", "drop"]


def calibrate_claims(
    answers: Iterable[AnnotatedAnswer],
    alpha: float,
    *,
    scorer: str,
    by_group: bool = False,
    merge_groups: Mapping[str, str] | None = None,
    delta: float | None = None,
    share: float = 1.0,
    on_unscorable: OnUnscorable = "raise",
    labels: Mapping[str, JsonValue] | None = None,
) -> ClaimCalibration:
    """Return the calibration that annotated answers give.

    `scorer` is the name of what gave the relevances; `share` the share of an answer's kept claims
    that shall be factual, 1 for all; `alpha`, `delta`, `by_group`, `merge_groups` and `labels`
    (annotator, prompt) are those of `calibrate`. An answer without claims does not enter, and
    neither does one with a claim that has a relevance but no annotation: it is not known whether
    its score is high or low. They are counted, the latter by name.

    A claim without a relevance is never kept. Where it is not known to be factual, its answer
    scores as if it were: a calibration on calls that failed would promise what holds only where
    calls fail. `on_unscorable` "raise" therefore refuses such a claim, and "drop" counts it as what
    the filter does with it, which assumes that new claims fail as often.

    Raises ValueError, naming answer and field, where alpha, delta, share or on_unscorable is out of
    range, an id occurs twice, a group is missing, no answer enters, or too few for delta.
    """
    _check_alpha(alpha)
    exact_share(share)
    check_name(scorer)
    check_flags(by_group=by_group)
    if on_unscorable not in get_args(OnUnscorable):
        raise ValueError(f"on_unscorable is {on_unscorable!r}; give 'raise' or 'drop'")
    given = list(answers)
    for i, answer in enumerate(given):
        if not isinstance(answer, AnnotatedAnswer):
            raise TypeError(f"answers[{i}] is {answer!r:.60}; give AnnotatedAnswer objects")
    annotated = [answer.annotated for answer in given]
    unannotated = tuple(answer_name(given, i) for i, told in enumerate(annotated) if not told)
    entering = [a for a, told in zip(given, annotated, strict=True) if told and a.factual]
    without_claims = len(given) - len(unannotated) - len(entering)
    if not entering:
        raise ValueError(
            f"none of {len(given)} answers enters: {without_claims} have no claims and "
            f"{len(unannotated)} a claim without annotation; annotate the claims of some"
        )
    n_unscorable = int(np.isnan(np.concatenate([a.relevance for a in entering])).sum())
    if n_unscorable and on_unscorable == "raise":
        _check_scorable(given)
    check_merging(merge_groups, [answer.group for answer in entering], ANSWERS)
    judged = np.ones(1, dtype=bool)
    scores = answer_scores(entering, share)
    return ClaimCalibration(
        Calibration(
            float(exact_alpha(alpha)),
            "all",
            scorer,
            tuple(
                ScoredQuery(scores[i : i + 1], judged, id=answer.id, group=answer.group)
                for i, answer in enumerate(entering)
            ),
            delta=None if delta is None else float(delta),
            by_group=by_group,
            merge_groups=None if merge_groups is None else dict(merge_groups),
            labels=json_copy("labels", labels),
            words=ANSWERS,
        ),
        share=float(share),
        unannotated=unannotated,
        n_without_claims=without_claims,
        n_unscorable=n_unscorable,
    )


def _check_alpha(alpha: float) -> None:
    try:
        exact_alpha(alpha)
    except ValueError:
        raise ValueError(
            f"alpha is {alpha!r}; give a risk strictly between 0 and 1, such as 0.1 for kept "
            "claims that are all factual with probability at least 0.9"
        ) from None


def _check_scorable(answers: Sequence[AnnotatedAnswer]) -> None:
    for i, answer in enumerate(answers):
        for j in np.flatnonzero(np.isnan(answer.relevance)).tolist():
            if answer.annotated and answer.factual[j] is not True:
                told = "not annotated" if answer.factual[j] is None else "not factual"
                raise ValueError(
                    f"{answer_name(answers, i)}: claim number {j + 1} is {told} and has no "
                    "relevance, which makes the answer look factual; score it again, leave the "
                    "answer out, or give on_unscorable='drop' if new claims will fail as often"
                )


@dataclass(frozen=True, repr=False)
class ClaimCalibration:
    """Scores of annotated answers, with all that follows from them; made by `calibrate_claims`.

    `answers` is the calibration of the answers' scores, with guarantee "all"; of its promise, "no
    relevant snippet of a query is dropped" reads "no claim of an answer is kept that is not
    factual". `unannotated` names the answers that did not enter because a claim of theirs is not
    annotated, `n_without_claims` counts those without claims, and `n_unscorable` the claims without
    a relevance in the others.
    """

    answers: Calibration
    share: float = 1.0
    unannotated: tuple[str, ...] = ()
    n_without_claims: int = 0
    n_unscorable: int = 0

    @property
    def alpha(self) -> float:
        """The probability, at most, that an answer's kept claims are not all factual."""
        return self.answers.alpha

    @property
    def scorer(self) -> str:
        """The name of what gives the relevances."""
        return self.answers.scorer

    @property
    def n_answers(self) -> int:
        """The number of answers that enter."""
        return self.answers.n_queries

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that it knows, by every name that `merge_groups` gives; none by one rule."""
        if not self.answers.by_group:
            return ()
        return tuple(sorted({*map(str, self.answers.n_units), *(self.answers.merge_groups or {})}))

    def at(self, alpha: float) -> ClaimCalibration:
        """Return the same calibration for another alpha: nothing is scored again."""
        _check_alpha(alpha)
        return replace(self, answers=self.answers.at(alpha))

    # --- what is kept -----------------------------------------------------------------------------

    def threshold(self, group: str | None = None) -> float:
        """Return what a claim's relevance must exceed: +inf keeps nothing, −inf all that has one.

        With `by_group` this is the threshold of the query's group, and +inf for one that the
        calibration does not know or that is too small.
        """
        return self.answers.threshold(group)

    def named_threshold(self, group: str | None = None) -> float | Literal["keep_none", "keep_all"]:
        """Return the threshold as JSON holds it: "keep_none" for +inf and "keep_all" for −inf."""
        threshold = self.threshold(group)
        if math.isfinite(threshold):
            return threshold
        return "keep_none" if threshold > 0 else "keep_all"

    def keep(self, relevance: ArrayLike, group: str | None = None) -> NDArray[np.bool_]:
        """Return which claims (p,) are kept: those above the threshold, never one that is NaN.

        Whether a claim without a relevance is factual nobody knows: dropping it preserves the
        guarantee.
        """
        # False for NaN, and for a claim at the threshold: that one may be the one that is not
        # factual.
        return np.asarray(relevance, dtype=np.float64) > self.threshold(group)

    def p_values(self, relevance: ArrayLike, group: str | None = None) -> NDArray[np.float64]:
        """Return the conformal p-value of each claim (p,): without delta, kept at α iff p ≤ α.

        p = (1 + #{i : S_i ≥ R(c)}) / (n + 1), of the hypothesis that the answer's own S is at least
        R(c): that this claim, or one of higher relevance, is not factual (with a share below 1:
        that too few are). An answer with such a claim has p ≤ α with probability at most α, for all
        its claims together. p is 1 in a group that the calibration does not know; NaN stays NaN.
        """
        return self.answers.p_values(relevance, group)

    # --- what it is worth -------------------------------------------------------------------------

    @property
    def statement(self) -> str:
        """One paragraph: what is promised, over what, assuming what, from how many answers."""
        return statement(self)

    # --- the file ---------------------------------------------------------------------------------

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the file's fields: the identity of this calibration."""
        return self._record.sha256

    def save(self, path: str | Path) -> None:
        """Write the calibration as JSON; an old file stays until the new one is complete.

        Raises OSError, naming the path, where it cannot be written.
        """
        from conformal_retrievers.claims.file import write

        write(self._record, path)

    @classmethod
    def load(cls, path: str | Path) -> ClaimCalibration:
        """Read a calibration that `save` wrote, bit for bit the same.

        Raises ValueError, naming path, field and remedy, where the file is broken, newer or
        changed, or where its threshold does not follow from its scores; FileNotFoundError where
        there is none.
        """
        from conformal_retrievers.calibration.record import check_derived
        from conformal_retrievers.claims.file import read

        record = read(path)
        try:
            calibration = cls._from_record(record)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        check_derived(path, record, calibration._record, exact=("threshold",))
        return calibration

    @classmethod
    def _from_record(cls, record: ClaimsRecord) -> ClaimCalibration:
        exact_share(record.share)
        judged = np.ones(1, dtype=bool)
        answers = Calibration(
            record.alpha,
            "all",
            record.scorer,
            tuple(
                ScoredQuery(np.array([answer.score]), judged, id=answer.id, group=answer.group)
                for answer in record.answers
            ),
            delta=record.delta,
            by_group=record.by_group,
            merge_groups=record.merge_groups,
            labels=record.labels,
            library=record.library,
            created=record.created,
            words=ANSWERS,
        )
        return cls(
            answers,
            record.share,
            tuple(record.unannotated),
            record.n_without_claims,
            record.n_unscorable,
        )

    @cached_property
    def _record(self) -> ClaimsRecord:
        from conformal_retrievers.claims.file import AnswerRecord, ClaimsRecord, Threshold

        thresholds: dict[str, Threshold] = {
            group or "": self.named_threshold(group) for group in self.answers.n_units
        }
        a = self.answers
        return ClaimsRecord(
            format="conformal-retrievers/claims",
            version=1,
            alpha=a.alpha,
            share=self.share,
            delta=a.delta,
            by_group=a.by_group,
            merge_groups=None if a.merge_groups is None else dict(a.merge_groups),
            threshold=thresholds if a.by_group else thresholds[""],
            scorer=a.scorer,
            unannotated=list(self.unannotated),
            n_without_claims=self.n_without_claims,
            n_unscorable=self.n_unscorable,
            labels=None if a.labels is None else dict(a.labels),
            library=a.library,
            created=a.created,
            answers=[
                AnswerRecord(id=query.id, group=query.group, score=float(query.scores[0]))
                for query in a.queries
            ],
        )

    def __repr__(self) -> str:
        return (
            f"ClaimCalibration(alpha={self.alpha:g}, share={self.share:g}, "
            f"scorer={self.scorer!r}, {self.n_answers} answers)"
        )


def named(groups: Sequence[str | None], most: int = 8) -> str:
    """Return the names of groups as messages give them, the first few of many."""
    more = f" and {len(groups) - most} more" if len(groups) > most else ""
    return ", ".join("none" if g is None else repr(g) for g in groups[:most]) + more
