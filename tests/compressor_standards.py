"""Standard tests of LangChain document compressors that filter, for any package's own tests.

In a test module (`pip install 'langchain-conformal[testing]'`):

    class TestMine(DocumentCompressorTests):
        @pytest.fixture
        def compressor(self):
            return MyFilter(threshold=0.3)

The examples must be such that some are kept and some dropped, and others for `other_query`: set
`query`, `other_query` and `texts` to ones that your compressor tells apart. What it does not
promise is marked by overriding the test:

        @pytest.mark.xfail(reason="returns the best first")
        def test_order_is_that_of_the_input(self, compressor): ...

Asynchronous methods are run by `asyncio.run`, so that no plugin of pytest is needed.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler, CallbackManager
from langchain_core.documents import BaseDocumentCompressor, Document

PATIENCE = 5.0  # seconds after which a call whose turn does not come is thought to hold a lock
METHODS = pytest.mark.parametrize("method", ["compress_documents", "acompress_documents"])


class NumberedDocument(Document):
    """A document class of one's own, with a field of its own."""

    number: int = 0


class BrokenHandler(BaseCallbackHandler):
    """Raises wherever it is called."""

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            raise RuntimeError("a broken handler")
        return super().__getattribute__(name)


class DocumentCompressorTests:
    """What holds of a compressor that keeps some documents as they are and drops the others."""

    query: str = "What is the highest mountain?"
    other_query: str = "How does yeast make bread rise?"
    texts: Sequence[str] = (
        "Mount Everest is the highest mountain on Earth.",
        "Bread dough rises when yeast turns sugar into gas.",
        "K2 is the second highest mountain and harder to climb than Everest.",
        "The café in Zürich opens at 7 — croissants cost 3 €.",
        "Most climbers reach the summit of Everest in May.",
    )
    many: int = 130
    """How many documents nothing may limit; fewer where each costs a call of a model."""
    packages: Sequence[str] = ()
    """Further packages with code of the compressor's, beside the one that its class is from."""

    @pytest.fixture
    def compressor(self) -> BaseDocumentCompressor:
        """Return the compressor to be tested."""
        raise NotImplementedError("give your compressor: override the fixture `compressor`")

    @property
    def documents(self) -> list[Document]:
        """The examples: fresh documents with ids, a field of their own and nested metadata."""
        return [
            NumberedDocument(
                page_content=text,
                id=f"id-{i}",
                metadata={"source": f"{i}.txt", "nested": {"pages": [i]}},
                number=i,
            )
            for i, text in enumerate(self.texts)
        ]

    def compress(
        self,
        compressor: BaseDocumentCompressor,
        documents: Sequence[Document],
        query: str | None = None,
        method: str = "compress_documents",
    ) -> list[Document]:
        """Return what the compressor keeps of the documents for a query, by default `query`."""
        query = self.query if query is None else query
        if method == "acompress_documents":
            return list(asyncio.run(compressor.acompress_documents(documents, query)))
        return list(compressor.compress_documents(documents, query))

    # --- what is kept -----------------------------------------------------------------------------

    def test_some_examples_are_kept_and_some_dropped(
        self, compressor: BaseDocumentCompressor
    ) -> None:
        """Without both, the other tests tell nothing."""
        kept = texts_of(self.compress(compressor, self.documents))
        assert 0 < len(kept) < len(self.texts), f"{len(kept)} of {len(self.texts)} are kept"
        assert set(kept) <= set(self.texts)

    @METHODS
    def test_another_query_keeps_other_documents(
        self, compressor: BaseDocumentCompressor, method: str
    ) -> None:
        """A filter decides about documents for a query."""
        kept, others = (
            texts_of(self.compress(compressor, self.documents, query, method))
            for query in (self.query, self.other_query)
        )
        assert others, "nothing is kept for other_query"
        assert set(kept) != set(others), "the same documents are kept for query and other_query"

    def test_no_documents_give_no_documents(self, compressor: BaseDocumentCompressor) -> None:
        """An earlier filter of a pipeline may have dropped everything."""
        assert self.compress(compressor, []) == []
        assert list(asyncio.run(compressor.acompress_documents([], self.query))) == []

    def test_each_document_alone_is_decided_as_among_others(
        self, compressor: BaseDocumentCompressor
    ) -> None:
        """A filter's decision is about the document."""
        alone = [d for d in self.documents if self.compress(compressor, [d])]
        assert set(texts_of(alone)) == set(texts_of(self.compress(compressor, self.documents)))

    def test_order_is_that_of_the_input(self, compressor: BaseDocumentCompressor) -> None:
        """The retriever's order means something to what comes next."""
        for documents in (self.documents, self.documents[::-1]):
            kept = texts_of(self.compress(compressor, documents))
            assert kept == [d.page_content for d in documents if d.page_content in kept]

    def test_equal_documents_are_decided_alike(self, compressor: BaseDocumentCompressor) -> None:
        """Each document is answered for, also where another has the same text."""
        once = texts_of(self.compress(compressor, self.documents))
        twice = texts_of(self.compress(compressor, self.documents + self.documents))
        assert sorted(twice) == sorted(once + once)

    @METHODS
    def test_nothing_limits_how_many_are_kept(
        self, compressor: BaseDocumentCompressor, method: str
    ) -> None:
        """A limit that nobody asked for drops relevant documents without a word."""
        text = self.compress(compressor, self.documents)[0].page_content
        many = [Document(page_content=text, id=str(i)) for i in range(self.many)]
        kept = len(self.compress(compressor, many, method=method))
        assert kept == self.many, f"{kept} of {self.many} documents with the same text are kept"

    @METHODS
    def test_documents_need_no_id_and_no_metadata(
        self, compressor: BaseDocumentCompressor, method: str
    ) -> None:
        """Splitters give none; the text decides."""
        bare = [Document(page_content=text) for text in self.texts]
        kept = self.compress(compressor, self.documents, method=method)
        assert texts_of(self.compress(compressor, bare, method=method)) == texts_of(kept)

    def test_blank_documents_are_no_error(self, compressor: BaseDocumentCompressor) -> None:
        """Splitters make them; the other documents are decided as without them."""
        blank = [Document(page_content="", id="a"), Document(page_content=" \n", id="b")]
        among = texts_of(self.compress(compressor, [blank[0], *self.documents, blank[1]]))
        without = texts_of(self.compress(compressor, self.documents))
        assert [text for text in among if text.strip()] == without

    def test_any_sequence_will_do(self, compressor: BaseDocumentCompressor) -> None:
        """The interface asks for a Sequence."""
        kept = self.compress(compressor, self.documents)
        assert texts_of(self.compress(compressor, tuple(self.documents))) == texts_of(kept)

    def test_filtering_what_was_filtered_changes_nothing(
        self, compressor: BaseDocumentCompressor
    ) -> None:
        """An old score in the metadata is not trusted, nor does it get in the way."""
        once = self.compress(compressor, self.documents)
        assert self.compress(compressor, once) == once

    def test_what_was_filtered_and_what_was_not_may_be_mixed(
        self, compressor: BaseDocumentCompressor
    ) -> None:
        """Retrievers are merged, and one of them may be filtered already."""
        once = self.compress(compressor, self.documents)
        mixed = self.compress(compressor, once + self.documents)
        assert sorted(texts_of(mixed)) == sorted(2 * texts_of(once))

    @METHODS
    def test_what_is_returned_is_a_sequence(
        self, compressor: BaseDocumentCompressor, method: str
    ) -> None:
        """It is gone through more than once: by a handler, a pipeline and the chain."""
        kept: object = getattr(compressor, method)(self.documents, self.query)
        if inspect.iscoroutine(kept):
            kept = asyncio.run(kept)
        assert isinstance(kept, Sequence), f"it is a {type(kept).__name__}"

    # --- what becomes of the documents ------------------------------------------------------------

    def test_inputs_are_left_as_they_were(self, compressor: BaseDocumentCompressor) -> None:
        """Retrievers may return the very objects that their store holds."""
        given = self.documents
        before = copy.deepcopy(given)
        self.compress(compressor, given)
        asyncio.run(compressor.acompress_documents(given, self.query))
        assert given == before

    def test_what_is_written_into_the_output_stays_there(
        self, compressor: BaseDocumentCompressor
    ) -> None:
        """A copy has its own metadata."""
        given = self.documents
        before = copy.deepcopy(given)
        for document in self.compress(compressor, given):
            document.metadata["written"] = "afterwards"
        assert given == before, "what is returned shares its metadata with the input: return copies"

    def test_ids_are_kept(self, compressor: BaseDocumentCompressor) -> None:
        """Citations, deduplication and evaluation go by the id."""
        by_text = {d.page_content: d.id for d in self.documents}
        for document in self.compress(compressor, self.documents):
            assert document.id == by_text[document.page_content]

    def test_class_and_fields_are_kept(self, compressor: BaseDocumentCompressor) -> None:
        """A document comes back as what it was, without fields that others must put up with."""
        numbers = {d.page_content: getattr(d, "number", None) for d in self.documents}
        for document in self.compress(compressor, self.documents):
            assert type(document) is NumberedDocument
            assert document.number == numbers[document.page_content]

    def test_metadata_is_kept(self, compressor: BaseDocumentCompressor) -> None:
        """Keys may be added; none is lost or changed."""
        before = {d.page_content: d.metadata for d in self.documents}
        for document in self.compress(compressor, self.documents):
            for key, value in before[document.page_content].items():
                assert document.metadata[key] == value

    def test_documents_become_json(self, compressor: BaseDocumentCompressor) -> None:
        """Traces, caches and servers write documents as JSON; numpy's numbers are none there."""
        for document in self.compress(compressor, self.documents):
            json.loads(document.model_dump_json())
            json.dumps(document.metadata, allow_nan=False)
            for key, value in document.metadata.items():
                builtin = type(value).__module__ == "builtins"
                assert builtin, f"metadata[{key!r}] is a {type(value)}"

    # --- how it is called -------------------------------------------------------------------------

    def test_asynchronous_and_synchronous_are_the_same(
        self, compressor: BaseDocumentCompressor
    ) -> None:
        """What is kept does not depend on how one waits for it."""
        waited = asyncio.run(compressor.acompress_documents(self.documents, self.query))
        assert list(waited) == self.compress(compressor, self.documents)

    def test_other_tasks_run_while_it_is_awaited(self, compressor: BaseDocumentCompressor) -> None:
        """A server answers others meanwhile; a method that awaits nothing stops them all.

        What blocks between two awaits is not seen. A compressor that only compares numbers has
        nothing to wait for: override the test.
        """
        others_ran: list[bool] = []

        async def another() -> None:
            others_ran.append(True)

        async def awaited() -> bool:
            await compressor.acompress_documents(self.documents, self.query)
            return bool(others_ran)

        async def together() -> bool:
            first, _ = await asyncio.gather(awaited(), another())  # they begin in this order
            return first

        assert asyncio.run(together()), "acompress_documents ended before another task could begin"

    @METHODS
    def test_callbacks_can_be_passed(self, compressor: BaseDocumentCompressor, method: str) -> None:
        """Pipelines pass them only to a parameter of that name, and it has a default."""
        signature = inspect.signature(getattr(compressor, method))
        assert [*signature.parameters][:3] == ["documents", "query", "callbacks"]
        assert signature.parameters["callbacks"].default is None
        signature.bind([], "", None)  # further parameters are nobody's who calls a compressor

    @METHODS
    @pytest.mark.parametrize("callbacks", ["none", "list", "manager"])
    def test_callbacks_change_nothing(
        self, compressor: BaseDocumentCompressor, method: str, callbacks: str
    ) -> None:
        """None, a list of handlers and a manager are what LangChain's own callers pass."""
        kept = self.compress(compressor, self.documents, method=method)
        handlers = [BaseCallbackHandler()]
        awaited = method == "acompress_documents"
        manager = AsyncCallbackManager(handlers) if awaited else CallbackManager(handlers)
        given: Any = {"none": None, "list": handlers, "manager": manager}[callbacks]
        found: Any = getattr(compressor, method)(self.documents, self.query, given)
        assert list(asyncio.run(found) if inspect.iscoroutine(found) else found) == kept

    def test_a_handler_that_raises_changes_nothing(
        self, compressor: BaseDocumentCompressor
    ) -> None:
        """Observing is not worth an answer."""
        kept = self.compress(compressor, self.documents)
        given = compressor.compress_documents(
            self.documents, self.query, callbacks=[BrokenHandler()]
        )
        assert list(given) == kept
        waited = asyncio.run(
            compressor.acompress_documents(self.documents, self.query, callbacks=[BrokenHandler()])
        )
        assert list(waited) == kept

    def test_threads_may_share_it(self, compressor: BaseDocumentCompressor) -> None:
        """Nothing of one query is held where another finds it."""
        asked = [
            (query, documents)
            for documents in (self.documents, self.documents[::-1], self.documents[:2])
            for query in (self.query, self.other_query)
        ] * 4

        def kept(query: str, documents: list[Document]) -> list[str]:
            return texts_of(self.compress(compressor, documents, query))

        one_by_one = [kept(*one) for one in asked]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda one: kept(*one), asked)) == one_by_one

    def test_threads_may_take_turns_at_every_line(self, compressor: BaseDocumentCompressor) -> None:
        """What one call leaves on the compressor, another overwrites before it is read.

        Lines of the package that the class is from, and of `packages`, take turns.
        """
        queries = (self.query, self.other_query)
        one_by_one = [self.compress(compressor, self.documents, query) for query in queries]
        turns = Turns(len(queries), {*_packages_of(compressor), *self.packages})

        def by_turns(me: int) -> list[Document]:
            return turns.run(me, lambda: self.compress(compressor, self.documents, queries[me]))

        with ThreadPoolExecutor(len(queries)) as pool:
            assert list(pool.map(by_turns, range(len(queries)))) == one_by_one

    def test_tasks_may_share_it(self, compressor: BaseDocumentCompressor) -> None:
        """Nothing of one query is held where another finds it."""
        queries = (self.query, self.other_query)
        one_by_one = [self.compress(compressor, self.documents, query) for query in queries]

        async def together() -> list[Sequence[Document]]:
            return await asyncio.gather(
                *(compressor.acompress_documents(self.documents, query) for query in queries * 8)
            )

        assert [list(found) for found in asyncio.run(together())] == one_by_one * 8

    def test_a_misspelt_field_is_an_error(self, compressor: BaseDocumentCompressor) -> None:
        """A threshold that is silently not set is worse than none."""
        arguments = {
            name: getattr(compressor, name)
            for name in inspect.signature(type(compressor)).parameters
            if hasattr(compressor, name)
        }
        said = ""
        try:
            type(compressor)(**{**arguments, "no_such_field": 1})
        except (ValueError, TypeError) as error:
            said = str(error)
        assert "no_such_field" in said, "forbid other fields: ConfigDict(extra='forbid')"

    def test_it_can_be_pickled(self, compressor: BaseDocumentCompressor) -> None:
        """Workers get it this way."""
        again = pickle.loads(pickle.dumps(compressor))
        kept = self.compress(compressor, self.documents)
        assert list(again.compress_documents(self.documents, self.query)) == kept


def texts_of(documents: Sequence[Document]) -> list[str]:
    """Return the texts of documents."""
    return [document.page_content for document in documents]


class Turns:
    """Calls in threads that run by turns: at each line of some packages' code, the next goes on.

    So they overlap, and in the same way each time. Where one waits for another, at a lock of the
    compressor's own, the turns end after `PATIENCE` seconds, and the calls run freely.
    """

    def __init__(self, calls: int, packages: set[str]) -> None:
        self._packages = packages
        self._changed = threading.Condition()
        self._running = list(range(calls))
        self._turn: int | None = 0  # None: they run freely

    def run(self, me: int, call: Callable[[], list[Document]]) -> list[Document]:
        """Return what a call returns, the one with the number `me`, counted from 0."""

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            if frame.f_globals.get("__name__", "").partition(".")[0] not in self._packages:
                return None
            if event == "line":
                self._pass_on(me)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return call()
        finally:
            sys.settrace(before)
            with self._changed:
                self._turn_to_next(me)
                self._running.remove(me)

    def _pass_on(self, me: int) -> None:
        with self._changed:
            if self._turn == me:
                self._turn_to_next(me)
            if not self._changed.wait_for(lambda: self._turn in (me, None), PATIENCE):
                self._turn = None
                self._changed.notify_all()

    def _turn_to_next(self, me: int) -> None:
        if self._turn == me:
            place = self._running.index(me) + 1
            self._turn = self._running[place % len(self._running)]
        self._changed.notify_all()


def _packages_of(compressor: BaseDocumentCompressor) -> set[str]:
    """Return the packages that the compressor's class and its bases are from, but LangChain's."""
    modules = {base.__module__.partition(".")[0] for base in type(compressor).__mro__}
    interface = {base.__module__.partition(".")[0] for base in BaseDocumentCompressor.__mro__}
    return modules - interface
