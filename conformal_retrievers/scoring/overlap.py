"""What a snippet shares with the query: scores from texts alone, without a model or a corpus.

    score = −Σ weight(u) over the query's units u in the snippet / Σ weight(u) over all of them

Units are words; pairs of words that stand side by side in the snippet; and pieces, four letters of
a word in a row, which forgive endings. English stop words of the query do not count. Words and
pairs weigh the same. A piece weighs log(1 + (n − m + ½) / (m + ½)) if m of the query's n snippets
have it, as a word does in BM25, and nothing if none has it. Alone these scores are poor;
`LearnedScorer` makes much of them.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.data.hits import texts_in
from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.scoring.scorer import Scores

Unit = Literal["words", "pairs", "pieces"]
WORD = re.compile(r"\w+")
STOP_WORDS = frozenset(
    WORD.findall(
        "a an and are as at be been by can did do does during for from had has have how in into "
        "is it its may no not of on or than that the then this to was were what when where which "
        "who whom whose why with"
    )
)


@dataclass(frozen=True)
class OverlapScorer:
    """Scores by how much of the query the snippet has, in words, pairs or pieces of words.

    >>> scorer = OverlapScorer("words")
    >>> scorer.score("the red wine", ["White wine.", "Red wine!", "the water"])
    array([-0.5, -1. , -0. ])
    """

    unit: Unit
    relative_to_query: ClassVar[bool] = True  # by the weights of pieces

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
        asked = self._asked([w for w in _words(query) if w not in STOP_WORDS])
        texts = texts_in(as_snippets(snippets))
        shared = [self._shared(asked, _words(text)) for text in texts]
        n, having = len(shared), Counter(unit for units in shared for unit in units)
        weights = dict.fromkeys(asked, 1.0)
        if self.unit == "pieces":
            weights = {u: math.log1p((n - m + 0.5) / (m + 0.5)) for u, m in having.items()}
        whole = math.fsum(weights.values()) or 1.0
        return np.array([-math.fsum(weights[u] for u in units) / whole for units in shared])

    def _asked(self, words: Sequence[str]) -> set[Any]:
        if self.unit == "words":
            return set(words)
        if self.unit == "pairs":
            return set(pairwise(words))
        # A word of fewer letters is a piece with the spaces around it.
        padded = [word if len(word) > 3 else f" {word} " for word in words]
        return {w[i : i + 4] if w[0] != " " else w for w in padded for i in range(len(w) - 3)}

    def _shared(self, asked: set[Any], words: Sequence[str]) -> set[Any]:
        if self.unit == "pieces":
            text = f" {' '.join(words)} "
            return {piece for piece in asked if piece in text}
        return asked.intersection(words if self.unit == "words" else pairwise(words))


# Those that a file may name: they need nothing but the texts.
OVERLAPS = {scorer.name: scorer for scorer in map(OverlapScorer, get_args(Unit))}


@lru_cache(4096)  # each unit reads the same texts, and a chunk comes back for other queries
def _words(text: str) -> tuple[str, ...]:
    return tuple(WORD.findall(text.lower()))
