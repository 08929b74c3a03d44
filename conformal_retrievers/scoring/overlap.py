"""What a snippet shares with the query, from texts alone, without a model or a corpus.

    share = Σ weight(u) over the query's units u in the snippet / Σ weight(u) over all of them

Units are pairs of words that stand side by side in the snippet; stems, the first five letters of a
word, which forgive endings; and pieces, four letters of a word in a row, which forgive compounds
too and take longer. A word is letters, digits and their marks in lower case. Underscores part
words, as in names of code. Each Chinese or Japanese character is a word, since no spaces part
theirs; two words of one character are no pair, since many texts share them. English stop words of
the query do not count. Pairs weigh the same. A stem or piece weighs log(1 + (n − m + ½) / (m + ½))
if m of the query's n snippets have it, as a word does in BM25, and nothing if none has it. Alone
these shares are poor scores; `LearnedScorer` makes much of them.
"""

import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.scoring.scorer import Scores

Unit = Literal["pairs", "stems", "pieces"]
BITS = 14
RARE = 1 << 17  # Chinese characters from here on count as one
LAST = 1 << 18  # from here on are none
ALONE = 1 << 18  # added to a character that is a word
STOPS = (
    "a an and are as at be been by can did do does during for from had has have how in into is it "
    "its may no not of on or than that the then this to was were what when where which who whom "
    "whose why with"
)
STOP_WORDS = frozenset(STOPS.split())


def shares_of(
    query: str, texts: Sequence[str], *kinds: Unit, starts: Sequence[Sequence[str]] = ()
) -> list[Scores]:
    """Return which share of the query's units of each kind, by weight, each text has, (n,).

    Then, for each of `starts`, what the texts begin with, the share of stems that is there, among
    the starts; `kinds` have "stems" then.

    >>> shares_of("the red wine", ["White wine.", "Red wine!"], "stems", starts=[["White", "Red"]])
    [array([0.20825593, 1.        ]), array([0., 1.])]
    """
    words = asked(query)
    if not words or not texts:
        return [np.zeros(len(texts)) for _ in (*kinds, *starts)]
    units_of = [_units(kind, words) for kind in kinds]
    has = _has([unit for units in units_of for unit in units], texts)
    has_of = dict(zip(kinds, np.split(has, np.cumsum([*map(len, units_of)])[:-1]), strict=True))
    shares = [_share(kind, has) for kind, has in has_of.items()]
    for start in starts:
        # What a text lacks, its start does not have either.
        unit, text = has_of["stems"].nonzero()
        stems, read = units_of[kinds.index("stems")], in_words(start).decode().split("\0")[1:]
        there = np.zeros_like(has_of["stems"])
        pairs = zip(unit.tolist(), text.tolist(), strict=True)
        there[unit, text] = [stems[u] in read[i] for u, i in pairs]
        shares.append(_share("stems", there))
    return shares


def asked(query: str) -> list[str]:
    """Return the words of a query that count, in lower case.

    >>> asked("What is the Red_Wine?")
    ['red', 'wine']
    """
    return [w for w in in_words([query]).decode().split()[1:-1] if w not in STOP_WORDS]


def _share(kind: Unit, has: NDArray[np.bool_]) -> Scores:
    """Return which share of units, by weight, texts have, (n,), from whether they do (units, n)."""
    n, m = has.shape[1], has.sum(axis=1, keepdims=True)
    rare = np.log1p((n - m + 0.5) / (m + 0.5)) * (m > 0)
    weights = np.ones_like(rare) if kind == "pairs" else rare
    return np.asarray((weights * has).sum(axis=0) / (weights.sum() or 1.0))


def in_words(texts: Sequence[str]) -> bytes:
    """Return the words of texts in lower case, with spaces between words and " \\0 " around texts.

    >>> in_words(["Red wine!"]).split()
    [b'\\x00', b'red', b'wine', b'\\x00']
    """
    together = " \0 ".join(["", *texts, ""])
    if together.count("\0") > len(texts) + 1:
        together = " \0 ".join(["", *(text.replace("\0", " ") for text in texts), ""])
    if together.isascii():
        return together.encode().translate(_letters(256).astype(np.uint8).tobytes())
    codes = np.frombuffer(together.encode("utf-32-le", "surrogatepass"), "<u4")
    letters = _letters(RARE + 1).take(codes, mode="clip")
    letters[codes >= LAST] = ord(" ")
    alone = letters >= ALONE
    if alone.any():
        places = np.arange(len(letters)) + 2 * alone.cumsum() - alone
        spaced = np.full(places[-1] + 1, ord(" "), "<u4")  # it ends with a space
        spaced[places] = letters % ALONE
        letters = spaced
    return letters.tobytes().decode("utf-32-le").encode()


words_once = lru_cache(maxsize=4)(in_words)  # for those who compare the texts of a query


@cache
def _letters(n: int) -> NDArray[np.uint32]:
    """Return what the first n characters count as: a lower-case letter, mark or digit, or a space.

    `ALONE` is added where it is a word of its own.
    """
    letters = np.full(n, ord(" "), "<u4")
    letters[0] = 0  # stands between texts
    for i, c in enumerate(map(chr, range(n))):
        of_emoji = "\ufe00" <= c <= "\ufe0f"
        if c.isalnum() or (unicodedata.category(c) in ("Mn", "Mc") and not of_emoji):
            alone = "\u3040" <= c <= "\u30ff" or "\u3400" <= c <= "\u9fff" or i == RARE
            letters[i] = ord("σ" if c == "ς" else c.lower()[0]) + alone * ALONE
    return letters


def _units(unit: Unit, words: Sequence[str]) -> list[str]:
    """Return the query's units as they stand in a text of words with spaces around each."""
    if unit == "pairs":
        units = {f" {word} {other} " for word, other in pairwise(words) if len(word + other) > 2}
    elif unit == "stems":
        units = {f" {word[:5]}" for word in words}
    else:  # a word of fewer letters is a piece with the spaces around it
        units = {w[i : i + 4] for w in words for i in range(len(w) - 3)}
        units |= {f" {word} " for word in words if len(word) < 4}
    return sorted(units)


def _has(units: Sequence[str], texts: Sequence[str]) -> NDArray[np.bool_]:
    """Return which units the texts have, (units, n)."""
    letters = np.frombuffer(words_once(tuple(texts)), np.uint8)
    word = letters != ord(" ")
    letters = letters[1:][word[1:] | word[:-1]]  # one space between words
    joined, ends = letters.tobytes(), np.flatnonzero(letters == 0)
    n = len(joined) - 3
    fours = np.ndarray(n, np.uint32, joined, strides=1)
    # A text without the first, middle or last four bytes of a unit does not have it.
    encoded = [unit.encode().ljust(4) for unit in units]
    parts = b"".join([u[i : i + 4] for u in encoded for i in (0, len(u) // 2 - 2, len(u) - 4)])
    of_units = np.frombuffer(parts, np.uint32)
    known, marked = np.unique(of_units), np.zeros(1 << BITS, np.bool_)
    marked[_marks(known)] = True
    # By every fourth place: numpy is slow where numbers do not begin at multiples of their size.
    every = [np.frombuffer(joined, np.uint32, (n + 3 - i) // 4, i) for i in range(4)]
    marks = [4 * np.flatnonzero(marked.take(_marks(some))) + i for i, some in enumerate(every)]
    places = np.concatenate(marks)
    which = known.searchsorted(fours[places])
    same = known.take(which, mode="clip") == fours[places]
    seen = np.zeros((len(known), len(texts)), np.bool_)
    seen[which[same], ends.searchsorted(places[same]) - 1] = True
    has = seen[known.searchsorted(of_units)].reshape(len(units), 3, len(texts)).all(axis=1)
    lengths = np.array([len(unit.encode()) for unit in units]).reshape(-1, 1)
    has |= lengths < 4
    unsure, each = (has & (lengths != 4)).nonzero(), joined.decode().split("\0")[1:]
    pairs = zip(unsure[0].tolist(), unsure[1].tolist(), strict=True)
    has[unsure] = [units[u] in each[i] for u, i in pairs]
    return has


def _marks(fours: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return a number of so many `BITS` for each four bytes, which few others have."""
    return np.asarray(fours * np.uint32(2654435761) >> np.uint32(32 - BITS))
