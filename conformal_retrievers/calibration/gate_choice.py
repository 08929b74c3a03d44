"""Which score of queries is used: chosen, and learned, on questions that do not calibrate.

    cost = geometric mean over the sources of unanswerable queries of their rate of false speech,
           (number that pass + ½) / (number + 1), at false silence alpha

by five-fold cross-validation, a question with and without its answers in one fold. With the
geometric mean, a source that is hard for all scores does not hide a score that cannot see an easy
one, such as questions off the topic. The winner is the first score whose cost at alpha, 2 alpha and
4 alpha is within a standard error, over questions, of the lowest. The first is what is learned from
hits, then the best score of each retriever; last come those that need a given scorer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.fitting import FEWEST, FOLDS
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.scoring.answerability import BestScore, QueryScorer, query_scores
from conformal_retrievers.scoring.hits import RetrievalScorer
from conformal_retrievers.scoring.learned_gate import (
    LearnedQueryScorer,
    by_kind,
    filled,
    least_of,
    read_in,
    regress_kinds,
    table_of,
)
from conformal_retrievers.scoring.rebuild import query_scorer_of
from conformal_retrievers.scoring.scorer import Scorer, Scores, query_digest, score_snippets
from conformal_retrievers.scoring.sources import sources_of
from conformal_retrievers.theory.ranks import conformal_rank

Given = Sequence[Scorer | QueryScorer]
Kinds = Sequence[Sequence[JudgedQuery]]  # the answerable queries, and then each other source
RESAMPLES = 200
NOISE = 1.0  # standard errors
SHARE = 3  # the fit part is one of so many
Array = NDArray[np.float64]


class ChosenGate(NamedTuple):
    """A query score, what each candidate costs, and the names of the winner and the cheapest."""

    scorer: QueryScorer
    costs: dict[str, float]
    chosen: str
    best: str


class Candidate(NamedTuple):
    """A query scorer, or one that is to be learned from hits and from scorers."""

    name: str
    scorer: QueryScorer | None  # None: to be learned
    parts: tuple[Scorer | QueryScorer, ...] = ()


class Remembered:
    """A scorer that has scored some queries, once each; it scores only those."""

    def __init__(self, scorer: Scorer, judged: Sequence[JudgedQuery]) -> None:
        self.name = scorer.name
        self._known = {
            (query.query, query.snippets): score_snippets(scorer, query.query, query.snippets)
            for query in judged
        }

    def score(self, query: str, snippets: Sequence[Snippet]) -> Scores:
        """Return the scores (n,) that the scorer gave."""
        return self._known[query, tuple(snippets)]


class RememberedQuery:
    """A query scorer that has scored some queries, once each; it scores only those."""

    def __init__(self, scorer: QueryScorer, judged: Sequence[JudgedQuery]) -> None:
        self.name = scorer.name
        scores = query_scores(scorer, judged)
        keys = [(query.query, query.snippets) for query in judged]
        self._known: dict[object, float] = dict(zip(keys, scores.tolist(), strict=True))

    def score_query(self, query: str, snippets: Sequence[Snippet]) -> float:
        """Return the score that the scorer gave."""
        return self._known[query, tuple(snippets)]


def choose_gate(
    answerable: Sequence[JudgedQuery],
    unanswerable: Mapping[str, Sequence[JudgedQuery]],
    given: Given,
    alpha: float,
) -> ChosenGate:
    """Choose a query score by what it costs at false silence alpha, see above.

    The candidates are what hits allow, the given scorers, and what is learned from the hits alone,
    and from them and the given scorers, each of which scores every query once. Unanswerable queries
    are by source. Raises ValueError if nothing is known to score by.
    """
    kinds: Kinds = [answerable, *unanswerable.values()]
    everything = [query for queries in kinds for query in queries]
    known: list[Scorer | QueryScorer] = [
        RememberedQuery(one, everything)
        if isinstance(one, QueryScorer)
        else Remembered(one, everything)
        for one in given
    ]
    candidates = candidates_of(kinds, known)
    if not candidates:
        raise _nothing_known()
    scores = [cross_validated(candidate, kinds) for candidate in candidates]
    digests = [[query_digest(query.query) for query in queries] for queries in kinds]
    counted = resamples(digests)
    costs = np.array([[costs_of(of, counted, a) for a in around(alpha)] for of in scores])
    best, chosen = pick(np.log(costs).mean(axis=1))
    winner, names = candidates[chosen], [candidate.name for candidate in candidates]
    own = {one.name: one for one in by_kind(given)[1]}.get(winner.name)
    if own is None:
        made: Any = winner.scorer or LearnedQueryScorer.fit(answerable, unanswerable, winner.parts)
        own = query_scorer_of(made.provenance, given)  # with the user's own scorers inside
    at_alpha = dict(zip(names, costs[:, 0, 0].tolist(), strict=True))
    return ChosenGate(own, at_alpha, names[chosen], names[best])


def default_gate(judged: Sequence[JudgedQuery], given: Given) -> QueryScorer:
    """Return the score where there is nothing to choose on: how good the best snippet is.

    It is that of the first given scorer, which may be one of queries, or of the retriever whose
    best score is furthest from its last one, in standard deviations of the best over queries. That
    is a fact about the retriever, which one query more does not change unless it is in doubt.
    Raises ValueError if nothing is given and the hits have no scores.
    """
    for one in given:
        return one if isinstance(one, QueryScorer) else BestScore(one)
    scored = _scored_hits(judged)
    if not scored:
        raise _nothing_known()

    def distance(hits: RetrievalScorer) -> float:
        found = [q.hits[hits.retriever].scores for q in judged if hits.retriever in q.hits]
        finite = (scores[np.isfinite(scores)] for scores in found)
        ends = np.array([(scores.max(), scores.min()) for scores in finite])
        best = ends[:, 0 if hits.higher_is_better else 1]
        return float((ends[:, 0] - ends[:, 1]).mean() / max(best.std(), 1e-300))

    return BestScore(max(scored, key=distance))


def _scored_hits(judged: Sequence[JudgedQuery]) -> list[RetrievalScorer]:
    """Return the scorers by each retriever whose hits have scores."""
    kinds = sources_of(judged).retrievers
    return [RetrievalScorer(name, kind == "similarity") for name, kind in kinds if kind != "rank"]


def _nothing_known() -> ValueError:
    return ValueError(
        "no snippet has a hit with a score, so nothing is known to score queries by; judge with "
        "judge_retriever, or give scorer=[…]"
    )


def candidates_of(kinds: Kinds, given: Given) -> list[Candidate]:
    """Return the candidates, in the order in which they are preferred if they cost the same."""
    judged = [query for queries in kinds for query in queries]
    names, hits = sorted({name for query in judged for name in query.hits}), _scored_hits(judged)
    of_snippets, of_queries = by_kind(given)
    simple: list[QueryScorer] = [*map(BestScore, hits), *of_queries, *map(BestScore, of_snippets)]
    learned: list[Candidate] = []
    if can_learn(kinds):
        without_one = [[s for s in given if s is not left_out] for left_out in given]
        subsets = [[], *(without_one if len(given) > 1 else []), *([[*given]] if given else [])]
        learned = [_to_learn(names, subset) for subset in subsets if names or subset]
    alone = [one for one in learned if not one.parts]
    return [
        *alone,
        *(Candidate(one.name, one) for one in simple),
        *learned[len(alone) :],
    ]


def _to_learn(retrievers: Sequence[str], parts: Given) -> Candidate:
    read = [*(f"hits of {name}" for name in retrievers), *(part.name for part in parts)]
    return Candidate(f"learned({', '.join(read)})", None, tuple(parts))


def can_learn(kinds: Kinds) -> bool:
    """Return whether there are enough queries of both kinds to learn from."""
    answerable, *others = map(len, kinds)
    return answerable >= FEWEST and sum(others) >= FEWEST


def pick(logs: Array) -> tuple[int, int]:
    """Return the best candidate, and the first within a standard error of it.

    `logs` (c, 1 + r) are logarithms of costs, on all queries and on r resamples of them. The
    standard error is that of the difference over the resamples.

    >>> pick(np.array([[0.4, 0.0, 0.2], [0.0, 0.1, 0.3], [-0.1, 0.3, -0.3]]))
    (2, 1)
    """
    best = int(np.argmin(logs[:, 0]))
    errors = (logs[:, 1:] - logs[best, 1:]).std(axis=1)
    return best, int(np.argmax(logs[:, 0] <= logs[best, 0] + NOISE * errors))


# --- costs ----------------------------------------------------------------------------------------


def around(alpha: float) -> list[float]:
    """Return the rates of false silence at which scores are compared; the first is alpha.

    >>> around(0.05), around(0.5)
    ([0.05, 0.1, 0.2], [0.5, 0.75, 0.875])
    """
    return [min(times * alpha, 1 - (1 - alpha) / times) for times in (1, 2, 4)]


def folds_of(kinds: Kinds) -> list[NDArray[np.intp]]:
    """Return the fold of each query, (n,); queries of one text are in one fold, whatever kind.

    >>> asked = [JudgedQuery(text, ["a"], [True]) for text in ("red", "blue", "green")]
    >>> folds_of([asked, asked[1:]])
    [array([1, 0, 2]), array([0, 2])]
    """
    digests = [[query_digest(query.query) for query in queries] for queries in kinds]
    order = {digest: i for i, digest in enumerate(sorted({d for ds in digests for d in ds}))}
    return [np.array([order[d] % FOLDS for d in of], dtype=np.intp) for of in digests]


def cross_validated(candidate: Candidate, kinds: Kinds) -> list[Scores]:
    """Return the scores (n,) of each kind, by a scorer not fitted on them; −inf if unknown."""
    if candidate.scorer is not None:
        scores = [query_scores(candidate.scorer, queries) for queries in kinds]
    else:
        of_snippets, of_queries = by_kind(candidate.parts)
        sources = read_in([query for queries in kinds for query in queries], of_snippets)
        tables = [table_of(sources, of_snippets, of_queries, queries) for queries in kinds]
        scores = [np.full(len(queries), np.nan) for queries in kinds]
        folds = folds_of(kinds)
        for i in range(FOLDS):
            inside = [of == i for of in folds]
            rest = [table[~own] for table, own in zip(tables, inside, strict=True)]
            regression = regress_kinds(rest)
            least = least_of(regression, rest)
            for of, table, own in zip(scores, tables, inside, strict=True):
                of[own] = -regression.log_odds(filled(table[own], least, len(of_queries)))
    return [np.where(np.isnan(of), -np.inf, of) for of in scores]


def resamples(digests: Sequence[Sequence[str]]) -> list[Array]:
    """Return how often each query is drawn, (1 + r, n) for each kind; the first row is all ones.

    What is drawn are questions: those that several kinds share are drawn together.
    """
    order = {digest: i for i, digest in enumerate(sorted({d for of in digests for d in of}))}
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(len(order), np.full(len(order), 1 / len(order)), RESAMPLES)
    times = np.vstack([np.ones(len(order)), drawn])
    return [times[:, [order[digest] for digest in of]] for of in digests]


def costs_of(scores: Sequence[Scores], counted: Sequence[Array], alpha: float) -> Array:
    """Return the cost of a score at false silence alpha in each resample, (1 + r,).

    >>> answerable, unanswerable = np.array([0.1, 0.2, 0.3]), np.array([0.25, 0.35, 0.45])
    >>> costs_of([answerable, unanswerable], [np.ones((1, 3)), np.ones((1, 3))], alpha=0.25)
    array([0.375])
    """
    (passed, *others), (times, *of_others) = scores, counted
    order = np.argsort(passed)
    share = min(conformal_rank(len(passed), alpha), len(passed)) / len(passed)
    below = np.cumsum(times[:, order], axis=1)
    first = (below >= share * below[:, -1:] * (1 - 1e-12)).argmax(axis=1)
    threshold = passed[order][first]
    logs = []
    for of_source, drawn in zip(others, of_others, strict=True):
        speaks = ((of_source <= threshold[:, np.newaxis]) * drawn).sum(axis=1)
        logs.append(np.log((speaks + 0.5) / (drawn.sum(axis=1) + 1)))
    return np.asarray(np.exp(np.mean(logs, axis=0)))
