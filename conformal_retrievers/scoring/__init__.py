"""Scorers: a query and its snippets in, nonconformity scores out (lower = more relevant)."""

from conformal_retrievers.scoring.combine import CachedScorer, Cascade, QueryZScore, TieBreak
from conformal_retrievers.scoring.cross_encoder import CrossEncoderScorer
from conformal_retrievers.scoring.embedding import EmbeddingScorer
from conformal_retrievers.scoring.hits import FusionScorer, HitScorer, RankScorer, retrievers_of
from conformal_retrievers.scoring.learned import LearnedScorer
from conformal_retrievers.scoring.overlap import OverlapScorer
from conformal_retrievers.scoring.pruner import ProvenceScorer
from conformal_retrievers.scoring.rating import By, LLMScorer, Ratings
from conformal_retrievers.scoring.rebuild import scorer_of
from conformal_retrievers.scoring.retrieval import FunctionScorer, RetrievalScorer
from conformal_retrievers.scoring.scorer import (
    Scorer,
    Scores,
    ascore_snippets,
    judged_queries,
    relative_to_query,
    score_queries,
    score_snippets,
)

__all__ = [
    "By",
    "CachedScorer",
    "Cascade",
    "CrossEncoderScorer",
    "EmbeddingScorer",
    "FunctionScorer",
    "FusionScorer",
    "HitScorer",
    "LLMScorer",
    "LearnedScorer",
    "OverlapScorer",
    "ProvenceScorer",
    "QueryZScore",
    "RankScorer",
    "Ratings",
    "RetrievalScorer",
    "Scorer",
    "Scores",
    "TieBreak",
    "ascore_snippets",
    "judged_queries",
    "relative_to_query",
    "retrievers_of",
    "score_queries",
    "score_snippets",
    "scorer_of",
]
