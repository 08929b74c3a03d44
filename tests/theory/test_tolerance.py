"""Bounds for all calibrations but a share delta: ranks by the Beta law, and bets on shares."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from clustered import FALSE_ALARM, clustered_queries, coverage
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom, binomtest, kstest

from conformal_retrievers import Calibration, ScoredQuery
from conformal_retrievers.theory.tolerance import (
    betting_n,
    betting_p_value,
    binomial_cdf,
    check_delta,
    query_recall_tolerance,
    tolerance_n,
    tolerance_rank,
)


def calibration_of(queries, alpha=0.1, guarantee="all", **options):
    return Calibration.from_scores(
        queries, alpha=alpha, guarantee=guarantee, scorer="lookup", **options
    )


def relevant(*scores, **options):
    return ScoredQuery(scores, [True] * len(scores), **options)


# --- ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.01, 0.05, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.172, 0.3, 0.5, 0.9])
def test_the_tolerance_rank_is_the_smallest_that_scipy_allows(alpha, delta):
    for n in [*range(1, 60), 99, 100, 230, 500, 1000, 2500]:
        k = tolerance_rank(n, alpha, delta)
        assert 1 <= k <= n + 1
        ranks = np.arange(1, n + 1)
        # At alpha = delta = 1/2 and odd n the law hits delta exactly, which floats miss.
        allowed = binom.cdf(n - ranks, n, alpha) <= delta * (1 + 1e-12)
        assert k == (ranks[allowed][0] if allowed.any() else n + 1)
        # The same in words of the Beta law: too low a coverage has a chance of at most delta.
        if k <= n:
            assert beta(k, n + 1 - k).cdf(1 - alpha) <= delta * (1 + 1e-9)
        if k > 1:
            assert beta(k - 1, n + 2 - k).cdf(1 - alpha) > delta * (1 - 1e-9)


def test_a_tolerance_that_is_hit_exactly_is_allowed():
    # Of an odd number of fair coins at most half show heads with probability 1/2 exactly.
    assert [tolerance_rank(n, 0.5, 0.5) for n in (1, 3, 15, 101)] == [1, 2, 8, 51]
    assert tolerance_rank(15, 0.5, 0.4999999) == 9


@pytest.mark.parametrize(
    ("n", "delta", "rank"),
    [
        (50, 0.1, 49),
        (50, 0.05, 49),
        (50, 0.01, 50),
        (100, 0.1, 95),
        (100, 0.05, 96),
        (100, 0.01, 97),
        (200, 0.1, 186),
        (500, 0.05, 462),
        (1000, 0.1, 913),
        (1000, 0.01, 922),
        (20, 0.1, 21),
    ],
)
def test_the_ranks_for_ninety_per_cent_by_the_books(n, delta, rank):
    assert tolerance_rank(n, 0.1, delta) == rank


@pytest.mark.parametrize(
    ("alpha", "delta", "n"),
    [
        (0.1, 0.1, 22),
        (0.05, 0.1, 45),
        (0.01, 0.1, 230),
        (0.1, 0.05, 29),
        (0.5, 0.5, 1),
        (0.9, 0.5, 1),
    ],
)
def test_the_number_of_queries_that_a_tolerance_rank_takes_by_hand(alpha, delta, n):
    assert tolerance_n(alpha, delta) == n


def test_the_number_of_queries_that_a_tolerance_rank_takes_is_the_first_that_has_one():
    for alpha in (0.02, 0.05, 0.1, 0.15, 0.3, 0.7):
        for delta in (0.01, 0.05, 0.1, 0.2, 0.6):
            n = tolerance_n(alpha, delta)
            assert (1 - alpha) ** n <= delta
            assert tolerance_rank(n, alpha, delta) == n
            if n > 1:
                assert (1 - alpha) ** (n - 1) > delta
                assert tolerance_rank(n - 1, alpha, delta) == n


@pytest.mark.parametrize("p", [1e-6, 0.01, 0.1, 0.5, 0.93, 1 - 1e-6])
@pytest.mark.parametrize("n", [0, 1, 2, 10, 333, 20_000])
def test_the_binomial_law_is_scipys(n, p):
    ours = binomial_cdf(n, p)
    assert ours.shape == (n + 1,)
    reference = binom.cdf(np.arange(n + 1), n, p)
    np.testing.assert_allclose(ours, reference, rtol=1e-8, atol=1e-12)
    assert ours[-1] == pytest.approx(1, abs=1e-9)
    assert (np.diff(ours) >= 0).all()


@pytest.mark.parametrize("delta", [0, 1, -0.1, 1.5, math.nan, math.inf])
def test_a_delta_that_is_no_probability_is_a_value_error_that_names_it(delta):
    with pytest.raises(ValueError, match="delta is"):
        check_delta(float(delta))
    with pytest.raises(ValueError, match="delta is"):
        tolerance_rank(50, 0.1, float(delta))


# --- scalar units, through calibrations -----------------------------------------------------------


@pytest.mark.parametrize("guarantee", ["all", "any"])
@settings(max_examples=150)
@given(
    st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=40),
    st.sampled_from([0.1, 0.2, 0.3, 0.5]),
    st.sampled_from([0.05, 0.1, 0.3]),
)
def test_the_threshold_is_the_tolerance_rank_of_the_units(guarantee, lists, alpha, delta):
    queries = [relevant(*scores) for scores in lists]
    units = sorted(map(max if guarantee == "all" else min, lists))
    if len(lists) < tolerance_n(alpha, delta):
        with pytest.raises(ValueError, match="delta is"):
            calibration_of(queries, alpha, guarantee, delta=delta)
    else:
        calibration = calibration_of(queries, alpha, guarantee, delta=delta)
        assert calibration.threshold() == units[tolerance_rank(len(units), alpha, delta) - 1]
        assert calibration.threshold() >= replace(calibration, delta=None).threshold() or (
            delta >= 0.5
        )


@pytest.mark.parametrize(
    ("n", "alpha", "delta"), [(60, 0.1, 0.1), (150, 0.05, 0.05), (40, 0.3, 0.2)]
)
def test_the_coverage_at_the_tolerance_rank_follows_its_beta_law(n, alpha, delta):
    # Of U(0, 1) scores the threshold is its own coverage.
    rng = np.random.default_rng([31, n])
    k = tolerance_rank(n, alpha, delta)
    thresholds = [
        calibration_of([relevant(score) for score in scores], alpha, "any", delta=delta).threshold()
        for scores in rng.random((600, n))
    ]
    assert kstest(thresholds, beta(k, n + 1 - k).cdf).pvalue > FALSE_ALARM
    for neighbour in (k - 1, k + 1):
        if neighbour <= n:
            wrong = np.sort(rng.random((600, n)), axis=1)[:, neighbour - 1]
            assert kstest(wrong, beta(k, n + 1 - k).cdf).pvalue < 0.01


@pytest.fixture(scope="module")
def clustered_thresholds():
    """Thresholds of 700 calibrations of 50 clustered queries, with and without delta = .1."""
    rng = np.random.default_rng(37)
    found = {}
    for _ in range(700):
        queries = clustered_queries(rng, 50)
        for guarantee in ("query-recall", "all", "any"):
            with_delta = calibration_of(queries, 0.1, guarantee, delta=0.1)
            for delta, calibration in (
                (0.1, with_delta),
                (None, replace(with_delta, delta=None)),
            ):
                found.setdefault((guarantee, delta), []).append(calibration.threshold())
    return found


@pytest.mark.parametrize("guarantee", ["query-recall", "all", "any"])
def test_no_more_than_a_share_delta_of_calibrations_falls_short(clustered_thresholds, guarantee):
    short = {
        delta: sum(coverage(guarantee, t) < 0.9 for t in clustered_thresholds[guarantee, delta])
        for delta in (0.1, None)
    }
    assert binomtest(short[0.1], 700, 0.1, alternative="greater").pvalue > FALSE_ALARM
    # On average over calibrations is another promise, which far more of them fall short of.
    assert binomtest(short[None], 700, 0.1, alternative="greater").pvalue < FALSE_ALARM


@pytest.mark.parametrize("guarantee", ["all", "any"])
def test_the_coverage_of_clustered_queries_follows_the_beta_law_too(
    clustered_thresholds, guarantee
):
    covered = [coverage(guarantee, t) for t in clustered_thresholds[guarantee, 0.1]]
    assert kstest(covered, beta(49, 2).cdf).pvalue > FALSE_ALARM
    short = beta(49, 2).cdf(0.9)  # what the share that falls short must be
    count = sum(share < 0.9 for share in covered)
    assert binomtest(count, 700, short).pvalue > FALSE_ALARM


# --- bets -----------------------------------------------------------------------------------------


def wealth_by_hand(losses, alpha, delta):
    """The largest wealth of betting against "the mean loss is above alpha", one bet at a time."""
    n, wealth, most = len(losses), 1.0, 1.0
    total, squares, variance = 0.5, 0.25, 0.25
    for i, loss in enumerate(losses, start=1):
        bet = min(1.0, math.sqrt(2 * math.log(1 / delta) / (n * variance)))
        wealth *= 1 + bet * (alpha - loss)
        most = max(most, wealth)
        total += loss
        squares += (loss - total / (i + 1)) ** 2
        variance = squares / (i + 1)
    return most


shares = st.fractions(0, 1, max_denominator=6).map(float)


@settings(max_examples=300)
@given(
    st.lists(shares, min_size=1, max_size=40),
    st.sampled_from([0.05, 0.1, 0.3, 0.5]),
    st.sampled_from([0.01, 0.1, 0.5]),
)
def test_the_p_value_of_bets_is_that_of_betting_by_hand(losses, alpha, delta):
    p = betting_p_value(losses, alpha, delta)
    assert p == pytest.approx(1 / wealth_by_hand(losses, alpha, delta), rel=1e-9)
    assert 0 < p <= 1


@settings(max_examples=200)
@given(
    st.lists(shares, min_size=1, max_size=30),
    st.floats(0.01, 0.99),
    st.floats(0.01, 0.99),
    st.sampled_from([0.01, 0.1, 0.5]),
)
def test_a_bet_against_more_loss_is_safer(losses, one, other, delta):
    low, high = sorted((one, other))
    assert betting_p_value(losses, high, delta) <= betting_p_value(losses, low, delta)
    smaller = np.array(losses) / 2
    # Smaller losses make later bets other ones, so only a common factor of wealth is certain:
    assert betting_p_value(np.zeros(len(losses)), low, delta) <= 1
    assert smaller.max() <= 0.5


LAWS = {
    "all or nothing": lambda rng, alpha, shape: (rng.random(shape) < alpha).astype(float),
    "shares of five": lambda rng, alpha, shape: rng.binomial(5, alpha, shape) / 5,
    "clustered": lambda rng, alpha, shape: (
        rng.binomial(4, rng.beta(alpha / 2, (1 - alpha) / 2, shape)) / 4
    ),
    "even": lambda rng, alpha, shape: 2 * alpha * rng.random(shape),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("n", "alpha", "delta"), [(50, 0.1, 0.1), (200, 0.2, 0.05)])
def test_at_the_edge_of_the_claim_a_bet_wins_no_more_often_than_its_level(law, n, alpha, delta):
    rng = np.random.default_rng([41, list(LAWS).index(law), n])
    runs = 3000
    p = np.array([betting_p_value(x, alpha, delta) for x in LAWS[law](rng, alpha, (runs, n))])
    for level in (delta, 0.02, 0.3):  # valid at every level, though tuned to one
        wins = int((p <= level).sum())
        assert binomtest(wins, runs, level, alternative="greater").pvalue > FALSE_ALARM
    # It is no idle bet: at half the losses it wins often.
    better = [betting_p_value(x / 2, alpha, delta) for x in LAWS[law](rng, alpha, (300, n))]
    assert np.mean(np.array(better) <= delta) > 2 * delta


@pytest.mark.parametrize(("alpha", "delta"), [(0.1, 0.1), (0.2, 0.05), (0.05, 0.1), (0.5, 0.01)])
def test_the_number_of_queries_that_a_bet_takes_is_the_first_that_can_win(alpha, delta):
    n = betting_n(alpha, delta)
    assert betting_p_value(np.zeros(n), alpha, delta) <= delta
    for fewer in range(1, n):
        assert betting_p_value(np.zeros(fewer), alpha, delta) > delta
    for more in range(n, 4 * n):
        assert betting_p_value(np.zeros(more), alpha, delta) <= delta


@pytest.mark.parametrize("alpha", [1e-7, 1e-12, 1e-300])
def test_the_numbers_of_queries_that_a_tiny_alpha_takes_are_told_to_a_thousandth(alpha):
    # For α → 0 the first n with (1 − α)^n ≤ δ is ln(1/δ) / α. A bet wins as much by each query:
    # n is ln(1/δ) / (α · mean bet), whose mean is the same for all large n.
    delta, exact = 0.1, Fraction(str(alpha))
    assert abs(tolerance_n(alpha, delta) * exact / Fraction(-math.log(delta)) - 1) < 1e-3
    known = betting_n(1e-5, delta)
    assert betting_p_value(np.zeros(known), 1e-5, delta) <= delta
    assert betting_p_value(np.zeros(known - 1), 1e-5, delta) > delta
    assert abs(betting_n(alpha, delta) * exact / (known * Fraction("1e-5")) - 1) < 1e-3


@pytest.mark.parametrize("guarantee", ["query-recall", "all"])
def test_a_tiny_alpha_that_delta_cannot_promise_is_refused_like_any(guarantee):
    judged = [ScoredQuery([i / 9], [True]) for i in range(60)]
    calibration = Calibration.from_scores(
        judged, alpha=0.2, delta=0.1, guarantee=guarantee, scorer="drawn"
    )
    for alpha in (1e-300, 5e-324):  # the last is the smallest float
        with pytest.raises(ValueError, match="cannot promise: it takes at least [0-9]{300}"):
            calibration.at(alpha)


# --- the query-recall threshold of bets -----------------------------------------------------------


def tolerance_by_brute_force(lists, alpha, delta):
    """Try every score as a threshold, from the highest down, with losses counted afresh."""
    threshold = math.inf
    for t in sorted({s for scores in lists for s in scores if s < math.inf}, reverse=True):
        losses = [float(Fraction(sum(s > t for s in scores), len(scores))) for scores in lists]
        if 1 / wealth_by_hand(losses, alpha, delta) > delta:
            break
        threshold = t
    return threshold


score_lists = st.lists(
    st.lists(
        st.one_of(st.integers(0, 12), st.sampled_from([math.inf, -math.inf])),
        min_size=1,
        max_size=5,
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=250)
@given(score_lists, st.sampled_from([0.1, 0.3, 0.5, 0.8]), st.sampled_from([0.1, 0.3, 0.5]))
def test_the_threshold_of_bets_is_that_of_trying_every_score(lists, alpha, delta):
    threshold = query_recall_tolerance(lists, alpha, delta)
    assert threshold == tolerance_by_brute_force(lists, alpha, delta)
    assert type(threshold) is float


@pytest.mark.parametrize("n", [22, 50, 120, 400])
def test_the_threshold_of_bets_is_that_of_trying_every_score_of_many(n, rng):
    for alpha, delta in ((0.1, 0.1), (0.2, 0.05), (0.05, 0.2)):
        lists = [rng.normal(size=m).tolist() for m in rng.integers(1, 12, n)]
        found = query_recall_tolerance(lists, alpha, delta)
        assert found == tolerance_by_brute_force(lists, alpha, delta)


@settings(max_examples=150)
@given(
    score_lists,
    st.floats(0.02, 0.98),
    st.floats(0.02, 0.98),
    st.sampled_from([0.1, 0.3, 0.5]),
)
def test_a_larger_alpha_keeps_no_more(lists, one, other, delta):
    low, high = sorted((one, other))
    assert query_recall_tolerance(lists, high, delta) <= query_recall_tolerance(lists, low, delta)


def test_a_larger_delta_keeps_no_more(rng):
    for n in (60, 200, 600):
        queries = clustered_queries(rng, n)
        for guarantee in ("query-recall", "all", "any"):
            thresholds = [
                calibration_of(queries, 0.15, guarantee, delta=delta).threshold()
                for delta in (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
            ]
            assert thresholds == sorted(thresholds, reverse=True)
            assert thresholds[0] > thresholds[-1]


@settings(max_examples=150)
@given(score_lists, st.sampled_from([0.2, 0.5]), st.sampled_from([0.1, 0.4]))
def test_a_strictly_increasing_map_of_the_scores_maps_the_threshold(lists, alpha, delta):
    mapped = [[2.0**s - 7 for s in scores] for scores in lists]
    before = query_recall_tolerance(lists, alpha, delta)
    assert query_recall_tolerance(mapped, alpha, delta) == 2.0**before - 7


# --- an order that nobody chose -------------------------------------------------------------------


def named_queries(rng, n=80):
    return [
        relevant(*rng.normal(size=rng.integers(1, 6)), id=f"query {i}", missed=int(i % 9 == 0))
        for i in range(n)
    ]


def test_the_order_in_which_queries_are_given_is_nothing(rng):
    queries = named_queries(rng)
    for options in ({}, {"count_missed": True}):
        thresholds = set()
        for _ in range(20):
            shuffled = [queries[i] for i in rng.permutation(len(queries))]
            calibration = calibration_of(shuffled, 0.2, "query-recall", delta=0.1, **options)
            thresholds.add(calibration.threshold())
        assert len(thresholds) == 1
        assert math.isfinite(*thresholds)


def test_the_order_is_that_of_a_hash_of_the_ids(rng):
    queries = named_queries(rng)
    by_hash = sorted(queries, key=lambda q: hashlib.sha256(q.id.encode()).hexdigest())
    calibration = calibration_of(queries, 0.2, "query-recall", delta=0.1)
    expected = query_recall_tolerance([q.scores for q in by_hash], 0.2, 0.1)
    assert calibration.threshold() == expected


def test_the_order_does_matter_which_is_why_it_is_fixed(rng):
    lists = [q.scores for q in named_queries(rng)]
    found = {
        query_recall_tolerance([lists[i] for i in rng.permutation(80)], 0.2, 0.1) for _ in range(20)
    }
    assert len(found) > 1
    easy_first = sorted(lists, key=max)
    assert query_recall_tolerance(easy_first, 0.2, 0.1) < min(found)


def test_queries_without_an_id_give_the_same_result_every_time(rng):
    queries = [replace(query, id=None) for query in named_queries(rng)]
    one, other = (
        calibration_of(queries, 0.2, "query-recall", delta=0.1).threshold() for _ in range(2)
    )
    assert one == other
    assert math.isfinite(one)


def test_the_order_is_the_same_after_the_file(rng, tmp_path):
    calibration = calibration_of(named_queries(rng), 0.2, "query-recall", delta=0.1)
    calibration.save(tmp_path / "c.json")
    loaded = Calibration.load(tmp_path / "c.json")
    assert loaded == calibration
    assert loaded.at(0.3).threshold() == calibration.at(0.3).threshold()


# --- too few --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guarantee", "alpha", "delta", "needed"),
    [
        ("all", 0.1, 0.1, 22),
        ("any", 0.1, 0.1, 22),
        ("all", 0.05, 0.1, 45),
        ("any", 0.01, 0.1, 230),
        ("query-recall", 0.1, 0.1, betting_n(0.1, 0.1)),
        ("query-recall", 0.2, 0.05, betting_n(0.2, 0.05)),
    ],
)
def test_a_delta_that_cannot_be_had_says_how_many_queries_it_takes(guarantee, alpha, delta, needed):
    queries = [relevant(i / 1000) for i in range(needed)]
    enough = calibration_of(queries, alpha, guarantee, delta=delta)
    assert enough.n_needed == needed
    assert math.isfinite(enough.threshold())
    for n in (needed - 1, 3):
        with pytest.raises(
            ValueError,
            match=rf"delta is {delta} with alpha {alpha}, which {n} judged queries.*at least "
            rf"{needed}; judge {needed - n} more",
        ):
            calibration_of(queries[:n], alpha, guarantee, delta=delta)
    with pytest.raises(ValueError, match=f"delta is {delta}"):
        enough.at(alpha / 2)
    # What does not enter does not count.
    queries[0] = ScoredQuery([1.0], [False], missed=3)
    with pytest.raises(ValueError, match=f"which {needed - 1} judged queries"):
        calibration_of(queries, alpha, guarantee, delta=delta)
    assert (
        calibration_of(queries, 0.9, guarantee, delta=delta, count_missed=True).n_queries == needed
    )


@pytest.mark.parametrize("guarantee", ["query-recall", "all", "any"])
def test_a_group_that_is_too_small_for_delta_keeps_everything_and_is_named(guarantee):
    large = [relevant(i, group="large") for i in range(100)]
    small = [relevant(i, group="small") for i in range(21)]
    calibration = calibration_of([*large, *small], 0.1, guarantee, delta=0.1, by_group=True)
    assert math.isfinite(calibration.threshold("large"))
    assert calibration.threshold("small") == math.inf
    assert calibration.threshold("unseen") == math.inf
    assert math.isfinite(replace(calibration, delta=None).threshold("small"))
    needed = calibration.n_needed
    assert (
        "Everything is kept in small (21): 21 judged queries are too few for any threshold to "
        f"promise this, which takes at least {needed}, that is {needed - 21} more."
    ) in calibration.statement
    alone = calibration_of(large, 0.1, guarantee, delta=0.1)
    if guarantee != "query-recall":  # whose order is that of the hashes of all the ids
        assert calibration.threshold("large") == alone.threshold()


@pytest.mark.parametrize("guarantee", ["query-recall", "all"])
def test_too_much_that_is_missed_leaves_no_threshold_with_delta(guarantee):
    queries = [relevant(i, missed=i % 2) for i in range(100)]
    calibration = calibration_of(queries, 0.1, guarantee, delta=0.1, count_missed=True)
    assert calibration.threshold() == math.inf
    assert "no threshold reaches this at this depth K" in calibration.statement
    assert (
        "100 of all 150 known ones (0.667), and keeping all that is left" in calibration.statement
    )
    assert "recall@K" not in calibration.statement  # that is the mean over queries
    assert math.isfinite(calibration.at(0.7).threshold())


def test_delta_is_said_to_be_about_calibrations():
    queries = [relevant(i / 1000) for i in range(100)]
    statement = calibration_of(queries, 0.1, "all", delta=0.05).statement
    assert statement.startswith(
        "Of all calibrations like this one, at least 0.95 keep what follows"
    )
    assert "(guarantee 'all', alpha = 0.1, delta = 0.05)" in statement
    assert "the share over calibrations like this one" in statement
    assert "over calibration and new query together" not in statement
