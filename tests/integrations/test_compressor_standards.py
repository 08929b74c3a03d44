"""The published tests of document compressors: ours passes them, and peers fail where known."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import ClassVar

import numpy as np
import pytest
from compressor_standards import DocumentCompressorTests
from frameworks import MiniLMEmbeddings
from langchain_classic.retrievers.document_compressors import (
    CrossEncoderReranker,
    EmbeddingsFilter,
    LLMChainFilter,
)
from langchain_community.cross_encoders import HuggingFaceCrossEncoder
from langchain_core.documents import BaseDocumentCompressor
from langchain_core.language_models import SimpleChatModel
from pydantic import ConfigDict, PrivateAttr
from scoring.test_cross_encoder import saved_model

from conformal_retrievers import Calibration, ConformalFilter, ScoredQuery
from langchain_conformal import ConformalCompressor, as_scorer, testing

THRESHOLD = 0.7  # between MiniLM's distances of the three mountains and of the other two


def filter_at(scorer, threshold):
    one = Calibration.from_scores([ScoredQuery([threshold], [True])], alpha=0.5, scorer=scorer.name)
    return ConformalFilter(scorer, one)


def test_the_threshold_lies_between_the_examples():
    suite = DocumentCompressorTests()
    embeddings = MiniLMEmbeddings()
    vectors = np.array(embeddings.embed_documents(suite.texts))
    for query, n_kept in ((suite.query, 3), (suite.other_query, 1)):
        distances = sorted(1 - vectors @ embeddings.embed_query(query))
        assert distances[n_kept - 1] < THRESHOLD - 0.05 < THRESHOLD + 0.05 < distances[n_kept]


class Known:
    """Marks the tests that are known to fail, strictly: all others must pass, and these fail.

    A test is named with or without its parameter; those `by_chance` may fail or pass.
    """

    faults: ClassVar[dict[str, str]]
    by_chance: ClassVar[dict[str, str]] = {}

    @pytest.fixture(autouse=True)
    def _faults_are_known(self, request):
        for reasons, strict in ((self.faults, True), (self.by_chance, False)):
            for name in (request.node.name, request.node.originalname):
                if name in reasons:
                    request.applymarker(pytest.mark.xfail(strict=strict, reason=reasons[name]))

    def test_all_known_faults_are_tests(self):
        known = {name.partition("[")[0] for name in (*self.faults, *self.by_chance)}
        assert all(hasattr(DocumentCompressorTests, name) for name in known)


class TestConformalCompressor(DocumentCompressorTests):
    packages = ("conformal_retrievers",)

    @pytest.fixture
    def compressor(self):
        return ConformalCompressor(filter=filter_at(as_scorer(MiniLMEmbeddings()), THRESHOLD))


class TestEmbeddingsFilter(Known, DocumentCompressorTests):
    faults: ClassVar = {
        "test_no_documents_give_no_documents": "IndexError",
        "test_order_is_that_of_the_input": "the most similar comes first",
        "test_nothing_limits_how_many_are_kept": "k is 20 unless said otherwise, threshold or not",
        "test_what_was_filtered_and_what_was_not_may_be_mixed": "KeyError: 'embedded_doc'",
        "test_ids_are_kept": "they are None",
        "test_class_and_fields_are_kept": "they become _DocumentWithState, which holds the vectors",
        "test_a_misspelt_field_is_an_error": "it is ignored",
    }

    @pytest.fixture
    def compressor(self):
        return EmbeddingsFilter(embeddings=MiniLMEmbeddings(), similarity_threshold=1 - THRESHOLD)


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory):
    folder = saved_model(tmp_path_factory.mktemp("models") / "bert", labels=1)
    return HuggingFaceCrossEncoder(model_name=str(folder), model_kwargs={"device": "cpu"})


class TestCrossEncoderReranker(Known, DocumentCompressorTests):
    faults: ClassVar = {
        "test_each_document_alone_is_decided_as_among_others": "it keeps the best three",
        "test_order_is_that_of_the_input": "the best comes first",
        "test_equal_documents_are_decided_alike": "it keeps three, however many are as good",
        "test_nothing_limits_how_many_are_kept": "top_n is 3 unless said otherwise",
        "test_what_was_filtered_and_what_was_not_may_be_mixed": "it keeps the best three",
        "test_what_is_written_into_the_output_stays_there": "it returns the very same objects",
    }

    @pytest.fixture
    def compressor(self, cross_encoder):
        return CrossEncoderReranker(model=cross_encoder)


class Answering(SimpleChatModel):
    """Answers YES where question and context speak of mountains, or both of bread."""

    _llm_type: str = "answering"

    def _call(self, messages, stop=None, run_manager=None, **kwargs):
        asked = re.search(r"Question: (.*)\n> Context:\n>>>\n(.*)\n>>>", messages[-1].content, re.S)
        question, context = asked.groups()
        about = "Everest|K2" if "mountain" in question else "Bread"
        return "YES" if re.search(about, context) else "NO"


class TestLLMChainFilter(Known, DocumentCompressorTests):
    faults: ClassVar = {
        "test_what_is_written_into_the_output_stays_there": "it returns the very same objects",
        "test_a_misspelt_field_is_an_error": "it is ignored",
    }

    @pytest.fixture
    def compressor(self):
        return LLMChainFilter.from_llm(Answering())


# --- compressors with one fault each, which the tests find ----------------------------------------


def words(text):
    return {word.casefold() for word in re.findall(r"\w{5,}", text)}


def sharing(wanted, documents):
    return [d.model_copy(deep=True) for d in documents if wanted & words(d.page_content)]


class SharedWords(BaseDocumentCompressor):
    """Keeps the documents that share a long word with the query, and has no fault."""

    model_config = ConfigDict(extra="forbid")

    def compress_documents(self, documents, query, callbacks=None):
        return sharing(words(query), documents)


class TestSharedWords(DocumentCompressorTests):
    @pytest.fixture
    def compressor(self):
        return SharedWords()


class IgnoringTheQuery(SharedWords):
    def compress_documents(self, documents, query, callbacks=None):
        return sharing(words(DocumentCompressorTests.query), documents)


class TestThatIgnoresTheQuery(Known, DocumentCompressorTests):
    faults: ClassVar = {"test_another_query_keeps_other_documents": "it does not look at it"}

    @pytest.fixture
    def compressor(self):
        return IgnoringTheQuery()


class Remembering(SharedWords):
    _wanted: set[str] = PrivateAttr()

    def compress_documents(self, documents, query, callbacks=None):
        self._wanted = words(query)
        return sharing(self._wanted, documents)


class TestThatRemembersTheQuery(Known, DocumentCompressorTests):
    faults: ClassVar = {"test_threads_may_take_turns_at_every_line": "it keeps the query on itself"}
    by_chance: ClassVar = dict.fromkeys(
        ("test_threads_may_share_it", "test_tasks_may_share_it"), "it keeps the query on itself"
    )

    @pytest.fixture
    def compressor(self):
        return Remembering()


class RememberingAcrossAnAwait(Remembering):
    def compress_documents(self, documents, query, callbacks=None):
        return sharing(words(query), documents)

    async def acompress_documents(self, documents, query, callbacks=None):
        self._wanted = words(query)
        await asyncio.sleep(0)
        return sharing(self._wanted, documents)


class TestThatRemembersTheQueryAcrossAnAwait(Known, DocumentCompressorTests):
    faults: ClassVar = {"test_tasks_may_share_it": "it keeps the query on itself"}

    @pytest.fixture
    def compressor(self):
        return RememberingAcrossAnAwait()


class LimitedWhenAwaited(SharedWords):
    async def acompress_documents(self, documents, query, callbacks=None):
        return (await super().acompress_documents(documents, query))[:100]


class TestThatLimitsWhenAwaited(Known, DocumentCompressorTests):
    faults: ClassVar = {
        "test_nothing_limits_how_many_are_kept[acompress_documents]": "it keeps 100 at most"
    }

    @pytest.fixture
    def compressor(self):
        return LimitedWhenAwaited()


class IgnoringTheQueryWhenAwaited(SharedWords):
    async def acompress_documents(self, documents, query, callbacks=None):
        return await super().acompress_documents(documents, DocumentCompressorTests.query)


class TestThatIgnoresTheQueryWhenAwaited(Known, DocumentCompressorTests):
    faults: ClassVar = {
        "test_another_query_keeps_other_documents[acompress_documents]": "it does not look at it",
        "test_tasks_may_share_it": "the other query's tasks get what the query's get",
    }

    @pytest.fixture
    def compressor(self):
        return IgnoringTheQueryWhenAwaited()


class GoingByIds(SharedWords):
    def compress_documents(self, documents, query, callbacks=None):
        found = {d.id for d in sharing(words(query), documents)}
        return [d.model_copy(deep=True) for d in documents if d.id in found]


class TestThatGoesByIds(Known, DocumentCompressorTests):
    faults: ClassVar = {"test_documents_need_no_id_and_no_metadata": "they all have the id None"}

    @pytest.fixture
    def compressor(self):
        return GoingByIds()


class Yielding(SharedWords):
    def compress_documents(self, documents, query, callbacks=None):
        yield from sharing(words(query), documents)


class TestThatYields(Known, DocumentCompressorTests):
    faults: ClassVar = {"test_what_is_returned_is_a_sequence": "a generator is none"}

    @pytest.fixture
    def compressor(self):
        return Yielding()


class TakingListsOfHandlers(SharedWords):
    async def acompress_documents(self, documents, query, callbacks=None):
        handlers = [*callbacks] if callbacks else []
        return await super().acompress_documents(documents, query, handlers)


class TestThatTakesListsOfHandlers(Known, DocumentCompressorTests):
    faults: ClassVar = {
        "test_callbacks_change_nothing[manager-acompress_documents]": "TypeError, of a manager"
    }

    @pytest.fixture
    def compressor(self):
        return TakingListsOfHandlers()


class WithAnOption(SharedWords):
    def compress_documents(self, documents, query, callbacks=None, *, least=1):
        return [d for d in sharing(words(query), documents) if len(d.page_content) >= least]


class TestWithAnOption(DocumentCompressorTests):
    @pytest.fixture
    def compressor(self):
        return WithAnOption()


class Blocking(SharedWords):
    async def acompress_documents(self, documents, query, callbacks=None):
        return self.compress_documents(documents, query)


class TestThatBlocksTheLoop(Known, DocumentCompressorTests):
    faults: ClassVar = {"test_other_tasks_run_while_it_is_awaited": "it awaits nothing"}

    @pytest.fixture
    def compressor(self):
        return Blocking()


class WithArgumentsOfItsOwn(SharedWords):
    """Raises TypeError for an argument that it does not know, as Python's functions do."""

    least: int

    def __init__(self, least: int) -> None:
        super().__init__(least=least)


class TestThatRaisesTypeError(DocumentCompressorTests):
    @pytest.fixture
    def compressor(self):
        return WithArgumentsOfItsOwn(least=1)


class Locking(Remembering):
    """Keeps the query on itself, behind a lock: then calls wait for one another, and none mix."""

    def compress_documents(self, documents, query, callbacks=None):
        with LOCK:
            self._wanted = words(query)
            return sharing(self._wanted, documents)


LOCK = threading.Lock()


class TestThatLocks(DocumentCompressorTests):
    @pytest.fixture
    def compressor(self, monkeypatch):
        monkeypatch.setattr(testing, "PATIENCE", 0.1)
        return Locking()
