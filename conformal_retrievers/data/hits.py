"""What retrievers know of a snippet: a hit for each retriever that found it.

Ranks count from 0, the best. Lists of several retrievers are united by reciprocal rank fusion
(Cormack et al. 2009), in the order of

    Σ over the retrievers that found a snippet of  1 / (60 + rank + 1),  the highest first.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

Key = TypeVar("Key", bound=Hashable)
RETRIEVER = "retriever"  # the name of a single retriever in its hits, whatever else it is called
C = 60  # as in the paper, and in both frameworks


def _not_text(value: object) -> object:
    if isinstance(value, (bool, str)):
        raise ValueError("give a number")
    return value


Number = BeforeValidator(_not_text)  # of a model, which takes "1" and true for 1 without it


class Hit(NamedTuple):
    """What one retriever knows of a snippet that it found."""

    retriever: str
    rank: Annotated[int, Number]  # its place among what the retriever returned, from 0
    # The retriever's own, on its own scale; None if it has none.
    score: Annotated[float | None, Number] = None


# Of a snippet; null in a file is unknown, too.
Hits: TypeAlias = Annotated[
    tuple[Hit, ...], BeforeValidator(lambda hits: () if hits is None else hits)
]


class HitColumns(NamedTuple):
    """The hits of one retriever among the n snippets of a query."""

    ranks: NDArray[np.float64]  # (n,); +inf for a snippet that the retriever did not find
    scores: NDArray[np.float64]  # (n,); NaN for a snippet without a score of this retriever

    def at(self, places: Any) -> "HitColumns":
        """Return the hits of some of the snippets."""
        return HitColumns(self.ranks[places], self.scores[places])


def unknown_hits(n: int) -> HitColumns:
    """Return the columns of a retriever that found none of n snippets."""
    return HitColumns(np.full(n, np.inf), np.full(n, np.nan))


def slope(columns: HitColumns, fewest: int = 3) -> int:
    """Return how a list's scores go along its ranks: 1 if they rise, −1 if they fall, 0 if neither.

    Similarities fall and distances rise. Two scores do either by chance if the list is in no order
    of scores; three or more, all in one order, show which ones they are. Of `fewest`, less is 0.

    >>> slope(HitColumns(np.array([0.0, 2.0, 1.0]), np.array([0.9, 0.1, 0.5])))
    -1
    """
    known = np.isfinite(columns.scores)
    order = columns.ranks[known].argsort(kind="stable")
    steps, apart = np.diff(columns.scores[known][order]), np.diff(columns.ranks[known][order]) > 0
    if steps[~apart].any() or np.count_nonzero(apart) < fewest - 1 or not steps.any():
        return 0  # sentences of one snippet share its rank and score
    return 1 if (steps >= 0).all() else -1 if (steps <= 0).all() else 0


def hit_columns(hits: Sequence[Iterable[tuple[str, Any, Any]]]) -> dict[str, HitColumns]:
    """Return the columns of each retriever, by name in order, from the hits of n snippets.

    >>> hit_columns([(Hit("dense", 0, 0.9),), (Hit("bm25", 0), Hit("dense", 1, 0.8))])["bm25"]
    HitColumns(ranks=array([inf,  0.]), scores=array([nan, nan]))
    """
    columns: dict[str, tuple[list[Any], list[Any]]] = {}
    for i, of_snippet in enumerate(hits):
        for retriever, rank, score in of_snippet:
            if (known := columns.get(retriever)) is None:
                known = columns[retriever] = ([np.inf] * len(hits), [np.nan] * len(hits))
            known[0][i], known[1][i] = rank, score
    return {  # None becomes NaN
        name: HitColumns._make(np.array(values, np.float64) for values in columns[name])
        for name in sorted(columns)
    }


def listed(scores: Sequence[float | None]) -> dict[str, HitColumns]:
    """Return the columns of a single retriever, from the scores of what it found, best first."""
    ranks = np.arange(len(scores), dtype=np.float64)
    return {RETRIEVER: HitColumns(ranks, np.array(scores, np.float64))}  # None becomes NaN


def fuse(lists: Mapping[str, Sequence[tuple[Key, float | None]]]) -> dict[Key, tuple[Hit, ...]]:
    """Return the hits of each item in the retrievers' lists, in the order of fusion.

    Lists have keys and scores, best first. An item that a retriever returns twice has its first
    place there. Ties go by the retrievers' order, then by rank. Raises TypeError for ids without
    scores, and for a mapping from ids to scores: give its items, best first.

    >>> list(fuse({"dense": [("a", 0.9), ("b", 0.8)], "bm25": [("b", 7.0)]}))
    ['b', 'a']
    >>> fuse({"bm25": {"b": 7.0, "a": 3.0}})  # nor a list of ids
    Traceback (most recent call last):
    TypeError: the list of 'bm25' has no pairs; give (id, score)
    """
    hits: dict[Key, dict[str, Hit]] = {}
    for retriever, items in lists.items():
        for rank, item in enumerate(items):
            if isinstance(items, Mapping) or isinstance(item, str):
                raise TypeError(f"the list of {retriever!r:.60} has no pairs; give (id, score)")
            key, score = item
            hits.setdefault(key, {}).setdefault(retriever, Hit(retriever, rank, score))
    keys, fused = [*hits], [tuple(by_retriever.values()) for by_retriever in hits.values()]
    return {keys[i]: fused[i] for i in np.argsort(-np.array(fusion(fused)), kind="stable")}


def fusion(hits: Iterable[Iterable[Hit]]) -> list[float]:
    """Return Σ 1 / (60 + rank + 1) over the hits of each snippet.

    >>> fusion([[Hit("dense", 0), Hit("bm25", 0)], []]) == [2 / 61, 0]
    True
    """
    return [sum([1 / (C + hit.rank + 1) for hit in own]) for own in hits]
