"""Ranges of a text, in characters as `len` counts them, and evidence: those that answer a query."""

from typing import Any, NamedTuple

import numpy as np

from conformal_retrievers.data.wording import say

MOST = 10_000_000  # characters of a piece of evidence: each takes memory


class Range(NamedTuple):
    """Characters of a text, from `start` to before `end`."""

    start: int
    end: int


class Evidence(NamedTuple):
    """Characters that answer a query, from `start` to before `end`.

    `document` is the id of a snippet, and the characters are those of its text; or it is the
    `document` of snippets that have a `position`, and the characters are those of that document.
    """

    document: str
    start: int
    end: int


class Quote(NamedTuple):
    """A text that answers a query, to be found in what is retrieved of a document."""

    document: str
    text: str

    @property
    def start(self) -> int:
        """The start, of the text itself."""
        return 0

    @property
    def end(self) -> int:
        """The end, of the text itself."""
        return len(self.text)


def as_evidence(where: str, given: Any) -> Evidence | Quote:
    """Return what is given as Evidence, or as a Quote of a document and a text.

    Raises TypeError or ValueError unless it is a range, or a text that is not blank.
    """
    kinds = [*map(type, given)] if isinstance(given, (tuple, list)) else []
    whole = [kind for kind in kinds[1:] if issubclass(kind, (int, np.integer))]
    if kinds == [str, str] and given[1].strip():
        return Quote(*given)
    if kinds[:1] != [str] or len(kinds) != 3 or len(whole) != 2 or bool in kinds:
        raise TypeError(say("wrong evidence", where=where, given=given))
    document, start, end = given
    if not 0 <= start < end <= start + MOST or end > 2**53:
        raise ValueError(say("wrong range", where=where, start=start, end=end, most=MOST))
    return Evidence(document, int(start), int(end))
