"""Thresholds that a budget chooses, or that are chosen after a look at all of them."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from clustered import FALSE_ALARM, clustered_queries, coverage
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from conformal_retrievers import Calibration, ScoredQuery
from conformal_retrievers.choosing import coverage_curve, threshold_for_budget
from conformal_retrievers.tolerance import query_recall_tolerance

ALPHAS = [i / 50 for i in range(1, 50)]


def relevant(*scores, **options):
    return ScoredQuery(scores, [True] * len(scores), **options)


def calibration_of(queries, alpha=0.1, guarantee="all", **options):
    return Calibration.from_scores(
        queries, alpha=alpha, guarantee=guarantee, scorer="lookup", **options
    )


# --- the curve ------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", ["all", "any"])
def test_the_curve_of_whole_queries_by_hand(guarantee):
    # √(ln(1/.1)/200) = .1073: for .8 the ⌈90.73⌉ = 91st of 100, for .9 the 101st.
    calibration = calibration_of([relevant(i, id=f"{i}") for i in range(1, 101)], 0.5, guarantee)
    points = coverage_curve(calibration, delta=0.1, alphas=[0.2, 0.1, 0.5])
    assert [point.threshold for point in points] == [91.0, math.inf, 61.0]
    assert [point.coverage for point in points] == [0.8, 0.9, 0.5]


@settings(max_examples=150)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=60),
    st.sampled_from([0.05, 0.1, 0.5]),
)
def test_the_curve_of_whole_queries_is_where_the_lower_band_reaches_each_coverage(lists, delta):
    calibration = calibration_of([relevant(*scores) for scores in lists])
    units = np.array([max(scores) for scores in lists])
    margin = math.sqrt(math.log(1 / delta) / (2 * len(lists)))
    for point in coverage_curve(calibration, delta=delta, alphas=ALPHAS):
        reaches = [t for t in units if np.mean(units <= t) - margin >= point.coverage - 1e-12]
        assert point.threshold == min(reaches, default=math.inf)


def falls_short(points, guarantee):
    return any(coverage(guarantee, p.threshold) < p.coverage for p in points)


@pytest.mark.parametrize("guarantee", ["all", "any"])
def test_all_points_of_the_curve_of_whole_queries_hold_at_once(guarantee):
    rng = np.random.default_rng([71, len(guarantee)])
    runs, short, marginal, alphas = 400, 0, 0, ALPHAS[::3]
    for _ in range(runs):
        calibration = calibration_of(clustered_queries(rng, 50), 0.5, guarantee)
        short += falls_short(coverage_curve(calibration, delta=0.2, alphas=alphas), guarantee)
        each = [(1 - a, calibration.at(a).threshold()) for a in alphas[:6]]
        marginal += any(coverage(guarantee, t) < target for target, t in each)
    assert binomtest(short, runs, 0.2, alternative="greater").pvalue > FALSE_ALARM
    # Chosen after a look, thresholds that hold one by one fall short far more often.
    assert marginal > 0.5 * runs


def test_the_band_of_uniform_scores_is_crossed_no_more_often_than_delta():
    # Of U(0, 1) scores a threshold is its own coverage, at all levels at once.
    rng = np.random.default_rng(73)
    fine = [i / 400 for i in range(1, 400)]
    runs, delta, crossed = 700, 0.3, 0
    for scores in rng.random((runs, 60)):
        points = coverage_curve(
            calibration_of([relevant(s) for s in scores]), delta=delta, alphas=fine
        )
        crossed += any(p.threshold < p.coverage for p in points)
    assert binomtest(crossed, runs, delta, alternative="greater").pvalue > FALSE_ALARM
    assert crossed > 0.15 * runs  # Massart's constant is sharp: no idle band


def test_the_curve_of_query_recall_is_bets_at_a_level_shared_among_all_points():
    rng = np.random.default_rng(79)
    queries = [relevant(*rng.normal(size=rng.integers(1, 6)), id=f"q{i}") for i in range(150)]
    calibration = calibration_of(queries, 0.1, "query-recall")
    alphas = [0.02, 0.1, 0.2, 0.4]
    points = coverage_curve(calibration, delta=0.2, alphas=alphas)
    by_query = calibration.units().in_fixed_order()
    assert [p.threshold for p in points] == [
        query_recall_tolerance(by_query, alpha, 0.2 / 4) for alpha in alphas
    ]
    assert [p.coverage for p in points] == [1 - alpha for alpha in alphas]
    assert points[0].threshold == math.inf
    single = coverage_curve(calibration, delta=0.2, alphas=[0.2])[0]
    with_delta = calibration_of(queries, 0.2, "query-recall", delta=0.2)
    assert single.threshold == with_delta.threshold() <= points[2].threshold


def test_all_points_of_the_curve_of_query_recall_hold_at_once():
    rng = np.random.default_rng(83)
    runs, short = 250, 0
    for _ in range(runs):
        calibration = calibration_of(clustered_queries(rng, 50), 0.5, "query-recall")
        points = coverage_curve(calibration, delta=0.2, alphas=[0.1, 0.2, 0.3, 0.5])
        assert math.isfinite(points[-1].threshold)
        short += falls_short(points, "query-recall")
    assert binomtest(short, runs, 0.2, alternative="greater").pvalue > FALSE_ALARM


def test_missed_snippets_that_count_are_never_below_a_threshold():
    queries = [relevant(i, missed=int(i % 5 == 0), id=f"{i}") for i in range(200)]
    for guarantee in ("all", "query-recall"):
        calibration = calibration_of(queries, 0.5, guarantee, count_missed=True)
        strict, lenient = coverage_curve(calibration, delta=0.1, alphas=[0.1, 0.5])
        assert strict.threshold == math.inf
        assert math.isfinite(lenient.threshold)


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"guarantee": "snippet"}, {}, "guarantee 'snippet'"),
        ({}, {"delta": 0.0}, "delta is 0"),
        ({}, {"delta": 0.6}, r"delta is 0\.6; the band holds for delta up to 0\.5"),
        ({}, {"alphas": [0.1, 1.5]}, r"alpha is 1\.5"),
        ({"by_group": True}, {}, "without groups and weights"),
        ({"weight": 2.0}, {}, "without groups and weights"),
    ],
)
def test_a_curve_that_cannot_be_had_is_an_error_that_says_why(options, arguments, message):
    weight = options.pop("weight", 1.0)
    queries = [relevant(i, group="g", weight=weight) for i in range(50)]
    with pytest.raises(ValueError, match=message):
        coverage_curve(
            calibration_of(queries, **options), **{"delta": 0.1, "alphas": [0.1], **arguments}
        )


# --- a budget -------------------------------------------------------------------------------------

scores_or_nan = st.one_of(st.integers(0, 6), st.just(math.nan), st.just(math.inf))


@st.composite
def unjudged(draw):
    """Some queries' scores, at least one of them a number, with a length for each."""
    lists = draw(st.lists(st.lists(scores_or_nan, max_size=5), min_size=1, max_size=6))
    lists.append([draw(st.integers(0, 6))])
    lengths = [[draw(st.integers(0, 50)) for _ in scores] for scores in lists]
    return lists, lengths


def cost_at(threshold, lists, costs):
    """What is kept costs, on average over queries."""
    total = sum(
        (
            cost
            for scores, own in zip(lists, costs, strict=True)
            for score, cost in zip(scores, own, strict=True)
            if score <= threshold or math.isnan(score)
        ),
        Fraction(0),
    )
    return total / len(lists)


def largest_within(budget, lists, costs):
    """Try every score as a threshold."""
    values = sorted({s for scores in lists for s in scores if not math.isnan(s)})
    fitting = [t for t in values if cost_at(t, lists, costs) <= budget]
    if len(fitting) == len(values):
        return math.inf
    return fitting[-1] if fitting else -math.inf


@settings(max_examples=400)
@given(unjudged(), st.integers(1, 60).map(lambda i: Fraction(i, 60)))
def test_the_threshold_for_a_share_is_the_largest_within_it(data, share):
    lists, _ = data
    costs = [[Fraction(1, max(1, len(scores)))] * len(scores) for scores in lists]
    found = threshold_for_budget(lists, keep_share=float(share))
    assert found == largest_within(share, lists, costs)
    assert type(found) is float


@settings(max_examples=400)
@given(unjudged(), st.integers(1, 300))
def test_the_threshold_for_a_number_of_tokens_is_the_largest_within_it(data, tokens):
    lists, lengths = data
    costs = [[Fraction(length) for length in own] for own in lengths]
    found = threshold_for_budget(lists, tokens=tokens, lengths=lengths)
    assert found == largest_within(tokens, lists, costs)


def test_budgets_by_hand():
    lists = [[0.1, 0.2, 0.3, 0.4], [0.25, 0.5]]
    # Sorted with their shares: .1 ¼, .2 ¼, .25 ½, .3 ¼, .4 ¼, .5 ½, of two queries.
    for share, threshold in (
        (0.1, -math.inf),
        (0.125, 0.1),
        (0.25, 0.2),
        (0.49, 0.2),
        (0.5, 0.25),
        (0.75, 0.4),
        (0.99, 0.4),
        (1.0, math.inf),
    ):
        assert threshold_for_budget(lists, keep_share=share) == threshold
    lengths = [[100, 10, 10, 10], [40, 30]]
    for tokens, threshold in ((49, -math.inf), (50, 0.1), (75, 0.25), (99, 0.4), (100, math.inf)):
        assert threshold_for_budget(lists, tokens=tokens, lengths=lengths) == threshold


def test_equal_scores_are_kept_together_or_not_at_all():
    assert threshold_for_budget([[1, 2, 2, 2]], keep_share=0.75) == 1
    assert threshold_for_budget([[2, 2, 2, 2]], keep_share=0.75) == -math.inf
    assert threshold_for_budget([[2, 2, 2, 2]], keep_share=1.0) == math.inf


def test_what_cannot_be_scored_is_kept_and_paid_for():
    assert threshold_for_budget([[math.nan, 1, 2, 3]], keep_share=0.5) == 1
    assert threshold_for_budget([[1, 2, 3]], keep_share=0.5) == 1
    assert threshold_for_budget([[math.nan, math.nan, 1, 2]], keep_share=0.4) == -math.inf
    lengths = [[70, 10, 10, 10]]
    assert threshold_for_budget([[math.nan, 1, 2, 3]], tokens=80, lengths=lengths) == 1


def test_a_query_without_snippets_costs_nothing_and_counts():
    assert threshold_for_budget([[1, 2], []], keep_share=0.25) == 1
    assert threshold_for_budget([[1, 2], []], keep_share=0.5) == math.inf


def test_a_budget_is_kept_by_the_queries_that_it_was_chosen_on(rng):
    lists = [query.scores for query in clustered_queries(rng, 200)]
    for share in (0.1, 0.3, 0.5, 0.9):
        threshold = threshold_for_budget(lists, keep_share=share)
        kept = np.mean([(scores <= threshold).mean() for scores in lists])
        assert share - 0.01 < kept <= share + 1e-12


def test_nothing_that_is_passed_in_is_changed():
    scores, lengths = np.array([3.0, 1.0, 2.0]), np.array([5, 6, 7])
    threshold_for_budget([scores], tokens=11, lengths=[lengths])
    assert scores.tolist() == [3.0, 1.0, 2.0]
    assert lengths.tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give keep_share=, or tokens= with lengths="),
        ({"keep_share": 0.5, "tokens": 9, "lengths": [[1]]}, "give keep_share=, or"),
        ({"tokens": 9}, "give keep_share=, or"),
        ({"keep_share": 0.5, "lengths": [[1]]}, "give keep_share=, or"),
        ({"keep_share": 0.0}, r"keep_share is 0\.0"),
        ({"keep_share": 1.1}, r"keep_share is 1\.1"),
        ({"keep_share": math.nan}, "keep_share is nan"),
        ({"tokens": 0, "lengths": [[1]]}, "tokens is 0"),
        ({"tokens": -5, "lengths": [[1]]}, "tokens is -5"),
        ({"tokens": math.nan, "lengths": [[1]]}, "tokens is nan"),
        ({"tokens": 5, "lengths": [[1, 2]]}, "lengths does not fit unjudged"),
        ({"tokens": 5, "lengths": [[1], [2]]}, "lengths does not fit unjudged"),
        ({"unjudged": [], "keep_share": 0.5}, "unjudged is empty"),
    ],
)
def test_a_budget_that_makes_no_sense_is_an_error_that_says_why(arguments, message):
    given = {"unjudged": [[0.5]], **arguments}
    with pytest.raises(ValueError, match=message):
        threshold_for_budget(given.pop("unjudged"), **given)
