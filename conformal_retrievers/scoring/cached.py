"""A scorer with a memory: a score that was computed once is read from a cache."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.scoring.scorer import (
    Scorer,
    ascore_snippets,
    check_scorer,
    relative_to_query,
    score_snippets,
    with_parts,
)


@dataclass(frozen=True)
class CachedScorer:
    """Scores as `scorer` does, under its name, but each pair of query and text only once.

    NaN is tried again. Raises TypeError for a scorer whose scores depend on more than the texts of
    query and snippet, such as `QueryZScore` and `RetrievalScorer`.

    >>> from tempfile import TemporaryDirectory
    >>> from conformal_retrievers.scoring import FunctionScorer
    >>> function = FunctionScorer(lambda query, texts: print(texts) or [1.0] * len(texts), "one")
    >>> with TemporaryDirectory() as folder:
    ...     scorer = CachedScorer(function, Cache(f"{folder}/cache.db"))
    ...     ones = scorer.score("q", ["a", "b"]), scorer.score("q", ["b", "c"])
    ['a', 'b']
    ['c']
    """

    scorer: Scorer
    cache: Cache

    def __post_init__(self) -> None:
        check_scorer(self.scorer)
        only_texts = all(getattr(part, "text_only", True) for part in with_parts(self.scorer))
        if relative_to_query(self.scorer) or not only_texts:
            raise TypeError(
                f"{self.scorer.name!r} reads more than the query and the snippet's text, so its "
                "scores cannot be cached; cache its parts, or an LLM's replies with "
                "LLMScorer(..., cache=)"
            )

    @property
    def name(self) -> str:
        """The name of the scorer inside."""
        return self.scorer.name

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return the scores (n,), from the cache if it has them."""
        snippets = as_snippets(snippets)
        scores, unknown = self._known(query, snippets)
        if unknown:
            self._learn(query, unknown, score_snippets(self.scorer, query, unknown), scores)
        return scores

    async def ascore(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Asynchronous twin of `score`."""
        snippets = as_snippets(snippets)
        scores, unknown = await asyncio.to_thread(self._known, query, snippets)
        if unknown:
            new = await ascore_snippets(self.scorer, query, unknown)
            await asyncio.to_thread(self._learn, query, unknown, new, scores)
        return scores

    def _known(
        self, query: str, snippets: Sequence[Snippet]
    ) -> tuple[NDArray[np.float64], list[Snippet]]:
        """Return the cached scores, NaN for the others, and the snippets without one."""
        scores = self.cache.scores(self.name, query, [s.text for s in snippets])
        return scores, [snippets[i] for i in np.flatnonzero(np.isnan(scores)).tolist()]

    def _learn(
        self, query: str, unknown: list[Snippet], new: ArrayLike, scores: NDArray[np.float64]
    ) -> None:
        """Cache the new scores, and write them into `scores` in place of NaN."""
        self.cache.add_scores(self.name, query, [s.text for s in unknown], new)
        scores[np.isnan(scores)] = new
