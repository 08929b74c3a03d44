"""`without_answers` refuses retrievers whose ranks and scores tell what was taken out."""

from __future__ import annotations

import pytest

pytest.importorskip("langchain_chroma")  # which `make test-all` installs
from frameworks import OfNodes, halves, langchain_retriever, vector_index
from langchain_classic.retrievers import EnsembleRetriever
from langchain_core.retrievers import BaseRetriever as LangChainRetriever
from langchain_core.runnables import ConfigurableField
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.postprocessor import conformal as llama_index_conformal

import langchain_conformal

QUERIES = halves()[0][:3]


def index():
    return vector_index().as_retriever(similarity_top_k=2)


class Named(LangChainRetriever):
    """Has another retriever as a field."""

    inside: LangChainRetriever

    def _get_relevant_documents(self, query, *, run_manager):
        return self.inside.invoke(query)


def ensemble():
    return EnsembleRetriever(
        retrievers=[langchain_retriever(), langchain_retriever()], weights=[0.5, 0.5]
    )


def fusion():
    return QueryFusionRetriever([index(), index()], llm=MockLLM(), num_queries=1)


@pytest.mark.parametrize(
    ("package", "make"),
    [
        (langchain_conformal, ensemble),
        (langchain_conformal, lambda: ensemble().with_retry().with_config(tags=["mine"])),
        (
            langchain_conformal,
            lambda: langchain_conformal.HybridRetriever(
                {"a": langchain_retriever(), "b": ensemble()}
            ),
        ),
        (langchain_conformal, lambda: Named(inside=ensemble())),
        (
            langchain_conformal,
            lambda: (
                langchain_retriever()
                .configurable_alternatives(ConfigurableField(id="which"), fused=ensemble())
                .with_config(configurable={"which": "fused"})
            ),
        ),
        (langchain_conformal, lambda: langchain_retriever().with_fallbacks([ensemble()])),
        (llama_index_conformal, fusion),
        (llama_index_conformal, lambda: OfNodes(fusion())),
        (
            llama_index_conformal,
            lambda: llama_index_conformal.HybridRetriever({"a": index(), "b": fusion()}),
        ),
    ],
)
def test_a_retriever_that_fuses_is_refused(package, make):
    with pytest.raises(ValueError, match=r"retriever is (Ensemble|QueryFusion).*HybridRetriever"):
        package.without_answers(make(), QUERIES, deeper=make())


def test_an_alternative_that_is_not_configured_may_fuse():
    retriever = langchain_retriever().configurable_alternatives(
        ConfigurableField(id="which"), fused=ensemble()
    )
    made = langchain_conformal.without_answers(retriever, QUERIES)
    assert made == langchain_conformal.without_answers(langchain_retriever(), QUERIES)
