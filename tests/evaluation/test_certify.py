"""What a fixed threshold is certified for, and how surprising a measured coverage is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from clustered import FALSE_ALARM, clustered_queries, coverage
from scipy.stats import betabinom, binom, binomtest, norm

from conformal_retrievers import Calibration, JudgedQuery, ScoredQuery
from conformal_retrievers.calibration.guarantees import digest
from conformal_retrievers.evaluation.certify import certify
from conformal_retrievers.theory.ranks import conformal_rank
from conformal_retrievers.theory.tolerance import beta_binomial_cdf, betting_p_value, tolerance_rank


def relevant(*scores, **options):
    return ScoredQuery(scores, [True] * len(scores), **options)


def calibration_of(queries, alpha=0.1, guarantee="all", **options):
    return Calibration.from_scores(
        queries, alpha=alpha, guarantee=guarantee, scorer="lookup", **options
    )


def outcomes(kept, n):
    """Queries of one relevant snippet, of which so many score below 1, and the others above."""
    return [relevant(0.5 if i < kept else 1.5) for i in range(n)]


# --- scalar units: Clopper and Pearson ------------------------------------------------------------


@pytest.mark.parametrize("guarantee", ["all", "any"])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize(
    ("kept", "n"), [(0, 1), (1, 1), (0, 30), (30, 30), (1, 30), (27, 30), (86, 100), (450, 500)]
)
def test_the_lower_bound_is_clopper_and_pearsons(guarantee, confidence, kept, n):
    found = certify(1.0, outcomes(kept, n), guarantee=guarantee, confidence=confidence)
    test = binomtest(kept, n, alternative="greater")
    reference = test.proportion_ci(confidence, method="exact").low
    assert found.lower == pytest.approx(reference, abs=1e-7)
    assert found.lower <= reference + 1e-12  # never above
    assert found.coverage == kept / n
    assert (found.n, found.confidence, found.guarantee) == (n, confidence, guarantee)
    assert found.surprise is None


@pytest.mark.parametrize("truth", [0.75, 0.9, 0.98])
def test_the_lower_bound_is_below_the_truth_as_often_as_it_says(truth):
    # Over all outcomes, weighted by their law: no simulation is needed.
    n, confidence = 60, 0.9
    below = np.array(
        [
            certify(1.0, outcomes(kept, n), guarantee="all", confidence=confidence).lower <= truth
            for kept in range(n + 1)
        ]
    )
    chance = float(binom(n, truth).pmf(np.arange(n + 1)) @ below)
    assert chance >= confidence - 1e-12
    assert truth > 0.95 or chance < 0.95


# --- shares: bets ---------------------------------------------------------------------------------


def test_the_lower_bound_of_shares_is_the_largest_that_a_bet_refutes():
    rng = np.random.default_rng(47)
    queries = clustered_queries(rng, 120)
    found = certify(1.0, queries, guarantee="query-recall", confidence=0.95)
    order = sorted(range(120), key=lambda i: digest(queries[i].id, i))  # in which the bets are made
    shares = np.array([(queries[i].scores[queries[i].relevant] <= 1.0).mean() for i in order])
    assert found.coverage == pytest.approx(shares.mean(), rel=1e-12)
    losses, level = 1 - shares, 1 - 0.95
    assert betting_p_value(losses, 1 - found.lower, level) <= level
    assert betting_p_value(losses, 1 - found.lower - 1e-7, level) > level
    assert 0.5 < found.lower < found.coverage


def test_the_lower_bound_of_shares_is_above_the_truth_no_more_often_than_it_says():
    rng = np.random.default_rng(53)
    threshold, confidence, runs = 1.2, 0.9, 800
    truth = norm.cdf(threshold)
    above, near = 0, 0
    for _ in range(runs):
        lower = certify(
            threshold,
            clustered_queries(rng, 60),
            guarantee="query-recall",
            confidence=confidence,
        ).lower
        above += lower > truth
        near += lower > truth - 0.2
    assert binomtest(above, runs, 1 - confidence, alternative="greater").pvalue > FALSE_ALARM
    assert near > 0.9 * runs


@pytest.mark.parametrize("guarantee", ["query-recall", "all", "any"])
def test_what_a_budget_chose_is_bounded_as_often_as_said_where_snippets_are_clustered(guarantee):
    # The threshold is chosen from other queries, whose judgements nobody looks at.
    rng = np.random.default_rng(59)
    above, runs = 0, 400
    for _ in range(runs):
        threshold = float(
            np.quantile(np.concatenate([q.scores for q in clustered_queries(rng, 9)]), 0.6)
        )
        lower = certify(threshold, clustered_queries(rng, 40), guarantee=guarantee).lower
        above += lower > coverage(guarantee, threshold)
    assert binomtest(above, runs, 0.1, alternative="greater").pvalue > FALSE_ALARM


# --- what is counted ------------------------------------------------------------------------------


QUERIES = [
    relevant(0.5, 0.9),
    ScoredQuery([0.2, 0.3, 1.5, 1.6], [True, False, True, True]),
    relevant(1.5),
    relevant(1.0, missed=1),
    ScoredQuery([0.1], [False]),
    ScoredQuery([], [], missed=2),
]


@pytest.mark.parametrize(
    ("guarantee", "share", "with_missed"),
    [
        ("query-recall", (1 + 1 / 3 + 0 + 1) / 4, (1 + 1 / 3 + 0 + 1 / 2 + 0) / 5),
        ("all", 2 / 4, 1 / 5),
        ("any", 3 / 4, 3 / 5),
    ],
)
def test_coverage_by_hand(guarantee, share, with_missed):
    found = certify(1.0, QUERIES, guarantee=guarantee)
    assert found.coverage == pytest.approx(share, rel=1e-12)
    assert found.n == 4
    calibrating = [relevant(i / 10) for i in range(1, 11)]  # at most 1.0
    for count_missed, expected, n in ((False, share, 4), (True, with_missed, 5)):
        calibration = calibration_of(calibrating, 0.1, guarantee, count_missed=count_missed)
        assert calibration.threshold() == 1.0
        found = certify(calibration, QUERIES)
        assert found.coverage == pytest.approx(expected, rel=1e-12)
        assert (found.n, found.guarantee) == (n, guarantee)


def test_a_calibration_by_group_is_certified_with_the_threshold_of_each_group():
    queries = [relevant(i + 100 * (i % 2), group="ab"[i % 2]) for i in range(40)]
    calibration = calibration_of(queries, 0.2, by_group=True)
    fresh = [relevant(60, group="a"), relevant(60, group="b"), relevant(999, group="new")]
    found = certify(calibration, fresh)
    assert found.coverage == pytest.approx(2 / 3)
    assert found.surprise is None


def test_what_cannot_be_scored_is_kept():
    queries = [ScoredQuery([math.nan, 9.0], [True, False]), relevant(math.nan)]
    for guarantee in ("query-recall", "all", "any"):
        assert certify(1.0, queries, guarantee=guarantee).coverage == 1.0


def test_infinite_thresholds_keep_everything_and_nothing():
    assert certify(math.inf, QUERIES[:3], guarantee="all").coverage == 1.0
    assert certify(-math.inf, QUERIES[:3], guarantee="any").coverage == 0.0
    assert certify(-math.inf, QUERIES[:3], guarantee="any").lower == 0.0
    assert certify(-math.inf, QUERIES[:3], guarantee="query-recall").lower == 0.0


def test_another_guarantee_than_the_calibrations_own_can_be_certified():
    calibration = calibration_of([relevant(i / 10) for i in range(1, 11)], 0.1, "all")
    assert certify(calibration, QUERIES).guarantee == "all"
    other = certify(calibration, QUERIES, guarantee="any")
    assert (other.guarantee, other.coverage) == ("any", 0.75)
    assert other.surprise is None


# --- surprise -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [(1, 1), (19, 2), (91, 10), (46, 5), (1, 50), (901, 100)])
@pytest.mark.parametrize("m", [1, 2, 17, 100, 500])
def test_the_beta_binomial_law_is_scipys(m, a, b):
    ours = beta_binomial_cdf(m, a, b)
    np.testing.assert_allclose(ours, betabinom(m, a, b).cdf(np.arange(m + 1)), atol=1e-9)
    assert ours.shape == (m + 1,)
    assert ours[-1] == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("guarantee", ["all", "any"])
@pytest.mark.parametrize("delta", [None, 0.1])
def test_a_surprise_is_the_chance_of_so_little_or_less(guarantee, delta):
    calibrating = [relevant(i / 100) for i in range(1, 101)]
    calibration = calibration_of(calibrating, 0.1, guarantee, delta=delta)
    k = conformal_rank(100, 0.1) if delta is None else tolerance_rank(100, 0.1, delta)
    law = betabinom(50, k, 101 - k)
    for kept in (0, 36, 43, 45, 49, 50):
        found = certify(calibration, [relevant(0.0 if i < kept else 2.0) for i in range(50)])
        assert found.coverage == kept / 50
        assert found.surprise == pytest.approx(law.cdf(kept), abs=1e-9)


def surprises(rng, *, runs, shift=0.0, guarantee="all", delta=None, n=50, m=40):
    found = []
    for _ in range(runs):
        calibration = calibration_of(
            [relevant(score) for score in rng.random(n)], 0.1, guarantee, delta=delta
        )
        fresh = [relevant(score) for score in rng.random(m) + shift]
        found.append(certify(calibration, fresh).surprise)
    return np.array(found)


@pytest.mark.parametrize("delta", [None, 0.1])
def test_a_promise_that_holds_is_surprising_no_more_often_than_it_may(delta):
    found = surprises(np.random.default_rng(61), runs=900, delta=delta)
    for level in (0.01, 0.05, 0.2, 0.5):
        small = int((found <= level).sum())
        assert binomtest(small, len(found), level, alternative="greater").pvalue > FALSE_ALARM
    # It is as often small as its law, which has steps, allows, and not much less.
    assert (found <= 0.5).mean() > 0.25


def test_a_promise_that_fails_is_surprising():
    found = surprises(np.random.default_rng(67), runs=200, shift=0.2)
    assert (found <= 0.05).mean() > 0.6


def test_a_surprise_that_is_not_known_exactly_is_none():
    queries = [relevant(i / 100) for i in range(1, 101)]
    fresh = [relevant(0.5)]
    assert certify(calibration_of(queries), fresh).surprise is not None
    for calibration in (
        calibration_of(queries, guarantee="query-recall"),
        calibration_of([replace(q, group="g") for q in queries], by_group=True),
        calibration_of(queries[:5]),  # keeps everything
    ):
        assert certify(calibration, fresh).surprise is None


# --- refusals and words ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"guarantee": None}, "guarantee is missing"),
        ({"guarantee": "snippet"}, "guarantee is 'snippet'.*'query-recall', 'all' or 'any'"),
        ({"guarantee": "most"}, "guarantee is 'most'"),
        ({"scored": []}, "no judged query has a relevant retrieved snippet"),
        ({"scored": [ScoredQuery([1.0], [False])]}, "no judged query has a relevant"),
        ({"scored": [ScoredQuery([], [], missed=3)]}, "no judged query has a relevant"),
        ({"threshold": math.nan}, "threshold is nan"),
        ({"confidence": 0.0}, "strictly between 0 and 1"),
        ({"confidence": 1.0}, "how sure the bound is to be, .* between 0 and 1, such as 0.9"),
        ({"confidence": math.nan}, "is nan"),
    ],
)
def test_what_cannot_be_certified_is_an_error_that_says_why(arguments, message):
    given = {
        "threshold": 1.0,
        "scored": QUERIES,
        "guarantee": "all",
        "confidence": 0.9,
        **arguments,
    }
    with pytest.raises(ValueError, match=message):
        certify(given.pop("threshold"), given.pop("scored"), **given)


def test_a_calibration_of_snippets_is_refused_unless_another_guarantee_is_named():
    calibration = calibration_of([relevant(i / 10) for i in range(1, 11)], 0.1, "snippet")
    with pytest.raises(ValueError, match="guarantee is 'snippet'"):
        certify(calibration, QUERIES)
    assert certify(calibration, QUERIES, guarantee="any").coverage == 0.75


def test_a_certificate_says_what_was_found():
    calibration = calibration_of([relevant(i / 100) for i in range(1, 101)], 0.1)
    text = str(certify(calibration, [relevant(0.1)] * 43 + [relevant(2.0)] * 7))
    for part in (
        "coverage 0.860 on 50 queries",
        "with confidence 0.9",
        "(guarantee 'all')",
        "so low or lower with probability 0.2",
    ):
        assert part in text
    assert "probability" not in str(certify(1.0, QUERIES, guarantee="all"))


def test_a_certificate_does_not_depend_on_the_order_that_the_queries_come_in():
    easy = [ScoredQuery([0.0], [True], id=f"e{i}") for i in range(100)]
    hard = [ScoredQuery([2.0], [True], id=f"h{i}") for i in range(100)]
    one = certify(1.0, easy + hard, guarantee="query-recall")
    assert one == certify(1.0, hard + easy, guarantee="query-recall")
    assert one.coverage == 0.5
    assert one.lower < 0.5


def test_the_queries_of_the_calibration_certify_nothing():
    queries = [relevant(i, id=f"q{i}") for i in range(30)]
    calibration = calibration_of(queries)
    with pytest.raises(ValueError, match=r"query 'q\d+' is one of those .* did not look at"):
        certify(calibration, queries)
    assert certify(calibration.threshold(), queries, guarantee="all").n == 30


def test_a_query_that_is_not_scored_is_named():
    judged = JudgedQuery("q", ["a"], [True])
    with pytest.raises(TypeError, match=r"scored\[0\] is JudgedQuery.*score_queries"):
        certify(0.5, [judged], guarantee="all")
