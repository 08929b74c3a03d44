"""Ways to choose what reaches the model that users have today, in terms of columns of snippets.

Top k, of a retriever or of the reciprocal rank fusion of all, and a threshold on a retriever's own
score have a setting, which `equal_recall.py` chooses in hindsight. Top k counts documents, with all
of their sentences. A snippet that a retriever did not find counts as +inf among its scores.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.hits import C, HitColumns
from conformal_retrievers.evaluation.measures import documents, known_hits

Array = NDArray[np.float64]
TOP_K, THRESHOLD, FILTER = "top k", "threshold", "the filter"
FUSION = "the fusion"  # the source of a top k
SETTINGS = 200  # at most; recall is interpolated between them


class Way(NamedTuple):
    """A way to choose: at setting g of G it passes the S snippets whose place is g or less."""

    rule: str  # TOP_K, THRESHOLD or FILTER
    source: str  # what it goes by, such as the name of a retriever
    place: NDArray[np.intp]  # (S,); G for a snippet that no setting passes
    settings: Array  # (G,); if there are several, the first passes nothing

    @classmethod
    def fixed(cls, rule: str, kept: NDArray[np.bool_]) -> "Way":
        """Return the way to choose that keeps a mask (S,) of snippets."""
        return cls(rule, "its score", np.where(kept, 0, 1), np.full(1, math.nan))


def with_a_setting(queries: ScoredQueries) -> Iterator[Way]:
    """Yield top k of each retriever and of their fusion, and a threshold on each one's scores."""
    hits = known_hits(queries)
    for name, columns in hits.items():
        if np.isfinite(columns.ranks).any():
            yield _top(name, columns.ranks)
    if len(hits) > 1:
        yield _top(FUSION, _fused_ranks(queries))
    if not hits:
        yield _top("the list", documents(queries).astype(np.float64))
    for name, scores in _own_scores(queries).items():
        way = threshold_on(scores, queries.relevant, name)
        if len(way.settings):
            yield way._replace(settings=_sign(queries, hits[name]) * way.settings)


def threshold_on(scores: Array, relevant: NDArray[np.bool_], source: str) -> Way:
    """Return thresholds on scores (S,): those of relevant snippets; NaN is always passed."""
    settings = _thinned(np.unique(scores[relevant & np.isfinite(scores)]))
    place = np.where(np.isnan(scores), 0, np.searchsorted(settings, scores) + 1)
    return Way(THRESHOLD, source, place, np.concatenate([settings[:1], settings]))


def _top(source: str, ranks: Array) -> Way:
    """Return top k by ranks (S,), of k = 0 and each rank that occurs."""
    settings = _thinned(np.unique(ranks[np.isfinite(ranks)]))
    return Way(TOP_K, source, np.searchsorted(settings, ranks) + 1, np.append(0.0, settings + 1))


def _thinned(settings: Array) -> Array:
    """Return at most as many settings as are measured, evenly spread, the last among them."""
    if len(settings) <= SETTINGS:
        return settings
    return np.take(settings, np.linspace(0, len(settings) - 1, SETTINGS).astype(np.intp))


def _fused_ranks(queries: ScoredQueries) -> Array:
    """Return the rank of each snippet (S,), or of its document, in the fusion of its query."""
    ranks_of_each = np.stack([columns.ranks for columns in known_hits(queries).values()])
    fusion = (1 / (C + ranks_of_each + 1)).sum(axis=0)
    place_of = documents(queries)
    order = np.lexsort((place_of, -fusion, queries.query_of))
    query, document = queries.query_of[order], place_of[order]
    other = np.ones(len(order), dtype=bool)  # than the document before
    other[1:] = (np.diff(query) != 0) | (np.diff(document) != 0)
    place = np.cumsum(other)
    ranks = np.empty(len(order))
    ranks[order] = place - place[np.searchsorted(query, query)]
    return np.where(fusion > 0, ranks, math.inf)


def _own_scores(queries: ScoredQueries) -> dict[str, Array]:
    """Return the scores (S,) of each retriever that scores all it finds: lower = more relevant."""
    scores = {}
    for name, hits in known_hits(queries).items():
        hit = np.isfinite(hits.ranks)
        if np.isfinite(hits.scores[hit]).all():
            scores[name] = np.where(hit, _sign(queries, hits) * hits.scores, math.inf)
    return scores


def _sign(queries: ScoredQueries, hits: HitColumns) -> int:
    """Return 1 if a retriever's lower scores have the better ranks, −1 if its higher ones do."""
    ranks, scores = hits
    order = np.lexsort((ranks, queries.query_of))
    order = order[np.isfinite(ranks[order])]
    rises = np.diff(scores[order])[np.diff(queries.query_of[order]) == 0]
    return 1 if np.sum(np.sign(rises)) > 0 else -1
