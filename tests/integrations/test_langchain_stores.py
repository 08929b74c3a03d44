"""Real vector stores: judged, calibrated and filtered through the very retriever."""

from __future__ import annotations

import asyncio
import warnings

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("langchain_chroma")  # which `make test-all` installs
from frameworks import K, MiniLMEmbeddings, filter_at, halves, ids_of
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from vector_stores import chroma_in_memory

from conformal_retrievers import (
    ConformalFilter,
    FunctionScorer,
    JudgedQuery,
    calibrate,
    write_jsonl,
)
from conformal_retrievers.data import read_jsonl
from langchain_conformal import ConformalRetriever, embedding_scorer, judge_retriever
from langchain_conformal.around import with_scores
from langchain_conformal.documents import to_snippets

ALPHA = 0.2


@pytest.fixture(params=["cosine", "l2"])
def store(request):
    return chroma_in_memory("langchain", request.param)


@pytest.mark.filterwarnings("ignore:Relevance scores must be")
@pytest.mark.parametrize(
    ("search_type", "options"),
    [
        ("similarity", {}),
        ("similarity", {"filter": "tenant"}),
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
            options = {"filter": {"tenant": first["tenant"]}}
        retriever = store.as_retriever(search_type=search_type, search_kwargs={"k": K, **options})
        alone = retriever.invoke(query.query)
        documents = with_scores(retriever).invoke(query.query)
        again = await with_scores(retriever).ainvoke(query.query)
        assert documents == again == alone
        assert len(alone) > 0
        hits = [snippet.hits[0] for snippet in to_snippets(documents)]
        assert [hit.rank for hit in hits] == [*range(len(alone))]
        assert {type(hit.score) for hit in hits} == {type(None) if search_type == "mmr" else float}


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
    filtered = ConformalRetriever(retriever=opened(4), filter=filter_at(scorer))
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


async def test_alpha_can_be_chosen_at_each_call(store):
    retriever = store.as_retriever(search_kwargs={"k": K})
    scorer = embedding_scorer(MiniLMEmbeddings())
    calibration = calibrate(judge_retriever(retriever, halves()[0]), scorer, alpha=ALPHA)

    name = "Chroma(all-MiniLM-L6-v2, similarity)"
    assert calibration.retrieval == {"retriever": name, "k": K, "lengths": {str(K): 40}}

    def filtered(alpha):
        keep = ConformalFilter(scorer, calibration.at(alpha))
        return ConformalRetriever(retriever=retriever, filter=keep)

    configurable = filtered(ALPHA).configurable_fields(alpha=ConfigurableField(id="alpha"))
    questions = [query.query for query in halves()[1][:6]]
    expected = {
        alpha: [ids_of(filtered(alpha).invoke(q)) for q in questions]
        for alpha in (0.05, ALPHA, 0.6)
    }
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
            assert [ids_of(one) for one in found] == kept
    assert [ids_of(configurable.invoke(q)) for q in questions] == expected[ALPHA]
