"""Sentences end to end in both frameworks: real stores and text, judged, calibrated and filtered.

The texts are docstrings. The sentence that answers a question, which is a docstring's summary, is
the one behind it.
"""

from __future__ import annotations

import math

import pytest
from frameworks import (
    K,
    MiniLMEmbedding,
    MiniLMEmbeddings,
    calibration_at,
    halves,
    ids_of,
    index_retriever,
    langchain_retriever,
    snippets,
    texts_of,
    with_evidence,
)
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor import conformal as llama_index_conformal

import langchain_conformal
from conformal_retrievers import (
    Evidence,
    FunctionScorer,
    JudgedQuery,
    calibrate,
)
from conformal_retrievers.cli.docstrings import (
    docstring_corpus,
)
from conformal_retrievers.data.sentences import splitter
from langchain_conformal import ConformalCompressor, ConformalRetriever, HybridRetriever
from llama_index.postprocessor.conformal import ConformalPostprocessor

SENTENCES = splitter("sentences")


def texts_by_id(kept):
    return dict(zip(ids_of(kept), texts_of(kept), strict=True))


# --- judging --------------------------------------------------------------------------------------


def test_both_frameworks_judge_the_same_sentences():
    queries = with_evidence(halves()[0])
    one = langchain_conformal.judge_retriever(langchain_retriever(), queries, split="sentences")
    other = llama_index_conformal.judge_retriever(index_retriever(), queries, split="sentences")
    for a, b in zip(one, other, strict=True):
        sentences = [[(s.text, s.id, s.document, s.position) for s in q.snippets] for q in (a, b)]
        assert sentences[0] == sentences[1]
        assert (a.relevant, a.missed, a.split, a.k) == (b.relevant, b.missed, SENTENCES.name, K)
    assert any(q.missed for q in other)


@pytest.mark.parametrize(
    ("package", "make"),
    [(langchain_conformal, langchain_retriever), (llama_index_conformal, index_retriever)],
)
def test_judgements_of_documents_alone_are_refused_for_sentences(package, make):
    for split, message in (("sentences", "evidence"), ("words", "split")):
        with pytest.raises(ValueError, match=message):
            package.judge_retriever(make(), halves()[0][:2], split=split)


def test_evidence_of_a_source_needs_to_know_where_chunks_start():
    store = InMemoryVectorStore(MiniLMEmbeddings())
    store.add_documents([Document("One two. Three.", metadata={"source": "a", "start_index": -1})])
    asked = [JudgedQuery("Three?", [], [], evidence=[Evidence("a", 9, 15)])]
    with pytest.raises(ValueError, match="position"):
        langchain_conformal.judge_retriever(store.as_retriever(), asked, split="sentences")


def test_snippets_have_the_whole_numbers_that_say_where_they_start():
    starts = {"a": 7, "b": 7.0, "c": -1, "d": 0.5, "e": "7", "f": None, "g": True, "h": math.inf}
    given = [Document(name, metadata={"start_index": start}) for name, start in starts.items()]
    positions = {s.text: s.position for s in langchain_conformal.documents.to_snippets(given)}
    assert positions == {**dict.fromkeys(starts), "a": 7, "b": 7}


# --- survivors ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, None])
async def test_both_frameworks_keep_the_same_sentences_by_a_model_and_by_default(tmp_path, alpha):
    hybrid = HybridRetriever({"dense": langchain_retriever(), "few": langchain_retriever(4)})
    parts = {"dense": index_retriever(), "few": index_retriever(4)}
    one, other, scorers = {"split": "sentences"}, {"split": "sentences"}, []
    if alpha is not None:
        one |= {"embeddings": MiniLMEmbeddings(), "neighbours": 1}
        other |= {"embed_model": MiniLMEmbedding(), "neighbours": 1}
        scorers = [langchain_conformal.embedding_scorer(MiniLMEmbeddings())]
    queries = with_evidence([*halves()[0], *halves()[1]])
    judged = langchain_conformal.judge_retriever(hybrid, queries, split="sentences")
    path = tmp_path / "calibration.json"
    calibrate(judged, *scorers, alpha=alpha or 0.3).save(path)
    retriever = ConformalRetriever.from_calibration(path, retriever=hybrid, **one)
    compressor = ConformalCompressor.from_calibration(path, **one)
    engine = RetrieverQueryEngine.from_args(
        llama_index_conformal.HybridRetriever(parts),
        llm=MockLLM(),
        node_postprocessors=[ConformalPostprocessor.from_calibration(path, **other)],
    )
    by_id = {s.id: s.text for s in snippets()}
    asked = [query.query for query in docstring_corpus().questions[4::8][:15]]
    n_cut = n_kept = n_all = 0
    for query in langchain_conformal.judge_retriever(hybrid, asked, split="sentences"):
        question, kept = query.query, retriever.invoke(query.query)
        expected = [*texts_by_id(kept).items()]
        for again in (
            await retriever.ainvoke(question),
            compressor.compress_documents(hybrid.invoke(question), question),
            engine.query(question).source_nodes,
            (await engine.aquery(question)).source_nodes,
        ):
            assert [*texts_by_id(again).items()] == expected, question
        ranges = {document.id: document.metadata["conformal_ranges"] for document in kept}
        for id, text in expected:
            assert all(by_id[id][a:b] in text for a, b in ranges[id])
            n_cut += text != by_id[id]
        keeps = [
            any(a <= s.position < b for a, b in ranges.get(s.document, ())) for s in query.snippets
        ]
        if alpha is None:
            scores = retriever.filter.scorer.score(question, query.snippets)
            assert keeps == retriever.filter.calibration.keep(scores).tolist()
        n_kept, n_all = n_kept + sum(keeps), n_all + len(keeps)
    assert n_cut or alpha == 0.05
    assert 0 < n_kept < n_all * (0.5 if alpha is None else 1)


# --- chains and engines ---------------------------------------------------------------------------

BEES = "Bees make honey from nectar. The market fell on Monday. Bees store honey in combs."
KEPT = "Bees make honey from nectar. … Bees store honey in combs."
ABOUT = FunctionScorer(lambda query, texts: [float("Bees" not in text) for text in texts], "bees")


ABOUT_BEES = calibration_at(ABOUT, split=SENTENCES.name)
PRUNES = {"scorer": ABOUT, "split": "sentences"}


def bees_index():
    nodes = [TextNode(text=BEES, id_="1"), TextNode(text="The market fell.", id_="2")]
    return VectorStoreIndex(nodes, embed_model=MiniLMEmbedding())


async def test_a_streaming_engine_gives_the_model_the_kept_sentences_alone():
    postprocessor = ConformalPostprocessor.from_calibration(ABOUT_BEES, **PRUNES)
    engine = bees_index().as_query_engine(
        llm=MockLLM(), streaming=True, node_postprocessors=[postprocessor]
    )
    response = engine.query("Where?")
    answer = "".join(response.response_gen)
    assert texts_by_id(response.source_nodes) == {"1": KEPT}
    assert KEPT in answer
    assert "market" not in answer
    response = await engine.aquery("Where?")
    assert "".join([t async for t in response.async_response_gen()]) == answer


class ShortestFirst(BaseNodePostprocessor):
    """A reranker that has seen texts and embeddings."""

    seen: list[tuple[str, object]] = []  # noqa: RUF012 (a field)

    def _postprocess_nodes(self, nodes, query_bundle=None):
        self.seen.extend((n.node.get_content(), n.node.embedding) for n in nodes)
        return sorted(nodes, key=lambda node: len(node.node.get_content()))


async def test_a_reranker_behind_the_filter_sees_the_kept_text_and_no_stale_embedding():
    class Returns(BaseRetriever):
        def _retrieve(self, query_bundle):
            texts = {"1": BEES, "2": "The market fell.", "3": "Bees fly."}
            nodes = [TextNode(text=t, id_=id, embedding=[1.0, 0.0]) for id, t in texts.items()]
            return [NodeWithScore(node=node) for node in nodes]

    prune = ConformalPostprocessor.from_calibration(ABOUT_BEES, **PRUNES)
    reranker = ShortestFirst()
    engine = RetrieverQueryEngine.from_args(
        Returns(), llm=MockLLM(), node_postprocessors=[prune, reranker]
    )
    for response in (engine.query("Where?"), await engine.aquery("Where?")):
        found = [*texts_by_id(response.source_nodes).items()]
        assert found == [("3", "Bees fly."), ("1", KEPT)]
    assert reranker.seen == [(KEPT, None), ("Bees fly.", [1.0, 0.0])] * 2
