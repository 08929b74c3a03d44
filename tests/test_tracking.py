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


@pytest.mark.parametrize("step", [0, -1.0, math.nan, math.inf])
def test_a_step_that_is_none_is_named(step):
    with pytest.raises(ValueError, match="step is .*a positive number"):
        track(calibration_of(np.random.default_rng(1)), step=step)


def test_what_cannot_be_followed_is_refused():
    with pytest.raises(ValueError, match="without groups"):
        track(calibration_of(np.random.default_rng(1), by_group=True))
    run = LongRun(0.5, alpha=0.1, step=1.0)
    for odd in ({"only_kept": True}, {"propensities": [0.5]}):
        with pytest.raises(ValueError, match="'a': it was judged in parts"):
            run.after(ScoredQuery([0.1], [True], id="a", **odd))
