"""Asking a chain: with a bound, a cache, and a loop for asynchronous ones."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.llm.ask import check_count, with_bar
from conformal_retrievers.llm.cache import Cache

logger = logging.getLogger("conformal_retrievers")

T = TypeVar("T")
Answer: TypeAlias = Callable[[str, Sequence[Snippet]], str | Awaitable[str]]


@dataclass
class Asked:
    """A chain that remembers its answers in a cache, and may be asynchronous."""

    answer: Answer
    chain: str
    cache: Cache | None = None
    concurrency: int = 8
    loop: asyncio.AbstractEventLoop | None = None  # of asynchronous answers, while it is asked
    stopped: threading.Event = field(default_factory=threading.Event)

    def __call__(self, question: str, snippets: Sequence[Snippet], reference: bool) -> str:
        """Return the answer; raise ValueError for a blank one, and TypeError for no text."""
        request = json.dumps([question, [[s.id, s.text] for s in snippets], reference])
        if self.cache is not None and (known := self.cache.replies(self.chain, [request])[0]):
            return known
        if self.stopped.is_set():
            raise InterruptedError("the scan was stopped")
        found: Any = self.answer(question, snippets)
        if isinstance(found, Awaitable) and self.loop is not None:
            found = asyncio.run_coroutine_threadsafe(_awaited(found), self.loop).result()
        if not isinstance(found, str):
            raise NotText(
                f"answer returned {found!r:.60} to the question {question!r:.60} from "
                f"{len(snippets)} snippets; return the text of the answer"
            )
        if not found.strip():
            raise ValueError(f"answer returned {found!r:.20} from {len(snippets)} snippets")
        if self.cache is not None:
            self.cache.add_replies(self.chain, {request: found})
        return found

    def of_each(
        self, function: Callable[[JudgedQuery], T], queries: Sequence[JudgedQuery], progress: bool
    ) -> tuple[list[T], dict[str, str]]:
        """Return what a function that asks returns for each question, and why some failed.

        Raises ValueError if all failed. Asynchronous answers run in one loop, in its own thread.
        """

        def attempted(query: JudgedQuery) -> T | Exception:
            try:
                return function(query)
            except NotText:
                raise
            except Exception as error:
                return error

        check_count(self.concurrency, "concurrency")
        with _looping() as self.loop, ThreadPoolExecutor(self.concurrency) as pool:
            futures = [pool.submit(copy_context().run, attempted, query) for query in queries]
            try:
                shown = with_bar(futures, "Answering") if progress else futures
                found = [future.result() for future in shown]
            finally:
                self.stopped.set()  # after an error, what is under way ends with its next call
        pairs = list(zip(queries, found, strict=True))
        errors = {query.query: one for query, one in pairs if isinstance(one, Exception)}
        *_, last = [None, *errors.values()]
        if last is not None:
            if len(errors) == len(queries):
                raise ValueError(f"all {len(queries)} questions failed: {last!r}") from last
            text = "%d of %d questions are left out, because a call failed; the last: %r"
            logger.warning(text, len(errors), len(queries), last)
        failed = {question: repr(error) for question, error in errors.items()}
        return [one for one in found if not isinstance(one, Exception)], failed


@contextmanager
def _looping() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread of its own inside."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="answers", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class NotText(TypeError):
    """A chain returns something else than text, which no other question would mend."""


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def named_chain(chain: str | None, answer: object) -> str:
    """Return what a chain is called; raise for an answer that is no function, or has no name."""
    if not callable(answer):
        raise TypeError(
            f"answer is {answer!r:.60}; give a function from a question and its snippets to a text"
        )
    name = chain or getattr(answer, "name", None) or getattr(answer, "__name__", "<lambda>")
    if not isinstance(name, str) or name == "<lambda>" or not name.isprintable():
        raise ValueError(f"chain is {name!r}; give the chain's name, such as its model and prompt")
    return name
