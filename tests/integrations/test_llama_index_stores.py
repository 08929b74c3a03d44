"""Real vector stores under LlamaIndex: embeddings of nodes, and stores beside BM25."""

from __future__ import annotations

import itertools
from functools import cache

import pytest

pytestmark = pytest.mark.slow

chromadb = pytest.importorskip("chromadb")  # which `make test-all` installs
faiss = pytest.importorskip("faiss")
from frameworks import K, MiniLMEmbedding, halves, snippets
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import TextNode
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_index.vector_stores.faiss import FaissVectorStore

from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    ScoredQuery,
    calibrate,
)
from conformal_retrievers.data.hits import RETRIEVER, Hit
from conformal_retrievers.scoring import FusionScorer, RankScorer
from llama_index.postprocessor.conformal import (
    ConformalPostprocessor,
    HybridRetriever,
    embedding_scorer,
    judge_retriever,
)

_names = itertools.count()


def chroma(space):
    client = chromadb.EphemeralClient()
    metadata = {"hnsw:space": space}
    return ChromaVectorStore(client.create_collection(f"test-{next(_names)}", metadata=metadata))


STORES = {
    "chroma, cosine": lambda: chroma("cosine"),
    "faiss, l2": lambda: FaissVectorStore(faiss.IndexFlatL2(384)),
    "faiss, inner product": lambda: FaissVectorStore(faiss.IndexFlatIP(384)),
}


@cache
def index(store) -> VectorStoreIndex:
    context = StorageContext.from_defaults(vector_store=STORES[store]())
    nodes = [
        TextNode(
            text=s.text,
            id_=s.id,
            metadata={"document": s.document},
            excluded_embed_metadata_keys=["document"],
        )
        for s in snippets()
    ]
    return VectorStoreIndex(nodes, storage_context=context, embed_model=MiniLMEmbedding())


def retriever(store, k=K):
    return index(store).as_retriever(similarity_top_k=k)


def test_embeddings_of_nodes_are_reused_only_on_request():
    model = MiniLMEmbedding()
    found = retriever("faiss, l2").retrieve("a string")
    for node in found:
        node.node.embedding = model.get_text_embedding(node.node.get_content("none"))
    expected = embedding_scorer(model)
    reusing = embedding_scorer(model, reuse_embeddings=True)
    assert reusing.name == expected.name
    queries = judge_retriever(retriever("faiss, l2"), halves()[0])
    other = embedding_scorer(MiniLMEmbedding())  # `expected` shall not know the texts already
    calibration = calibrate(queries, other, alpha=0.2)
    kept = []
    for scorer, texts in ((expected, K), (reusing, 0)):
        keep = ConformalPostprocessor(filter=ConformalFilter(scorer, calibration))
        model.calls = 0
        kept.append(keep.postprocess_nodes(found, query_str="a string"))
        assert model.calls == 1 + texts
    assert kept[0] == kept[1]


async def test_a_store_and_bm25_are_filtered_from_one_file(tmp_path):
    dense = retriever("chroma, cosine")
    words = BM25Retriever.from_defaults(
        nodes=[TextNode(text=s.text, id_=s.id) for s in snippets()], similarity_top_k=K
    )
    hybrid = HybridRetriever({"dense": dense, "bm25": words})
    judged = judge_retriever(hybrid, halves()[0])
    assert {query.k for query in judged} == {2 * K}
    assert all(hit.score is not None for q in judged for s in q.snippets for hit in s.hits)
    path = tmp_path / "calibration.json"
    calibrate(judged, FusionScorer(["dense", "bm25"]), alpha=0.2).save(path)
    keep = ConformalPostprocessor.from_calibration(path)
    threshold, kept, found = Calibration.load(path).threshold(), 0, 0
    for query in halves()[1][:5]:
        sums: dict[str, float] = {}
        for nodes in (dense.retrieve(query.query), words.retrieve(query.query)):
            for rank, node in enumerate(nodes):
                sums[node.node_id] = sums.get(node.node_id, 0.0) + 1 / (60 + rank + 1)
        passing = {id for id, total in sums.items() if -total <= threshold}
        nodes = await hybrid.aretrieve(query.query)
        assert nodes == hybrid.retrieve(query.query)
        survivors = keep.postprocess_nodes(nodes, query_str=query.query)
        assert {node.node_id for node in survivors} == passing
        kept, found = kept + len(passing), found + len(sums)
    assert 0 < kept < found


def test_another_store_behind_a_hybrid_retriever_is_warned_of():
    ours, others = (
        HybridRetriever({"dense": retriever(store)})
        for store in ("chroma, cosine", "faiss, inner product")
    )
    keep = ConformalPostprocessor(
        filter=ConformalFilter.of(calibrate(judge_retriever(ours, halves()[0]), alpha=0.2))
    )
    query = halves()[1][0].query
    keep.postprocess_nodes(ours.retrieve(query), query_str=query)
    with pytest.warns(UserWarning, match=r"'dense' is .*FaissVectorStore.* is of .*ChromaVector"):
        keep.postprocess_nodes(others.retrieve(query), query_str=query)


def test_a_fusion_of_llama_index_is_one_retriever_with_its_scores():
    fusion = QueryFusionRetriever(
        [retriever("chroma, cosine"), retriever("faiss, inner product")],
        llm=MockLLM(),
        mode="reciprocal_rerank",
        num_queries=1,
        similarity_top_k=K,
        use_async=False,
    )
    for judged in judge_retriever(fusion, halves()[0][:3]):
        found = fusion.retrieve(judged.query)
        assert judged.k == K
        assert [s.hits for s in judged.snippets] == [
            (Hit(RETRIEVER, rank, node.score),) for rank, node in enumerate(found)
        ]
        keep = ConformalPostprocessor.from_calibration(
            Calibration.from_scores(
                [ScoredQuery([1.0], [True])],
                alpha=0.5,
                scorer="rank(retriever)",
                scorer_provenance=RankScorer().provenance,
            )
        )
        assert keep.postprocess_nodes(found, query_str=judged.query) == found[:2]
