"""A scorer that looks scores up, and a query scorer that calls a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformal_retrievers import Snippet


@dataclass(frozen=True)
class LookupScorer:
    """Scores a snippet by its text, from a dict; a text that is not in it is a KeyError."""

    scores: Mapping[str, float]
    name: str = "lookup"

    def score(self, query: str, snippets: Sequence[Snippet]) -> list[float]:
        return [self.scores[snippet.text] for snippet in snippets]


@dataclass(frozen=True)
class QueryFunction:
    """Scores a query by a function of it and of its snippets' texts."""

    function: Callable[[str, list[str]], Any]
    name: str

    def score_query(self, query: str, snippets: Sequence[Snippet]) -> Any:
        return self.function(query, [snippet.text for snippet in snippets])
