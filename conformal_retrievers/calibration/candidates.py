"""The scores among which a calibration chooses, from the simplest to the most costly one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.llm.ask import with_bar
from conformal_retrievers.scoring.combine import QueryZScore, TieBreak
from conformal_retrievers.scoring.hits import FusionScorer, RankScorer, RetrievalScorer
from conformal_retrievers.scoring.learned import LearnedScorer
from conformal_retrievers.scoring.order import OrderScorer
from conformal_retrievers.scoring.overlap import OVERLAPS, STEMS, OverlapScorer
from conformal_retrievers.scoring.scorer import (
    Scorer,
    Scores,
    relative_to_query,
    score_snippets,
    with_parts,
)
from conformal_retrievers.scoring.sources import sources_of
from conformal_retrievers.scoring.zfusion import ZFusionScorer

FOLDS = 5
SHARED = OverlapScorer("pieces")  # orders sentences of a document, whose hits are equal


class Candidate(NamedTuple):
    """A scorer, or one that is to be learned from hits and from scorers."""

    name: str
    scorer: Scorer | None  # None: to be learned
    given: tuple[Scorer, ...] = ()  # those of the user's scorers that it needs
    texts: tuple[Scorer, ...] = ()  # scorers without a model that it learns from as well

    @property
    def parts(self) -> tuple[Scorer, ...]:
        """What a learned one is learned from, beside the hits."""
        return (*self.texts, *self.given)


class Remembered:
    """A scorer that has scored some queries, once each; it scores only those."""

    def __init__(self, scorer: Scorer, judged: Sequence[JudgedQuery], *, progress: bool) -> None:
        self.name = scorer.name
        self.relative_to_query = relative_to_query(scorer)
        shown = with_bar(judged, scorer.name) if progress else judged
        self._known = {
            (query.query, query.snippets): score_snippets(scorer, query.query, query.snippets)
            for query in shown
        }

    def score(self, query: str, snippets: Sequence[Snippet]) -> Scores:
        """Return the scores (n,) that the scorer gave."""
        return self._known[query, tuple(snippets)]


def from_hits(judged: Sequence[JudgedQuery], guarantee: Guarantee) -> list[Scorer]:
    """Return the scorers that hits allow without a fit: fusion, rank, score, and z-scores.

    The fusions of several retrievers come first and last: they score all snippets, which a single
    rank does not. A retriever's own rank and score need a hit of it in every query. Equal scores go
    by rank.

    Equal scores of sentences go by the pieces of words that they share with the query. The first
    scorer of sentences is these pieces, which need no hits, and the last one has them in the
    fusion: in both, equal ones go by document and place.
    """
    simple = _of_hits(judged, guarantee)
    if guarantee == "snippet" or not of_sentences(judged):
        return simple
    order = OrderScorer([*simple, SHARED][0])
    return [
        TieBreak(SHARED, then=order),
        *(TieBreak(scorer, then=SHARED) for scorer in simple[:-1]),
        *(TieBreak(fusion, then=order) for fusion in simple[-1:]),
    ]


def of_sentences(judged: Iterable[JudgedQuery]) -> bool:
    """Return whether the snippets of judged queries are sentences."""
    return any(query.split for query in judged)


def _of_hits(judged: Sequence[JudgedQuery], guarantee: Guarantee) -> list[Scorer]:
    sources = sources_of(judged)
    everywhere = set.intersection(*({*query.hits} for query in judged if query.snippets))
    kinds = dict(sources.retrievers)
    names = [*kinds]
    scored = [
        RetrievalScorer(name, higher_is_better=kind == "similarity")
        for name, kind in sources.retrievers
        if name in everywhere and kind != "rank"
    ]
    if not kinds:
        return []
    if guarantee == "snippet":  # only scores that do not depend on the query's other snippets
        return [*scored]
    by_rank = FusionScorer(names) if len(names) > 1 else RankScorer(names[0])
    fusion = [by_rank] if len(names) > 1 else []
    z_fusions = [ZFusionScorer(kinds)] if fusion else []
    z_fusions += [ZFusionScorer(kinds, [SHARED if of_sentences(judged) else STEMS])]
    return [
        *fusion,
        *(RankScorer(name) for name in names if name in everywhere),
        *(_without_ties(s, RankScorer(s.retriever), judged) for s in scored),
        *map(QueryZScore, fusion),
        *(_without_ties(QueryZScore(s), RankScorer(s.retriever), judged) for s in scored),
        *(_without_ties(scorer, by_rank, judged) for scorer in z_fusions),
    ]


def _without_ties(
    scorer: Scorer, by_rank: RankScorer | FusionScorer, judged: Sequence[JudgedQuery]
) -> Scorer:
    """Return the scorer, with equal scores by rank if a retriever gives many of them."""
    if of_sentences(judged):  # those of a document have one rank
        return scorer
    hits = [
        hits for query in judged for name, hits in query.hits.items() if name in by_rank.retrievers
    ]
    found = [scores[np.isfinite(scores)] for _, scores in hits]
    n, different = sum(map(len, found)), sum(len(np.unique(s)) for s in found)
    return scorer if different >= 0.95 * n else TieBreak(scorer, then=by_rank)


def from_scorers(given: Sequence[Scorer], guarantee: Guarantee) -> list[Scorer]:
    """Return the user's scorers and their z-scores; for "snippet" those that are absolute."""
    absolute = [scorer for scorer in given if not relative_to_query(scorer)]
    return absolute if guarantee == "snippet" else [*given, *map(QueryZScore, absolute)]


def candidates_of(
    judged: Sequence[JudgedQuery], given: Sequence[Scorer], guarantee: Guarantee
) -> list[Candidate]:
    """Return the candidates, the simplest first; those that need one of `given` come last."""
    names = [name for name, _ in sources_of(judged).retrievers]
    known = names or of_sentences(judged)
    simple = [Candidate(s.name, s) for s in from_hits(judged, guarantee)] if known else []
    own = [
        Candidate(scorer.name, scorer, tuple(part for part in with_parts(scorer) if part in given))
        for scorer in from_scorers(given, guarantee)
    ]
    if guarantee == "snippet" or not can_learn(judged):
        return [*simple, *own]
    words = tuple([Remembered(unit, judged, progress=False) for unit in words_of(judged)])
    of_texts = [words] if of_sentences(judged) else [(), words] if names else []
    alone = [_to_learn(names, [], texts) for texts in of_texts]
    without_one = [[s for s in given if s is not left_out] for left_out in given]
    subsets = [*without_one, [*given]] if len(given) > 1 else [[*given]] if given else []
    learned = [_to_learn(names, subset, words) for subset in subsets]
    return [*simple, *alone, *own, *learned]


def words_of(judged: Iterable[JudgedQuery]) -> tuple[OverlapScorer, ...]:
    """Return the units of words to learn from.

    Pieces take longer than all else, and order sentences of a document, whose hits are equal.
    """
    sentences = of_sentences(judged)
    return tuple(unit for unit in OVERLAPS.values() if unit != SHARED or sentences)


def _to_learn(
    retrievers: Iterable[str], scorers: Sequence[Scorer], texts: tuple[Scorer, ...]
) -> Candidate:
    read = [*(f"hits of {name}" for name in retrievers), *(["words"] if texts else [])]
    read += [scorer.name for scorer in scorers]
    return Candidate(f"learned({', '.join(read)})", None, tuple(scorers), texts)


def can_learn(judged: Sequence[JudgedQuery]) -> bool:
    """Return whether each fold leaves relevant and irrelevant snippets to learn from."""
    both = {r for i, query in enumerate(judged) for r in query.relevant if i % FOLDS == 0}
    others = {r for i, query in enumerate(judged) for r in query.relevant if i % FOLDS}
    return both == others == {True, False}


def cross_validated(
    candidate: Candidate, judged: Sequence[JudgedQuery], alpha: float | None = None
) -> list[Scores]:
    """Return the scores (n,) of each query, by a scorer that was not fitted on it.

    One that is learned is best where a share alpha of the relevant snippets is dropped.
    """
    scores = [np.empty(0)] * len(judged)
    for fold in range(FOLDS):
        scorer = candidate.scorer
        if scorer is None:
            others = [query for i, query in enumerate(judged) if i % FOLDS != fold]
            scorer = LearnedScorer.fit(others, candidate.parts, alpha=alpha)
        for i in range(fold, len(judged), FOLDS):
            scores[i] = score_snippets(scorer, judged[i].query, judged[i].snippets)
    return scores
