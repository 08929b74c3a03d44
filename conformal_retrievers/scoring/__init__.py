"""Scorers: a query and its snippets in, nonconformity scores out (lower = more relevant)."""

from conformal_retrievers.scoring.combine import Cascade, QueryZScore, TieBreak
from conformal_retrievers.scoring.cross_encoder import CrossEncoderScorer
from conformal_retrievers.scoring.embedding import EmbeddingScorer
from conformal_retrievers.scoring.learned import LearnedScorer
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
    "Cascade",
    "CrossEncoderScorer",
    "EmbeddingScorer",
    "LearnedScorer",
    "QueryZScore",
    "RetrievalScorer",
    "Scorer",
    "TieBreak",
    "ascore_snippets",
    "score_queries",
    "score_snippets",
]
