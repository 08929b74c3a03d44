"""What is guaranteed holds, and what is not guaranteed fails, if snippets cluster by query.

The data are those of `clustered.py`, which has the exact coverage of each threshold. A seeded test
of correct code fails with probability 1e-4. The fast tier draws fewer calibrations.
"""

from __future__ import annotations

import math
from collections import defaultdict, namedtuple
from functools import cache
from itertools import product

import numpy as np
import pytest
from calibrations import GUARANTEES, Drawn, calibration_of, relevant
from clustered import (
    FALSE_ALARM,
    SD,
    clustered_queries,
    coverage,
    difficulties_and_sizes,
    drawn_thresholds,
)
from scipy.stats import beta, binomtest, kstest, norm, ttest_1samp

from conformal_retrievers import Calibration, ConformalFilter

K = 60
TARGET = 0.9
HARDER = 1.0  # the shift in every score of a harder query
TABLE_AT = np.linspace(-7, 7, 701)  # coverages are interpolated between these thresholds
Cell = namedtuple("Cell", "guarantee n missed counted group alpha delta")


def holds(covered, target):
    """Whether the mean of coverages may be the target or more."""
    return ttest_1samp(covered, target, alternative="less").pvalue > FALSE_ALARM


def fails(covered, target):
    """Whether the mean of coverages is below the target."""
    return ttest_1samp(covered, target, alternative="less").pvalue < FALSE_ALARM


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


def test_query_recall_holds_and_keeps_little_more(thresholds):
    covered = coverage("query-recall", thresholds["query-recall"])
    assert holds(covered, TARGET)
    upper = TARGET + 2 / (K + 1)
    assert ttest_1samp(covered, upper, alternative="greater").pvalue > FALSE_ALARM
    assert fails(covered - 0.03, TARGET)  # a shortfall of 3 % would be noticed


def test_pooled_snippets_fall_short_for_queries(thresholds):
    # The easy queries, which have many relevant snippets, cover for the hard ones.
    covered = coverage("query-recall", thresholds["snippet"])
    assert fails(covered, TARGET)
    assert covered.mean() < 0.8


def drawn_queries(rng, n, missed):
    """Draw the relevant snippets of n queries, some missed; a third of the queries are harder.

    Also with only the first snippet of each query, because "snippet" holds for exchangeable ones.
    """
    found = {"whole": [], "first": []}
    for b, size in zip(*difficulties_and_sizes(rng, n), strict=True):
        group = "hard" if rng.random() < 1 / 3 else "easy"
        scores = rng.normal(b + HARDER * (group == "hard"), SD, size)
        scores[rng.random(size) < missed] = math.inf
        for name, all_scores in (("whole", scores), ("first", scores[:1])):
            kept = np.sort(all_scores[all_scores < math.inf])
            lost = len(all_scores) - len(kept)
            found[name].append(relevant(*kept, group=group, missed=lost))
    return found


@pytest.fixture(
    scope="module",
    params=[(16, [150]), pytest.param((200, [12, 60, 150]), marks=pytest.mark.slow)],
    ids=["16 trials", "200 trials"],
)
def grid(request):
    """The thresholds of many calibrations for every combination of the fields of `Cell`."""
    (trials, sizes), rng, found = request.param, np.random.default_rng(19), defaultdict(list)
    for n, missed, _ in product(sizes, (0.0, 0.1), range(trials)):
        drawn = drawn_queries(rng, n, missed)
        for guarantee, counted, by_group in product(GUARANTEES, {True, not missed}, (False, True)):
            queries = tuple(drawn["first" if guarantee == "snippet" else "whole"])
            options = {"by_group": by_group, "count_missed": counted}
            calibration = Calibration(0.5, guarantee, "lookup", queries, **options)
            for group, alpha in product(calibration.n_units, (0.1, 0.4)):
                for delta in (None, 0.1) if guarantee != "snippet" else (None,):
                    cell = Cell(guarantee, n, missed, counted, group, alpha, delta)
                    found[cell].append(calibration.units(group).threshold(alpha, delta))
    return found


@cache
def coverage_table(guarantee, missed):
    return coverage(guarantee, TABLE_AT, missed=missed)


def covered_in(cell, thresholds, group):
    """Return what the thresholds of a cell cover of new queries of a group, or of any."""
    if group is None:
        easy, hard = (covered_in(cell, thresholds, group) for group in ("easy", "hard"))
        return easy * 2 / 3 + hard / 3
    t = np.array(thresholds) - HARDER * (group == "hard")
    if cell.guarantee == "snippet":
        return np.where(t == math.inf, 1.0, (1 - cell.missed) * norm.cdf(t))
    table = coverage_table(cell.guarantee, cell.missed)
    return np.where(t == math.inf, 1.0, np.interp(t, TABLE_AT, table))


def falls_short(grid, cell, group):
    """Whether the coverages of a group refute the guarantee; all cells share one false alarm."""
    covered, level, target = (
        covered_in(cell, grid[cell], group),
        FALSE_ALARM / len(grid),
        1 - cell.alpha,
    )
    if cell.delta is not None:
        short = int((covered < target).sum())
        return binomtest(short, len(covered), cell.delta, alternative="greater").pvalue < level
    below = covered.mean() < target
    return below and ttest_1samp(covered, target, alternative="less").pvalue < level


def test_no_guarantee_falls_short_on_a_grid(grid):
    assert not [c for c in grid if c.counted and falls_short(grid, c, c.group)]


def test_ignoring_groups_or_missed_snippets_falls_short_on_the_grid(grid):
    pooled = [c for c in grid if (c.n, c.group, c.delta) == (150, None, None)]
    whole = [c for c in pooled if not c.missed and c.guarantee != "snippet"]
    ignoring = [c for c in pooled if not c.counted and c.guarantee in ("query-recall", "all")]
    assert [falls_short(grid, c, "hard") for c in whole] == [True] * 6
    assert [falls_short(grid, c, None) for c in ignoring if c.alpha == 0.1] == [True] * 2


@pytest.mark.parametrize("trials", [100, pytest.param(1200, marks=pytest.mark.slow)])
def test_recall_and_p_values_of_a_fresh_query_through_the_filter(trials):
    # The theorem as it stands: the mean is over calibration and new query together.
    rng = np.random.default_rng(5)
    recalls, small = [], []
    for _ in range(trials):
        *judged, fresh = clustered_queries(rng, 31)
        filtered = ConformalFilter(Drawn(), calibration_of(judged, 0.3)).decide(fresh.scores)
        recalls.append(np.isin(np.flatnonzero(fresh.relevant), filtered.kept).mean())
        small.append([(filtered.p_values[fresh.relevant] <= p).mean() for p in (0.1, 0.3, 0.5)])
    assert holds(recalls, 0.7)
    assert ttest_1samp(recalls, 0.7 + 2 / 31, alternative="greater").pvalue > FALSE_ALARM
    for level, shares in zip((0.1, 0.3, 0.5), np.transpose(small), strict=True):
        assert ttest_1samp(shares, level, alternative="greater").pvalue > FALSE_ALARM
