"""Bounds for all calibrations but a share delta: ranks by the Beta law, and bets on shares."""

import math
from fractions import Fraction

import numpy as np
import pytest
from clustered import FALSE_ALARM
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, betabinom, binom, binomtest

from conformal_retrievers.theory import tolerance


@pytest.mark.parametrize("delta", [0.01, 0.05, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.172, 0.5, 0.9])
def test_the_tolerance_rank_is_the_smallest_that_scipy_allows(alpha, delta):
    for n in [1, 2, 3, 10, 21, 22, 29, 59, 99, 100, 230, 500, 1000, 2500]:
        k = tolerance.tolerance_rank(n, alpha, delta)
        assert 1 <= k <= n + 1
        ranks = np.arange(1, n + 1)
        # At alpha = delta = 1/2 and odd n the law hits delta exactly, which floats miss.
        allowed = binom.cdf(n - ranks, n, alpha) <= delta * (1 + 1e-12)
        assert k == (ranks[allowed][0] if allowed.any() else n + 1)
        # The same in terms of the Beta law: too low a coverage has a chance of at most delta.
        if k <= n:
            assert beta(k, n + 1 - k).cdf(1 - alpha) <= delta * (1 + 1e-9)
        if k > 1:
            assert beta(k - 1, n + 2 - k).cdf(1 - alpha) > delta * (1 - 1e-9)


def test_a_delta_that_is_hit_exactly_is_allowed():
    # Of an odd number of fair coins at most half show heads with probability 1/2 exactly.
    assert [tolerance.tolerance_rank(n, 0.5, 0.5) for n in (1, 3, 15, 101)] == [1, 2, 8, 51]
    assert tolerance.tolerance_rank(15, 0.5, 0.4999999) == 9


@pytest.mark.parametrize("delta", [0.05, 0.1, 0.5])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.5, 0.9])
def test_the_number_of_queries_for_a_tolerance_rank_is_the_first_that_has_one(alpha, delta):
    n = tolerance.tolerance_n(alpha, delta)
    assert (1 - alpha) ** n <= delta < (1 - alpha) ** (n - 1)
    assert tolerance.tolerance_rank(n, alpha, delta) == n
    assert n == 1 or tolerance.tolerance_rank(n - 1, alpha, delta) == n


@pytest.mark.parametrize(("m", "a", "b"), [(1, 1, 1), (10, 3, 7), (200, 91, 10)])
def test_the_beta_binomial_law_is_scipys(m, a, b):
    ours = tolerance.beta_binomial_cdf(m, a, b)
    np.testing.assert_allclose(ours, betabinom(m, a, b).cdf(np.arange(m + 1)), rtol=1e-9)


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
@pytest.mark.parametrize(
    ("k", "n"), [(0, 1), (1, 1), (0, 20), (20, 20), (3, 20), (50, 100), (899, 1000), (1, 3)]
)
def test_the_binomial_interval_and_its_lower_limit_are_clopper_and_pearsons(k, n, level):
    estimate, low, high = tolerance.binomial_interval(k, n, level)
    tail = (1 - level) / 2
    assert tolerance.binomial_lower(k, n, tail) == pytest.approx(low, abs=1e-8)
    assert estimate == k / n
    # Quantiles of the Beta law, and what defines the ends: tails of the binomial law.
    assert low == pytest.approx(beta(k, n - k + 1).ppf(tail) if k else 0.0, rel=1e-9)
    assert high == pytest.approx(beta(k + 1, n - k).ppf(1 - tail) if k < n else 1.0, rel=1e-9)
    if k:
        assert binom.sf(k - 1, n, low) == pytest.approx(tail, rel=1e-8)
    if k < n:
        assert binom.cdf(k, n, high) == pytest.approx(tail, rel=1e-8)
    np.testing.assert_equal(tuple(tolerance.binomial_interval(0, 0)), (math.nan, 0, 1))


def wealth_by_hand(losses, alpha, delta):
    """The largest wealth of betting against "the mean loss is above alpha", one bet at a time."""
    n, wealth, most = len(losses), 1.0, 1.0
    total, squares, variance = 0.5, 0.25, 0.25
    for i, loss in enumerate(losses, start=1):
        wealth *= 1 + min(1.0, math.sqrt(2 * math.log(1 / delta) / (n * variance))) * (alpha - loss)
        most = max(most, wealth)
        total += loss
        squares += (loss - total / (i + 1)) ** 2
        variance = squares / (i + 1)
    return most


shares = st.fractions(0, 1, max_denominator=6).map(float)


@given(
    st.lists(shares, min_size=1, max_size=40),
    st.sampled_from([0.05, 0.1, 0.3, 0.5]),
    st.sampled_from([0.01, 0.1, 0.5]),
)
def test_the_p_value_of_bets_is_that_of_betting_by_hand(losses, alpha, delta):
    p = tolerance.betting_p_value(losses, alpha, delta)
    assert p == pytest.approx(1 / wealth_by_hand(losses, alpha, delta), rel=1e-9)
    assert 0 < p <= 1


@pytest.mark.parametrize("mean", [0.05, 0.15])
def test_the_p_value_of_many_bets_is_that_of_betting_by_hand(mean, rng):
    losses = rng.random(200) < mean  # so many that the bets stay below their limit of 1
    expected = 1 / wealth_by_hand(losses, 0.2, 0.1)
    assert tolerance.betting_p_value(losses, 0.2, 0.1) == pytest.approx(expected, rel=1e-9) != 1


@given(st.lists(shares, min_size=1, max_size=40), st.sampled_from([0.05, 0.3]))
def test_the_lower_limit_of_a_mean_share_is_the_largest_that_a_bet_rejects(kept, delta):
    low = tolerance.betting_lower(kept, delta)
    losses = 1 - np.array(kept)
    assert tolerance.betting_p_value(losses, 1 - low, delta) <= delta or low == 0
    assert tolerance.betting_p_value(losses, 1 - low - 1e-7, delta) > delta


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
def test_if_the_mean_loss_is_alpha_a_bet_is_won_no_more_often_than_its_level(law, n, alpha, delta):
    rng = np.random.default_rng([41, list(LAWS).index(law), n])
    runs = 2000
    losses = LAWS[law](rng, alpha, (runs, n))
    p = np.array([tolerance.betting_p_value(x, alpha, delta) for x in losses])
    for level in (delta, 0.02, 0.3):  # valid at every level, though tuned to one
        wins = int((p <= level).sum())
        assert binomtest(wins, runs, level, alternative="greater").pvalue > FALSE_ALARM
    # At half the losses it is won often.
    halves = LAWS[law](rng, alpha, (300, n)) / 2
    better = np.array([tolerance.betting_p_value(x, alpha, delta) for x in halves])
    assert np.mean(better <= delta) > 2 * delta


@pytest.mark.parametrize(("alpha", "delta"), [(0.1, 0.1), (0.2, 0.05), (0.05, 0.1), (0.5, 0.01)])
def test_the_number_of_queries_for_a_bet_is_the_first_that_can_win(alpha, delta):
    n = tolerance.betting_n(alpha, delta)
    wins = [tolerance.betting_p_value(np.zeros(m), alpha, delta) <= delta for m in range(1, 4 * n)]
    assert wins == [False] * (n - 1) + [True] * (3 * n)


@pytest.mark.parametrize("alpha", [1e-7, 1e-12, 1e-300])
def test_the_numbers_of_queries_for_a_tiny_alpha_are_exact_to_a_thousandth(alpha):
    # For α → 0 the first n with (1 − α)^n ≤ δ is ln(1/δ) / α. A bet wins as much with each query:
    # n is ln(1/δ) / (α · mean bet), whose mean is the same for all large n.
    delta, exact = 0.1, Fraction(str(alpha))
    assert abs(tolerance.tolerance_n(alpha, delta) * exact / Fraction(-math.log(delta)) - 1) < 1e-3
    known = tolerance.betting_n(1e-5, delta)
    assert tolerance.betting_p_value(np.zeros(known), 1e-5, delta) <= delta
    assert tolerance.betting_p_value(np.zeros(known - 1), 1e-5, delta) > delta
    assert abs(tolerance.betting_n(alpha, delta) * exact / (known * Fraction("1e-5")) - 1) < 1e-3


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


@given(score_lists, st.sampled_from([0.1, 0.3, 0.5, 0.8]), st.sampled_from([0.1, 0.3, 0.5]))
def test_the_threshold_of_bets_is_that_of_trying_every_score(lists, alpha, delta):
    threshold = tolerance.query_recall_tolerance(lists, alpha, delta)
    assert threshold == tolerance_by_brute_force(lists, alpha, delta)
    assert type(threshold) is float


def test_without_queries_the_threshold_of_bets_is_infinite():
    assert tolerance.query_recall_tolerance([], 0.1, 0.1) == math.inf
