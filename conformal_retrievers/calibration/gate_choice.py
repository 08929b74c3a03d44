"""Which query score a gate uses: chosen on questions that do not calibrate.

What a score costs is the rate of false speech at false silence alpha, the mean over the sources of
unanswerable queries. The cheapest is taken.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.scoring.answerability import QueryScorer, score_query
from conformal_retrievers.scoring.hits import HitScorer
from conformal_retrievers.scoring.scorer import Scorer
from conformal_retrievers.scoring.sources import sources_of
from conformal_retrievers.scoring.summary import NUMBERS, RankAgreement, ScoreSummary
from conformal_retrievers.theory.ranks import conformal_rank

Given = Sequence[Scorer | QueryScorer]


class ChosenGate(NamedTuple):
    """A query score, the rate of false speech of each candidate, and which is lowest."""

    scorer: QueryScorer
    costs: dict[str, float]
    best: str


def default_gate(judged: Sequence[JudgedQuery], given: Given) -> QueryScorer:
    """Return the score where there is nothing to choose on: the best score of the first source.

    Raises ValueError if nothing is given and the hits have no scores.
    """
    candidates = _candidates(judged, given)
    if not candidates:
        raise ValueError(
            "no snippet has a hit with a score, so nothing is known to score queries by; judge "
            "with judge_retriever, or give scorer=[…]"
        )
    return candidates[0]


def choose_gate(
    answerable: Sequence[JudgedQuery],
    unanswerable: Mapping[str, Sequence[JudgedQuery]],
    given: Given,
    alpha: float,
) -> ChosenGate:
    """Return the score that speaks least on unanswerable queries, of those that are possible."""
    everything = [
        *answerable,
        *(query for of_source in unanswerable.values() for query in of_source),
    ]
    costs, candidates = {}, _candidates(everything, given)
    for candidate in candidates:
        passed = np.sort([_score(candidate, query) for query in answerable])
        k = conformal_rank(len(passed), alpha)
        threshold = passed[k - 1] if k <= len(passed) else math.inf
        rates = [
            float(np.mean([_score(candidate, query) <= threshold for query in of_source]))
            for of_source in unanswerable.values()
        ]
        costs[candidate.name] = float(np.mean(rates))
    best = min(candidates, key=lambda candidate: costs[candidate.name])
    return ChosenGate(best, costs, best.name)


def _candidates(judged: Sequence[JudgedQuery], given: Given) -> list[QueryScorer]:
    queries = [one for one in given if isinstance(one, QueryScorer)]
    kinds = sources_of(judged).retrievers
    snippets: list[Scorer] = [one for one in given if not isinstance(one, QueryScorer)]
    snippets += [
        HitScorer(name, higher_is_better=kind == "similarity")
        for name, kind in kinds
        if kind != "rank"
    ]
    names = [name for name, _ in kinds]
    agreement = [RankAgreement(names)] if len(names) > 1 else []
    summaries = [ScoreSummary(one, number) for number in NUMBERS for one in snippets]
    return [*queries, *summaries, *agreement]


def _score(scorer: QueryScorer, query: JudgedQuery) -> float:
    score = score_query(scorer, query.query, query.snippets)
    return -math.inf if math.isnan(score) else score
