"""What monitors, events and logs know of a gate: how often it is silent, and if that changed."""

import json
import logging
import math

import numpy as np
import pytest
from drawn import calibrated
from gates import FIRST, LAST, drawn, filter_of, gate_of, query
from scipy.stats import binomtest

from conformal_retrievers import Calibration, ConformalFilter, ScoredQuery, diagnose, score_queries
from conformal_retrievers.calibration import CalibrationMismatch, calibrate, calibrate_gate
from conformal_retrievers.cli.inputs import logged_queries
from conformal_retrievers.monitoring import Monitor, event_of, scores_of
from conformal_retrievers.monitoring.log import FilterLog, Observer, read_log

FALSE_ALARM = 1e-4
GATE = gate_of([0.1, 0.2, 0.3, 0.4])
BEHIND = ConformalFilter(LAST, calibrated([0.5] * 20, 0.1, "last"), gate=GATE)


@pytest.fixture(scope="module")
def filtering():
    return filter_of(np.random.default_rng(3))


def of_queries(conformal, queries):
    return [conformal(query.query, query.snippets) for query in queries]


# --- a filter behind a gate -----------------------------------------------------------------------


def test_the_monitor_counts_what_events_count_and_drift_is_about_what_passes(filtering):
    calibration = filtering.calibration
    monitor, observer = Monitor(calibration), Observer()
    found = of_queries(filtering, drawn(np.random.default_rng(5), 60, "new", answerable=0.5))
    for one in found:
        status = monitor.observe(one.scores, silenced=one.silenced)
        observer.observe(event_of(one))
    n_silent = sum(one.gated.silent for one in found)
    assert 0 < n_silent < 60
    assert monitor._state.live == [one.scores.min() for one in found if not one.gated.silent]
    counts = status.counts
    assert observer.counts[calibration.checksum] == counts
    assert (counts.queries, counts.silent) == (60, n_silent)
    assert counts.m1 == np.mean([one.m1 for one in found])
    assert counts.m2 == pytest.approx(np.mean([one.m2 for one in found]))
    assert f"60 queries, {n_silent} silenced" in str(status)


def test_a_gate_that_is_named_for_each_query_leaves_the_filter_its_count_of_queries():
    alone = ConformalFilter(LAST, calibrated([0.5] * 20, 0.1, "last"))
    other = gate_of([0.1, 0.2, 0.3])
    assert alone.with_gate(other) is alone.with_gate(other) is not alone.with_gate(GATE)
    assert alone.at(0.2).with_gate(GATE).calibration.alpha == 0.2


@pytest.mark.slow
def test_false_alarms_behind_a_gate_are_no_more_frequent_than_the_level():
    """In 60 streams of 150 queries; gate and filter are calibrated on the same 60 queries."""
    rng = np.random.default_rng(21)
    alarms = {"drift": 0, "harm": 0}
    for _ in range(60):
        own = drawn(rng, 60, "own")
        gate = calibrate_gate(own, (), FIRST, alpha=0.1)
        calibration = calibrate(own, LAST, alpha=0.2, gate=gate)
        conformal = ConformalFilter(LAST, calibration, gate=gate)
        monitor = Monitor(calibration, 0.1, seed=int(rng.integers(2**32)))
        new = drawn(rng, 150, "new")
        for one, scored in zip(
            of_queries(conformal, new), score_queries(LAST, new, gate=gate), strict=True
        ):
            monitor.observe(one.scores, silenced=one.silenced)
            status = monitor.observe_judged(scored)
        alarms["drift"] += status.drift
        alarms["harm"] += status.harm
    for name, n in alarms.items():
        assert binomtest(n, 60, 0.1, alternative="greater").pvalue > FALSE_ALARM, name


def test_a_silenced_query_is_lost_where_no_threshold_is_finite():
    few = calibrate_gate([query("a", 0.5)], (), FIRST, alpha=0.1)  # never silent
    one = score_queries(LAST, [query("a", 0.5)], gate=few)
    everything = Calibration.from_scores(one, alpha=0.2, scorer="last", gate=few.calibration)
    assert everything.threshold() == math.inf
    both = [ScoredQuery([s], [True], silenced=s == math.inf) for s in (math.inf, 1e9)]
    assert [Monitor(everything)._loss(one) for one in both] == [1.0, 0.0]


def test_a_saved_monitor_continues_unchanged(filtering, tmp_path):
    whole, first = (Monitor(filtering.calibration, 0.1, seed=5) for _ in range(2))
    new = drawn(np.random.default_rng(9), 60, "new", answerable=0.7)
    scored = score_queries(LAST, new, gate=filtering.gate)
    for i, (one, judged) in enumerate(zip(of_queries(filtering, new), scored, strict=True)):
        if i == 30:
            first.save(tmp_path / "m.json")
            first = Monitor.load(tmp_path / "m.json", filtering.calibration)
        for monitor in (whole, first):
            monitor.observe(one.scores, silenced=one.silenced)
            monitor.observe_judged(judged)
    assert (first.status, first._state) == (whole.status, whole._state)
    assert first._ordered == whole._ordered


def test_a_log_of_several_processes_gives_the_monitor_of_one(filtering, tmp_path):
    one, replayed = Monitor(filtering.calibration), Monitor(filtering.calibration)
    for found in of_queries(filtering, drawn(np.random.default_rng(6), 60, "new", answerable=0.5)):
        one.observe(found.scores, silenced=found.silenced)
        FilterLog(tmp_path / "log.jsonl").append(event_of(found))
    for event in read_log(tmp_path / "log.jsonl"):
        silenced = event["gate"]["decision"] == "silent"
        replayed.observe(scores_of(event), event["group"], silenced=silenced)
    assert (replayed.status, replayed._state) == (one.status, one._state)


def test_a_query_without_what_the_gate_decided_is_refused(filtering):
    behind = Monitor(filtering.calibration)
    without = Monitor(calibrated([0.5] * 20))
    silenced = ScoredQuery([math.inf], [True], silenced=True)
    for error, words, use in (
        (ValueError, "silenced is None.*holds a gate", lambda: behind.observe([0.1])),
        (CalibrationMismatch, "gate", lambda: behind.observe_judged(ScoredQuery([0.1], [True]))),
        (ValueError, "holds no gate", lambda: without.observe([0.1], silenced=False)),
        (ValueError, "holds no gate", lambda: without.observe([0.1], silenced=True)),
        (CalibrationMismatch, "gate", lambda: without.observe_judged(silenced)),
        (CalibrationMismatch, "gate", lambda: Monitor(filtering.gate.calibration)),
    ):
        with pytest.raises(error, match=words):
            use()


# --- events and the log ---------------------------------------------------------------------------


def test_an_event_states_what_the_gate_decided():
    gate, conformal = GATE, BEHIND
    silenced = event_of(conformal.decide([0.3, 0.9], gated=gate.decide(0.6)))
    assert (silenced["kept"], silenced["m1"], silenced["m2"]) == ([], 0.0, 0.0)
    assert silenced["scores"] == [0.3, 0.9]
    decision = {"score": 0.6, "p_value": 0.2, "decision": "silent"}
    of_gate = {"calibration": gate.calibration.checksum, "scorer": "first", "alpha": 0.2}
    assert json.loads(json.dumps(silenced["gate"], allow_nan=False)) == of_gate | decision
    unknown = event_of(conformal.decide([0.3, 0.9], gated=gate.decide(math.nan)))
    assert (unknown["gate"]["score"], unknown["gate"]["p_value"]) == (None, None)
    assert (unknown["gate"]["decision"], unknown["kept"]) == ("speaks", [0])
    assert event_of(ConformalFilter(LAST, conformal.calibration).decide([0.3]))["gate"] is None


def test_a_log_behind_a_gate_is_diagnosed(filtering, tmp_path):
    calibration, log = filtering.calibration, FilterLog(tmp_path / "log.jsonl")
    found = of_queries(filtering, drawn(np.random.default_rng(13), 100, "new", answerable=0.4))
    for i, one in enumerate(found):
        log.append(event_of(one, query=f"q{i}"))
    d = diagnose(calibration, logged_queries([log.path], calibration).queries)
    assert d.evaluation.silent.estimate == np.mean([one.gated.silent for one in found])
    passed = [one.m1 for one in found if not one.gated.silent]
    assert d.evaluation.m1.estimate == pytest.approx(sum(passed) / 100)
    assert d.comparison.n_new == len(passed)
    assert "The gate is silent on" in str(d)


def test_an_observer_counts_silence_and_says_so_in_words(caplog):
    observer = Observer()
    with caplog.at_level(logging.INFO, logger="conformal_retrievers"):
        for score in (0.0, 0.6, 0.3, 0.7):
            observer.observe(event_of(BEHIND.decide([0.3, 0.9], gated=GATE.decide(score))))
    counts = observer.counts[BEHIND.calibration.checksum]
    assert (counts.queries, counts.silent, counts.m1, counts.m2) == (4, 2, 0.5, 0.25)
    last = caplog.messages[-1]
    assert "kept 0 of 2 snippets" in last
    assert "2 queries were silenced" in last
