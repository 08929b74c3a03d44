"""Intervals of shares and the AUC: by hand, as other libraries have them, and in distribution."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binomtest, norm, t
from sklearn.metrics import roc_auc_score

from conformal_retrievers.theory import intervals


def test_auc_counts_ties_half_and_leaves_nan_out():
    assert intervals.auc([0.1, 0.2], [0.2, 0.3]) == 3.5 / 4
    assert intervals.auc([0.3, math.nan], [0.1]) == 0
    assert math.isnan(intervals.auc([0.3], []))
    assert math.isnan(intervals.auc([math.nan], [0.3]))


def test_auc_is_that_of_scikit_learn(rng):
    low, high = rng.integers(0, 4, 40) / 4, rng.integers(0, 5, 30) / 4
    expected = roc_auc_score([0] * 40 + [1] * 30, [*low, *high])
    assert intervals.auc(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.9, "90 %"),
        (2 / 3, "66.67 %"),
        (0.07, "7 %"),
        (1.0, "100 %"),
        (0.99875, "99.875 %"),
        (1 - Fraction("1e-12"), "99.9999999999 %"),
        (1 - 2**-53, "99.99999999999999 %"),
    ],
)
def test_an_exact_share_has_its_own_digits_and_only_1_is_100_percent(share, text):
    assert intervals.percent(share, exact=True) == text


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
@pytest.mark.parametrize(
    ("k", "n"), [(0, 1), (1, 1), (0, 20), (20, 20), (3, 20), (50, 100), (899, 1000), (1, 3)]
)
def test_wilsons_interval_is_scipys(k, n, level):
    reference = binomtest(k, n).proportion_ci(level, method="wilson")
    estimate, low, high = intervals.wilson_interval(k / n, n, level)
    assert estimate == k / n
    assert low == pytest.approx(reference.low, rel=1e-9, abs=1e-15)
    assert high == pytest.approx(reference.high, rel=1e-9)


def test_wilsons_interval_ends_at_a_share_of_0_or_1_itself():
    for n in range(1, 200, 7):
        assert intervals.wilson_interval(0.0, n).low == 0.0
        assert intervals.wilson_interval(1.0, n).high == 1.0


def test_an_interval_prints_as_percentages():
    assert str(intervals.Interval(0.9, 0.8512, 1.0)) == "90.0 % [85.1, 100.0]"
    assert intervals.Interval(0.9, 0.8512, 1.0).written("", 5) == " 90.0 [85.1, 100.0]"
    assert str(intervals.Interval(math.nan, 0.0, 1.0)) == "–"


def test_one_snippet_per_query_gives_wilsons_interval_of_k_minus_1_units():
    # K − 1: the variance is estimated from the K outcomes themselves, so t stands for z too.
    parts = np.array([1.0] * 35 + [0.0] * 5)
    assert intervals.effective_n(parts, np.ones(40)) == pytest.approx(39, rel=1e-12)
    interval = intervals.cluster_interval(parts, np.ones(40))
    level = norm.cdf(t.ppf(0.975, 39)) * 2 - 1
    assert interval == pytest.approx(intervals.wilson_interval(35 / 40, 39, level), rel=1e-9)


def test_repeating_the_outcome_of_each_query_leaves_the_interval_as_it_is():
    parts = np.array([1.0] * 35 + [0.0] * 5)
    once = intervals.cluster_interval(parts, np.ones(40))
    for m in (2, 7, 100):
        more = intervals.cluster_interval(m * parts, m * np.ones(40))
        assert more == pytest.approx(once, rel=1e-12)
    # What the snippets alone would claim.
    assert intervals.wilson_interval(35 / 40, 4000).high < once.high


def test_the_effective_n_by_hand():
    # Shares 3/4 and 1/2 of 4 snippets each: p = 5/8, residuals ±1/2,
    # V = 2/1 × (1/4 + 1/4)/64 = 1/64, and p(1 − p)/V = (15/64) × 64 = 15.
    assert intervals.effective_n([3, 2], [4, 4]) == pytest.approx(15, rel=1e-12)
    assert intervals.effective_n([0.75, 0.5], [1, 1]) == pytest.approx(15, rel=1e-12)
    # Shares 1 and 0: p = 1/2, residuals ±2, V = 2 × 8/64 = 1/4, and (1/4)/(1/4) = 1.
    assert intervals.effective_n([4, 0], [4, 4]) == pytest.approx(1, rel=1e-12)


def test_the_effective_n_of_equal_shares_is_the_number_of_queries():
    for share in (0.3, 1 / 7, 0.99):  # rounding leaves a residual
        assert intervals.effective_n([share] * 21, [1] * 21) == 21


def test_if_all_or_none_is_kept_the_effective_n_is_the_number_of_queries():
    assert intervals.effective_n([5, 9, 2], [5, 9, 2]) == 3
    assert intervals.effective_n([0, 0], [5, 9]) == 2
    assert intervals.cluster_interval([5] * 9, [5] * 9).low > intervals.wilson_interval(1.0, 5).low
    assert intervals.cluster_interval([1], [2]) == (0.5, 0.0, 1.0)


def test_the_share_is_unknown_without_queries_and_with_one_large_query_among_small_ones():
    np.testing.assert_equal(tuple(intervals.cluster_interval([], [])), (math.nan, 0.0, 1.0))
    assert intervals.cluster_interval([900, 1], [1000, 1])[1:] == (0.0, 1.0)  # as good as one query


def test_the_cluster_interval_covers_at_its_level_where_snippets_are_clustered(rng):
    # Query q keeps each of N_q snippets with its own probability, from Beta(4.5, .5): mean .9.
    # The interval is approximate; at K = 150 it covers 95 % up to the noise of 2,000 runs.
    truth, covered, naive = 0.9, 0, 0
    runs = 2000
    for _ in range(runs):
        wholes = rng.integers(1, 20, 150)
        parts = rng.binomial(wholes, rng.beta(4.5, 0.5, 150))
        interval = intervals.cluster_interval(parts, wholes)
        covered += interval.low <= truth <= interval.high
        pooled = intervals.wilson_interval(parts.sum() / wholes.sum(), wholes.sum())
        naive += pooled.low <= truth <= pooled.high
    assert binomtest(covered, runs, 0.95, alternative="less").pvalue > 1e-4
    assert binomtest(covered, runs, 0.98, alternative="greater").pvalue > 1e-4
    assert binomtest(naive, runs, 0.95, alternative="less").pvalue < 1e-4
