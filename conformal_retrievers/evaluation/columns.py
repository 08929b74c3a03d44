"""Scored queries as columns, one entry a snippet or one a query, to measure all at once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_new, check_unique_ids
from conformal_retrievers.calibration.guarantees import digest
from conformal_retrievers.calibration.subjects import SNIPPETS, at_most
from conformal_retrievers.data.queries import ScoredQuery

Column = NDArray[np.float64]


class QueryCounts(NamedTuple):
    """What is kept of each of K queries, (K,) each."""

    retrieved: Column
    relevant: Column  # of those retrieved
    missed: Column  # relevant, not retrieved
    kept: Column
    relevant_kept: Column
    unscorable: Column
    tokens: Column  # of those retrieved; NaN where they are unknown
    tokens_kept: Column
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
    position: NDArray[np.intp]  # (S,), in the retriever's order
    sizes: NDArray[np.intp]  # (n,), snippets
    missed: NDArray[np.intp]  # (n,), relevant snippets that were not retrieved
    groups: NDArray[np.object_]  # (n,), merged as the calibration merges them
    ids: tuple[str | None, ...]

    @classmethod
    def of(
        cls,
        scored: Iterable[ScoredQuery],
        calibration: Calibration | None = None,
        *,
        name: str = "scored",
        held_out: bool = True,
    ) -> Columns:
        """Return the queries as columns; unless `held_out`, they may belong to the calibration."""
        merged = (calibration.merge_groups or {}) if calibration else {}
        scores, relevant, tokens, missed, groups = [], [], [], [], []
        ids: list[str | None] = []
        for i, query in enumerate(scored):
            if not isinstance(query, ScoredQuery):
                raise TypeError(f"{name}[{i}] is {query!r:.60}; give score_queries(scorer, judged)")
            scores.append(query.scores)
            relevant.append(query.relevant)
            unknown = np.full(len(query.scores), math.nan)
            tokens.append(unknown if query.tokens is None else query.tokens)
            missed.append(query.missed)
            groups.append(None if query.group is None else merged.get(query.group, query.group))
            ids.append(query.id)
        if not scores:
            raise ValueError(f"{name} is empty; give at least one query")
        check_unique_ids(ids)
        if calibration is not None:
            check_new(ids if held_out else (), calibration.ids, SNIPPETS)
        sizes = np.array([len(s) for s in scores], dtype=np.intp)
        return cls(
            scores=np.concatenate(scores),
            relevant=np.concatenate(relevant),
            tokens=np.concatenate(tokens),
            query_of=np.repeat(np.arange(len(sizes)), sizes),
            position=np.concatenate([np.arange(size) for size in sizes]),
            sizes=sizes,
            missed=np.array(missed, dtype=np.intp),
            groups=np.array(groups, dtype=np.object_),
            ids=tuple(ids),
        )

    @property
    def judged(self) -> bool:
        """Whether any relevant snippet is known; without one the queries count as not judged."""
        return bool(self.relevant.any() or self.missed.any())

    def held_out_from(self, calibration: Calibration) -> bool:
        """Return whether ids prove that none of the queries belongs to the calibration."""
        return calibration.n_without_id == 0 and None not in self.ids

    @cached_property
    def order(self) -> NDArray[np.intp]:
        """The place of each query in the order of a hash of its id, (n,)."""
        hashed = sorted(range(len(self.ids)), key=lambda i: digest(self.ids[i], i))
        return np.argsort(hashed)

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
        thresholds = self.thresholds(calibration)[self.query_of]
        return at_most(self.scores, thresholds)

    def counts(self, keeps: NDArray[np.bool_]) -> QueryCounts:
        """Return what a mask (S,) keeps of each query."""

        def total(values: NDArray[np.bool_] | NDArray[np.float64]) -> Column:
            sums = np.bincount(self.query_of, values, len(self.sizes))
            return np.asarray(sums, dtype=np.float64)

        return QueryCounts(
            retrieved=self.sizes.astype(np.float64),
            relevant=total(self.relevant),
            missed=self.missed.astype(np.float64),
            kept=total(keeps),
            relevant_kept=total(keeps & self.relevant),
            unscorable=total(np.isnan(self.scores)),
            tokens=total(self.tokens),
            tokens_kept=total(self.tokens * keeps),
            order=self.order,
            group=self.groups,
        )

    def cut(self, k: int) -> Columns:
        """Return the first k snippets of each query; relevant ones beyond are missed."""
        first = self.position < k
        return replace(
            self,
            scores=self.scores[first],
            relevant=self.relevant[first],
            tokens=self.tokens[first],
            query_of=self.query_of[first],
            position=self.position[first],
            sizes=np.minimum(self.sizes, k),
            missed=self.missed + self.count(self.relevant & ~first),
        )
