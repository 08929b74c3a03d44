"""Conformal filters for retrieval: of a query's relevant snippets, a share ≥ 1 − alpha is kept."""

from conformal_retrievers.calibration import (
    Calibration,
    CalibrationMismatch,
    Gate,
    calibrate,
    calibrate_gate,
    plan,
)
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.jsonl import write_jsonl
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery, Snippet
from conformal_retrievers.data.ranges import Evidence
from conformal_retrievers.data.readers.reading import read
from conformal_retrievers.decisions import Filtered, NothingKept
from conformal_retrievers.evaluation import compare, diagnose, evaluate
from conformal_retrievers.filtering import ConformalFilter
from conformal_retrievers.llm import LLM
from conformal_retrievers.monitoring import Monitor
from conformal_retrievers.pruning import SentenceFilter
from conformal_retrievers.scoring import (
    CrossEncoderScorer,
    EmbeddingScorer,
    FunctionScorer,
    LearnedScorer,
    LLMScorer,
    RetrievalScorer,
    Scorer,
    score_queries,
)
from conformal_retrievers.version import __version__

__all__ = [
    "LLM",
    "Calibration",
    "CalibrationMismatch",
    "ConformalFilter",
    "CrossEncoderScorer",
    "EmbeddingScorer",
    "Evidence",
    "Filtered",
    "FunctionScorer",
    "Gate",
    "JudgedQuery",
    "LLMScorer",
    "LearnedScorer",
    "Monitor",
    "NothingKept",
    "RetrievalScorer",
    "ScoredQueries",
    "ScoredQuery",
    "Scorer",
    "SentenceFilter",
    "Snippet",
    "__version__",
    "calibrate",
    "calibrate_gate",
    "compare",
    "diagnose",
    "evaluate",
    "plan",
    "read",
    "score_queries",
    "write_jsonl",
]
