"""What is promised holds, and what is not promised fails, where snippets are clustered by query.

The data are those of `clustered.py`: a threshold t keeps an expected share Φ(t) of a new query's
relevant snippets, so that no test sample is needed, and no tolerance but the false alarm rate of
1e-4 of each seeded test.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from clustered import FALSE_ALARM, clustered_queries, difficulties_and_sizes
from scipy.stats import norm, ttest_1samp

from conformal_retrievers import Calibration, ConformalFilter

ALPHA = 0.1


def coverages(guarantee, *, n_queries, calibrations, rng):
    """Φ(threshold), the expected recall of a new query, of each of many calibrations."""
    thresholds = [
        Calibration.from_scores(
            clustered_queries(rng, n_queries), alpha=ALPHA, guarantee=guarantee, scorer="drawn"
        ).threshold()
        for _ in range(calibrations)
    ]
    return norm.cdf(thresholds)


@pytest.fixture(scope="module")
def query_recall_coverages():
    rng = np.random.default_rng(1)
    return coverages("query-recall", n_queries=60, calibrations=600, rng=rng)


@pytest.fixture(scope="module")
def snippet_coverages():
    rng = np.random.default_rng(1)
    return coverages("snippet", n_queries=60, calibrations=300, rng=rng)


def test_query_recall_keeps_its_promise_for_each_query(query_recall_coverages):
    test = ttest_1samp(query_recall_coverages, 1 - ALPHA, alternative="less")
    assert test.pvalue > FALSE_ALARM


def test_query_recall_keeps_no_more_than_it_has_to(query_recall_coverages):
    upper = 1 - ALPHA + 2 / (60 + 1)
    assert ttest_1samp(query_recall_coverages, upper, alternative="greater").pvalue > FALSE_ALARM


def test_the_simulation_would_notice_a_shortfall_of_two_per_cent(query_recall_coverages):
    test = ttest_1samp(query_recall_coverages - 0.02, 1 - ALPHA, alternative="less")
    assert test.pvalue < FALSE_ALARM


def test_snippet_coverage_does_not_hold_for_each_query(snippet_coverages):
    # Documented in the statement: pooling lets the easy queries answer for the hard ones.
    test = ttest_1samp(snippet_coverages, 1 - ALPHA, alternative="less")
    assert test.pvalue < FALSE_ALARM
    assert snippet_coverages.mean() < 0.8


def test_snippet_coverage_does_not_come_with_more_queries():
    rng = np.random.default_rng(2)
    large = coverages("snippet", n_queries=1000, calibrations=10, rng=rng)
    assert large.mean() < 0.8
    assert large.max() < 0.85


def test_the_snippet_guarantee_covers_the_pooled_snippets_it_speaks_of():
    # Of a large population, weighted by N_q: the mean over snippets, which pooling aims at.
    rng = np.random.default_rng(3)
    b, n = difficulties_and_sizes(rng, 100_000)
    calibration = Calibration.from_scores(
        clustered_queries(rng, 2000), alpha=ALPHA, guarantee="snippet", scorer="drawn"
    )
    kept = norm.cdf((calibration.threshold() - b) / math.sqrt(0.5))
    assert (kept * n).sum() / n.sum() == pytest.approx(1 - ALPHA, abs=0.02)
    assert kept.mean() < 0.8


@pytest.mark.parametrize(("n_queries", "alpha"), [(9, 0.1), (30, 0.1), (30, 0.3)])
def test_the_recall_of_a_fresh_query_through_the_filter_is_what_was_promised(n_queries, alpha):
    # The theorem as it stands: the mean is over calibration and new query together.
    rng = np.random.default_rng([n_queries, round(alpha * 100)])
    recalls = []
    for _ in range(1200):
        *judged, fresh = clustered_queries(rng, n_queries + 1)
        calibration = Calibration.from_scores(judged, alpha=alpha, scorer="drawn")
        filtered = ConformalFilter(Drawn(), calibration).decide(fresh.scores)
        recalls.append(np.isin(np.flatnonzero(fresh.relevant), filtered.kept).mean())
    assert ttest_1samp(recalls, 1 - alpha, alternative="less").pvalue > FALSE_ALARM
    upper = 1 - alpha + 2 / (n_queries + 1)
    assert ttest_1samp(recalls, upper, alternative="greater").pvalue > FALSE_ALARM


def test_p_values_of_a_fresh_querys_relevant_snippets_are_small_no_more_often_than_alpha():
    rng = np.random.default_rng(5)
    shares = []
    for _ in range(600):
        *judged, fresh = clustered_queries(rng, 31)
        calibration = Calibration.from_scores(judged, alpha=ALPHA, scorer="drawn")
        p = calibration.p_values(fresh.scores[fresh.relevant])
        shares.append([(p <= level).mean() for level in (0.05, 0.1, 0.2, 0.5)])
    for level, column in zip((0.05, 0.1, 0.2, 0.5), np.transpose(shares), strict=True):
        assert ttest_1samp(column, level, alternative="greater").pvalue > FALSE_ALARM


class Drawn:
    """Has no model: the scores are drawn, and go to `decide`."""

    name = "drawn"

    def score(self, query, snippets):
        raise NotImplementedError
