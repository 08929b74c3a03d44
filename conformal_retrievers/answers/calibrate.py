"""From the scans of questions to a calibration about answers.

unchanged   N of every question: the answer is to be the one from all snippets
right       N of the questions that are right from all snippets: the answer is to be right. What
            follows for all: P(right from the kept) ≥ (1 − α) P(right from all)
with count_wrong   N of every question, +inf for those that are wrong from all: 1 − α is the
            share of all questions that are to be right
"""

from collections.abc import Iterable

import numpy as np

from conformal_retrievers.answers.asked import Answer
from conformal_retrievers.answers.same import Same
from conformal_retrievers.answers.scan import Expected, Scans, scan_answers
from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.fitting import provenance_with
from conformal_retrievers.calibration.record import AnswerDetails, Choice
from conformal_retrievers.calibration.reduced import lowest_scores
from conformal_retrievers.calibration.subjects import ANSWERS
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.scoring.scorer import Scorer, relative_to_query


def calibrate_answers(
    queries: Iterable[JudgedQuery],
    answer: Answer,
    *,
    alpha: float,
    expected: Expected | None = None,
    same: Same | None = None,
    scorer: Scorer | None = None,
    chain: str | None = None,
    delta: float | None = None,
    by_group: bool = False,
    count_wrong: bool = False,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
) -> Calibration:
    """Return the calibration that a chain's answers give, for the same filters as any other.

    Without `expected`, a filter keeps snippets from which the chain's answer is the one from all of
    them; with it, from which the answer is right, if it is right from all of them. It holds with
    probability ≥ 1 − alpha over new questions, for this chain, retriever and scorer. No snippet
    needs to be judged.

    Parameters
    ----------
    queries, answer, expected, same, scorer, chain, concurrency, cache, progress
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
    """
    scans = scan_answers(
        queries,
        answer,
        expected=expected,
        same=same,
        scorer=scorer,
        chain=chain,
        concurrency=concurrency,
        cache=cache,
        progress=progress,
    )
    return calibrate_scans(
        scans, alpha=alpha, delta=delta, by_group=by_group, count_wrong=count_wrong
    )


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
    failing = [scan for scan in scans.scans if not scan.levels[0].same]
    leaves_out = scans.right and not count_wrong
    used = [scan for scan in scans.scans if not leaves_out or scan.levels[0].same]
    if not used:
        raise ValueError(
            f"the chain is right in none of {len(failing)} questions, all snippets given; check "
            "the references, the comparison and the chain"
        )
    of_all = ScoredQueries(
        np.concatenate([scan.scores for scan in scans.scans]),
        np.zeros(sum(len(scan.scores) for scan in scans.scans), dtype=np.bool_),
        np.cumsum([0, *[len(scan.scores) for scan in scans.scans]]),
    )
    details = AnswerDetails(
        right=scans.right,
        count_wrong=count_wrong,
        same=scans.same,
        chain=scans.chain,
        n_failing=len(failing),
        n_needing_all=sum(
            scan.levels[0].same and scan.kept == len(scan.scores) > 0 for scan in scans.scans
        ),
        n_questions=len(scans.scans),
        failed=[*scans.failed],
    )
    choice = None
    if getattr(scans.scorer, "prior", None) and not getattr(scans.scorer, "fitted_on", None):
        choice = Choice(chosen=scans.scorer.name, given=[])
    queries = [scan.query for scan in scans.scans]
    return Calibration(
        alpha,
        "all",
        scans.scorer.name,
        ScoredQueries(
            [scan.needed for scan in used],
            np.ones(len(used), dtype=np.bool_),
            np.arange(len(used) + 1),
            ids=[scan.query.id for scan in used],
            groups=[scan.query.group for scan in used],
        ),
        subject=ANSWERS,
        delta=delta,
        by_group=by_group,
        n_without_relevant=len(scans.scans) - len(used),
        other_ids=tuple(
            scan.query.id for scan in failing if leaves_out and scan.query.id is not None
        ),
        lowest_scores=tuple(np.sort(lowest_scores(of_all)).tolist()),
        relative_to_query=relative_to_query(scans.scorer),
        scorer_provenance=provenance_with(scans.scorer, choice),
        retrieval=checks.with_retrieval(queries, None),
        details=details.model_dump(),
    )
