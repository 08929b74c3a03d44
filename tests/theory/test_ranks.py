"""Thresholds and p-values: by hand, and exactly for every data set."""

import math
from fractions import Fraction

import numpy as np
import pytest
from calibrations import alphas, judged
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.quantile import conformal_quantile
from conformal_retrievers.theory import ranks


def query_recall_threshold(scores, sizes, alpha):
    return ranks.mass_threshold(scores, ranks.Masses.of(sizes), alpha)


def test_without_scores_everything_is_kept():
    assert conformal_quantile([], 0.5) == math.inf
    assert query_recall_threshold([], [], 0.5) == math.inf
    steps = ranks.p_value_steps(ranks.Masses.of([]))
    assert ranks.p_values(np.empty(0), steps, [0.3]).tolist() == [1.0]


def test_alpha_and_share_are_the_decimals_that_the_user_wrote():
    assert ranks.exact_alpha(0.1) == Fraction(1, 10) != Fraction(0.1)
    assert ranks.exact_alpha(np.float64(0.05)) == Fraction(1, 20)
    assert ranks.exact_share(0.9) == Fraction(9, 10)
    assert ranks.exact_share(1) == 1


@pytest.mark.parametrize("value", [0, 1, -0.1, 1.5, math.nan, math.inf, "0.1", True, None, [0.1]])
def test_anything_but_a_number_between_0_and_1_is_an_error_that_names_it(value):
    error = ValueError if type(value) in (int, float) else TypeError
    with pytest.raises(error, match="alpha is"):
        ranks.exact_alpha(value)
    with pytest.raises(error, match="delta is"):
        ranks.check_probability("delta", value, "a share")
    if value is True or value != 1:
        with pytest.raises(error, match="share is"):
            ranks.exact_share(value)


def test_the_rank_is_exact_where_floats_are_wrong():
    n, wrong_in_floats = np.arange(1, 1500), 0
    for hundredths in range(1, 100):
        alpha = hundredths / 100
        exact = n + 1 - (n + 1) * hundredths // 100
        assert [ranks.conformal_rank(m, alpha) for m in n[::7].tolist()] == exact[::7].tolist()
        wrong_in_floats += np.count_nonzero(np.ceil((n + 1) * (1 - alpha)) != exact)
    assert wrong_in_floats == 867


def test_the_number_of_queries_needed_is_exact_for_every_alpha():
    for alpha in (thousandths / 1000 for thousandths in range(1, 1000)):
        needed = ranks.queries_needed(alpha)
        assert ranks.conformal_rank(needed, alpha) <= needed
        assert ranks.conformal_rank(needed - 1, alpha) > needed - 1


distinct = st.lists(st.integers(-1000, 1000), min_size=1, max_size=30, unique=True)
tied = st.lists(st.integers(0, 4), min_size=1, max_size=30)
any_queries = st.one_of(judged(), judged(ties=False)).map(
    lambda queries: [query.scores.tolist() for query in queries]
)


def threshold_of(queries, alpha):
    scores = [score for query in queries for score in query]
    sizes = [len(query) for query in queries for _ in query]
    return query_recall_threshold(scores, sizes, float(alpha))


def mass(queries, kept):
    """Σ over queries of the share of the query's scores that is kept."""
    return sum((Fraction(sum(map(kept, q)), len(q)) for q in queries), Fraction(0))


@given(st.one_of(distinct, tied), alphas)
def test_the_threshold_is_the_smallest_score_with_the_rank_at_or_below_it(scores, alpha):
    threshold = conformal_quantile(scores, float(alpha))
    assert threshold == threshold_of([[s] for s in scores], alpha)  # queries of one snippet each
    rank = math.ceil((len(scores) + 1) * (1 - alpha))
    if rank > len(scores):
        assert threshold == math.inf
    else:
        assert threshold in scores
        assert sum(s <= threshold for s in scores) >= rank
        assert sum(s < threshold for s in scores) < rank


@given(any_queries, alphas)
def test_the_query_recall_threshold_is_the_smallest_that_reaches_the_needed_mass(queries, alpha):
    threshold = threshold_of(queries, alpha)
    needed = (1 - alpha) * (len(queries) + 1)
    if threshold == math.inf:
        assert len(queries) < needed  # not even all of them
    else:
        assert any(threshold in query for query in queries)
        assert mass(queries, lambda score: score <= threshold) >= needed
        assert mass(queries, lambda score: score < threshold) < needed


@given(any_queries, alphas, st.lists(st.integers(-3, 8), max_size=5))
def test_a_query_recall_p_value_is_above_alpha_exactly_if_the_score_is_kept(queries, alpha, more):
    pairs = sorted((score, len(query)) for query in queries for score in query)
    ordered, sizes = (np.array(column) for column in zip(*pairs, strict=True))
    at = sorted({*ordered.tolist(), *more})
    p = ranks.p_values(ordered, ranks.p_value_steps(ranks.Masses.of(sizes)), at)
    threshold = threshold_of(queries, alpha)
    for score, value in zip(at, p.tolist(), strict=True):
        not_below = mass(queries, lambda a, score=score: a >= score)
        assert value == float((1 + not_below) / (len(queries) + 1))
        assert (value > float(alpha)) == (score <= threshold)


def test_a_mass_that_is_reached_exactly_is_reached_although_floats_fall_short():
    # Ten snippets of one query, 0.4 × (1 + 1) = 0.8: the eighth reaches it.
    assert np.cumsum([0.1] * 10)[7] < 0.8
    assert query_recall_threshold(np.arange(1, 11), [10] * 10, 0.6) == 8
    # Nine queries of ten, 0.9 × (9 + 1) = 9: only all of them reach it.
    assert np.cumsum([0.1] * 90)[-1] < 9
    assert query_recall_threshold(np.arange(90), [10] * 90, 0.1) == 89
    assert query_recall_threshold(np.arange(90), [10] * 90, 0.099) == math.inf
    # (1 − α) × 10 = 9.0000000001, and nine queries are 9: no tolerance for rounding.
    assert query_recall_threshold(np.arange(9), [1] * 9, 0.09999999999) == math.inf
    assert query_recall_threshold(np.arange(9), [1] * 9, 0.10000000001) == 8


def test_thresholds_and_p_values_stay_exact_beyond_64_bits():
    sizes = [size for size in range(1, 48) for _ in range(size)]
    masses = ranks.Masses.of(sizes)
    assert masses.new > 2**63
    steps = ranks.p_value_steps(masses)
    for i in range(0, len(sizes) + 1, 97):
        assert steps[i] == float((1 + sum(Fraction(1, size) for size in sizes[i:])) / 48)
    # The first 24 queries have a mass of 24 = (1 − α) · 48.
    assert ranks.mass_threshold(np.arange(len(sizes)), masses, 0.5) == sum(range(25)) - 1


def test_p_values_are_correctly_rounded_where_sums_exceed_what_a_float_counts():
    # 64 bits hold these sums, the 53 of a float do not.
    parts = np.random.default_rng(17).integers(2**53, 2**55, size=200)
    new = 2**54 + 1
    total = sum(parts.tolist(), new)
    assert 2**53 < total < 2**63
    expected = [float(Fraction(sum(parts[i:].tolist(), new), total)) for i in range(201)]
    assert ranks.p_value_steps(ranks.Masses(parts, new)).tolist() == expected
