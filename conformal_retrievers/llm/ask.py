"""Asking an LLM many requests at once, with a bound and a cache."""

import asyncio
import contextvars
import json
import logging
import os
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from conformal_retrievers.data.checks import check_count, check_type
from conformal_retrievers.extras import with_bar
from conformal_retrievers.llm.cache import Cache, lock_of_process
from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.reply import Reply, Unanswered, Usage, failure_of, verdict_of
from conformal_retrievers.llm.wire import NO_ACCESS, NO_MODEL, marks_of, outcome_of
from conformal_retrievers.llm.wording import say

logger = logging.getLogger("conformal_retrievers")

ENOUGH = 8  # first answers of a call without a model: the others are not asked for

T = TypeVar("T")
Item = TypeVar("Item")
AsyncComplete = Callable[[Request], Awaitable[Reply]]


@dataclass(frozen=True)
class LLM:
    """A model as a function from a request to a reply, with a name that identifies it.

    Any server, framework or test can stand behind it. An exception of `complete` leaves its request
    unanswered. Without `acomplete`, `complete` runs in a thread. The name states everything that
    changes what the model answers: scores of another model, even of a fallback, are other scores.

    >>> LLM(lambda request: Reply("4"), name="always four").complete(Request("Add.", "2 + 2")).text
    '4'
    """

    complete: Callable[[Request], Reply]
    name: str
    acomplete: AsyncComplete | None = None


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
    before: Callable[[int, int], None] | None = None,
    give_up: bool = False,
) -> list[Reply | Unanswered]:
    """Return the reply to each request (n,) in order, or its `Unanswered` if no reply came.

    `is_answer` says whether a reply to the request at a place can be read: only such replies enter
    the cache and are taken from it. They are stored as they come, so that an interrupted run
    continues where it stopped. All calls with this model and this `concurrency` share the bound,
    from all threads; with `acomplete`, from one event loop. `before` is called with the number of
    requests, and of those that the cache does not answer, and may raise before any is sent.

    The last exception is raised if every request that the cache does not answer fails by the status
    401 (a wrong key), 403 or 404 (an unknown model), or without a connection. If the first 8 fail
    by 401 or 404, no further one is sent. With `give_up`, neither is one, and an exception raised,
    if the first 8 find no connection, or get no reply that can be read and the cache has none; if 8
    in a row find no connection later, those that are left are `Unanswered`. Failed requests are
    logged once, as an error if all fail.
    """
    return _Run(llm, requests, is_answer, concurrency, cache, give_up).in_threads(progress, before)


async def aask(
    llm: LLM,
    requests: Sequence[Request],
    *,
    is_answer: Callable[[int, Reply], bool] = is_whole,
    concurrency: int = 8,
    cache: Cache | None = None,
) -> list[Reply | Unanswered]:
    """As `ask`, without blocking the event loop.

    If it is cancelled, it cancels the requests under way and waits until they have ended. Requests
    of a model without `acomplete` end in their threads and count towards the bound until then.
    """
    run = _Run(llm, requests, is_answer, concurrency, cache)
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
    give_up: bool = False
    stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        check_llm(self.llm)
        check_type(Cache | None, "Cache(path), or None", cache=self.cache)
        self.concurrency = check_count(self.concurrency, "concurrency")
        self.answers: list[Any] = [None] * len(self.requests)
        self.missing = list(range(len(self.requests)))  # what the cache does not answer
        self.in_vain: list[bool] = []  # whether each answer so far says that all are
        self.in_a_row = 0  # how many at last found no connection

    def in_threads(
        self, progress: bool = False, before: Callable[[int, int], None] | None = None
    ) -> list[Reply | Unanswered]:
        slots = _slots(threading.Semaphore, None, self.llm, self.concurrency)

        def answer(i: int) -> None:
            result: object
            try:
                with slots:
                    if self.stopped.is_set():
                        return
                    result = self.llm.complete(self.requests[i])
            except Exception as error:
                result = error
            self.take(i, result)
            self.store(i)

        self.read_cache()
        if before is not None:
            before(len(self.requests), len(self.missing))
        title = "Asking" if progress else None
        each_in_threads(answer, self.missing, self.concurrency, self.stopped, title)
        return self.finished()

    async def in_tasks(self, acomplete: AsyncComplete) -> list[Reply | Unanswered]:
        loop = weakref.ref(asyncio.get_running_loop())
        slots = _slots(asyncio.Semaphore, loop, self.llm, self.concurrency)
        await asyncio.to_thread(self.read_cache)
        todo = iter(self.missing)

        async def work() -> None:
            result: object
            for i in todo:
                try:
                    async with slots:
                        result = await acomplete(self.requests[i])
                except Exception as error:
                    result = error
                self.take(i, result)
                if self.cache is not None:
                    await asyncio.to_thread(self.store, i)

        workers = min(self.concurrency, len(self.requests))
        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self.finished()

    def read_cache(self) -> None:
        """Take the answers from the cache."""
        if self.cache is not None:
            stored = self.cache.replies(self.llm.name, (r.as_json() for r in self.requests))
            for i, text in enumerate(stored):
                # There is no entry, or a damaged one.
                with suppress(TypeError, ValueError, RecursionError):
                    reply = Reply(**json.loads(text or ""), cached=True)
                    self.answers[i] = reply if self.is_answer(i, reply) else None
            self.missing = [i for i, answer in enumerate(self.answers) if answer is None]

    def take(self, i: int, result: object) -> None:
        """Take the answer to a request from what `complete` returned or raised."""
        answer = self.answers[i] = outcome_of(result)
        marks = marks_of(answer) if isinstance(answer, Unanswered) else set()
        in_vain = bool(marks & (NO_ACCESS - {403} if self.give_up else NO_MODEL))
        self.in_a_row = self.in_a_row + 1 if in_vain else 0
        if self.give_up and len(self.missing) == len(self.answers):
            in_vain = isinstance(answer, Unanswered) or not self.is_answer(i, answer)
        self.in_vain.append(in_vain)
        hopeless = len(self.in_vain) >= ENOUGH and all(self.in_vain)
        if hopeless or (self.give_up and self.in_a_row >= ENOUGH):
            self.stopped.set()
        if hopeless and isinstance(answer, Unanswered):
            raise answer.__cause__ or answer
        if hopeless:
            raise ValueError(say("unread", llm=self.llm.name, n=ENOUGH, last=failure_of(answer)))

    def store(self, i: int) -> None:
        answer = self.answers[i]
        if self.cache is not None and isinstance(answer, Reply) and self.is_answer(i, answer):
            fields = {k: value for k, value in vars(answer).items() if k != "cached"}
            self.cache.add_replies(self.llm.name, {self.requests[i].as_json(): json.dumps(fields)})

    def finished(self) -> list[Reply | Unanswered]:
        """Return the answers; log the failed ones, which a filter only sees as unscorable."""
        if None in self.answers and not self.give_up:
            return self.answers  # it was cancelled, and nobody reads them
        left = Unanswered(f"not asked: {ENOUGH} requests in a row found no connection")
        self.answers = [left if answer is None else answer for answer in self.answers]
        asked = [(i, self.answers[i]) for i in self.missing]
        failed = [a for i, a in asked if isinstance(a, Unanswered) or not self.is_answer(i, a)]
        n = len(asked)
        if failed:
            # A firewall may refuse the text of the only request that is not cached.
            lost = NO_ACCESS if n == len(self.answers) else NO_ACCESS - {403}
            if all(isinstance(a, Unanswered) and marks_of(a) & lost for _, a in asked):
                raise failed[-1].__cause__ or failed[-1]
            level = logging.ERROR if len(failed) == n else logging.WARNING
            message = "%s gave no usable answer to %d of %d requests; the last: %s"
            logger.log(level, message, self.llm.name, len(failed), n, failure_of(failed[-1]))
        return self.answers


def ask_and_read(
    llm: LLM,
    requests: Sequence[Request],
    read: Callable[[int, Reply | Unanswered], T | str],
    **options: Any,
) -> tuple[list[T | str], Usage]:
    """Return what `read` finds in the answer to each request, or why nothing, and the usage.

    `read` takes the place of a request and its answer. Equal requests are asked once. The options
    are those of `ask`. The cache stores only replies in which something is found.
    """
    keys = [request.as_json() for request in requests]
    places = [*{key: i for i, key in enumerate(keys)}.values()]  # of different requests
    options["is_answer"] = lambda j, reply: not isinstance(read(places[j], reply), str)
    answers = ask(llm, [requests[i] for i in places], **options)
    results = {keys[i]: read(i, answer) for i, answer in zip(places, answers, strict=True)}
    return [results[key] for key in keys], Usage.of(answers)


def ask_verdicts(
    llm: LLM, requests: Sequence[Request], **options: Any
) -> tuple[list[bool | str], Usage]:
    """Return the verdict on each request of the schema `VERDICT`, as `ask_and_read`."""
    return ask_and_read(llm, requests, lambda _, answer: verdict_of(answer), **options)


# --- the bound, the bar and the checks ------------------------------------------------------------

# A semaphore for each model and bound in this process, and with `acomplete` for each event loop.
# Only runs hold one, and a run holds its model: while an entry is there, no other has the same id.
_SLOTS: weakref.WeakValueDictionary[tuple[object, ...], Any] = weakref.WeakValueDictionary()
_LOCK = lock_of_process()


def _slots(kind: Any, loop: weakref.ref[Any] | None, llm: LLM, concurrency: int) -> Any:
    with _LOCK:
        return _SLOTS.setdefault((os.getpid(), loop, id(llm), concurrency), kind(concurrency))


def each_in_threads(
    function: Callable[[Item], T],
    items: Sequence[Item],
    concurrency: int,
    stopped: threading.Event,
    title: str | None = None,
) -> list[T]:
    """Return what a function returns for each item, so many at a time, with a bar that has a title.

    If one raises, or the caller is interrupted, `stopped` is set, by which the others are to end.
    """
    shown = items if title is None else with_bar(items, title)
    with ThreadPoolExecutor(min(concurrency, max(1, len(items)))) as pool:
        # Each in a copy of the context, where frameworks keep the run that calls belong to.
        futures = [pool.submit(contextvars.copy_context().run, function, item) for item in items]
        try:
            return [future.result() for _, future in zip(shown, futures, strict=True)]
        finally:
            stopped.set()  # what has not started returns at once


def announce(text: str, progress: bool) -> None:
    """Say what will be asked, before the first call: in the log, or on stderr above a bar."""
    if progress:
        print(text, file=sys.stderr)
    else:
        logger.info(text)


def check_llm(llm: object, name: str = "llm") -> None:
    """Raise TypeError, naming the argument, if it is not an LLM."""
    if not isinstance(llm, LLM):
        raise TypeError(say("no LLM", name=name, kind=type(llm).__name__))
