"""Conformal filters for retrieval: of a query's relevant snippets, a share ≥ 1 − alpha is kept.

A name is imported when it is first used. So a command answers Ctrl-C from its first moment, and a
filter in a service does not load what calibrates and evaluates.
"""

from __future__ import annotations

from importlib import import_module

from conformal_retrievers.version import __version__

# False, but not to an editor: it completes names that it believes are imported. To import `typing`
# for its constant would take longest of all that happens here.
TYPE_CHECKING = bool()  # noqa: UP018
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
    from conformal_retrievers.data import (
        Evidence,
        JudgedQuery,
        ScoredQuery,
        Snippet,
        read,
        write_jsonl,
    )
    from conformal_retrievers.data.columns import ScoredQueries
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

# A module imports from its own room or one before, so to look into these first loads little more.
_ROOMS = ["data", "data.columns", "llm", "scoring", "calibration", "results", "filtering"]
_ROOMS += ["sentence_filter", "monitoring", "evaluation"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        for room in _ROOMS:
            module = import_module(f"{__name__}.{room}")
            if hasattr(module, name):
                globals()[name] = getattr(module, name)
                return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
