"""Scorers: a query and its snippets in, nonconformity scores out (lower = more relevant).

A query scorer returns one number for the query (lower = it looks answered).
"""

from conformal_retrievers.scoring.cohere import CohereScorer
from conformal_retrievers.scoring.combine import QueryZScore
from conformal_retrievers.scoring.cross_encoder import CrossEncoderScorer
from conformal_retrievers.scoring.embedding import EmbeddingScorer
from conformal_retrievers.scoring.function import FunctionScorer
from conformal_retrievers.scoring.hits import (
    FusionScorer,
    RankScorer,
    RetrievalScorer,
    retrievers_of,
)
from conformal_retrievers.scoring.learned.queries import LearnedQueryScorer
from conformal_retrievers.scoring.learned.score import LearnedScorer
from conformal_retrievers.scoring.llm_verdict import LLMVerdict
from conformal_retrievers.scoring.pruner import ProvenceScorer
from conformal_retrievers.scoring.query_scorer import (
    BestScore,
    QueryScorer,
    ascore_query,
    score_query,
)
from conformal_retrievers.scoring.rating import By, LLMScorer, Ratings
from conformal_retrievers.scoring.registry import scorer_of
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
    "BestScore",
    "By",
    "CohereScorer",
    "CrossEncoderScorer",
    "EmbeddingScorer",
    "FunctionScorer",
    "FusionScorer",
    "LLMScorer",
    "LLMVerdict",
    "LearnedQueryScorer",
    "LearnedScorer",
    "ProvenceScorer",
    "QueryScorer",
    "QueryZScore",
    "RankScorer",
    "Ratings",
    "RetrievalScorer",
    "Scorer",
    "Scores",
    "ascore_query",
    "ascore_snippets",
    "judged_queries",
    "relative_to_query",
    "retrievers_of",
    "score_queries",
    "score_query",
    "score_snippets",
    "scorer_of",
]
