"""Where the snippets of a query stand in their documents."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.intp]


class Layout(NamedTuple):
    """Where n snippets stand in their documents.

    Snippets of one document and position share a place. Places are in the order of a document.
    Without positions, a document is one place.
    """

    document: Places  # (n,)
    sizes: Places  # (documents,), their numbers of snippets
    order: Places  # (n,), the snippets by document and position
    first: Places  # (places,), where each begins in that order
    place: Places  # (n,), among all
    number: Places  # (n,), of the place in its document, from 0
    places: Places  # (n,), how many its document has


def layout_of(documents: Sequence[str | None], positions: Sequence[int | None] = ()) -> Layout:
    """Return where n snippets stand; without positions, a document is one place.

    A snippet without a document is one of its own.

    >>> layout = layout_of(["e", "d", "e"], [5, 7, 2])
    >>> layout.document, layout.place, layout.number
    (array([0, 1, 0]), array([1, 2, 0]), array([1, 0, 0]))
    """
    n = len(documents)
    names = [i if name is None else name for i, name in enumerate(documents)]
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    document = np.fromiter(map(numbers.__getitem__, names), np.intp, n)
    position = np.array([p or 0 for p in positions] or [0] * n, dtype=np.float64)
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
    return Layout(document, np.bincount(document), order, first, place, number, places)
