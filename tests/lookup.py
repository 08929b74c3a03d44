"""A scorer that looks scores up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from conformal_retrievers import Snippet


@dataclass(frozen=True)
class LookupScorer:
    """Scores a snippet by its text, from a dict; a text that is not in it is a KeyError."""

    scores: Mapping[str, float]
    name: str = "lookup"

    def score(self, query: str, snippets: Sequence[Snippet]) -> list[float]:
        return [self.scores[snippet.text] for snippet in snippets]
