"""The features of a learned scorer: where a snippet stands within its query and its document.

They follow from what the sources know of the snippets of one query (`sources.py`), and do not
depend on the order of the snippets.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.hits import documents_in, positions_in, texts_in
from conformal_retrievers.data.queries import Snippet
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


def features(
    sources: Sources, scores: Sequence[Values], snippets: Sequence[Snippet]
) -> tuple[Known, Values]:
    """Return which of a query's snippets can be scored, and the features (n, d) of these n.

    The scores are those of each scorer, one for each snippet. Raises as `numbers_of` does.

    >>> sources = Sources((), ("s",), "none")
    >>> scores, snippets = np.array([0.2, np.nan, 0.4]), [Snippet("a"), Snippet("b"), Snippet("c")]
    >>> known, table = features(sources, [scores], snippets)
    >>> known, feature_names(sources)[:2], table[:, :2].tolist()
    (array([ True, False,  True]), ['score by s', 'gap to best by s'], [[0.2, 0.0], [0.4, 0.2]])
    """
    known, numbers = numbers_of(sources, scores, snippets)
    n, x = np.count_nonzero(known), numbers.values
    if n == 0:
        return known, np.empty((0, len(feature_names(sources))))
    rows = [*within_query(x), np.log1p(numbers.ranks)]
    lengths = np.fromiter(map(len, texts_in(snippets)), np.float64, len(snippets))
    of_all = [np.log1p(lengths[known]), np.full(n, np.log(n))]
    if sources.context != "none":
        if n < len(snippets):
            snippets = [s for s, k in zip(snippets, known.tolist(), strict=True) if k]
        layout = layout_of(snippets, sources.context)
        rows += within_documents(x, layout.document)
        of_all += [np.log(np.bincount(layout.document)[layout.document])]
    if sources.context == "document+position":
        rows += neighbours(x, layout, NEIGHBOURS.values())
        of_all += [_relative_position(layout)]
    columns = np.concatenate([*rows, numbers.found, np.array(of_all)])
    return known, np.ascontiguousarray(columns.T)


def within_query(x: Values) -> tuple[Values, Values, Values, Values]:
    """Return scores (m, n) of a query, gaps to the best, z-scores, shares of the best: (m, n) each.

    The best has the share 1 and the worst 0. If all are equal, z-scores are 0 and shares 1.

    >>> [round(float(row[0, 1]), 3) for row in within_query(np.array([[0.0, 1.0, 4.0]]))]
    [1.0, 1.0, -0.392, 0.75]
    """
    ordered = np.sort(x, axis=1)  # sums of floats depend on the order, features must not
    best, spread = ordered[:, :1], ordered[:, -1:] - ordered[:, :1]
    varied = spread > 0
    scale = np.where(varied, spread, 1.0)
    parts = (ordered - best) / scale  # in [0, 1], with the z-scores of the scores
    gap = x - best
    part = gap / scale
    n = x.shape[1]
    mean = parts.sum(axis=1, keepdims=True) / n  # `mean` and `std` take several times as long
    sd = np.sqrt(np.square(parts - mean).sum(axis=1, keepdims=True) / n)
    return x, gap, (part - mean) / np.where(varied, sd, 1.0), 1 - part


# --- documents ------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """Where n snippets stand in their documents.

    Snippets of one document and position share a place. Places are in the order of a document.
    """

    document: Places  # (n,)
    place: Places  # (n,)
    document_of_place: Places  # (places,)


def layout_of(snippets: Sequence[Snippet], context: Context) -> Layout:
    """Return where the snippets stand; without positions, a document is one place.

    >>> snippets = [Snippet("a", document="e", position=5), Snippet("b", document="d", position=7)]
    >>> layout_of([*snippets, Snippet("c", document="e", position=2)], "document+position")
    Layout(document=array([1, 0, 1]), place=array([2, 0, 1]), document_of_place=array([0, 1, 1]))
    """
    names = [name or "" for name in documents_in(snippets)]
    numbers = {name: i for i, name in enumerate(sorted(set(names)))}
    document = np.array([numbers[name] for name in names], dtype=np.intp)
    if context != "document+position":
        return Layout(document, document, np.arange(len(numbers)))
    position = np.array([one or 0 for one in positions_in(snippets)])
    order = np.lexsort((position, document))
    document_in_order, position_in_order = document[order], position[order]
    new = np.diff(document_in_order, prepend=-1) != 0
    new[1:] |= position_in_order[1:] != position_in_order[:-1]
    place = np.empty_like(document)
    place[order] = np.cumsum(new) - 1
    return Layout(document, place, document_in_order[new])


def within_documents(x: Values, document: Places) -> tuple[Values, Values, Values, Values]:
    """Return best and mean of each score's document, its gap to that best, and the document's rank.

    From scores (m, n) and the numbers of their documents, (n,). The rank is a log, by the best.

    >>> best, mean, gap, rank = within_documents(np.array([[1.0, 3.0, 2.0]]), np.array([0, 0, 1]))
    >>> best, mean, gap, rank.round(1)
    (array([[1., 1., 2.]]), array([[2., 2., 2.]]), array([[0., 2., 0.]]), array([[0. , 0. , 0.7]]))
    """
    best, sizes = _lowest(x, document), np.bincount(document)
    first = len(sizes) * np.arange(len(x))[:, np.newaxis]  # the row's first document, of all
    of_sorted = document[np.argsort(x, axis=1)] + first  # sums of floats depend on the order
    sums = np.bincount(of_sorted.ravel(), np.sort(x, axis=1).ravel(), minlength=best.size)
    mean = sums.reshape(best.shape) / sizes
    rank = np.log1p([average_ranks(row) for row in best])
    best = best[:, document]
    return best, mean[:, document], x - best, rank[:, document]


def neighbours(x: Values, layout: Layout, steps: Iterable[int]) -> list[Values]:
    """Return the best scores so many places on in the document, or the query's worst: (m, n) each.

    >>> layout = Layout(np.array([0, 0]), np.array([0, 1]), np.array([0, 0]))
    >>> neighbours(np.array([[1.0, 3.0]]), layout, [1])
    [array([[3., 3.]])]
    """
    at_place, documents = _lowest(x, layout.place), layout.document_of_place
    worst, found = x.max(axis=1, keepdims=True), []
    for step in steps:
        before, after, n = max(0, -step), max(0, step), max(0, len(documents) - abs(step))
        here, there = slice(before, before + n), slice(after, after + n)
        at_other = np.repeat(worst, len(documents), axis=1)
        same = documents[here] == documents[there]
        at_other[:, here] = np.where(same, at_place[:, there], worst)
        found.append(at_other[:, layout.place])
    return found


def _lowest(x: Values, of: Places) -> Values:
    """Return the lowest of the scores (m, n) of each document or place, given those, (n,)."""
    sizes = np.bincount(of)
    first = np.cumsum(sizes) - sizes
    return np.asarray(np.minimum.reduceat(x[:, np.argsort(of)], first, axis=1))


def _relative_position(layout: Layout) -> Values:
    """Return 0 for a document's first place to 1 for its last, (n,)."""
    sizes = np.bincount(layout.document_of_place)
    first = np.cumsum(sizes) - sizes
    last = np.maximum(sizes - 1, 1)
    return np.asarray((layout.place - first[layout.document]) / last[layout.document])
