"""What a filter of claims does to annotated answers: factuality, and what it costs.

An answer of which nothing is kept counts as factual. A small alpha can therefore look perfect by
saying nothing, so the share of empty answers and the share of claims kept stand beside factuality.
The answer is the unit of every interval.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from conformal_retrievers.claims.answers import AnnotatedAnswer
from conformal_retrievers.claims.calibration import ClaimCalibration
from conformal_retrievers.conformal import Interval, cluster_interval, exact_share


@dataclass(frozen=True)
class ClaimEvaluation:
    """Shares measured on annotated answers, each with its 95 % interval over answers.

    `factuality`: answers whose kept claims are all factual (or a share, for a calibration with
    `share`), empty ones among them; `said_factuality`: the same of the answers that are not empty;
    `empty`: answers of which nothing is kept; `kept`: mean share of an answer's claims that is
    kept, and `kept_factual` of those that are factual. An estimate is nan where no answer has what
    it is a share of. `left_out` counts answers without claims or with one that is not annotated.
    """

    target: float
    n_answers: int
    left_out: int
    factuality: Interval
    said_factuality: Interval
    empty: Interval
    kept: Interval
    kept_factual: Interval

    def __str__(self) -> str:
        rows = [
            ("factual", self.factuality),
            ("factual, of those not empty", self.said_factuality),
            ("empty answers", self.empty),
            ("claims kept", self.kept),
            ("factual claims kept", self.kept_factual),
        ]
        head = f"{self.n_answers} answers, {self.left_out} left out; target {self.target:.1%}"
        return "\n".join([head, *(f"{name:<28} {interval}" for name, interval in rows)])


def evaluate_claims(
    calibration: ClaimCalibration, answers: Iterable[AnnotatedAnswer], *, level: float = 0.95
) -> ClaimEvaluation:
    """Measure what the threshold does to annotated answers that it was not made from.

    Raises ValueError where there is no answer whose claims are annotated.
    """
    given = list(answers)
    known = [answer for answer in given if answer.factual and answer.annotated]
    if not known:
        raise ValueError(
            f"none of {len(given)} answers has claims that are all annotated; annotate some"
        )
    share = exact_share(calibration.share)
    keeps = [calibration.keep(answer.relevance, answer.group) for answer in known]
    facts = [np.array([f is True for f in answer.factual]) for answer in known]
    claims = np.array([len(f) for f in facts])
    kept = np.array([k.sum() for k in keeps])
    factual = np.array([f.sum() for f in facts])
    kept_factual = np.array([(k & f).sum() for k, f in zip(keeps, facts, strict=True)])
    right = kept_factual * share.denominator >= kept * share.numerator
    one = np.ones(len(known))
    said, some = kept > 0, factual > 0
    return ClaimEvaluation(
        target=1 - calibration.alpha,
        n_answers=len(known),
        left_out=len(given) - len(known),
        factuality=cluster_interval(right, one, level),
        said_factuality=cluster_interval(right & said, said, level),
        empty=cluster_interval(~said, one, level),
        kept=cluster_interval(kept / claims, one, level),
        kept_factual=cluster_interval(kept_factual[some] / factual[some], one[some], level),
    )
