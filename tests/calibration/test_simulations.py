"""What is guaranteed holds, and what is not guaranteed fails, if snippets cluster by query.

The data are those of `clustered.py`, which has the exact coverage of each threshold. A seeded test
of correct code fails with probability 1e-4. The fast tier draws fewer calibrations.
"""

import math

import numpy as np
import pytest
from calibrations import calibration_of, relevant
from clustered import FALSE_ALARM, coverage, drawn_thresholds
from scipy.stats import beta, binom, kstest, ttest_1samp

K = 60
TARGET = 0.9


@pytest.fixture(
    scope="module", params=[200, pytest.param(2000, marks=pytest.mark.slow)], ids="{} trials".format
)
def thresholds(request):
    """The thresholds of many calibrations on 60 queries, for each guarantee at alpha = 0.1."""
    return drawn_thresholds(np.random.default_rng(11), request.param, K, 1 - TARGET)


def test_where_a_rare_kind_of_query_loses_most_coverage_varies_more_than_by_the_law():
    """As the page for statisticians has it: 29 % of calibrations on 18 are below the law's 10 %."""
    for rare in range(4):
        hard = [relevant(1.0, *[9.0] * 9)] * rare
        c = calibration_of([*hard, *[relevant(*[1.0] * 10)] * (18 - rare)], 0.1)
        assert (c.threshold() < 9) == (rare <= 1)
    for n, loses, level, share in (
        *((18, 0.9, 0.1, 0.29), (18, 0.9, 0.05, 0.16)),
        *((1998, 1.0, 0.1, 0.33), (1998, 1.0, 0.05, 0.2)),  # at 1 in 1000, of 1,999 just below 2
    ):
        rate = (1 - beta.ppf(level, n, 1)) / loses
        assert binom.cdf(1, n, rate) == pytest.approx(share, abs=0.005)


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
