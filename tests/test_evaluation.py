"""What is measured on judged queries: by hand, at the ends, and against a simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from conformal_retrievers import ScoredQuery
from conformal_retrievers.conformal import wilson_interval
from conformal_retrievers.evaluation import measure

QUERIES = [
    ScoredQuery([0.1, 0.2, 0.3, 0.4], [True, False, True, False], missed=2),  # keeps .1 .2
    ScoredQuery([0.2, 0.9], [True, False]),  # keeps .2
    ScoredQuery([0.7, 0.8, 0.9, 1.0, 1.1], [False, True, True, True, False]),  # keeps nothing
    ScoredQuery([0.1], [False], missed=1),  # keeps .1, has nothing relevant
]
KEPT = [query.scores <= 0.25 for query in QUERIES]


def test_the_shares_of_four_queries_by_hand():
    d = measure(QUERIES, KEPT)
    assert (d.n_queries, d.n_relevant) == (4, 6)
    assert d.query_coverage.estimate == pytest.approx((1 / 2 + 1 + 0) / 3, abs=1e-15)
    assert d.snippet_coverage.estimate == pytest.approx(2 / 6, abs=1e-15)
    assert d.removal.estimate == pytest.approx(8 / 12, abs=1e-15)
    assert d.recall_at_k.estimate == pytest.approx((2 / 4 + 1 + 1 + 0) / 4, abs=1e-15)
    assert d.m1.estimate == 3 / 4
    assert d.m2.estimate == pytest.approx((2 / 4 + 1 / 2 + 0 + 1) / 4, abs=1e-15)


def test_every_interval_holds_its_estimate_and_stays_between_0_and_1():
    for kept in (KEPT, [q.scores > 0 for q in QUERIES], [q.scores < 0 for q in QUERIES]):
        d = measure(QUERIES, kept)
        for share in (d.query_coverage, d.snippet_coverage, d.removal, d.recall_at_k, d.m1, d.m2):
            assert 0 <= share.low <= share.estimate <= share.high <= 1
            assert share.low < share.high


def test_without_anything_relevant_coverage_is_not_a_number_and_its_interval_everything():
    d = measure([ScoredQuery([0.1], [False])], [[True]])
    assert math.isnan(d.query_coverage.estimate)
    assert (d.query_coverage.low, d.query_coverage.high) == (0, 1)
    assert d.m1.estimate == 1


def test_a_query_of_which_nothing_was_retrieved_counts_in_m1_and_recall():
    nothing = ScoredQuery([], [], missed=1)
    d = measure([nothing, QUERIES[1]], [[], [True, True]])
    assert d.m1.estimate == 0.5
    assert d.recall_at_k.estimate == 0.5
    assert d.m2.estimate == 1


def test_m1_has_nearly_wilsons_interval_over_queries():
    queries = [ScoredQuery([0.0], [True])] * 400
    d = measure(queries, [[i < 300] for i in range(400)])
    # A little wider: the variance is estimated, and Student's t stands for the normal quantile.
    wilson = wilson_interval(0.75, 400)
    assert d.m1 == pytest.approx(wilson, abs=2e-3)
    assert d.m1.low < wilson.low < wilson.high < d.m1.high


def test_masks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="kept does not fit scored"):
        measure(QUERIES, KEPT[:3])
    with pytest.raises(ValueError, match="kept does not fit scored"):
        measure(QUERIES[:1], [[True]])
    with pytest.raises(ValueError, match="scored is empty"):
        measure([], [])


def test_the_table_names_every_share():
    text = str(measure(QUERIES, KEPT))
    assert text.splitlines()[0] == "4 queries, 6 relevant retrieved snippets"
    for name in ("coverage per query", "coverage per snippet", "removed", "recall@K", "m1", "m2"):
        assert name in text
    assert "75.0%" in text


def test_intervals_over_queries_hold_the_truth_as_often_as_they_say():
    """Snippets of a query share their fate in part; 1,000 sets of 60 queries, exact binomial test.

    Wilson's interval with an estimated variance is approximate: the test asks for 93 % to 97 %
    where 95 % are nominal, and would reject a true 93 % or 97 % in 1 of 10,000 cases.
    """
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(1000):
        sizes = rng.integers(1, 9, size=60)
        chances = rng.beta(7, 2, size=60)  # independent of the sizes, so the pooled share is 7/9
        queries = [ScoredQuery(np.zeros(m), np.ones(m, bool)) for m in sizes]
        kept = [rng.random(m) < p for m, p in zip(sizes, chances, strict=True)]
        share = measure(queries, kept).snippet_coverage
        hits += share.low <= 7 / 9 <= share.high
    assert binomtest(hits, 1000, 0.93, alternative="less").pvalue > 1e-4
    assert binomtest(hits, 1000, 0.97, alternative="greater").pvalue > 1e-4
