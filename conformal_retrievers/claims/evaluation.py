"""What a filter of claims does to annotated answers: factuality, and what it costs.

An answer of which nothing is kept counts as factual. A small alpha can therefore look perfect by
saying nothing, so the share of empty answers and the share of claims kept stand beside factuality.
The answer is the unit of every interval.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.claims.answers import AnnotatedAnswer
from conformal_retrievers.claims.calibrate import named, share_of
from conformal_retrievers.evaluation.measures import Share
from conformal_retrievers.evaluation.verdict import promise_p_value
from conformal_retrievers.theory.intervals import Interval, check_level, cluster_interval
from conformal_retrievers.theory.ranks import exact_alpha

NOT_TOLD_APART = (
    "Nobody can tell whether these answers are new: of them, or of those that the calibration was "
    "made from, some have no id. Measured on its own answers, factuality says nothing."
)
UNTESTED = (
    "The promise is not tested: nothing is kept of any of these answers, and what says nothing is "
    "never false. Calibrate on more answers, or at a higher alpha."
)


@dataclass(frozen=True)
class ClaimEvaluation:
    """Shares measured on annotated answers, each with its 95 % interval over answers.

    `factuality`: answers whose kept claims are all factual (or a share, for a calibration with
    `share`), empty ones among them; `said_factuality`: the same of the answers that are not empty;
    `empty`: answers of which nothing is kept; `kept`: mean share of an answer's claims that is
    kept, and `kept_factual` of those that are factual. An estimate is nan where no answer has what
    it is a share of. `left_out` counts answers without claims or with one that is not annotated.

    `p_value` is the probability of a factuality as low as this or lower if the promise just holds,
    over calibration and answers (`promise_p_value`). Of a calibration by group it is that of the
    worst group, times the number of groups (Bonferroni), and `by_group` has the measures of each.
    `groups` are those that the calibration knows; of others nothing is kept. `share` is the
    calibration's. `told_apart`: whether ids tell the answers from those that the calibration was
    made from.
    """

    target: float
    n_answers: int
    left_out: int
    factuality: Interval
    said_factuality: Interval
    empty: Interval
    kept: Interval
    kept_factual: Interval
    p_value: float
    told_apart: bool = True
    share: float = 1.0
    groups: tuple[str, ...] = ()
    by_group: Mapping[str | None, ClaimEvaluation] = field(default_factory=dict)

    @property
    def fails(self) -> bool:
        """Whether factuality is significantly below the target: p < 0.05, one-sided."""
        return self.p_value < 0.05

    @property
    def untested(self) -> bool:
        """Whether nothing is kept of any answer, which tests nothing: it cannot be wrong."""
        return math.isnan(self.said_factuality.estimate)

    @property
    def unknown_groups(self) -> tuple[str | None, ...]:
        """The groups of answers that the calibration, one by group, does not know."""
        return tuple(group for group in self.by_group if group not in self.groups)

    def __str__(self) -> str:
        enough = "factual" if self.share == 1 else f"at least {self.share:g} factual"
        rows = {
            enough: self.factuality,
            f"{enough}, of those not empty": self.said_factuality,
            "empty answers": self.empty,
            "claims kept": self.kept,
            "factual claims kept": self.kept_factual,
        }
        shown = {name: "     –" if math.isnan(i.estimate) else str(i) for name, i in rows.items()}
        for group, of in self.by_group.items():
            shown[f"  {enough} in {'no group' if group is None else group}"] = (
                f"{of.factuality} of {of.n_answers}, empty {of.empty.estimate:.1%}"
            )
        width = max(28, *(len(name) for name in shown))
        noun = "answer" if self.n_answers == 1 else "answers"
        head = f"{self.n_answers} {noun}, {self.left_out} left out; target {self.target:.1%}"
        lines = [head, *(f"{name:<{width}} {said}" for name, said in shown.items())]
        if self.unknown_groups:
            lines.append(
                f"The calibration does not know the groups {named(self.unknown_groups)}, and keeps "
                f"nothing in them; it knows {named(self.groups)}."
            )
        return "\n".join([*lines, self._verdict, *[NOT_TOLD_APART] * (not self.told_apart)])

    @property
    def _verdict(self) -> str:
        if self.untested:
            return UNTESTED
        said = "The promise fails" if self.fails else "Nothing speaks against the promise"
        return f"{said} (p = {self.p_value:.2g} if it held)."


def evaluate_claims(
    calibration: Calibration, answers: Iterable[AnnotatedAnswer], *, level: float = 0.95
) -> ClaimEvaluation:
    """Measure what the threshold does to annotated answers that it was not made from.

    Raises ValueError where there is no answer whose claims are annotated, where an id occurs twice
    or is one of the calibration's, and for a level that is not between 0 and 1.
    """
    check_level(level)
    given = list(answers)
    _check_new(calibration, given)
    known = [answer for answer in given if answer.factual and answer.annotated]
    if not known:
        raise ValueError(
            f"none of {len(given)} answers has claims that are all annotated; annotate some"
        )
    left_out = len(given) - len(known)
    whole = replace(
        _measured(calibration, known, level, None),
        left_out=left_out,
        groups=calibration.groups,
        told_apart=calibration.n_without_id == 0 and all(a.id is not None for a in known),
    )
    if not calibration.by_group:
        return whole
    merged = calibration.merge_groups or {}
    members: dict[str | None, list[AnnotatedAnswer]] = {}
    for answer in known:
        name = answer.group
        members.setdefault(name if name is None else merged.get(name, name), []).append(answer)
    by_group = {
        group: _measured(calibration, members[group], level, group)
        for group in sorted(members, key=str)
    }
    worst = min(of.p_value for of in by_group.values())
    return replace(whole, p_value=min(1.0, len(by_group) * worst), by_group=by_group)


def _check_new(calibration: Calibration, given: Sequence[AnnotatedAnswer]) -> None:
    ids = Counter(answer.id for answer in given if answer.id is not None)
    for id, times in ids.items():
        if id in calibration.ids:
            raise ValueError(
                f"answer {id!r} has the id of one that the calibration was made from; evaluate on "
                "answers that it did not look at"
            )
        if times > 1:
            raise ValueError(
                f"answer id {id!r} occurs {times} times; an answer counts once, so remove the "
                "repetitions"
            )


def _measured(
    calibration: Calibration,
    known: Sequence[AnnotatedAnswer],
    level: float,
    group: str | None,
) -> ClaimEvaluation:
    share = share_of(calibration)
    keeps = [calibration.keep(answer.relevance, answer.group) for answer in known]
    facts = [np.array([f is True for f in answer.factual]) for answer in known]
    claims = np.array([len(f) for f in facts])
    kept = np.array([k.sum() for k in keeps])
    factual = np.array([f.sum() for f in facts])
    kept_factual = np.array([(k & f).sum() for k, f in zip(keeps, facts, strict=True)])
    right = kept_factual * share.denominator >= kept * share.numerator
    one = np.ones(len(known))
    said, some = kept > 0, factual > 0
    factuality = cluster_interval(right, one, level)
    p_value = 1.0  # of a filter that keeps nothing
    if calibration.threshold(group) < math.inf:
        seen = Share(*factuality, n=len(known), effective_n=len(known))
        p_value = promise_p_value(calibration, seen, group)
    return ClaimEvaluation(
        target=float(1 - exact_alpha(calibration.alpha)),
        n_answers=len(known),
        left_out=0,
        factuality=factuality,
        said_factuality=cluster_interval(right & said, said, level),
        empty=cluster_interval(~said, one, level),
        kept=cluster_interval(kept / claims, one, level),
        kept_factual=cluster_interval(kept_factual[some] / factual[some], one[some], level),
        p_value=p_value,
        share=float(share),
    )
