"""Whether a calibration's promise can be trusted for the queries at hand, and if not, why.

m1 is the share of queries of which anything is kept and m2 the mean share of a query's snippets
that is kept (Geissler et al. 2026, arXiv 2605.05244, section 3.2). They need no judgements. With
some, m1 falls into two parts,

    m1 = P(a relevant snippet is kept) + P(only irrelevant ones are kept),

so that it is no coverage, and 1 − α is not what it should be: it falls when relevant snippets are
missing from the K retrieved, and rises when irrelevant ones pass. What exchangeability does say is
that m1 of new queries is that of the judged ones, up to chance (`exchangeability.py`).

Without judgements `diagnose` holds new queries against the calibration; with judgements it measures
coverage too, and says what a deviation comes from. `findings.py` has the rules and the words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.evaluation.columns import Columns
from conformal_retrievers.evaluation.findings import Finding, findings, verdict
from conformal_retrievers.evaluation.measures import END_TO_END, Share, shares
from conformal_retrievers.evaluation.sweeps import (
    ALPHAS,
    Band,
    DepthPoint,
    SweepPoint,
    over_alpha,
    over_depth,
    reference_lowest,
    sweep_point,
)
from conformal_retrievers.evaluation.verdict import promise_p_value, verdict_on
from conformal_retrievers.filtering import Filtered
from conformal_retrievers.theory.exchangeability import Comparison, two_sample_test
from conformal_retrievers.theory.intervals import Interval, auc, check_level, cluster_interval

# --- values ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judgements:
    """What judged queries say: shares over queries, with intervals.

    `coverage` counts relevant snippets that were retrieved, `end_to_end` all known ones, both in
    the sense of the calibration's guarantee; the latter and `recall_at_k` are nan where no query
    has a missed one, unless the calibration counts missed ones: then nobody knows. `p_value` is the
    probability of a promised coverage this low, see `verdict.promise_p_value`, by group that of the
    worst group times the number of groups that were tested. `n_measured` queries have a relevant
    snippet that counts, the others no coverage. `relevant_kept` is the share of queries with a
    relevant snippet kept, `only_irrelevant` of those with irrelevant ones alone: the two add up to
    these queries' m1. `irrelevant_share` is that of irrelevant snippets among those kept.
    `auc_within` is the mean over queries of the probability that an irrelevant snippet scores above
    a relevant one, `auc_over` the same over snippets of all queries.
    """

    n_queries: int
    n_measured: int
    n_relevant: int
    n_missed: int
    recall_at_k: Interval
    coverage: Interval
    end_to_end: Interval
    p_value: float
    relevant_kept: float
    only_irrelevant: float
    irrelevant_share: float
    auc_within: Interval
    auc_over: float

    @property
    def m1(self) -> float:
        """The share of judged queries of which anything is kept."""
        return self.relevant_kept + self.only_irrelevant


@dataclass(frozen=True)
class ScoreQuality:
    """How fine the scores are: their number, how many differ, and the share at the threshold.

    `at_threshold` is the share of these scores that equal their threshold, `calibration_ties` the
    same of the calibration's relevant ones, `unscorable` the share of snippets without a score.
    """

    n_scores: int
    distinct: int
    at_threshold: float
    calibration_ties: float
    unscorable: float


@dataclass(frozen=True)
class GroupRow:
    """The queries of one group, at the calibration's alpha; `p_value` as in `Judgements`.

    Groups that the calibration merged are one. `p_value` is None where nothing is promised that
    could fail: in a group of which everything is kept.
    """

    group: str
    threshold: float
    n_queries: int
    n_measured: int
    m1: Interval
    m2: Interval
    removal: float
    recall_at_k: Interval | None
    coverage: Interval | None
    p_value: float | None


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found: numbers, findings in words with their evidence, and a verdict.

    `keep_all` is the share of queries without a threshold, of which everything is kept, `keep_none`
    of those with threshold −inf, of which nothing that has a score is. `told_apart` says whether
    ids tell judged queries from those that the calibration was made from; what was filtered, or
    scores alone, are taken for new. `m1_band` and `m2_band` are where exchangeable queries have
    them with probability `level`; `comparison` is None where nothing can be held against the
    queries, `judgements` where none is judged.
    """

    calibration: Calibration = field(repr=False)
    level: float
    n_queries: int
    n_snippets: int
    m1: Interval
    m2: Interval
    removal: float
    keep_all: float
    keep_none: float
    told_apart: bool
    m1_band: Band | None
    m2_band: Band | None
    comparison: Comparison | None
    judgements: Judgements | None
    scores: ScoreQuality
    sweep: tuple[SweepPoint, ...] = field(repr=False)
    depths: tuple[DepthPoint, ...] = field(repr=False)
    groups: tuple[GroupRow, ...] = field(repr=False)

    @property
    def promised_coverage(self) -> Interval | None:
        """Coverage of what the promise is about: retrieved snippets, or all where missed count."""
        if self.judgements is None:
            return None
        counted = self.calibration.count_missed
        return self.judgements.end_to_end if counted else self.judgements.coverage

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What there is to say, the problems first."""
        return findings(self)

    @property
    def fails(self) -> bool:
        """Whether there is a reason not to rely on the promise: a finding that is a problem."""
        return any(finding.severity == "problem" for finding in self.findings)

    @cached_property
    def verdict(self) -> str:
        """One paragraph: whether the promise can be trusted here, and the evidence."""
        return verdict(self)

    def __str__(self) -> str:
        marks = {"problem": "✗", "notice": "!", "fine": "✓"}
        lines = [f"{marks[f.severity]} {f.name}: {f.sentence}" for f in self.findings]
        return "\n".join([self.verdict, "", *lines])


# --- diagnosing -----------------------------------------------------------------------------------


def diagnose(
    calibration: Calibration,
    queries: Iterable[ScoredQuery | Filtered | ArrayLike],
    *,
    reference: Iterable[ScoredQuery | Filtered | ArrayLike] | None = None,
    alphas: Sequence[float] = ALPHAS,
    level: float = 0.95,
) -> Diagnosis:
    """Diagnose whether the calibration's promise can be trusted for queries it was not made from.

    A query is a `ScoredQuery`, judged; or what a filter made of it, a `Filtered`; or just the
    scores of its snippets (K,), in the retriever's order. The last two are not judged, nor are
    scored queries if not one has a known relevant snippet. Queries are held against the
    calibration's own lowest scores, or against `reference`: queries like those calibrated on. The
    calibration holds the lowest score of each query, which gives m1 its band at every alpha, but
    neither its other scores nor whose lowest it is: a band for m2 or by depth takes a reference,
    and so does one for m1 where thresholds differ by group.

    `alphas` are swept, together with the calibration's own; those that its delta cannot promise
    are left out. Raises ValueError where there is no query, level or an alpha is not in (0, 1), a
    query is one of the calibration's, or occurs twice;
    `CalibrationMismatch` for one that was filtered by another scorer.
    """
    check_level(level)
    given = list(queries)
    new = Columns.of("queries", given, calibration)
    known = None if reference is None else Columns.of("reference", reference, calibration)
    keeps = new.keeps(calibration)
    thresholds = new.thresholds(calibration)
    measured = shares(new.counts(keeps), level, misses_known=False)
    own = sweep_point(calibration, new, known, level)
    groups = _groups(calibration, new, keeps, level)
    return Diagnosis(
        calibration=calibration,
        level=level,
        n_queries=new.n,
        n_snippets=len(new.scores),
        m1=measured["m1"].interval,
        m2=measured["m2"].interval,
        removal=measured["removal"].estimate,
        keep_all=float(np.mean(np.isposinf(thresholds))),
        keep_none=float(np.mean(np.isneginf(thresholds))),
        told_apart=_told_apart(calibration, given),
        m1_band=own.m1_band,
        m2_band=own.m2_band,
        comparison=_comparison(calibration, new, known),
        judgements=(
            _judgements(calibration, new, keeps, level, groups) if new.judged.any() else None
        ),
        scores=_score_quality(calibration, new),
        sweep=over_alpha(calibration, new, known, alphas, level),
        depths=over_depth(calibration, new, known, level),
        groups=groups,
    )


def _told_apart(calibration: Calibration, queries: Sequence[object]) -> bool:
    """Return whether no scored query can be one of the calibration's without its id saying so."""
    scored = [query for query in queries if isinstance(query, ScoredQuery)]
    return not scored or (
        calibration.n_without_id == 0 and all(query.id is not None for query in scored)
    )


def _comparison(
    calibration: Calibration, new: Columns, reference: Columns | None
) -> Comparison | None:
    lowest, passed = reference_lowest(calibration, reference)
    scored = np.isfinite(new.lowest)
    if not (len(lowest) and scored.any()):
        return None
    kept = int(np.count_nonzero((new.lowest <= new.thresholds(calibration)) & scored))
    return two_sample_test(lowest, new.lowest[scored], None if passed is None else (passed, kept))


# --- what judgements say --------------------------------------------------------------------------


def _judgements(
    calibration: Calibration,
    queries: Columns,
    keeps: NDArray[np.bool_],
    level: float,
    groups: Sequence[GroupRow],
) -> Judgements:
    judged, keeps = queries.only(queries.judged), keeps[queries.judged[queries.query_of]]
    measured = _judged_shares(calibration, judged, keeps, level)
    relevant_kept = judged.count(keeps & judged.relevant)
    irrelevant_kept = judged.count(keeps & ~judged.relevant)
    within, over = _aucs(judged, level)
    return Judgements(
        n_queries=judged.n,
        n_measured=_n_measured(calibration, judged),
        n_relevant=int(judged.relevant_counts.sum()),
        n_missed=int(judged.missed.sum()),
        recall_at_k=measured["recall@K"].interval,
        coverage=measured[calibration.guarantee].interval,
        end_to_end=measured[END_TO_END + calibration.guarantee].interval,
        p_value=_p_value(calibration, _promised(calibration, measured), groups),
        relevant_kept=float(np.mean(relevant_kept > 0)),
        only_irrelevant=float(np.mean((relevant_kept == 0) & (irrelevant_kept > 0))),
        irrelevant_share=_ratio(int(irrelevant_kept.sum()), int(keeps.sum())),
        auc_within=within,
        auc_over=over,
    )


def _judged_shares(
    calibration: Calibration,
    judged: Columns,
    keeps: NDArray[np.bool_],
    level: float,
    *,
    misses_known: bool = False,
) -> dict[str, Share]:
    """Return the measures of judged queries; those of missed snippets are nan if none is known."""
    known = misses_known or calibration.count_missed or bool(judged.missed.any())
    return shares(judged.counts(keeps), level, misses_known=known)


def _promised(calibration: Calibration, measured: dict[str, Share]) -> Share:
    """Return the coverage that the promise is about: of those retrieved, or end to end."""
    return measured[(END_TO_END if calibration.count_missed else "") + calibration.guarantee]


def _p_value(calibration: Calibration, promised: Share, groups: Sequence[GroupRow]) -> float:
    """Return the p-value of the promise, by group that of the worst group (Bonferroni)."""
    if not calibration.by_group:
        return promise_p_value(calibration, promised)
    tested = [row.p_value for row in groups if row.p_value is not None]
    return min([1.0, *(len(tested) * p_value for p_value in tested)])


def _n_measured(calibration: Calibration, judged: Columns) -> int:
    """Return how many queries have a coverage, in the sense of the promise."""
    known = judged.relevant_counts + judged.missed * calibration.count_missed
    return int(np.count_nonzero(known))


def _aucs(queries: Columns, level: float) -> tuple[Interval, float]:
    """Return the mean AUC of the queries that have both kinds of snippets, and that over all."""
    ends = np.cumsum(queries.sizes)
    scores, relevant = queries.scores, queries.relevant
    parts = [slice(end - size, end) for end, size in zip(ends, queries.sizes, strict=True)]
    aucs = np.array([auc(scores[p][relevant[p]], scores[p][~relevant[p]]) for p in parts])
    within = aucs[~np.isnan(aucs)]
    pooled = auc(scores[relevant], scores[~relevant])
    return cluster_interval(within, np.ones(len(within)), level), pooled


# --- scores and groups ----------------------------------------------------------------------------


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


def _groups(
    calibration: Calibration, queries: Columns, keeps: NDArray[np.bool_], level: float
) -> tuple[GroupRow, ...]:
    names = sorted({g for g in queries.groups.tolist() if g is not None})
    return tuple(_group_row(calibration, queries, keeps, level, name) for name in names)


def _group_row(
    calibration: Calibration,
    queries: Columns,
    keeps: NDArray[np.bool_],
    level: float,
    group: str,
) -> GroupRow:
    chosen = queries.groups == group
    members, kept = queries.only(chosen), keeps[chosen[queries.query_of]]
    measured = shares(members.counts(kept), level, misses_known=False)
    recall = coverage = p_value = None
    judged = members.only(members.judged)
    if judged.n:
        known = _judged_shares(
            calibration,
            judged,
            kept[members.judged[members.query_of]],
            level,
            misses_known=bool(queries.missed.any()),
        )
        promised = _promised(calibration, known)
        recall, coverage = known["recall@K"].interval, promised.interval
        tested = verdict_on(calibration, promised, group if calibration.by_group else None)
        p_value = None if tested is None else tested.p_value
    return GroupRow(
        group=group,
        threshold=calibration.threshold(group),
        n_queries=members.n,
        n_measured=_n_measured(calibration, judged),
        m1=measured["m1"].interval,
        m2=measured["m2"].interval,
        removal=measured["removal"].estimate,
        recall_at_k=recall,
        coverage=coverage,
        p_value=p_value,
    )
