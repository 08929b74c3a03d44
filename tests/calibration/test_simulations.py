"""What is guaranteed holds, and what is not guaranteed fails, if snippets cluster by query.

The data are those of `clustered.py`, which has the exact coverage of each threshold. A seeded test
of correct code fails with probability 1e-4. The fast tier draws fewer calibrations.
"""

import math

import numpy as np
import pytest
from clustered import FALSE_ALARM, coverage, drawn_thresholds
from scipy.stats import beta, kstest, ttest_1samp

K = 60
TARGET = 0.9


@pytest.fixture(
    scope="module", params=[200, pytest.param(2000, marks=pytest.mark.slow)], ids="{} trials".format
)
def thresholds(request):
    """The thresholds of many calibrations on 60 queries, for each guarantee at alpha = 0.1."""
    return drawn_thresholds(np.random.default_rng(11), request.param, K, 1 - TARGET)


@pytest.mark.parametrize("guarantee", ["all", "any"])
def test_the_coverage_of_whole_queries_follows_the_beta_law(thresholds, guarantee):
    covered = coverage(guarantee, thresholds[guarantee])
    k = math.ceil((K + 1) * TARGET)
    assert kstest(covered, beta(k, K + 1 - k).cdf).pvalue > FALSE_ALARM
    assert ttest_1samp(covered, k / (K + 1)).pvalue > FALSE_ALARM
    if len(covered) >= 1000:  # enough to tell the rank from the next ones
        assert ttest_1samp(covered, (k + 1) / (K + 1)).pvalue < FALSE_ALARM
        assert ttest_1samp(covered, (k - 1) / (K + 1)).pvalue < FALSE_ALARM


def test_pooled_snippets_fall_short_for_queries(thresholds):
    # The easy queries, which have many relevant snippets, cover for the hard ones.
    covered = coverage("query-recall", thresholds["snippet"])
    assert ttest_1samp(covered, TARGET, alternative="less").pvalue < FALSE_ALARM
    assert covered.mean() < 0.8
