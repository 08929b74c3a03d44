"""How much a snippet resembles those of its query that look relevant: pseudo-relevance feedback.

Relevant snippets resemble each other in what the query does not say, such as the name that answers
it (Rocchio 1971). With v_i the vector of snippet i, of length 1, whose entry for a word is

    (1 + log count) · log(1 + (n − m + ½) / (m + ½))    0 for the words of the query

if m of the n snippets have it, and x_i a score that is at hand, lower = more relevant,

    feedback_i = Σ_{j≠i} w_j v_i·v_j / Σ_{j≠i} w_j,   w_j = exp(−3 (x_j − min x)), at least 2⁻²⁰

No model and no corpus is needed. Words count by their first eight bytes: what is longer has its
endings forgiven.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.scoring.overlap import in_words, words_once
from conformal_retrievers.scoring.scorer import Scores

EXACT = 2.0**40  # multiples of its inverse have sums that do not depend on their order
FACTOR = 0x9E3779B97F4A7C15  # 2⁶⁴ / golden ratio, odd (Knuth, 6.4)
MASKS = np.array([2 ** (8 * n) - 1 for n in range(9)], np.uint64)  # of the first n bytes of eight


def feedback(query: str, texts: Sequence[str], scores: Scores) -> Scores:
    """Return how much each text resembles the others, above all those of low scores, (n,).

    >>> texts = ["Paris is on the Seine.", "the Seine in Paris", "a red wine"]
    >>> feedback("where is it", texts, np.array([0.0, 1.0, 1.0])).round(2)
    array([0.2 , 0.39, 0.  ])
    """
    n = len(texts)
    read = in_words([query])[:-3] + words_once(tuple(texts)) + bytes(8)
    edges = np.flatnonzero(np.diff(np.frombuffer(read, np.uint8)[:-7] != ord(" "))) + 1
    eights, start = np.ndarray(len(read) - 7, "<u8", read, strides=1), edges[:-1:2]
    keys = eights[start] & MASKS[(edges[1::2] - start).clip(max=8)]
    words = np.flatnonzero(keys != 0)  # what is between texts is 0
    row = (keys == 0).cumsum()[words] - 2  # −1 for the query
    term, own = last_equal(keys[words]), np.count_nonzero(row < 0)
    row, word = row[own:], term[own:]
    count = np.bincount(last_equal((row * len(term) + word).astype(np.uint64)))
    once = np.flatnonzero(count > 0)
    count, text, word = count[once], row[once], word[once]
    m = np.arange(n + 1)
    rare = np.log1p((n - m + 0.5) / (m + 0.5))[np.bincount(word, minlength=len(term))]
    rare[term[:own]] = 0.0
    v = (1 + np.log(count)) * rare[word]
    v /= np.sqrt(np.bincount(text, v * v, n))[text].clip(1e-300)
    # No weight is so small that what is rounded off counts beside it.
    w = np.rint(np.exp(3 * (scores.min(initial=np.inf) - scores)).clip(2.0**-20) * EXACT) / EXACT
    parts = np.rint(v * w[text] * EXACT) / EXACT
    of_others = np.bincount(word, parts, len(term))[word] - parts
    # Where a divisor is 0, what it divides is 0, too.
    return np.asarray((np.bincount(text, v * of_others, n) / (w.sum() - w).clip(1e-300)).round(5))


def last_equal(keys: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return the place of the last key that equals each, (n,): by hashing, which sorts nothing.

    >>> last_equal(np.array([7, 5, 7], np.uint64))
    array([2, 1, 2])
    """
    bits, factor = len(keys).bit_length() + 1, FACTOR
    table, last = np.empty(1 << bits, np.intp), np.empty(len(keys), np.intp)
    left, own = np.arange(len(keys)), keys
    while len(left):  # each time at least one more, by another hash
        slots = (own * np.uint64(factor) >> np.uint64(64 - bits)).astype(np.intp)
        table[slots] = left
        last[left] = there = table[slots]
        missed = np.flatnonzero(keys[there] != own)
        left, own = left[missed], own[missed]
        factor = factor * FACTOR % 2**64
    return last
