"""Whether a calibration's guarantee can be trusted for the queries at hand, and if not, why.

m1 is the share of queries with a kept snippet and m2 the mean share of a query's snippets that is
kept (Geissler et al. 2026, arXiv 2605.05244, section 3.2). They need no judgements. As

    m1 = P(a relevant snippet is kept) + P(only irrelevant ones are kept),

it is not coverage and has no target of 1 − α. Exchangeability implies that m1 of new queries is
that of the judged ones, up to chance (`theory/exchangeability.py`).
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_subject
from conformal_retrievers.calibration.subjects import RETRIEVED
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.evaluation.diagnosis import Band, Diagnosis, SweepPoint, Ties
from conformal_retrievers.evaluation.evaluate import evaluation_of
from conformal_retrievers.evaluation.findings import findings
from conformal_retrievers.evaluation.measures import Columns, guaranteed, shares
from conformal_retrievers.theory import exchangeability
from conformal_retrievers.theory.intervals import Interval, auc, cluster_interval

ALPHAS = tuple(k / 40 for k in range(1, 21))  # 0.025, 0.05, … 0.5


def diagnose(
    calibration: Calibration,
    scored: Iterable[ScoredQuery],
    *,
    reference: Iterable[ScoredQuery] | None = None,
    level: float = 0.95,
) -> Diagnosis:
    """Diagnose whether a calibration's guarantee can be trusted for queries that are new to it.

    Parameters
    ----------
    calibration
        From `calibrate` or `Calibration.load`, about snippets or sentences.
    scored
        From `score_queries`; not judged if none has a relevant snippet, as in a filter log.
    reference
        Queries like the calibration's, whose lowest scores stand in by default. The bands of m2,
        and of m1 by group, need it.
    level
        Confidence of every interval, band and test, in (0, 1).

    Raises
    ------
    ValueError
        For no query, and for an id that occurs twice or belongs to the calibration.
    """
    check_subject(calibration, *RETRIEVED)
    new = Columns.of(scored, calibration)
    known = None if reference is None else Columns.of(reference, calibration, "reference")
    evaluation = evaluation_of(calibration, new, level)
    within, over = _aucs(new, level)
    of_m1, of_m2 = _bands(calibration, new, known, level)
    d = Diagnosis(
        calibration=calibration,
        level=level,
        evaluation=evaluation,
        m1_band=of_m1,
        m2_band=of_m2,
        comparison=_comparison(calibration, new, known),
        auc_within=within,
        auc_over=over,
        ties=_ties(calibration, new),
        sweep=_sweep(calibration, new, known, level),
    )
    return replace(d, findings=findings(d))


def _comparison(
    calibration: Calibration, new: Columns, reference: Columns | None
) -> exchangeability.Comparison | None:
    lowest, passed = _reference_lowest(calibration, reference)
    scored = np.isfinite(new.lowest)
    if not (len(lowest) and scored.any()):
        return None
    kept = int(np.count_nonzero((new.lowest <= new.thresholds(calibration)) & scored))
    return exchangeability.two_sample_test(
        lowest, new.lowest[scored], None if passed is None else (passed, kept)
    )


def _aucs(queries: Columns, level: float) -> tuple[Interval, float]:
    """Return the mean AUC of the queries that have both kinds of snippets, and that over all."""
    scores, relevant = queries.passed_scores, queries.relevant
    parts = np.split(np.arange(len(scores)), np.cumsum(queries.sizes)[:-1])
    aucs = np.array([auc(scores[p][relevant[p]], scores[p][~relevant[p]]) for p in parts])
    within = aucs[~np.isnan(aucs)]
    pooled = auc(scores[relevant], scores[~relevant])
    return cluster_interval(within, np.ones(len(within)), level), pooled


def _ties(calibration: Calibration, queries: Columns) -> Ties:
    scored = queries.passed_scores[~np.isnan(queries.passed_scores)]
    thresholds = queries.thresholds(calibration)[queries.query_of]
    equal = int(np.count_nonzero(queries.passed_scores == thresholds))
    return Ties(len(scored), len(np.unique(scored)), equal / max(1, len(scored)))


def _sweep(
    calibration: Calibration, queries: Columns, reference: Columns | None, level: float
) -> tuple[SweepPoint, ...]:
    """Return a point for each alpha and for the calibration's own."""

    def point(c: Calibration) -> SweepPoint:
        measured = shares(queries.counts(queries.keeps(c)), level)
        return SweepPoint(
            c.alpha,
            None if c.by_group else c.threshold(),
            measured["m1"].estimate,
            measured["m2"].estimate,
            measured["removal"].estimate,
            *_bands(c, queries, reference, level),
            measured[guaranteed(c)].interval,
        )

    return tuple(point(calibration.at(alpha)) for alpha in possible_alphas(calibration, ALPHAS))


def possible_alphas(calibration: Calibration, alphas: Iterable[float]) -> list[float]:
    """Return some alphas and the calibration's own, ascending, if delta and gate allow them."""
    least = calibration.gate.alpha if calibration.gate else 0.0
    chosen = sorted(alpha for alpha in {*alphas, calibration.alpha} if alpha > least)
    if calibration.delta is None or calibration.by_group:
        return chosen
    units = calibration.units()
    return [a for a in chosen if units.n >= units.n_needed(a, calibration.delta)]


def _bands(
    calibration: Calibration, queries: Columns, reference: Columns | None, level: float
) -> tuple[Band | None, Band | None]:
    """Return the bands of m1 and m2 for queries that are exchangeable with the reference.

    They are about the queries that a gate lets pass: the share of unanswerable ones may differ.
    """
    share = float(queries.passed.mean())
    n_scored = int(np.count_nonzero(np.isfinite(queries.lowest)))
    lowest, passed = _reference_lowest(calibration, reference)
    one = two = None
    if n_scored and len(lowest) and passed is not None:
        one = _times(share, exchangeability.m1_band(passed, len(lowest), n_scored, level))
    n_new = int(np.count_nonzero(queries.passed & (queries.sizes > 0)))
    if reference is not None and n_new:
        kept = reference.count(reference.keeps(calibration))
        some = reference.passed & (reference.sizes > 0)
        two = exchangeability.m2_band(kept[some] / reference.sizes[some], n_new, level)
        two = two and _times(share, two)
    return one, two


def _times(share: float, band: Band) -> Band:
    return share * band[0], share * band[1]


def _reference_lowest(
    calibration: Calibration, reference: Columns | None
) -> tuple[NDArray[np.float64], int | None]:
    """Return the lowest scores (N,) to compare queries with, and how many of them are kept.

    They are those of the reference, or else of the calibration's own queries. The number is None
    for a calibration by group, which does not record the group of each lowest score.
    """
    if reference is not None:
        scored = np.isfinite(reference.lowest)
        kept = reference.lowest <= reference.thresholds(calibration)
        return reference.lowest[scored], int(np.count_nonzero(kept & scored))
    lowest = np.array(calibration.lowest_scores)
    if calibration.by_group:
        return lowest, None
    return lowest, int(np.count_nonzero(lowest <= calibration.threshold()))
