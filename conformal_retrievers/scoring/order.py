"""The order of a query's sentences: by the score of their document, then by their position in it.

score = number of the query's snippets that come before
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.scoring.combine import CombinedScorer
from conformal_retrievers.scoring.scorer import Scorer, Scores, reference


@dataclass(frozen=True)
class OrderScorer(CombinedScorer):
    """Scores by place: `scorer` orders the snippets, and equal scores go by `Snippet.position`.

    Snippets of equal score and position share a place. NaN stays NaN.

    >>> from conformal_retrievers.data.hits import Hit
    >>> from conformal_retrievers.scoring.hits import RankScorer
    >>> places = [(1, 0), (0, 30), (0, 9)]
    >>> snippets = [Snippet("a", position=p, hits=(Hit("dense", rank),)) for rank, p in places]
    >>> OrderScorer(RankScorer("dense")).score("q", snippets)
    array([2., 1., 0.])
    """

    scorer: Scorer
    relative_to_query: ClassVar[bool] = True

    @property
    def parts(self) -> tuple[Scorer, ...]:
        """The scorer inside."""
        return (self.scorer,)

    @property
    def name(self) -> str:
        """The name of the scorer inside, marked as an order."""
        return f"order({self.scorer.name})"

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What `scorer_of` makes it from."""
        return {"kind": "order", "scorer": reference(self.scorer)}

    def combine(self, columns: Sequence[Scores], snippets: Sequence[Snippet]) -> Scores:
        """Return the place (n,) of each snippet, from 0."""
        scores, positions = columns[0], np.array([s.position or 0 for s in snippets])
        keys = [*zip(scores.tolist(), positions.tolist(), strict=True)]
        known = sorted(key for key in keys if key[0] == key[0])
        places = {key: place for place, key in reversed([*enumerate(known)])}
        return np.array([places.get(key, np.nan) for key in keys], dtype=np.float64)
