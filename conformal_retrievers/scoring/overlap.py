"""What a snippet shares with the query: scores from texts alone, without a model or a corpus.

    score = −Σ weight(u) over the query's units u in the snippet / Σ weight(u) over all of them

Units are words; pairs of words that stand side by side in the snippet; stems, the first five
letters of a word, which forgive endings; and pieces, four letters of a word in a row, which forgive
compounds too and take longer. English stop words of the query do not count. Words and pairs weigh
the same. A stem or piece weighs log(1 + (n − m + ½) / (m + ½)) if m of the query's n snippets have
it, as a word does in BM25, and nothing if none has it. Alone these scores are poor; `LearnedScorer`
makes much of them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.hits import texts_in
from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.scoring.scorer import Rebuilt, Scores

Unit = Literal["words", "pairs", "stems", "pieces"]
TOGETHER: tuple[Unit, ...] = ("stems", "pairs", "pieces")  # what a learned score asks for
WORD = re.compile(r"\w+")
SPACES = "".join(c if WORD.match(c) else " " for c in map(chr, range(128)))
MARKS = 16381  # that a text may have: two kilobytes of bits, and a prime, which mixes them
STOP_WORDS = frozenset(
    WORD.findall(
        "a an and are as at be been by can did do does during for from had has have how in into "
        "is it its may no not of on or than that the then this to was were what when where which "
        "who whom whose why with"
    )
)


@dataclass(frozen=True)
class OverlapScorer(Rebuilt):
    """Scores by how much of the query the snippet has, in words, pairs, stems or pieces of words.

    >>> scorer = OverlapScorer("words")
    >>> scorer.score("the red wine", ["White wine.", "Red wine!", "the water"])
    array([-0.5, -1. , -0. ])
    """

    unit: Unit
    kind: ClassVar[str] = "overlap"
    relative_to_query: ClassVar[bool] = True  # by the weights of stems and pieces

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise ValueError(f"unit is {self.unit!r}; give one of {', '.join(get_args(Unit))}")

    @property
    def name(self) -> str:
        """The unit."""
        return f"overlap({self.unit})"

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Return the score of each snippet, from −1 to 0, (n,)."""
        words = tuple(word for word in _read(query)[0].split() if word not in STOP_WORDS)
        texts = tuple(texts_in(as_snippets(snippets)))
        kinds = TOGETHER if self.unit in TOGETHER else (self.unit,)
        return -_shares(kinds, words, texts)[self.unit] if words and texts else np.zeros(len(texts))

    async def ascore(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Return what `score` returns; a thread would cost more."""
        return self.score(query, snippets)


# Those that a file may name: they need nothing but the texts.
OVERLAPS = {scorer.name: scorer for scorer in map(OverlapScorer, get_args(Unit))}


@lru_cache(4096)  # a chunk comes back for other queries
def _read(text: str) -> tuple[str, bytes]:
    """Return the words of a text in lower case with a space around each, and what marks it."""
    lower = text.lower()
    words = lower.translate(SPACES).split() if lower.isascii() else WORD.findall(lower)
    joined, marks = f" {' '.join(words)} ", np.zeros(MARKS, np.bool_)
    marks[_marks(joined.encode())] = True
    return joined, np.packbits(marks, bitorder="little").tobytes()


def _marks(encoded: bytes) -> NDArray[np.uint32]:
    """Return a number below `MARKS` for each four bytes in a row."""
    fours = np.ndarray(max(len(encoded) - 3, 0), np.uint32, encoded, strides=1)
    return np.asarray(fours % np.uint32(MARKS))


def _units(unit: Unit, words: Sequence[str]) -> list[str]:
    """Return the query's units as they stand in a text of words with spaces around each."""
    units = {f" {word} " for word in words}
    if unit == "pairs":
        units = {f" {word} {other} " for word, other in pairwise(words)}
    if unit == "stems":
        units = {f" {word[:5]}" for word in words}
    if unit == "pieces":  # a word of fewer letters is a piece with the spaces around it
        units = {w[i : i + 4] for w in words for i in range(len(w) - 3)}
        units |= {f" {word} " for word in words if len(word) < 4}
    return sorted(units)


@lru_cache(4)
def _shares(
    kinds: tuple[Unit, ...], words: tuple[str, ...], texts: tuple[str, ...]
) -> dict[Unit, Scores]:
    """Return which share of the units of each kind, by weight, each text has, (n,)."""
    units_of = {kind: _units(kind, words) for kind in kinds}
    units = [*chain(*units_of.values())]
    joined, packed = zip(*map(_read, texts), strict=True)
    marks = np.frombuffer(b"".join(packed), np.uint8).reshape(len(texts), -1)
    # A text that lacks a mark of a unit's beginning, middle or end does not have the unit.
    padded = [unit.encode().ljust(4) for unit in units]
    parts = [u[i : i + 4] for u in padded for i in (0, len(u) // 2 - 2, len(u) - 4)]
    at = _marks(b"".join(parts))[::4]
    marked = marks[:, at >> 3] >> (at & 7) & 1
    has = (marked[:, ::3] & marked[:, 1::3] & marked[:, 2::3]) > 0
    has |= [len(unit) < 4 for unit in units]
    has[has] = [units[u] in joined[i] for i, u in np.argwhere(has).tolist()]
    has = has.T.copy()  # unit by unit: no score depends on another, even in its last bit
    n, m = len(texts), has.sum(axis=1, keepdims=True)
    rare = np.log1p((n - m + 0.5) / (m + 0.5)) * (m > 0)
    shares, last = dict[Unit, Scores](), 0
    for kind, own in units_of.items():
        first, last = last, last + len(own)
        weights = rare[first:last] if kind in ("stems", "pieces") else np.ones((len(own), 1))
        shares[kind] = (weights * has[first:last]).sum(axis=0) / (weights.sum() or 1.0)
    return shares
