"""The standard for LangChain document compressors that keep some documents and drop others."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler, CallbackManager
from langchain_core.documents import Document

from conformal_retrievers import Calibration, ConformalFilter, FunctionScorer, ScoredQuery
from langchain_conformal import ConformalCompressor

QUERY = "What is the highest mountain?"
OTHER_QUERY = "How does yeast make bread rise?"
TEXTS = (
    "Mount Everest is the highest mountain on Earth.",
    "Bread dough rises when yeast turns sugar into gas.",
    "K2 is the second highest mountain and harder to climb than Everest.",
    "The café in Zürich opens at 7 — croissants cost 3 €.",
)
KEPT = [TEXTS[0], TEXTS[2]]
METHODS = pytest.mark.parametrize("method", ["compress_documents", "acompress_documents"])


class NumberedDocument(Document):
    """A document class with a field of its own."""

    number: int = 0


class BrokenHandler(BaseCallbackHandler):
    """Raises wherever it is called."""

    def __getattribute__(self, name):
        if name.startswith("on_"):
            raise RuntimeError("a broken handler")
        return super().__getattribute__(name)


def shared_words(query, texts):
    """Score a text by how many long words it shares with the query."""
    return [-float(len(words(query) & words(text))) for text in texts]


def words(text):
    return {word.casefold() for word in re.findall(r"\w{5,}", text)}


def compressor_of(function):
    scorer = FunctionScorer(function, "shared words")
    one = Calibration.from_scores([ScoredQuery([-1.0], [True])], alpha=0.5, scorer=scorer.name)
    return ConformalCompressor(filter=ConformalFilter(scorer, one))


@pytest.fixture
def compressor():
    return compressor_of(shared_words)


def documents():
    """Fresh documents with ids, a field of their own and nested metadata."""
    return [
        NumberedDocument(
            page_content=text,
            id=f"id-{i}",
            metadata={"source": f"{i}.txt", "nested": {"pages": [i]}},
            number=i,
        )
        for i, text in enumerate(TEXTS)
    ]


def compress(compressor, given, query=QUERY, method="compress_documents", callbacks=None):
    found = getattr(compressor, method)(given, query, callbacks)
    return asyncio.run(found) if inspect.iscoroutine(found) else found


def texts_of(found):
    return [document.page_content for document in found]


# --- what is kept ---------------------------------------------------------------------------------


@METHODS
def test_each_query_keeps_its_documents_in_their_order(compressor, method):
    assert texts_of(compress(compressor, documents(), QUERY, method)) == KEPT
    assert texts_of(compress(compressor, documents()[::-1], QUERY, method)) == KEPT[::-1]
    assert texts_of(compress(compressor, documents(), OTHER_QUERY, method)) == [TEXTS[1]]
    assert compress(compressor, [], QUERY, method) == []


# --- what becomes of the documents ----------------------------------------------------------------


@METHODS
def test_inputs_are_not_changed_even_if_the_output_is(compressor, method):
    given = documents()
    for document in compress(compressor, given, method=method):
        document.metadata["written"] = "afterwards"
    assert given == documents()


@METHODS
def test_id_class_fields_and_metadata_are_kept(compressor, method):
    by_text = {document.page_content: document for document in documents()}
    for document in compress(compressor, documents(), method=method):
        before = by_text[document.page_content]
        assert type(document) is NumberedDocument
        assert (document.id, document.number) == (before.id, before.number)
        assert document.metadata.items() >= before.metadata.items()


# --- how it is called -----------------------------------------------------------------------------


@METHODS
def test_callbacks_are_optional_and_change_nothing(compressor, method):
    parameters = inspect.signature(getattr(compressor, method)).parameters
    assert [*parameters] == ["documents", "query", "callbacks"]
    assert parameters["callbacks"].default is None
    kept = compress(compressor, documents(), method=method)
    manager = AsyncCallbackManager if method == "acompress_documents" else CallbackManager
    for callbacks in ([BaseCallbackHandler()], manager([BaseCallbackHandler()]), [BrokenHandler()]):
        assert compress(compressor, documents(), QUERY, method, callbacks) == kept


def test_overlapping_threads_do_not_mix_their_queries():
    """Both calls are inside the scorer at once: state of one would be overwritten by the other."""
    barrier = threading.Barrier(2, timeout=30)

    def overlapping(query, texts):
        barrier.wait()
        scores = shared_words(query, texts)
        barrier.wait()
        return scores

    compressor = compressor_of(overlapping)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            found = pool.map(lambda q: compress(compressor, documents(), q), (QUERY, OTHER_QUERY))
            assert list(map(texts_of, found)) == [KEPT, [TEXTS[1]]]


def test_the_compressor_can_be_pickled_and_copied(compressor):
    kept = compress(compressor, documents())
    for again in (pickle.loads(pickle.dumps(compressor)), copy.deepcopy(compressor)):
        assert compress(again, documents()) == kept
