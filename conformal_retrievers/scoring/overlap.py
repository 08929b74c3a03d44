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
from itertools import pairwise
from math import log1p
from typing import ClassVar, Literal, get_args

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.data.hits import texts_in
from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.scoring.scorer import Scores

Unit = Literal["words", "pairs", "stems", "pieces"]
WORD = re.compile(r"\w+")
SPACES = "".join(c if WORD.match(c) else " " for c in map(chr, range(128)))
STOP_WORDS = frozenset(
    WORD.findall(
        "a an and are as at be been by can did do does during for from had has have how in into "
        "is it its may no not of on or than that the then this to was were what when where which "
        "who whom whose why with"
    )
)


@dataclass(frozen=True)
class OverlapScorer:
    """Scores by how much of the query the snippet has, in words, pairs, stems or pieces of words.

    >>> scorer = OverlapScorer("words")
    >>> scorer.score("the red wine", ["White wine.", "Red wine!", "the water"])
    array([-0.5, -1. , -0. ])
    """

    unit: Unit
    relative_to_query: ClassVar[bool] = True  # by the weights of stems and pieces

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            raise ValueError(f"unit is {self.unit!r}; give one of {', '.join(get_args(Unit))}")

    @property
    def name(self) -> str:
        """The unit."""
        return f"overlap({self.unit})"

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What `scorer_of` makes it from."""
        return {"kind": "overlap", "unit": self.unit}

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Return the score of each snippet, from −1 to 0, (n,)."""
        words = tuple(word for word in _joined(query).split() if word not in STOP_WORDS)
        texts, places = _searched(words, tuple(texts_in(as_snippets(snippets))))
        n, total = len(texts), 0.0
        shared = [0.0] * n
        for unit in self._asked(words):  # a text has a unit only if it has the first stem
            among = range(n) if self.unit == "pieces" else places[f" {unit.split()[0][:5]}"]
            if self.unit != "stems":
                among = [i for i in among if unit in texts[i]]
            weight, m = 1.0, len(among)
            if self.unit in ("stems", "pieces"):
                weight = log1p((n - m + 0.5) / (m + 0.5)) if m else 0.0
            total += weight
            for i in among:
                shared[i] += weight
        return -np.array(shared) / (total or 1.0)

    def _asked(self, words: Sequence[str]) -> list[str]:
        """Return the query's units as they stand in a text of words with spaces around each."""
        units = {f" {word} " for word in words}
        if self.unit == "pairs":
            units = {f" {one} {other} " for one, other in pairwise(words)}
        if self.unit == "stems":
            units = {f" {word[:5]}" for word in words}
        if self.unit == "pieces":  # a word of fewer letters is a piece with the spaces around it
            units = {w[i : i + 4] for w in words for i in range(len(w) - 3)}
            units |= {f" {word} " for word in words if len(word) < 4}
        return sorted(units)


STEMS = OverlapScorer("stems")  # says most of what the others do
# Those that a file may name: they need nothing but the texts.
OVERLAPS = {scorer.name: scorer for scorer in map(OverlapScorer, get_args(Unit))}


@lru_cache(4096)  # each unit reads the same texts, and a chunk comes back for other queries
def _joined(text: str) -> str:
    """Return the words of a text in lower case, with a space around each."""
    lower = text.lower()
    words = lower.translate(SPACES).split() if lower.isascii() else WORD.findall(lower)
    return f" {' '.join(words)} "


@lru_cache(4)  # words, pairs and stems of a query begin alike
def _searched(
    words: tuple[str, ...], texts: tuple[str, ...]
) -> tuple[list[str], dict[str, list[int]]]:
    """Return the joined texts, and by the stem of each word, a space before it, where it is."""
    joined, stems = [*map(_joined, texts)], {f" {word[:5]}" for word in words}
    return joined, {stem: [i for i, text in enumerate(joined) if stem in text] for stem in stems}
