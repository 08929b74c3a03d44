"""The retriever's own number as the score, its direction stated by the user.

Stores disagree about what their number means: a cosine similarity, a distance, an unbounded BM25.
A threshold on it holds for the retriever that it was calibrated with, and for no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.queries import Snippet, as_snippets


@dataclass(frozen=True)
class RetrievalScorer:
    """Scores by `Snippet.retrieval_score`, negated where higher means more relevant.

    `retriever` names what produced the numbers (store, metric, embedding model). A snippet without
    a retrieval score cannot be scored: NaN.
    """

    retriever: str
    higher_is_better: bool
    goes_by_texts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.higher_is_better, bool):
            raise TypeError(
                f"higher_is_better is {self.higher_is_better!r}; give True for similarities and "
                "False for distances"
            )

    @property
    def name(self) -> str:
        """Retriever and direction."""
        return f"retrieval({self.retriever}, {'higher' if self.higher_is_better else 'lower'})"

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return each retrieval score, (n,), turned so that lower = more relevant."""
        snippets = as_snippets(snippets)
        return self.turn([s.retrieval_score for s in snippets])

    def turn(self, numbers: Sequence[float | None]) -> NDArray[np.float64]:
        """Return the scores (n,) of snippets from their retrieval scores alone."""
        scores = np.array(numbers, dtype=np.float64)  # None becomes NaN
        return -scores if self.higher_is_better else scores
