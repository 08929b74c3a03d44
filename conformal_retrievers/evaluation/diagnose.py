"""Whether a calibration's guarantee can be trusted for the queries at hand, and if not, why.

m1 is the share of queries with a kept snippet and m2 the mean share of a query's snippets that is
kept (Geissler et al. 2026, arXiv 2605.05244, section 3.2). They need no judgements. As

    m1 = P(a relevant snippet is kept) + P(only irrelevant ones are kept),

it is not coverage and has no target of 1 − α. Exchangeability implies that m1 of new queries is
that of the judged ones, up to chance (`theory/exchangeability.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_subject
from conformal_retrievers.calibration.subjects import SNIPPETS
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.evaluation.columns import Columns, QueryCounts
from conformal_retrievers.evaluation.diagnosis import (
    Diagnosis,
    GroupRow,
    Judgements,
    ScoreQuality,
)
from conformal_retrievers.evaluation.findings import findings
from conformal_retrievers.evaluation.measures import END_TO_END, Share, guaranteed, shares
from conformal_retrievers.evaluation.sweeps import (
    ALPHAS,
    bands,
    over_alpha,
    over_depth,
    reference_lowest,
)
from conformal_retrievers.evaluation.verdict import coverage_p_value, verdict_on
from conformal_retrievers.theory.exchangeability import Comparison, two_sample_test
from conformal_retrievers.theory.intervals import Interval, auc, check_level, cluster_interval


def diagnose(
    calibration: Calibration,
    scored: Iterable[ScoredQuery],
    *,
    reference: Iterable[ScoredQuery] | None = None,
    alphas: Sequence[float] = ALPHAS,
    level: float = 0.95,
) -> Diagnosis:
    """Diagnose whether a calibration's guarantee can be trusted for queries that are new to it.

    Parameters
    ----------
    calibration
        From `calibrate` or `Calibration.load`, about snippets.
    scored
        From `score_queries`; not judged if none has a relevant snippet, as in a filter log.
    reference
        Queries like the calibration's, whose lowest scores stand in by default. The bands of m2, of
        m1 by group and of both by depth need it.
    alphas
        Swept together with the calibration's own; those that its delta cannot reach are left out.
    level
        Confidence of every interval, band and test, in (0, 1).

    Returns
    -------
    Diagnosis
        Its `judgements` are None if no query has a known relevant snippet.

    Raises
    ------
    ValueError
        For no query, and for an id that occurs twice or belongs to the calibration.
    """
    check_subject(calibration, SNIPPETS)
    check_level(level)
    new = Columns.of(scored, calibration)
    known = None
    if reference is not None:
        known = Columns.of(reference, calibration, name="reference", held_out=False)
    counts, thresholds = new.counts(new.keeps(calibration)), new.thresholds(calibration)
    misses_known = calibration.count_missed or bool(new.missed.any())
    measured = shares(counts, level, misses_known=misses_known)
    groups = []
    for group, part in counts.by_group.items():
        if group is not None:
            of_group = shares(part, level, misses_known=misses_known)
            groups.append(_group_row(calibration, part, of_group, group, judged=new.judged))
    m1_band, m2_band = bands(calibration, new, known, level)
    d = Diagnosis(
        calibration=calibration,
        level=level,
        n_queries=len(new.sizes),
        n_snippets=len(new.scores),
        m1=measured["m1"].interval,
        m2=measured["m2"].interval,
        removal=measured["removal"].estimate,
        keep_all=float(np.mean(np.isposinf(thresholds))),
        keep_none=float(np.mean(np.isneginf(thresholds))),
        held_out_verified=not new.judged or new.held_out_from(calibration),
        m1_band=m1_band,
        m2_band=m2_band,
        comparison=_comparison(calibration, new, known),
        judgements=_judgements(calibration, counts, measured, groups, _aucs(new, level))
        if new.judged
        else None,
        scores=_score_quality(calibration, new),
        sweep=over_alpha(calibration, new, known, alphas, level),
        depths=over_depth(calibration, new, known, level),
        groups=tuple(groups),
    )
    return replace(d, findings=findings(d))


def _comparison(
    calibration: Calibration, new: Columns, reference: Columns | None
) -> Comparison | None:
    lowest, passed = reference_lowest(calibration, reference)
    scored = np.isfinite(new.lowest)
    if not (len(lowest) and scored.any()):
        return None
    kept = int(np.count_nonzero((new.lowest <= new.thresholds(calibration)) & scored))
    return two_sample_test(lowest, new.lowest[scored], None if passed is None else (passed, kept))


def _judgements(
    calibration: Calibration,
    counts: QueryCounts,
    measured: dict[str, Share],
    groups: Sequence[GroupRow],
    aucs: tuple[Interval, float],
) -> Judgements:
    if calibration.by_group:
        tested = [row.p_value for row in groups if row.p_value is not None]
        p_value = min([1.0, *(len(tested) * p for p in tested)])
    else:
        p_value = coverage_p_value(calibration, measured[guaranteed(calibration)])
    irrelevant_kept = counts.kept - counts.relevant_kept
    return Judgements(
        n_measured=_n_measured(calibration, counts),
        n_relevant=int(counts.relevant.sum()),
        n_missed=int(counts.missed.sum()),
        recall_at_k=measured["recall@K"].interval,
        coverage=measured[calibration.guarantee].interval,
        end_to_end=measured[END_TO_END + calibration.guarantee].interval,
        p_value=p_value,
        relevant_kept=float(np.mean(counts.relevant_kept > 0)),
        only_irrelevant=float(np.mean((counts.relevant_kept == 0) & (irrelevant_kept > 0))),
        irrelevant_share=_ratio(irrelevant_kept.sum(), counts.kept.sum()),
        auc_within=aucs[0],
        auc_over=aucs[1],
    )


def _n_measured(calibration: Calibration, counts: QueryCounts) -> int:
    return int(np.count_nonzero(counts.relevant + counts.missed * calibration.count_missed))


def _aucs(queries: Columns, level: float) -> tuple[Interval, float]:
    """Return the mean AUC of the queries that have both kinds of snippets, and that over all."""
    scores, relevant = queries.scores, queries.relevant
    parts = np.split(np.arange(len(scores)), np.cumsum(queries.sizes)[:-1])
    aucs = np.array([auc(scores[p][relevant[p]], scores[p][~relevant[p]]) for p in parts])
    within = aucs[~np.isnan(aucs)]
    pooled = auc(scores[relevant], scores[~relevant])
    return cluster_interval(within, np.ones(len(within)), level), pooled


def _score_quality(calibration: Calibration, queries: Columns) -> ScoreQuality:
    scored = queries.scores[~np.isnan(queries.scores)]
    thresholds = queries.thresholds(calibration)[queries.query_of]
    own = sum((q.scores == calibration.threshold(q.group)).sum() for q in calibration.queries)
    return ScoreQuality(
        n_scores=len(scored),
        distinct=len(np.unique(scored)),
        at_threshold=_ratio((queries.scores == thresholds).sum(), len(scored)),
        calibration_ties=_ratio(own, calibration.n_relevant),
        unscorable=_ratio(len(queries.scores) - len(scored), len(queries.scores)),
    )


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole else math.nan


def _group_row(
    calibration: Calibration,
    counts: QueryCounts,
    measured: dict[str, Share],
    group: str,
    *,
    judged: bool,
) -> GroupRow:
    share = measured[guaranteed(calibration)]
    tested = verdict_on(calibration, share, group if calibration.by_group else None)
    return GroupRow(
        group=group,
        threshold=calibration.threshold(group),
        n_queries=len(counts.retrieved),
        n_measured=_n_measured(calibration, counts) if judged else 0,
        m1=measured["m1"].interval,
        m2=measured["m2"].interval,
        removal=measured["removal"].estimate,
        recall_at_k=measured["recall@K"].interval if judged else None,
        coverage=share.interval if judged else None,
        p_value=tested.p_value if judged and tested is not None else None,
    )
