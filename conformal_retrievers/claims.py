"""Conformal factuality: of an answer's claims, those are kept whose relevance is above a threshold.

An answer's score is the largest relevance of a claim in it that is not factual, −inf if all are:

    S = max { R(c) : c not factual }        keep c  iff  R(c) > q,   q the k(n, α)-th smallest S

so that all kept claims of an answer are factual iff S ≤ q, which a new exchangeable answer is with
probability ≥ 1 − α. This is the engine and the guarantee "all" of a `Calibration`, one score an
answer; what differs is what is kept: a relevance is high for a good claim, it must be above q and
not at it, and q = +inf keeps nothing. For a share b < 1, S is the smallest q such that, for every
q' ≥ q, at least b of the claims with R(c) > q' are factual.

Sources: Feng et al. 2025, Conformal-RAG (arXiv 2506.20978, eq. 4 and 5, which keep R(c) ≥ q and so
keep the very claim that is not factual where relevances tie; with S ≥ 0, which drops claims of
relevance 0 though all are factual); Mohri and Hashimoto 2024 (arXiv 2402.10978, theorem 4.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.calibration import Calibration
from conformal_retrievers.conformal import exact_alpha, exact_share
from conformal_retrievers.entry import check_name, json_copy
from conformal_retrievers.judged import ScoredQuery

if TYPE_CHECKING:  # pydantic is loaded where a file is read or written
    from pydantic import JsonValue

    from conformal_retrievers.claims_file import ClaimsRecord

# --- values ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AnnotatedAnswer:
    """The relevance of each claim of one answer, and whether it is factual.

    `relevance` (p,) is high for a claim that is likely factual, and NaN for one that could not be
    scored; `factual` (p,) is True or False, and None for a claim that the annotator could not tell
    of. `group` is a property of the query, known at run time. Raises ValueError or TypeError,
    naming the field, where lengths disagree or an annotation is none of these.
    """

    relevance: NDArray[np.float64]
    factual: tuple[bool | None, ...]
    id: str | None = field(default=None, kw_only=True)
    group: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        where = "an answer" if self.id is None else f"answer {self.id!r}"
        for name, value in (("id", self.id), ("group", self.group)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{where}: {name} is {value!r}; give a str, or None")
        relevance = np.array(self.relevance, dtype=np.float64)
        factual = tuple(_annotation(where, i, value) for i, value in enumerate(self.factual))
        if relevance.shape != (len(factual),):
            raise ValueError(
                f"{where}: relevance has shape {relevance.shape} but factual has {len(factual)} "
                "annotations; give one relevance and one annotation for each claim"
            )
        relevance.setflags(write=False)
        object.__setattr__(self, "relevance", relevance)
        object.__setattr__(self, "factual", factual)

    @property
    def annotated(self) -> bool:
        """Whether every claim that has a relevance is annotated; one that has none is dropped."""
        return None not in self.factual or all(
            told is not None or math.isnan(r)
            for told, r in zip(self.factual, self.relevance, strict=True)
        )


def _annotation(where: str, i: int, value: object) -> bool | None:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    raise ValueError(
        f"{where}: factual[{i}] is {value!r}; give True or False, or None for a claim that could "
        "not be annotated"
    )


# --- an answer's score ----------------------------------------------------------------------------


def answer_scores(answers: Sequence[AnnotatedAnswer], share: float = 1.0) -> NDArray[np.float64]:
    """Return S of each answer (n,): −inf where a share of its claims is factual at every threshold.

    S is the highest relevance v for which less than `share` of the claims with a relevance ≥ v is
    factual; with share 1, that of a claim that is not. Claims without a relevance are never kept,
    so they do not count. O(N log N) for N claims. Raises ValueError for a share outside (0, 1] and,
    naming the answer, where a claim with a relevance is not annotated; eq. 5 of arXiv 2506.20978.
    """
    needed = exact_share(share)
    sizes = np.array([len(answer.factual) for answer in answers], dtype=np.int64)
    relevance = np.concatenate([np.empty(0), *(answer.relevance for answer in answers)])
    annotations = list(chain.from_iterable(answer.factual for answer in answers))
    scored = ~np.isnan(relevance)
    of = np.arange(len(answers)).repeat(sizes)[scored]
    if None in annotations:
        unknown = np.array([a is None for a in annotations])[scored]
        for i in np.flatnonzero(unknown)[:1]:
            raise ValueError(
                f"{_name(answers, of[i])}: a claim has a relevance but no annotation; annotate it, "
                "or leave the answer out"
            )
    factual = np.fromiter(annotations, dtype=bool)[scored]  # None becomes False, and is not scored
    relevance = relevance[scored]

    # Answer by answer, from the highest relevance down: how many claims there are, and how many of
    # them are factual. Claims of one relevance enter together, so the last of them is looked at.
    order = np.lexsort((-relevance, of))
    of, relevance, factual = of[order], relevance[order], factual[order]
    start = np.searchsorted(of, of)
    above = np.arange(len(of)) - start + 1
    n_factual = np.cumsum(factual)
    n_factual = n_factual - (n_factual - factual)[start]
    last = np.append((of[1:] != of[:-1]) | (relevance[1:] != relevance[:-1]), True)[: len(of)]
    short = last & (n_factual * needed.denominator < above * needed.numerator)
    scores = np.full(len(answers), -math.inf)
    np.maximum.at(scores, of[short], relevance[short])
    return scores


def _name(answers: Sequence[AnnotatedAnswer], i: int) -> str:
    return f"answer number {i + 1}" if answers[i].id is None else f"answer {answers[i].id!r}"


# --- the calibration ------------------------------------------------------------------------------


def calibrate_claims(
    answers: Iterable[AnnotatedAnswer],
    alpha: float,
    *,
    scorer: str,
    by_group: bool = False,
    merge_groups: Mapping[str, str] | None = None,
    delta: float | None = None,
    share: float = 1.0,
    labels: Mapping[str, JsonValue] | None = None,
) -> ClaimCalibration:
    """Return the calibration that annotated answers give.

    `scorer` is the name of what gave the relevances; `share` the share of an answer's kept claims
    that shall be factual, 1 for all; `alpha`, `delta`, `by_group`, `merge_groups` and `labels`
    (annotator, prompt) are those of `calibrate`. An answer without claims does not enter, and
    neither does one with a claim that has a relevance but no annotation: it is not known whether
    its score is high or low. They are counted, the latter by name. Raises ValueError, naming answer
    and field, where alpha, delta or share is out of range, an id occurs twice, a group is missing,
    no answer enters, or too few for delta.
    """
    exact_alpha(alpha)
    exact_share(share)
    check_name(scorer)
    given = list(answers)
    for i, answer in enumerate(given):
        if not isinstance(answer, AnnotatedAnswer):
            raise TypeError(f"answers[{i}] is {answer!r:.60}; give AnnotatedAnswer objects")
    annotated = [answer.annotated for answer in given]
    unannotated = tuple(_name(given, i) for i, told in enumerate(annotated) if not told)
    entering = [a for a, told in zip(given, annotated, strict=True) if told and a.factual]
    without_claims = len(given) - len(unannotated) - len(entering)
    if not entering:
        raise ValueError(
            f"none of {len(given)} answers enters: {without_claims} have no claims and "
            f"{len(unannotated)} a claim without annotation; annotate the claims of some"
        )
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
        ),
        share=float(share),
        unannotated=unannotated,
        n_without_claims=without_claims,
        n_unscorable=int(np.isnan(np.concatenate([a.relevance for a in entering])).sum()),
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

    def at(self, alpha: float) -> ClaimCalibration:
        """Return the same calibration for another alpha: nothing is scored again."""
        return replace(self, answers=self.answers.at(alpha))

    # --- what is kept -----------------------------------------------------------------------------

    def threshold(self, group: str | None = None) -> float:
        """Return what a claim's relevance must exceed: +inf keeps nothing, −inf all that has one.

        With `by_group` this is the threshold of the query's group, and +inf for one that the
        calibration does not know or that is too small.
        """
        return self.answers.threshold(group)

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
        parts = (_promise, _rule, _assumption, _basis)
        return " ".join(part(self) for part in parts)

    # --- the file ---------------------------------------------------------------------------------

    @property
    def checksum(self) -> str:
        """SHA-256 of the file's fields: the identity of this calibration."""
        return self._record.sha256

    def save(self, path: str | Path) -> None:
        """Write the calibration as JSON; an old file stays until the new one is complete.

        Raises OSError, naming the path, where it cannot be written.
        """
        from conformal_retrievers.claims_file import write

        write(self._record, path)

    @classmethod
    def load(cls, path: str | Path) -> ClaimCalibration:
        """Read a calibration that `save` wrote, bit for bit the same.

        Raises ValueError, naming path, field and remedy, where the file is broken, newer or
        changed, or where its threshold does not follow from its scores; FileNotFoundError where
        there is none.
        """
        from conformal_retrievers.claims_file import read

        record = read(path)
        try:
            calibration = cls._from_record(record)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        derived = calibration._record.threshold
        if record.threshold != derived:
            raise ValueError(
                f"{path}: its field 'threshold' is {record.threshold!r}, but its scores give "
                f"{derived!r}; calibrate and save again"
            )
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
        from conformal_retrievers.claims_file import AnswerRecord, ClaimsRecord, Threshold

        named: dict[float, Literal["keep_none", "keep_all"]] = {
            math.inf: "keep_none",
            -math.inf: "keep_all",
        }
        thresholds: dict[str, Threshold] = {
            group or "": named.get(self.threshold(group), self.threshold(group))
            for group in self.answers.n_units
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


# --- the statement --------------------------------------------------------------------------------


def _promise(c: ClaimCalibration) -> str:
    a = c.answers
    target = repr(float(1 - exact_alpha(a.alpha)))
    of = "all" if c.share == 1 else f"at least a share {c.share:g} of the"
    promise = f"with probability at least {target}, {of} claims that are kept of a new answer"
    promise += " are factual"
    named = f"(alpha = {a.alpha:g})"
    if a.delta is not None:
        promise = (
            f"of all calibrations like this one, at least {1 - a.delta:.6g} keep what follows: "
            f"{promise}"
        )
        named = f"(alpha = {a.alpha:g}, delta = {a.delta:g})"
    if a.by_group:
        promise = f"in each group of queries, {promise}"
    return (
        f"{promise[0].upper()}{promise[1:]} {named}. An answer of which nothing is kept counts as "
        "factual: evaluate_claims tells how many those are."
    )


def _rule(c: ClaimCalibration) -> str:
    if c.answers.by_group:
        groups = [f"{group} ({n}: {_kept(c, group)})" for group, n in c.answers.n_units.items()]
        rule = (
            f"The groups, with their number of answers: {'; '.join(groups)}. In a group that is "
            "not named here nothing is kept."
        )
    else:
        rule = f"{_kept(c, None)}."
    return (
        f"{rule[0].upper()}{rule[1:]} Relevance is that of {c.scorer!r}; a claim that cannot be "
        "scored is dropped."
    )


def _kept(c: ClaimCalibration, group: str | None) -> str:
    threshold, n, needed = c.threshold(group), c.answers.n_units[group], c.answers.n_needed
    if threshold == -math.inf:
        return "every claim is kept that has a relevance"
    if threshold < math.inf:
        return f"a claim is kept whose relevance is above {threshold:.6g}"
    if n < needed:
        return f"nothing is kept, because it takes {needed} answers, {needed - n} more than these"
    return "nothing is kept, because no finite threshold promises this"


def _assumption(c: ClaimCalibration) -> str:
    over = (
        "The probability is over calibration and new answer together."
        if c.answers.delta is None
        else "The probability is over the new answer, and the share over calibrations like this "
        "one."
    )
    return (
        "This assumes new answers exchangeable with the annotated ones: the same kind of question, "
        "the same retriever, generator, division into claims and scorer, and the same meaning of "
        f"factual, as right as the annotations are. {over} It is about the kept claims themselves, "
        "not about a text that an LLM makes of them."
    )


def _basis(c: ClaimCalibration) -> str:
    sentences = [f"It rests on {c.n_answers} answers."]
    if c.n_without_claims:
        sentences.append(f"{c.n_without_claims} more had no claims and did not enter.")
    if c.unannotated:
        named = ", ".join(c.unannotated[:5]) + (", …" if len(c.unannotated) > 5 else "")
        sentences.append(
            f"{len(c.unannotated)} more had a claim that is not annotated and did not enter "
            f"({named}): the promise is about answers like those that could be annotated."
        )
    if c.n_unscorable:
        sentences.append(f"{c.n_unscorable} of their claims could not be scored.")
    return " ".join(sentences)
