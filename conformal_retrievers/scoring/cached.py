"""A scorer with a memory: a score that was computed once is read from a cache."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.scoring.scorer import (
    Scorer,
    ascore_snippets,
    check_scorer,
    relative_to_query,
    score_with_reasons,
    text_only,
)


@dataclass(frozen=True)
class CachedScorer:
    """Scores as `scorer` does, under its name, but each pair of query and text only once.

    An unscorable snippet (NaN) is tried again. Raises TypeError for a scorer whose scores are
    relative to the query's other snippets, or depend on more than texts, as `RetrievalScorer`'s do.

    >>> from tempfile import TemporaryDirectory
    >>> from conformal_retrievers.scoring import FunctionScorer
    >>> def length(query, texts):
    ...     print("asked about", texts)
    ...     return [len(text) for text in texts]
    >>> with TemporaryDirectory() as folder:
    ...     scorer = CachedScorer(FunctionScorer(length, "length"), Cache(f"{folder}/cache.db"))
    ...     scorer.score("q", ["a", "bcd"])
    ...     scorer.score("q", ["bcd", "ef"])
    asked about ['a', 'bcd']
    array([1., 3.])
    asked about ['ef']
    array([3., 2.])
    """

    scorer: Scorer
    cache: Cache

    def __post_init__(self) -> None:
        check_scorer(self.scorer)
        if relative_to_query(self.scorer):
            raise TypeError(
                f"{self.scorer.name!r} scores a snippet relative to the query's other snippets, "
                "so its scores cannot be cached; cache the scorers inside it, or an LLM's replies "
                "with LLMScorer(..., cache=)"
            )
        if not text_only(self.scorer):
            raise TypeError(
                f"{self.scorer.name!r} reads more of a snippet than its text (a retrieval score or "
                "an embedding), so its scores cannot be cached; use it without a cache"
            )

    @property
    def parts(self) -> tuple[Scorer, ...]:
        """The scorer inside."""
        return (self.scorer,)

    @property
    def name(self) -> str:
        """The name of the scorer inside."""
        return self.scorer.name

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return the scores (n,), from the cache if it has them."""
        return self.score_with_reasons(query, snippets)[0]

    def score_with_reasons(
        self, query: str, snippets: Sequence[Snippet | str]
    ) -> tuple[NDArray[np.float64], list[str | None]]:
        """Return the scores (n,), and why the scorer inside could not score a snippet."""
        snippets = as_snippets(snippets)
        scores, unknown = self._known(query, snippets)
        reasons: list[str | None] = [None] * len(snippets)
        if unknown:
            new, why = score_with_reasons(self.scorer, query, unknown)
            for i, reason in zip(np.flatnonzero(np.isnan(scores)).tolist(), why, strict=True):
                reasons[i] = reason
            self._learn(query, unknown, new, scores)
        return scores, reasons

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
        self,
        query: str,
        unknown: list[Snippet],
        new: NDArray[np.float64],
        scores: NDArray[np.float64],
    ) -> None:
        """Cache the new scores, and write them into `scores` in place of NaN."""
        self.cache.add_scores(self.name, query, [s.text for s in unknown], new)
        scores[np.isnan(scores)] = new
