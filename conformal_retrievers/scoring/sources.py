"""The numbers that a learned score is made of: hits of retrievers, their fusion, and scorers.

Each source gives a snippet a value, lower = more relevant, and a rank among those of its query:

    retriever   its score in its direction, or log(1 + rank) if its hits have no scores
    fusion      −Σ 1 / (61 + rank) over the retrievers that found the snippet, if there are several
    scorer      its score; equal scores share the mean of their ranks

A snippet that a retriever did not find has the worst value and the rank behind the last that it
found for the query.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.hits import C, HitColumns, documents_in, hits_in, positions_in
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.scoring.hits import KEEP_SCORES, check_found, named

Values = NDArray[np.float64]
Known = NDArray[np.bool_]
Context = Literal["none", "document", "document+position"]
Kind = Literal["similarity", "distance", "rank"]  # which scores a retriever's hits have


class Sources(NamedTuple):
    """What a learned score reads."""

    retrievers: tuple[tuple[str, Kind], ...]
    scorers: tuple[str, ...]
    context: Context

    @property
    def names(self) -> list[str]:
        """The name of each source."""
        fusion = ["fusion"] * (len(self.retrievers) > 1)
        return [*(name for name, _ in self.retrievers), *fusion, *self.scorers]


class Numbers(NamedTuple):
    """What m sources know of the n snippets that all of them can score."""

    values: Values  # (m, n), finite
    ranks: Values  # (m, n), from 0, the best
    found: Known  # (number of retrievers, n)


def sources_of(judged: Sequence[JudgedQuery], scorers: Sequence[str] = ()) -> Sources:
    """Return the sources that judged queries have, with scorers of these names.

    A retriever's scores are similarities if they fall as the rank rises. They count if all of its
    hits have one.

    >>> from conformal_retrievers.data.queries import with_hits
    >>> snippets = with_hits([Snippet("a", retrieval_score=0.9), Snippet("b", retrieval_score=0.7)])
    >>> sources_of([JudgedQuery("q", snippets, [True, False])]).retrievers
    (('retriever', 'similarity'),)
    """
    found: dict[str, list[HitColumns]] = {}
    for query in judged:
        for name, columns in query.hits.items():
            found.setdefault(name, []).append(columns)
    kinds = tuple((name, _kind(columns)) for name, columns in sorted(found.items()))
    return Sources(kinds, tuple(scorers), context_of([s for q in judged for s in q.snippets]))


def _kind(queries: Sequence[HitColumns]) -> Kind:
    """Return which scores a retriever's hits have, from the queries for which it found any."""
    rising = 0.0
    for ranks, scores in queries:
        ordered = scores[np.argsort(ranks)[: np.count_nonzero(ranks < np.inf)]]
        if not np.isfinite(ordered).all():
            return "rank"
        rising += np.sign(ordered[-1] - ordered[0])
    return "rank" if rising == 0 else "distance" if rising > 0 else "similarity"


def context_of(snippets: Sequence[Snippet]) -> Context:
    """Return what all of the snippets state about where they come from.

    >>> context_of([Snippet("a", document="d", position=0), Snippet("b", document="d")])
    'document'
    """
    if any(s.document is None for s in snippets):
        return "none"
    return "document" if any(s.position is None for s in snippets) else "document+position"


def numbers_of(
    sources: Sources, scores: Sequence[Values], snippets: Sequence[Snippet]
) -> tuple[Known, Numbers]:
    """Return which snippets (n,) can be scored, and the sources' numbers of these.

    Such a snippet has a hit of a retriever, scores where the fit had them, a finite score of each
    scorer, (n,) each, and what the context needs. Raises ValueError, naming the retrievers, if no
    snippet has the hits, or the scores, that are needed, as `check_found`.

    >>> sources, scores = Sources((), ("s",), "none"), [np.array([0.5, np.nan])]
    >>> known, numbers = numbers_of(sources, scores, [Snippet("a"), Snippet("b")])
    >>> known, numbers.values
    (array([ True, False]), array([[0.5]]))
    """
    n = len(snippets)
    of_scorers = np.array(scores).reshape(len(scores), n)
    known = np.asarray(np.isfinite(of_scorers).all(axis=0))
    places: list[Sequence[str | int | None]] = []
    if sources.context != "none":
        places.append(documents_in(snippets))
    if sources.context == "document+position":
        places.append(positions_in(snippets))
    for of_each in places:
        if None in of_each:
            known &= np.array([one is not None for one in of_each], dtype=bool)
    ranks, values = _of_hits(sources.retrievers, snippets)
    found: Known = ranks < np.inf
    if sources.retrievers:
        known &= found.any(axis=0) & (np.isfinite(values) | ~found).all(axis=0)
    if not known.all():
        of_scorers, ranks, values = of_scorers[:, known], ranks[:, known], values[:, known]
        found = found[:, known]
    if not found.all():
        behind = np.where(found, ranks, -1).max(axis=1, initial=-1, keepdims=True) + 1
        ranks = np.where(found, ranks, behind)
        worst = np.where(found, values, -np.inf).max(axis=1, initial=-np.inf, keepdims=True)
        values = np.where(found, values, np.where(worst > -np.inf, worst, 0.0))
    if only_ranks := [i for i, (_, kind) in enumerate(sources.retrievers) if kind == "rank"]:
        values[only_ranks] = np.log1p(ranks[only_ranks])
    others = of_scorers
    if len(sources.retrievers) > 1:
        fused = -(found / (C + 1 + ranks)).sum(axis=0, keepdims=True)
        others = np.concatenate([fused, of_scorers])
    of_others = [average_ranks(x)[np.newaxis] for x in others]
    # In one layout, since sums depend on it in their last bits.
    values = np.ascontiguousarray(np.concatenate([values, others]))
    return known, Numbers(values, np.concatenate([ranks, *of_others]), found)


def _of_hits(
    retrievers: Sequence[tuple[str, Kind]], snippets: Sequence[Snippet]
) -> tuple[Values, Values]:
    """Return ranks, +inf if not found, and scores, lower = more relevant: (retrievers, n) each."""
    n = len(snippets)
    ranks, scores = np.full((len(retrievers), n), np.inf), np.zeros((len(retrievers), n))
    hits = hits_in(snippets) if retrievers else {}
    if n and retrievers:
        check_found("the learned score", [name for name, _ in retrievers], hits)
    for i, (name, kind) in enumerate(retrievers):
        if name in hits:
            ranks[i] = hits[name].ranks
            if kind != "rank":
                scores[i] = -hits[name].scores if kind == "similarity" else hits[name].scores
                if np.isnan(scores[i]).all():
                    raise ValueError(
                        f"the hits of {named([name])} have ranks and no scores, which the learned "
                        f"score reads; {KEEP_SCORES}"
                    )
    return ranks, scores


def average_ranks(values: Values) -> Values:
    """Return the ranks (n,) from 0, the lowest; equal values share the mean of theirs.

    >>> average_ranks(np.array([0.3, 0.1, 0.3]))
    array([1.5, 0. , 1.5])
    """
    ordered = np.sort(values)
    left, right = np.searchsorted(ordered, values), np.searchsorted(ordered, values, "right")
    return (left + right - 1) / 2
