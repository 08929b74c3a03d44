"""Embeddings of texts that were seen before, for the next query that retrieves them.

A chunk comes back for many queries, and its sentences with it. Vectors are kept in memory, up to a
number of bytes; those of the texts that were not asked for the longest go first.
"""

import sys
from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Vectors:
    """Vectors (d,) by exact text, at most `size` bytes of both; threads may share it.

    >>> vectors = Vectors(1000)
    >>> vectors.add(["a", "b"], np.array([[1.0, 0.0], [np.nan, 0.0]]))
    >>> vectors.known(["a", "b", "c"])
    {'a': array([1., 0.])}
    """

    def __init__(self, size: float) -> None:
        self.size = size
        self._rows: OrderedDict[str, NDArray[Any]] = OrderedDict()  # the last used at the end
        self._used = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[type, tuple[float]]:
        """Copy it without its vectors, for another process."""
        return Vectors, (self.size,)

    def known(self, texts: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Return the vectors of those texts that have one."""
        rows = self._rows
        with self._lock:
            found = {text: rows[text] for text in texts if text in rows}
            for text in found:
                rows.move_to_end(text)
        return found

    def add(self, texts: Iterable[str], matrix: NDArray[Any]) -> None:
        """Keep the finite vectors of the texts, (n, d)."""
        finite = np.isfinite(matrix).all(axis=1).tolist()
        with self._lock:
            for text, row, numbers in zip(texts, matrix, finite, strict=True):
                if numbers and text not in self._rows:
                    self._rows[text] = row.copy()  # a view would keep the whole matrix
                    self._used += _bytes(text, self._rows[text])
            while self._used > self.size:
                self._used -= _bytes(*self._rows.popitem(last=False))


def _bytes(text: str, row: NDArray[Any]) -> int:
    return sys.getsizeof(text) + sys.getsizeof(row)
