"""Conformal filters for retrieval: of a query's relevant snippets, a share ≥ 1 − alpha is kept."""

from conformal_retrievers.calibration import Calibration, CalibrationMismatch, calibrate, plan
from conformal_retrievers.claims import (
    AnnotatedAnswer,
    AnswerFilter,
    ClaimEvaluation,
    ClaimFilter,
    ClaimRelevance,
    ClaimScorer,
    FilteredAnswer,
    FilteredClaims,
    annotate,
    calibrate_claims,
    claim_relevance,
    decompose,
    evaluate_claims,
    merge,
)
from conformal_retrievers.data.beir import read_beir
from conformal_retrievers.data.jsonl import iter_jsonl, read_jsonl, write_jsonl
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery, Snippet
from conformal_retrievers.evaluation import Diagnosis, Evaluation, compare, diagnose, evaluate
from conformal_retrievers.filtering import (
    ConformalFilter,
    Filtered,
    NothingKept,
    Refused,
    Unscorable,
)
from conformal_retrievers.llm.ask import LLM
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.wire import openai_options
from conformal_retrievers.monitoring.log import FilterLog, read_log
from conformal_retrievers.monitoring.monitor import Monitor
from conformal_retrievers.scoring import (
    CachedScorer,
    Cascade,
    CrossEncoderScorer,
    EmbeddingScorer,
    FunctionScorer,
    LearnedScorer,
    LLMScorer,
    QueryZScore,
    RetrievalScorer,
    Scorer,
    TieBreak,
    score_queries,
)
from conformal_retrievers.version import __version__

__all__ = [
    "LLM",
    "AnnotatedAnswer",
    "AnswerFilter",
    "Cache",
    "CachedScorer",
    "Calibration",
    "CalibrationMismatch",
    "Cascade",
    "ClaimEvaluation",
    "ClaimFilter",
    "ClaimRelevance",
    "ClaimScorer",
    "ConformalFilter",
    "CrossEncoderScorer",
    "Diagnosis",
    "EmbeddingScorer",
    "Evaluation",
    "FilterLog",
    "Filtered",
    "FilteredAnswer",
    "FilteredClaims",
    "FunctionScorer",
    "JudgedQuery",
    "LLMScorer",
    "LearnedScorer",
    "Monitor",
    "NothingKept",
    "QueryZScore",
    "Refused",
    "RetrievalScorer",
    "ScoredQuery",
    "Scorer",
    "Snippet",
    "TieBreak",
    "Unscorable",
    "__version__",
    "annotate",
    "calibrate",
    "calibrate_claims",
    "claim_relevance",
    "compare",
    "decompose",
    "diagnose",
    "evaluate",
    "evaluate_claims",
    "iter_jsonl",
    "merge",
    "openai_options",
    "plan",
    "read_beir",
    "read_jsonl",
    "read_log",
    "score_queries",
    "write_jsonl",
]
