"""The LangChain retriever and compressor, on a real vector store with a real model."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from frameworks import K, MiniLMEmbeddings, documents, halves, langchain_retriever, snippets
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests
from lookup import LookupScorer
from pydantic import ValidationError

from conformal_retrievers import (
    Calibration,
    CalibrationMismatch,
    ConformalFilter,
    RetrievalScorer,
    ScoredQuery,
    calibrate,
)
from langchain_conformal import (
    ConformalCompressor,
    ConformalRetriever,
    embedding_scorer,
    judge_retriever,
)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    judged = judge_retriever(langchain_retriever(), halves()[0])
    return calibrate(judged, embedding_scorer(MiniLMEmbeddings()), alpha=0.2)


@pytest.fixture(scope="module")
def file(calibration, tmp_path_factory):
    path = tmp_path_factory.mktemp("langchain") / "calibration.json"
    calibration.save(path)
    return path


@pytest.fixture
def retriever(file) -> ConformalRetriever:
    return ConformalRetriever.from_calibration(
        file, retriever=langchain_retriever(), embeddings=MiniLMEmbeddings()
    )


def lookup_filter(scores, threshold=0.5, **options) -> ConformalFilter:
    """A filter that keeps what the dict scores at most the threshold."""
    calibration = Calibration.from_scores(
        [ScoredQuery([threshold], [True])], alpha=0.5, scorer="lookup"
    )
    assert calibration.threshold() == threshold
    return ConformalFilter(LookupScorer(scores), calibration, **options)


# --- the retriever --------------------------------------------------------------------------------


def test_the_retriever_keeps_what_the_threshold_keeps_in_the_order_it_came(retriever, calibration):
    for query in halves()[1]:
        found = langchain_retriever().invoke(query.query)
        kept = retriever.invoke(query.query)
        distances = embedding_scorer(MiniLMEmbeddings()).score(
            query.query, [s for d in found for s in snippets() if s.id == d.id]
        )
        expected = [
            d.id for d, a in zip(found, distances, strict=True) if a <= calibration.threshold()
        ]
        assert [d.id for d in kept] == expected
        assert all(d.metadata["conformal_score"] <= calibration.threshold() for d in kept)
        assert all(d.metadata["conformal_p_value"] > calibration.alpha for d in kept)


def test_the_retriever_drops_some_and_keeps_some(retriever):
    kept = [len(retriever.invoke(query.query)) for query in halves()[1]]
    assert 0 < sum(kept) < K * len(kept)


async def test_the_asynchronous_retriever_returns_the_same(retriever):
    for query in halves()[1][:10]:
        assert await retriever.ainvoke(query.query) == retriever.invoke(query.query)


def test_the_retriever_works_in_batches_and_in_a_chain(retriever):
    questions = [query.query for query in halves()[1][:5]]
    one_by_one = [retriever.invoke(question) for question in questions]
    assert retriever.batch(questions) == one_by_one
    chain = retriever | RunnableLambda(lambda found: [d.id for d in found])
    assert chain.invoke(questions[0]) == [d.id for d in one_by_one[0]]


def test_any_runnable_from_a_query_to_documents_can_be_wrapped():
    found = RunnableLambda(lambda query: [Document("near"), Document("far")])
    wrapped = ConformalRetriever(retriever=found, filter=lookup_filter({"near": 0.1, "far": 0.9}))
    assert [d.page_content for d in wrapped.invoke("q")] == ["near"]


class TestTheRetrieverStandardsOfLangChain(RetrieversIntegrationTests):
    """k belongs to the wrapped retriever: the constructor below hands it on."""

    @property
    def retriever_constructor(self):
        def construct(k: int = 3) -> ConformalRetriever:
            store = InMemoryVectorStore(MiniLMEmbeddings())
            store.add_documents(documents()[:10])
            found = store.as_retriever(search_kwargs={"k": k})
            scorer = embedding_scorer(MiniLMEmbeddings())
            # One judged query is too few for alpha = 0.1, so that everything found is kept.
            few = Calibration.from_scores(
                [ScoredQuery([0.5], [True])], alpha=0.1, scorer=scorer.name
            )
            assert few.threshold() == math.inf
            return ConformalRetriever(retriever=found, filter=ConformalFilter(scorer, few))

        return construct

    @property
    def retriever_query_example(self) -> str:
        return "How is a word counted?"


# --- the compressor -------------------------------------------------------------------------------


@pytest.fixture
def compressor(file) -> ConformalCompressor:
    return ConformalCompressor.from_calibration(file, embeddings=MiniLMEmbeddings())


def test_the_compressor_and_the_retriever_keep_the_same(compressor, retriever):
    for query in halves()[1][:10]:
        found = langchain_retriever().invoke(query.query)
        assert compressor.compress_documents(found, query.query) == retriever.invoke(query.query)


async def test_the_asynchronous_compressor_returns_the_same(compressor):
    query = halves()[1][0].query
    found = langchain_retriever().invoke(query)
    kept = compressor.compress_documents(found, query)
    assert await compressor.acompress_documents(found, query) == kept


async def test_the_compressor_as_a_runnable_composes(compressor):
    query = halves()[1][0].query
    chain = {
        "query": RunnablePassthrough(),
        "documents": langchain_retriever(),
    } | compressor.as_runnable()
    expected = compressor.compress_documents(langchain_retriever().invoke(query), query)
    assert chain.invoke(query) == expected
    assert await chain.ainvoke(query) == expected


def test_the_runnable_declares_what_it_takes(compressor):
    schema = compressor.as_runnable().get_input_jsonschema()
    assert set(schema["$defs"]["CompressorInput"]["required"]) == {"query", "documents"}


def test_inputs_are_left_as_they_were(compressor):
    query = halves()[1][0].query
    found = langchain_retriever().invoke(query)
    before = copy.deepcopy(found)
    kept = compressor.compress_documents(found, query)
    kept[0].metadata["mine"] = 1
    assert found == before


def test_id_class_and_fields_are_kept():
    class Page(Document):
        number: int

    page = Page(page_content="near", id="a", metadata={"x": [1]}, number=7)
    [kept] = ConformalCompressor(filter=lookup_filter({"near": 0.25})).compress_documents(
        [page], "q"
    )
    assert type(kept) is Page
    assert (kept.id, kept.number, kept.page_content) == ("a", 7, "near")
    assert kept.metadata == {"x": [1], "conformal_score": 0.25, "conformal_p_value": 1.0}


def test_metadata_is_plain_and_becomes_json(compressor):
    query = halves()[1][0].query
    for document in compressor.compress_documents(langchain_retriever().invoke(query), query):
        assert type(document.metadata["conformal_score"]) is float
        assert type(document.metadata["conformal_p_value"]) is float
        json.loads(document.model_dump_json())


@pytest.mark.parametrize(("score", "said"), [(math.inf, "inf"), (-math.inf, "-inf")])
def test_an_infinite_score_is_a_word_because_json_has_no_number_for_it(score, said):
    everything = ConformalCompressor(filter=lookup_filter({"a": score}, threshold=math.inf))
    (kept,) = everything.compress_documents([Document("a")], "q")
    assert kept.metadata["conformal_score"] == said
    json.dumps(kept.metadata, allow_nan=False)


@pytest.mark.parametrize("cls", [ConformalCompressor, ConformalRetriever])
def test_from_a_file_it_can_be_said_what_happens_where_nothing_is_kept_or_scored(cls, file):
    given = {} if cls is ConformalCompressor else {"retriever": langchain_retriever()}
    made = cls.from_calibration(
        file, **given, embeddings=MiniLMEmbeddings(), on_empty="raise", on_unscorable="raise"
    )
    assert (made.filter.on_empty, made.filter.on_unscorable) == ("raise", "raise")
    usual = cls.from_calibration(file, **given, embeddings=MiniLMEmbeddings())
    assert (usual.filter.on_empty, usual.filter.on_unscorable) == ("allow", "keep")


def test_the_prefix_can_be_chosen_or_switched_off():
    chosen = ConformalCompressor(filter=lookup_filter({"near": 0.25}), metadata_prefix="cf.")
    silent = ConformalCompressor(filter=lookup_filter({"near": 0.25}), metadata_prefix=None)
    assert set(chosen.compress_documents([Document("near")], "q")[0].metadata) == {
        "cf.score",
        "cf.p_value",
    }
    assert silent.compress_documents([Document("near")], "q")[0].metadata == {}


def test_what_metadata_holds_under_the_filters_names_gives_way_in_the_copy_alone():
    own = Document("near", metadata={"conformal_score": "mine", "page": 1})
    (kept,) = ConformalCompressor(filter=lookup_filter({"near": 0.1})).compress_documents(
        [own], "q"
    )
    assert kept.metadata == {"conformal_score": 0.1, "conformal_p_value": 1.0, "page": 1}
    assert own.metadata == {"conformal_score": "mine", "page": 1}


def test_a_document_that_cannot_be_scored_is_kept_and_says_so():
    compressor = ConformalCompressor(filter=lookup_filter({"odd": math.nan, "far": 0.9}))
    kept = compressor.compress_documents([Document("far"), Document("odd")], "q")
    assert [d.page_content for d in kept] == ["odd"]
    assert kept[0].metadata == {"conformal_score": None, "conformal_p_value": None}


def test_filtering_what_was_filtered_changes_nothing(compressor):
    query = halves()[1][0].query
    once = compressor.compress_documents(langchain_retriever().invoke(query), query)
    assert compressor.compress_documents(once, query) == once


async def test_no_documents_need_no_model(file):
    embeddings = MiniLMEmbeddings()
    compressor = ConformalCompressor.from_calibration(file, embeddings=embeddings)
    assert compressor.compress_documents([], "q") == []
    assert await compressor.acompress_documents([], "q") == []
    assert embeddings.calls == 0


@pytest.mark.parametrize("query", [None, "", "  "])
async def test_a_missing_query_is_an_error(compressor, query):
    with pytest.raises(ValueError, match="query is .*give the question"):
        compressor.compress_documents(documents()[:1], query)
    with pytest.raises(ValueError, match="query is .*give the question"):
        await compressor.acompress_documents([], query)


async def test_documents_that_can_be_gone_through_once_are_filtered_as_a_list_is():
    found = [Document("near"), Document("far"), Document("also near")]
    conformal = lookup_filter({"near": 0.1, "far": 0.9, "also near": 0.2})
    compressor = ConformalCompressor(filter=conformal)
    retriever = ConformalRetriever(
        retriever=RunnableLambda(lambda q: reversed(found)), filter=conformal
    )
    for kept in (
        compressor.compress_documents(reversed(found), "q"),
        await compressor.acompress_documents(iter(found[::-1]), "q"),
        retriever.invoke("q"),
        await retriever.ainvoke("q"),
    ):
        assert [document.page_content for document in kept] == ["also near", "near"]


@pytest.mark.parametrize("given", [None, 3, Document("near")])
async def test_what_is_no_list_of_documents_is_an_error(given):
    compressor = ConformalCompressor(filter=lookup_filter({"near": 0.1}))
    said = rf"documents is a {type(given).__name__}, .*; give a list of Documents"
    with pytest.raises(TypeError, match=said):
        compressor.compress_documents(given, "q")
    with pytest.raises(TypeError, match=said):
        await compressor.acompress_documents(given, "q")


def test_something_that_is_no_document_is_an_error(compressor):
    with pytest.raises(TypeError, match=r"documents\[0\] is a str"):
        compressor.compress_documents(["text"], "q")


@pytest.mark.parametrize("cls", [ConformalCompressor, ConformalRetriever])
def test_a_misspelt_keyword_is_an_error(cls):
    with pytest.raises(ValidationError, match="treshold"):
        cls(filter=lookup_filter({}), retriever=langchain_retriever(), treshold=0.3)


def test_both_can_be_pickled():
    scorer = RetrievalScorer("store", higher_is_better=True)
    few = Calibration.from_scores([ScoredQuery([-0.5], [True])], alpha=0.5, scorer=scorer.name)
    compressor = ConformalCompressor(filter=ConformalFilter(scorer, few))
    again = pickle.loads(pickle.dumps(compressor))
    found = [
        Document("a", metadata={"relevance_score": 0.4}),
        Document("b", metadata={"relevance_score": 0.6}),
        Document("c"),
    ]
    kept = again.compress_documents(found, "q")
    assert [d.page_content for d in kept] == ["b", "c"]  # c has no score, so it is kept
    assert kept == compressor.compress_documents(found, "q")
    retriever = ConformalRetriever(retriever=RunnablePassthrough(), filter=compressor.filter)
    assert pickle.loads(pickle.dumps(retriever)).filter.calibration == few


def test_many_threads_get_what_one_gets(retriever):
    questions = [query.query for query in halves()[1]][:32]
    serial = [retriever.invoke(question) for question in questions]
    with ThreadPoolExecutor(32) as pool:
        assert list(pool.map(retriever.invoke, questions)) == serial


async def test_many_tasks_get_what_one_gets(retriever):
    questions = ([query.query for query in halves()[1]] * 5)[:200]
    serial = {question: retriever.invoke(question) for question in set(questions)}
    together = await asyncio.gather(*map(retriever.ainvoke, questions))
    assert together == [serial[question] for question in questions]


# --- scorers and calibration files ----------------------------------------------------------------


def test_the_scorer_is_one_minus_the_cosine_and_names_the_model():
    scorer = embedding_scorer(MiniLMEmbeddings())
    assert scorer.name == "cosine(all-MiniLM-L6-v2)"
    assert scorer.score("a small cat", [snippets()[0]])[0] > 0.5


async def test_the_scorer_waits_for_the_asynchronous_model():
    scorer = embedding_scorer(MiniLMEmbeddings())
    synchronous = scorer.score("cat", snippets()[:5])
    assert (await scorer.ascore("cat", snippets()[:5]) == synchronous).all()


def test_embeddings_that_do_not_tell_their_model_need_a_name():
    class Nameless(Embeddings):
        def embed_documents(self, texts):
            raise AssertionError

        embed_query = embed_documents

    with pytest.raises(ValueError, match="Nameless does not tell its model's name") as refused:
        embedding_scorer(Nameless())
    assert "scorer=embedding_scorer(embeddings, name='cosine(<model name>)')" in str(refused.value)
    assert embedding_scorer(Nameless(), name="mine").name == "mine"


def test_another_model_than_the_calibrated_one_is_refused(file):
    other = MiniLMEmbeddings()
    other.model_name = "another-model"
    with pytest.raises(CalibrationMismatch, match=r"all-MiniLM-L6-v2.*another-model"):
        ConformalCompressor.from_calibration(file, embeddings=other)


def test_one_of_embeddings_and_scorer_is_needed(file):
    with pytest.raises(TypeError, match="one of embeddings=, llm= and scorer="):
        ConformalCompressor.from_calibration(file)
    with pytest.raises(TypeError, match="one of embeddings=, llm= and scorer="):
        ConformalCompressor.from_calibration(
            file, embeddings=MiniLMEmbeddings(), scorer=embedding_scorer(MiniLMEmbeddings())
        )


def test_judging_a_retriever_takes_what_it_returns_and_counts_what_it_misses():
    before = halves()[0]
    after = judge_retriever(langchain_retriever(), before, max_concurrency=2)
    for old, new in zip(before, after, strict=True):
        found = langchain_retriever().invoke(old.query)
        relevant = {s.id for s, r in zip(old.snippets, old.relevant, strict=True) if r}
        assert [s.id for s in new.snippets] == [d.id for d in found]
        assert list(new.relevant) == [d.id in relevant for d in found]
        assert new.missed == len(relevant) - sum(new.relevant)
        assert (new.id, new.query) == (old.id, old.query)
    assert any(query.missed for query in after)
