"""Asking an LLM: the one seam behind LLM scores, labels, claims and consistency judgements.

A prompt with its fields filled in is a request (`prompt.py`); what came back is a reply
(`reply.py`). A model is a plain function from requests to replies, with a name, so that any server,
framework or test can stand behind it. `ask` and `aask` put many requests to a model at once.
"""

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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from conformal_retrievers.extras import require
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt, Request
from conformal_retrievers.llm.reply import Reply, Unanswered, Usage

__all__ = [
    "LLM",
    "Asked",
    "Prompt",
    "Reply",
    "Request",
    "Unanswered",
    "Usage",
    "aask",
    "ask",
    "check_cache",
    "check_count",
    "check_llm",
    "is_whole",
]

logger = logging.getLogger("conformal_retrievers")

Asked = TypeVar("Asked")  # what `ask` returns, or `aask` is awaited for, where either is called


@dataclass(frozen=True)
class LLM:
    """A model as a function from a request to a reply, and the name that identifies it.

    `complete` raises `Unanswered` where no reply came, and anything else where asking again could
    not help (a wrong key, an unknown model). `acomplete` is its asynchronous twin; without it,
    `complete` runs in a thread. The name tells all that changes what the model answers: a score
    with another model, even as a fallback, is another score.
    """

    complete: Callable[[Request], Reply]
    name: str
    acomplete: Callable[[Request], Awaitable[Reply]] | None = None


def is_whole(place: int, reply: Reply) -> bool:
    """Return whether a reply has come to its own end: neither cut off nor refused."""
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
    """Return the answer to each request, in their order, at most `concurrency` asked at a time.

    That bounds all calls with this model and bound together, from whatever threads; `aask` has a
    bound of its own in each event loop. A request that nobody answered gives its `Unanswered`; any
    other exception stops the rest and is raised. The cache answers what it knows, and learns each
    reply as it comes, so that what was interrupted goes on where it stopped.

    `is_answer` tells of a request's place and a reply to it whether that can be read; it is told by
    who asks, since only they know what they asked for. Only such replies enter the cache and are
    taken from it, so that what could not be read is asked again.
    """
    check_llm(llm)
    concurrency = check_count(concurrency, "concurrency")
    check_cache(cache)
    answers = _cached(cache, llm, requests, is_answer)
    missing = [i for i, answer in enumerate(answers) if answer is None]

    if not missing:
        return [a for a in answers if a is not None]

    slots = _slots(llm, concurrency)
    stopped = threading.Event()

    with (
        ThreadPoolExecutor(min(concurrency, len(missing))) as pool,
        _bar(missing, progress) as step,
    ):

        def answer(i: int) -> None:
            try:
                with slots:
                    if stopped.is_set():
                        return
                    answers[i] = reply = llm.complete(requests[i])
                if cache is not None and is_answer(i, reply):
                    _remember(cache, llm, requests[i], reply)
            except Unanswered as unanswered:
                answers[i] = unanswered
            except BaseException:
                stopped.set()
                raise
            step()

        # Each in a copy of this context, where frameworks keep the run that calls belong to.
        futures = [pool.submit(contextvars.copy_context().run, answer, i) for i in missing]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
        for future in done:
            future.result()
    return _told([a for a in answers if a is not None], llm)


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

    Cancelling it, or an exception, cancels what it has asked and waits until that has ended: no
    task is left behind. A model without `acomplete` is not waited for: its calls under way end in
    their threads, and keep their places in the bound until then.
    """
    check_llm(llm)
    concurrency = check_count(concurrency, "concurrency")
    check_cache(cache)
    answers: list[Reply | Unanswered | None] = [None] * len(requests)
    if cache is not None:
        answers = await asyncio.to_thread(_cached, cache, llm, requests, is_answer)
    missing = [i for i, answer in enumerate(answers) if answer is None]
    if not missing:
        return [a for a in answers if a is not None]
    slots = _slots_of_this_loop(llm, concurrency)
    workers = min(concurrency, len(missing))
    todo = iter(missing)

    with _bounded(llm, slots, workers) as complete, _bar(missing, progress) as step:

        async def work() -> None:
            for i in todo:
                try:
                    reply = await complete(requests[i])
                except Unanswered as unanswered:
                    answers[i] = unanswered
                else:
                    answers[i] = reply
                    if cache is not None and is_answer(i, reply):
                        await asyncio.to_thread(_remember, cache, llm, requests[i], reply)
                step()

        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return _told([a for a in answers if a is not None], llm)


# One for each model, bound and event loop, as long as a call holds it, or a thread that outlives
# its call: that is all who could meet.
_SLOTS: weakref.WeakValueDictionary[tuple[int, int], threading.Semaphore] = (
    weakref.WeakValueDictionary()
)
_SLOTS_OF_LOOPS: weakref.WeakValueDictionary[
    tuple[asyncio.AbstractEventLoop, int, int], asyncio.Semaphore
] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


def _slots(llm: LLM, concurrency: int) -> threading.Semaphore:
    with _LOCK:
        return _SLOTS.setdefault((id(llm), concurrency), threading.Semaphore(concurrency))


def _slots_of_this_loop(llm: LLM, concurrency: int) -> asyncio.Semaphore:
    key = asyncio.get_running_loop(), id(llm), concurrency
    with _LOCK:
        return _SLOTS_OF_LOOPS.setdefault(key, asyncio.Semaphore(concurrency))


def _told(answers: list[Reply | Unanswered], llm: LLM) -> list[Reply | Unanswered]:
    """Say to `logging` what nobody answered, and why: to the filter it is a snippet like others."""
    unanswered = [answer for answer in answers if isinstance(answer, Unanswered)]
    if unanswered:
        logger.warning(
            "%s did not answer %d of %d requests, the last because: %s",
            llm.name,
            len(unanswered),
            len(answers),
            unanswered[-1],
        )
    return answers


@contextmanager
def _bounded(
    llm: LLM, slots: asyncio.Semaphore, workers: int
) -> Iterator[Callable[[Request], Awaitable[Reply]]]:
    """Yield what asks the model when there is a place, by `acomplete` or by `complete` in a thread.

    A thread cannot be stopped: the server is at work for it, so it keeps its place to the end,
    whether or not who asked still waits.
    """
    if (acomplete := llm.acomplete) is not None:

        async def natively(request: Request) -> Reply:
            async with slots:
                return await acomplete(request)

        yield natively
        return
    pool = ThreadPoolExecutor(workers)  # the event loop's own may have fewer threads
    loop = asyncio.get_running_loop()

    async def in_a_thread(request: Request) -> Reply:
        def leave(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits for a place
                loop.call_soon_threadsafe(slots.release)

        context = contextvars.copy_context()
        await slots.acquire()
        call = pool.submit(context.run, lambda: llm.complete(request))  # llm lives as long as that
        call.add_done_callback(leave)
        return await asyncio.wrap_future(call)

    try:
        yield in_a_thread
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def check_llm(llm: object, name: str = "llm") -> None:
    """Raise TypeError, naming it and saying what an LLM is here, for anything that is none."""
    if not isinstance(llm, LLM):
        raise TypeError(
            f"{name} is a {type(llm).__name__}; give an LLM: openai_llm(model, base_url=…), or "
            "as_llm(model) of langchain_conformal or llama_index.postprocessor.conformal"
        )


def check_count(count: object, name: str) -> int:
    """Return a whole number that is at least 1; raise ValueError, naming it, for anything else."""
    try:
        n = 0 if isinstance(count, bool) else operator.index(count)  # type: ignore[arg-type]
    except TypeError:
        n = 0
    if n < 1:
        raise ValueError(f"{name} is {count!r}; give a whole number, at least 1")
    return n


def check_cache(cache: object) -> None:
    """Raise TypeError, saying what to give, for what is neither a Cache nor None."""
    if cache is not None and not isinstance(cache, Cache):
        path = str(cache) if isinstance(cache, str | Path) else "c.db"
        raise TypeError(f"cache is a {type(cache).__name__}; give Cache({path!r})")


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


def _cached(
    cache: Cache | None,
    llm: LLM,
    requests: Sequence[Request],
    is_answer: Callable[[int, Reply], bool],
) -> list[Reply | Unanswered | None]:
    if cache is None or not requests:
        return [None] * len(requests)
    known = cache.replies(llm.name, [request.as_json() for request in requests])
    replies = [None if text is None else Reply(**json.loads(text), cached=True) for text in known]
    return [r if r is not None and is_answer(i, r) else None for i, r in enumerate(replies)]


def _remember(cache: Cache, llm: LLM, request: Request, reply: Reply) -> None:
    fields = {name: value for name, value in vars(reply).items() if name != "cached"}
    cache.add_replies(llm.name, {request.as_json(): json.dumps(fields)})
