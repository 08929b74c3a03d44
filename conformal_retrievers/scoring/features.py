"""What a learned scorer sees of a snippet: scores within the query, and around it in its document.

Each scorer's scores of a query's n snippets give the features of `OF_SCORES`; with documents known,
those of `OF_DOCUMENTS` too, and with positions, the scores of the neighbours in `NEIGHBOURS`. All
of them follow from the snippets of the one query, in whatever order these come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.scoring.combine import z_scores

Values = NDArray[np.float64]
Context = Literal["none", "document", "document+position"]


def context_of(snippets: Sequence[Snippet]) -> Context:
    """Return what is known of where all of the snippets come from."""
    if any(s.document is None for s in snippets):
        return "none"
    return "document" if any(s.position is None for s in snippets) else "document+position"


def placed(snippets: Sequence[Snippet], context: Context) -> NDArray[np.bool_]:
    """Return of which snippets (n,) that is known which the context takes."""
    known = [
        context == "none"
        or (s.document is not None and (context == "document" or s.position is not None))
        for s in snippets
    ]
    return np.array(known, dtype=bool)


def feature_names(scorers: Sequence[str], context: Context) -> list[str]:
    """Return the names of the columns of `features`, for scorers of these names."""
    of_each = [*OF_SCORES]
    of_all = ["log length", "log number of snippets"]
    if context != "none":
        of_each += OF_DOCUMENTS
        of_all += ["log size of document"]
    if context == "document+position":
        of_each += NEIGHBOURS
        of_all += ["relative position"]
    return [f"{feature} by {name}" for name in scorers for feature in of_each] + of_all


def features(scores: Values, snippets: Sequence[Snippet], context: Context) -> Values:
    """Return the features (n, d) of a query's snippets from the finite scores (n, m) of m scorers.

    All snippets are `placed` in the context.
    """
    n = len(snippets)
    if n == 0:
        return np.empty((0, len(feature_names([""] * scores.shape[1], context))))
    lengths = np.log1p([len(s.text) for s in snippets])
    origins = [_origin(s, context) for s in snippets]
    where = {origin: i for i, origin in enumerate(sorted(set(origins)))}
    place = np.array([where[origin] for origin in origins], dtype=np.intp)
    # Sums of floats depend on the order, features must not: take the snippets in one order.
    order = np.lexsort((*scores.T, lengths, place))
    places = Places(place[order], [document for document, _ in where])
    columns: list[Values] = []
    for x in scores[order].T:
        columns += [of_scores(x) for of_scores in OF_SCORES.values()]
        if context != "none":
            columns += [of_documents(x, places) for of_documents in OF_DOCUMENTS.values()]
        if context == "document+position":
            columns += [places.neighbours(x, step) for step in NEIGHBOURS.values()]
    columns += [lengths[order], np.full(n, np.log(n))]
    if context != "none":
        columns.append(np.log(places.sizes[places.document]))
    if context == "document+position":
        columns.append(places.relative)
    table = np.empty((n, len(columns)))
    table[order] = np.column_stack(columns)
    return table


def _origin(snippet: Snippet, context: Context) -> tuple[str, int]:
    document = snippet.document if context != "none" else None
    position = snippet.position if context == "document+position" else None
    return document or "", position or 0


# --- scores of a query, lower = more relevant -----------------------------------------------------


def average_ranks(x: Values) -> Values:
    """Return the ranks from 1, the lowest, to n; ties share the mean of theirs."""
    ordered = np.sort(x)
    return (np.searchsorted(ordered, x, "left") + np.searchsorted(ordered, x, "right") + 1) / 2


def share_of_best(x: Values) -> Values:
    """Return how far each is from the worst to the best, 0 to 1; 1 where all are equal."""
    worst, best = x.max(), x.min()
    return (worst - x) / (worst - best) if best < worst else np.ones_like(x)


OF_SCORES: Mapping[str, Callable[[Values], Values]] = {
    "score": lambda x: x,
    "gap to best": lambda x: x - x.min(),
    "z-score": z_scores,
    "log rank": lambda x: np.log(average_ranks(x)),
    "relative rank": lambda x: average_ranks(x) / len(x),
    "share of best": share_of_best,
}


# --- scores around a snippet in its document ------------------------------------------------------


@dataclass(frozen=True)
class Places:
    """Where n snippets stand: `place` (n,) counts document by document, and in each by position.

    `documents` are those of the places. Snippets of one document and position share a place.
    """

    place: NDArray[np.intp]
    documents: Sequence[str]

    @cached_property
    def document_of_place(self) -> NDArray[np.intp]:
        """The document of each place, numbered from 0."""
        numbers = {document: i for i, document in enumerate(dict.fromkeys(self.documents))}
        return np.array([numbers[document] for document in self.documents], dtype=np.intp)

    @cached_property
    def document(self) -> NDArray[np.intp]:
        """The document of each snippet (n,), numbered from 0."""
        return self.document_of_place[self.place]

    @cached_property
    def sizes(self) -> NDArray[np.intp]:
        """The number of snippets of each document."""
        return np.bincount(self.document)

    @cached_property
    def relative(self) -> Values:
        """The place within the document (n,): 0 the first, 1 the last."""
        places = np.bincount(self.document_of_place)
        first = np.cumsum(places) - places
        steps = np.maximum(places - 1, 1)
        return np.asarray((self.place - first[self.document]) / steps[self.document])

    def best(self, x: Values) -> Values:
        """Return the lowest score of each document."""
        return _lowest(x, self.document)

    def mean(self, x: Values) -> Values:
        """Return the mean score of each document."""
        return np.asarray(np.bincount(self.document, x) / self.sizes)

    def neighbours(self, x: Values, step: int) -> Values:
        """Return the score (n,) `step` places on; of no snippet, the query's worst."""
        at_place = _lowest(x, self.place)
        other = np.arange(len(at_place)) + step
        there = np.clip(other, 0, len(at_place) - 1)
        same = (other == there) & (self.document_of_place[there] == self.document_of_place)
        return np.asarray(np.where(same, at_place[there], x.max())[self.place])


def _lowest(x: Values, of: NDArray[np.intp]) -> Values:
    lowest = np.full(of.max() + 1, np.inf)
    np.minimum.at(lowest, of, x)
    return lowest


OF_DOCUMENTS: Mapping[str, Callable[[Values, Places], Values]] = {
    "best of document": lambda x, places: places.best(x)[places.document],
    "mean of document": lambda x, places: places.mean(x)[places.document],
    "gap to best of document": lambda x, places: x - places.best(x)[places.document],
    "log rank of document": lambda x, places: np.log(average_ranks(places.best(x)))[
        places.document
    ],
}

NEIGHBOURS: Mapping[str, int] = {
    "score two before": -2,
    "score before": -1,
    "score after": 1,
    "score two after": 2,
}
