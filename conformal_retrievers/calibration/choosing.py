"""Which score to calibrate with: chosen, and learned, on judged queries that do not calibrate.

    fit part           a third of the judged queries, by a hash of their texts, at most 300: learns
                       a score, and compares it with simpler ones by cross-validation
    calibration part   the others: give the threshold of the winner

The guarantee is exact, because the calibration part never sees the choice. The winner is the
score that is learned from hits and words, unless a simpler one proves as good: its cost, plus half
a standard error of the difference, is at most 2 % above that of the learned one. With few queries,
the noise is larger than what a better choice saves. A score that needs one of the user's scorers
wins if none of the others is within half a standard error of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from conformal_retrievers.calibration.candidates import (
    Candidate,
    Remembered,
    candidates_of,
    cross_validated,
    from_hits,
    from_scorers,
    of_sentences,
)
from conformal_retrievers.calibration.costs import Aim, FitPart
from conformal_retrievers.calibration.record import Added, Choice
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.llm.ask import with_bar
from conformal_retrievers.scoring.combine import QueryZScore
from conformal_retrievers.scoring.learned import LearnedScorer
from conformal_retrievers.scoring.overlap import OVERLAPS
from conformal_retrievers.scoring.scorer import (
    Named,
    Scorer,
    check_not_fitted_on,
    check_scorer,
    provenance_of,
    query_digest,
    reference,
)

SHARE = 3  # the fit part is one of so many
MOST = 300  # queries in the fit part
NOISE = 0.5  # standard errors
SAME = math.log(1.02)  # a cost that is 2 % higher is as good
FEWEST = 20  # queries with a relevant snippet in a fit part: 60 judged queries in all


class Parts(NamedTuple):
    """Judged queries that fit, in the order of their hashes, and those that calibrate."""

    fit: list[JudgedQuery]
    calibration: list[JudgedQuery]


def split(
    judged: Sequence[JudgedQuery], *, needed: int = 0, groups: Sequence[str | None] | None = None
) -> Parts:
    """Return the fit part and the calibration part.

    Which is which depends on the queries' texts only, not on their order. Queries of equal text
    stay together. The fit part leaves `needed` queries with a relevant snippet in each of the
    `groups`, one for each query, if there are as many.

    >>> parts = split([JudgedQuery(text, ["a"], [True]) for text in ("red", "blue", "green")])
    >>> [query.query for query in parts.fit], [query.query for query in parts.calibration]
    (['blue'], ['red', 'green'])
    """
    digests = [query_digest(query.query) for query in judged]
    members: dict[str | None, list[int]] = {}
    for i in sorted(range(len(judged)), key=lambda i: (digests[i], judged[i].id or "")):
        members.setdefault(groups[i] if groups else None, []).append(i)
    chosen: set[str] = set()
    for of_group in members.values():
        spare = sum(any(judged[i].relevant) for i in of_group) - needed
        n = min(len(of_group) // SHARE, MOST * len(of_group) // len(judged), max(0, spare))
        for digest, times in Counter(digests[i] for i in of_group).items():
            if times <= n:  # a question about many documents may be too many for the fit part
                chosen.add(digest)
                n -= times
    fit = [i for of_group in members.values() for i in of_group if digests[i] in chosen]
    calibration = [i for i, digest in enumerate(digests) if digest not in chosen]
    fit.sort(key=lambda i: (digests[i], judged[i].id or ""))
    return Parts([judged[i] for i in fit], [judged[i] for i in calibration])


@dataclass(frozen=True)
class Chosen:
    """A scorer, the queries that calibrate it, and how it was chosen."""

    scorer: Scorer
    calibration: Sequence[JudgedQuery]
    choice: Choice | None = None  # None: the user chose it


def provenance_with(scorer: Named, choice: Choice | None) -> Mapping[str, JsonValue] | None:
    """Return how a scorer is made again, and how it was chosen."""
    if choice is None:
        return provenance_of(scorer)
    return {"score": reference(scorer), "choice": choice.model_dump()}


def choose(
    judged: Sequence[JudgedQuery],
    scorer: Scorer | Sequence[Scorer] | None,
    aim: Aim,
    *,
    needed: int,
    groups: Sequence[str | None] | None = None,
    progress: bool = False,
) -> Chosen:
    """Choose a score by what it costs on the fit part, unless the user gives a single one.

    A list of scorers competes with what the hits give; each of them scores the fit part once. The
    parts are those of `split`. Raises ValueError if the snippets have no hits and no scorer is
    given, or if only some queries have hits.
    """
    if isinstance(scorer, Scorer):
        return Chosen(scorer, judged)
    given = [*(scorer or ())]
    check_given(judged, given)
    parts = split(judged, needed=needed, groups=groups)
    too_few = sum(any(query.relevant) for query in parts.fit) < FEWEST
    if not (given or of_sentences(judged)):  # a single score, or none at all
        too_few |= len(from_hits(parts.fit or judged, aim.guarantee)) <= 1
    if too_few:
        simple = by_default(judged, given, aim)
        return Chosen(simple, judged, Choice(chosen=simple.name, given=[s.name for s in given]))
    known = [Remembered(scorer, parts.fit, progress=progress) for scorer in given]
    candidates = candidates_of(parts.fit, known, aim.guarantee)
    if not candidates:
        raise _none_absolute(given)
    fit = FitPart(parts.fit)
    per_query = fit.weights(aim).sum() / len(parts.fit)  # of the fit part: the others stay unseen
    aim = replace(aim, n=round(per_query * len(parts.calibration)))
    at = fit.share_to_lose(aim)
    tried = with_bar(candidates, "Choosing a score") if progress else candidates
    scores = [cross_validated(candidate, parts.fit, at) for candidate in tried]
    costs, logs = fit.compared(scores, aim)
    best, chosen = picked(candidates, logs)
    winner, names = candidates[chosen], [candidate.name for candidate in candidates]
    choice = Choice(
        chosen=winner.name,
        given=[scorer.name for scorer in given],
        alpha=aim.alpha,
        costs=dict(zip(names, costs[:, 0].tolist(), strict=True)),
        interval=np.quantile(costs[chosen], [0.025, 0.975]).tolist(),
        best=names[best],
        adds=_added(candidates, costs[:, 0].tolist(), known),
        n_fit=len(parts.fit),
        fit_ids=[query.id for query in parts.fit if query.id is not None],
        fit_digests=[query_digest(query.query) for query in parts.fit],
    )
    own = _made(winner, parts.fit, {scorer.name: scorer for scorer in given}, at)
    return Chosen(own, parts.calibration, choice)


def check_given(judged: Sequence[JudgedQuery], given: Sequence[Scorer]) -> None:
    """Raise unless every query has hits, or there are scorers, each once and not fitted on it."""
    for scorer in given:
        check_scorer(scorer)
        check_not_fitted_on(scorer, judged)
    names = [scorer.name for scorer in given]
    if len(set(names)) < len(names):
        raise ValueError(f"scorer has {names}; give each scorer once")
    without = [query for query in judged if query.snippets and not query.hits]
    with_hits = len(without) < sum(bool(query.snippets) for query in judged)
    if with_hits and without:
        raise ValueError(
            f"{without[0].name}: no snippet has a hit, but those of other queries have; judge all "
            "queries with judge_retriever, or remove the hits and give scorer="
        )
    if not with_hits and not given and not of_sentences(judged):
        raise ValueError(
            "no snippet has a hit, so nothing is known to score by; judge with judge_retriever, "
            "which keeps ranks and scores, or give scorer="
        )


def by_default(judged: Sequence[JudgedQuery], given: Sequence[Scorer], aim: Aim) -> Scorer:
    """Return the score where there is nothing to choose on.

    It is the z-score of the first given scorer, or else the mean z-score of the retrievers' scores,
    or ranks, and of the stems that a snippet shares with the query. Sentences without hits go by
    the pieces of words that they share with it. For "snippet" it is the score itself.

    The direction of a score, and whether it has many ties, are read from all judged queries without
    their judgements: facts about the retriever, which one query more does not change unless they
    are in doubt.
    Raises ValueError if there is none.
    """
    if given:
        return from_scorers(given[:1], aim.guarantee)[-1]
    simple = from_hits(judged, aim.guarantee)
    if not simple:
        raise _none_absolute(given)
    return simple[-1]


def _none_absolute(given: Sequence[Scorer]) -> ValueError:
    return ValueError(
        f"guarantee is 'snippet', and neither hits nor scorer {[s.name for s in given]} give a "
        "score that does not depend on the query's other snippets; give such a scorer, or use "
        "'query-recall', 'all' or 'any'"
    )


def _made(
    winner: Candidate,
    fit: Sequence[JudgedQuery],
    real: Mapping[str, Scorer],
    alpha: float | None,
) -> Scorer:
    """Return the winner, with the user's own scorers in place of what remembers their scores."""
    own = [{**OVERLAPS, **real}[part.name] for part in winner.parts]
    if winner.scorer is None:
        learned = LearnedScorer.fit(fit, winner.parts, alpha=alpha)
        return LearnedScorer.from_provenance(learned.provenance, own)
    if not own:
        return winner.scorer
    return own[0] if winner.scorer in winner.given else QueryZScore(own[0])


def _added(
    candidates: Sequence[Candidate], costs: Sequence[float], given: Sequence[Scorer]
) -> dict[str, Added]:
    """Return the lowest cost with and without each given scorer, where there are both."""
    added = {}
    for scorer in given:
        of_all = list(zip(candidates, costs, strict=True))
        with_it = [cost for candidate, cost in of_all if scorer in candidate.given]
        without = [cost for candidate, cost in of_all if scorer not in candidate.given]
        if with_it and without:
            added[scorer.name] = Added(with_it=min(with_it), without=min(without))
    return added


def pick(logs: NDArray[np.float64], noise: float = NOISE) -> tuple[int, int]:
    """Return the best candidate, and the first within `noise` standard errors of it.

    `logs` (c, 1 + r) are what `FitPart.compared` returns. The standard error is that of the
    difference over the r resamples.

    >>> pick(np.array([[0.2, 0.0, 0.2], [0.0, 0.1, 0.3], [-0.1, 0.3, -0.3]]))  # 0.1 ≤ 0.4 / 2
    (2, 1)
    """
    best = int(np.argmin(logs[:, 0]))
    return best, int(np.argmax(logs[:, 0] <= logs[best, 0] + noise * _errors(logs, best)))


def picked(candidates: Sequence[Candidate], logs: NDArray[np.float64]) -> tuple[int, int]:
    """Return the best candidate, and the one that wins, from what `FitPart.compared` returns."""
    best, chosen = pick(logs)
    free = sum(not candidate.given for candidate in candidates)  # those come first
    if chosen < free and candidates[free - 1].scorer is None:  # learned from hits and words
        winner = as_good(logs[:free])
        if best < free or logs[winner, 0] <= logs[best, 0] + NOISE * _errors(logs, best)[winner]:
            chosen = winner
    return best, chosen


def as_good(logs: NDArray[np.float64]) -> int:
    """Return the first candidate within 2 % of the cheapest one that proves as good as the last.

    The last proves it of itself. `logs` are those of `pick`. To prove it, a cost is at most 2 %
    higher with half a standard error added.

    >>> logs = np.array([[0.0, 0.2, -0.2], [0.01, 0.0, 0.0], [0.0, 0.0, 0.0]])
    >>> as_good(logs)  # the standard error of the first is 0.2, that of the second 0
    1
    """
    proves = logs[:, 0] + NOISE * _errors(logs, -1) <= logs[-1, 0] + SAME
    lowest = logs[proves, 0].min()
    return int(np.argmax(proves & (logs[:, 0] <= lowest + SAME)))


def _errors(logs: NDArray[np.float64], reference: int) -> NDArray[np.float64]:
    """Return the standard error of each candidate's difference from a reference, (c,)."""
    return np.asarray((logs[:, 1:] - logs[reference, 1:]).std(axis=1))
