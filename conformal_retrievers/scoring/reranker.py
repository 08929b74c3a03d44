"""A framework's reranker as a scorer."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from conformal_retrievers.data.queries import Snippet, as_scores
from conformal_retrievers.scoring.scorer import Scores

Placed = Sequence[tuple[int, Snippet]]  # snippets that are not blank, with their places


class Reranking(ABC):
    """Scores by minus the relevance that a reranker gives a snippet, NaN for None.

    A snippet that the reranker does not return scores +inf, which no threshold keeps: set its top_n
    to at least the retriever's depth.
    """

    name: str
    relative_to_query: ClassVar[bool] = True  # a reranker may compare the snippets of a query

    @abstractmethod
    def _rerank(self, query: str, snippets: Placed) -> Mapping[int, Any]:
        """Return the relevance of those snippets that are returned, by their places."""

    @abstractmethod
    async def _arerank(self, query: str, snippets: Placed) -> Mapping[int, Any]: ...

    def score(self, query: str, snippets: Sequence[Snippet]) -> Scores:
        """Return minus the relevance of each snippet, (n,)."""
        placed = _placed(snippets)
        return self._scores(snippets, self._rerank(query, placed) if placed else {})

    async def ascore(self, query: str, snippets: Sequence[Snippet]) -> Scores:
        """Return what `score` returns, without blocking the event loop."""
        placed = _placed(snippets)
        return self._scores(snippets, await self._arerank(query, placed) if placed else {})

    def _scores(self, snippets: Sequence[Snippet], relevance: Mapping[int, Any]) -> Scores:
        others = [-math.inf if snippet.text.strip() else None for snippet in snippets]
        known = [relevance.get(i, without) for i, without in enumerate(others)]
        return -as_scores(known, f"scores of {self.name!r}")


def _placed(snippets: Sequence[Snippet]) -> Placed:
    return [(i, snippet) for i, snippet in enumerate(snippets) if snippet.text.strip()]
