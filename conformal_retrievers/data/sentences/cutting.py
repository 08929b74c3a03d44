"""Retrieved documents cut into sentences, and passages of the sentences that are kept.

A document is what a retriever returned; a sentence is a range of its text. The sentences of a
document are in order and disjoint, have no white space around them, and between them there is only
white space. Characters are code points, as `len` counts them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import isfunction
from itertools import groupby, pairwise
from operator import index
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.data.ranges import Range
from conformal_retrievers.data.snippets import column
from conformal_retrievers.data.text import printable
from conformal_retrievers.data.wording import say

MAX_INDENT = 200  # characters
Split = Literal["sentences"] | Callable[[str], Iterable[tuple[int, int]]]


@dataclass(frozen=True)
class Splitter:
    """A function from a text to the ranges of its sentences, with the name that identifies it."""

    name: str
    find: Callable[[str], Iterable[tuple[int, int]]]

    def __call__(self, text: str) -> tuple[Range, ...]:
        """Return the ranges of the sentences, without the white space around them.

        A text without a visible character is one range. Raises TypeError, naming split, for other
        than pairs of whole numbers, and ValueError if ranges overlap, are not in order, are not in
        the text, or leave out a visible character.
        """
        ranges, last = [], 0
        for pair in (*self.find(text), (len(text), len(text))):
            try:
                start, end = map(index, pair)
            except (TypeError, ValueError):
                raise TypeError(say("no pairs", split=self.name, pair=pair)) from None
            if not last <= start <= end <= len(text) or text[last:start].strip():
                facts = {"range": (start, end), "last": last, "n": len(text)}
                raise ValueError(say("ranges not in order", split=self.name, **facts))
            last, piece = end, text[start:end]
            if visible := piece.strip():
                start += piece.index(visible)
                ranges.append(Range(start, start + len(visible)))
        return tuple(ranges) or (Range(0, len(text)),)


def splitter(split: Split) -> Splitter:
    """Return what splits texts: ours for "sentences", or a callable with its name.

    The name of a callable is its attribute `name`, or of a plain function "module.qualname". Raises
    ValueError or TypeError, naming split, for another string or for a callable without a name.

    >>> import re
    >>> def lines(text: str) -> list[tuple[int, int]]:
    ...     return [found.span() for found in re.finditer(".+", text)]
    >>> lines.name = "lines 1"  # a version, if what it returns may change
    >>> splitter(lines)("One\\nTwo")
    (Range(start=0, end=3), Range(start=4, end=7))
    """
    if isinstance(split, Splitter):
        return split
    if split == "sentences":
        from conformal_retrievers.data.sentences.split import NAME, sentences_in

        return Splitter(NAME, sentences_in)
    if not callable(split):
        wrong = ValueError if isinstance(split, str) else TypeError
        raise wrong(f'split is {split!r:.80}; give "sentences" or a function from a text to ranges')
    name = getattr(split, "name", None)
    if name is None and isfunction(split) and "<lambda>" not in split.__qualname__:
        # With values of its own, one name could stand for several functions.
        name = None if split.__closure__ else f"{split.__module__}.{split.__qualname__}"
    if not isinstance(name, str) or not name:
        raise ValueError(say("split without a name", split=split))
    return Splitter(printable(name), split)


@dataclass(frozen=True)
class Sentences:
    """The sentences of the documents of a query, as ranges and as snippets."""

    documents: tuple[Snippet, ...]
    ranges: tuple[tuple[Range, ...], ...]  # for each document
    split: str  # the name of the splitter

    @column
    def snippets(self) -> tuple[Snippet, ...]:
        """One snippet for each sentence, in order: its document's hits, its own text, no embedding.

        `document` and `position` are those in the source that its document was cut from, if the
        document has an id too, so that sentences of neighbouring documents are neighbours. Else
        they are the document's id, or its number without one, and where the sentence starts in it.
        """
        snippets = []
        for number, (whole, ranges) in enumerate(zip(self.documents, self.ranges, strict=True)):
            source, first = _origin(number, whole)
            own = whole.retrieval_score, whole.hits
            for start, end in ranges:
                id = None if whole.id is None else f"{whole.id}:{start}"
                snippets.append(Snippet(whole.text[start:end], id, source, first + start, *own))
        return tuple(snippets)

    @column
    def document_of(self) -> NDArray[np.intp]:
        """The number of the document of each sentence (m,)."""
        return np.repeat(np.arange(len(self.ranges)), [len(ranges) for ranges in self.ranges])


def _origin(number: int, document: Snippet) -> tuple[str, int]:
    """Return a name of what a document's sentences are in, and where in it the document starts."""
    if None in (document.id, document.document, document.position):
        return str(number) if document.id is None else document.id, 0
    return str(document.document), document.position or 0


def cut(documents: Iterable[Snippet | str], split: Split) -> Sentences:
    """Return the sentences of documents; raise ValueError or TypeError if split is invalid.

    >>> cut(["One two. Three four.", "Five."], "sentences").ranges
    ((Range(start=0, end=8), Range(start=9, end=20)), (Range(start=0, end=5),))
    """
    find = splitter(split)
    cut_ones = tuple(as_snippets(documents, "documents"))
    return Sentences(cut_ones, tuple(find(d.text) for d in cut_ones), find.name)


@dataclass(frozen=True)
class Passage:
    """What is kept of a document: a text, and the ranges of the document that it consists of."""

    document: int
    text: str
    ranges: tuple[Range, ...]


def passages(sentences: Sentences, keeps: ArrayLike) -> list[Passage]:
    """Return the passage of each document that has a kept sentence, in the documents' order.

    Neighbouring sentences keep the text between them. " … " stands between others, on a line of its
    own if there is a line break between what it joins. A document whose sentences are all kept is
    unchanged. `keeps` has a truth value for each sentence (m,).

    >>> sentences = cut(["One two. Three four. Five six. Seven."], "sentences")
    >>> passages(sentences, [True, False, True, True])[0].text
    'One two. … Five six. Seven.'
    """
    kept, kept_passages = np.asarray(keeps, dtype=np.bool_), []
    for number, ranges in enumerate(sentences.ranges):
        own, kept = kept[: len(ranges)], kept[len(ranges) :]
        if own.any():
            text = sentences.documents[number].text
            runs = tuple(_indented(text, run) for run in _runs(ranges, own.tolist()))
            runs = (Range(0, len(text)),) if own.all() else runs
            kept_passages.append(Passage(number, _joined(text, runs), runs))
    return kept_passages


def with_neighbours(sentences: Sentences, keeps: ArrayLike, n: int) -> NDArray[np.bool_]:
    """Return keeps (m,) with n sentences on either side of each kept one, in its document.

    >>> sentences = cut(["One. Two. Three.", "Four. Five."], "sentences")
    >>> with_neighbours(sentences, [False, False, True, False, False], 1).tolist()
    [False, True, True, False, False]
    """
    kept = np.asarray(keeps, dtype=np.bool_)
    documents = sentences.document_of
    more: NDArray[np.bool_] = kept.copy()
    for step in range(1, min(n, max(map(len, sentences.ranges), default=0)) + 1):
        same = documents[step:] == documents[:-step]
        more[step:] |= kept[:-step] & same
        more[:-step] |= kept[step:] & same
    return more


def _runs(ranges: Sequence[Range], keeps: Iterable[bool]) -> Iterator[Range]:
    pairs: Iterable[tuple[Range, Any]] = zip(ranges, keeps, strict=True)
    for kept, run in groupby(pairs, key=lambda pair: pair[1]):
        if kept:
            own = [range for range, _ in run]
            yield Range(own[0].start, own[-1].end)


def _indented(text: str, run: Range) -> Range:
    """Return the range with the white space before it in its line, which code and lists need."""
    before = text[max(0, run.start - MAX_INDENT) : run.start]
    indent = len(before) - len(before.rstrip(" \t"))
    starts_line = indent == run.start or before[: len(before) - indent].endswith(("\n", "\r"))
    if not starts_line or before[len(before) - indent :] == " ":
        return run
    return Range(run.start - indent, run.end)


def _joined(text: str, runs: Sequence[Range]) -> str:
    parts = [text[runs[0].start : runs[0].end]]
    for before, after in pairwise(runs):
        between = text[before.end : after.start]
        one_line = between.splitlines() == [between]
        parts += [" … " if one_line else "\n…\n", text[after.start : after.end]]
    return "".join(parts)
