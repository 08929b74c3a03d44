"""Fusion of retrievers and scorers by what their scores say, not only their order.

    score = z( mean over them of z(s) ),   z(s) = (s − mean) / sd among the query's snippets

with s lower = more relevant, log(1 + rank) where a retriever's hits have no scores, and its worst s
for a snippet that it did not find. This is CombSUM (Fox & Shaw 1994) on scores of zero mean and
unit variance (Montague & Aslam 2001). In reciprocal rank fusion, the best snippet of each query has
much the same score, whether it stands out or not, so one threshold does not suit all queries.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.data.checks import check_names
from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.scoring.combine import CombinedScorer
from conformal_retrievers.scoring.features import within_query
from conformal_retrievers.scoring.scorer import Scorer, Scores, reference
from conformal_retrievers.scoring.sources import Kind, Sources, numbers_of


@dataclass(frozen=True)
class ZFusionScorer(CombinedScorer):
    """Scores by the mean z-score of retrievers' scores and of scorers, as a z-score.

    Give for each retriever what its scores are: a "similarity", a "distance", or "rank" for one
    without scores. A snippet without any hit, that a retriever found and did not score, or that a
    scorer cannot score, is unscorable: NaN.

    >>> from conformal_retrievers.data.hits import Hit
    >>> both = Snippet("a", hits=(Hit("bm25", 1, 7.0), Hit("dense", 0, 0.9)))
    >>> one = Snippet("b", hits=(Hit("bm25", 0, 8.0),))
    >>> other = Snippet("c", hits=(Hit("dense", 1, 0.2),))
    >>> scorer = ZFusionScorer({"bm25": "similarity", "dense": "similarity"})
    >>> scorer.score("q", [both, one, other]).round(1)
    array([-0.7, -0.7,  1.4])
    """

    kinds: tuple[tuple[str, Kind], ...]  # of the retrievers, in alphabetical order
    scorers: tuple[Scorer, ...]
    relative_to_query: ClassVar[bool] = True

    def __init__(self, retrievers: Mapping[str, Kind], scorers: Iterable[Scorer] = ()) -> None:
        if not retrievers:
            raise ValueError("retrievers is empty; give one or more, such as {'dense': 'rank'}")
        for name, kind in retrievers.items():
            if kind not in get_args(Kind):
                raise ValueError(f"{name!r} is {kind!r}; give one of {', '.join(get_args(Kind))}")
        check_names("ZFusionScorer", retrievers=", ".join(retrievers))
        object.__setattr__(self, "kinds", tuple(sorted(retrievers.items())))
        object.__setattr__(self, "scorers", tuple(scorers))

    @property
    def parts(self) -> tuple[Scorer, ...]:
        """The scorers."""
        return self.scorers

    @property
    def retrievers(self) -> tuple[str, ...]:
        """The retrievers."""
        return tuple(name for name, _ in self.kinds)

    @property
    def name(self) -> str:
        """The retrievers, each with what is better: "higher" or "lower" scores, or its "rank"."""
        better = {"similarity": "higher", "distance": "lower", "rank": "rank"}
        of_each = [f"{name} {better[kind]}" for name, kind in self.kinds]
        return f"zfusion({', '.join([*of_each, *(part.name for part in self.scorers)])})"

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What `scorer_of` makes it from."""
        scorers = [reference(part) for part in self.scorers]
        return {"kind": "zfusion", "retrievers": dict(self.kinds), "scorers": scorers}

    def combine(self, columns: Sequence[Scores], snippets: Sequence[Snippet]) -> Scores:
        """Return the score of each snippet, (n,)."""
        sources = Sources(self.kinds, tuple(part.name for part in self.scorers), "none")
        known, numbers = numbers_of(sources, columns, snippets, only_compared=True)
        scores = np.full(len(snippets), np.nan)
        if known.any():
            r, m = len(self.kinds), len(numbers.values)  # between them, the fusion of several ranks
            own = [*range(r), *range(m - len(self.scorers), m)]
            z = within_query(numbers.values[own], numbers.ordered[own])[2]
            mean = z.mean(axis=0, keepdims=True)
            scores[known] = within_query(mean, np.sort(mean))[2][0]
        return scores
