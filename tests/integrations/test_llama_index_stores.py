"""Real vector stores under LlamaIndex: embeddings of nodes, and stores beside BM25."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("chromadb")  # which `make test-all` installs
pytest.importorskip("faiss")
from frameworks import K, MiniLMEmbedding, filter_at, halves
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from vector_stores import STORES, chroma_in_memory

from conformal_retrievers import ConformalFilter, calibrate
from conformal_retrievers.data.hits import RETRIEVER, Hit
from conformal_retrievers.scoring import RankScorer
from llama_index.postprocessor.conformal import (
    ConformalPostprocessor,
    HybridRetriever,
    embedding_scorer,
    judge_retriever,
)


@pytest.fixture(scope="module")
def chroma():
    return chroma_in_memory("llama_index").as_retriever(similarity_top_k=K)


@pytest.fixture(scope="module")
def faiss():
    with STORES["faiss, l2"]("llama_index", None) as index:
        yield index.as_retriever(similarity_top_k=K)


def test_embeddings_of_nodes_are_reused_only_on_request(faiss):
    model = MiniLMEmbedding()
    found = faiss.retrieve("a string")
    for node in found:
        node.node.embedding = model.get_text_embedding(node.node.get_content("none"))
    expected = embedding_scorer(model)
    reusing = embedding_scorer(model, reuse_embeddings=True)
    assert reusing.name == expected.name
    queries = judge_retriever(faiss, halves()[0])
    other = embedding_scorer(MiniLMEmbedding())  # `expected` shall not know the texts already
    calibration = calibrate(queries, other, alpha=0.2)
    kept = []
    for scorer, texts in ((expected, K), (reusing, 0)):
        keep = ConformalPostprocessor(filter=ConformalFilter(scorer, calibration))
        model.calls = 0
        kept.append(keep.postprocess_nodes(found, query_str="a string"))
        assert model.calls == 1 + texts
    assert kept[0] == kept[1]


def test_another_store_behind_a_hybrid_retriever_is_warned_of(chroma, faiss):
    ours, others = HybridRetriever({"dense": chroma}), HybridRetriever({"dense": faiss})
    keep = ConformalPostprocessor(
        filter=ConformalFilter.of(calibrate(judge_retriever(ours, halves()[0]), alpha=0.2))
    )
    query = halves()[1][0].query
    keep.postprocess_nodes(ours.retrieve(query), query_str=query)
    with pytest.warns(UserWarning, match=r"'dense' is .*FaissVectorStore.* is of .*ChromaVector"):
        keep.postprocess_nodes(others.retrieve(query), query_str=query)


def test_a_fusion_of_llama_index_is_one_retriever_with_its_scores(chroma, faiss):
    options = {"mode": "reciprocal_rerank", "num_queries": 1, "similarity_top_k": K}
    fusion = QueryFusionRetriever([chroma, faiss], llm=MockLLM(), use_async=False, **options)
    for judged in judge_retriever(fusion, halves()[0][:3]):
        found = fusion.retrieve(judged.query)
        assert judged.k == K
        assert [s.hits for s in judged.snippets] == [
            (Hit(RETRIEVER, rank, node.score),) for rank, node in enumerate(found)
        ]
        keep = ConformalPostprocessor(filter=filter_at(RankScorer(), 1.0))
        assert keep.postprocess_nodes(found, query_str=judged.query) == found[:2]
