"""Scores by any function of a query and the texts of its snippets."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from conformal_retrievers.data.queries import Snippet, as_scores, as_snippets
from conformal_retrievers.scoring.scorer import Scores


@dataclass(frozen=True)
class FunctionScorer:
    """Scores by a function: `function(query, texts)` returns n scores, lower = more relevant.

    It returns NaN for a text that it cannot score. `afunction` is its asynchronous twin; without
    it, `ascore` runs in a thread.

    >>> def missing_words(query, texts):
    ...     return [len(set(query.split()) - set(text.split())) for text in texts]
    >>> FunctionScorer(missing_words, "missing words").score("dry bread", ["dry bread", "bread"])
    array([0., 1.])
    """

    function: Callable[[str, list[str]], ArrayLike]
    name: str
    afunction: Callable[[str, list[str]], Awaitable[ArrayLike]] | None = None

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Return the function's score of each snippet, (n,)."""
        scores = self.function(query, [*as_snippets(snippets).texts])
        return as_scores(scores, f"scores of {self.name!r}")

    async def ascore(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Asynchronous twin of `score`."""
        if self.afunction is None:
            return await asyncio.to_thread(self.score, query, snippets)
        scores = await self.afunction(query, [*as_snippets(snippets).texts])
        return as_scores(scores, f"scores of {self.name!r}")
