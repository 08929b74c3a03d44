"""Real vector stores: judged, calibrated and filtered through the very retriever."""

from __future__ import annotations

import asyncio
import warnings
from functools import cache

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("langchain_chroma")  # which `make test-all` installs
import bm25s
from frameworks import K, MiniLMEmbeddings, documents, halves, snippets
from langchain_chroma import Chroma
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    FunctionScorer,
    JudgedQuery,
    RetrievalScorer,
    ScoredQuery,
    calibrate,
    write_jsonl,
)
from conformal_retrievers.data import read_jsonl
from conformal_retrievers.scoring import FusionScorer
from langchain_conformal import (
    ConformalRetriever,
    HybridRetriever,
    embedding_scorer,
    judge_retriever,
)
from langchain_conformal.around import with_scores
from langchain_conformal.documents import to_snippets

ALPHA = 0.2


def flat(documents):
    """Chroma takes no nested metadata."""
    return [Document(d.page_content, id=d.id, metadata={"source": "s"}) for d in documents]


@pytest.fixture(scope="module", params=["cosine", "l2"])
def store(request):
    return Chroma.from_documents(
        flat(documents()),
        MiniLMEmbeddings(),
        collection_name=f"snippets-{request.param}",
        collection_metadata={"hnsw:space": request.param},
    )


@pytest.fixture(scope="module")
def file(store, tmp_path_factory):
    queries = judge_retriever(store.as_retriever(search_kwargs={"k": K}), halves()[0])
    path = tmp_path_factory.mktemp("stores") / "calibration.json"
    calibrate(queries, embedding_scorer(MiniLMEmbeddings()), alpha=ALPHA).save(path)
    return path


@pytest.fixture
def retriever(store, file):
    return ConformalRetriever.from_calibration(
        file, retriever=store.as_retriever(search_kwargs={"k": K}), embeddings=MiniLMEmbeddings()
    )


def test_the_calibration_records_store_model_and_depth(file):
    assert Calibration.load(file).retrieval == {
        "retriever": "Chroma(all-MiniLM-L6-v2, similarity)",
        "k": K,
        "lengths": {str(K): 40},
    }


async def test_documents_of_the_store_are_filtered_at_the_threshold(store, file, retriever):
    calibration = Calibration.load(file)
    scorer = embedding_scorer(MiniLMEmbeddings())
    by_id = {s.id: s for s in snippets()}
    kept = []
    for query in halves()[1]:
        found = store.similarity_search(query.query, k=K)
        scores = scorer.score(query.query, [by_id[d.id] for d in found])
        expected = [
            d.id for d, score in zip(found, scores, strict=True) if score <= calibration.threshold()
        ]
        assert [d.id for d in retriever.invoke(query.query)] == expected
        assert [d.id for d in await retriever.ainvoke(query.query)] == expected
        kept.append(len(expected))
    assert len(found) == K
    assert 0 < sum(kept) < K * len(kept)


# --- the scores that a store has ------------------------------------------------------------------


def in_memory():
    store = InMemoryVectorStore(MiniLMEmbeddings())
    store.add_documents(documents())
    return store


def scored(store, *, higher_is_better):
    """Return the filter by a store's own scores, of what the store returns as it is."""
    retriever = store.as_retriever(search_kwargs={"k": 20})
    scorer = RetrievalScorer(higher_is_better=higher_is_better)
    calibration = calibrate(judge_retriever(retriever, halves()[0]), scorer, alpha=0.1)
    return ConformalRetriever.from_calibration(calibration, retriever=retriever)


async def test_the_scores_of_a_store_can_be_the_score_without_embedding_twice(store):
    kept = 0
    for one, higher in ((store, False), (in_memory(), True)):
        filtered = scored(one, higher_is_better=higher)
        threshold = filtered.filter.calibration.threshold()
        for query in halves()[1][:5]:
            found = one.similarity_search_with_score(query.query, k=20)
            passing = [d for d, s in found if (-s if higher else s) <= threshold]
            calls = one.embeddings.calls
            documents = filtered.invoke(query.query)
            assert one.embeddings.calls == calls + 1  # the query, by the store
            assert [d.id for d in documents] == [d.id for d in passing]
            assert await filtered.ainvoke(query.query) == documents
            kept += len(documents)
    assert 0 < kept < 2 * 5 * 20


@pytest.mark.filterwarnings("ignore:Relevance scores must be")
@pytest.mark.parametrize(
    ("search_type", "options"),
    [
        ("similarity", {}),
        ("similarity", {"filter": "source"}),
        ("mmr", {"fetch_k": 30}),
        ("similarity_score_threshold", {"score_threshold": -2.0}),
    ],
)
async def test_documents_are_those_that_the_store_returns_without_scores(
    store, search_type, options
):
    for query in halves()[1][:5]:
        if "filter" in options:
            first = store.similarity_search(query.query, k=1)[0].metadata
            options = {"filter": {"source": first["source"]}}
        retriever = store.as_retriever(search_type=search_type, search_kwargs={"k": K, **options})
        alone = retriever.invoke(query.query)
        documents = with_scores(retriever).invoke(query.query)
        again = await with_scores(retriever).ainvoke(query.query)
        assert documents == again == alone
        assert len(alone) > 0
        hits = [snippet.hits[0] for snippet in to_snippets(documents)]
        assert [hit.rank for hit in hits] == [*range(len(alone))]
        assert {type(hit.score) for hit in hits} == {type(None) if search_type == "mmr" else float}


# --- several retrievers ---------------------------------------------------------------------------


class BM25(BaseRetriever):
    """BM25 of bm25s, over documents that have no ids."""

    k: int = K

    def _get_relevant_documents(self, query, *, run_manager):
        found, _ = bm25().retrieve(bm25s.tokenize(query, show_progress=False), k=self.k)
        return [Document(snippets()[i].text) for i in found[0]]


@cache
def bm25():
    index = bm25s.BM25()
    tokens = bm25s.tokenize([s.text for s in snippets()], show_progress=False)
    index.index(tokens, show_progress=False)
    return index


async def test_a_store_and_bm25_are_filtered_from_one_file(store, tmp_path):
    dense = store.as_retriever(search_kwargs={"k": K})
    hybrid = HybridRetriever({"dense": dense, "bm25": BM25()})
    judged = judge_retriever(hybrid, halves()[0])
    both = [snippet for query in judged for snippet in query.snippets if len(snippet.hits) == 2]
    assert len(both) > len(judged)  # recognised by its text
    path = tmp_path / "calibration.json"
    calibrate(judged, FusionScorer(["dense", "bm25"]), alpha=ALPHA).save(path)
    filtered = ConformalRetriever.from_calibration(path, retriever=hybrid)
    threshold, kept, found = Calibration.load(path).threshold(), 0, 0
    for query in halves()[1][:5]:
        texts = {"dense": dense.invoke(query.query), "bm25": BM25().invoke(query.query)}
        sums: dict[str, float] = {}
        for listed in texts.values():
            for rank, document in enumerate(listed):
                text = document.page_content
                sums[text] = sums.get(text, 0.0) + 1 / (60 + rank + 1)
        passing = {text for text, total in sums.items() if -total <= threshold}
        survivors = filtered.invoke(query.query)
        assert {d.page_content for d in survivors} == passing
        assert await filtered.ainvoke(query.query) == survivors
        kept, found = kept + len(passing), found + len(sums)
    assert 0 < kept < found


# --- the depth, and what else is recorded ---------------------------------------------------------


def small(k, **options):
    store = InMemoryVectorStore(MiniLMEmbeddings())
    store.add_documents([Document(text, id=text) for text in "abcd"])
    return store.as_retriever(search_kwargs={} if k is None else {"k": k}, **options)


def opened(k):
    return small(k).configurable_fields(search_kwargs=ConfigurableField(id="kwargs"))


IN_MEMORY = "InMemoryVectorStore(all-MiniLM-L6-v2, similarity)"
QUERY = JudgedQuery("b", ["a", "b", "c", "d"], [False, True, False, False], id="1")


@pytest.mark.parametrize(
    ("retriever", "name", "k"),
    [
        (small(2), IN_MEMORY, 2),
        (small(50), IN_MEMORY, 50),
        (small(None), IN_MEMORY, 4),
        (small(4).bind(k=3), IN_MEMORY, 3),
        (small(4).bind(k=3).bind(k=2), IN_MEMORY, 2),
        (small(2).with_retry(), IN_MEMORY, 2),
        (opened(4), IN_MEMORY, 4),
        (opened(4).with_config(configurable={"kwargs": {"k": 2}}).with_retry(), IN_MEMORY, 2),
        (RunnableLambda(lambda query: [Document(query)], name="echo"), "echo", None),
        (RunnableLambda(lambda query: [], name="nothing"), "nothing", None),
    ],
)
def test_judged_queries_carry_the_retrievers_name_and_depth(retriever, name, k, tmp_path):
    (judged_query,) = judge_retriever(retriever, [QUERY])
    assert (judged_query.retriever, judged_query.k) == (name, k)
    write_jsonl([judged_query], tmp_path / "judged.jsonl")
    assert read_jsonl(tmp_path / "judged.jsonl") == [judged_query]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_the_configuration_of_a_caller_reaches_the_retriever(asynchronous):
    scorer = FunctionScorer(lambda query, texts: [0.1] * len(texts), "constant")
    one = Calibration.from_scores([ScoredQuery([0.5], [True])], alpha=0.5, scorer="constant")
    filtered = ConformalRetriever(retriever=opened(4), filter=ConformalFilter(scorer, one))
    two = {"configurable": {"kwargs": {"k": 2}}}
    if asynchronous:
        alone = [await filtered.ainvoke("b"), await filtered.ainvoke("b", two)]
        batch = await filtered.abatch(["b", "c"], two)
    else:
        alone = [filtered.invoke("b"), filtered.invoke("b", two)]
        batch = filtered.batch(["b", "c"], two)
    assert [len(documents) for documents in (*alone, *batch)] == [4, 2, 2, 2]


class Other(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        return [Document("b", id="b")]


@pytest.mark.parametrize(
    ("retriever", "kwargs", "name", "warning"),
    [
        (small(3), {}, None, None),
        (small(2), {}, None, "the retriever is asked for 2 documents"),
        (small(3), {"k": 1}, None, "the retriever is asked for 1 documents"),
        (small(4), {}, None, "more snippets than k = 3"),
        (small(3, search_type="mmr"), {}, None, "the retriever is InMemoryVectorStore"),
        (Other(), {}, None, "the retriever is Other"),
        (Other(), {}, "a name of its own", None),
    ],
)
def test_another_retriever_or_depth_than_the_calibrated_one_gives_one_warning(
    retriever, kwargs, name, warning
):
    scorer = FunctionScorer(lambda query, texts: [float(text != query) for text in texts], "same")
    calibration = calibrate(judge_retriever(small(3), [QUERY], name=name), scorer, alpha=0.5)
    filtered = ConformalRetriever(retriever=retriever, filter=ConformalFilter(scorer, calibration))
    for call in (filtered.invoke, lambda *a, **k: asyncio.run(filtered.ainvoke(*a, **k))):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            for _ in range(3):
                call("b", **kwargs)
        assert len(caught) == (warning is not None)
        assert all(str(one.message).startswith(warning) for one in caught)


# --- another alpha at run time --------------------------------------------------------------------


def kept_at(retriever, alpha, question):
    """Return the ids that a filter of its own at that alpha keeps."""
    calibration = retriever.filter.calibration.at(alpha)
    fixed = ConformalFilter(retriever.filter.scorer, calibration)
    own = ConformalRetriever(retriever=retriever.retriever, filter=fixed)
    return [d.id for d in own.invoke(question)]


async def test_alpha_can_be_chosen_at_each_call(retriever):
    configurable = retriever.configurable_fields(alpha=ConfigurableField(id="alpha"))
    questions = [query.query for query in halves()[1][:6]]
    expected = {a: [kept_at(retriever, a, q) for q in questions] for a in (0.05, ALPHA, 0.6)}
    assert len({str(kept) for kept in expected.values()}) == 3
    for alpha, kept in expected.items():
        config = {"configurable": {"alpha": alpha}}
        bound = configurable.with_config(configurable={"alpha": alpha})
        for found in (
            [configurable.invoke(q, config) for q in questions],
            [await configurable.ainvoke(q, config) for q in questions],
            [bound.invoke(q) for q in questions],
            configurable.batch(questions, config),
            await configurable.abatch(questions, config),
            await bound.abatch(questions),
        ):
            assert [[d.id for d in one] for one in found] == kept
    assert [[d.id for d in configurable.invoke(q)] for q in questions] == expected[ALPHA]
