"""Monitors and counts of several processes become what one process would have."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from gates import FIRST, LAST, drawn, gate_of
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers import Calibration, ConformalFilter, Monitor, ScoredQuery, calibrate
from conformal_retrievers.calibration.gating import calibrate_gate
from conformal_retrievers.monitoring.state import RECENT, in_order
from conformal_retrievers.monitoring.status import Counts

OWN = [ScoredQuery([score / 40], [True], id=f"own {score}") for score in range(40)]
PLAIN = Calibration.from_scores(OWN, alpha=0.2, scorer="last")
NEW = [*range(0, 60, 7), math.nan]

number = st.sampled_from([one / 40 for one in NEW])
steps = st.lists(
    st.tuples(
        st.integers(0, 3),  # the process
        st.booleans(),  # whether it is judged
        st.lists(number, min_size=1, max_size=3),
        st.sampled_from([-9.0, 0.1, 0.7, 99.0]),  # the query score
    ),
    max_size=30,
)


@pytest.fixture(scope="module")
def gated():
    """A filter behind a gate, both of 60 queries."""
    queries = drawn(np.random.default_rng(3), 60, "gate")
    gate = calibrate_gate(queries, (), FIRST, alpha=0.1)
    return ConformalFilter(LAST, calibrate(queries, LAST, alpha=0.2, gate=gate), gate=gate)


def observe(monitor, step, at, gate=None):
    """Give a monitor a step of a stream, as seen by the gate if there is one."""
    _, judged, scores, query_score = step
    decided = gate and gate.decide(query_score)
    silenced = gate and decided.silent
    if not judged:
        return monitor.observe(scores, gated=decided, at=at)
    known = [math.inf if silenced else score for score in np.nan_to_num(scores)]
    return monitor.observe_judged(ScoredQuery(known, [True] * len(known), silenced=silenced), at=at)


def watched(calibration, stream, times, gate=None, processes=4):
    """Return one monitor that observes a stream, and those of its processes."""
    one, *parts = (Monitor(calibration, 0.1, seed=5) for _ in range(processes + 1))
    for step, at in zip(stream, times, strict=True):
        observe(one, step, at, gate)
        observe(parts[step[0]], step, at, gate)
    return one, parts


def merged_in(draw, parts):
    """Merge monitors in an order that is drawn, some of them first."""
    parts = draw(st.permutations(parts))
    first = draw(st.integers(1, len(parts)))
    return Monitor.merge([*parts[first:], Monitor.merge(parts[:first])])


# --- the same as one process ----------------------------------------------------------------------


@pytest.mark.parametrize("behind", [False, pytest.param(True, marks=pytest.mark.slow)])
@given(stream=steps, more=steps, data=st.data())
def test_a_merged_monitor_is_that_of_one_process_and_stays_so(behind, stream, more, data, gated):
    calibration, gate = (gated.calibration, gated.gate) if behind else (PLAIN, None)
    one, parts = watched(calibration, stream, range(len(stream)), gate)
    parts[0] = pickle.loads(pickle.dumps(parts[0]))
    merged = merged_in(data.draw, parts)
    assert (merged.status, merged._state) == (one.status, one._state)
    for i, step in enumerate(more):
        seen = [observe(monitor, step, 100 + i, gate) for monitor in (one, merged)]
        assert seen[0] == seen[1]
    assert merged._state == one._state
    counts = [part.status.counts for part in data.draw(st.permutations(parts))]
    assert sum(counts, Counts()) == Monitor.merge(parts).status.counts


@given(stream=steps, times=st.lists(st.integers(0, 5), min_size=30, max_size=30), data=st.data())
def test_queries_at_equal_times_or_late_are_merged_in_one_order(stream, times, data):
    one, parts = watched(PLAIN, stream, times[: len(stream)])
    assert Monitor.merge([one])._state == one._state
    assert merged_in(data.draw, parts)._state == merged_in(data.draw, parts)._state


def test_equal_scores_at_equal_times_do_not_stand_together():
    """In blocks, they would raise alarms of drift that is none."""
    values = [0.0, 0.5, 1.0] * 100
    merged = [one for _, one in in_order([[(1.0, value)] for value in values])]
    assert sorted(merged) == sorted(values)
    # Of 299 neighbours 99 are equal on average, with a standard deviation of 8; in blocks, 297.
    assert 60 < sum(one == other for one, other in pairwise(merged)) < 140
    assert in_order([[(1.0, value) for value in sorted(values)]]) == [(1.0, one) for one in merged]


def test_the_newest_queries_of_a_merged_gate_are_the_newest_of_all(gated):
    one, *parts = (Monitor(gated.gate.calibration) for _ in range(4))
    for at in range(2 * RECENT):
        one.observe([float(at % 7)], at=at)
        parts[at % 3].observe([float(at % 7)], at=at)
    assert Monitor.merge(parts)._state == one._state
    assert Monitor.merge(parts).status.recent[1] == RECENT


FORK = """
import os, sys
from conformal_retrievers import Calibration, Monitor
calibration = Calibration.load(sys.argv[1])
monitor = Monitor(calibration)
for n in range(3):
    if os.fork() == 0:
        for at in range(n, 60, 3):
            monitor.observe([at / 50], at=at)
        monitor.save(f"{sys.argv[2]}/{n}.json")
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
def test_processes_that_fork_with_a_monitor_save_what_merges(tmp_path):
    PLAIN.save(tmp_path / "c.json")
    subprocess.run([sys.executable, "-c", FORK, tmp_path / "c.json", tmp_path], check=True)
    parts = [Monitor.load(tmp_path / f"{n}.json", PLAIN) for n in range(3)]
    one = Monitor(PLAIN)
    for at in range(60):
        one.observe([at / 50], at=at)
    merged = Monitor.merge(parts)
    assert merged._state == one._state
    merged.save(tmp_path / "all.json")
    assert Monitor.load(tmp_path / "all.json", PLAIN)._state == one._state


# --- what does not merge --------------------------------------------------------------------------


def test_monitors_that_differ_are_refused_by_the_field(gated):
    usual = {"level": 0.05, "seed": 0}
    for field, other in (("level", 0.1), ("seed", 1)):
        with pytest.raises(ValueError, match=field):
            Monitor.merge([Monitor(PLAIN), Monitor(PLAIN, **{**usual, field: other})])
    rest = {"alpha": 0.2, "scorer": "last"}
    gates = [gate_of([0.1, 0.2, last], alpha=0.1).calibration for last in (0.3, 0.4)]
    scored = [ScoredQuery([0.5], [True], id=str(i), silenced=False) for i in range(20)]
    behind = [Calibration.from_scores(scored, gate=gate, **rest) for gate in gates]
    for one, other in ((PLAIN, PLAIN.at(0.3)), (PLAIN, gated.calibration), behind):
        with pytest.raises(ValueError, match="calibration"):
            Monitor.merge([Monitor(one), Monitor(other)])
    with pytest.raises(ValueError, match="monitors"):
        Monitor.merge([])


def test_the_same_observations_are_not_merged_twice(tmp_path):
    one, other = Monitor(PLAIN), Monitor(PLAIN)
    Monitor.merge([one, one, pickle.loads(pickle.dumps(one))])  # nothing is observed yet
    one.observe([0.5])
    other.observe_judged(ScoredQuery([0.5], [True]))
    one.save(tmp_path / "m.json")
    saved = Monitor.load(tmp_path / "m.json", PLAIN)
    saved.observe([0.6])
    for again in (one, saved, Monitor.merge([one, other])):
        with pytest.raises(ValueError, match="monitors"):
            Monitor.merge([one, again])
    assert Monitor.merge([saved, other]).status.counts.queries == 2


@pytest.mark.parametrize("at", [math.nan, math.inf])
def test_a_time_that_is_not_finite_is_refused(at):
    monitor = Monitor(PLAIN)
    with pytest.raises(ValueError, match="at is"):
        monitor.observe([0.5], at=at)
    with pytest.raises(ValueError, match="at is"):
        monitor.observe_judged(ScoredQuery([0.5], [True]), at=at)
