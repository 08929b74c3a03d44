"""Calibrations that hold for all calibration samples but a share delta."""

import hashlib
import math
from dataclasses import replace
from functools import partial

import calibrations
import numpy as np
import pytest
from calibrations import relevant
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from conformal_retrievers import Calibration, ScoredQuery
from conformal_retrievers.theory import tolerance

FALSE_ALARM = 1e-4
calibration_of = partial(calibrations.calibration_of, delta=0.1)


@pytest.mark.parametrize("guarantee", ["all", "any"])
@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=22, max_size=40),
    st.sampled_from([0.1, 0.2, 0.5]),
    st.sampled_from([0.1, 0.3]),
)
def test_the_threshold_is_the_tolerance_rank_of_the_units(guarantee, lists, alpha, delta):
    units = sorted(map(max if guarantee == "all" else min, lists))
    calibration = calibration_of([relevant(*s) for s in lists], alpha, guarantee, delta=delta)
    assert calibration.threshold() == units[tolerance.tolerance_rank(len(units), alpha, delta) - 1]
    assert calibration.threshold() >= replace(calibration, delta=None).threshold()


def named_queries(rng, n=80):
    return [
        relevant(*rng.normal(size=rng.integers(1, 6)), id=f"query {i}", missed=int(i % 9 == 0))
        for i in range(n)
    ]


def test_the_order_of_the_bets_is_that_of_a_hash_of_ids_and_all_scores(rng, tmp_path):
    queries = named_queries(rng)
    salt = np.sort(np.concatenate([q.scores for q in queries])).tobytes()
    by_hash = sorted(queries, key=lambda q: hashlib.sha256(salt + q.id.encode()).hexdigest())
    expected = tolerance.query_recall_tolerance([q.scores for q in by_hash], 0.2, 0.1)
    for _ in range(10):
        calibration = calibration_of([queries[i] for i in rng.permutation(80)], 0.2)
        assert calibration.threshold() == expected
    calibration.save(tmp_path / "c.json")
    loaded = Calibration.load(tmp_path / "c.json")
    assert loaded.at(0.3).threshold() == calibration.at(0.3).threshold()


@pytest.mark.parametrize(("id", "n"), [(lambda i: None, 63), (str, 77)])
def test_queries_in_the_order_of_their_difficulty_fall_short_as_seldom_as_others(rng, id, n):
    """By ids or places alone, the bets on so many sorted queries met hard ones last each time."""
    short = 0
    for _ in range(60):
        scores = 10.0 * np.sort(rng.random(n) < 0.15) + rng.random(n)
        own = calibration_of([relevant(s, id=id(i)) for i, s in enumerate(scores)], 0.15)
        assert own.threshold() >= replace(own, delta=None).threshold()
        short += own.threshold() < 1  # which loses all hard ones
    assert binomtest(short, 60, 0.1, alternative="greater").pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    ("guarantee", "alpha", "delta", "needed"),
    [
        ("all", 0.1, 0.1, 22),
        ("any", 0.05, 0.1, tolerance.tolerance_n(0.05, 0.1)),
        ("query-recall", 0.2, 0.05, tolerance.betting_n(0.2, 0.05)),
    ],
)
def test_too_few_queries_for_delta_are_refused_with_those_needed(guarantee, alpha, delta, needed):
    queries = [relevant(i / 1000, missed=0) for i in range(needed)]
    enough = calibration_of(queries, alpha, guarantee, delta=delta)
    assert enough.n_needed == needed
    assert math.isfinite(enough.threshold())
    with pytest.raises(ValueError, match=rf"delta is {delta}.*{needed}"):
        calibration_of(queries[1:], alpha, guarantee, delta=delta)
    for smaller in (alpha / 2, 1e-300, 5e-324):
        with pytest.raises(ValueError, match=f"delta is {delta}"):
            enough.at(smaller)
    queries[0] = ScoredQuery([1.0], [False], missed=3)  # a query without relevant scores
    with pytest.raises(ValueError, match=rf"delta is {delta}.*beside 1 of which nothing can"):
        calibration_of(queries, alpha, guarantee, delta=delta)
    counted = calibration_of(queries, 0.9, guarantee, delta=delta, count_missed=True)
    assert counted.n_queries == needed


@pytest.mark.parametrize("guarantee", ["query-recall", "all", "any"])
def test_a_group_that_is_too_small_for_delta_keeps_everything_and_is_named(guarantee):
    large = [relevant(i, group="large") for i in range(100)]
    small = [relevant(i, group="small") for i in range(21)]
    calibration = calibration_of([*large, *small], 0.1, guarantee, by_group=True)
    assert math.isfinite(calibration.threshold("large"))
    assert calibration.threshold("small") == calibration.threshold("unseen") == math.inf
    assert math.isfinite(replace(calibration, delta=None).threshold("small"))
    assert "small" in calibration.statement
