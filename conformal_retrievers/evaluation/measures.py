"""The measures of a filter, each a share with its interval, with the query as the unit.

Every measure is a share Σ part_q / Σ whole_q over queries q. With N_q the relevant retrieved
snippets of a query, C_q those of them that are kept, M_q the relevant ones that the retriever
missed, S_q all its snippets and K_q the kept ones:

    query-recall  Σ C/N / Σ 1         all   Σ 1{C = N} / Σ 1     recall@K   Σ N/(N+M) / Σ 1
    snippet       Σ C / Σ N           any   Σ 1{C > 0} / Σ 1     removal    Σ (S − K) / Σ S
    m1            Σ 1{K > 0} / Σ 1    m2    Σ K/S / Σ 1          precision  Σ C / Σ K
    silent        Σ Z / Σ 1           false silence  Σ Z 1{N > 0} / Σ 1{N > 0}

over the queries whose denominator is above 0; Z is 1 for a query that a gate silences, else 0. End
to end, missed snippets count as dropped: N + M stands for N. recall@K and the end-to-end measures
are over the queries that state their missed snippets, and NaN if none does, as in files that were
judged from what was retrieved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.behind import check_silenced
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_split, check_unique_ids, split_of
from conformal_retrievers.calibration.guarantees import Guarantee, in_hashed_order
from conformal_retrievers.calibration.subjects import at_most
from conformal_retrievers.data.checks import all_of
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.hits import HitColumns
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.evaluation.share import Share

Column = NDArray[np.float64]
GUARANTEES: tuple[Guarantee, ...] = ("query-recall", "snippet", "all", "any")
END_TO_END = "end-to-end "
YES_OR_NO = {"all", "any", END_TO_END + "all", END_TO_END + "any", "m1"}
OF_GATE = {"silent", "false silence"}  # with exact intervals, as for gates alone
MOSTLY = 0.5  # share of unscorable snippets from which on coverage tests nothing


class QueryCounts(NamedTuple):
    """What is kept of each of K queries, (K,) each."""

    retrieved: Column
    relevant: Column  # of those retrieved
    missed: Column  # relevant, not retrieved; NaN if unknown
    kept: Column
    relevant_kept: Column
    unscorable: Column
    tokens: Column  # of those retrieved; NaN where they are unknown
    tokens_kept: Column
    silenced: Column  # 1 or 0; NaN without a gate
    order: NDArray[np.intp]  # a fixed order that does not depend on the scores
    group: NDArray[np.object_]

    @property
    def by_group(self) -> dict[str | None, QueryCounts]:
        """The queries of each group, those without a group last."""
        groups = self.group.tolist()
        return {
            name: QueryCounts._make(column[[group == name for group in groups]] for column in self)
            for name in sorted(set(groups), key=lambda name: (name is None, name or ""))
        }


@dataclass(frozen=True, eq=False)
class Columns:
    """n queries with S snippets in all."""

    scores: NDArray[np.float64]  # (S,)
    relevant: NDArray[np.bool_]  # (S,)
    tokens: NDArray[np.float64]  # (S,), NaN where they are unknown
    query_of: NDArray[np.intp]  # (S,)
    sizes: NDArray[np.intp]  # (n,), snippets
    missed: Column  # (n,), relevant snippets that were not retrieved; NaN if unknown
    groups: NDArray[np.object_]  # (n,), merged as the calibration merges them
    ids: tuple[str | None, ...]
    hits: Mapping[str, HitColumns]  # (S,) of each retriever; empty unless known of every query
    token_unit: str  # what `tokens` counts
    silenced: Column  # (n,), 1 for a query that a gate silences, else 0; NaN without a gate
    document_of: NDArray[np.intp]  # (S,), within the query; each whole snippet is one

    @classmethod
    def of(
        cls,
        scored: Iterable[ScoredQuery],
        calibration: Calibration | None = None,
        name: str = "scored",
    ) -> Columns:
        """Return the queries as columns, in the groups of a calibration; errors use `name`.

        Raises `CalibrationMismatch` unless they are cut as those of the calibration.
        """
        if not isinstance(scored, ScoredQuery):
            scored = list(scored)
            if scored and isinstance(scored[0], JudgedQuery):
                raise TypeError(
                    f"{name}[0] is a JudgedQuery, which has no scores; give score_queries(scorer, "
                    "judged), where scorer is ConformalFilter.of(calibration).scorer"
                )
        given = all_of(ScoredQuery, scored, name)
        if not given:
            raise ValueError(f"{name} is empty; give at least one query")
        ids = tuple(query.id for query in given)
        check_unique_ids(ids)
        split = split_of(given)
        if calibration is not None:
            check_split(calibration.split, split, name)
            check_silenced(ScoredQueries.of(given), calibration.gate)
        groups = [calibration.merged(q.group) if calibration else q.group for q in given]
        sizes = np.array([len(query.scores) for query in given], dtype=np.intp)
        return cls(
            scores=np.concatenate([query.scores for query in given]),
            relevant=np.concatenate([query.relevant for query in given]),
            tokens=np.concatenate(
                [np.full(len(q.scores), math.nan) if q.tokens is None else q.tokens for q in given]
            ),
            query_of=np.repeat(np.arange(len(sizes)), sizes),
            sizes=sizes,
            missed=np.array([query.missed for query in given], dtype=np.float64),  # None is NaN
            groups=np.array(groups, dtype=np.object_),
            ids=ids,
            hits=_hits(given),
            token_unit=_unit(given),
            silenced=np.array([query.silenced for query in given], dtype=np.float64),
            document_of=np.concatenate(
                [
                    np.arange(n) if q.document_of is None else q.document_of
                    for q, n in zip(given, sizes, strict=True)
                ]
            ),
        )

    @cached_property
    def passed(self) -> NDArray[np.bool_]:
        """Which queries a gate lets pass, (n,): all without one."""
        return np.asarray(self.silenced != 1)

    @cached_property
    def passed_scores(self) -> NDArray[np.float64]:
        """The scores (S,), NaN for the snippets of queries that a gate silences."""
        return np.where(self.passed[self.query_of], self.scores, math.nan)

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """The place of each query in the order of a hash of its id, (n,)."""
        return np.argsort(in_hashed_order(self.ids))

    @cached_property
    def lowest(self) -> NDArray[np.float64]:
        """The lowest finite score of each query, (n,); +inf for a query without one."""
        lowest = np.full(len(self.sizes), math.inf)
        finite = np.isfinite(self.scores)
        np.minimum.at(lowest, self.query_of[finite], self.scores[finite])
        return lowest

    def count(self, mask: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Count, for each query, the snippets of a mask (S,): (n,)."""
        return np.bincount(self.query_of[mask], minlength=len(self.sizes))

    def thresholds(self, calibration: Calibration) -> NDArray[np.float64]:
        """Return the threshold of each query, (n,)."""
        by_group = {group: calibration.threshold(group) for group in set(self.groups.tolist())}
        return np.array([by_group[group] for group in self.groups.tolist()])

    def keeps(self, calibration: Calibration) -> NDArray[np.bool_]:
        """Return which snippets are kept, (S,), as `Calibration.keep` does."""
        keeps = at_most(self.scores, self.thresholds(calibration)[self.query_of])
        return keeps & self.passed[self.query_of]

    def counts(self, keeps: NDArray[np.bool_]) -> QueryCounts:
        """Return what a mask (S,) keeps of each query."""

        def total(values: NDArray[np.bool_] | NDArray[np.float64]) -> Column:
            sums = np.bincount(self.query_of, values, len(self.sizes))
            return np.asarray(sums, dtype=np.float64)

        return QueryCounts(
            retrieved=self.sizes.astype(np.float64),
            relevant=total(self.relevant),
            missed=self.missed,
            kept=total(keeps),
            relevant_kept=total(keeps & self.relevant),
            unscorable=total(np.isnan(self.scores)),
            tokens=total(self.tokens),
            tokens_kept=total(self.tokens * keeps),
            silenced=self.silenced,
            order=self.order,
            group=self.groups,
        )


def ratios(c: QueryCounts) -> dict[str, tuple[Column, Column]]:
    """Return the parts and wholes of each measure, (K,) each: it is Σ parts / Σ wholes.

    Of a query without `missed`, the wholes of recall@K and of the end-to-end measures are 0.
    """
    known = np.nan_to_num(c.relevant + c.missed)
    one = np.ones_like(c.retrieved)

    def coverages(of: Column) -> dict[str, tuple[Column, Column]]:
        some = of > 0
        return {
            "query-recall": (_quotient(c.relevant_kept, of), some * one),
            "snippet": (c.relevant_kept * some, of),
            "all": ((c.relevant_kept == of) * some * one, some * one),
            "any": ((c.relevant_kept > 0) * some * one, some * one),
        }

    measures = {
        **coverages(c.relevant),
        **{END_TO_END + name: ratio for name, ratio in coverages(known).items()},
        "recall@K": (_quotient(c.relevant, known), (known > 0) * one),
        "removal": (c.retrieved - c.kept, c.retrieved),
        "precision": (c.relevant_kept, c.kept),
        "m1": ((c.kept > 0) * one, one),
        "m2": (_quotient(c.kept, c.retrieved), (c.retrieved > 0) * one),
        "unscorable": (c.unscorable, c.retrieved),
    }
    if not np.isnan(c.silenced).any():
        answerable = (c.relevant > 0) * one
        measures["silent"] = (c.silenced, one)
        measures["false silence"] = (c.silenced * answerable, answerable)
    if not np.isnan(c.tokens).any():
        measures["text removed"] = (c.tokens - c.tokens_kept, c.tokens)
    return measures


def guaranteed(calibration: Calibration) -> str:
    """Return the name of the measure that a guarantee is about."""
    return (END_TO_END if calibration.count_missed else "") + calibration.guarantee


def shares(c: QueryCounts, level: float) -> dict[str, Share]:
    """Return each measure by name, with its interval at `level`."""
    return {
        name: Share.of_units(parts[wholes > 0], level)
        if name in YES_OR_NO
        else Share.of_counts(parts[wholes > 0], level)
        if name in OF_GATE
        else Share.of_clusters(parts, wholes, level)
        for name, (parts, wholes) in ratios(c).items()
    }


def _hits(scored: Sequence[ScoredQuery]) -> dict[str, HitColumns]:
    """Return the hits of each retriever over all snippets, (S,), or none if some are unknown."""
    if not all(query.hits for query in scored if len(query.scores)):
        return {}

    def column(retriever: str, field: int, missing: float) -> Column:
        return np.concatenate(
            [
                q.hits[retriever][field] if retriever in q.hits else np.full(len(q.scores), missing)
                for q in scored
            ]
        )

    names = sorted({name for query in scored for name in query.hits})
    return {r: HitColumns(column(r, 0, math.inf), column(r, 1, math.nan)) for r in names}


def _unit(scored: Sequence[ScoredQuery]) -> str:
    units = sorted({query.token_unit for query in scored if query.tokens is not None})
    if len(units) > 1:
        raise ValueError(
            f"token_unit is {' and '.join(map(repr, units))}; count the tokens of all queries alike"
        )
    return units[0] if units else "tokens"


def _quotient(a: Column, b: Column) -> NDArray[np.float64]:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)
