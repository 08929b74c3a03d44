"""Alarms over live traffic: seldom false, whenever one looks, and raised where they should be."""

import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from drawn import calibrated
from gates import filter_of
from scipy.stats import binom, binomtest

from conformal_retrievers import Monitor, ScoredQuery
from conformal_retrievers.calibration.guarantees import in_hashed_order
from conformal_retrievers.data.files import write_envelope
from conformal_retrievers.monitoring.monitor import KIND
from conformal_retrievers.monitoring.state import _uniform
from conformal_retrievers.monitoring.status import Counts, MonitorStatus
from conformal_retrievers.theory.tolerance import betting_lower, tolerance_rank

FALSE_ALARM = 1e-4


def a_query(rng, shift=0.0, missed=0, **options):
    """One to three relevant snippets, and ten others, all as hard as the query is."""
    n = int(rng.integers(1, 4))
    hardness = 0.7 * rng.normal()
    relevant = hardness + 0.7 * rng.normal(size=n) + shift
    scores = np.concatenate([relevant, 3 + hardness + rng.normal(size=10)])
    return ScoredQuery(scores, np.arange(n + 10) < n, missed=missed, **options)


def calibration_of(rng, n=200, **options):
    return calibrated([a_query(rng) for _ in range(n)], **options)


# --- drift ----------------------------------------------------------------------------------------


def test_false_alarms_of_drift_are_no_more_frequent_than_the_level():
    """100 streams of 300 queries, whose lowest scores tie often."""
    rng = np.random.default_rng(41)
    alarms = 0
    for scores in np.round(rng.normal(size=(100, 320)), 1):
        monitor = Monitor(calibrated(scores[:20]), 0.1, seed=int(rng.integers(2**32)))
        for score in scores[20:]:
            monitor._state.bet_on_rank(score, monitor._ordered)
        alarms += monitor.status.drift
    assert binomtest(alarms, 100, 0.1, alternative="greater").pvalue > FALSE_ALARM


def test_an_alarm_of_drift_stays():
    rng = np.random.default_rng(5)
    monitor = Monitor(calibration_of(rng, 100), level=0.05, seed=1)
    shifted, back = rng.normal(3, 1, 60), rng.normal(-0.5, 1, 400)
    assert not monitor.status.drift
    for score in [*shifted, *back]:
        monitor.observe([score])
    assert monitor._state.log_drift < monitor._state.most_log_drift
    assert monitor.status.drift


def test_the_bet_by_hand():
    monitor = Monitor(calibrated([1, 2, 3], 0.5))
    for lowest, higher, equal in ((0.5, 3, 0), (0.4, 4, 0), (9.0, 0, 0), (9.0, 0, 1)):
        before, capitals = monitor._state.log_drift, np.array(monitor._state.capitals)
        n = len(monitor._ordered)
        monitor.observe([lowest, 10.0])
        p = (higher + _uniform(0, len(monitor._state.live)) * (1 + equal)) / (n + 1)
        growth = (0.99 * capitals + 0.01 / 3) @ (1 + np.array([-1, 0, 1]) * (p - 0.5))
        assert monitor._state.log_drift - before == pytest.approx(math.log(growth), rel=1e-12)
    evidence = math.exp(monitor._state.most_log_drift)
    assert monitor.status.drift_evidence == pytest.approx(evidence, rel=1e-12)
    assert monitor._state.live == [0.5, 0.4, 9.0, 9.0]


def test_a_query_without_a_finite_score_is_no_evidence_of_drift():
    monitor = Monitor(calibration_of(np.random.default_rng(1)))
    before = monitor.status.drift_evidence
    for scores in ([], [math.nan, math.nan], [math.inf]):
        monitor.observe(scores)
    assert monitor._state.live == []
    assert monitor.status.drift_evidence == before
    counts = monitor.status.counts
    assert (counts.queries, counts.snippets, counts.unscorable) == (3, 3, 2)


# --- harm -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("guarantee", "runs"), [("query-recall", 60), ("all", 100), ("any", 100)])
@pytest.mark.slow
def test_false_alarms_of_harm_are_no_more_frequent_than_the_level(guarantee, runs):
    # The calibration is drawn anew in each run: half of them lose more than alpha.
    rng = np.random.default_rng(59)
    alarms = 0
    for _ in range(runs):
        monitor = Monitor(calibration_of(rng, 60, guarantee=guarantee), 0.1)
        for _ in range(150):
            status = monitor.observe_judged(a_query(rng))
        alarms += status.harm
    assert binomtest(alarms, runs, 0.1, alternative="greater").pvalue > FALSE_ALARM


def test_losses_follow_the_guarantee_and_count_missed():
    rng = np.random.default_rng(71)
    query = ScoredQuery([-9.0, 9.0, 9.0], [True, True, False], missed=2)
    for options, loss in (
        ({}, 0.5),
        ({"guarantee": "all"}, 1.0),
        ({"guarantee": "any"}, 0.0),
        ({"count_missed": True}, 0.75),
        ({"count_missed": True, "guarantee": "any"}, 0.0),
    ):
        status = Monitor(calibration_of(rng, **options)).observe_judged(query)
        assert (status.counts.judged, status.counts.lost) == (1, loss)
    unknown, nothing = ScoredQuery([-9.0], [True]), ScoredQuery([1.0], [False])
    for count_missed, unjudged in ((True, unknown), (False, nothing)):
        monitor = Monitor(calibration_of(rng, count_missed=count_missed))
        assert monitor.observe_judged(unjudged).counts.judged == 0


@pytest.mark.parametrize("delta", [None, 0.2])
@pytest.mark.parametrize("guarantee", ["all", "any"])
def test_the_loss_of_whole_queries_exceeds_what_is_tolerated_with_half_the_level(guarantee, delta):
    """The k-th of 60 keeps less than 1 - u of new queries iff k of 60 uniform numbers are below."""
    calibration = calibration_of(np.random.default_rng(67), 60, guarantee=guarantee, delta=delta)
    k = 55 if delta is None else tolerance_rank(60, 0.1, 0.2)
    tolerated = Monitor(calibration, 0.1)._tolerated
    assert binom.sf(k - 1, 60, 1 - tolerated) == pytest.approx(0.05, rel=1e-6)


def test_what_is_tolerated_follows_the_losses_where_too_few_queries_keep_everything():
    monitor = Monitor(calibrated(range(5), guarantee="all"))
    assert monitor._tolerated == 1 - betting_lower(np.ones(5), 0.025)


@pytest.mark.parametrize(("guarantee", "delta"), [("query-recall", None), ("all", 1e-9)])
def test_to_lose_no_more_than_alpha_is_no_harm(guarantee, delta):
    """Of these, the threshold loses none: ties and a small delta keep more than 1 - alpha."""
    assert Monitor(calibrated([1.0] * 400, 0.2, guarantee=guarantee, delta=delta))._tolerated == 0.2


def test_behind_a_gate_what_is_tolerated_follows_the_losses():
    """The gate silences some queries at every threshold, so the number kept is no rank."""
    calibration = filter_of(np.random.default_rng(4), guarantee="all").calibration
    scores = [query.scores[query.relevant].max() for query in calibration.queries]
    order = in_hashed_order(calibration.queries.ids.tolist(), calibration.queries.scores)
    kept = [scores[i] <= calibration.threshold() < math.inf for i in order]
    assert math.inf in scores
    assert Monitor(calibration)._tolerated == 1 - betting_lower(np.array(kept, float), 0.025)


def test_the_alarm_of_harm_goes_off_at_2_by_level_and_not_before():
    # A calibration that loses 4 of 40; every new query loses half. The wealth is computed anew.
    calibration = calibrated(range(40))
    monitor = Monitor(calibration, 0.05)
    order = in_hashed_order([None] * 40, np.arange(40.0))
    u = 1 - betting_lower(1 - np.array([float(i > calibration.threshold()) for i in order]), 0.025)
    between = 0
    for n in range(1, 40):
        status = monitor.observe_judged(ScoredQuery([-1.0, 1e9], [True, True]))
        wealth = np.mean((1 + np.array([0.05, 0.1, 0.2, 0.4, 0.8]) / u * (0.5 - u)) ** n)
        assert status.harm_evidence == pytest.approx(wealth, rel=1e-9)
        assert status.harm == (wealth >= 40)
        between += 20 <= wealth < 40
    assert status.harm
    assert between
    highest = status.harm_evidence
    for _ in range(40):  # nothing is lost any more, and the alarm stays
        status = monitor.observe_judged(ScoredQuery([-1.0], [True]))
    assert (status.harm, status.harm_evidence) == (True, highest)
    below, above = (MonitorStatus(0.05, Counts(), 1.0, evidence) for evidence in (39.9, 40.1))
    assert (below.harm, above.harm) == (False, True)
    below, above = (MonitorStatus(0.05, Counts(), evidence, 1.0) for evidence in (19.9, 20.1))
    assert (below.drift, above.drift) == (False, True)


# --- counts, files, errors ------------------------------------------------------------------------


def test_counts_are_m1_and_m2_and_add_up():
    rng = np.random.default_rng(83)
    calibration = calibration_of(rng)
    one, other = Monitor(calibration), Monitor(calibration)
    stream = [a_query(rng).scores for _ in range(60)]
    for i, scores in enumerate(stream):
        (one, other)[i % 2].observe(scores)
    counts = [one.status.counts, other.status.counts]
    total = sum(counts, Counts())
    assert total == sum(reversed(counts), Counts())
    kept = [calibration.keep(scores) for scores in stream]
    assert (total.queries, total.kept) == (60, sum(mask.sum() for mask in kept))
    assert total.m1 == np.mean([mask.any() for mask in kept])
    assert total.m2 == pytest.approx(np.mean([mask.mean() for mask in kept]))
    assert np.isnan([Counts().m1, Counts().m2, Counts().loss]).all()
    shown = str(MonitorStatus(0.1, Counts(1, 2, 1, 0, 1, 0.5, judged=3, lost=2.0), 2.0, 25.0))
    assert "Drift: no alarm" in shown
    assert "Harm: alarm (3 judged" in shown


def test_threads_that_share_a_monitor_lose_nothing(tmp_path):
    calibration = calibration_of(np.random.default_rng(3))
    monitor, scores = Monitor(calibration), np.random.default_rng(4).normal(size=1000)

    def observe(i):
        monitor.observe([scores[i]])
        monitor.observe_judged(ScoredQuery([scores[i]], [True]))
        if i % 5 == 0:
            monitor.save(tmp_path / f"{i}.json")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(observe, range(300)))
    finally:
        sys.setswitchinterval(interval)
    counts = monitor.status.counts
    assert (counts.queries, counts.judged, len(monitor._state.live)) == (300, 300, 300)
    for path in tmp_path.iterdir():
        state = Monitor.load(path, calibration)._state
        assert len(state.live) == state.counts.queries


def saved(path, **changed):
    """A saved state with some fields changed, and the checksum that belongs to it."""
    calibration = calibration_of(np.random.default_rng(97))
    monitor = Monitor(calibration, np.float32(0.05), seed=np.int64(3))
    monitor.observe([1.0])
    monitor.save(path)
    fields = json.loads(path.read_text())
    if isinstance(counts := changed.get("counts"), dict):
        changed["counts"] = fields["counts"] | counts
    fields |= changed
    del fields["sha256"]
    write_envelope(path, fields, KIND)
    return calibration


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("level", 5), ("level", "0.05"), ("seed", True), ("other", 1), ("version", 1)),
        *(("live", ["nan"]), ("live", [10**400]), ("log_drift", "inf"), ("most_log_harm", -1)),
        *(("capitals", [0.0, 0.0, 0.0]), ("capitals", [1.0]), ("log_stakes", [0.0])),
        *(("queries", {"queries": 10**400}), ("share_kept", {"share_kept": 1e308})),
        ("unscorable", {"unscorable": -1}),
    ],
)
def test_a_state_that_no_monitor_saves_is_refused_by_its_field(field, value, tmp_path):
    name = "counts" if isinstance(value, dict) else field
    calibration = saved(tmp_path / "m.json", **{name: value})
    with pytest.raises(ValueError, match=rf"m\.json.*({field}|counts)"):
        Monitor.load(tmp_path / "m.json", calibration)


def test_a_file_that_is_not_a_saved_state_is_refused(tmp_path):
    path = tmp_path / "m.json"
    calibration = saved(path)
    assert Monitor.load(path, calibration).status.counts.queries == 1
    with pytest.raises(ValueError, match=r"m\.json watches another calibration"):
        Monitor.load(path, calibration_of(np.random.default_rng(1)))
    with pytest.raises(TypeError, match="calibration"):
        Monitor.load(path, None)
    content = json.loads(path.read_text())
    changed = json.dumps({**content, "seed": 1})
    start = f'{{"format": "{KIND.format}", "version": {KIND.version}, "live": '
    deep = [f"{start}{'[' * n}{']' * n}}}" for n in range(800, 1000)]
    for broken in ("", "[]", json.dumps({**content, "format": "x"}), changed, *deep):
        path.write_text(broken)
        with pytest.raises(ValueError, match=r"m\.json"):
            Monitor.load(path, calibration)
    with pytest.raises(FileNotFoundError):
        Monitor.load(tmp_path / "none.json", calibration)


def test_invalid_arguments_are_named():
    calibration = calibration_of(np.random.default_rng(2))
    by_snippet = Monitor(calibrated([1] * 9, 0.5, guarantee="snippet"))
    own, again = (ScoredQuery([1.0], [True], id=id) for id in ("own", "again"))
    of_own = Monitor(calibrated([own], 0.5))
    for words, use in (
        *(("level", lambda x=x: Monitor(calibration, x)) for x in (0, 1, -0.1, math.nan)),
        ("seed", lambda: Monitor(calibration, seed="1")),
        ("scores", lambda: Monitor(calibration).observe([[1.0, 2.0]])),
        ("guarantee", lambda: by_snippet.observe_judged(ScoredQuery([1.0], [True]))),
        ("'own'", lambda: of_own.observe_judged(own)),
        ("seen .* query 'again'", lambda: [of_own.observe_judged(again) for _ in range(2)]),
        ("score_queries", lambda: of_own.observe_judged(None)),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            use()
