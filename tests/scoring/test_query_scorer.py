"""Query scores: one number a query, what they return, read and are made of."""

import asyncio
import math
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from gates import gate_of
from lookup import LENGTH, LONGEST, QueryFunction

from conformal_retrievers import FunctionScorer, Gate, JudgedQuery, RetrievalScorer, Snippet
from conformal_retrievers.data.hits import Hit, HitColumns
from conformal_retrievers.data.snippets import Retrieved
from conformal_retrievers.scoring import BestScore, ascore_query, score_query
from conformal_retrievers.scoring.query_scorer import query_scores
from conformal_retrievers.scoring.registry import needs, query_scorer_of

# --- what enters, and what comes out --------------------------------------------------------------


def test_nothing_retrieved_is_no_answer_and_asks_nobody():
    def broken(query, texts):
        raise AssertionError

    scorer = QueryFunction(broken, "broken")
    assert score_query(scorer, "q", []) == math.inf
    assert asyncio.run(ascore_query(scorer, "q", [])) == math.inf
    assert query_scores(scorer, [JudgedQuery("q", [], [])]).tolist() == [math.inf]


@pytest.mark.parametrize(
    ("returned", "score"),
    [(1, 1.0), (np.float32(0.5), 0.5), (True, 1.0), (None, math.nan), (math.inf, math.inf)],
)
def test_a_number_is_a_score(returned, score):
    scorer = QueryFunction(lambda query, texts: returned, "f")
    for found in (score_query(scorer, "q", ["a"]), asyncio.run(ascore_query(scorer, "q", ["a"]))):
        assert type(found) is float
        np.testing.assert_equal(found, score)


@pytest.mark.parametrize("returned", [[0.1], [], "0.1", np.zeros((1, 1)), 1j])
def test_anything_else_is_an_error_that_names_the_scorer(returned):
    scorer = SimpleNamespace(name="mine", score_query=lambda query, snippets: returned)
    with pytest.raises(ValueError, match="'mine'"):
        score_query(scorer, "q", ["a"])
    with pytest.raises(ValueError, match="'mine'"):
        asyncio.run(ascore_query(scorer, "q", ["a"]))


def test_a_wrong_argument_is_named():
    with pytest.raises(TypeError, match="scorer is"):
        BestScore(LONGEST)
    calibration = gate_of([0.1, 0.2]).calibration
    for wrong in (LENGTH, len, None):
        with pytest.raises(TypeError, match="scorer is"):
            Gate(wrong, calibration)


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([4.0, math.inf, 1.0, math.nan, 5.0, -math.inf], 1.0),
        ([], math.inf),
        ([math.nan, math.inf], math.nan),
    ],
)
def test_the_best_score_is_the_lowest_finite_one(scores, best):
    scorer = BestScore(FunctionScorer(lambda query, texts: scores, "given"))
    np.testing.assert_equal(score_query(scorer, "q", ["a"] * len(scores)), best)


def test_the_best_score_of_a_retriever_that_found_nothing_is_the_worst():
    best = BestScore(RetrievalScorer("bm25", higher_is_better=True))
    with pytest.warns(UserWarning, match="bm25"):
        assert score_query(best, "q", [Snippet("a", hits=(Hit("dense", 0),))]) == math.inf


# --- where scores come from -----------------------------------------------------------------------


def test_what_only_reads_hits_makes_no_snippet_and_starts_no_thread():
    ranks = np.arange(4.0)
    snippets = Retrieved([None] * 4)  # which have no field to read
    snippets.hits = {
        "bm25": HitColumns(ranks, np.array([9.0, 5.0, 2.0, 1.0])),
        "dense": HitColumns(ranks[::-1], ranks / 10),
    }

    async def together(scorer):
        threads = threading.active_count()
        found = await ascore_query(scorer, "q", snippets)
        assert threading.active_count() == threads
        return found

    best = BestScore(RetrievalScorer("bm25"))
    assert asyncio.run(together(best)) == score_query(best, "q", snippets) == -9.0


def test_a_scorer_without_an_asynchronous_twin_runs_in_a_thread():
    seen = []
    scorer = SimpleNamespace(
        name="s", score_query=lambda query, snippets: float(seen.append(threading.get_ident()) or 0)
    )
    assert asyncio.run(ascore_query(scorer, "q", ["a"])) == 0.0
    assert seen != [threading.get_ident()]


def test_a_failed_query_ends_the_scoring_of_all():
    asked = []

    def fails(query, texts):
        asked.append(query)
        time.sleep(0.01)
        raise OSError(query)

    scorer = QueryFunction(fails, "fails")
    judged = [JudgedQuery(f"q{i}", ["a"], [True]) for i in range(100)]
    with pytest.raises(OSError, match="q0"):
        query_scores(scorer, judged)
    assert asked == ["q0"]
    several = SimpleNamespace(name="s", score_query=scorer.score_query, concurrency=4)
    with pytest.raises(OSError, match="q0"):
        query_scores(several, judged * 40)
    assert len(asked) < 4000


# --- from a provenance ----------------------------------------------------------------------------


def test_what_a_provenance_names_is_given():
    scorer = BestScore(LENGTH)
    assert needs(scorer.provenance) == ["length"]
    assert query_scorer_of(scorer.provenance, [LENGTH, LONGEST]) == scorer
    with pytest.raises(ValueError, match="'length'"):
        query_scorer_of(scorer.provenance, [LONGEST])
