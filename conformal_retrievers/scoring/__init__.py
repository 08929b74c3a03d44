"""Scorers: a query and its snippets in, nonconformity scores out (lower = more relevant)."""

from conformal_retrievers.scoring.embedding import EmbeddingScorer
from conformal_retrievers.scoring.retrieval import RetrievalScorer
from conformal_retrievers.scoring.scorer import (
    AsyncScorer,
    Scorer,
    ascore_snippets,
    score_queries,
    score_snippets,
)

__all__ = [
    "AsyncScorer",
    "EmbeddingScorer",
    "RetrievalScorer",
    "Scorer",
    "ascore_snippets",
    "score_queries",
    "score_snippets",
]
