"""Whether a calibration's guarantee can be trusted for the queries at hand, and if not, why.

m1 is the share of queries with a kept snippet and m2 the mean share of a query's snippets that is
kept (Geissler et al. 2026, arXiv 2605.05244, section 3.2). They need no judgements. With some, m1
splits into two parts,

    m1 = P(a relevant snippet is kept) + P(only irrelevant ones are kept),

so it is not coverage and has no target of 1 − α: it falls when relevant snippets are missing from
the K retrieved, and rises when irrelevant ones pass. Exchangeability implies that m1 of new queries
is that of the judged ones, up to chance (`theory/exchangeability.py`).

Without judgements `diagnose` compares new queries with the calibration's; with judgements it
measures coverage too. `findings.py` has the rules and the words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.evaluation.columns import Columns
from conformal_retrievers.evaluation.diagnosis import (
    Diagnosis,
    GroupRow,
    Judgements,
    ScoreQuality,
)
from conformal_retrievers.evaluation.findings import findings
from conformal_retrievers.evaluation.measures import END_TO_END, Share, shares
from conformal_retrievers.evaluation.sweeps import (
    ALPHAS,
    over_alpha,
    over_depth,
    reference_lowest,
    sweep_point,
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
    calibration : Calibration
    scored : iterable of ScoredQuery
        The queries, scored by the calibration's scorer, in the retriever's order. If none of them
        has a known relevant snippet, as in a filter log, they count as not judged.
    reference : iterable of ScoredQuery, optional
        Queries like those that were calibrated on, to compare with; by default the calibration's
        own lowest scores. It takes a reference to have a band for m2, for m1 and m2 by depth, and
        for m1 if thresholds differ by group.
    alphas : sequence of float
        Swept together with the calibration's own; those that its delta cannot reach are left out.
    level : float
        Confidence of every interval, band and test.

    Returns
    -------
    Diagnosis

    Raises
    ------
    ValueError
        For no query, an id that occurs twice or belongs to the calibration, or a level or an alpha
        outside (0, 1).

    """
    check_level(level)
    new = Columns.of(scored, calibration)
    known = (
        None
        if reference is None
        else Columns.of(reference, calibration, name="reference", held_out=False)
    )
    keeps = new.keeps(calibration)
    thresholds = new.thresholds(calibration)
    measured = shares(new.counts(keeps), level, misses_known=False)
    own = sweep_point(calibration, new, known, level)
    groups = tuple(
        _group_row(calibration, new, keeps, level, name)
        for name in sorted({g for g in new.groups.tolist() if g is not None})
    )
    d = Diagnosis(
        calibration=calibration,
        level=level,
        n_queries=new.n,
        n_snippets=len(new.scores),
        m1=measured["m1"].interval,
        m2=measured["m2"].interval,
        removal=measured["removal"].estimate,
        keep_all=float(np.mean(np.isposinf(thresholds))),
        keep_none=float(np.mean(np.isneginf(thresholds))),
        held_out_verified=not new.judged or new.held_out_from(calibration),
        m1_band=own.m1_band,
        m2_band=own.m2_band,
        comparison=_comparison(calibration, new, known),
        judgements=_judgements(calibration, new, keeps, level, groups) if new.judged else None,
        scores=_score_quality(calibration, new),
        sweep=over_alpha(calibration, new, known, alphas, level),
        depths=over_depth(calibration, new, known, level),
        groups=groups,
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
    queries: Columns,
    keeps: NDArray[np.bool_],
    level: float,
    groups: Sequence[GroupRow],
) -> Judgements:
    misses_known = calibration.count_missed or bool(queries.missed.any())
    measured = shares(queries.counts(keeps), level, misses_known=misses_known)
    relevant_kept = queries.count(keeps & queries.relevant)
    irrelevant_kept = queries.count(keeps & ~queries.relevant)
    if calibration.by_group:
        tested = [row.p_value for row in groups if row.p_value is not None]
        p_value = min([1.0, *(len(tested) * p for p in tested)])
    else:
        p_value = coverage_p_value(calibration, _guaranteed(calibration, measured))
    within, over = _aucs(queries, level)
    return Judgements(
        n_measured=_n_measured(calibration, queries),
        n_relevant=int(queries.relevant.sum()),
        n_missed=int(queries.missed.sum()),
        recall_at_k=measured["recall@K"].interval,
        coverage=measured[calibration.guarantee].interval,
        end_to_end=measured[END_TO_END + calibration.guarantee].interval,
        p_value=p_value,
        relevant_kept=float(np.mean(relevant_kept > 0)),
        only_irrelevant=float(np.mean((relevant_kept == 0) & (irrelevant_kept > 0))),
        irrelevant_share=_ratio(int(irrelevant_kept.sum()), int(keeps.sum())),
        auc_within=within,
        auc_over=over,
    )


def _guaranteed(calibration: Calibration, measured: dict[str, Share]) -> Share:
    """Return the coverage that the guarantee is about: of retrieved snippets, or end to end."""
    return measured[(END_TO_END if calibration.count_missed else "") + calibration.guarantee]


def _n_measured(calibration: Calibration, queries: Columns) -> int:
    known = queries.count(queries.relevant) + queries.missed * calibration.count_missed
    return int(np.count_nonzero(known))


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
    own = [(q.scores == calibration.threshold(q.group)).sum() for q in calibration.queries]
    return ScoreQuality(
        n_scores=len(scored),
        distinct=len(np.unique(scored)),
        at_threshold=_ratio(int((queries.scores == thresholds).sum()), len(scored)),
        calibration_ties=_ratio(int(sum(own)), calibration.n_relevant),
        unscorable=_ratio(len(queries.scores) - len(scored), len(queries.scores)),
    )


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _group_row(
    calibration: Calibration,
    queries: Columns,
    keeps: NDArray[np.bool_],
    level: float,
    group: str,
) -> GroupRow:
    chosen = queries.groups == group
    members, kept = queries.only(chosen), keeps[chosen[queries.query_of]]
    misses_known = calibration.count_missed or bool(queries.missed.any())
    measured = shares(members.counts(kept), level, misses_known=misses_known)
    recall = coverage = p_value = None
    if queries.judged:
        share = _guaranteed(calibration, measured)
        recall, coverage = measured["recall@K"].interval, share.interval
        tested = verdict_on(calibration, share, group if calibration.by_group else None)
        p_value = None if tested is None else tested.p_value
    return GroupRow(
        group=group,
        threshold=calibration.threshold(group),
        n_queries=members.n,
        n_measured=_n_measured(calibration, members) if queries.judged else 0,
        m1=measured["m1"].interval,
        m2=measured["m2"].interval,
        removal=measured["removal"].estimate,
        recall_at_k=recall,
        coverage=coverage,
        p_value=p_value,
    )
