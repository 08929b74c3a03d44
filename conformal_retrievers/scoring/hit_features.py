"""The numbers that a learned score is made of: hits of retrievers, and scorers.

Each source gives a snippet a value, lower = more relevant, and a rank among those of its query:

    retriever   its score in its direction, or log(1 + rank) if its hits have no scores
    scorer      its score; equal scores share the mean of their ranks

A list whose own order contradicts the direction of the calibration is of another store or
framework. Its scores are turned round for what only compares them, and refused otherwise.

A snippet that a retriever did not find has the worst value and the rank behind the last that it
found for the query.
"""

import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.hits import HitColumns, slope, unknown_hits
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.data.snippets import Retrieved
from conformal_retrievers.scoring.hits import check_found, named, turned
from conformal_retrievers.scoring.wording import say

Values = NDArray[np.float64]
Known = NDArray[np.bool_]
Context = Literal["none", "document", "document+position"]
Kind = Literal["similarity", "distance", "rank"]  # which scores a retriever's hits have
RANKS, SCORES = 0, 1  # in an array of hits
STATED_BY = {  # in LangChain's metadata, and by a node of LlamaIndex
    "document": ("source", "ref_doc_id, that of its source"),
    "position": ("start_index", "start_char_idx, of a node that has no parent"),
}
SOME_LOST = "some snippets of a query have none: these cannot be scored, and are kept"
ALL_LOST = "no snippet of a query has one: scores are less exact, and coverage may fall below 1 − α"


class Sources(NamedTuple):
    """What a learned score reads."""

    retrievers: tuple[tuple[str, Kind], ...]
    scorers: tuple[str, ...]
    context: Context

    @property
    def names(self) -> list[str]:
        """The name of each source."""
        return [*(name for name, _ in self.retrievers), *self.scorers]


class Numbers(NamedTuple):
    """What m sources know of the n snippets that all of them can score."""

    values: Values  # (m, n), finite
    ranks: Values  # (m, n), from 0, the best
    found: Known  # (number of retrievers, n)


def sources_of(judged: Sequence[JudgedQuery], scorers: Sequence[str] = ()) -> Sources:
    """Return the sources that judged queries have, with scorers of these names.

    A retriever's scores are similarities if they fall as the rank rises. They count if all of its
    hits have one, and no list of three or more goes the other way. Warns if only some hits have
    one.

    >>> from conformal_retrievers.data.queries import with_hits
    >>> snippets = with_hits([Snippet("a", retrieval_score=0.9), Snippet("b", retrieval_score=0.7)])
    >>> sources_of([JudgedQuery("q", snippets, [True, False])]).retrievers
    (('retriever', 'similarity'),)
    """
    lists: dict[str, list[HitColumns]] = {}
    for query in judged:
        for name, columns in query.hits.items():
            lists.setdefault(name, []).append(columns)
    kinds = tuple((name, _kind(name, columns)) for name, columns in sorted(lists.items()))
    return Sources(kinds, tuple(scorers), context_of([s for q in judged for s in q.snippets]))


def warn_if_some_lack(judged: Sequence[JudgedQuery]) -> None:
    """Warn if some snippets do not state their document, or else their position, and others do."""
    snippets = [s for query in judged for s in query.snippets]
    name = "document" if context_of(snippets) == "none" else "position"
    lack = [s.text for s in snippets if getattr(s, name) is None]
    if 0 < len(lack) < len(snippets):
        ours, theirs = STATED_BY[name]
        facts = {"lack": len(lack), "n": len(snippets), "ours": ours, "theirs": theirs}
        warnings.warn(say("some lack", name=name, text=lack[0], **facts), stacklevel=1)


def _kind(name: str, queries: Sequence[HitColumns]) -> Kind:
    """Return which scores a retriever's hits have, from the queries for which it found any."""
    scores = np.concatenate([scores[ranks < np.inf] for ranks, scores in queries])
    if lost := np.count_nonzero(~np.isfinite(scores)):
        if lost < len(scores):
            facts = {"lost": lost, "n": len(scores), "names": named([name])}
            warnings.warn(say("some scores", **facts), stacklevel=1)
        return "rank"
    rising = 0.0
    for ranks, scores in queries:
        ordered = scores[np.argsort(ranks)[: np.count_nonzero(ranks < np.inf)]]
        rising += np.sign(ordered[-1] - ordered[0])
    if any(slope(columns) == -np.sign(rising) for columns in queries):
        return "rank"
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
    sources: Sources, scores: Sequence[Values], snippets: Retrieved, *, only_compared: bool = False
) -> tuple[Known, Numbers]:
    """Return which snippets (n,) can be scored, and the sources' numbers of these.

    Such a snippet has a hit of a retriever, scores where the fit had them, a finite score of each
    scorer, (n,) each, and what the context needs. Raises ValueError, naming the retrievers, if no
    snippet has the hits that are needed, as `check_found`, and for a list whose scores go the other
    way, unless scores are `only_compared` with those of the same list. If what a retriever found
    has ranks and no scores, this warns, and no snippet can be scored, as if it had failed. It warns
    as well of snippets without what the context needs; if none has it, all can be scored.

    >>> sources, scores = Sources((), ("s",), "none"), [np.array([0.5, np.nan])]
    >>> known, numbers = numbers_of(sources, scores, Retrieved([Snippet("a"), Snippet("b")]))
    >>> known, numbers.values
    (array([ True, False]), array([[0.5]]))
    """
    n, r = len(snippets), len(sources.retrievers)
    of_scorers = np.array(scores, np.float64).reshape(len(scores), n)
    known: Known = np.asarray(np.isfinite(of_scorers).all(axis=0))
    hits = _of_hits(sources.retrievers, snippets, only_compared)
    for name in (name for name in STATED_BY if name in sources.context):
        places = getattr(snippets, f"{name}s")
        if None in places:
            stated = [place is not None for place in places]
            # None of another framework's may be stated: then each is a document of its own.
            effect, (ours, theirs) = ALL_LOST, STATED_BY[name]
            if any(stated):
                known, effect = known & stated, SOME_LOST
            # The same text for all queries: Python shows it once.
            text = say("lost", name=name, effect=effect, ours=ours, theirs=theirs)
            warnings.warn(text, stacklevel=1)
    found = hits[RANKS] < np.inf
    complete = np.isfinite(hits).all()  # all retrievers found, and scored, all snippets
    if not complete:
        lost = found & ~np.isfinite(hits[SCORES])
        if lost.any():
            known &= ~(lost.any(axis=0) | _lacks_scores(sources.retrievers, hits[SCORES], found))
        known &= found.any(axis=0)
    if not known.all():
        of_scorers, hits, found = of_scorers[:, known], hits[..., known], found[:, known]
    if not complete:
        last = hits.max(axis=2, keepdims=True, where=found, initial=-np.inf)
        last[RANKS] += 1
        last[np.isneginf(last)] = 0.0
        hits = np.where(found, hits, last)
    for i, (_, kind) in enumerate(sources.retrievers):
        if kind == "rank":
            hits[SCORES, i] = np.log1p(hits[RANKS, i])
    # In one layout, since sums depend on it in their last bits.
    values = np.ascontiguousarray(np.concatenate([hits[SCORES], of_scorers]))
    ranks = np.array([*hits[RANKS], *map(average_ranks, values[r:])]).reshape(values.shape)
    return known, Numbers(values, ranks, found)


def _of_hits(
    retrievers: Sequence[tuple[str, Kind]], snippets: Retrieved, only_compared: bool
) -> Values:
    """Return ranks and scores, lower = more relevant: (2, retrievers, n).

    A rank is +inf if the retriever did not find the snippet, and a score NaN if it is missing.
    Where only ranks count, they are the scores.
    """
    n = len(snippets)
    hits = snippets.hits if retrievers else {}
    names = [name for name, _ in retrievers]
    if n and not hits.keys() >= {*names}:
        check_found("the score", names, hits)
    ranks, scores = [], []
    for name, kind in retrievers:
        columns = hits.get(name) or unknown_hits(n)
        ranks.append(columns.ranks)
        if kind == "rank":
            scores.append(columns.ranks)
        else:
            scores.append(turned(name, columns, kind == "similarity", only_compared))
    return np.array([ranks, scores]).reshape(2, len(retrievers), n)


def _lacks_scores(retrievers: Sequence[tuple[str, Kind]], scores: Values, found: Known) -> bool:
    """Return whether what a retriever found has ranks and no scores; warn, naming it."""
    for (name, _), numbers, at in zip(retrievers, scores, found, strict=True):
        if at.any() and np.isnan(numbers[at]).all():
            warnings.warn(say("without scores", names=named([name])), stacklevel=1)
            return True
    return False


def average_ranks(values: Values) -> Values:
    """Return the ranks (n,) of values (n,) from 0, the lowest; equal ones share their mean.

    >>> average_ranks(np.array([0.3, 0.1, 0.3]))
    array([1.5, 0. , 1.5])
    """
    ordered = np.sort(values)
    return (ordered.searchsorted(values) + ordered.searchsorted(values, "right") - 1) / 2
