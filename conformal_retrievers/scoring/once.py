"""Scores that are computed once, although a filter and the gate in front of it need them.

A model may be a part of both their scores. It is asked once for the snippets of a query.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]  # (n,)
Key = tuple[bool, str, str, int]  # whether it is awaited, the scorer, the query, and the snippets
# What is known, or awaited, with the snippets, whose id is no other's as long as they are kept.
_known: ContextVar[dict[Key, tuple[Any, Any]] | None] = ContextVar("known scores", default=None)


@contextmanager
def scored_once() -> Iterator[None]:
    """Let each scorer score the same snippets of a query once, in this block and its tasks."""
    token = _known.set({})
    try:
        yield
    finally:
        _known.reset(token)


def once(scorer: Any, query: str, snippets: Sequence[Any], score: Callable[[], Scores]) -> Scores:
    """Return scores (n,), those that are known if the block is `scored_once`.

    >>> from types import SimpleNamespace
    >>> scorer, snippets, calls = SimpleNamespace(name="s"), ["a"], []
    >>> with scored_once():
    ...     for _ in range(2):
    ...         scores = once(scorer, "q", snippets, lambda: calls.append(1) or np.ones(1))
    >>> scores, calls
    (array([1.]), [1])
    """
    known = _known.get()
    if known is None:
        return score()
    key = (False, scorer.name, query, id(snippets))
    if key not in known:
        known[key] = (score(), snippets)
    return np.array(known[key][0], dtype=np.float64)


async def aonce(
    scorer: Any, query: str, snippets: Sequence[Any], score: Callable[[], Awaitable[Scores]]
) -> Scores:
    """Return what `once` returns; scores that another task awaits are awaited with it."""
    known = _known.get()
    if known is None:
        return await score()
    key = (True, scorer.name, query, id(snippets))
    if key not in known:
        known[key] = (asyncio.ensure_future(score()), snippets)
    return np.array(await known[key][0], dtype=np.float64)
