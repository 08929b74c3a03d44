"""Sentences end to end in both frameworks: real stores and text, judged, calibrated and filtered.

The texts are docstrings. The sentence that answers a question, which is a docstring's summary, is
the one behind it.
"""

from __future__ import annotations

import math
from functools import cache

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
    vector_index,
    with_evidence,
)
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
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


@cache
def judged_in_langchain():
    return langchain_conformal.judge_retriever(
        langchain_retriever(), with_evidence(halves()[0]), split="sentences"
    )


def texts_by_id(kept):
    return dict(zip(ids_of(kept), texts_of(kept), strict=True))


def question_engine(postprocessor, **options):
    return vector_index().as_query_engine(
        llm=MockLLM(), similarity_top_k=K, node_postprocessors=[postprocessor], **options
    )


# --- judging --------------------------------------------------------------------------------------


def test_both_frameworks_judge_the_same_sentences():
    other = llama_index_conformal.judge_retriever(
        index_retriever(), with_evidence(halves()[0]), split="sentences"
    )
    for a, b in zip(judged_in_langchain(), other, strict=True):
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
@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5])
async def test_both_frameworks_keep_the_same_sentences(tmp_path, alpha):
    scorer = langchain_conformal.embedding_scorer(MiniLMEmbeddings())
    path = tmp_path / "calibration.json"
    calibrate(judged_in_langchain(), scorer, alpha=alpha).save(path)
    in_langchain = {"embeddings": MiniLMEmbeddings(), "split": "sentences", "neighbours": 1}
    retriever = ConformalRetriever.from_calibration(
        path, retriever=langchain_retriever(), **in_langchain
    )
    compressor = ConformalCompressor.from_calibration(path, **in_langchain)
    postprocessor = ConformalPostprocessor.from_calibration(
        path, embed_model=MiniLMEmbedding(), split="sentences", neighbours=1
    )
    engine = question_engine(postprocessor)
    by_id = {s.id: s.text for s in snippets()}
    n_cut = 0
    for query in halves()[1][:20]:
        question = query.query
        found = langchain_retriever().invoke(question)
        kept = retriever.invoke(question)
        for document in kept:
            parts = [by_id[document.id][a:b] for a, b in document.metadata["conformal_ranges"]]
            assert all(part in document.page_content for part in parts)
            n_cut += document.page_content != by_id[document.id]
        expected = [*texts_by_id(kept).items()]
        for again in (
            await retriever.ainvoke(question),
            compressor.compress_documents(found, question),
            engine.query(question).source_nodes,
            (await engine.aquery(question)).source_nodes,
        ):
            assert [*texts_by_id(again).items()] == expected, question
    assert n_cut or alpha == 0.05


@pytest.mark.slow
async def test_the_default_score_of_sentences_needs_no_model_and_keeps_the_same_in_both(tmp_path):
    hybrid = HybridRetriever({"dense": langchain_retriever(), "few": langchain_retriever(4)})
    parts = {"dense": index_retriever(), "few": index_retriever(4)}
    other = llama_index_conformal.HybridRetriever(parts)
    judged = langchain_conformal.judge_retriever(
        hybrid, with_evidence([*halves()[0], *halves()[1]]), split="sentences"
    )
    path = tmp_path / "calibration.json"
    calibrate(judged, alpha=0.3).save(path)
    retriever = ConformalRetriever.from_calibration(path, retriever=hybrid, split="sentences")
    assert retriever.filter.scorer.name.startswith("learned(hits of dense, hits of few")
    engine = RetrieverQueryEngine.from_args(
        other,
        llm=MockLLM(),
        node_postprocessors=[ConformalPostprocessor.from_calibration(path, split="sentences")],
    )
    asked = [JudgedQuery(q.query, [], []) for q in docstring_corpus().questions[4::8][:15]]
    n_kept, n_all = 0, 0
    for query in langchain_conformal.judge_retriever(hybrid, asked, split="sentences"):
        kept = retriever.invoke(query.query)
        assert await retriever.ainvoke(query.query) == kept
        ranges = {document.id: document.metadata["conformal_ranges"] for document in kept}
        keeps = [
            any(a <= s.position < b for a, b in ranges.get(s.document, ())) for s in query.snippets
        ]
        scores = retriever.filter.scorer.score(query.query, query.snippets)
        assert keeps == retriever.filter.calibration.keep(scores).tolist()
        response = engine.query(query.query)
        assert [*texts_by_id(response.source_nodes).items()] == [*texts_by_id(kept).items()]
        n_kept, n_all = n_kept + sum(keeps), n_all + len(keeps)
    assert 0 < n_kept < 0.5 * n_all


# --- chains and engines ---------------------------------------------------------------------------

BEES = "Bees make honey from nectar. The market fell on Monday. Bees store honey in combs."
KEPT = "Bees make honey from nectar. … Bees store honey in combs."
ABOUT = FunctionScorer(lambda query, texts: [float("Bees" not in text) for text in texts], "bees")


ABOUT_BEES = calibration_at(ABOUT, split=SENTENCES.name)
PRUNES = {"scorer": ABOUT, "split": "sentences"}


async def test_a_streaming_chain_gives_the_model_the_kept_sentences_alone():
    store = InMemoryVectorStore(MiniLMEmbeddings())
    store.add_documents([Document(BEES, id="1"), Document("The market fell.", id="2")])
    retriever = ConformalRetriever.from_calibration(
        ABOUT_BEES, retriever=store.as_retriever(), **PRUNES
    )
    prompts = []
    chain = (
        {
            "context": retriever | (lambda found: "\n".join(texts_of(found))),
            "question": RunnablePassthrough(),
        }
        | ChatPromptTemplate.from_template("{context} {question}")
        | RunnableLambda(lambda prompt: prompts.append(prompt.to_string()) or prompt)
        | FakeListChatModel(responses=["In combs."])
        | StrOutputParser()
    )
    assert [*chain.stream("Where?")] == [*"In combs."]
    assert [piece async for piece in chain.astream("Where?")] == [*"In combs."]
    assert prompts == [f"Human: {KEPT} Where?"] * 2


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
