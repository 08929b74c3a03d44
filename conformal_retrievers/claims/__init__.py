"""Claims of answers: with probability ≥ 1 − α, all kept claims of an answer are factual.

`answers` has the scores of answers and their files, `scores` the relevance of claims, and `llm`
what an LLM does with them. Feng et al. 2025, Conformal-RAG (arXiv 2506.20978).
"""

from conformal_retrievers.claims.answer_filter import (
    AnswerFilter,
    FilteredAnswer,
    annotate_claims_span,
    claims_event_of,
)
from conformal_retrievers.claims.answers import (
    AnnotatedAnswer,
    answer_scores,
    read_answers,
    write_answers,
)
from conformal_retrievers.claims.calibrate import calibrate_claims
from conformal_retrievers.claims.evaluation import ClaimEvaluation, evaluate_claims
from conformal_retrievers.claims.filter import ClaimFilter, FilteredClaims
from conformal_retrievers.claims.llm import (
    Annotations,
    Decomposition,
    Merged,
    annotate,
    decompose,
    merge,
)
from conformal_retrievers.claims.scores import ClaimRelevance, ClaimScorer, claim_relevance

__all__ = [
    "AnnotatedAnswer",
    "Annotations",
    "AnswerFilter",
    "ClaimEvaluation",
    "ClaimFilter",
    "ClaimRelevance",
    "ClaimScorer",
    "Decomposition",
    "FilteredAnswer",
    "FilteredClaims",
    "Merged",
    "annotate",
    "annotate_claims_span",
    "answer_scores",
    "calibrate_claims",
    "claim_relevance",
    "claims_event_of",
    "decompose",
    "evaluate_claims",
    "merge",
    "read_answers",
    "write_answers",
]
