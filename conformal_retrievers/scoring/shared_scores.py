"""Scores that are computed once, although a filter and what is in front of it need them.

A model may be a part of both their scores. It is asked once for the snippets of a query: what it
returned stands beside their other columns, in `Retrieved.known`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.data.snippets import Retrieved, as_snippets

Scores = NDArray[np.float64]  # (n,)


@contextmanager
def shared(snippets: Iterable[Snippet | str]) -> Iterator[Retrieved]:
    """Yield the snippets of a query, which each scorer scores once in this block."""
    given = copy(as_snippets(snippets))
    given.known = {}
    try:
        yield given
    finally:
        given.known = None


@asynccontextmanager
async def ashared(snippets: Iterable[Snippet | str]) -> AsyncIterator[Retrieved]:
    """Yield what `shared` yields; at the end, stop what is awaited still, as if another failed."""
    with shared(snippets) as given:
        known: Any = given.known
        try:
            yield given
        finally:
            await stop([scores for (awaited, *_), scores in known.items() if awaited])


def shared_in(judged: Iterable[JudgedQuery]) -> list[JudgedQuery]:
    """Return queries, the snippets of which each scorer scores once."""
    queries = [copy(query) for query in judged]
    for query in queries:
        if query.retrieved.known is None:
            made = vars(query)["_shared"] = query.retrieved
            made.known = {}
    return queries


async def at_once(*calls: Awaitable[Any]) -> tuple[Any, ...]:
    """Return what the calls return, awaited at once; if one fails, the others are stopped."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return tuple(await asyncio.gather(*tasks))
    finally:
        await stop(tasks)


async def stop(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel tasks that have not ended, and wait until all have."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def scored_once(
    scorer: object, query: str, snippets: Sequence[Snippet], score: Callable[[], Scores]
) -> Scores:
    """Return scores by a scorer's name, or other key: of `shared` snippets, those that are known.

    >>> calls = []
    >>> with shared(["a"]) as snippets:
    ...     for _ in range(2):
    ...         scores = scored_once("s", "q", snippets, lambda: calls.append(1) or np.ones(1))
    >>> scores, calls
    (array([1.]), [1])
    """
    known = getattr(snippets, "known", None)
    if known is None:
        return score()
    key = (False, scorer, query)
    if key not in known:
        known[key] = score()
    return np.array(known[key], dtype=np.float64)


async def ascored_once(
    name: str, query: str, snippets: Sequence[Snippet], score: Callable[[], Awaitable[Scores]]
) -> Scores:
    """Return what `scored_once` returns; scores that another task awaits are awaited with it."""
    known = getattr(snippets, "known", None)
    if known is None:
        return await score()
    key = (True, name, query)
    if key not in known:
        known[key] = asyncio.ensure_future(score())
    scores: asyncio.Future[Scores] = known[key]
    await asyncio.wait([scores])  # a task that is cancelled must not cancel what others await
    return np.array(scores.result(), dtype=np.float64)
