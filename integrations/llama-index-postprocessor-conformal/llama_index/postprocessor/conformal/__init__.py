"""Conformal filters for LlamaIndex: a node postprocessor and a query engine with a guarantee."""

from llama_index.postprocessor.conformal.answers import answer_queries
from llama_index.postprocessor.conformal.base import ConformalPostprocessor
from llama_index.postprocessor.conformal.confidence import ConfidenceQueryEngine
from llama_index.postprocessor.conformal.engine import ClaimFilterQueryEngine
from llama_index.postprocessor.conformal.events import (
    ConformalClaimsEvent,
    ConformalClaimsStartEvent,
    ConformalEventHandler,
    ConformalFilterEvent,
)
from llama_index.postprocessor.conformal.hybrid import HybridRetriever
from llama_index.postprocessor.conformal.judge import judge_retriever, label_retriever
from llama_index.postprocessor.conformal.nodes import NodeWithHits
from llama_index.postprocessor.conformal.scorers import as_llm, as_scorer, embedding_scorer
from llama_index.postprocessor.conformal.tool import search_tool
from llama_index.postprocessor.conformal.unanswerable import without_answers

__all__ = ["ClaimFilterQueryEngine", "ConfidenceQueryEngine", "ConformalClaimsEvent"]
__all__ += ["ConformalClaimsStartEvent", "ConformalEventHandler", "ConformalFilterEvent"]
__all__ += ["ConformalPostprocessor", "HybridRetriever", "NodeWithHits"]
__all__ += ["answer_queries", "as_llm", "as_scorer", "embedding_scorer", "judge_retriever"]
__all__ += ["label_retriever", "search_tool", "without_answers"]
