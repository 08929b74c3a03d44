"""Scorers that look scores up, add them or count letters, and query scorers of functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformal_retrievers import FunctionScorer, Snippet
from conformal_retrievers.scoring.combine import CombinedScorer


@dataclass(frozen=True)
class LookupScorer:
    """Scores a snippet or claim by its text, from a dict; another text is a KeyError."""

    scores: Mapping[str, float]
    name: str = "lookup"

    def score(self, query: str, snippets: Sequence[Snippet]) -> list[float]:
        return [self.scores[snippet.text] for snippet in snippets]

    def relevance(self, query: str, claims: Sequence[str], documents: Any) -> list[float]:
        return [self.scores[claim] for claim in claims]


@dataclass(frozen=True)
class Sum(CombinedScorer):
    """Scores by the sum of two scores."""

    one: Any
    other: Any

    @property
    def parts(self) -> tuple[Any, ...]:
        return (self.one, self.other)

    @property
    def name(self) -> str:
        return f"{self.one.name} + {self.other.name}"

    def combine(self, query: str, columns: Sequence[Any], snippets: Sequence[Snippet]) -> Any:
        return np.sum(columns, axis=0)


@dataclass(frozen=True)
class QueryFunction:
    """Scores a query by a function of it and of its snippets' texts."""

    function: Callable[[str, list[str]], Any]
    name: str

    def score_query(self, query: str, snippets: Sequence[Snippet]) -> Any:
        return self.function(query, [snippet.text for snippet in snippets])


LENGTH = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")
LONGEST = QueryFunction(lambda query, texts: -max(map(len, texts)), "longest")
