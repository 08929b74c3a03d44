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
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.calibration import Calibration
from conformal_retrievers.certify import beta_binomial_cdf
from conformal_retrievers.conformal import (
    Interval,
    cluster_interval,
    conformal_rank,
    effective_n,
    exact_alpha,
    wilson_interval,
)
from conformal_retrievers.exchangeability import Comparison, compare, m1_band, m2_band
from conformal_retrievers.filtering import CalibrationMismatch, Filtered
from conformal_retrievers.findings import Finding, findings, verdict
from conformal_retrievers.guarantees import Guarantee
from conformal_retrievers.judged import ScoredQuery
from conformal_retrievers.tolerance import binomial_cdf

ALPHAS = tuple(k / 40 for k in range(1, 21))  # 0.025, 0.05, … 0.5
MOST_DEPTHS = 25

Band = tuple[float, float]

# --- values ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepPoint:
    """The queries at one alpha: m1, m2 and removal, and with judgements the promised coverage.

    A band is where exchangeable queries have their m1 or m2, None where nothing tells.
    """

    alpha: float
    threshold: float | None
    m1: float
    m2: float
    removal: float
    m1_band: Band | None
    m2_band: Band | None
    coverage: Interval | None


@dataclass(frozen=True)
class DepthPoint:
    """The queries with the first k of their snippets alone; the threshold stays what it is."""

    k: int
    m1: float
    m2: float
    m1_band: Band | None
    m2_band: Band | None
    recall: Interval | None
    end_to_end: Interval | None


@dataclass(frozen=True)
class Judgements:
    """What judged queries say: shares over queries, with intervals.

    `coverage` counts relevant snippets that were retrieved, `end_to_end` all known ones, both in
    the sense of the calibration's guarantee; `p_value` is the probability of a promised coverage
    this low, if the promise holds exactly. `n_measured` queries have a relevant snippet that
    counts, the others no coverage. `relevant_kept` is the share of
    queries with a relevant snippet kept, `only_irrelevant` of those with irrelevant ones alone: the
    two add up to these queries' m1. `irrelevant_share` is that of irrelevant snippets among those
    kept. `auc_within` is the mean over queries of the probability that an irrelevant snippet scores
    above a relevant one, `auc_over` the same over snippets of all queries.
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
    """The queries of one group, at the calibration's alpha; `p_value` as in `Judgements`."""

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

    `keep_all` is the share of queries without a threshold, of which everything is kept. `m1_band`
    and `m2_band` are where exchangeable queries have them with probability `level`;
    `comparison` is None where nothing can be held against the queries, `judgements` where none is
    judged.
    """

    calibration: Calibration = field(repr=False)
    level: float
    n_queries: int
    n_snippets: int
    m1: Interval
    m2: Interval
    removal: float
    keep_all: float
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
    calibration's own lowest scores, or against `reference`: queries like those calibrated on, which
    a band for m2 or by depth takes, and one for m1 where thresholds differ by group.

    `alphas` are swept, together with the calibration's own; those that its delta cannot promise
    are left out. Raises ValueError where there is no query, level or an alpha is not in (0, 1), a
    query is one of the calibration's, has a weight or was judged in part; `CalibrationMismatch` for
    one that was filtered by another scorer.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level!r}; give a confidence between 0 and 1, such as 0.95")
    new = _Columns.of("queries", queries, calibration)
    known = None if reference is None else _Columns.of("reference", reference, calibration)
    keeps = new.keeps(calibration)
    judged = new.judged.any()
    m1, m2, removal = _shares(new, keeps)
    at_own_alpha = _sweep_point(calibration, new, known, level)
    comparison = _comparison(calibration, new, known)
    return Diagnosis(
        calibration=calibration,
        level=level,
        n_queries=new.n,
        n_snippets=len(new.scores),
        m1=wilson_interval(float(m1.mean()), new.n, level),
        m2=cluster_interval(m2, np.ones(len(m2)), level),
        removal=removal,
        keep_all=float(np.mean(np.isinf(new.thresholds(calibration)))),
        m1_band=at_own_alpha.m1_band,
        m2_band=at_own_alpha.m2_band,
        comparison=comparison,
        judgements=_judgements(calibration, new, keeps, level) if judged else None,
        scores=_score_quality(calibration, new),
        sweep=tuple(
            _sweep_point(calibration.at(alpha), new, known, level)
            for alpha in _feasible(calibration, alphas)
        ),
        depths=tuple(
            _depth_point(calibration, new, known, int(k), level) for k in _depths(new.sizes)
        ),
        groups=_groups(calibration, new, keeps, level),
    )


def _feasible(calibration: Calibration, alphas: Sequence[float]) -> list[float]:
    for alpha in alphas:
        exact_alpha(alpha)
    chosen = sorted({float(alpha) for alpha in (*alphas, calibration.alpha)})
    if calibration.delta is None or calibration.by_group:
        return chosen
    units = calibration.units()
    return [alpha for alpha in chosen if units.n >= units.n_needed(alpha, calibration.delta)]


def _depths(sizes: NDArray[np.intp]) -> list[int]:
    deepest = int(sizes.max(initial=0))
    if deepest <= MOST_DEPTHS:
        return list(range(1, deepest + 1))
    return sorted({round(k) for k in np.geomspace(1, deepest, MOST_DEPTHS).tolist()})


# --- queries as columns ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Columns:
    """n queries with S snippets in all, as columns: one entry a snippet, or one a query."""

    scores: NDArray[np.float64]  # (S,)
    relevant: NDArray[np.bool_]  # (S,)
    query_of: NDArray[np.intp]  # (S,)
    position: NDArray[np.intp]  # (S,), in the retriever's order
    sizes: NDArray[np.intp]  # (n,)
    missed: NDArray[np.intp]  # (n,)
    judged: NDArray[np.bool_]  # (n,)
    groups: NDArray[np.object_]  # (n,)

    @classmethod
    def of(cls, name: str, given: Iterable[object], calibration: Calibration) -> _Columns:
        items = list(given)
        if not items:
            raise ValueError(f"{name} is empty; give the queries to look at")
        ids = calibration.ids
        seen: Container[str | None] = () if name == "reference" else ids
        queries = [
            _checked(f"{name}[{i}]", item, calibration, seen) for i, item in enumerate(items)
        ]
        sizes = np.array([len(query.scores) for query in queries], dtype=np.intp)
        missed = np.array([query.missed for query in queries], dtype=np.intp)
        relevant = np.concatenate([query.relevant for query in queries])
        judged = np.array([isinstance(item, ScoredQuery) for item in items])
        return cls(
            scores=np.concatenate([query.scores for query in queries]),
            relevant=relevant,
            query_of=np.repeat(np.arange(len(queries)), sizes),
            position=np.concatenate([np.arange(size) for size in sizes]),
            sizes=sizes,
            missed=missed,
            judged=judged & (relevant.any() or missed.any()),
            groups=np.array([query.group for query in queries], dtype=np.object_),
        )

    @property
    def n(self) -> int:
        return len(self.sizes)

    @cached_property
    def relevant_counts(self) -> NDArray[np.intp]:
        return self.count(self.relevant)

    @cached_property
    def lowest(self) -> NDArray[np.float64]:
        """The lowest finite score of each query, (n,); +inf for a query without one."""
        lowest = np.full(self.n, math.inf)
        finite = np.isfinite(self.scores)
        np.minimum.at(lowest, self.query_of[finite], self.scores[finite])
        return lowest

    def count(self, mask: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Count, for each query, the snippets of a mask (S,): (n,)."""
        return np.bincount(self.query_of[mask], minlength=self.n)

    def thresholds(self, calibration: Calibration) -> NDArray[np.float64]:
        """Return the threshold of each query, (n,)."""
        by_group = {group: calibration.threshold(group) for group in set(self.groups.tolist())}
        return np.array([by_group[group] for group in self.groups.tolist()])

    def keeps(self, calibration: Calibration) -> NDArray[np.bool_]:
        """Return which snippets are kept, (S,), as `Calibration.keep` does."""
        thresholds = self.thresholds(calibration)[self.query_of]
        return np.asarray((self.scores <= thresholds) | np.isnan(self.scores))

    def cut(self, k: int) -> _Columns:
        """Return the first k snippets of each query; relevant ones beyond are missed."""
        first = self.position < k
        return _Columns(
            self.scores[first],
            self.relevant[first],
            self.query_of[first],
            self.position[first],
            np.minimum(self.sizes, k),
            self.missed + self.count(self.relevant & ~first),
            self.judged,
            self.groups,
        )

    def only(self, chosen: NDArray[np.bool_]) -> _Columns:
        """Return the chosen queries (n,) alone."""
        snippets = chosen[self.query_of]
        return _Columns(
            self.scores[snippets],
            self.relevant[snippets],
            (np.cumsum(chosen) - 1)[self.query_of[snippets]],
            self.position[snippets],
            self.sizes[chosen],
            self.missed[chosen],
            self.judged[chosen],
            self.groups[chosen],
        )


def _checked(
    where: str, item: object, calibration: Calibration, seen: Container[str | None]
) -> ScoredQuery:
    """Return the query as a `ScoredQuery`, with nothing relevant if it is not judged."""
    if isinstance(item, Filtered):
        if item.calibration.scorer != calibration.scorer:
            raise CalibrationMismatch(
                f"{where} was filtered with scorer {item.calibration.scorer!r}, but the "
                f"calibration is of {calibration.scorer!r}; diagnose a filter's queries with its "
                "own calibration"
            )
        return ScoredQuery(item.scores, np.zeros(len(item.scores), bool), group=item.group)
    if not isinstance(item, ScoredQuery):
        scores = np.asarray(item)
        if scores.ndim != 1 or scores.dtype.kind not in "fiu":
            raise TypeError(
                f"{where} is {item!r:.60}; give a ScoredQuery, as score_queries(scorer, judged) "
                "returns them, a Filtered, or an array of the scores of one query's snippets"
            )
        return ScoredQuery(scores.astype(np.float64), np.zeros(len(scores), bool))
    if item.weight != 1 or item.only_kept or item.propensities is not None:
        raise ValueError(
            f"{where}, {item.name}: a diagnosis counts every query and judgement alike, but this "
            "one has a weight, propensities or judgements of survivors only; give its scores alone"
        )
    if item.id in seen:
        raise ValueError(
            f"{where}, {item.name}, has the id of one that the calibration was made from, which "
            "says nothing about new ones; diagnose queries that it did not look at"
        )
    return item


# --- measuring ------------------------------------------------------------------------------------


def _shares(
    queries: _Columns, keeps: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return m1 (n,), m2 of each query with snippets (≤ n,), and the share of all removed."""
    kept = queries.count(keeps)
    some = queries.sizes > 0
    removal = 1 - float(keeps.mean()) if len(keeps) else math.nan
    return (kept > 0).astype(np.float64), kept[some] / queries.sizes[some], removal


def _sweep_point(
    calibration: Calibration, new: _Columns, reference: _Columns | None, level: float
) -> SweepPoint:
    keeps = new.keeps(calibration)
    m1, m2, removal = _shares(new, keeps)
    one, two = _bands(calibration, new, reference, level)
    return SweepPoint(
        alpha=calibration.alpha,
        threshold=None if calibration.by_group else calibration.threshold(),
        m1=float(m1.mean()),
        m2=float(m2.mean()) if len(m2) else math.nan,
        removal=removal,
        m1_band=one,
        m2_band=two,
        coverage=_coverage_interval(calibration, new, keeps, calibration.count_missed, level),
    )


def _depth_point(
    calibration: Calibration, new: _Columns, reference: _Columns | None, k: int, level: float
) -> DepthPoint:
    cut = new.cut(k)
    keeps = cut.keeps(calibration)
    m1, m2, _ = _shares(cut, keeps)
    one, two = (
        (None, None)  # the calibration knows its lowest scores at its own depth only
        if reference is None
        else _bands(calibration, cut, reference.cut(k), level)
    )
    return DepthPoint(
        k=k,
        m1=float(m1.mean()),
        m2=float(m2.mean()) if len(m2) else math.nan,
        m1_band=one,
        m2_band=two,
        recall=_recall(cut, level) if cut.judged.any() else None,
        end_to_end=_coverage_interval(calibration, cut, keeps, True, level),
    )


def _bands(
    calibration: Calibration, new: _Columns, reference: _Columns | None, level: float
) -> tuple[Band | None, Band | None]:
    n_new = int(np.count_nonzero(np.isfinite(new.lowest)))
    lowest, passed = _reference_lowest(calibration, reference)
    one = None
    if n_new and len(lowest) and passed is not None:
        one = m1_band(passed, len(lowest), n_new, level)
    two = None
    if reference is not None and n_new:
        shares = _shares(reference, reference.keeps(calibration))[1]
        two = m2_band(shares, n_new, level)
    return one, two


def _reference_lowest(
    calibration: Calibration, reference: _Columns | None
) -> tuple[NDArray[np.float64], int | None]:
    """Return the lowest scores to hold queries against (N,), and how many of them are kept."""
    if reference is not None:
        scored = np.isfinite(reference.lowest)
        kept = reference.lowest <= reference.thresholds(calibration)
        return reference.lowest[scored], int(np.count_nonzero(kept & scored))
    if calibration.weighted:  # new queries are not like the judged ones: that is what weights say
        return np.empty(0), None
    lowest = np.array(calibration.lowest_scores)
    if calibration.by_group:  # it does not say whose lowest score is whose
        return lowest, None
    return lowest, int(np.count_nonzero(lowest <= calibration.threshold()))


def _comparison(
    calibration: Calibration, new: _Columns, reference: _Columns | None
) -> Comparison | None:
    lowest, passed = _reference_lowest(calibration, reference)
    scored = np.isfinite(new.lowest)
    if not (len(lowest) and scored.any()):
        return None
    kept = int(np.count_nonzero((new.lowest <= new.thresholds(calibration)) & scored))
    return compare(lowest, new.lowest[scored], None if passed is None else (passed, kept))


# --- what judgements say --------------------------------------------------------------------------


def _judgements(
    calibration: Calibration, queries: _Columns, keeps: NDArray[np.bool_], level: float
) -> Judgements:
    judged, keeps = queries.only(queries.judged), keeps[queries.judged[queries.query_of]]
    relevant_kept = judged.count(keeps & judged.relevant)
    irrelevant_kept = judged.count(keeps & ~judged.relevant)
    within, over = _aucs(judged, level)
    guarantee = calibration.guarantee
    return Judgements(
        n_queries=judged.n,
        n_measured=_n_measured(calibration, judged),
        n_relevant=int(judged.relevant_counts.sum()),
        n_missed=int(judged.missed.sum()),
        recall_at_k=_recall(judged, level),
        coverage=cluster_interval(*_coverage(guarantee, judged, keeps, False), level),
        end_to_end=cluster_interval(*_coverage(guarantee, judged, keeps, True), level),
        p_value=_p_value(calibration, judged, keeps),
        relevant_kept=float(np.mean(relevant_kept > 0)),
        only_irrelevant=float(np.mean((relevant_kept == 0) & (irrelevant_kept > 0))),
        irrelevant_share=_ratio(int(irrelevant_kept.sum()), int(keeps.sum())),
        auc_within=within,
        auc_over=over,
    )


def _coverage(
    guarantee: Guarantee,
    queries: _Columns,
    keeps: NDArray[np.bool_],
    count_missed: bool,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return parts and wholes of the coverage of judged queries that have a unit, (K,) each."""
    known = queries.relevant_counts + queries.missed * count_missed
    entering = queries.judged & (known > 0)
    kept = queries.count(keeps & queries.relevant)[entering].astype(np.float64)
    wholes = known[entering].astype(np.float64)
    if guarantee == "snippet":
        return kept, wholes
    if guarantee == "query-recall":
        return kept / wholes, np.ones(len(wholes))
    passed = kept == wholes if guarantee == "all" else kept > 0
    return passed.astype(np.float64), np.ones(len(wholes))


def _coverage_interval(
    calibration: Calibration,
    queries: _Columns,
    keeps: NDArray[np.bool_],
    count_missed: bool,
    level: float,
) -> Interval | None:
    if not queries.judged.any():
        return None
    parts, wholes = _coverage(calibration.guarantee, queries, keeps, count_missed)
    return cluster_interval(parts, wholes, level)


def _n_measured(calibration: Calibration, queries: _Columns) -> int:
    """Return how many queries have a coverage, in the sense of the promise."""
    known = queries.relevant_counts + queries.missed * calibration.count_missed
    return int(np.count_nonzero(queries.judged & (known > 0)))


def _recall(queries: _Columns, level: float) -> Interval:
    """Return the mean share of a judged query's known relevant snippets that is retrieved."""
    known = queries.relevant_counts + queries.missed
    some = queries.judged & (known > 0)
    shares = queries.relevant_counts[some] / known[some]
    return cluster_interval(shares, np.ones(len(shares)), level)


def _p_value(
    calibration: Calibration,
    queries: _Columns,
    keeps: NDArray[np.bool_],
    group: str | None = None,
) -> float:
    """Return the probability of a coverage this low, if the promise holds exactly.

    The calibration is a draw as these queries are: m of them keep BetaBinomial(m; k, n + 1 − k)
    units, k the rank among n (Marques 2023, arXiv 2303.02770). That is exact for "all" and "any";
    shares of a query vary less, so that for "query-recall" the truth is smaller, and for "snippet"
    m and n are effective numbers. With delta the draw is no excuse, and the number is Binomial.
    """
    parts, wholes = _coverage(calibration.guarantee, queries, keeps, calibration.count_missed)
    if not len(parts):
        return 1.0
    pooled = calibration.guarantee == "snippet"
    m = max(1, int(effective_n(parts, wholes))) if pooled else len(parts)
    kept = math.ceil(m * float(parts.sum() / wholes.sum()) - 1e-9)
    if calibration.delta is not None:
        return float(binomial_cdf(m, 1 - calibration.alpha)[kept])
    n = max(1, int(calibration.effective_n if pooled else calibration.effective_queries))
    if calibration.by_group and group is not None:
        merged = (calibration.merge_groups or {}).get(group, group)
        n = min(n, calibration.n_units.get(merged, n))
    k = min(n, conformal_rank(n, calibration.alpha))
    return float(beta_binomial_cdf(m, k, n + 1 - k)[kept])


def _aucs(queries: _Columns, level: float) -> tuple[Interval, float]:
    """Return the mean AUC of the queries that have both kinds of snippets, and that over all."""
    ends = np.cumsum(queries.sizes)
    aucs = [
        auc(queries.scores[end - size : end], queries.relevant[end - size : end])
        for end, size in zip(ends.tolist(), queries.sizes.tolist(), strict=True)
    ]
    within = np.array(aucs)[~np.isnan(aucs)]
    return cluster_interval(within, np.ones(len(within)), level), auc(
        queries.scores, queries.relevant
    )


def auc(scores: NDArray[np.float64], relevant: NDArray[np.bool_]) -> float:
    """Return P(an irrelevant score is above a relevant one), ties counted half; NaN left out."""
    scored = ~np.isnan(scores)
    above = np.sort(scores[scored & ~relevant])
    below = scores[scored & relevant]
    if not (len(above) and len(below)):
        return math.nan
    lower = np.searchsorted(above, below, side="left")
    ties = np.searchsorted(above, below, side="right") - lower
    return float(1 - np.mean(lower + ties / 2) / len(above))


# --- scores and groups ----------------------------------------------------------------------------


def _score_quality(calibration: Calibration, queries: _Columns) -> ScoreQuality:
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
    calibration: Calibration, queries: _Columns, keeps: NDArray[np.bool_], level: float
) -> tuple[GroupRow, ...]:
    rows = []
    for group in sorted({g for g in queries.groups.tolist() if g is not None}):
        chosen = queries.groups == group
        members, kept = queries.only(chosen), keeps[chosen[queries.query_of]]
        m1, m2, removal = _shares(members, kept)
        judged = members.judged.any()
        rows.append(
            GroupRow(
                group=group,
                threshold=calibration.threshold(group),
                n_queries=members.n,
                n_measured=_n_measured(calibration, members),
                m1=wilson_interval(float(m1.mean()), members.n, level),
                m2=cluster_interval(m2, np.ones(len(m2)), level),
                removal=removal,
                recall_at_k=_recall(members, level) if judged else None,
                coverage=_coverage_interval(
                    calibration, members, kept, calibration.count_missed, level
                ),
                p_value=_p_value(calibration, members, kept, group) if judged else None,
            )
        )
    return tuple(rows)
