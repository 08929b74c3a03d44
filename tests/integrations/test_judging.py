"""What cannot be judged through, in both frameworks, and the remedy that is named."""

from __future__ import annotations

import re

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode
from llama_index.core.tools import RetrieverTool
from llama_index.postprocessor import conformal as llama_index_conformal
from lookup import LookupScorer

import langchain_conformal
from conformal_retrievers import Calibration, ConformalFilter, JudgedQuery, ScoredQuery
from langchain_conformal import ConformalCompressor, ConformalRetriever

QUERY = JudgedQuery("q", ["near", "far"], [True, False], id="1")


@pytest.fixture
def conformal_filter():
    calibration = Calibration.from_scores([ScoredQuery([0.5], [True])], alpha=0.5, scorer="lookup")
    return ConformalFilter(LookupScorer({"near": 0.1, "far": 0.9}), calibration)


def found():
    return RunnableLambda(lambda query: [Document("near"), Document("far")])


def index():
    return VectorStoreIndex([TextNode(text="near")], embed_model=MockEmbedding(embed_dim=4))


# --- LangChain ------------------------------------------------------------------------------------


def as_it_is(retriever):
    return retriever


def with_alpha(retriever):
    return retriever.configurable_fields(alpha=ConfigurableField(id="alpha"))


def with_config(retriever):
    return retriever.with_config(tags=["ours"])


def with_retries(retriever):
    return retriever.with_retry()


@pytest.mark.parametrize("wrapped", [as_it_is, with_alpha, with_config, with_retries])
def test_a_retriever_that_filters_already_is_no_retriever_to_calibrate(conformal_filter, wrapped):
    filtered = ConformalRetriever(retriever=found(), filter=conformal_filter)
    with pytest.raises(ValueError, match=r"ConformalRetriever.*give.* filtered\.retriever"):
        langchain_conformal.judge_retriever(wrapped(filtered), [QUERY])
    (judged,) = langchain_conformal.judge_retriever(filtered.retriever, [QUERY])
    assert [snippet.text for snippet in judged.snippets] == ["near", "far"]


@pytest.mark.parametrize("in_pipeline", [False, True])
def test_nor_is_one_that_compresses_with_the_filter(conformal_filter, in_pipeline):
    compressor = ConformalCompressor(filter=conformal_filter)
    if in_pipeline:
        compressor = DocumentCompressorPipeline(transformers=[compressor])
    filtered = ContextualCompressionRetriever(base_compressor=compressor, base_retriever=found())
    with pytest.raises(ValueError, match=r"ContextualCompressionRetriever.*\.base_retriever"):
        langchain_conformal.judge_retriever(filtered, [QUERY])


def test_a_store_and_a_function_are_no_retrievers_of_langchain():
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=4))
    with pytest.raises(TypeError, match=r"is a InMemoryVectorStore; give.*\.as_retriever\("):
        langchain_conformal.judge_retriever(store, [QUERY])
    with pytest.raises(TypeError, match=r"is a function; give.*RunnableLambda\(function\)"):
        langchain_conformal.judge_retriever(lambda query: [], [QUERY])


# --- LlamaIndex -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        index,
        lambda: index().as_query_engine(llm=MockLLM()),
        lambda: RetrieverTool.from_defaults(index().as_retriever()),
    ],
    ids=["index", "engine", "tool"],
)
def test_an_index_an_engine_and_a_tool_are_no_retrievers_of_llama_index(make):
    given = make()
    said = f"retriever is a {type(given).__name__}; give a retriever, such as index.as_retriever("
    with pytest.raises(TypeError, match=re.escape(said)):
        llama_index_conformal.judge_retriever(given, [QUERY])


# --- either ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("judged", "said"),
    [
        (["q"], "judged[0] is 'q'"),
        ("q", "judged[0] is 'q'"),
        ([QUERY, {"query": "q"}], "judged[1] is {'query': 'q'}"),
        ([("q", ["near"])], "judged[0] is ('q', ['near'])"),
    ],
)
@pytest.mark.parametrize(
    ("package", "retriever"),
    [(langchain_conformal, found), (llama_index_conformal, lambda: index().as_retriever())],
    ids=["LangChain", "LlamaIndex"],
)
def test_queries_that_are_not_judged_are_named(package, retriever, judged, said):
    with pytest.raises(TypeError, match=re.escape(said)) as refused:
        package.judge_retriever(retriever(), judged)
    assert "give JudgedQuery(query, snippets, relevant)" in str(refused.value)
