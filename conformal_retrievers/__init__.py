"""Conformal filters for retrieval: of a query's relevant snippets, a share ≥ 1 − alpha is kept.

A name is imported when it is first used. So a command answers Ctrl-C from its first moment, and a
filter in a service does not load what calibrates and evaluates.
"""

from __future__ import annotations

from importlib import import_module

from conformal_retrievers.version import __version__

TYPE_CHECKING = False  # importing `typing` takes longest of all that happens here
if TYPE_CHECKING:
    from typing import Any

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
    from conformal_retrievers.evaluation import compare, diagnose, evaluate
    from conformal_retrievers.filtering import ConformalFilter
    from conformal_retrievers.llm import LLM
    from conformal_retrievers.monitoring import Monitor
    from conformal_retrievers.results import Filtered, NothingKept
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
    from conformal_retrievers.sentence_filter import SentenceFilter

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

_NAMES = {
    "calibration.calibrating": ["calibrate"],
    "calibration.calibration": ["Calibration"],
    "calibration.checks": ["CalibrationMismatch"],
    "calibration.gate": ["Gate"],
    "calibration.gating": ["calibrate_gate"],
    "calibration.planning": ["plan"],
    "data.columns": ["ScoredQueries"],
    "data.jsonl": ["write_jsonl"],
    "data.queries": ["JudgedQuery", "ScoredQuery", "Snippet"],
    "data.ranges": ["Evidence"],
    "data.readers.reading": ["read"],
    "results": ["Filtered", "NothingKept"],
    "evaluation": ["compare", "diagnose", "evaluate"],
    "filtering": ["ConformalFilter"],
    "llm": ["LLM"],
    "monitoring": ["Monitor"],
    "sentence_filter": ["SentenceFilter"],
    "scoring": [
        "CrossEncoderScorer",
        "EmbeddingScorer",
        "FunctionScorer",
        "LLMScorer",
        "LearnedScorer",
        "RetrievalScorer",
        "Scorer",
        "score_queries",
    ],
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
