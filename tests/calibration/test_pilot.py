"""What more judged queries remove more, expected from a pilot."""

from __future__ import annotations

import math

import numpy as np
import pytest
from calibrations import calibration_of

from conformal_retrievers import JudgedQuery, RetrievalScorer, ScoredQuery, Snippet, score_queries
from conformal_retrievers.calibration.choosing import split
from conformal_retrievers.calibration.pilot import Pilot, scored_pilot
from conformal_retrievers.calibration.planning import plan

ONE = [ScoredQuery([0.5, 0.9, 0.9, math.nan], [True, False, False, False])] * 30


def drawn(rng, n):
    """Queries with one to three relevant snippets among ten."""
    sizes = rng.integers(1, 4, n)
    return [
        ScoredQuery(
            np.where(np.arange(10) < m, rng.normal(0, 1, 10), rng.normal(2, 1, 10)),
            np.arange(10) < m,
        )
        for m in sizes
    ]


def test_where_queries_are_alike_more_of_them_remove_nothing_more():
    """Half of the snippets are kept: the relevant one, and one without a score."""
    outlooks = plan(0.1, 9, pilot=ONE).outlooks
    assert [o.kept for o in outlooks] == [(0.5, 0.5, 0.5)] * 3
    assert [o.fewer for o in outlooks] == [None, (0, 0, 0), (0, 0, 0)]


def test_too_few_queries_keep_everything_and_delta_needs_more():
    few, enough = plan(0.1, 8, pilot=ONE).outlooks[:2]
    assert (few.kept.estimate, enough.kept.estimate, enough.fewer.estimate) == (1, 0.5, 0.5)
    few, enough = plan(0.1, 22, delta=0.1, guarantee="all", pilot=ONE).outlooks[:2]
    assert (few.kept.estimate, enough.kept.estimate) == (0.5, 0.5)
    assert plan(0.1, 21, delta=0.1, guarantee="all", pilot=ONE).outlooks[0].kept == (1, 1, 1)


@pytest.mark.parametrize("guarantee", ["query-recall", "all", "any"])
@pytest.mark.parametrize("n", [15, 60])
def test_what_is_expected_is_the_mean_over_calibrations_on_resampled_queries(guarantee, n):
    """The mean of 500 has a standard error of 0.01 at most; the normal law is as close."""
    rng = np.random.default_rng(3)
    queries = drawn(rng, 80)
    scores = np.sort(np.concatenate([query.scores for query in queries]))
    kept = []
    for _ in range(500):
        some = [queries[i] for i in rng.integers(0, 80, n)]
        threshold = calibration_of(some, 0.1, guarantee).threshold()
        kept.append(np.searchsorted(scores, threshold, side="right") / len(scores))
    expected = Pilot.of(queries, guarantee).expected(n, 0.1)[0]
    assert expected == pytest.approx(np.mean(kept), abs=0.03)


def test_the_interval_is_that_of_the_pilot_and_shrinks_with_it():
    rng = np.random.default_rng(4)
    queries = drawn(rng, 400)
    small, large = (plan(0.1, 50, pilot=of).outlooks[0].kept for of in (queries[:40], queries))
    assert small.low < small.estimate < small.high
    assert large.high - large.low < (small.high - small.low) / 2
    told = " ".join(plan(0.1, 50, pilot=queries).told.split())
    assert f"By the pilot, 50 keep {large} of the snippets, and 200 keep" in told
    assert max(map(len, str(plan(0.1, 50, pilot=queries)).split("\n"))) <= 80
    assert plan(0.1, pilot=queries).n == 400


def test_judged_queries_are_scored_as_calibrate_would_score_them():
    """From 60 on, a third chooses a score from the hits, and the others are the pilot."""
    rng = np.random.default_rng(5)
    judged = [
        JudgedQuery(
            f"question {i}",
            [Snippet(f"text {i} {j}", retrieval_score=s) for j, s in enumerate(scores)],
            [j == i % 3 for j in range(5)],
        )
        for i, scores in enumerate(rng.normal(size=(90, 5)))
    ]
    scorer = RetrievalScorer("search", higher_is_better=True)
    found = scored_pilot(judged, 0.1, "query-recall", None, [scorer])
    expected = score_queries(scorer, split(judged, needed=9).calibration)
    assert len(found) == 60
    assert [q.scores.tolist() for q in found] == [q.scores.tolist() for q in expected]


def test_a_pilot_that_tells_nothing_is_named():
    for guarantee, pilot, named in (
        ("snippet", ONE, "pilot"),
        ("all", ONE[:1], "pilot"),
        ("all", [], "pilot"),
    ):
        with pytest.raises(ValueError, match=named):
            plan(0.1, guarantee=guarantee, pilot=pilot)
    with pytest.raises(TypeError, match="pilot"):
        plan(0.1, pilot=["q"])
