"""Documents cut into snippets: overlapping windows of text that keep sentences whole if they fit.

The windows follow Chakraborty et al. 2025 (arXiv 2511.17908, section 3.1): 500 characters,
overlapping by 100. Sentences follow Unicode (UAX #29) with two changes. A single line break is
white space, because text is often wrapped, and a blank line ends a sentence. An opening bracket or
quote belongs to the sentence that it opens. Characters are code points, as `len` counts them.
"""

from collections.abc import Iterator, Sequence

from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.extras import require

require("snippets", "regex")
import regex


def split_snippets(
    text: str, size: int = 500, overlap: int = 100, *, document: str | None = None
) -> list[Snippet]:
    """Return the windows of a text in order, with the `position` of their first character.

    White space between windows is dropped.

    >>> [window.text for window in split_snippets("One two. Three four.  Five six.", 22, 12)]
    ['One two. Three four.', 'Three four.  Five six.']

    Parameters
    ----------
    text
        The text to split.
    size
        The largest length of a window, in characters. A window has as many whole sentences as fit.
        A sentence that does not fit is cut between lines, else words, else visible characters.
    overlap
        How many characters a window may share with the one before: it begins with as many of its
        sentences as fit beside a new one; 0 ≤ overlap < size.
    document
        The name of the document, for the snippets' `document` and `id` ("<document>:<position>").

    Raises
    ------
    ValueError
        For an overlap that is negative or not below the size.
    """
    if not 0 <= overlap < size:
        raise ValueError(
            f"size is {size} and overlap is {overlap}; give an overlap of 0 or more and a larger "
            "size"
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
    first = new = 0  # the window's first unit, and the first unit that is in no window yet
    while new < len(units):
        start, end = units[first][0], units[new][1]
        new += 1
        while new < len(units) and units[new][1] - start <= size:
            end = units[new][1]
            new += 1
        yield start, end
        first = new
        # Going back ends before this window's first unit: the new unit is too far from that.
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
# After white space; between words without white space, but not before or within punctuation. Not
# between the letters of flags either: to pair them, \b and \X count back to the first of the run.
_WORD = regex.compile(r"\s+|(?<![\s\p{Ps}\p{Pi}\p{RI}])(?![\s\p{P}\p{M}\p{RI}])\b", regex.WORD)
_GRAPHEME = regex.compile(r"\p{RI}{2}[\p{GCB=Extend}\p{GCB=ZWJ}\p{GCB=SpacingMark}]*+|\X")
_CHARACTER = regex.compile(r".", regex.DOTALL)
_EVER_FINER = (_PARAGRAPH, _SENTENCE, _LINE, _WORD, _GRAPHEME, _CHARACTER)


def _units(text: str, start: int, end: int, size: int, level: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the units that are never cut: sentences, and pieces of sentences beyond `size`."""
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
