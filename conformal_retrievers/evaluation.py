"""What a filter does to judged queries: coverage, removal, recall@K, m1 and m2, with intervals.

m1 is the share of queries of which anything is kept and m2 the mean share of snippets kept
(Geissler et al. 2026, arXiv 2605.05244). They need no judgements and are no coverage: m1 falls when
relevant snippets are missing from the K retrieved, and rises when irrelevant ones pass. So they are
reported beside recall@K and the coverage of relevant snippets.

The query is the unit of every interval (`conformal.cluster_interval`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.conformal import Interval, cluster_interval
from conformal_retrievers.judged import ScoredQuery


@dataclass(frozen=True)
class Diagnostics:
    """Shares measured on judged queries, each with its 95 % interval over queries.

    `query_coverage`: mean share of a query's relevant retrieved snippets that is kept.
    `snippet_coverage`: share kept of all relevant retrieved snippets, pooled over queries.
    `removal`: share dropped of all snippets. `recall_at_k`: mean share of a query's known relevant
    snippets that is retrieved. `m1`: share of queries with a kept snippet. `m2`: mean share of a
    query's snippets that is kept. An estimate is nan where no query has what it is a share of.
    """

    n_queries: int
    n_relevant: int
    query_coverage: Interval
    snippet_coverage: Interval
    removal: Interval
    recall_at_k: Interval
    m1: Interval
    m2: Interval

    def __str__(self) -> str:
        rows = [
            ("coverage per query", self.query_coverage),
            ("coverage per snippet", self.snippet_coverage),
            ("removed", self.removal),
            ("recall@K", self.recall_at_k),
            ("m1", self.m1),
            ("m2", self.m2),
        ]
        head = f"{self.n_queries} queries, {self.n_relevant} relevant retrieved snippets"
        return "\n".join([head, *(f"{name:<20} {interval}" for name, interval in rows)])


def measure(
    scored: Sequence[ScoredQuery], kept: Sequence[ArrayLike], *, level: float = 0.95
) -> Diagnostics:
    """Measure any choice of snippets: `kept` has one mask (n,) for each query.

    Raises ValueError where there is no query or a mask does not fit its query.
    """
    if not scored:
        raise ValueError("scored is empty; give the judged queries to measure on")
    masks = [np.asarray(mask, dtype=bool) for mask in kept]
    if [mask.shape for mask in masks] != [query.scores.shape for query in scored]:
        raise ValueError("kept does not fit scored; give one mask a query, one value a snippet")
    retrieved = _counts(len(query.scores) for query in scored)
    relevant = _counts(int(query.relevant.sum()) for query in scored)
    known = relevant + _counts(query.missed for query in scored)
    passed = _counts(int(mask.sum()) for mask in masks)
    covered = _counts(
        int((mask & query.relevant).sum()) for mask, query in zip(masks, scored, strict=True)
    )
    return Diagnostics(
        n_queries=len(scored),
        n_relevant=int(relevant.sum()),
        query_coverage=_mean_share(covered, relevant, level),
        snippet_coverage=cluster_interval(covered, relevant, level),
        removal=cluster_interval(retrieved - passed, retrieved, level),
        recall_at_k=_mean_share(relevant, known, level),
        m1=cluster_interval(passed > 0, np.ones(len(scored)), level),
        m2=_mean_share(passed, retrieved, level),
    )


def _mean_share(parts: NDArray[np.float64], wholes: NDArray[np.float64], level: float) -> Interval:
    """Return the mean over queries of part / whole, over those that have a whole."""
    some = wholes > 0
    return cluster_interval(parts[some] / wholes[some], np.ones(np.count_nonzero(some)), level)


def _counts(numbers: Iterable[int]) -> NDArray[np.float64]:
    return np.array(list(numbers), dtype=np.float64)
