"""Text cut into sentences, and into code, tables and lists, which stay whole.

`sentencex` finds where sentences end. It comes as close to marked sentences as the rules of Unicode
(UAX #29) or closer, F1 0.98 against 0.96 on Wikipedia (benchmarks/results/segmenters.md).
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from importlib.metadata import version
from itertools import chain
from typing import Any

from conformal_retrievers.data.sentences.markdown_blocks import UNITS, blocks
from conformal_retrievers.extras import require

require("text", "regex", "sentencex")
import regex
import sentencex

LIMIT = 1000  # characters of a sentence; a longer one is cut
RULES = 3  # the version of what is done beside sentencex, here and in markdown_blocks.py
NAME = f"sentences(rules {RULES}, sentencex {version('sentencex')}, at most {LIMIT})"


def sentences_in(text: str, language: str = "en") -> Iterator[tuple[int, int]]:
    """Yield the range of each sentence of a text, and of each unit that is not cut.

    A sentence beyond `LIMIT` is cut between lines, else words, else visible characters. `language`
    is the code, as sentencex has it, of the language whose abbreviations do not end a sentence.
    Most scripts need none; Greek questions need "el", and Thai, where only . and ? end a sentence,
    a function of yours. `split=german` cuts by another one:

    >>> list(sentences_in("Am 3. Mai kam er. Er blieb."))
    [(0, 6), (6, 18), (18, 27)]
    >>> def german(text: str) -> Iterator[tuple[int, int]]:
    ...     return sentences_in(text, "de")
    >>> german.name = f"german {NAME}"
    >>> list(german("Am 3. Mai kam er. Er blieb."))
    [(0, 18), (18, 27)]
    """
    for start, end, kind in blocks(text):
        if kind in UNITS or (kind == "item" and end - start <= LIMIT):
            yield start, end
            continue
        for first, last in _sentences(text, start, end, language):
            if last - first <= LIMIT:
                yield first, last
            else:
                yield from _packed(pieces(text, first, last, LIMIT), LIMIT)


def pieces_in(text: str, size: int) -> Iterator[tuple[int, int]]:
    """Yield the same with as small pieces as can be of what is longer than the size."""
    for start, end, kind in blocks(text):
        whole = kind in UNITS or kind == "item"
        for unit in [(start, end)] if whole else _sentences(text, start, end):
            yield from pieces(text, *unit, size)


# --- sentences ------------------------------------------------------------------------------------

_WINDOW, _CONTEXT = 1000, 50  # sentencex takes quadratic time for text without spaces
_LETTER = regex.compile(r"\p{L}")
_LONE_SURROGATE = regex.compile(r"[\ud800-\udfff]")
# "os.path", "3.0.*", "H2A.Z", "System.Net"; but texts may lack the space after "well.Then".
_INSIDE_WORD = regex.compile(
    r"(?<=[\p{L}\p{N}]\.)(?=[\p{Ll}\p{N}_*])|(?<=\p{Lu}\.)(?=\p{L})|(?<=\p{Lu}\p{L}*\.)(?=\p{Lu})"
    r"|(?<=\p{N}．)(?=\p{N})"
)
# "です。2020年" and "很贵！iPhone", where sentencex sees no end; but not in a quotation.
_WIDE_STOP = regex.compile(r"(?<=(?<![「『（(“‘][^」』）)”’]{0,200})[。！？｡])(?=[\p{Ll}\p{N}])")
_OPENING = regex.compile(r"""(?<=\s)[\p{Ps}\p{Pi}"']+\Z""")  # of the next sentence


def _sentences(text: str, start: int, end: int, language: str = "en") -> Iterator[tuple[int, int]]:
    """Yield the ranges of sentences, each with the white space behind it."""
    before, lettered = start, None
    wide = (stop.end() for stop in _WIDE_STOP.finditer(text, start, end))
    for boundary in merge(_boundaries(text, start, end, language), wide):
        lettered = lettered or _LETTER.search(text, before, boundary)  # "1." is not a sentence
        before = boundary
        if not lettered or _INSIDE_WORD.match(text, boundary):
            continue
        if not text[boundary - 1].isspace():
            opening = _OPENING.search(text, max(start + 1, boundary - 3), boundary)
            boundary = opening.start() if opening else boundary
        yield start, boundary
        start, lettered = boundary, None
    yield start, end


def _boundaries(text: str, start: int, end: int, language: str) -> Iterator[int]:
    size = _WINDOW
    while start + size < end:
        sentences = _read(language, text[start : start + size])
        ends = [start + sentence["end_index"] for sentence in sentences]
        ends = [boundary for boundary in ends if boundary <= start + size - _CONTEXT]
        yield from ends
        start, size = (ends[-1], _WINDOW) if ends else (start, 2 * size)
    for sentence in _read(language, text[start:end])[1:]:
        yield start + sentence["start_index"]


def _read(language: str, part: str) -> Any:
    return sentencex.get_sentence_boundaries(language, _LONE_SURROGATE.sub("\ufffd", part))


# --- what is too long -----------------------------------------------------------------------------

Cuts = Callable[[str, int, int], Iterable[int]]  # of a range of a text


def _behind(pattern: str, flags: int = 0) -> Cuts:
    compiled = regex.compile(pattern, flags)
    return lambda text, start, end: (match.end() for match in compiled.finditer(text, start, end))


_EVER_FINER: tuple[Cuts, ...] = (
    lambda text, start, end: (),
    _behind(r"(?>\r\n|[\n\r\x85\u2028])"),
    lambda text, start, end: (last for _, last in _sentences(text, start, end)),
    # After white space; between words without white space, but not before or within punctuation.
    # Not between the letters of flags: to pair them, \b and \X count back to the first of the run.
    _behind(r"\s+|(?<![\s\p{Ps}\p{Pi}\p{RI}])(?![\s\p{P}\p{M}\p{RI}])\b", regex.WORD),
    _behind(r"\p{RI}{2}[\p{GCB=Extend}\p{GCB=ZWJ}\p{GCB=SpacingMark}]*+|\X"),
    _behind(r".", regex.DOTALL),
)


def pieces(text: str, start: int, end: int, size: int, level: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the range if it fits, else its lines, else their sentences, words and characters."""
    for cut in chain(_EVER_FINER[level](text, start, end), (end,)):
        first, last = _stripped(text, start, cut)
        start = cut
        if last - first > size:
            yield from pieces(text, first, last, size, level + 1)
        elif first < last:
            yield first, last


def _packed(ranges: Iterable[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """Yield as many neighbours as fit as one."""
    start = end = -1
    for first, last in ranges:
        if start >= 0 and last - start > size:
            yield start, end
            start = -1
        start, end = first if start < 0 else start, last
    yield start, end


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    piece = text[start:end]
    return end - len(piece.lstrip()), start + len(piece.rstrip())
