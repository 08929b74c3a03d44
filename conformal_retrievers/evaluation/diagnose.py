"""Whether a calibration's guarantee can be trusted for the queries at hand, and if not, why.

m1 is the share of queries with a kept snippet and m2 the mean share of a query's snippets that is
kept (Geissler et al. 2026, arXiv 2605.05244, section 3.2). They need no judgements. As

    m1 = P(a relevant snippet is kept) + P(only irrelevant ones are kept),

it is not coverage and has no target of 1 − α. Exchangeability implies that m1 of new queries is
that of the judged ones, up to chance (`theory/exchangeability.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_subject
from conformal_retrievers.calibration.subjects import FILTERED, RETRIEVED
from conformal_retrievers.evaluation import measures
from conformal_retrievers.evaluation.diagnosis import Band, Diagnosis, SweepPoint, Ties
from conformal_retrievers.evaluation.evaluate import evaluation_of
from conformal_retrievers.evaluation.findings import findings
from conformal_retrievers.evaluation.per_query_counts import Observed, alphas_of
from conformal_retrievers.theory import exchangeability
from conformal_retrievers.theory.intervals import cluster_interval


def diagnose(
    calibration: Calibration,
    scored: measures.Given,
    *,
    reference: measures.Given | None = None,
    level: float = 0.95,
) -> Diagnosis:
    """Diagnose whether a calibration's guarantee can be trusted for queries that are new to it.

    Print the result: a summary, then findings, each with its severity and what to do.

    Parameters
    ----------
    calibration
        From `calibrate` or `Calibration.load`, about snippets or sentences; also about answers,
        for queries that are not judged.
    scored
        Judged queries, or those of `score_queries`, as in `evaluate`; not judged if none has a
        relevant snippet, as in a filter log.
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
    check_subject(calibration, *FILTERED)
    queries = measures.checked(scored, calibration)
    if queries.relevant.any():  # a chain's answers say nothing about relevance
        check_subject(calibration, *RETRIEVED)
    like = None if reference is None else Observed.of(calibration, reference, "reference")
    new = Observed.of(calibration, queries)
    evaluation = evaluation_of(calibration, new.counts, queries, level=level)
    within = new.aucs[~np.isnan(new.aucs)]
    lowest, kept = _lowest(calibration, new, like)
    points = tuple(_sweep(calibration, new, like, lowest, kept, level))
    own = [point.alpha for point in points].index(calibration.alpha)
    scored, comparison = new.lowest[np.isfinite(new.lowest)], None
    if len(lowest) and len(scored):
        both = (kept[own], int(new.lowest_kept[own])) if kept else None
        comparison = exchangeability.two_sample_test(lowest, scored, both)
    before = calibration.empty_lists
    if like is not None:
        before = int(np.count_nonzero(like.counts.retrieved == 0)), len(like.counts.retrieved)
    d = Diagnosis(
        calibration=calibration,
        level=level,
        evaluation=evaluation,
        m1_band=points[own].m1_band,
        m2_band=points[own].m2_band,
        comparison=comparison,
        auc_within=cluster_interval(within, np.ones(len(within)), level),
        auc_over=new.auc_over,
        ties=Ties(new.n_scores, new.n_values, new.at_threshold / max(1, new.n_scores)),
        empty_before=before,
        sweep=points,
    )
    return replace(d, findings=findings(d))


def _lowest(
    calibration: Calibration, new: Observed, reference: Observed | None
) -> tuple[measures.Column, list[int]]:
    """Return the lowest scores (N,) of the reference, or else of the calibration's queries.

    Beside them is how many are kept at each alpha. This is empty for a calibration by group, which
    does not record the group of each lowest score.
    """
    if reference is not None:
        return reference.lowest[np.isfinite(reference.lowest)], reference.lowest_kept.tolist()
    lowest = np.array(calibration.lowest_scores, dtype=np.float64)
    return lowest, [int(np.count_nonzero(lowest <= t)) for t in new.thresholds if t is not None]


def _sweep(
    calibration: Calibration,
    new: Observed,
    reference: Observed | None,
    lowest: measures.Column,
    kept: Sequence[int],
    level: float,
) -> Iterator[SweepPoint]:
    """Yield a point for each alpha and for the calibration's own.

    The bands are about queries that are exchangeable with the reference, and that are not silenced,
    empty or kept for want of a score: the shares of these may differ.
    """
    c = new.counts
    passes, always = measures.passed(c), c.unscorable > 0
    n_always = int(np.count_nonzero(passes & always))
    n_scored = int(np.count_nonzero(passes & ~always & np.isfinite(new.lowest)))
    n_new = int(np.count_nonzero(passes & (c.retrieved > 0)))
    for i, alpha in enumerate(alphas_of(calibration)):
        counts = new.at(i)
        m1 = m2 = None
        if n_scored and len(lowest) and kept:
            m1 = exchangeability.m1_band(kept[i], len(lowest), n_scored, level)
            m1 = _of_all(m1, n_scored, len(always), n_always)
        if reference is not None and n_new:
            some = measures.passed(reference.counts) & (reference.counts.retrieved > 0)
            shares = reference.kept[i][some] / reference.counts.retrieved[some]
            m2 = exchangeability.m2_band(shares, n_new, level)
            m2 = m2 and _of_all(m2, n_new, int(np.count_nonzero(c.retrieved)))
        yield SweepPoint(
            alpha,
            new.thresholds[i],
            measures.estimate(counts, "m1"),
            measures.estimate(counts, "m2"),
            measures.estimate(counts, "removal"),
            m1,
            m2,
            measures.share(counts, measures.guaranteed(calibration), level).interval,
        )


def _of_all(band: Band, n: int, of: int, n_always: int = 0) -> Band:
    """Return the band of a mean over `of` queries from that over n; some are 1, the others 0."""
    low, high = (n / of * end + n_always / of for end in band)
    return low, high
