"""The measures of a filter, each a share with its interval, with the query as the unit.

Every measure is a share Σ part_q / Σ whole_q over queries q. With N_q the relevant retrieved
snippets of a query, C_q those of them that are kept, M_q the relevant ones that the retriever
missed, S_q all its snippets and K_q the kept ones:

    query-recall  Σ C/N / Σ 1         all   Σ 1{C = N} / Σ 1     recall@K   Σ N/(N+M) / Σ 1
    snippet       Σ C / Σ N           any   Σ 1{C > 0} / Σ 1     removal    Σ (S − K) / Σ S
    m1            Σ 1{K > 0} / Σ 1    m2    Σ K/S / Σ 1          precision  Σ C / Σ K
    silent        Σ Z / Σ 1           false silence  Σ Z 1{N > 0} / Σ 1{N > 0}

over the queries whose denominator is above 0; Z is 1 for a query that is silenced, else 0. End
to end, missed snippets count as dropped: N + M stands for N. recall@K and the end-to-end measures
are over the queries that state their missed snippets, and NaN if none does, as in files that were
judged from what was retrieved.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibrate import score_as_calibrated
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.calibration.scorer import needed_scorers
from conformal_retrievers.calibration.subjects import at_most
from conformal_retrievers.data.checks import check_no_table
from conformal_retrievers.data.column_checks import Objects
from conformal_retrievers.data.columns import ScoredQueries, places_by_group
from conformal_retrievers.data.hits import HitColumns
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.data.retrieval import of_two_frameworks
from conformal_retrievers.evaluation.share import Share
from conformal_retrievers.evaluation.wording import say
from conformal_retrievers.scoring.hits import named
from conformal_retrievers.scoring.scorer import judged_queries

Given = Iterable[ScoredQuery | JudgedQuery]
Column = NDArray[np.float64]
Mask = NDArray[np.bool_]
GUARANTEES: tuple[Guarantee, ...] = ("query-recall", "snippet", "all", "any")
END_TO_END = "end-to-end "
YES_OR_NO = {"all", "any", END_TO_END + "all", END_TO_END + "any", "m1"}
OF_SILENCE = {"silent", "false silence"}  # with exact intervals
MOSTLY = 0.5  # share of unscorable snippets from which on coverage tests nothing


class QueryCounts(NamedTuple):
    """What is kept of each of K queries, (K,) each: all that an evaluation takes from them."""

    retrieved: Column
    relevant: Column  # of those retrieved
    missed: Column  # relevant, not retrieved; NaN if unknown
    kept: Column
    relevant_kept: Column
    unscorable: Column
    tokens: Column  # of those retrieved; NaN where they are unknown
    tokens_kept: Column
    silenced: Column  # 1 or 0; NaN where none can be
    ids: Objects  # on which, and on groups, the measures do not depend
    group: Objects

    @classmethod
    def merged(cls, parts: Iterable[QueryCounts]) -> QueryCounts:
        """Return the counts of all parts, in their order; ValueError for an id in two of them."""
        given = list(parts)
        if not given:
            raise ValueError("scored is empty; give at least one query")
        if len(given) == 1:
            return given[0]
        whole = cls._make(map(np.concatenate, zip(*given, strict=True)))
        checks.check_unique_ids(whole.ids.tolist())
        return whole

    def at(self, places: NDArray[np.intp]) -> QueryCounts:
        """Return the counts of some queries, by their places."""
        return QueryCounts._make(column[places] for column in self)

    @property
    def by_group(self) -> dict[str | None, QueryCounts]:
        """The queries of each group, those without a group last."""
        places = places_by_group(self.group)
        names = sorted(places, key=lambda name: (name is None, name or ""))
        return {name: self.at(places[name]) for name in names}


def checked(given: Given, calibration: Calibration, name: str = "scored") -> ScoredQueries:
    """Return queries as columns, judged ones scored as a filter does; errors use `name`.

    Raises ValueError for no query and for an id that occurs twice, and `CalibrationMismatch` unless
    they are cut as those of the calibration, and silenced iff these are.
    """
    queries = ScoredQueries.of(_scored(given, calibration), name)
    if not len(queries):
        raise ValueError(f"{name} is empty; give at least one query")
    checks.check_unique_ids(queries.ids.tolist())
    checks.check_split(calibration.split, queries.split, name)
    checks.check_silenced(queries, calibration.silences)
    return queries


def warn_if_retrieved_otherwise(queries: Sequence[JudgedQuery], calibration: Calibration) -> None:
    """Warn of another depth or retriever than the calibration's, missing hits, and short lists.

    Retrievers of LlamaIndex and LangChain are not compared with each other.
    """
    for name in ("retriever", "k"):
        known: Any = getattr(calibration, name)
        others = {getattr(query, name) for query in queries} - {None, known}
        others = {other for other in others if not of_two_frameworks(other, known)}
        if known is not None and others:
            had = ", ".join(sorted(map(repr, others)))
            warnings.warn(say("retrieved otherwise", name=name, had=had, known=known), stacklevel=2)
    score: Any = (calibration.scorer_provenance or {}).get("score")
    read = score.get("retrievers", ()) if isinstance(score, dict) else ()
    hits = {name for query in queries for name in query.hits}
    if hits and (lost := {*read} - hits):
        warnings.warn(say("no hits of", names=named(sorted(lost))), stacklevel=2)
    depths = [query.retrieved.depth for query in queries if query.snippets]
    checks.warn_if_shallow(int(np.median(depths or [0])), calibration.fewest or 0)


def _scored(given: Iterable[Any], calibration: Calibration) -> Iterable[ScoredQuery]:
    if isinstance(given, ScoredQueries | ScoredQuery):
        return given
    check_no_table(given, "judged")
    queries: list[Any] = judged_queries(given) if isinstance(given, JudgedQuery) else [*given]
    if not queries or isinstance(queries[0], ScoredQuery):
        return queries
    queries = judged_queries(queries)
    for split in {query.split for query in queries if query.snippets}:
        checks.check_split(calibration.split, split, "judged")
    if needed := needed_scorers(calibration):
        raise checks.CalibrationMismatch(say("scorer needed", names=", ".join(map(repr, needed))))
    calibration.held_out(query.id for query in queries)
    if known := [query for query in queries if calibration.asked(query)]:
        raise ValueError(say("asked when calibrating", n=len(known), query=known[0]))
    warn_if_retrieved_otherwise(queries, calibration)
    return score_as_calibrated(calibration, queries)


def passed(queries: ScoredQueries | QueryCounts) -> Mask:
    """Return which queries are not silenced, (n,)."""
    return np.asarray(queries.silenced != 1)


def known_hits(queries: ScoredQueries) -> dict[str, HitColumns]:
    """Return the hits of each retriever, (S,), by name; none unless each query has some."""
    hit = np.zeros(len(queries.scores), dtype=bool)
    for ranks, _ in queries.hits.values():
        hit |= np.isfinite(ranks)
    known = (queries.number_in(hit) > 0) | (queries.sizes == 0)
    return dict(sorted(queries.hits.items())) if known.all() else {}


def documents(queries: ScoredQueries) -> NDArray[np.intp]:
    """Return the number of the document of each snippet, (S,), in its query: whole ones are one."""
    if queries.document_of is not None:
        return queries.document_of
    return np.arange(len(queries.scores)) - np.repeat(queries.offsets[:-1], queries.sizes)


def thresholds(queries: ScoredQueries, calibration: Calibration) -> float | Column:
    """Return the threshold of each query, (n,), or that of all."""
    if not calibration.by_group:
        return calibration.threshold()
    return calibration.thresholds_of(queries.groups.tolist())


def below(queries: ScoredQueries, limits: float | Column) -> Mask:
    """Return which snippets (S,) have a score of at most a limit, one or that of the query."""
    if isinstance(limits, np.ndarray):
        limits = np.repeat(limits, queries.sizes)
    return at_most(queries.scores, limits)


def keeps(queries: ScoredQueries, calibration: Calibration) -> Mask:
    """Return which snippets are kept, (S,), as `Calibration.keep` does."""
    kept = below(queries, thresholds(queries, calibration))
    return kept & np.repeat(passed(queries), queries.sizes) if calibration.silences else kept


def counts(queries: ScoredQueries, kept: Mask) -> QueryCounts:
    """Return what a mask (S,) keeps of each query."""
    n = len(queries)
    unknown = np.where(queries.sizes > 0, math.nan, 0.0)

    def total(mask: Mask) -> Column:
        return queries.number_in(mask).astype(np.float64)

    def tokens(weights: Column | None) -> Column:
        if weights is None:
            return unknown
        return np.asarray(np.bincount(queries.query_of, weights, n), dtype=np.float64)

    return QueryCounts(
        retrieved=queries.sizes.astype(np.float64),
        relevant=total(queries.relevant),
        missed=queries.missed,
        kept=total(kept),
        relevant_kept=total(kept & queries.relevant),
        unscorable=total(np.isnan(queries.scores)),
        tokens=tokens(queries.tokens),
        tokens_kept=tokens(None if queries.tokens is None else queries.tokens * kept),
        silenced=queries.silenced,
        ids=queries.ids,
        group=queries.groups,
    )


Ratio = Callable[[QueryCounts], tuple[Column, Column]]


def _flags(mask: Mask) -> Column:
    return np.asarray(mask, dtype=np.float64)


def _quotient(a: Column, b: Column) -> Column:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)


def _known(c: QueryCounts) -> Column:
    return np.nan_to_num(c.relevant + c.missed)


def _coverages(of: Callable[[QueryCounts], Column]) -> dict[str, Ratio]:
    """Return the measures of a guarantee each, where `of` counts the relevant snippets (K,)."""

    def shares_of(share: Callable[[Column, Column], Column | Mask]) -> Ratio:
        return lambda c: (_flags(of(c) > 0) * share(c.relevant_kept, of(c)), _flags(of(c) > 0))

    return {
        "query-recall": shares_of(_quotient),
        "snippet": lambda c: (c.relevant_kept * (of(c) > 0), of(c)),
        "all": shares_of(np.equal),
        "any": shares_of(lambda kept, _: kept > 0),
    }


# The parts and wholes of each measure, (K,) each. Of a query without `missed`, the wholes of
# recall@K and of the end-to-end measures are 0.
MEASURES: Mapping[str, Ratio] = {
    **_coverages(lambda c: c.relevant),
    **{END_TO_END + name: ratio for name, ratio in _coverages(_known).items()},
    "recall@K": lambda c: (_quotient(c.relevant, _known(c)), _flags(_known(c) > 0)),
    "removal": lambda c: (c.retrieved - c.kept, c.retrieved),
    "precision": lambda c: (c.relevant_kept, c.kept),
    "m1": lambda c: (_flags(c.kept > 0), np.ones_like(c.kept)),
    "m2": lambda c: (_quotient(c.kept, c.retrieved), _flags(c.retrieved > 0)),
    "unscorable": lambda c: (c.unscorable, c.retrieved),
    "silent": lambda c: (c.silenced, np.ones_like(c.kept)),
    "false silence": lambda c: (c.silenced * (c.relevant > 0), _flags(c.relevant > 0)),
    "text removed": lambda c: (c.tokens - c.tokens_kept, c.tokens),
}


def measured(c: QueryCounts) -> list[str]:
    """Return the names of the measures that there are: some need tokens, or silence."""
    unknown = OF_SILENCE if np.isnan(c.silenced).any() else set()
    return [
        name
        for name in MEASURES
        if name not in unknown and not (name == "text removed" and np.isnan(c.tokens).any())
    ]


def estimate(c: QueryCounts, name: str) -> float:
    """Return a measure; NaN if there is nothing to measure."""
    parts, wholes = MEASURES[name](c)
    return float(parts.sum() / wholes.sum()) if wholes.any() else math.nan


def share(c: QueryCounts, name: str, level: float) -> Share:
    """Return a measure with its interval at `level`."""
    parts, wholes = MEASURES[name](c)
    if name in YES_OR_NO:
        return Share.of_units(parts[wholes > 0], level)
    if name in OF_SILENCE:
        return Share.of_counts(parts[wholes > 0], level)
    return Share.of_clusters(parts, wholes, level)


def guaranteed(calibration: Calibration) -> str:
    """Return the name of the measure that a guarantee is about."""
    return (END_TO_END if calibration.count_missed else "") + calibration.guarantee
