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


def two_scores(*of_half):
    """Queries whose relevant snippets have these scores in one half, 0 in the other; 0.5 is not."""
    relevant = [True] * len(of_half) + [False]
    zeros = [0.0] * len(of_half)
    return [ScoredQuery([*of_one, 0.5], relevant) for of_one in [of_half, zeros] for _ in range(20)]


def test_a_sum_of_shares_is_normal_and_one_of_0_and_1_is_binomial():
    # At 0 the shares are 1/2 and 1: μ = 3/4, σ = 1/4. The sum of 16 is to reach 3/4 · 17 = 12.75
    # and has the mean 12 and the deviation 1: P(T = 0) = Φ(−0.75), where 60 of 120 are kept.
    expected = Pilot.of(two_scores(0.0, 1.0), "query-recall").expected(16, 0.25)[0]
    assert expected == pytest.approx(1 - 0.5 * 0.226627, abs=1e-6)
    # One relevant snippet: two of three are to be at 0, with probability 1/2; 20 of 80 are kept.
    for guarantee in ("query-recall", "all", "any"):
        expected = Pilot.of(two_scores(1.0), guarantee).expected(3, 0.5)[0]
        assert expected == pytest.approx(1 - 0.75 * 0.5)
    # Of 9, three: ⌈(1 − 0.7) · 10⌉ is 4 in floats.
    expected = Pilot.of(two_scores(1.0), "all").expected(9, 0.7)[0]
    assert expected == pytest.approx(1 - 0.75 * (1 - 46 / 512))


def test_an_interval_spans_80_percent_of_resamples_of_as_many_queries():
    # All that varies is whether the irrelevant snippet is kept, as it is of one half: the share of
    # 100 queries has the deviation 0.5 · √(1/4 / 100).
    pilot = [ScoredQuery([0.0, i % 2], [True, False]) for i in range(100)]
    kept = plan(0.1, pilot=pilot).outlooks[0].kept
    assert kept.estimate == 0.75
    assert kept.high - kept.low == pytest.approx(2 * 1.2816 * 0.025, rel=0.2)


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
        ("all", ONE[:29], "30 or more"),
        ("all", [], "pilot"),
    ):
        with pytest.raises(ValueError, match=named):
            plan(0.1, guarantee=guarantee, pilot=pilot)
    with pytest.raises(TypeError, match="pilot"):
        plan(0.1, pilot=["q"])
