"""The features of a snippet: where it stands among those of its query, and in its document.

With x a retriever's score, lower = more relevant, in a list of k snippets, or log(1 + rank) if its
hits have no scores,

    z-score       (x − mean) / sd − log(50 / k), the last term for k < 50 only if it was found
    best z-score  the lowest of the retrievers that found the snippet
    gap to best   (x − min) / sd
    log rank      log(1 + rank), from 0
    found         1, or 0 if the retriever did not find the snippet: then it has the worst x and
                  is behind the last

Mean and sd are those of the list. Where the scores of a collection fall exponentially, as they
nearly do, the best k of 50 are log(50 / k) standard deviations above the mean of the 50, and
spread as much. So a short list, as metadata filters give, has the z-scores that its snippets would
have in a list of 50, and a threshold keeps its best. Scores on any affine scale give the same
features, and so do a cosine and the distance 1 − cosine of the same vectors.

The words of `overlap.py` that a snippet shares with the query, as a whole, in its first line and in
what may be its title, and how much it resembles those that look relevant (`feedback.py`), have
z-scores, too: less log(50 / n) / 2 among n < 50 snippets, since the best of a retriever have more
of the query's words than what it ranks behind them, but not as clearly as they have better scores.
Not so among sentences, of which a text has few or many. A snippet's length is compared with the
mean of the others. In feedback and documents, a snippet is compared by the mean of its z-scores. No
feature depends on the order of the snippets.
"""

import re
from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.snippets import Retrieved
from conformal_retrievers.scoring.hit_features import Known, Sources, Values, numbers_of
from conformal_retrievers.scoring.learned.feedback import feedback
from conformal_retrievers.scoring.learned.layout import Layout, layout_of
from conformal_retrievers.scoring.overlap import Unit, shares_of

GIVEN = "scorer's "  # begins the name of a feature of a scorer
DEPTH = 50  # of the lists in which z-scores mean the same
OF_WORDS = 0.5  # of log(50 / n), how much better the words of a short list are
OF_SCORERS = ("z-score", "gap to best", "log rank")
OF_RETRIEVERS = (*OF_SCORERS, "found")
WORDS = ("stems", "pieces", "first line", "title", "pairs")
LINE, TITLE = 200, 100  # letters at most
TITLE_ENDS = re.compile("[.:!?。：！？]")
OF_SNIPPETS = ("best z-score", *WORDS, "length", "feedback", "intercept")
OF_DOCUMENTS = ("best of document", "mean of document", "size of document")
STEPS = {"two before": -2, "before": -1, "after": 1, "two after": 2}
OF_PLACES = (*STEPS, "place", "first", "last")


class Column(NamedTuple):
    """A feature, and the retriever or scorer that it is of, if it is of one."""

    feature: str
    source: str | None = None

    def __str__(self) -> str:
        return self.feature if self.source is None else f"{self.feature} by {self.source}"


def columns(sources: Sources) -> list[Column]:
    """Return the columns of `features`.

    >>> [str(column) for column in columns(Sources((("dense", "rank"),), (), "none"))][2:5]
    ['log rank by dense', 'found by dense', 'best z-score']
    """
    of_each = [Column(f, name) for name, _ in sources.retrievers for f in OF_RETRIEVERS]
    of_each += [Column(GIVEN + f, name) for name in sources.scorers for f in OF_SCORERS]
    of_all = [*OF_SNIPPETS]
    if sources.context != "none":
        of_all += OF_DOCUMENTS
    if sources.context == "document+position":
        of_all += OF_PLACES
    return [*of_each, *map(Column, of_all)]


def words_of(query: str, texts: Sequence[str]) -> Values:
    """Return how little of the query's words each text has, by `WORDS`: (5, n).

    The title is the first line up to a full stop, colon, exclamation or question mark.

    >>> words_of("red wine", ["A red. It is a wine.", "An apple."])[3]  # of titles
    array([-1., -0.])
    """
    lines = [text.lstrip()[:LINE].partition("\n")[0] for text in texts]
    titles = [TITLE_ENDS.split(line[:TITLE], maxsplit=1)[0] for line in lines]
    kinds: tuple[Unit, ...] = ("stems", "pieces", "pairs")
    stems, pieces, pairs, *in_starts = shares_of(query, texts, *kinds, starts=[lines, titles])
    return -np.array([stems, pieces, *in_starts, pairs])


def features(
    sources: Sources,
    query: str,
    words: Values,
    scores: Sequence[Values],
    snippets: Retrieved,
    sentences: bool = False,
) -> tuple[Known, Values]:
    """Return which snippets (n,) can be scored, and the features (d, n) of these.

    From the text of the query, the scores by each of `WORDS`, (5, n), and by each scorer, (n,).
    Raises as `numbers_of`.

    >>> from conformal_retrievers.data.snippets import as_snippets
    >>> sources = Sources((), ("s",), "none")
    >>> scores, snippets = np.array([0.2, np.nan, 0.4]), as_snippets(["a", "b", "c"])
    >>> known, table = features(sources, "q", np.zeros((5, 3)), [scores], snippets)
    >>> known, table[1]  # the gaps to the best
    (array([ True, False,  True]), array([0., 2.]))
    """
    known, numbers = numbers_of(sources, scores, snippets, only_compared=True)
    (m, n), r = numbers.values.shape, len(sources.retrievers)
    if n == 0:
        return known, np.empty((len(columns(sources)), 0))
    if n < len(known):
        words = words[:, known]
    lengths = np.full(m + 4, n)
    lengths[:r] = np.count_nonzero(numbers.found, axis=1)
    z, gap = standing(np.concatenate([numbers.values, words[:4]]), lengths)
    placed = np.concatenate([numbers.found, np.ones((m - r, n), np.bool_)])
    nearer = np.log(DEPTH / lengths[:m].clip(1))[:, np.newaxis]
    # What was not found has no place in a short list, and is behind the last of a long one.
    z[:m] -= nearer * (placed | (nearer < 0))
    z[m:] -= (shorter := 0.0 if sentences else OF_WORDS * np.log(DEPTH / min(n, DEPTH)))
    numbers.ranks[lengths[:m] == 0] = n  # of a retriever that found nothing, behind all others
    of_each, of_all = np.empty((m, 4, n)), np.ones((9, n))
    of_each[:, 0], of_each[:, 1], of_each[:, 2] = z[:m], gap[:m], np.log1p(numbers.ranks)
    of_each[:r, 3] = numbers.found
    own = r or m  # the retrievers' or, without any, the scorers'
    of_all[0] = np.where(placed, z[:m], np.inf)[:own].min(axis=0) if own else 0.0
    texts, mean = [*compress(snippets.texts, known)], np.sort(z[: m + 1], axis=0).mean(axis=0)
    length = np.log1p(np.fromiter(map(len, texts), np.float64, n))
    of_all[1:5], of_all[5] = z[m:], words[4]
    of_all[6] = length - np.sort(length).sum() / n
    of_all[7] = standing(-feedback(query, texts, mean)[np.newaxis], lengths[m : m + 1])[0] - shorter
    rows = [of_each[:r].reshape(-1, n), of_each[r:, :3].reshape(-1, n), of_all]
    if sources.context != "none":
        places: list[Sequence[Any]] = [snippets.documents]
        if sources.context == "document+position":
            places.append(snippets.positions)
        layout = layout_of(*[[*compress(of_each, known)] for of_each in places])
        rows += in_documents(mean, layout, sentences)
        if sources.context == "document+position":
            rows += in_places(mean, layout)
    return known, np.vstack(rows)


def standing(x: Values, lengths: NDArray[np.intp]) -> tuple[Values, Values]:
    """Return z-scores and gaps to the best, of scores x (m, n): (m, n) each.

    Of each row, the best `lengths` (m,) are its list. Both are 0 in a row without a list, or of
    equal scores.

    >>> z, gap = standing(np.array([[0.0, 1.0, 4.0]]), np.array([3]))
    >>> z.round(2), gap.round(2)
    (array([[-0.98, -0.39,  1.37]]), array([[0.  , 0.59, 2.35]]))
    """
    ordered, k = np.sort(x, axis=1), np.maximum(lengths, 1)[:, np.newaxis]
    best, last = ordered[:, :1], ordered[np.arange(len(x)), lengths - 1, np.newaxis]
    scale, inside = last - best, np.arange(x.shape[1]) < k
    scale += scale == 0
    # Sums of floats depend on the order, features must not.
    parts = (ordered - best) / scale * inside
    mean = parts.sum(axis=1, keepdims=True) / k
    sd = np.sqrt(np.square((parts - mean) * inside).sum(axis=1, keepdims=True) / k)
    sd += sd == 0
    part = (x - best) / scale
    return (part - mean) / sd, part / sd


def in_documents(mean: Values, layout: Layout, sentences: bool = False) -> list[Values]:
    """Return best and mean of each snippet's document less its own score, and the log size.

    Of scores (n,): (n,) each. They are 0 of a document with one snippet. Those of snippets, but not
    of sentences, are times the share of other documents' snippets: one document says nothing.

    >>> in_documents(np.array([1.0, 3.0, 2.0, 2.0]), layout_of(["d", "d", None, None]))[:2]
    [array([ 0., -1.,  0.,  0.]), array([ 0.5, -0.5,  0. ,  0. ])]
    """
    document, sizes = layout.document, layout.sizes
    others = 1.0 if sentences else (1 - sizes / len(mean))[document]
    best = np.minimum.reduceat(mean[layout.order], sizes.cumsum() - sizes)
    # By score, because sums of floats depend on the order.
    sums = np.add.reduceat(mean[np.lexsort((mean, document))], sizes.cumsum() - sizes)
    to_best, to_mean = best[document] - mean, (sums / sizes)[document] - mean
    return [to_best * others, to_mean * others, np.log(sizes[document]) * others]


def in_places(mean: Values, layout: Layout) -> list[Values]:
    """Return the scores of neighbours less its own, by `STEPS`, and the place in the document.

    Of scores (n,); 0 where there is no neighbour. The place is from 0 to 1; then, whether it is the
    first, such as a title, or the last.

    >>> in_places(np.array([1.0, 3.0]), layout_of(["d", "d"], [0, 9]))[1:3]
    [array([ 0., -2.]), array([2., 0.])]
    """
    of_places = np.minimum.reduceat(mean[layout.order], layout.first)
    steps = np.array([*STEPS.values()])[:, np.newaxis]
    to = layout.number + steps
    inside = (to >= 0) & (to < layout.places)
    steps_to = np.where(inside, of_places[np.where(inside, layout.place + steps, 0)] - mean, 0.0)
    last = layout.places - 1
    ends = (layout.number == 0) * 1.0, (layout.number == last) * 1.0
    return [*steps_to, layout.number / np.maximum(last, 1), *ends]
