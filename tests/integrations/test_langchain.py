"""The LangChain retriever and compressor, with scores from a dict."""

from __future__ import annotations

import copy
import json
import math
import pickle

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_tests.integration_tests import RetrieversIntegrationTests
from lookup import LookupScorer
from pydantic import ValidationError

from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    JudgedQuery,
    RetrievalScorer,
    ScoredQuery,
)
from langchain_conformal import ConformalCompressor, ConformalRetriever, judge_retriever

SCORES = {"near": 0.1, "far": 0.9, "middle": 0.4, "odd": math.nan}
KEPT = ["near", "middle", "odd"]


def lookup_filter(scores=SCORES, threshold=0.5, **options) -> ConformalFilter:
    """A filter that keeps the texts with a score of at most the threshold."""
    queries = [ScoredQuery([threshold], [True])]
    calibration = Calibration.from_scores(queries, alpha=0.5, scorer="lookup")
    return ConformalFilter(LookupScorer(scores), calibration, **options)


def documents():
    return [Document(text, id=text) for text in SCORES]


def texts_of(found):
    return [document.page_content for document in found]


async def both(compressor, given, query="q"):
    """What the compressor keeps, which is the same asynchronously."""
    kept = compressor.compress_documents(given, query)
    assert await compressor.acompress_documents(given, query) == kept
    return kept


@pytest.fixture
def compressor():
    return ConformalCompressor(filter=lookup_filter())


@pytest.fixture
def retriever():
    found = RunnableLambda(lambda query: documents())
    return ConformalRetriever(retriever=found, filter=lookup_filter())


# --- what is kept ---------------------------------------------------------------------------------


async def test_retriever_compressor_and_runnable_keep_the_same(retriever, compressor):
    runnable = compressor.as_runnable()
    expected = retriever.invoke("q")
    assert texts_of(expected) == KEPT
    given = {"query": "q", "documents": documents()}
    for found in (
        await retriever.ainvoke("q"),
        retriever.batch(["q"])[0],
        (retriever | RunnableLambda(list)).invoke("q"),
        compressor.compress_documents(documents(), "q"),
        await compressor.acompress_documents(documents(), "q"),
        runnable.invoke(given),
        await runnable.ainvoke(given),
        ({"query": RunnablePassthrough(), "documents": retriever.retriever} | runnable).invoke("q"),
    ):
        assert found == expected


class Numbered(Document):
    """A document class with a field of its own."""

    number: int


async def test_copies_keep_id_class_fields_and_metadata_and_inputs_are_unchanged(compressor):
    own = {"conformal_score": "mine", "nested": {"pages": [1]}}
    given = [Numbered(page_content=text, id=text, metadata=own, number=3) for text in SCORES]
    before = copy.deepcopy(given)
    kept = await both(compressor, given[::-1])
    assert texts_of(kept) == KEPT[::-1]
    assert await both(compressor, []) == []
    for one in kept:
        assert (type(one), one.id, one.number) == (Numbered, one.page_content, 3)
        assert one.metadata["nested"] == {"pages": [1]}
        one.metadata["written"] = "afterwards"
    assert given == before


async def test_an_iterator_is_filtered_like_a_list(compressor):
    again = ConformalRetriever(
        retriever=RunnableLambda(lambda query: iter(documents())), filter=compressor.filter
    )
    for found in (
        compressor.compress_documents(iter(documents()), "q"),
        await compressor.acompress_documents(iter(documents()), "q"),
        again.invoke("q"),
        await again.ainvoke("q"),
    ):
        assert texts_of(found) == KEPT


class TestTheRetrieverStandardsOfLangChain(RetrieversIntegrationTests):
    """k belongs to the wrapped retriever: the constructor below passes it on."""

    @property
    def retriever_constructor(self):
        def construct(k: int = 3) -> ConformalRetriever:
            found = RunnableLambda(lambda query, **kwargs: documents()[: kwargs.get("k", k)])
            return ConformalRetriever(retriever=found, filter=lookup_filter(threshold=math.inf))

        return construct

    @property
    def retriever_query_example(self) -> str:
        return "q"


# --- metadata -------------------------------------------------------------------------------------


def test_copies_have_score_and_p_value_as_plain_numbers(compressor):
    given = [Document("near", metadata={"conformal_score": "mine", "page": 1}), Document("odd")]
    near, odd = compressor.compress_documents(given, "q")
    assert near.metadata == {"conformal_score": 0.1, "conformal_p_value": 1.0, "page": 1}
    assert type(near.metadata["conformal_score"]) is float
    assert type(near.metadata["conformal_p_value"]) is float
    assert odd.metadata == {"conformal_score": None, "conformal_p_value": None}


def test_a_p_value_is_of_the_group_of_the_query():
    """Of the scores 0.1 … 0.9 of one group none is 1.5 or more, and of the other 1.1 … 1.9 five."""
    given = [ScoredQuery([g + i / 10], [True], group=f"{g}") for g in (0, 1) for i in range(1, 10)]
    of_groups = Calibration.from_scores(given, alpha=0.1, scorer="lookup", by_group=True)
    grouped = ConformalFilter(LookupScorer({"a": 1.5}), of_groups, group_of=lambda query: query)
    (kept,) = ConformalCompressor(filter=grouped).compress_documents([Document("a")], "1")
    assert kept.metadata["conformal_p_value"] == pytest.approx(0.6)  # (1 + 5) / 10


@pytest.mark.parametrize(("score", "name"), [(math.inf, "inf"), (-math.inf, "-inf")])
def test_an_infinite_score_has_a_name_because_json_has_no_number_for_it(score, name):
    everything = ConformalCompressor(filter=lookup_filter({"a": score}, threshold=math.inf))
    (kept,) = everything.compress_documents([Document("a")], "q")
    assert kept.metadata["conformal_score"] == name
    json.dumps(kept.metadata, allow_nan=False)


async def test_a_document_may_have_lost_its_metadata(compressor):
    given = Document("near")
    given.metadata = None
    (kept,) = await both(compressor, [given])
    assert kept.metadata == {"conformal_score": 0.1, "conformal_p_value": 1.0}
    (judged,) = judge_retriever(
        RunnableLambda(lambda query: [given]), [JudgedQuery("q", ["near"], [True])]
    )
    assert judged.relevant == (True,)


@pytest.mark.parametrize(("prefix", "names"), [("cf.", {"cf.score", "cf.p_value"}), (None, set())])
def test_the_prefix_of_metadata_can_be_chosen_or_switched_off(prefix, names):
    compressor = ConformalCompressor(filter=lookup_filter(), metadata_prefix=prefix)
    (kept,) = compressor.compress_documents([Document("near")], "q")
    assert set(kept.metadata) == names


# --- alpha ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0, 1, 1.5, -0.1])
def test_an_alpha_out_of_range_is_refused(retriever, alpha):
    with pytest.raises(ValidationError, match="alpha is"):
        ConformalRetriever(retriever=retriever.retriever, filter=retriever.filter, alpha=alpha)


def test_a_retriever_can_have_another_alpha_than_its_calibration():
    queries = [ScoredQuery([i / 20], [True]) for i in range(20)]
    calibration = Calibration.from_scores(queries, alpha=0.1, scorer="lookup")
    found = RunnableLambda(lambda query: documents())
    strict = ConformalFilter(LookupScorer(SCORES), calibration)
    assert texts_of(ConformalRetriever(retriever=found, filter=strict).invoke("q")) != KEPT[:1]
    loose = ConformalRetriever(retriever=found, filter=strict, alpha=0.8)
    assert texts_of(loose.invoke("q")) == ["near", "odd"]


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", [None, "", "  "])
async def test_a_missing_query_is_an_error(compressor, query):
    with pytest.raises(ValueError, match="query"):
        compressor.compress_documents(documents(), query)
    with pytest.raises(ValueError, match="query"):
        await compressor.acompress_documents([], query)


@pytest.mark.parametrize("given", [None, 3, "q", Document("near"), ["text"]], ids=str)
async def test_anything_but_a_list_of_documents_is_an_error(compressor, given):
    with pytest.raises(TypeError, match="documents"):
        compressor.compress_documents(given, "q")
    with pytest.raises(TypeError, match="documents"):
        await compressor.acompress_documents(given, "q")


@pytest.mark.parametrize(
    ("given", "error", "field"),
    [
        ("q", TypeError, "input"),
        ({"query": "q"}, ValueError, "documents"),
        ({"documents": []}, ValueError, "query"),
    ],
)
async def test_the_runnable_names_what_is_missing_from_its_input(compressor, given, error, field):
    runnable = compressor.as_runnable()
    schema = runnable.get_input_jsonschema()
    assert set(schema["$defs"]["CompressorInput"]["required"]) == {"query", "documents"}
    with pytest.raises(error, match=field):
        runnable.invoke(given)
    with pytest.raises(error, match=field):
        await runnable.ainvoke(given)


def test_a_misspelt_field_of_the_retriever_is_an_error(retriever):
    with pytest.raises(ValidationError, match="treshold"):
        ConformalRetriever(retriever=retriever.retriever, filter=retriever.filter, treshold=0.3)


def scored_documents(query):
    return [Document(t, metadata={"relevance_score": s}) for t, s in (("a", 0.4), ("b", 0.6))]


def test_retriever_and_compressor_can_be_pickled_and_copied():
    scorer = RetrievalScorer()
    few = Calibration.from_scores([ScoredQuery([-0.5], [True])], alpha=0.5, scorer=scorer.name)
    compressor = ConformalCompressor(filter=ConformalFilter(scorer, few))
    retriever = ConformalRetriever(
        retriever=RunnableLambda(scored_documents), filter=compressor.filter
    )
    for again in (retriever, pickle.loads(pickle.dumps(retriever))):
        assert texts_of(again.invoke("q")) == ["b"]
        assert again.filter.calibration == few
    for other in (pickle.loads(pickle.dumps(compressor)), copy.deepcopy(compressor)):
        assert texts_of(other.compress_documents(scored_documents("q"), "q")) == ["b"]
