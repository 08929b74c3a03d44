"""Conformal filters for retrieval: each relevant snippet is kept with probability ≥ 1 − alpha."""

from conformal_retrievers.beir import read_beir
from conformal_retrievers.calibration import Calibration, calibrate
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
    "read_beir",
    "read_jsonl",
    "score_queries",
    "write_jsonl",
]
