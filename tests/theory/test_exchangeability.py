"""Two-sample tests and bands: by hand, over all splits, and in distribution."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from scipy.special import kolmogorov
from scipy.stats import binomtest

from conformal_retrievers.theory.exchangeability import (
    m1_band,
    m2_band,
    p_at_threshold,
    two_sample_test,
)

# The ranks of 5 reference queries among 11, for each of the equally likely splits.
SPLITS = [set(chosen) for chosen in combinations(range(11), 5)]


def test_both_tests_by_hand():
    c = two_sample_test(np.array([1.0, 2, 3]), np.array([4.0, 5, 6]), (3, 0))
    assert (c.n_reference, c.n_new, c.distance) == (3, 3, 1)
    assert c.p_everywhere == pytest.approx(2 / 20, abs=1e-12)  # 2 of the C(6, 3) splits
    assert (c.higher, c.overlap) == (1, 0)
    assert c.p_at_threshold == pytest.approx(2 / 20, abs=1e-12)
    assert c.p_value == pytest.approx(4 / 20, abs=1e-12)


def test_equal_samples_with_ties_are_alike():
    alike = two_sample_test(np.array([1.0, 2, 2]), np.array([2.0, 1, 2]), None)
    assert (alike.distance, alike.p_value, alike.higher, alike.overlap) == (0, 1, 0.5, 1)
    assert alike.p_at_threshold is None


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("rank", [1, 3, 4])
def test_the_test_at_a_threshold_is_valid_over_all_splits(rank, fixed):
    """The threshold is fixed, or the lowest score of that rank of the reference."""
    levels = [Fraction(k, 20) for k in range(1, 11)]
    p_values = []
    for reference in SPLITS:
        cut = 2 * rank if fixed else sorted(reference)[rank - 1]
        x = sum(r <= cut for r in range(11) if r not in reference)
        p_values.append(p_at_threshold(sum(r <= cut for r in reference), x, 5, 6))
    rejected = [Fraction(sum(p <= float(level) for p in p_values), 462) for level in levels]
    assert all(share <= level for share, level in zip(rejected, levels, strict=True))
    assert rejected[-1] > 0


@pytest.mark.parametrize("x", range(3))
def test_the_p_value_at_a_threshold_is_the_share_of_splits(x):
    # At most x new ones are below the fourth lowest of the reference.
    below = [sum(r < sorted(split)[3] for r in range(11) if r not in split) for split in SPLITS]
    counted = sum(b <= x for b in below) / 462
    assert p_at_threshold(4, x, 5, 6) == pytest.approx(min(1, 2 * counted), abs=1e-12)


@pytest.mark.parametrize(("c", "n_reference", "n_new"), [(9, 10, 20), (0, 5, 7), (5, 5, 7)])
def test_the_band_of_m1_has_the_shares_that_the_test_does_not_reject(c, n_reference, n_new):
    low, high = m1_band(c, n_reference, n_new, level=0.9)
    inside = [x for x in range(n_new + 1) if p_at_threshold(c, x, n_reference, n_new) > 0.1]
    assert (low, high) == (inside[0] / n_new, inside[-1] / n_new)
    assert len(inside) == inside[-1] - inside[0] + 1


def test_the_band_of_m2_by_hand():
    # Mean 1/2, s² = 1/2, z s √(1/2 + 1/2) = 1.96 × 0.707, cut to [0, 1].
    assert m2_band(np.array([0.0, 1.0]), 2) == (0, 1)
    # s² = 2/3 × 0.01, z s √(1/4 + 1/4) = 1.96 × 0.0577
    low, high = m2_band(np.array([0.4, 0.5, 0.6, 0.5]), 4)
    assert (low, high) == pytest.approx((0.5 - 0.11316, 0.5 + 0.11316), abs=1e-4)
    assert m2_band(np.array([0.5]), 4) is None


def test_the_band_of_m2_has_95_percent_of_exchangeable_queries():
    """1,000 draws; fails once in 10,000 if it has 93 % to 97 %."""
    shares = np.random.default_rng(12).beta(2, 3, size=(1000, 90)).round(1)
    means = shares[:, 50:].mean(axis=1)
    hits = sum(
        low <= mean <= high
        for (low, high), mean in zip((m2_band(row[:50], 40) for row in shares), means, strict=True)
    )
    assert binomtest(int(hits), 1000, 0.93, alternative="less").pvalue > 1e-4
    assert binomtest(int(hits), 1000, 0.97, alternative="greater").pvalue > 1e-4


def test_the_number_of_queries_that_shows_a_difference_of_25_points():
    """From √(N n/(N + n)) · 0.25 on that Kolmogorov's law exceeds in 2.5 % (5 % of one test)."""

    def shows(reference, new, level):
        return kolmogorov((reference * new / (reference + new)) ** 0.5 * 0.25) <= level

    for passed, level in (((30, 5), 0.025), (None, 0.05)):
        needed, least = two_sample_test(np.arange(60.0), np.arange(10.0), passed).needed()
        assert (shows(60, needed, level), shows(60, needed - 1, level)) == (True, False)
        assert shows(least, least, level)  # these 10 are too few beside any reference
        _, least = two_sample_test(np.arange(60.0), np.arange(99.0), passed).needed()
        assert (shows(least, 99, level), shows(least - 1, 99, level)) == (True, False)
    assert two_sample_test(np.arange(20.0), np.arange(10.0), None).needed()[0] == math.inf
