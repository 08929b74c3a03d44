"""A scorer that remembers: what was scored once is read from a cache."""

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
    goes_by_texts,
    relative_to_query,
    score_snippets,
    score_with_reasons,
)


@dataclass(frozen=True)
class CachedScorer:
    """Scores as the scorer does, under its name, but each pair of query and text only once.

    What could not be scored (NaN) is tried again. Raises TypeError for a scorer that is relative to
    the query's other snippets, or goes by more than texts, as `RetrievalScorer` does.
    """

    scorer: Scorer
    cache: Cache

    def __post_init__(self) -> None:
        check_scorer(self.scorer)
        if relative_to_query(self.scorer):
            raise TypeError(
                f"{self.scorer.name!r} scores a snippet relative to the others of its query, so no "
                "score of one snippet can be kept; cache the scorers inside it, or an LLM's "
                "replies with LLMScorer(..., cache=)"
            )
        if not goes_by_texts(self.scorer):
            raise TypeError(
                f"{self.scorer.name!r} reads more of a snippet than its text (a retrieval score, "
                "an embedding), so that equal texts may score differently; use it without a cache"
            )

    @property
    def parts(self) -> tuple[Scorer, ...]:
        """The scorer inside."""
        return (self.scorer,)

    @property
    def name(self) -> str:
        """The scorer's own."""
        return self.scorer.name

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return the scores (n,), from the cache where it knows them."""
        snippets = as_snippets(snippets)
        scores, unknown = self._known(query, snippets)
        if unknown:
            self._learn(query, unknown, score_snippets(self.scorer, query, unknown), scores)
        return scores

    def score_with_reasons(
        self, query: str, snippets: Sequence[Snippet | str]
    ) -> tuple[NDArray[np.float64], list[str | None]]:
        """Return what `score` returns, and why the scorer inside could not score a snippet."""
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
        """Return what `score` returns, without blocking the event loop."""
        snippets = as_snippets(snippets)
        scores, unknown = await asyncio.to_thread(self._known, query, snippets)
        if unknown:
            new = await ascore_snippets(self.scorer, query, unknown)
            await asyncio.to_thread(self._learn, query, unknown, new, scores)
        return scores

    def _known(
        self, query: str, snippets: Sequence[Snippet]
    ) -> tuple[NDArray[np.float64], list[Snippet]]:
        scores = self.cache.scores(self.name, query, [s.text for s in snippets])
        return scores, [snippets[i] for i in np.flatnonzero(np.isnan(scores)).tolist()]

    def _learn(
        self,
        query: str,
        unknown: list[Snippet],
        new: NDArray[np.float64],
        scores: NDArray[np.float64],
    ) -> None:
        """Keep the new scores, and fill them in where `scores` has none."""
        self.cache.add_scores(self.name, query, [s.text for s in unknown], new)
        scores[np.isnan(scores)] = new
