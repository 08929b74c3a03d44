"""What scorers by an LLM's ratings have in common: score = 1 − rating, of each different text."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.llm.ask import Reply, Unanswered, Usage

Rated = tuple[float, str | None]  # a rating, or NaN and the reason why there is none


@dataclass(frozen=True, eq=False)
class Ratings:
    """The ratings (n,) of a query's snippets, from 0 to 1, and NaN where there is none.

    `reasons` say of each why it has none, and None of the others: "blank", "unanswered", "refused",
    "cut off", "unreadable", "out of range", "not rated", "rated twice", "neither yes nor no", "no
    log-probabilities". `usage` is what the ratings took.
    """

    ratings: NDArray[np.float64]
    reasons: tuple[str | None, ...]
    usage: Usage

    @property
    def scores(self) -> NDArray[np.float64]:
        """1 − rating (n,)."""
        return 1 - self.ratings

    @property
    def unscorable(self) -> Mapping[str, int]:
        """How many snippets have no rating, by reason."""
        return Counter(reason for reason in self.reasons if reason is not None)


class RatingScorer(ABC):
    """A scorer whose score of a snippet is 1 − its rating."""

    @abstractmethod
    def rate(self, query: str, snippets: Sequence[Snippet | str]) -> Ratings:
        """Return the rating of each snippet, with the reasons where there is none."""

    @abstractmethod
    async def arate(self, query: str, snippets: Sequence[Snippet | str]) -> Ratings:
        """Return what `rate` returns, without blocking the event loop."""

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return 1 − rating of each snippet, (n,)."""
        return self.rate(query, snippets).scores

    def score_with_reasons(
        self, query: str, snippets: Sequence[Snippet | str]
    ) -> tuple[NDArray[np.float64], Sequence[str | None]]:
        """Return what `score` returns, and why a snippet has none, as `Ratings.reasons`."""
        ratings = self.rate(query, snippets)
        return ratings.scores, ratings.reasons

    async def ascore(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return what `score` returns, without blocking the event loop."""
        return (await self.arate(query, snippets)).scores


def texts_to_rate(snippets: Iterable[Snippet]) -> list[str]:
    """Return the texts to be rated: each once, and no blank one."""
    return list(dict.fromkeys(s.text for s in snippets if s.text.strip()))


def ratings_of(
    snippets: Sequence[Snippet],
    rated: Mapping[str, Rated],
    answers: Sequence[Reply | Unanswered],
    on_ratings: Callable[[Ratings], None] | None,
) -> Ratings:
    """Return the ratings of snippets from those of their texts, and tell them to `on_ratings`."""
    each = [rated.get(snippet.text, (math.nan, "blank")) for snippet in snippets]
    ratings = np.array([rating for rating, _ in each], dtype=np.float64)
    told = Ratings(ratings, tuple(reason for _, reason in each), Usage.of(answers))
    if on_ratings is not None:
        on_ratings(told)
    return told
