"""Conformal filters for LangChain: a retriever, a document compressor and a filter of answers."""

from langchain_conformal.answers import answer_queries
from langchain_conformal.claims import answer_filter_runnable
from langchain_conformal.compressor import ConformalCompressor
from langchain_conformal.confidence import confidence_runnable
from langchain_conformal.events import ConformalCallbackHandler
from langchain_conformal.hybrid import HybridRetriever
from langchain_conformal.judge import judge_retriever, label_retriever
from langchain_conformal.retriever import ConformalRetriever
from langchain_conformal.scorers import as_llm, as_scorer, decision_scorer, embedding_scorer
from langchain_conformal.tool import search_tool
from langchain_conformal.unanswerable import without_answers

__all__ = ["ConformalCallbackHandler", "ConformalCompressor", "ConformalRetriever"]
__all__ += ["HybridRetriever", "answer_filter_runnable", "answer_queries", "as_llm", "as_scorer"]
__all__ += ["confidence_runnable", "decision_scorer", "embedding_scorer", "judge_retriever"]
__all__ += ["label_retriever", "search_tool", "without_answers"]
