"""Any function from a query and texts to numbers as the score."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.data.queries import Snippet, as_snippets


@dataclass(frozen=True)
class FunctionScorer:
    """Scores by a function: `function(query, texts)` returns n scores, lower = more relevant.

    `name` identifies the function. `afunction` is its asynchronous twin; without it `ascore` runs
    in a thread. NaN says that a text could not be scored.
    """

    function: Callable[[str, list[str]], ArrayLike]
    name: str
    afunction: Callable[[str, list[str]], Awaitable[ArrayLike]] | None = None

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return the function's score of each snippet, (n,)."""
        snippets = as_snippets(snippets)
        return np.asarray(self.function(query, [s.text for s in snippets]), dtype=np.float64)

    async def ascore(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return what `score` returns, without blocking the event loop."""
        snippets = as_snippets(snippets)
        if self.afunction is None:
            return await asyncio.to_thread(self.score, query, snippets)
        scores = await self.afunction(query, [s.text for s in snippets])
        return np.asarray(scores, dtype=np.float64)
