"""What a filter does to judged queries: coverage, removal, recall@K, m1 and m2, with intervals.

m1 is the share of queries of which anything is kept and m2 the mean share of snippets kept
(Geissler et al. 2026, arXiv 2605.05244). They need no judgements and are no coverage: m1 falls when
relevant snippets are missing from the K retrieved, and rises when irrelevant ones pass. So they are
reported beside recall@K and the coverage of relevant snippets.

The query is the unit of every interval (`conformal.cluster_interval`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from conformal_retrievers.calibration import Calibration
from conformal_retrievers.conformal import Interval
from conformal_retrievers.evaluation import evaluate
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


def diagnose(
    calibration: Calibration, scored: Iterable[ScoredQuery], *, level: float = 0.95
) -> Diagnostics:
    """Measure what the calibration's threshold does to judged queries that it was not made from.

    Raises what `evaluate` raises.
    """
    e = evaluate(calibration, scored, level=level)
    return Diagnostics(
        n_queries=e.n_queries,
        n_relevant=e.n_relevant,
        query_coverage=e.coverage["query-recall"].interval,
        snippet_coverage=e.coverage["snippet"].interval,
        removal=e.removal.interval,
        recall_at_k=e.recall_at_k.interval,
        m1=e.m1.interval,
        m2=e.m2.interval,
    )
