"""Scores that are computed once, although a filter and what is in front of it need them.

A model may be a part of both their scores. It is asked once for the snippets of a query.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]  # (n,)
# Whether it is awaited, the scorer, the query, and the snippets.
Key = tuple[bool, Hashable, str, int]
# What is known, or awaited, with the snippets, whose id is no other's as long as they are kept.
_known: ContextVar[dict[Key, tuple[Any, Any]] | None] = ContextVar("known scores", default=None)


@contextmanager
def scored_once() -> Iterator[dict[Key, tuple[Any, Any]]]:
    """Let each scorer score the same snippets of a query once, in this block and its tasks."""
    known: dict[Key, tuple[Any, Any]] = {}
    token = _known.set(known)
    try:
        yield known
    finally:
        _known.reset(token)


@asynccontextmanager
async def ascored_once() -> AsyncIterator[None]:
    """Be `scored_once`, and stop at the end what is still awaited, as it is if another failed."""
    with scored_once() as known:
        try:
            yield
        finally:
            await stop([scores for (awaited, *_), (scores, _) in known.items() if awaited])


async def at_once(*calls: Awaitable[Any]) -> list[Any]:
    """Return what the calls return, awaited at once; if one fails, the others are stopped."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await stop(tasks)


async def stop(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel tasks that have not ended, and wait until all have."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def once(
    scorer: Hashable, query: str, snippets: Sequence[Any], score: Callable[[], Scores]
) -> Scores:
    """Return scores by a scorer's name, or other key, those that are known in `scored_once`.

    >>> snippets, calls = ["a"], []
    >>> with scored_once():
    ...     for _ in range(2):
    ...         scores = once("s", "q", snippets, lambda: calls.append(1) or np.ones(1))
    >>> scores, calls
    (array([1.]), [1])
    """
    known = _known.get()
    if known is None:
        return score()
    key = (False, scorer, query, id(snippets))
    if key not in known:
        known[key] = (score(), snippets)
    return np.array(known[key][0], dtype=np.float64)


async def aonce(
    name: str, query: str, snippets: Sequence[Any], score: Callable[[], Awaitable[Scores]]
) -> Scores:
    """Return what `once` returns; scores that another task awaits are awaited with it."""
    known = _known.get()
    if known is None:
        return await score()
    key = (True, name, query, id(snippets))
    if key not in known:
        known[key] = (asyncio.ensure_future(score()), snippets)
    scores: asyncio.Future[Scores] = known[key][0]
    await asyncio.wait([scores])  # a task that is cancelled must not cancel what others await
    return np.array(scores.result(), dtype=np.float64)
