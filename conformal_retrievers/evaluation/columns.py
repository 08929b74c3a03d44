"""Many queries as columns, one entry a snippet or one a query, so that they are measured at once.

A query enters judged, as a `ScoredQuery`; as what a filter made of it, a `Filtered`; or as just the
scores of its snippets. What may not enter is refused here, by its place.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.evaluation.measures import Counts
from conformal_retrievers.filtering import CalibrationMismatch, Filtered


@dataclass(frozen=True, eq=False)
class Columns:
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
    def of(cls, name: str, given: Iterable[object], calibration: Calibration) -> Columns:
        """Return queries, or a reference, as columns; raises what `diagnose` raises for them."""
        items = list(given)
        if not items:
            raise ValueError(f"{name} is empty; give the queries to look at")
        known = frozenset() if name == "reference" else calibration.ids
        queries = [
            _checked(f"{name}[{i}]", item, calibration, known) for i, item in enumerate(items)
        ]
        _check_once(name, queries)
        merged = calibration.merge_groups or {}
        groups = [None if q.group is None else merged.get(q.group, q.group) for q in queries]
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
            groups=np.array(groups, dtype=np.object_),
        )

    @property
    def n(self) -> int:
        """The number of queries."""
        return len(self.sizes)

    @cached_property
    def relevant_counts(self) -> NDArray[np.intp]:
        """How many snippets of each query are relevant, (n,)."""
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

    def counts(self, keeps: NDArray[np.bool_]) -> Counts:
        """Return what is kept of each query, for the measures of an evaluation."""
        kept = self.count(keeps).astype(np.float64)
        unknown = np.full(self.n, math.nan)
        return Counts(
            retrieved=self.sizes.astype(np.float64),
            relevant=self.relevant_counts.astype(np.float64),
            missed=self.missed.astype(np.float64),
            kept=kept,
            relevant_kept=self.count(keeps & self.relevant).astype(np.float64),
            passed=kept,
            unscorable=self.count(np.isnan(self.scores)).astype(np.float64),
            tokens=unknown,
            tokens_kept=unknown,
            group=self.groups,
        )

    def cut(self, k: int) -> Columns:
        """Return the first k snippets of each query; relevant ones beyond are missed."""
        first = self.position < k
        return Columns(
            self.scores[first],
            self.relevant[first],
            self.query_of[first],
            self.position[first],
            np.minimum(self.sizes, k),
            self.missed + self.count(self.relevant & ~first),
            self.judged,
            self.groups,
        )

    def only(self, chosen: NDArray[np.bool_]) -> Columns:
        """Return the chosen queries (n,) alone."""
        snippets = chosen[self.query_of]
        return Columns(
            self.scores[snippets],
            self.relevant[snippets],
            (np.cumsum(chosen) - 1)[self.query_of[snippets]],
            self.position[snippets],
            self.sizes[chosen],
            self.missed[chosen],
            self.judged[chosen],
            self.groups[chosen],
        )


def _check_once(name: str, queries: Iterable[ScoredQuery]) -> None:
    seen: set[str] = set()
    for i, query in enumerate(queries):
        if query.id in seen:
            raise ValueError(
                f"{name}[{i}], {query.name}, occurs twice; a query counts once, so remove one"
            )
        if query.id is not None:
            seen.add(query.id)


def _checked(
    where: str, item: object, calibration: Calibration, known: Container[str | None]
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
    if item.id in known:
        raise ValueError(
            f"{where}, {item.name}, has the id of one that the calibration was made from, which "
            "says nothing about new ones; diagnose queries that it did not look at"
        )
    return item
