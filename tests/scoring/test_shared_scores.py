"""A model that a filter and its gate both need is asked once for a query."""

import asyncio
import copy
import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from lookup import Sum

from conformal_retrievers import Calibration, ConformalFilter, Gate, ScoredQuery, Snippet
from conformal_retrievers.calibration.subjects import QUERIES
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.scoring import (
    BestScore,
    FunctionScorer,
    QueryZScore,
    RetrievalScorer,
    ascore_snippets,
    score_snippets,
)
from conformal_retrievers.scoring.shared_scores import shared

TEXTS = ("a", "bcd", "ef")
SNIPPETS = tuple(map(Snippet, TEXTS))


def counting(name="length", fails=False):
    """A scorer by length, and the queries that it was asked."""
    asked = []

    def score(query, texts):
        asked.append(query)
        if fails:
            raise TimeoutError(name)
        return [float(len(text)) for text in texts]

    async def ascore(query, texts):
        await asyncio.sleep(0)
        return score(query, texts)

    return FunctionScorer(score, name, ascore), asked


def behind(scorer, part):
    """A filter by one scorer behind a gate by the best score of another."""
    best = BestScore(part)
    one = Calibration.from_scores([ScoredQuery([5.0], [True])], alpha=0.5, scorer=scorer.name)
    of_gate = Calibration(0.5, "all", best.name, one.queries, subject=QUERIES)
    return ConformalFilter(scorer, one, gate=Gate(best, of_gate))


async def test_a_scorer_of_filter_and_gate_and_a_part_of_one_are_asked_once():
    scorer, asked = counting()
    other, asked_other = counting("other")
    for own, scores in ((scorer, [1, 3, 2]), (Sum(other, scorer), [2, 6, 4])):
        conformal = behind(own, scorer)
        asked.clear()
        for filtered in (conformal("q", TEXTS), await conformal.acall("q", TEXTS)):
            assert (filtered.scores.tolist(), filtered.gated.score) == (scores, 1.0)
        assert asked == ["q", "q"]  # by each call
    assert asked_other == ["q", "q"]


async def test_scores_that_a_gate_may_turn_round_are_refused_by_the_filter_behind_it():
    similarity = RetrievalScorer("dense")
    conformal = behind(similarity, QueryZScore(similarity))  # which compares them with each other
    far = [replace(snippet, retrieval_score=0.1 * i) for i, snippet in enumerate(SNIPPETS)]
    given = with_hits(far, "dense")
    with pytest.raises(ValueError, match="'dense' are distances, .*higher_is_better=False"):
        conformal("q", given)
    with pytest.raises(ValueError, match="the scores of 'dense' are distances"):
        await conformal.acall("q", given)


def test_an_error_reaches_the_caller_and_is_not_kept():
    scorer, asked = counting(fails=True)
    conformal = behind(scorer, scorer)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            conformal("q", TEXTS)
        with pytest.raises(TimeoutError):
            asyncio.run(conformal.acall("q", TEXTS))
    assert len(asked) == 4


def endless(asked):
    """A scorer that sets `asked`, and returns nothing."""

    async def ascore(query, texts):
        asked.set()
        await asyncio.Event().wait()

    return FunctionScorer(None, "endless", ascore)


def failing(after):
    async def ascore(query, texts):
        await after.wait()
        raise TimeoutError

    return FunctionScorer(None, "failing", ascore)


async def test_the_gates_own_error_is_raised_while_a_score_of_both_is_awaited():
    asked = asyncio.Event()
    of_both = endless(asked)
    with pytest.raises(TimeoutError):
        await behind(of_both, Sum(of_both, failing(asked))).acall("q", TEXTS)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize(
    "scoring",
    [
        lambda one, other: behind(one, other).acall("q", TEXTS),
        lambda one, other: ascore_snippets(Sum(one, other), "q", SNIPPETS),
    ],
    ids=["filter and gate", "sum"],
)
async def test_no_other_model_is_awaited_after_a_failure_or_a_cancellation(scoring, cancelled):
    asked = asyncio.Event()
    one = failing(asyncio.Event() if cancelled else asked)
    call = asyncio.ensure_future(scoring(one, endless(asked)))
    await asked.wait()
    if cancelled:
        call.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else TimeoutError):
        await call
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_queries_at_once_do_not_share_scores():
    scorer, asked = counting()
    conformal = behind(scorer, scorer)
    texts = [["x" * (i + 1)] for i in range(50)]
    found = await asyncio.gather(*(conformal.acall("q", one) for one in texts))
    assert [f.scores.tolist() for f in found] == [[i + 1.0] for i in range(50)]
    assert len(asked) == 50


async def test_other_snippets_are_scored_anew_and_known_scores_cannot_be_changed():
    scorer, asked = counting()
    with shared(SNIPPETS) as snippets:
        for _ in range(2):
            score_snippets(scorer, "q", snippets)[:] = np.nan
        assert score_snippets(scorer, "q", snippets).tolist() == [1.0, 3.0, 2.0]
        assert score_snippets(scorer, "q", snippets[1:]).tolist() == [3.0, 2.0]
        assert score_snippets(scorer, "r", snippets).tolist() == [1.0, 3.0, 2.0]
        assert (await ascore_snippets(scorer, "q", snippets)).tolist() == [1.0, 3.0, 2.0]
    assert asked == ["q", "q", "r", "q"]
    score_snippets(scorer, "q", snippets)
    assert len(asked) == 5  # outside, scores are not kept


@pytest.mark.parametrize("with_a_gate", [False, True])
async def test_a_filter_in_the_scorer_of_another_has_scores_of_its_own(with_a_gate):
    scorer, asked = counting()
    inner = behind(scorer, scorer)

    async def ascore(query, snippets):
        return (await inner.acall(query, snippets)).scores

    outer = SimpleNamespace(name="outer", score=len, ascore=ascore)
    filtered = await behind(outer, scorer if with_a_gate else outer).acall("q", TEXTS)
    assert filtered.scores.tolist() == [1.0, 3.0, 2.0]
    assert len(asked) == 1 + with_a_gate


async def test_snippets_that_a_scorer_is_given_are_a_value_that_can_be_copied_and_sent():
    seen = []

    async def ascore(query, given):  # while the gate awaits the same scores
        seen.extend([given, pickle.loads(pickle.dumps(given)), copy.deepcopy(given)])
        return [0.0] * len(given)

    scorer = SimpleNamespace(name="s", score=len, ascore=ascore)
    await behind(scorer, scorer).acall("q", TEXTS)
    for one in seen:
        assert one == SNIPPETS
        assert hash(one) == hash(SNIPPETS)
    assert len(seen) == 3
