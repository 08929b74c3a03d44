"""Conformal filters for LangChain: a retriever and a document compressor with a guarantee."""

from langchain_conformal.compressor import ConformalCompressor
from langchain_conformal.judge import judge_retriever
from langchain_conformal.retriever import ConformalRetriever
from langchain_conformal.scorers import as_llm, embedding_scorer, llm_scorer

__all__ = [
    "ConformalCompressor",
    "ConformalRetriever",
    "as_llm",
    "embedding_scorer",
    "judge_retriever",
    "llm_scorer",
]
