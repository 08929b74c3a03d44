"""What may enter as a column of scored queries: every array is checked here, and copied.

Errors are ValueError or TypeError and name the column.
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.data import checks
from conformal_retrievers.data.wording import say

Column = NDArray[np.float64]
Objects = NDArray[np.object_]


def as_offsets(offsets: ArrayLike) -> NDArray[np.intp]:
    """Return where the snippets of each query begin and where the last ones end, (n + 1,)."""
    given = checks.as_numbers(offsets, "offsets")
    ascending = given.ndim == 1 and len(given) and given.dtype.kind in "iu" and given[0] == 0
    places = given.astype(np.intp) if ascending else given  # before differences: they may be < 0
    if not ascending or (np.diff(places) < 0).any():
        raise ValueError(say("wrong offsets", given=given))
    return places


def as_documents(values: ArrayLike | None, size: int) -> NDArray[np.intp] | None:
    """Return the number of the document of each sentence, None for whole snippets."""
    if values is None:
        return None
    numbers = as_column("document_of", values, size)
    whole = (numbers >= 0) & (numbers % 1 == 0)
    return _valid("document_of", numbers, whole, "a whole number, 0 or more").astype(np.intp)


def as_column(name: str, values: ArrayLike, size: int) -> Column:
    """Return one float for each of `size` snippets."""
    return checks.as_scores(values, name, size) + 0.0  # a copy, without −0


def _valid(name: str, numbers: Column, valid: NDArray[np.bool_], remedy: str) -> Column:
    for i in np.flatnonzero(~valid)[:1].tolist():
        raise ValueError(f"{name}[{i}] is {numbers[i]:g}; give {remedy}")
    return numbers


def as_tokens(tokens: ArrayLike | None, size: int) -> Column | None:
    """Return the number of tokens of each snippet, NaN where it is unknown; None if all are."""
    if tokens is None:
        return None
    numbers = as_column("tokens", tokens, size)
    known = np.isnan(numbers) | ((numbers >= 0) & np.isfinite(numbers))
    return _valid("tokens", numbers, known, "a finite number, 0 or more")


def as_judgements(relevant: ArrayLike, size: int) -> NDArray[np.bool_]:
    """Return whether each snippet is relevant."""
    marks = np.asarray(relevant)
    checks.check_shape("relevant", marks, size, "snippets")
    for i in np.flatnonzero(~np.isin(marks, (0, 1)))[:1].tolist():
        checks.as_judgement("scored", i, marks[i])
    return marks.astype(np.bool_)


def as_texts(name: str, values: Iterable[str | None] | None, n: int) -> Objects:
    """Return one text or None for each of n queries."""
    texts = np.full(n, None, dtype=np.object_)
    if values is None:
        return texts
    given = values.tolist() if isinstance(values, np.ndarray) else list(values)
    if len(given) != n:
        raise ValueError(f"{name} has {len(given)} entries for {n} queries; give one for each")
    for i, value in enumerate(given):
        if not isinstance(value, str | None):
            raise TypeError(f"{name}[{i}] is {value!r:.60}; give each as a str, or None")
    checks.check_texts("scored", **{name: "".join(filter(None, given))})
    texts[:] = given
    return texts


def as_counts(name: str, values: ArrayLike | None, n: int, most: int) -> Column:
    """Return one whole number up to `most` for each of n queries, NaN where it is unknown."""
    if values is None:
        return np.full(n, math.nan)
    counts = checks.as_scores(values, name, n, "queries")
    whole = np.isnan(counts) | ((counts >= 0) & (counts <= most) & (counts % 1 == 0))
    remedy = f"a whole number from 0 to {most}, or NaN if it is unknown"
    return np.array(_valid(name, counts, whole, remedy))
