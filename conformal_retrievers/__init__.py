"""Conformal filters for retrieval: of a query's relevant snippets, a share ≥ 1 − alpha is kept."""

from conformal_retrievers.beir import read_beir
from conformal_retrievers.calibration import Calibration, calibrate
from conformal_retrievers.certify import certify
from conformal_retrievers.choosing import coverage_curve, threshold_for_budget
from conformal_retrievers.diagnostics import Diagnosis, diagnose
from conformal_retrievers.evaluation import Diagnostics
from conformal_retrievers.filtering import (
    CalibrationMismatch,
    ConformalFilter,
    Filtered,
    NothingKept,
)
from conformal_retrievers.judged import (
    JudgedQuery,
    ScoredQuery,
    Snippet,
    read_jsonl,
    write_jsonl,
)
from conformal_retrievers.planning import plan, promise
from conformal_retrievers.scoring import (
    EmbeddingScorer,
    RetrievalScorer,
    Scorer,
    score_queries,
)
from conformal_retrievers.version import __version__

__all__ = [
    "Calibration",
    "CalibrationMismatch",
    "ConformalFilter",
    "Diagnosis",
    "Diagnostics",
    "EmbeddingScorer",
    "Filtered",
    "JudgedQuery",
    "NothingKept",
    "RetrievalScorer",
    "ScoredQuery",
    "Scorer",
    "Snippet",
    "__version__",
    "calibrate",
    "certify",
    "coverage_curve",
    "diagnose",
    "plan",
    "promise",
    "read_beir",
    "read_jsonl",
    "score_queries",
    "threshold_for_budget",
    "write_jsonl",
]
