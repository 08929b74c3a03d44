"""Scores from what the retrievers know: ranks, reciprocal rank fusion, and their own scores.

They cost microseconds and call no model. The snippets of a query carry hits (`data/hits.py`). A
snippet without any hit is unscorable, NaN; one that only other retrievers found has the score +inf.
All are unscorable if the one retriever that a score reads found nothing for the query, as one
that failed. `score` raises ValueError if there are no hits, or of several retrievers none, and if
one of these has none while an unknown retriever has some, which is then another name for it.
"""

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from conformal_retrievers.data.checks import check_names, check_type
from conformal_retrievers.data.hits import RETRIEVER, C, HitColumns, slope
from conformal_retrievers.data.queries import Snippet, as_snippets, with_hits
from conformal_retrievers.data.snippets import Retrieved
from conformal_retrievers.scoring.scorer import Named, Rebuilt, Scores, with_parts
from conformal_retrievers.scoring.wording import say

Columns = Mapping[str, HitColumns]


@dataclass(frozen=True)
class RankScorer(Rebuilt):
    """Scores by the rank of a retriever, from 0: its threshold is a calibrated top k.

    >>> from conformal_retrievers.data.queries import with_hits
    >>> RankScorer().score("q", with_hits(["a", "b", "c"]))
    array([0., 1., 2.])
    """

    retriever: str = RETRIEVER
    kind: ClassVar[str] = "rank"
    relative_to_query: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_names("RankScorer", retriever=self.retriever)

    @property
    def retrievers(self) -> tuple[str, ...]:
        """The retriever."""
        return (self.retriever,)

    @property
    def name(self) -> str:
        """The retriever, marked as its rank."""
        return f"rank({self.retriever})"

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Return the score of each snippet, (n,)."""
        return _scores(self, snippets)

    def of_columns(self, columns: Columns) -> Scores:
        """Return the ranks (n,)."""
        return columns[self.retriever].ranks


@dataclass(frozen=True)
class FusionScorer(Rebuilt):
    """Scores by reciprocal rank fusion: −Σ 1 / (60 + rank + 1) over `retrievers`.

    >>> from conformal_retrievers.data.hits import Hit
    >>> both = Snippet("a", hits=(Hit("bm25", 1), Hit("dense", 0)))
    >>> one = Snippet("b", hits=(Hit("bm25", 0),))
    >>> FusionScorer(["dense", "bm25"]).score("q", [both, one]).round(4)
    array([-0.0325, -0.0164])
    """

    retrievers: tuple[str, ...]  # in alphabetical order, whatever order is given
    kind: ClassVar[str] = "fusion"
    relative_to_query: ClassVar[bool] = True

    def __init__(self, retrievers: Iterable[str]) -> None:
        given: Any = retrievers
        names = [given] if isinstance(given, str) or not isinstance(given, Iterable) else [*given]
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"retrievers is {retrievers!r:.60}; give names, like ['dense', 'bm25']")
        if not names or len(set(names)) < len(names):
            raise ValueError(f"retrievers is {names!r:.80}; give one or more names, each once")
        check_names("FusionScorer", retrievers=", ".join(names))
        object.__setattr__(self, "retrievers", tuple(sorted(names)))

    @property
    def name(self) -> str:
        """The retrievers, marked as their fusion."""
        return f"fusion({', '.join(self.retrievers)})"

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Return the score of each snippet, (n,)."""
        return _scores(self, snippets)

    def of_columns(self, columns: Columns) -> Scores:
        """Return the negative sums (n,); +inf for a snippet that none of the retrievers found."""
        known = [columns[name].ranks for name in self.retrievers if name in columns]
        sums = sum(1 / (C + 1 + ranks) for ranks in known)
        return np.where(sums, -sums, np.inf)


@dataclass(frozen=True)
class RetrievalScorer(Rebuilt):
    """Scores by a retriever's own score, negated if higher means more relevant.

    It reads hits, or `Snippet.retrieval_score` if no snippet has any. A snippet without a score is
    unscorable: NaN. A list whose order shows the other direction raises ValueError; within a
    `QueryZScore`, it is turned round.

    >>> similarity = RetrievalScorer(higher_is_better=True)
    >>> similarity.score("q", [Snippet("a", retrieval_score=0.9), Snippet("b")])
    array([-0.9,  nan])

    Parameters
    ----------
    retriever
        Its name among several, as in `HybridRetriever`; a single one needs none.
    higher_is_better
        Whether the scores are similarities, and not distances.
    """

    retriever: str = RETRIEVER
    higher_is_better: bool = True
    kind: ClassVar[str] = "retrieval"
    only_compared: bool = field(default=False, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_names("RetrievalScorer", retriever=self.retriever)
        check_type(bool, "True or False", higher_is_better=self.higher_is_better)

    @property
    def retrievers(self) -> tuple[str, ...]:
        """The retriever."""
        return (self.retriever,)

    @property
    def name(self) -> str:
        """The retriever and the direction of its scores."""
        return f"retrieval({self.retriever}, {'higher' if self.higher_is_better else 'lower'})"

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Return the score of each snippet, (n,)."""
        return _scores(self, snippets)

    def of_columns(self, columns: Columns) -> Scores:
        """Return the scores (n,), n ≥ 1; warn if there are none."""
        hits = columns[self.retriever]
        if np.isnan(hits.scores[0]) and np.isnan(hits.scores).all():  # the first is quickly seen
            warnings.warn(say("without scores", names=named([self.retriever])), stacklevel=1)
            return hits.scores
        scores = turned(self.retriever, hits, self.higher_is_better, self.only_compared)
        return np.where(hits.ranks < np.inf, scores, np.inf)


def turned(
    retriever: str, columns: HitColumns, higher_is_better: bool, only_compared: bool
) -> Scores:
    """Return a list's scores (n,), lower = more relevant, as the calibration knows them.

    If its order shows the other direction, they are turned round where they are `only_compared`
    with each other; else a threshold on them would mean nothing, and this raises ValueError.

    >>> rising = HitColumns(np.arange(3.0), np.array([0.1, 0.2, 0.4]))
    >>> turned("dense", rising, higher_is_better=True, only_compared=True)
    array([0.1, 0.2, 0.4])
    """
    scores = -columns.scores if higher_is_better else columns.scores
    fewest = 2 if only_compared else 3  # two, as a filter on metadata leaves, are a good guess
    # Of most lists, the first has the best score, which is quickly seen.
    if len(scores) < fewest or scores[columns.ranks.argmin()] <= np.fmin.reduce(scores):
        return scores
    if slope(columns, fewest) != (1 if higher_is_better else -1):
        return scores
    if only_compared:
        return -scores
    kinds = ("similarities", "distances")
    facts = {"now": kinds[higher_is_better], "known": kinds[not higher_is_better]}
    raise ValueError(say("turned", names=named([retriever]), flag=not higher_is_better, **facts))


def _scores(scorer: RankScorer | FusionScorer | RetrievalScorer, snippets: Iterable[Any]) -> Scores:
    given = as_snippets(snippets)
    if not given:
        return np.empty(0)
    known = given.hits
    if not known and isinstance(scorer, RetrievalScorer):
        known = as_snippets(with_hits(given, scorer.retriever)).hits
    if known and len(scorer.retrievers) == 1 and not {*scorer.retrievers} & {*known}:
        # The same text and place: Python shows it once.
        facts = {"names": named(scorer.retrievers), "known": named(known)}
        warnings.warn(say("no hit", scorer=scorer.name, **facts), stacklevel=1)
        return np.full(len(given), np.nan)
    check_found(repr(scorer.name), scorer.retrievers, known)
    best, *others = [column.ranks for column in known.values()]
    hit = (np.minimum.reduce([best, *others]) if others else best) < np.inf
    return np.where(hit, scorer.of_columns(known), np.nan)


def retrievers_of(scorer: Named) -> tuple[str, ...]:
    """Return the names of the retrievers whose hits a scorer or a part of it reads, in order.

    >>> from conformal_retrievers.scoring.combine import QueryZScore
    >>> retrievers_of(QueryZScore(RankScorer("dense")))
    ('dense',)
    """
    return tuple(sorted({n for p in with_parts(scorer) for n in getattr(p, "retrievers", ())}))


def lacks(scorer: Named, query: str, snippets: Retrieved) -> bool:
    """Return whether a query is blank, or one of the retrievers that a scorer reads failed."""
    if not query.strip():
        return True
    return bool(snippets.failed) and not {*snippets.failed}.isdisjoint(retrievers_of(scorer))


def named(retrievers: Iterable[str]) -> str:
    """Return retrievers in words: their names, or "a single retriever", which has none.

    >>> named(["bm25", "dense"])
    "'bm25', 'dense'"
    """
    return ", ".join("a single retriever" if r == RETRIEVER else repr(r) for r in retrievers)


def check_found(scorer: str, retrievers: Sequence[str], known: Collection[str]) -> None:
    """Raise ValueError, naming the retrievers, if their hits are missing or have other names.

    `known` are the retrievers that have hits among the snippets. One that found nothing for the
    query is no error, nor are hits that the scorer does not read.

    >>> check_found("'rank(bm25)'", ["bm25"], {})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: 'rank(bm25)' needs hits of 'bm25', but snippets have none; ...
    """
    missing = [name for name in retrievers if name not in known]
    if not missing or (len(missing) < len(retrievers) and {*known} <= {*retrievers}):
        return
    facts = {"names": named(retrievers), "known": named(known)}
    facts["example"] = ", ".join(f"{name!r}: …" for name in retrievers)
    of_others = "hits of others" if missing == [RETRIEVER] else "hits of other names"
    raise ValueError(say(of_others if known else "hits missing", scorer=scorer, **facts))
