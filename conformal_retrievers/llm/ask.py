"""Asking an LLM many requests at once, with a bound and a cache."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import operator
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from conformal_retrievers.extras import require
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.reply import Reply, Unanswered

logger = logging.getLogger("conformal_retrievers")

Asked = TypeVar("Asked")  # what `ask` returns, or what `aask` is awaited for


@dataclass(frozen=True)
class LLM:
    """A model as a function from a request to a reply, with a name that identifies it.

    Any server, framework or test can stand behind it. `complete` raises `Unanswered` if no reply
    came, and any other exception if asking again cannot help (a wrong key, an unknown model).
    Without `acomplete`, `complete` runs in a thread. The name states everything that changes what
    the model answers: scores of another model, even of a fallback, are other scores.

    >>> LLM(lambda request: Reply("4"), name="always four").complete(Request("Add.", "2 + 2")).text
    '4'
    """

    complete: Callable[[Request], Reply]
    name: str
    acomplete: Callable[[Request], Awaitable[Reply]] | None = None


def is_whole(place: int, reply: Reply) -> bool:
    """Return whether a reply came to its own end: neither cut off nor refused."""
    return reply.finish == "stop"


def ask(
    llm: LLM,
    requests: Sequence[Request],
    *,
    is_answer: Callable[[int, Reply], bool] = is_whole,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
) -> list[Reply | Unanswered]:
    """Return the reply to each request (n,) in order, or its `Unanswered` if no reply came.

    Parameters
    ----------
    llm, requests
        The model and the requests (n,).
    is_answer
        Whether a reply to the request at this place can be read. Only such replies enter the cache
        and are taken from it, so an unreadable one is asked for again.
    concurrency
        The number of requests under way at a time. All calls with this model and this bound share
        it, from all threads; with `acomplete`, from one event loop.
    cache
        Replies that are known. A reply is stored as it comes, so an interrupted run continues where
        it stopped.
    progress
        Whether to show a progress bar, which needs the extra `cli`.

    Raises
    ------
    Exception
        Any other exception of the model, after which no request is sent.
    """
    return _Run(llm, requests, is_answer, concurrency, cache, progress).in_threads()


async def aask(
    llm: LLM,
    requests: Sequence[Request],
    *,
    is_answer: Callable[[int, Reply], bool] = is_whole,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
) -> list[Reply | Unanswered]:
    """Return what `ask` returns, without blocking the event loop.

    If it is cancelled, it cancels the requests under way and waits until they have ended. Requests
    of a model without `acomplete` end in their threads and count towards the bound until then.
    """
    run = _Run(llm, requests, is_answer, concurrency, cache, progress)
    if llm.acomplete is not None:
        return await run.in_tasks(llm.acomplete)
    pool = ThreadPoolExecutor(1)  # of its own: a closing event loop waits for its default one
    try:
        call = pool.submit(contextvars.copy_context().run, run.in_threads)
        return await asyncio.wrap_future(call)
    finally:
        run.stopped.set()
        pool.shutdown(wait=False)


@dataclass
class _Run:
    """One call of `ask` or `aask`."""

    llm: LLM
    requests: Sequence[Request]
    is_answer: Callable[[int, Reply], bool]
    concurrency: int
    cache: Cache | None
    progress: bool
    stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        check_llm(self.llm)
        check_cache(self.cache)
        self.concurrency = check_count(self.concurrency, "concurrency")
        self.answers: list[Any] = [None] * len(self.requests)

    def in_threads(self) -> list[Reply | Unanswered]:
        slots = _slots(threading.Semaphore, None, self.llm, self.concurrency)
        missing = self.read_cache()

        def answer(i: int) -> None:
            try:
                with slots:
                    if self.stopped.is_set():
                        return
                    reply = self.llm.complete(self.requests[i])
                self.answers[i] = reply
                self.store(i, reply)
            except Unanswered as unanswered:
                self.answers[i] = unanswered
            except BaseException:
                self.stopped.set()
                raise
            advance()

        workers = min(self.concurrency, max(1, len(missing)))
        with ThreadPoolExecutor(workers) as pool, _bar(missing, self.progress) as advance:
            # Each in a copy of the context, where frameworks keep the run that calls belong to.
            futures = [pool.submit(contextvars.copy_context().run, answer, i) for i in missing]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                self.stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
            for future in done:
                future.result()
        return self.finished()

    async def in_tasks(
        self, acomplete: Callable[[Request], Awaitable[Reply]]
    ) -> list[Reply | Unanswered]:
        loop = asyncio.get_running_loop()
        slots = _slots(asyncio.Semaphore, loop, self.llm, self.concurrency)
        missing = await asyncio.to_thread(self.read_cache)
        todo = iter(missing)

        async def work() -> None:
            for i in todo:
                try:
                    async with slots:
                        reply = await acomplete(self.requests[i])
                    self.answers[i] = reply
                    if self.cache is not None:
                        await asyncio.to_thread(self.store, i, reply)
                except Unanswered as unanswered:
                    self.answers[i] = unanswered
                advance()

        with _bar(missing, self.progress) as advance:
            workers = range(min(self.concurrency, len(missing)))
            tasks = [asyncio.create_task(work()) for _ in workers]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return self.finished()

    def read_cache(self) -> list[int]:
        """Take the answers from the cache; return the places of the others."""
        if self.cache is not None:
            stored = self.cache.replies(self.llm.name, (r.as_json() for r in self.requests))
            for i, text in enumerate(stored):
                reply = None if text is None else Reply(**json.loads(text), cached=True)
                if reply is not None and self.is_answer(i, reply):
                    self.answers[i] = reply
        return [i for i, answer in enumerate(self.answers) if answer is None]

    def store(self, i: int, reply: Reply) -> None:
        if self.cache is not None and self.is_answer(i, reply):
            fields = {name: value for name, value in vars(reply).items() if name != "cached"}
            self.cache.add_replies(self.llm.name, {self.requests[i].as_json(): json.dumps(fields)})

    def finished(self) -> list[Reply | Unanswered]:
        """Return the answers; log the unanswered ones, which a filter only sees as unscorable."""
        unanswered = [answer for answer in self.answers if isinstance(answer, Unanswered)]
        if unanswered:
            numbers = len(unanswered), len(self.answers)
            message = "%s did not answer %d of %d requests; the last error: %s"
            logger.warning(message, self.llm.name, *numbers, unanswered[-1])
        return self.answers


# A semaphore for each model and bound, and with `acomplete` for each event loop. It lives as long
# as a call holds it.
_SLOTS: weakref.WeakValueDictionary[tuple[object, ...], Any] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()
_Slots = TypeVar("_Slots", threading.Semaphore, asyncio.Semaphore)


def _slots(kind: type[_Slots], loop: object, llm: LLM, concurrency: int) -> _Slots:
    with _LOCK:
        slots: _Slots = _SLOTS.setdefault((loop, id(llm), concurrency), kind(concurrency))
    return slots


@contextmanager
def _bar(missing: list[int], shown: bool) -> Iterator[Callable[[], None]]:
    if not shown:
        yield lambda: None
        return
    require("cli", "rich")
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("Asking", total=len(missing))
        yield lambda: progress.advance(task)


def check_llm(llm: object, name: str = "llm") -> None:
    """Raise TypeError, naming the argument, if it is not an LLM."""
    if not isinstance(llm, LLM):
        raise TypeError(
            f"{name} is a {type(llm).__name__}; give an LLM, such as openai_llm(model) or "
            "as_llm(model) of langchain_conformal or llama_index.postprocessor.conformal"
        )


def check_count(count: object, name: str) -> int:
    """Return a whole number of at least 1; raise ValueError, naming it, for anything else."""
    try:
        n = 0 if isinstance(count, bool) else operator.index(count)  # type: ignore[arg-type]
    except TypeError:
        n = 0
    if n < 1:
        raise ValueError(f"{name} is {count!r}; give a whole number of at least 1")
    return n


def check_cache(cache: object) -> None:
    """Raise TypeError if `cache` is neither a Cache nor None."""
    if cache is not None and not isinstance(cache, Cache):
        path = str(cache) if isinstance(cache, str | Path) else "cache.db"
        raise TypeError(f"cache is a {type(cache).__name__}; give Cache({path!r})")
