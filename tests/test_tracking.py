"""A threshold that follows its mistakes: long-run coverage, whatever comes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from conformal_retrievers import Calibration, ScoredQuery
from conformal_retrievers.tracking import LongRun, track


def calibration_of(rng, n=100, **options):
    queries = [ScoredQuery(rng.random(2), [True, True], group="g") for _ in range(n)]
    return Calibration.from_scores(queries, alpha=0.1, scorer="drawn", **options)


def test_the_step_by_hand():
    run = LongRun(0.5, alpha=0.1, step=2.0)
    assert math.isnan(run.mean_lost)
    run = run.after(ScoredQuery([0.4, 0.6, 0.9], [True, True, False]))  # half is lost
    assert run.threshold == pytest.approx(0.5 + 2 * (0.5 - 0.1))
    run = run.after(ScoredQuery([0.4], [True]))
    assert run.threshold == pytest.approx(0.5 + 0.8 - 2 * 2**-0.6 * 0.1)
    assert (run.judged, run.lost, run.mean_lost) == (2, 0.5, 0.25)
    assert run.after(ScoredQuery([0.4], [False])) == run


@pytest.mark.parametrize("drift", [0.0, 1.0, -1.0])
def test_in_the_long_run_alpha_is_lost_whatever_comes(drift):
    # |mean lost − α| ≤ (range of the threshold + η_1) / (T η_T): scores here lie within [−1, 2].
    rng = np.random.default_rng(5)
    run = track(calibration_of(rng), step=0.5)
    total = 4000
    for t in range(total):
        run = run.after(ScoredQuery(rng.random(2) + drift * t / total, [True, True]))
    assert abs(run.mean_lost - 0.1) <= (3 + 2 * 0.5) / (0.5 * total ** (1 - 0.6))
    assert run.judged == total


def test_where_queries_are_alike_the_threshold_settles_at_its_quantile():
    rng = np.random.default_rng(7)
    run = LongRun(0.2, alpha=0.1, step=0.5)
    for _ in range(20_000):
        run = run.after(ScoredQuery(rng.random(1), [True]))
    assert abs(run.threshold - 0.9) < 0.05


def test_it_starts_at_the_threshold_of_the_calibration():
    rng = np.random.default_rng(11)
    calibration = calibration_of(rng)
    assert track(calibration).threshold == calibration.threshold()
    assert track(calibration).step == pytest.approx(
        np.std([query.scores for query in calibration.queries])
    )
    few = calibration_of(rng, 3)  # keeps everything
    assert track(few).threshold == max(query.scores.max() for query in few.queries)
    lost = [
        ScoredQuery([-math.inf], [True]) for _ in range(100)
    ]  # nothing that has a score is kept
    some = Calibration.from_scores(
        [*lost, *(ScoredQuery([s], [True]) for s in (0.2, 0.7))], alpha=0.1, scorer="drawn"
    )
    assert some.threshold() == -math.inf
    assert track(some).threshold == 0.2
    none = Calibration.from_scores(lost, alpha=0.1, scorer="drawn")
    with pytest.raises(ValueError, match="has no relevant snippet with a finite score"):
        track(none)


@pytest.mark.parametrize(
    ("options", "lost"),
    [
        ({}, 1 / 2),
        ({"guarantee": "all"}, 1),
        ({"guarantee": "any"}, 0),
        ({"count_missed": True}, 3 / 4),
        ({"guarantee": "all", "count_missed": True}, 1),
    ],
)
def test_what_is_lost_is_what_the_guarantee_is_about(options, lost):
    run = track(calibration_of(np.random.default_rng(13), **options))
    query = ScoredQuery([-9.0, 9.0, 9.0], [True, True, False], missed=2)
    moved = run.after(query)
    assert (moved.judged, moved.lost) == (1, lost)
    assert moved.threshold == pytest.approx(run.threshold + run.step * (lost - 0.1))


def test_a_query_of_which_everything_was_missed_is_lost_where_missed_ones_count():
    rng = np.random.default_rng(17)
    query = ScoredQuery([0.1], [False], missed=1)
    assert track(calibration_of(rng)).after(query).judged == 0
    assert track(calibration_of(rng, count_missed=True)).after(query).lost == 1


def test_a_snippet_without_a_score_is_kept_and_not_lost():
    run = LongRun(0.5, alpha=0.1, step=1.0).after(ScoredQuery([math.nan, 0.9], [True, True]))
    assert run.lost == 1 / 2


@pytest.mark.parametrize("guarantee", ["all", "any"])
def test_in_the_long_run_alpha_is_lost_in_the_sense_of_the_guarantee(guarantee):
    # Two snippets, U(0, 1): all is lost with (1 − τ)², one or both with 1 − τ².
    rng = np.random.default_rng(19)
    run = track(calibration_of(rng, guarantee=guarantee), step=0.5)
    for _ in range(20_000):
        run = run.after(ScoredQuery(rng.random(2), [True, True]))
    assert abs(run.mean_lost - 0.1) < 0.01
    settled = math.sqrt(0.9) if guarantee == "all" else 1 - math.sqrt(0.1)
    assert abs(run.threshold - settled) < 0.05


@pytest.mark.parametrize("step", [0, -1.0, math.nan, math.inf])
def test_a_step_that_is_none_is_named(step):
    with pytest.raises(ValueError, match="step is .*a positive number"):
        track(calibration_of(np.random.default_rng(1)), step=step)


def test_what_cannot_be_followed_is_refused():
    rng = np.random.default_rng(1)
    weighted = [ScoredQuery([s], [True], weight=1 + i % 2) for i, s in enumerate(rng.random(50))]
    for calibration, said in (
        (calibration_of(rng, by_group=True), "by group"),
        (calibration_of(rng, guarantee="snippet"), "'snippet'"),
        (Calibration.from_scores(weighted, alpha=0.1, scorer="drawn"), "with weights"),
    ):
        with pytest.raises(ValueError, match=f"guarantee is .*{said}.*track follows one"):
            track(calibration)
    run = LongRun(0.5, alpha=0.1, step=1.0)
    for odd in ({"only_kept": True}, {"propensities": [0.5]}):
        with pytest.raises(ValueError, match="'a': it was judged in parts"):
            run.after(ScoredQuery([0.1], [True], id="a", **odd))
    with pytest.raises(ValueError, match="'a': its weight is 2"):
        run.after(ScoredQuery([0.1], [True], id="a", weight=2))
