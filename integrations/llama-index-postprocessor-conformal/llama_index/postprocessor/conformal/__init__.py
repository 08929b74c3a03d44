"""Conformal filters for LlamaIndex: a node postprocessor with a guarantee."""

from llama_index.postprocessor.conformal.base import ConformalPostprocessor
from llama_index.postprocessor.conformal.judge import judge_retriever
from llama_index.postprocessor.conformal.scorers import as_llm, embedding_scorer, llm_scorer

__all__ = ["ConformalPostprocessor", "as_llm", "embedding_scorer", "judge_retriever", "llm_scorer"]
