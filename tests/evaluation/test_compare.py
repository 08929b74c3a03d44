"""Calibrations compared: by hand, and the bootstrap against a known difference."""

import math

import numpy as np
import pytest
from drawn import calibrated

from conformal_retrievers import ScoredQuery, compare, evaluate
from conformal_retrievers.evaluation.bootstrap import n_to_tell, resampled, spans

QUERIES = [
    ScoredQuery([0.4, 0.1, 0.3, 0.2], [True, True, False, False]),
    ScoredQuery([0.2, 0.9], [False, True]),
]


def at(threshold, scorer="lookup"):
    """A calibration whose threshold is this number."""
    return calibrated([threshold], 0.5, scorer)


# --- two calibrations -----------------------------------------------------------------------------


def test_a_difference_is_that_of_the_two_evaluations():
    rng = np.random.default_rng(1)
    queries = [ScoredQuery(rng.random(4), rng.random(4) < 0.5, missed=1) for _ in range(50)]
    one, other = evaluate(at(0.8), queries).shares, evaluate(at(0.4), queries).shares
    differences = compare(at(0.8), at(0.4), queries)
    assert list(differences) == list(one)
    for name, difference in differences.items():
        assert difference.estimate == pytest.approx(one[name].estimate - other[name].estimate)
        same = math.isnan(difference.low)  # no query differs
        assert difference.estimate == 0 if same else difference.low <= difference.estimate
        assert same or difference.estimate <= difference.high
    assert differences["snippet"].low > 0
    assert compare(at(0.4), at(0.8), queries)["snippet"].high < 0
    assert differences["recall@K"].estimate == 0
    assert str(differences["snippet"]).startswith("+")
    assert [line.split("  ")[0] for line in str(differences).splitlines()] == list(one)


def test_calibrations_of_two_scorers_are_compared_on_the_scores_of_each():
    one, other = at(0.5), at(0.5, scorer="other")
    scored = [ScoredQuery([0.1, 0.9], [True, False], id="q"), ScoredQuery([0.9], [True], id="p")]
    again = [ScoredQuery([0.1, 0.2], [True, False], id="q"), ScoredQuery([0.2], [True], id="p")]
    differences = compare(one, other, scored, again)
    assert differences["removal"].estimate == 2 / 3
    assert differences["query-recall"].estimate == -1 / 2
    with pytest.raises(ValueError, match="scored_by_other"):
        compare(one, other, scored)
    for wrong in (again[::-1], again[:1]):
        with pytest.raises(ValueError, match="scored_by_other"):
            compare(one, other, scored, wrong)


def test_recall_is_compared_over_queries_whose_missed_snippets_are_known():
    unknown, known = (
        compare(at(0.8), at(0.3), [ScoredQuery([0.1, 0.4], [True, True], missed=missed)] * 5)
        for missed in (None, 0)
    )
    assert math.isnan(unknown["recall@K"].estimate)
    assert known["recall@K"].estimate == 0
    assert known["end-to-end query-recall"].estimate == 1 / 2


def test_a_difference_of_too_few_queries_or_of_none_has_no_interval():
    queries = [ScoredQuery([0.1, 0.9], [True, False])] * 50
    found = compare(at(0.5), at(0.4), queries)["removal"]
    assert (found.estimate, math.isnan(found.low), math.isnan(found.needed)) == (0, True, True)
    assert str(found) == "+0.0 % [no difference on these queries]"
    difference = compare(at(0.5), at(0.2), [ScoredQuery([0.1], [False])] * 3)["query-recall"]
    assert all(map(math.isnan, difference))
    queries = [ScoredQuery([0.1], [True])] + [ScoredQuery([0.1], [False])] * 9
    difference = compare(at(0.5), at(0.05), queries)["query-recall"]
    assert difference.estimate == 1  # of the one query that has a relevant snippet
    assert math.isnan(difference.low)
    assert str(difference) == "+100.0 % [too few queries]"
    for n, known in ((9, False), (10, True)):
        queries = [ScoredQuery([i % 2], [True]) for i in range(n)]
        found = compare(at(1.0), at(0.5), queries)["query-recall"]
        assert math.isnan(found.low) is math.isnan(found.needed) is not known


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="level is 95"):
        compare(at(0.5), at(0.2), QUERIES, level=95)
    mine = [ScoredQuery([0.1], [True], id="q")]
    with pytest.raises(ValueError, match="'q'"):
        compare(at(0.5), calibrated(mine, 0.5), mine)


@pytest.mark.parametrize(("level", "z"), [(0.95, 1.96), (0.8, 1.28)])
def test_with_many_queries_the_interval_is_the_normal_one(level, z):
    queries = [ScoredQuery([score], [True]) for score in np.random.default_rng(6).random(1000)]
    d = compare(at(0.8), at(0.6), queries, level=level)["query-recall"]
    se = np.sqrt(d.estimate * (1 - d.estimate) / 1000)  # a query differs by 1 or by 0
    assert d.high - d.low == pytest.approx(2 * z * se, rel=0.08)
    # Of 2 points with the power 0.8 at 5 %: the quantiles 1.96 and 0.84.
    assert d.needed == pytest.approx(1000 * ((1.960 + 0.842) * se / 0.02) ** 2, rel=0.15)
    assert f"2 points: {d.needed:,.0f} queries" in str(d)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0.05, 0.2])
def test_as_many_queries_as_are_needed_tell_a_difference_with_probability_80_percent(size):
    """Of 600 samples, a share of 80 % has a standard error of 1.6 %; 3.9 of them are 6.4 %."""
    rng = np.random.default_rng(7)
    chances = [0.2 - size / 2, 0.6, 0.2 + size / 2]

    def drawn(n):  # the mean of n differences of −1, 0 or 1, resampled
        return resampled(rng.choice([-1.0, 0, 1], (n, 1), p=chances), 400) / n

    needed = np.mean([n_to_tell(drawn(100)[:, 0], 100, size) for _ in range(50)])
    told = [spans(drawn(round(needed)), 0.95)[0][0] > 0 for _ in range(600)]
    assert np.mean(told) == pytest.approx(0.8, abs=0.08)
