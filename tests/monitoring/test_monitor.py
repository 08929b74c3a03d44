"""Alarms over live traffic: seldom false, whenever one looks, and raised where they should be."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import binomtest, kstest, norm, spearmanr

from conformal_retrievers import Calibration, Monitor, ScoredQuery
from conformal_retrievers.calibration.guarantees import digest
from conformal_retrievers.monitoring.monitor import Counts, MonitorStatus, _uniform
from conformal_retrievers.theory.tolerance import betting_lower

FALSE_ALARM = 1e-4
OF_QUERIES = ("query-recall", "all", "any")


def a_query(rng, shift=0.0, **options):
    """One to three relevant snippets, and ten others, all as hard as the query is."""
    n = int(rng.integers(1, 4))
    hardness = 0.7 * rng.normal()
    relevant = hardness + 0.7 * rng.normal(size=n) + shift
    scores = np.concatenate([relevant, 3 + hardness + rng.normal(size=10)])
    return ScoredQuery(scores, np.arange(n + 10) < n, **options)


def calibration_of(rng, n=200, **options):
    queries = [a_query(rng) for _ in range(n)]
    return Calibration.from_scores(queries, alpha=0.1, scorer="drawn", **options)


# --- drift ----------------------------------------------------------------------------------------


def watched(rng, *, queries, shift_from=None, n=100, level=0.05):
    """A watch over queries whose lowest score is N(0, 1), later N(½, 1), with ties to a tenth."""

    def one(mean=0.0):
        return ScoredQuery([round(rng.normal(mean), 1)], [True])

    calibration = Calibration.from_scores([one() for _ in range(n)], alpha=0.1, scorer="drawn")
    monitor = Monitor(calibration, level, seed=int(rng.integers(2**32)))
    for t in range(queries):
        shifted = shift_from is not None and t >= shift_from
        watch = monitor.observe(one(0.5 if shifted else 0.0).scores)
    return watch


@pytest.mark.parametrize("n", [20, 100])
def test_false_alarms_of_drift_are_no_more_frequent_than_the_level(n):
    rng = np.random.default_rng(41)
    alarms = sum(watched(rng, queries=300, n=n, level=0.1).drift for _ in range(300))
    assert binomtest(alarms, 300, 0.1, alternative="greater").pvalue > FALSE_ALARM


def test_a_planted_shift_is_found():
    rng = np.random.default_rng(43)
    assert all(watched(rng, queries=900, shift_from=200).drift for _ in range(30))


def ranks_of(rng, n, queries):
    """The smoothed online ranks of some new queries after n of the calibration, with ties."""
    draws = np.round(rng.normal(size=n + queries), 1)
    calibration = Calibration.from_scores(
        [ScoredQuery([score], [True]) for score in draws[:n]], alpha=0.5, scorer="drawn"
    )
    monitor = Monitor(calibration, seed=int(rng.integers(2**32)))
    return [monitor._smoothed_rank(score) for score in draws[n:]]


def test_online_ranks_are_uniform_and_independent():
    rng = np.random.default_rng(47)
    ranks = np.array([ranks_of(rng, 5, 3) for _ in range(4000)])
    for column in ranks.T:
        assert kstest(column, "uniform").pvalue > FALSE_ALARM
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert spearmanr(ranks[:, one], ranks[:, other]).pvalue > FALSE_ALARM


def test_the_bet_by_hand():
    calibration = Calibration.from_scores(
        [ScoredQuery([score], [True]) for score in (1.0, 2.0, 3.0)], alpha=0.5, scorer="drawn"
    )
    monitor = Monitor(calibration)
    for lowest, higher in ((0.5, 3), (0.4, 4), (9.0, 0)):
        before, capitals = monitor._state.log_drift, np.array(monitor._state.capitals)
        n = len(monitor._ordered)
        monitor.observe([lowest, 10.0])
        p = (higher + _uniform(0, len(monitor._state.live))) / (n + 1)
        mixed = 0.99 * capitals + 0.01 / 3
        growth = mixed @ (1 + np.array([-1, 0, 1]) * (p - 0.5))
        assert monitor._state.log_drift - before == pytest.approx(math.log(growth), rel=1e-12)
    assert monitor.status.drift_evidence == pytest.approx(
        math.exp(monitor._state.most_log_drift), rel=1e-12
    )
    assert monitor._state.live == [0.5, 0.4, 9.0]


def test_an_alarm_stays():
    rng = np.random.default_rng(53)
    calibration = calibration_of(rng)
    monitor = Monitor(calibration)
    while not monitor.status.drift:
        monitor.observe([50.0])
    for _ in range(200):
        monitor.observe(a_query(rng).scores)
    assert monitor.status.drift


def test_a_query_without_a_finite_score_says_nothing_on_drift():
    monitor = Monitor(calibration_of(np.random.default_rng(1)))
    before = monitor.status.drift_evidence
    for scores in ([], [math.nan, math.nan], [math.inf]):
        monitor.observe(scores)
    assert monitor._state.live == []
    assert monitor.status.drift_evidence == before
    counts = monitor.status.counts
    assert (counts.queries, counts.snippets, counts.unscorable) == (3, 3, 2)


# --- harm -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", OF_QUERIES)
def test_false_alarms_of_harm_are_no_more_frequent_than_the_level(guarantee):
    # The calibration is drawn anew in each run: half of them lose more than alpha.
    rng = np.random.default_rng(59)
    alarms = 0
    for _ in range(300):
        monitor = Monitor(calibration_of(rng, 60, guarantee=guarantee), 0.1)
        for _ in range(150):
            watch = monitor.observe_judged(a_query(rng))
        alarms += watch.harm
    assert binomtest(alarms, 300, 0.1, alternative="greater").pvalue > FALSE_ALARM


@pytest.mark.parametrize("guarantee", OF_QUERIES)
def test_harm_is_found(guarantee):
    rng = np.random.default_rng(61)
    for _ in range(10):
        monitor = Monitor(calibration_of(rng, guarantee=guarantee))
        for _ in range(600):
            watch = monitor.observe_judged(a_query(rng, shift=1.5))
        assert watch.harm
        assert watch.counts.loss > 0.1


def test_what_luck_explains_is_exceeded_as_seldom_as_it_may():
    # One relevant snippet, N(0, 1): the loss of a threshold t is known, 1 − Φ(t).
    rng = np.random.default_rng(67)
    exceeded = 0
    for _ in range(400):
        queries = [ScoredQuery([rng.normal()], [True]) for _ in range(60)]
        monitor = Monitor(Calibration.from_scores(queries, alpha=0.1, scorer="drawn"), 0.2)
        exceeded += norm.sf(monitor.calibration.threshold()) > monitor._most_that_luck_explains()
    assert binomtest(exceeded, 400, 0.1, alternative="greater").pvalue > FALSE_ALARM


def test_losses_are_those_of_the_guarantee_and_of_missed_snippets_where_they_count():
    rng = np.random.default_rng(71)
    query = ScoredQuery([-9.0, 9.0, 9.0], [True, True, False], missed=2)
    for options, loss in (
        ({}, 0.5),
        ({"guarantee": "all"}, 1.0),
        ({"guarantee": "any"}, 0.0),
        ({"count_missed": True}, 0.75),
        ({"count_missed": True, "guarantee": "any"}, 0.0),
    ):
        watch = Monitor(calibration_of(rng, **options)).observe_judged(query)
        assert (watch.counts.judged, watch.counts.lost) == (1, loss)
    nothing = ScoredQuery([1.0], [False])
    assert Monitor(calibration_of(rng)).observe_judged(nothing).counts.judged == 0


def test_a_query_that_was_calibrated_on_says_nothing_of_harm():
    rng = np.random.default_rng(74)
    queries = [a_query(rng, id=f"q{i}") for i in range(60)]
    queries.append(ScoredQuery([1.0], [False], id="none relevant"))
    monitor = Monitor(Calibration.from_scores(queries, alpha=0.1, scorer="drawn"))
    for query in (queries[3], queries[-1]):
        with pytest.raises(ValueError, match=f"'{query.id}' .*by its id"):
            monitor.observe_judged(query)
    monitor.observe_judged(a_query(rng, id="new"))
    assert monitor.observe_judged(a_query(rng)).counts.judged == 2


def test_a_promise_that_is_not_about_equal_queries_is_not_watched_for_harm():
    rng = np.random.default_rng(79)
    even = [a_query(rng, group="g") for _ in range(60)]
    for scored, options, said in (
        (even, {"guarantee": "snippet"}, "'snippet'"),
        (even, {"by_group": True}, "by group"),
    ):
        calibration = Calibration.from_scores(scored, alpha=0.1, scorer="drawn", **options)
        monitor = Monitor(calibration)
        monitor.observe([1.0], "g")  # drift is watched all the same
        with pytest.raises(ValueError, match=f"guarantee is .*{said}.*calibrate for"):
            monitor.observe_judged(even[0])


def test_the_alarm_of_harm_goes_off_at_2_by_level_and_not_before():
    # A calibration that loses 4 of 40; every new query loses half. The wealth is computed anew.
    scored = [ScoredQuery([float(i)], [True]) for i in range(40)]
    calibration = Calibration.from_scores(scored, alpha=0.1, scorer="drawn")
    monitor = Monitor(calibration, 0.05)
    order = sorted(range(40), key=lambda i: digest(None, i))
    losses = np.array([float(i > calibration.threshold()) for i in order])
    u = 1 - betting_lower(1 - losses, 0.025)
    between = 0
    for n in range(1, 40):
        watch = monitor.observe_judged(ScoredQuery([-1.0, 1e9], [True, True]))
        stakes = np.array([0.05, 0.1, 0.2, 0.4, 0.8]) / u
        wealth = np.mean((1 + stakes * (0.5 - u)) ** n)
        assert watch.harm_evidence == pytest.approx(wealth, rel=1e-9)
        assert watch.harm == (wealth >= 40)
        between += 20 <= wealth < 40
    assert watch.harm
    assert between
    below, above = (MonitorStatus(0.05, Counts(), 1.0, evidence) for evidence in (39.9, 40.1))
    assert (below.harm, above.harm) == (False, True)
    below, above = (MonitorStatus(0.05, Counts(), evidence, 1.0) for evidence in (19.9, 20.1))
    assert (below.drift, above.drift) == (False, True)


# --- counts, files, errors ------------------------------------------------------------------------


def test_counts_are_m1_and_m2_and_add_up():
    rng = np.random.default_rng(83)
    calibration = calibration_of(rng)
    streams = [[a_query(rng) for _ in range(30)] for _ in range(2)]
    counts = []
    for stream in streams:
        monitor = Monitor(calibration)
        for query in stream:
            monitor.observe(query.scores)
        counts.append(monitor.status.counts)
    total = counts[0] + counts[1]
    kept = [calibration.keep(query.scores) for stream in streams for query in stream]
    assert total.queries == 60
    assert total.m1 == np.mean([mask.any() for mask in kept])
    assert total.m2 == pytest.approx(np.mean([mask.mean() for mask in kept]))
    assert total.kept == sum(mask.sum() for mask in kept)
    assert math.isnan(Counts().m1)
    assert math.isnan(Counts().m2)
    assert math.isnan(Counts().loss)


def test_a_saved_monitor_goes_on_as_if_nothing_had_happened(tmp_path):
    rng = np.random.default_rng(89)
    calibration = calibration_of(rng)
    stream = [a_query(rng, shift=i / 100) for i in range(120)]
    whole, first = Monitor(calibration, seed=5), Monitor(calibration, seed=5)
    for i, query in enumerate(stream):
        whole.observe(query.scores)
        whole.observe_judged(query)
        if i == 60:
            first.save(tmp_path / "m.json")
            first = Monitor.load(tmp_path / "m.json", calibration)
        first.observe(query.scores)
        first.observe_judged(query)
    assert first.status == whole.status
    assert first._state == whole._state
    assert first.level == whole.level


def test_a_file_that_is_no_monitors_is_an_error_that_names_it(tmp_path):
    rng = np.random.default_rng(97)
    calibration, other = calibration_of(rng), calibration_of(rng)
    path = tmp_path / "m.json"
    Monitor(calibration).save(path)
    with pytest.raises(ValueError, match="m.json watches another calibration"):
        Monitor.load(path, other)
    content = json.loads(path.read_text())
    for broken in (
        "",
        "[]",
        json.dumps({**content, "format": "x"}),
        json.dumps({**content, "live": 3}),
        json.dumps({**content, "extra": 3}),
        json.dumps({k: v for k, v in content.items() if k != "seed"}),
    ):
        path.write_text(broken)
        with pytest.raises(ValueError, match=r"m\.json is no complete file of a monitor"):
            Monitor.load(path, calibration)
    with pytest.raises(FileNotFoundError):
        Monitor.load(tmp_path / "none.json", calibration)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("log_drift", math.nan, "log_drift holds nan, which is not finite"),
        ("log_drift", 99.0, "most_log_drift is .* of 0 and log_drift 99.0"),
        ("most_log_drift", -1.0, "most_log_drift is -1.0"),
        ("most_log_harm", -1.0, "most_log_harm is -1.0"),
        ("most_log_harm", math.inf, "most_log_harm holds inf"),
        ("most_log_harm", None, "most_log_harm holds None, which is no number"),
        ("live", [], "most_log_drift is .*, more than the 0 queries of live can give"),
        ("live", [math.inf], "live holds inf"),
        ("live", ["x"], "live holds 'x'"),
        ("live", [1.0] * 9, "counts: queries with a score is 9, which is more than there are, 4"),
        ("capitals", [0.5, 0.5], "capitals is .*; it is 3 numbers"),
        ("capitals", [0.5, 0.4, 0.2], "capitals is .*; they are shares of 1"),
        ("capitals", [1.5, 0.0, -0.5], "capitals is .*; they are shares of 1"),
        ("log_stakes", [0.0] * 4, "log_stakes is .*; it is 5 numbers"),
        ("counts", {"judged": 0, "lost": 0.0}, "most_log_harm is .* of 0 judged queries"),
        ("counts", {"queries": -5}, "counts: queries is -5; it is a count"),
        ("counts", {"kept": 2.5}, "counts: kept is 2.5; it is a count"),
        ("counts", {"kept": 999}, "counts: kept is 999, which is more than there are, 5"),
        ("counts", {"lost": 2.0}, "counts: lost is 2.0, which is more than there are, 1"),
        (
            "counts",
            {"share_kept": 5.0},
            "counts: share_kept is 5.0, which is more than there are, 4",
        ),
    ],
)
def test_a_state_that_no_stream_leads_to_is_refused(field, value, said, tmp_path):
    calibration = calibration_of(np.random.default_rng(101))
    monitor, path = Monitor(calibration), tmp_path / "m.json"
    for scores in ([-9.0], [-9.1, math.nan], [-9.2], [math.nan]):
        monitor.observe(scores)
    monitor.observe_judged(ScoredQuery([0.1], [True]))
    monitor.save(path)
    content = json.loads(path.read_text())
    changed = {**content["counts"], **value} if field == "counts" else value
    path.write_text(json.dumps({**content, field: changed}))
    with pytest.raises(ValueError, match=rf"m\.json is no complete file of a monitor \({said}"):
        Monitor.load(path, calibration)


def test_what_is_wrong_is_named():
    calibration = calibration_of(np.random.default_rng(2))
    for level in (0, 1, -0.1, math.nan):
        with pytest.raises(ValueError, match="level is .*the probability of a false alarm"):
            Monitor(calibration, level)
    with pytest.raises(ValueError, match=r"scores has shape \(1, 2\)"):
        Monitor(calibration).observe([[1.0, 2.0]])


def test_a_monitor_shows_what_it_watches_and_its_alarms():
    rng = np.random.default_rng(3)
    monitor = Monitor(calibration_of(rng), level=0.1)
    shown = f"Monitor({monitor.calibration!r}, level=0.1, "
    assert repr(monitor) == f"{shown}0 queries, 0 judged, no alarm)"
    for _ in range(400):
        query = a_query(rng, shift=2.0)
        monitor.observe(query.scores)
    assert repr(monitor) == f"{shown}400 queries, 0 judged, drift)"
    for _ in range(100):
        monitor.observe_judged(a_query(rng, shift=2.0))
    judged = monitor.status.counts.judged
    assert repr(monitor) == f"{shown}400 queries, {judged} judged, drift and harm)"
    harmed = Monitor(monitor.calibration, level=0.1)
    while not harmed.status.harm:
        harmed.observe_judged(a_query(rng, shift=2.0))
    assert repr(harmed).endswith(f"0 queries, {harmed.status.counts.judged} judged, harm)")


def test_a_watch_says_what_it_knows_in_words():
    rng = np.random.default_rng(3)
    monitor = Monitor(calibration_of(rng))
    assert "none is judged" in str(monitor.observe([0.1]))
    for _ in range(400):
        query = a_query(rng, shift=2.0)
        monitor.observe(query.scores)
        watch = monitor.observe_judged(query)
    assert "differ from the calibration's" in str(watch)
    assert "more is lost than promised" in str(watch)
    assert "alarm at 20" in str(watch)
