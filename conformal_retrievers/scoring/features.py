"""The features of a learned scorer: where a snippet stands within its query and its document.

They follow from what the sources know of the snippets of one query (`sources.py`), and do not
depend on the order of the snippets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.hits import documents_in, positions_in, texts_in
from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.scoring.overlap import OVERLAPS, STEMS
from conformal_retrievers.scoring.sources import (
    Context,
    Known,
    Sources,
    Values,
    average_ranks,
    numbers_of,
)

Places = NDArray[np.intp]

OF_SOURCES = ("score", "gap to best", "z-score", "share of best", "log rank")
OF_DOCUMENTS = ("best of document", "mean of document", "gap to best of document")
RANK_OF_DOCUMENT = "log rank of document"
NEIGHBOURS = {"score two before": -2, "score before": -1, "score after": 1, "score two after": 2}
LIKE_STEMS = {*OVERLAPS} - {STEMS.name}
STEPS = (-3, -2, -1, 1, 2, 3)  # to neighbours: the first stage uses four, the second all


def feature_names(sources: Sources) -> list[str]:
    """Return the names of the columns of `features`.

    >>> feature_names(Sources((), ("s",), "none"))[-2:]
    ['log length', 'log number of snippets']
    """
    of_each, of_all = [*OF_SOURCES], ["log length", "log number of snippets"]
    if sources.context != "none":
        of_each += [*OF_DOCUMENTS, RANK_OF_DOCUMENT]
        of_all += ["log size of document"]
    if sources.context == "document+position":
        of_each += NEIGHBOURS
        of_all += ["relative position"]
    names = [f"{feature} by {name}" for feature in of_each for name in sources.names]
    return [*names, *(f"found by {name}" for name, _ in sources.retrievers), *of_all]


class Features(NamedTuple):
    """Which of a query's snippets can be scored, and what is known of these n."""

    known: Known  # (number of snippets,)
    table: Values  # (n, d)
    context: Context
    layout: Layout | None  # without documents, and without snippets, there is none
    means: Values  # (n, 1), of the z-scores of the sources

    @property
    def consensus(self) -> Features:
        """The same with nothing but the mean z-score, see `zfusion.py`."""
        return self._replace(table=self.means)


def features(sources: Sources, scores: Sequence[Values], snippets: Sequence[Snippet]) -> Features:
    """Return the features of a query's snippets.

    The scores are those of each scorer, one for each snippet. Raises as `numbers_of` does.

    >>> sources = Sources((), ("s",), "none")
    >>> scores, snippets = np.array([0.2, np.nan, 0.4]), [Snippet("a"), Snippet("b"), Snippet("c")]
    >>> known, table, *_ = features(sources, [scores], snippets)
    >>> known, feature_names(sources)[:2], table[:, :2].tolist()
    (array([ True, False,  True]), ['score by s', 'gap to best by s'], [[0.2, 0.0], [0.4, 0.2]])
    """
    known, numbers = numbers_of(sources, scores, snippets)
    x, ordered = numbers.values, numbers.ordered
    n = x.shape[1]
    if n == 0:
        none = np.empty((0, len(feature_names(sources)))), sources.context, None, np.empty((0, 1))
        return Features(known, *none)
    rows = [*within_query(x, ordered), np.log1p(numbers.ranks)]
    means = rows[OF_SOURCES.index("z-score")][counted(sources)].mean(axis=0)[:, np.newaxis]
    lengths = np.fromiter(map(len, texts_in(snippets)), np.float64, len(snippets))
    if n < len(snippets):
        lengths = lengths[known]
    of_all = [np.log1p(lengths), np.full(n, np.log(n))]
    layout = None
    if sources.context != "none":
        if n < len(snippets):
            snippets = [s for s, k in zip(snippets, known.tolist(), strict=True) if k]
        layout = layout_of(snippets, sources.context)
        rows += within_documents(x, ordered, layout)
        of_all += [np.log(layout.sizes[layout.document])]
    if layout is not None and sources.context == "document+position":
        rows += [*neighbours(x, layout, NEIGHBOURS.values())]
        of_all += [layout.number / np.maximum(layout.places - 1, 1)]  # 0 to 1
    columns = np.concatenate([*rows, numbers.found, np.array(of_all)])
    return Features(known, columns.T, sources.context, layout, means)


def counted(sources: Sources) -> list[int]:
    """Return the places of the sources whose z-scores are averaged.

    They are all but the fusion, which says again what the ranks do, and of words, pairs, stems and
    pieces, which say much the same, stems alone.

    >>> scorers = ("overlap(words)", "overlap(stems)")
    >>> counted(Sources((("a", "rank"), ("b", "rank")), scorers, "none"))  # 2 is the fusion
    [0, 1, 4]
    """
    r, names = len(sources.retrievers), sources.names
    scorers = [i for i in range(r + (r > 1), len(names)) if names[i] not in LIKE_STEMS]
    return [*range(r), *scorers]


def within_query(x: Values, ordered: Values) -> tuple[Values, Values, Values, Values]:
    """Return scores (m, n) of a query, gaps to the best, z-scores, shares of the best: (m, n) each.

    `ordered` are the scores of each row, ascending: sums of floats depend on the order, features
    must not. The best has the share 1 and the worst 0. If all are equal, z-scores are 0 and shares
    1.

    >>> x = np.array([[0.0, 1.0, 4.0]])
    >>> [round(float(row[0, 1]), 3) for row in within_query(x, x)]
    [1.0, 1.0, -0.392, 0.75]
    """
    best, spread = ordered[:, :1], ordered[:, -1:] - ordered[:, :1]
    equal = spread == 0
    scale = spread + equal
    parts = (ordered - best) / scale  # in [0, 1], with the z-scores of the scores
    gap = x - best
    part = gap / scale
    n = x.shape[1]
    mean = np.add.reduce(parts, axis=1, keepdims=True) / n  # `mean` and `std` take far longer
    sd = np.sqrt(np.add.reduce(np.square(parts - mean), axis=1, keepdims=True) / n)
    return x, gap, (part - mean) / (sd + equal), 1 - part


# --- documents ------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """Where n snippets stand in their documents.

    Snippets of one document and position share a place. Places are in the order of a document.
    Without positions, a document is one place, and `there` is empty.
    """

    document: Places  # (n,)
    sizes: Places  # (documents,), their numbers of snippets
    order: Places  # (n,), the snippets by document and position
    first: Places  # (places,), where each begins in that order
    place: Places  # (n,), among all
    number: Places  # (n,), of the place in its document, from 0
    places: Places  # (n,), how many its document has
    there: Places  # (STEPS, n), the place so many on in the document, or -1


def layout_of(snippets: Sequence[Snippet], context: Context) -> Layout:
    """Return where the snippets stand; without positions, a document is one place.

    >>> snippets = [Snippet("a", document="e", position=5), Snippet("b", document="d", position=7)]
    >>> layout = layout_of([*snippets, Snippet("c", document="e", position=2)], "document+position")
    >>> layout.document, layout.place, layout.number
    (array([0, 1, 0]), array([1, 2, 0]), array([1, 0, 0]))
    """
    names, n = documents_in(snippets), len(snippets)
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    document = np.fromiter(map(numbers.__getitem__, names), np.intp, n)
    position = np.zeros(n)
    if context == "document+position":
        position = np.array(positions_in(snippets), dtype=np.float64)
    order = np.lexsort((position, document))
    document_in_order, position_in_order = document[order], position[order]
    new = np.ones(n, dtype=bool)
    new[1:] = document_in_order[1:] != document_in_order[:-1]
    new[1:] |= position_in_order[1:] != position_in_order[:-1]
    place = np.empty_like(document)
    place[order] = new.cumsum() - 1
    first = np.flatnonzero(new)
    places = np.bincount(document_in_order[first])
    number, places = place - (places.cumsum() - places)[document], places[document]
    there = np.empty((0, n), dtype=np.intp)
    if context == "document+position":
        step = np.array(STEPS)[:, np.newaxis]
        to = number + step
        there = np.where((to >= 0) & (to < places), place + step, -1)
    return Layout(document, np.bincount(document), order, first, place, number, places, there)


def within_documents(x: Values, ordered: Values, layout: Layout) -> tuple[Values, ...]:
    """Return best and mean of each score's document, its gap to that best, and the document's rank.

    From scores (m, n), and these ascending in each row. The rank is a log, by the best.

    >>> snippets = [Snippet("a", document="d"), Snippet("b", document="d"), Snippet("c")]
    >>> x, ordered = np.array([[1.0, 3.0, 2.0]]), np.array([[1.0, 2.0, 3.0]])
    >>> best, mean, gap, rank = within_documents(x, ordered, layout_of(snippets, "document"))
    >>> best, mean, gap, rank.round(1)
    (array([[1., 1., 2.]]), array([[2., 2., 2.]]), array([[0., 2., 0.]]), array([[0. , 0. , 0.7]]))
    """
    document, sizes = layout.document, layout.sizes
    best = np.minimum.reduceat(x.take(layout.order, axis=1), sizes.cumsum() - sizes, axis=1)
    first = len(sizes) * np.arange(len(x))[:, np.newaxis]  # the row's first document, of all
    of_sorted = document[np.argsort(x, axis=1)] + first  # sums of floats depend on the order
    sums = np.bincount(of_sorted.ravel(), ordered.ravel(), minlength=best.size)
    ranks = [average_ranks(row, np.sort(row)) for row in best]
    mean, rank = sums.reshape(best.shape) / sizes, np.log1p(ranks)
    best, mean, rank = np.array([best, mean, rank]).take(document, axis=2)
    return best, mean, x - best, rank


def neighbours(x: Values, layout: Layout, steps: Iterable[int]) -> Values:
    """Return the best scores so many places on in the document, or the query's worst.

    From scores (m, n), for some of `STEPS`: (steps, m, n).

    >>> snippets = [Snippet("a", document="d", position=p) for p in (0, 9)]
    >>> neighbours(np.array([[1.0, 3.0]]), layout_of(snippets, "document+position"), [1])
    array([[[3., 3.]]])
    """
    of_places = np.minimum.reduceat(x.take(layout.order, axis=1), layout.first, axis=1)
    known = np.concatenate([of_places, x.max(axis=1, keepdims=True)], axis=1)  # the worst is last
    there = layout.there[[STEPS.index(step) for step in steps]]
    return np.asarray(known.take(there, axis=1).swapaxes(0, 1))
