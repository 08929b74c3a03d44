"""Calibrating: score judged queries, and take the threshold from their relevant snippets."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import with_retrieval
from conformal_retrievers.calibration.guarantees import Guarantee, check_guarantee, check_relative
from conformal_retrievers.calibration.subjects import OnUnscorable
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.scoring.scorer import (
    Scorer,
    check_not_fitted_on,
    check_scorer,
    judged_queries,
    provenance_of,
    relative_to_query,
    score_queries,
)
from conformal_retrievers.theory.ranks import exact_alpha


def calibrate(
    judged: Iterable[JudgedQuery],
    scorer: Scorer,
    *,
    alpha: float,
    guarantee: Guarantee = "query-recall",
    delta: float | None = None,
    by_group: bool = False,
    merge_groups: Mapping[str, str] | None = None,
    count_missed: bool = False,
    on_unscorable: OnUnscorable = "raise",
    retrieval: Mapping[str, JsonValue] | None = None,
    labels: Mapping[str, JsonValue] | None = None,
    progress: bool = False,
) -> Calibration:
    """Score judged queries and return the calibration that their relevant snippets give.

    Parameters
    ----------
    judged : queries with their retrieved snippets and a judgement for each
    scorer : scores the snippets of a query; lower = more relevant
    alpha : miscoverage rate in (0, 1); the guarantee holds at 1 − alpha
    guarantee : what 1 − alpha is a probability of: "query-recall", "snippet", "all" or "any"
    delta : share of calibrations, in (0, 1), that may fall short; None: it holds on average
    by_group : whether it holds within each group of queries (`JudgedQuery.group`)
    merge_groups : small groups that share a threshold: from the name of a group to a common name
    count_missed : whether relevant snippets that were not retrieved count as dropped
    on_unscorable : "raise" refuses a relevant snippet without a score (NaN); "keep" counts it as
        kept, as the filter keeps it
    retrieval : facts about the retrieval ("retriever", "k", chunking), written into the file
    labels : facts about the judgements (source, prompt, audit), written into the file
    progress : whether to show a progress bar

    Returns
    -------
    Calibration
        It is saved with `save` and filters in a `ConformalFilter` with the same scorer.

    Raises
    ------
    ValueError
        As in `Calibration.from_scores`, for a query that the scorer was fitted on, and for queries
        that were retrieved by different retrievers or at different depths.

    Warns
    -----
    UserWarning
        If the threshold would not drop a single snippet of the judged queries.

    Notes
    -----
    The threshold is the smallest calibration score v with Σ_{A_i ≤ v} m_i ≥ (1 − α)(Σ m_i + 1), see
    `theory/ranks.py` (Angelopoulos et al. 2024, arXiv 2208.02814).
    """
    exact_alpha(alpha)  # before anything is paid for
    check_scorer(scorer)
    check_guarantee(guarantee, delta)
    check_relative(guarantee, relative_to_query(scorer), scorer.name)
    judged = judged_queries(judged)
    check_not_fitted_on(scorer, judged)
    retrieval = with_retrieval(judged, retrieval)
    scored = score_queries(scorer, judged, progress=progress)
    calibration = Calibration.from_scores(
        scored,
        alpha=alpha,
        scorer=scorer.name,
        guarantee=guarantee,
        delta=delta,
        by_group=by_group,
        merge_groups=merge_groups,
        count_missed=count_missed,
        on_unscorable=on_unscorable,
        relative_to_query=relative_to_query(scorer),
        scorer_provenance=provenance_of(scorer),
        retrieval=retrieval,
        labels=labels,
    )
    _warn_if_nothing_drops(calibration, scored)
    return calibration


def _warn_if_nothing_drops(calibration: Calibration, scored: Sequence[ScoredQuery]) -> None:
    """Warn if no score of the queries is above a finite threshold."""
    with_threshold = [q for q in scored if calibration.threshold(q.group) < math.inf]
    irrelevant = [q.scores[~q.relevant] for q in with_threshold]
    if np.isnan(np.concatenate([np.empty(0), *irrelevant])).all():
        return  # nothing should have been dropped
    if all(calibration.keep(q.scores, q.group).all() for q in with_threshold):
        warnings.warn(
            f"the threshold drops none of the snippets of the judged queries: no score of "
            f"{calibration.scorer!r} is above it at alpha = {calibration.alpha:g}. Raise alpha, or "
            "use a scorer that separates relevant snippets better",
            UserWarning,
            stacklevel=3,
        )
