"""Query scores: one number a query, what they return, read and are made of."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from conformal_retrievers.data.hits import HitColumns, Retrieved
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.scoring import (
    FunctionQueryScorer,
    FunctionScorer,
    QueryTieBreak,
    QueryZScore,
    RankAgreement,
    RetrievalScorer,
    ScoreSummary,
    ascore_query,
    retrievers_of,
    score_query,
    scorer_of,
)
from conformal_retrievers.scoring.answerability import check_query_scorer, query_scores
from conformal_retrievers.scoring.rebuild import needs, query_scorer_of
from conformal_retrievers.scoring.scorer import check_not_fitted_on, query_digest
from conformal_retrievers.scoring.summary import NUMBERS

LENGTH = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")
LONGEST = FunctionQueryScorer(lambda query, texts: -max(map(len, texts)), "longest")


# --- what enters, and what comes out --------------------------------------------------------------


@pytest.mark.parametrize(
    "masked", [np.ma.masked, np.ma.array(0.0, mask=True)], ids=["one", "array"]
)
def test_a_masked_query_score_is_a_missing_one(masked):
    scorer = FunctionQueryScorer(lambda query, texts: masked, "masked")
    assert math.isnan(score_query(scorer, "q", ["a"]))


def test_nothing_retrieved_is_no_answer_and_asks_nobody():
    def broken(query, texts):
        raise AssertionError

    scorer = FunctionQueryScorer(broken, "broken")
    assert score_query(scorer, "q", []) == math.inf
    assert asyncio.run(ascore_query(scorer, "q", [])) == math.inf
    assert query_scores(scorer, [JudgedQuery("q", [], [])]).tolist() == [math.inf]


@pytest.mark.parametrize(
    ("returned", "score"),
    [(1, 1.0), (np.float32(0.5), 0.5), (True, 1.0), (None, math.nan), (math.inf, math.inf)],
)
def test_a_number_is_a_score(returned, score):
    scorer = FunctionQueryScorer(lambda query, texts: returned, "f")
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
    with pytest.raises(ValueError, match="number is 'worst'"):
        ScoreSummary(LENGTH, "worst")
    with pytest.raises(TypeError, match="scorer is"):
        ScoreSummary(LONGEST, "best")
    for wrong in (LENGTH, len, None):
        with pytest.raises(TypeError, match="scorer is"):
            check_query_scorer(wrong)
    with pytest.raises(TypeError, match="scorer is"):
        QueryTieBreak(LONGEST, then=LENGTH)


def test_blank_texts_are_snippets_like_others():
    assert score_query(ScoreSummary(LENGTH, "best"), "q", ["", "abc"]) == 0.0
    assert score_query(LONGEST, "q", [" "]) == -1.0


# --- where scores come from -----------------------------------------------------------------------


def test_what_only_reads_hits_makes_no_snippet_and_starts_no_thread():
    ranks = np.arange(4.0)
    columns = {
        "bm25": HitColumns(ranks, np.array([9.0, 5.0, 2.0, 1.0])),
        "dense": HitColumns(ranks[::-1], ranks / 10),
    }

    def refuse():
        raise AssertionError

    unread = dict.fromkeys(("texts", "documents", "positions", "snippets"), refuse)
    snippets = Retrieved(4, hits=lambda: columns, **unread)

    async def together(scorer):
        threads = threading.active_count()
        found = await ascore_query(scorer, "q", snippets)
        assert threading.active_count() == threads
        return found

    for scorer in (
        ScoreSummary(RetrievalScorer("bm25"), "margin"),
        RankAgreement(["bm25", "dense"]),
    ):
        assert asyncio.run(together(scorer)) == score_query(scorer, "q", snippets)
    assert score_query(ScoreSummary(RetrievalScorer("bm25"), "margin"), "q", snippets) == -4.0


def test_a_scorer_without_an_asynchronous_twin_runs_in_a_thread():
    seen = []
    scorer = SimpleNamespace(
        name="s", score_query=lambda query, snippets: float(seen.append(threading.get_ident()) or 0)
    )
    assert asyncio.run(ascore_query(scorer, "q", ["a"])) == 0.0
    assert seen != [threading.get_ident()]


async def test_parts_are_awaited_at_the_same_time_and_stopped_if_one_fails():
    started, stopped = asyncio.Event(), asyncio.Event()

    async def waits(query, texts):
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    async def fails(query, texts):
        await started.wait()
        raise OSError("no connection")

    scorer = QueryTieBreak(
        FunctionQueryScorer(len, "waits", waits), then=FunctionQueryScorer(len, "fails", fails)
    )
    with pytest.raises(OSError, match="no connection"):
        await ascore_query(scorer, "q", ["a"])
    assert stopped.is_set()


async def test_ties_are_broken_and_unknown_stays_unknown():
    shortest = FunctionQueryScorer(lambda query, texts: min(map(len, texts)), "shortest")
    scorer = QueryTieBreak(LONGEST, then=shortest)
    lists = [["abc", "a"], ["abc"], ["ab"], ["abcd", "abc"]]
    scores = [score_query(scorer, "q", snippets) for snippets in lists]
    assert np.argsort(scores).tolist() == [3, 0, 1, 2]
    assert scores == [await ascore_query(scorer, "q", snippets) for snippets in lists]
    unknown = FunctionQueryScorer(lambda query, texts: math.nan, "unknown")
    for both in (QueryTieBreak(LONGEST, then=unknown), QueryTieBreak(unknown, then=LONGEST)):
        assert math.isnan(score_query(both, "q", ["a"]))


def test_what_the_parts_read_and_were_fitted_on_is_known():
    fitted = SimpleNamespace(name="fitted", score=len, fitted_on=[query_digest("old")])
    scorer = QueryTieBreak(RankAgreement(["a", "b"]), then=ScoreSummary(fitted, "best"))
    assert retrievers_of(scorer) == ("a", "b")
    with pytest.raises(ValueError, match="'old'"):
        check_not_fitted_on(scorer, [JudgedQuery("old", ["a"], [True])])
    assert scorer.name == "tiebreak(agreement(a, b), then=best(fitted))"


def test_a_failed_query_ends_the_scoring_of_all():
    asked = []

    def fails(query, texts):
        asked.append(query)
        time.sleep(0.01)
        raise OSError(query)

    scorer = FunctionQueryScorer(fails, "fails")
    judged = [JudgedQuery(f"q{i}", ["a"], [True]) for i in range(100)]
    with pytest.raises(OSError, match="q0"):
        query_scores(scorer, judged)
    assert asked == ["q0"]
    several = SimpleNamespace(name="s", score_query=scorer.score_query, concurrency=4)
    with pytest.raises(OSError, match="q0"):
        query_scores(several, judged * 40)
    assert len(asked) < 4000


# --- from a provenance ----------------------------------------------------------------------------

BEST = ScoreSummary(RetrievalScorer("dense"), "best")


@pytest.mark.parametrize(
    "scorer",
    [
        *(ScoreSummary(QueryZScore(RetrievalScorer("bm25")), number) for number in NUMBERS),
        RankAgreement(["a", "b", "c"]),
        QueryTieBreak(RankAgreement(["a", "b"]), then=BEST),
    ],
    ids=lambda scorer: scorer.name,
)
def test_a_query_scorer_is_made_again_from_its_provenance(scorer):
    again = query_scorer_of(json.loads(json.dumps(scorer.provenance)))
    assert (again, again.name) == (scorer, scorer.name)


def test_what_a_provenance_names_is_given():
    scorer = QueryTieBreak(LONGEST, then=ScoreSummary(LENGTH, "margin"))
    assert needs(scorer.provenance) == ["longest", "length"]
    assert query_scorer_of(scorer.provenance, [LENGTH, LONGEST]) == scorer
    assert query_scorer_of({"name": "longest"}, [scorer]) == LONGEST  # as a part of it
    with pytest.raises(ValueError, match="'longest'"):
        query_scorer_of(scorer.provenance, [LENGTH])


@pytest.mark.parametrize(
    "provenance",
    [
        {"kind": "pickle"},
        {"kind": "summary", "number": "best"},
        {"kind": "summary", "number": "best", "scorer": RankAgreement(["a", "b"]).provenance},
        {"kind": "query tiebreak", "scorer": BEST.provenance},
        {"kind": "query tiebreak", "scorer": BEST.provenance, "then": RetrievalScorer().provenance},
        {"kind": "agreement", "retrievers": [1, 2]},
        RetrievalScorer().provenance,  # it scores snippets
        {},
    ],
)
def test_a_provenance_of_something_else_is_an_error(provenance):
    with pytest.raises(ValueError, match="scorer_provenance"):
        query_scorer_of(provenance)
    with pytest.raises(ValueError, match="scorer_provenance"):
        scorer_of(BEST.provenance)
