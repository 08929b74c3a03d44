"""Scores without a model of this library: the retriever's own number, or any function.

Stores return similarities or distances, so the user states the direction of the number.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike
from pydantic import JsonValue

from conformal_retrievers.data.hits import HitColumns
from conformal_retrievers.data.queries import Snippet, as_scores, as_snippets
from conformal_retrievers.scoring.hits import turned
from conformal_retrievers.scoring.scorer import Scores


@dataclass(frozen=True)
class RetrievalScorer:
    """Scores by `Snippet.retrieval_score`, negated if higher means more relevant.

    `retriever` names what produced the numbers (store, metric, embedding model). None scores NaN.
    A filtered list of five numbers or more whose order shows the other direction is a ValueError.

    >>> similarity = RetrievalScorer("faiss, cosine", higher_is_better=True)
    >>> similarity.score("q", [Snippet("a", retrieval_score=0.9), Snippet("b")])
    array([-0.9,  nan])
    """

    retriever: str
    higher_is_better: bool
    takes: ClassVar[set[type]] = {float, NoneType}

    @property
    def name(self) -> str:
        """Retriever and direction."""
        return f"retrieval({self.retriever}, {'higher' if self.higher_is_better else 'lower'})"

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What `scorer_of` makes it from."""
        return {
            "kind": "retrieval",
            "retriever": self.retriever,
            "higher_is_better": self.higher_is_better,
        }

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Return the score of each snippet, or of each retrieval score, (n,)."""
        known: Sequence[Any] = snippets
        listed = {*map(type, snippets)} <= self.takes  # as a retriever returned them, best first
        if not listed:
            known = [s.retrieval_score for s in as_snippets(snippets)]
        scores = as_scores(known, f"retrieval scores of {self.retriever!r}")
        if listed:
            columns = HitColumns(np.arange(len(scores), dtype=np.float64), scores)
            return turned(self.retriever, columns, self.higher_is_better, only_compared=False)
        return -scores if self.higher_is_better else scores


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
        scores = self.function(query, [s.text for s in as_snippets(snippets)])
        return as_scores(scores, f"scores of {self.name!r}")

    async def ascore(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Asynchronous twin of `score`."""
        if self.afunction is None:
            return await asyncio.to_thread(self.score, query, snippets)
        scores = await self.afunction(query, [s.text for s in as_snippets(snippets)])
        return as_scores(scores, f"scores of {self.name!r}")
