"""Real vector stores under LlamaIndex: what their scores mean, judged and filtered as retrieved."""

from __future__ import annotations

import itertools
from functools import cache

import pytest

pytestmark = pytest.mark.slow

chromadb = pytest.importorskip("chromadb")  # which only the extra `dev` installs
faiss = pytest.importorskip("faiss")
from frameworks import MODEL, K, MiniLMEmbedding, cosine, halves, snippets
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import TextNode
from llama_index.vector_stores.chroma import ChromaVectorStore
from llama_index.vector_stores.faiss import FaissVectorStore

from conformal_retrievers import ConformalFilter, RetrievalScorer, calibrate
from llama_index.postprocessor.conformal import (
    ConformalPostprocessor,
    embedding_scorer,
    judge_retriever,
)

_names = itertools.count()


def chroma(space):
    client = chromadb.EphemeralClient()
    metadata = {"hnsw:space": space}
    return ChromaVectorStore(client.create_collection(f"test-{next(_names)}", metadata=metadata))


STORES = {
    "chroma, l2": lambda: chroma("l2"),
    "chroma, cosine": lambda: chroma("cosine"),
    "faiss, l2": lambda: FaissVectorStore(faiss.IndexFlatL2(384)),
    "faiss, inner product": lambda: FaissVectorStore(faiss.IndexFlatIP(384)),
}
HIGHER_IS_BETTER = {
    "chroma, l2": True,  # exp(−distance)
    "chroma, cosine": True,
    "faiss, l2": False,  # the distance itself
    "faiss, inner product": True,
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


each_store = pytest.mark.parametrize("store", STORES)


@each_store
def test_judged_queries_have_the_snippets_the_store_and_the_depth(store):
    queries = halves()[0][:10]
    name = type(index(store).vector_store).__name__
    for old, new in zip(queries, judge_retriever(retriever(store), queries), strict=True):
        found = retriever(store).retrieve(old.query)
        relevant = {s.id for s, r in zip(old.snippets, old.relevant, strict=True) if r}
        assert [s.id for s in new.snippets] == [n.node_id for n in found]
        assert [s.text for s in new.snippets] == [n.node.get_content("none") for n in found]
        assert [s.retrieval_score for s in new.snippets] == [n.score for n in found]
        assert list(new.relevant) == [n.node_id in relevant for n in found]
        assert new.missed == len(relevant) - sum(new.relevant)
        assert (new.retriever, new.k) == (f"VectorIndexRetriever({name}, {MODEL})", K)


@each_store
def test_the_score_of_each_store_has_the_stated_direction(store):
    query = halves()[1][0].query
    found = retriever(store).retrieve(query)
    by_score = sorted(found, key=lambda n: n.score, reverse=HIGHER_IS_BETTER[store])
    near = [cosine(query, n.node.get_content("none")) for n in by_score]
    assert near == sorted(near, reverse=True)
    assert all(type(node.score) is float for node in found)


@each_store
def test_each_store_keeps_the_nearest_by_its_own_score(store):
    judged = judge_retriever(retriever(store), halves()[0])
    wrong = RetrievalScorer(store, higher_is_better=not HIGHER_IS_BETTER[store])
    with pytest.warns(UserWarning, match=r"relevant snippets score higher than irrelevant ones"):
        calibrate(judged, wrong, alpha=0.2)

    scorer = RetrievalScorer(store, higher_is_better=HIGHER_IS_BETTER[store])
    keep = ConformalPostprocessor(
        filter=ConformalFilter(scorer, calibrate(judged, scorer, alpha=0.2))
    )
    kept = 0
    for query in halves()[1]:
        found = retriever(store).retrieve(query.query)
        survivors = keep.postprocess_nodes(found, query_str=query.query)
        near = [cosine(query.query, n.node.get_content("none")) for n in survivors]
        dropped = [n for n in found if n.node_id not in {s.node_id for s in survivors}]
        far = [cosine(query.query, n.node.get_content("none")) for n in dropped]
        assert not near or not far or min(near) > max(far) - 1e-6
        kept += len(survivors)
    assert 0 < kept < K * len(halves()[1])


@each_store
async def test_a_deeper_retriever_than_the_calibrated_one_gives_a_warning(store):
    judged = judge_retriever(retriever(store), halves()[0])
    for scorer in (
        embedding_scorer(MiniLMEmbedding()),
        RetrievalScorer(store, higher_is_better=HIGHER_IS_BETTER[store]),
    ):
        keep = ConformalPostprocessor(
            filter=ConformalFilter(scorer, calibrate(judged, scorer, alpha=0.2))
        )
        deeper = retriever(store, K + 1).retrieve("a string")
        with pytest.warns(UserWarning, match=f"more snippets than k = {K}, the depth"):
            keep.postprocess_nodes(deeper, query_str="a string")
        with pytest.warns(UserWarning, match=f"more snippets than k = {K}, the depth"):
            await keep.apostprocess_nodes(deeper, query_str="a string")
        keep.postprocess_nodes(deeper[:K], query_str="a string")  # no warning


def test_embeddings_of_nodes_are_reused_only_on_request():
    model = MiniLMEmbedding()
    found = retriever("faiss, l2").retrieve("a string")
    for node in found:
        node.node.embedding = model.get_text_embedding(node.node.get_content("none"))
    expected = embedding_scorer(model)
    reusing = embedding_scorer(model, reuse_embeddings=True)
    assert reusing.name == expected.name
    queries = judge_retriever(retriever("faiss, l2"), halves()[0])
    calibration = calibrate(queries, expected, alpha=0.2)
    kept = []
    for scorer, texts in ((expected, K), (reusing, 0)):
        keep = ConformalPostprocessor(filter=ConformalFilter(scorer, calibration))
        model.calls = 0
        kept.append(keep.postprocess_nodes(found, query_str="a string"))
        assert model.calls == 1 + texts
    assert kept[0] == kept[1]


def test_a_retriever_of_unknown_depth_has_none():
    class Untold(BaseRetriever):
        def _retrieve(self, query_bundle):
            return retriever("faiss, l2").retrieve(query_bundle.query_str)

    judged = judge_retriever(Untold(), halves()[0][:3])
    assert [query.k for query in judged] == [None] * 3
    assert all(query.snippets for query in judged)
