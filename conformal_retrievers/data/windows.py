"""Documents to snippets: overlapping windows of text that keep sentences whole where they fit.

The windows of Chakraborty et al. 2025 (arXiv 2511.17908, section 3.1): 500 characters, overlapping
by 100. Sentences are those of Unicode (UAX #29), tailored in two places: a single line break is
white space, since text is often wrapped, and a blank line ends a sentence; an opening bracket or
quote belongs to the sentence that it opens. Characters are code points, as `len` counts them.

The rules are written here because the segmenters that are to be had (semantic-text-splitter,
uniseg, pysbd) end a sentence at every line break, and so cut sentences that fit into a window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.extras import require

require("snippets", "regex")
import regex


def split_snippets(
    text: str, size: int = 500, overlap: int = 100, *, document: str | None = None
) -> list[Snippet]:
    """Return the windows of a text, in order, at most `size` characters long.

    A window is as many whole sentences as fit, and begins with as many of the last window's as fit
    into `overlap` characters beside a new one; a sentence that fits into a window stands whole in
    one. A longer one is cut between lines, else words, else what a reader sees as characters. White
    space between windows is dropped. `position` is the window's first character in `text`, and `id`
    is "<document>:<position>" where the document is named. Raises ValueError unless
    0 ≤ overlap < size.
    """
    if not 0 <= overlap < size:
        raise ValueError(
            f"size is {size} and overlap is {overlap}; a window must be longer than what it shares "
            "with the next, and neither is negative"
        )
    units = list(_units(text, 0, len(text), size))
    return [
        Snippet(
            text[start:end],
            id=None if document is None else f"{document}:{start}",
            document=document,
            position=start,
        )
        for start, end in _windows(units, size, overlap)
    ]


def _windows(
    units: Sequence[tuple[int, int]], size: int, overlap: int
) -> Iterator[tuple[int, int]]:
    first = new = 0  # the window's first unit, and the first that no window holds yet
    while new < len(units):
        start, end = units[first][0], units[new][1]
        new += 1
        while new < len(units) and units[new][1] - start <= size:
            end = units[new][1]
            new += 1
        yield start, end
        first = new
        # Ends after this window's first unit, from which the new one was too far.
        while (
            new < len(units)
            and end - units[first - 1][0] <= overlap
            and units[new][1] - units[first - 1][0] <= size
        ):
            first -= 1


# --- where text may be cut ------------------------------------------------------------------------

_MARKS = r"[\p{SB=Extend}\p{SB=Format}]*+"  # rule SB5: they belong to the character before
_TERM = r"[\p{SB=STerm}\p{SB=ATerm}]"
_SENTENCE = regex.compile(
    rf"""
    (?: \p{{SB=STerm}} {_MARKS}
      | \p{{SB=ATerm}} {_MARKS}
        (?! \p{{SB=Numeric}} )  # SB6: 3.4; then SB7: U.S.
        (?! (?<= [\p{{SB=Upper}}\p{{SB=Lower}}] {_MARKS} \p{{SB=ATerm}} {_MARKS} ) \p{{SB=Upper}} )
        (?= (?: \p{{SB=Close}} {_MARKS} )*+ (?: [\p{{SB=Sp}}\s] {_MARKS} )*+  # SB8: etc. and
            (?! [^\p{{SB=OLetter}}\p{{SB=Upper}}\p{{SB=Lower}}{_TERM}]*+ \p{{SB=Lower}} ) )
    )
    (?: (?: [\p{{SB=Close}}--\p{{Ps}}--\p{{Pi}}] | \p{{Pi}}(?!\w) ) {_MARKS} )*+  # SB9: „Gut.“
    (?: [\p{{SB=Sp}}\s] {_MARKS} )*+  # SB10, SB11
    (?! [\p{{SB=SContinue}}{_TERM}] )  # SB8a
    """,
    regex.VERSION1 | regex.VERBOSE,
)
_LINE = regex.compile(r"(?>\r\n|[\n\r\x85\u2028])")
_PARAGRAPH = regex.compile(rf"{_LINE.pattern}\s*?{_LINE.pattern}\s*|[\f\u2029]\s*")
# After white space; between words that none separates, but not before or within punctuation. Not at
# the letters that make flags, either: to pair them, \b and \X count back to the first of the run.
_WORD = regex.compile(r"\s+|(?<![\s\p{Ps}\p{Pi}\p{RI}])(?![\s\p{P}\p{M}\p{RI}])\b", regex.WORD)
_GRAPHEME = regex.compile(r"\p{RI}{2}[\p{GCB=Extend}\p{GCB=ZWJ}\p{GCB=SpacingMark}]*+|\X")
_CHARACTER = regex.compile(r".", regex.DOTALL)
_EVER_FINER = (_PARAGRAPH, _SENTENCE, _LINE, _WORD, _GRAPHEME, _CHARACTER)


def _units(text: str, start: int, end: int, size: int, level: int = 0) -> Iterator[tuple[int, int]]:
    """Yield what is never cut: sentences, and of those longer than `size` the finer pieces."""
    start, end = _stripped(text, start, end)
    if start >= end:
        return
    if level >= 2 and end - start <= size:
        yield start, end
        return
    for boundary in _EVER_FINER[level].finditer(text, start, end):
        yield from _units(text, start, boundary.end(), size, level + 1)
        start = boundary.end()
    yield from _units(text, start, end, size, level + 1)


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    piece = text[start:end]
    return end - len(piece.lstrip()), start + len(piece.rstrip())


# --- gold spans -----------------------------------------------------------------------------------


def relevant_windows(
    text: str,
    windows: Iterable[Snippet],
    spans: Iterable[tuple[int, int]],
    *,
    share: float = 1.0,
) -> tuple[bool, ...]:
    """Return which windows of a text are relevant: those that hold a gold span of it.

    A span is (start, end) in characters of `text`, as in text[start:end]; white space at its ends
    does not count. A window holds it with at least `share` of its characters, by default all. With
    all windows of the text and a share of 1, a span within a sentence that fits is always held.
    Raises ValueError for a span that no window holds, such as one across sentences and longer than
    the overlap, since it would be lost; for one outside the text or blank; for a window that is not
    at its position in the text; and unless 0 < share ≤ 1.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; give the part of a span to be held, above 0 up to 1")
    places = [_place(text, i, window) for i, window in enumerate(windows)]
    relevant = [False] * len(places)
    lost = []
    for span in spans:
        start, end = _checked_span(text, span)
        held = [
            min(end, right) - max(start, left) >= share * (end - start) for left, right in places
        ]
        if not any(held):
            lost.append(span)
        relevant = [r or h for r, h in zip(relevant, held, strict=True)]
    if lost:
        raise ValueError(
            f"no window holds {len(lost)} of the spans, such as {lost[0]}; give all windows of the "
            "text, split it with a longer overlap, or accept a part with share="
        )
    return tuple(relevant)


def _place(text: str, i: int, window: Snippet) -> tuple[int, int]:
    start = window.position
    if start is None or start < 0 or text[start : start + len(window.text)] != window.text:
        raise ValueError(
            f"windows[{i}] is not in the text at its position {start}; give windows of this text, "
            "as split_snippets returns them"
        )
    return start, start + len(window.text)


def _checked_span(text: str, span: tuple[int, int]) -> tuple[int, int]:
    start, end = span
    if not 0 <= start <= end <= len(text) or not text[start:end].strip():
        raise ValueError(
            f"spans holds {span}, which is blank or outside the text of {len(text)} characters; "
            "give (start, end) in characters of the text, not bytes"
        )
    return _stripped(text, start, end)
