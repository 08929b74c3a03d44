"""The features of a snippet: where it stands among those of its query, and in its document.

With x a retriever's score, lower = more relevant, in a list of k snippets, or log(1 + rank) if its
hits have no scores,

    z-score       (x − mean) / sd − log(50 / k)
    gap to best   (x − min) / sd
    log rank      log(1 + rank), from 0
    found         1, or 0 if the retriever did not find the snippet: then it has the worst x and
                  is behind the last

Mean and sd are those of the list. Where the scores of a collection fall exponentially, as they
nearly do, the best k of 50 are log(50 / k) standard deviations above the mean of the 50, and
spread as much. So a short list, as metadata filters give, has the z-scores that its snippets would
have in a list of 50, and a threshold keeps its best. Scores on any affine scale, and similarities
and distances of the same vectors, give the same features.

The words of `overlap.py` that a snippet shares with the query, and its length, are compared with
those of the query's other snippets. In documents, a snippet is compared by the mean of its
z-scores. No feature depends on the order of the snippets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from conformal_retrievers.data.hits import texts_in
from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.scoring.hit_features import Known, Sources, Values, numbers_of
from conformal_retrievers.scoring.learned.layout import Layout, layout_of
from conformal_retrievers.scoring.overlap import OverlapScorer

GIVEN = "scorer's "  # begins the name of a feature of a scorer
DEPTH = 50  # of the lists in which z-scores mean the same
OF_SCORERS = ("z-score", "gap to best", "log rank")
OF_RETRIEVERS = (*OF_SCORERS, "found")
WORDS = (OverlapScorer("stems"), OverlapScorer("pairs"), OverlapScorer("pieces"))
OF_SNIPPETS = ("best z-score", *(unit.unit for unit in WORDS), "length", "intercept")
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


def features(
    sources: Sources, words: Sequence[Values], scores: Sequence[Values], snippets: Sequence[Snippet]
) -> tuple[Known, Values]:
    """Return which snippets (n,) can be scored, and the features (d, n) of these.

    From the scores (n,) by each of `WORDS`, and by each scorer. Raises as `numbers_of` does.

    >>> sources = Sources((), ("s",), "none")
    >>> scores, snippets = np.array([0.2, np.nan, 0.4]), [Snippet("a"), Snippet("b"), Snippet("c")]
    >>> known, table = features(sources, [np.zeros(3)] * 3, [scores], snippets)
    >>> known, table[1]  # the gaps to the best
    (array([ True, False,  True]), array([0., 2.]))
    """
    known, numbers = numbers_of(sources, scores, snippets, only_compared=True)
    n, r = int(np.count_nonzero(known)), len(sources.retrievers)
    if n == 0:
        return known, np.empty((len(columns(sources)), 0))
    lengths = np.full((len(numbers.values), 1), n)
    lengths[:r, 0] = numbers.found.sum(axis=1)
    z, gap = standing(numbers.values, numbers.ordered, lengths)
    # Of a retriever that found nothing, all snippets are behind its last.
    rank = np.log1p(np.where(lengths == 0, n, numbers.ranks))
    of_each = np.stack([z, gap, rank], axis=1)
    of_retrievers = np.concatenate([of_each[:r], numbers.found[:, np.newaxis]], axis=1)
    texts, of_words = texts_in(snippets), np.array(words)
    if n < len(snippets):
        texts = [text for text, k in zip(texts, known.tolist(), strict=True) if k]
        of_words = of_words[:, known]
    length = np.log1p(np.fromiter(map(len, texts), np.float64, n))
    stems, pairs, pieces = of_words
    stems, pieces = standard(np.stack([stems, pieces]))
    best = (z[:r] if r else z).min(axis=0) if len(z) else np.zeros(n)
    of_all = [best, stems, pairs, pieces, length - np.sort(length).mean(), np.ones(n)]
    rows = [*of_retrievers.reshape(-1, n), *of_each[r:].reshape(-1, n), *of_all]
    if sources.context != "none":
        if n < len(snippets):
            snippets = [s for s, k in zip(snippets, known.tolist(), strict=True) if k]
        layout = layout_of(snippets, sources.context)
        mean = np.sort(np.vstack([z, stems]), axis=0).mean(axis=0)
        rows += in_documents(mean, layout)
        if sources.context == "document+position":
            rows += in_places(mean, layout)
    return known, np.array(rows)


def standing(x: Values, ordered: Values, lengths: Values) -> tuple[Values, Values]:
    """Return z-scores and gaps to the best, of scores x (m, n): (m, n) each.

    Each row of `ordered` (m, n) begins with the scores of its list, ascending, of which there are
    `lengths` (m, 1): sums of floats depend on the order, features must not. Both are 0 in a row
    without a list.

    >>> x = np.array([[0.0, 1.0, 4.0]])
    >>> z, gap = standing(x, x, np.array([[3]]))
    >>> (z + np.log(50 / 3)).round(2), gap.round(2)
    (array([[-0.98, -0.39,  1.37]]), array([[0.  , 0.59, 2.35]]))
    """
    k = np.maximum(lengths, 1)
    best, last = ordered[:, :1], ordered[np.arange(len(k)), k[:, 0] - 1, np.newaxis]
    scale = np.where(last > best, last - best, 1.0)
    inside = np.arange(x.shape[1]) < k
    part, parts = (x - best) / scale, np.where(inside, (ordered - best) / scale, 0.0)
    mean = parts.sum(axis=1, keepdims=True) / k
    apart = np.where(inside, parts - mean, 0.0)
    sd = np.sqrt(np.square(apart).sum(axis=1, keepdims=True) / k)
    sd = np.where(sd > 0, sd, 1.0)
    some = lengths > 0
    return np.where(some, (part - mean) / sd - np.log(DEPTH / k), 0.0), np.where(
        some, part / sd, 0.0
    )


def standard(x: Values) -> Values:
    """Return the z-scores (m, n) of rows (m, n); 0 in a row of equal ones.

    >>> standard(np.array([[1.0, 2.0, 3.0]])).round(2)
    array([[-1.22,  0.  ,  1.22]])
    """
    ordered = np.sort(x, axis=1)
    n = x.shape[1]
    mean = ordered.sum(axis=1, keepdims=True) / n  # `mean` takes several times as long
    sd = np.sqrt(np.square(ordered - mean).sum(axis=1, keepdims=True) / n)
    equal = ordered[:, :1] == ordered[:, -1:]
    return np.asarray((x - mean) * ~equal / (sd + equal))


def in_documents(mean: Values, layout: Layout) -> list[Values]:
    """Return best and mean of each snippet's document less its own score, and the log size.

    Of scores (n,): (n,) each. All are 0 of a document with one snippet.

    >>> snippets = [Snippet("a", document="d"), Snippet("b", document="d"), Snippet("c")]
    >>> in_documents(np.array([1.0, 3.0, 2.0]), layout_of(snippets, "document"))[:2]
    [array([ 0., -2.,  0.]), array([ 1., -1.,  0.])]
    """
    document, sizes = layout.document, layout.sizes
    best = np.minimum.reduceat(mean[layout.order], sizes.cumsum() - sizes)
    by_score = np.lexsort((mean, document))  # sums of floats depend on the order
    sums = np.add.reduceat(mean[by_score], sizes.cumsum() - sizes)
    return [best[document] - mean, (sums / sizes)[document] - mean, np.log(sizes[document])]


def in_places(mean: Values, layout: Layout) -> list[Values]:
    """Return the scores of neighbours less its own, by `STEPS`, and the place in the document.

    Of scores (n,); 0 where there is no neighbour. The place is from 0 to 1; then, whether it is the
    first, such as a title, or the last.

    >>> snippets = [Snippet("a", document="d", position=p) for p in (0, 9)]
    >>> in_places(np.array([1.0, 3.0]), layout_of(snippets, "document+position"))[1:3]
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
