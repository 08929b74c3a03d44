"""From the scans of questions to a calibration about answers.

unchanged   N of every question: the answer is to be the one from all snippets
right       N of the questions whose first answer from all snippets is right: it is to stay so.
            What follows for all: P(right from the kept) ≥ (1 − α) P(right from all)
with count_wrong   N of every question, +inf for those that are wrong from all: 1 − α is the
            share of all questions that are to be right
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from typing_extensions import Unpack

from conformal_retrievers.answers.asked import Answer, Asked, AskOptions
from conformal_retrievers.answers.scan import Level, Scan, Scans, scans_of
from conformal_retrievers.answers.wording import say
from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.file_schema import Choice
from conformal_retrievers.calibration.fitting import passing, provenance_with
from conformal_retrievers.calibration.subjects import ANSWERS
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.scoring.hits import RankScorer
from conformal_retrievers.scoring.scorer import Scorer, relative_to_query


def calibrate_answers(
    queries: Iterable[JudgedQuery],
    answer: Answer,
    *,
    alpha: float,
    scorer: Scorer | None = None,
    delta: float | None = None,
    by_group: bool = False,
    count_wrong: bool = False,
    **options: Unpack[AskOptions],
) -> Calibration:
    """Return the calibration that a chain's answers give, for the same filters as any other.

    Without `expected`, a filter keeps snippets from which the chain's answer is the one from all of
    them; with it, from which the answer is right, if it is right from all of them. It holds with
    probability ≥ 1 − alpha over new questions, for this chain, retriever and scorer. No snippet
    needs to be judged.

    Parameters
    ----------
    queries, answer, scorer, options
        As in `scan_answers`.
    alpha, delta, by_group
        As in `calibrate`; the group is that of a query.
    count_wrong
        Whether questions that are wrong from all snippets count, so that 1 − alpha is of all
        questions.

    Raises
    ------
    TypeError, ValueError
        As `scan_answers`, and as `calibrate` for alpha, delta and by_group; for `count_wrong`
        without `expected`; and if no question is right from all snippets.

    Warns
    -----
    UserWarning
        If alpha is above 0.5, which looks like the share to be kept.
    """
    asked = Asked(queries, answer, **options)
    rule: Any = {"alpha": alpha, "delta": delta, "by_group": by_group, "count_wrong": count_wrong}
    # Before anything is paid for: refuses what would be refused afterwards.
    needless = (Level(-math.inf, "", True),)
    scans = tuple(Scan(query, np.zeros(0), "", (), needless) for query in asked.queries)
    calibrate_scans(Scans(scans, RankScorer(), "", asked.name, any(asked.references)), **rule)
    checks.warn_if_large(alpha=alpha, delta=delta)
    return calibrate_scans(scans_of(asked, scorer), **rule)


def calibrate_scans(
    scans: Scans,
    *,
    alpha: float,
    delta: float | None = None,
    by_group: bool = False,
    count_wrong: bool = False,
) -> Calibration:
    """Return the calibration of scans that are at hand; see `calibrate_answers`."""
    checks.check_flags(by_group=by_group, count_wrong=count_wrong)
    if count_wrong and not scans.right:
        raise ValueError("count_wrong is True without expected answers; give expected, too")
    wrong = [scan for scan in scans.scans if scan.wrong]
    used = [scan for scan in scans.scans if count_wrong or not scan.wrong]
    if len(wrong) == len(scans.scans):
        raise ValueError(say("right in none", n=len(wrong)))
    choice = None
    if getattr(scans.scorer, "prior", None) and not getattr(scans.scorer, "fitted_on", None):
        choice = Choice(chosen=scans.scorer.name, given=[])
    enough = [scan for scan in scans.scans if scan.needed < math.inf]  # their snippets, or fewer
    finite = [scan.scores[np.isfinite(scan.scores)] for scan in scans.scans]
    others = [] if count_wrong else [scan.query.id for scan in wrong]
    calibration = Calibration(
        alpha,
        "all",
        queries=ScoredQueries.of_units([s.needed for s in used], [s.query for s in used]),
        subject=ANSWERS,
        delta=delta,
        by_group=by_group,
        scorer=scans.scorer.name,
        n_without_relevant=len(others),
        other_ids=tuple(filter(None, others)),
        lowest_scores=tuple(sorted(float(scores.min()) for scores in finite if len(scores))),
        relative_to_query=relative_to_query(scans.scorer),
        scorer_provenance=provenance_with(scans.scorer, choice),
        retrieval=checks.with_retrieval([scan.query for scan in scans.scans], None),
        details={
            "right": scans.right,
            "count_wrong": count_wrong,
            "same": scans.same,
            "chain": scans.chain,
            "n_questions": len(scans.scans),
            "n_wrong": len(wrong),
            "n_contradicting": sum(scan.contradicts for scan in scans.scans),
            "n_needing_all": sum(scan.kept == len(scan.scores) > 0 for scan in enough),
            "n_needing_none": sum(scan.kept == 0 < len(scan.scores) for scan in enough),
            "failed": [f"{question:.60}" for question in scans.failed],
        },
    )
    if choice is None:
        return calibration
    found = [scan for scan in used if len(scan.scores)]
    kept = [int(calibration.keep(scan.scores, scan.query.group).sum()) for scan in found]
    choice = choice.model_copy(update=passing(calibration.alpha, kept) if kept else {})
    return replace(calibration, scorer_provenance=provenance_with(scans.scorer, choice))
