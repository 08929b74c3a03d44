"""Conformal filters for LlamaIndex: a node postprocessor and a query engine with a guarantee."""

from llama_index.postprocessor.conformal.base import ConformalPostprocessor
from llama_index.postprocessor.conformal.claims_events import (
    ConformalClaimsEvent,
    ConformalClaimsStartEvent,
)
from llama_index.postprocessor.conformal.engine import ClaimFilterQueryEngine
from llama_index.postprocessor.conformal.events import (
    ConformalEventHandler,
    ConformalFilterEvent,
)
from llama_index.postprocessor.conformal.judge import judge_retriever
from llama_index.postprocessor.conformal.scorers import as_llm, embedding_scorer, llm_scorer

__all__ = [
    "ClaimFilterQueryEngine",
    "ConformalClaimsEvent",
    "ConformalClaimsStartEvent",
    "ConformalEventHandler",
    "ConformalFilterEvent",
    "ConformalPostprocessor",
    "as_llm",
    "embedding_scorer",
    "judge_retriever",
    "llm_scorer",
]
