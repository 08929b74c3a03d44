"""A gate that only flags, or is undecided: its monitor counts what happened, as events do."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gates import FIRST, LAST, drawn, filter_of

from conformal_retrievers import ConformalFilter, Monitor, ScoredQuery, calibrate
from conformal_retrievers.calibration.gating import calibrate_gate
from conformal_retrievers.monitoring.events import event_of
from conformal_retrievers.monitoring.log import Observer


@pytest.fixture(scope="module")
def behind():
    return filter_of(np.random.default_rng(3))


@pytest.mark.parametrize("on_silence", ["drop", "flag"])
def test_the_monitor_counts_what_events_count_whatever_silence_does(behind, on_silence):
    conformal = ConformalFilter(LAST, behind.calibration, on_silence=on_silence, gate=behind.gate)
    monitor, observer = Monitor(behind.calibration), Observer()
    found = [
        conformal(query.query, query.snippets)
        for query in drawn(np.random.default_rng(5), 60, "new", answerable=0.5)
    ]
    for one in found:
        status = monitor.observe(one.scores, gated=one.gated, silenced=one.silenced)
        observer.observe(event_of(one))
    assert sum(one.silenced for one in found) == (on_silence == "drop") * status.counts.silent
    assert status.counts.silent > 0
    assert observer.counts[behind.calibration.checksum] == status.counts
    passed = [one.scores.min() for one in found if not one.gated.silent]
    assert [lowest for _, lowest in monitor._state.live] == passed


def test_a_judged_query_that_is_only_flagged_loses_what_its_scores_lose(behind):
    monitor = Monitor(behind.calibration)
    kept, lost = behind.calibration.threshold(), math.inf
    for score in (kept, lost):
        status = monitor.observe_judged(ScoredQuery([score], [True], silenced=True))
    assert (status.counts.lost, status.gate.counts.lost) == (1.0, 2.0)


def test_the_gates_own_status_counts_undecided_queries():
    rng = np.random.default_rng(30)
    own, far = drawn(rng, 100, "own"), drawn(rng, 60, "far", answerable=0)
    gate = calibrate_gate(own, far, FIRST, alpha=0.1, false_speech=0.05)
    joint, alone = Monitor(calibrate(own, LAST, alpha=0.2, gate=gate)), Monitor(gate.calibration)
    decided = [gate.decide(score) for score in (*rng.normal(size=60) * 3, math.nan)]
    for gated in decided:
        status = joint.observe([0.0], gated=gated)
        alone.observe([gated.score])
    assert 1 < status.counts.undecided == sum(one.decision == "undecided" for one in decided) < 60
    assert status.gate.counts == alone.status.counts
    assert status.gate.counts.undecided == status.counts.undecided
