"""The features of a learned scorer: a snippet's scores within its query and within its document.

They follow from the snippets of one query and do not depend on their order.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.scoring.combine import z_scores

Values = NDArray[np.float64]
Places = NDArray[np.intp]
Context = Literal["none", "document", "document+position"]


def _average_ranks(x: Values) -> Values:
    """Return the ranks from 1, the lowest, to n; equal scores share the mean of their ranks."""
    ordered = np.sort(x)
    return (np.searchsorted(ordered, x, "left") + np.searchsorted(ordered, x, "right") + 1) / 2


def _share_of_best(x: Values) -> Values:
    """Return how far each score is from the worst (0) to the best (1); 1 if all are equal."""
    worst, best = x.max(), x.min()
    return (worst - x) / (worst - best) if best < worst else np.ones_like(x)


def _lowest(x: Values, of: Places) -> Values:
    """Return the lowest score in each document or place, given those of the scores (n,)."""
    lowest = np.full(of.max() + 1, np.inf)
    np.minimum.at(lowest, of, x)
    return lowest


def _neighbour(x: Values, place: Places, documents: Places, step: int) -> Values:
    """Return the score (n,) `step` places on in the document, or the query's worst score."""
    at_place = _lowest(x, place)
    other = np.arange(len(at_place)) + step
    there = np.clip(other, 0, len(at_place) - 1)
    same = (other == there) & (documents[there] == documents)
    return np.asarray(np.where(same, at_place[there], x.max())[place])


# From a query's scores (n,), lower = more relevant.
SCORE_FEATURES: Mapping[str, Callable[[Values], Values]] = {
    "score": lambda x: x,
    "gap to best": lambda x: x - x.min(),
    "z-score": z_scores,
    "log rank": lambda x: np.log(_average_ranks(x)),
    "relative rank": lambda x: _average_ranks(x) / len(x),
    "share of best": _share_of_best,
}
# From the scores (n,) and the number (n,) of each one's document.
DOCUMENT_FEATURES: Mapping[str, Callable[[Values, Places], Values]] = {
    "best of document": lambda x, of: _lowest(x, of)[of],
    "mean of document": lambda x, of: (np.bincount(of, x) / np.bincount(of))[of],
    "gap to best of document": lambda x, of: x - _lowest(x, of)[of],
    "log rank of document": lambda x, of: np.log(_average_ranks(_lowest(x, of)))[of],
}
NEIGHBOURS = {"score two before": -2, "score before": -1, "score after": 1, "score two after": 2}


def context_of(snippets: Sequence[Snippet]) -> Context:
    """Return what all of the snippets state about where they come from.

    >>> context_of([Snippet("a", document="d", position=0), Snippet("b", document="d")])
    'document'
    """
    if any(s.document is None for s in snippets):
        return "none"
    return "document" if any(s.position is None for s in snippets) else "document+position"


def feature_names(scorers: Sequence[str], context: Context) -> list[str]:
    """Return the names of the columns of `features`, for scorers with these names.

    >>> feature_names(["s"], "none")[-3:]
    ['share of best by s', 'log length', 'log number of snippets']
    """
    of_each, of_all = [*SCORE_FEATURES], ["log length", "log number of snippets"]
    if context != "none":
        of_each, of_all = [*of_each, *DOCUMENT_FEATURES], [*of_all, "log size of document"]
    if context == "document+position":
        of_each, of_all = [*of_each, *NEIGHBOURS], [*of_all, "relative position"]
    return [f"{feature} by {name}" for name in scorers for feature in of_each] + of_all


def features(scores: Values, snippets: Sequence[Snippet], context: Context) -> Values:
    """Return the features (n, d) of a query's snippets from the finite scores (n, m) of m scorers.

    >>> table = features(np.array([[0.2], [0.4]]), [Snippet("a"), Snippet("b")], "none")
    >>> feature_names(["s"], "none")[:2], table[:, :2].tolist()
    (['score by s', 'gap to best by s'], [[0.2, 0.0], [0.4, 0.2]])
    """
    n = len(snippets)
    if n == 0:
        return np.empty((0, len(feature_names([""] * scores.shape[1], context))))
    by_document, by_position = context != "none", context == "document+position"
    # Snippets of one document and position share a place; places are in the order of a document.
    origins = [
        (s.document or "" if by_document else "", s.position or 0 if by_position else 0)
        for s in snippets
    ]
    places = {origin: i for i, origin in enumerate(sorted(set(origins)))}
    numbers = {name: i for i, name in enumerate(dict.fromkeys(name for name, _ in places))}
    documents = np.array([numbers[name] for name, _ in places], dtype=np.intp)  # (places,)
    place = np.array([places[origin] for origin in origins], dtype=np.intp)
    lengths = np.log1p([len(s.text) for s in snippets])
    # Sums of floats depend on the order, features must not: compute in one order.
    order = np.lexsort((*scores.T, lengths, place))
    place = place[order]
    document = documents[place]
    columns: list[Values] = []
    for x in scores[order].T:
        columns += [feature(x) for feature in SCORE_FEATURES.values()]
        if by_document:
            columns += [feature(x, document) for feature in DOCUMENT_FEATURES.values()]
        if by_position:
            columns += [_neighbour(x, place, documents, step) for step in NEIGHBOURS.values()]
    columns += [lengths[order], np.full(n, np.log(n))]
    if by_document:
        columns.append(np.log(np.bincount(document)[document]))
    if by_position:
        sizes = np.bincount(documents)
        first = np.cumsum(sizes) - sizes
        columns.append((place - first[document]) / np.maximum(sizes - 1, 1)[document])
    table = np.empty((n, len(columns)))
    table[order] = np.column_stack(columns)
    return table
