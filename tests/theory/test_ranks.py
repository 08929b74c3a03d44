"""The theorems of conformal.py: by hand, exactly for every data set, and in distribution."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binomtest, kstest, norm, t
from sklearn.metrics import roc_auc_score

from conformal_retrievers.theory.intervals import (
    Interval,
    auc,
    cluster_interval,
    effective_n,
    wilson_interval,
)
from conformal_retrievers.theory.ranks import (
    Masses,
    conformal_quantile,
    conformal_rank,
    exact_alpha,
    p_value_steps,
    p_values,
    queries_needed,
    query_recall_threshold,
)

FIVE = [0.5, 0.1, 0.7, 0.2, 0.4]
# Of three queries: (.1, .3), (.2) and (.4, .9).
THREE_QUERIES = [0.1, 0.3, 0.2, 0.4, 0.9], [2, 2, 1, 2, 2]


# --- by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "rank", "threshold"),
    [
        (0.2, 5, 0.7),  # ⌈6 × 0.8⌉ = ⌈4.8⌉ = 5
        (0.5, 3, 0.4),  # 6 × 0.5 = 3, exactly
        (0.4, 4, 0.5),  # ⌈3.6⌉
        (0.9, 1, 0.1),  # ⌈0.6⌉
        (0.1, 6, math.inf),  # ⌈5.4⌉ = 6, and there is no sixth score
    ],
)
def test_the_threshold_of_five_scores_by_hand(alpha, rank, threshold):
    assert conformal_rank(5, alpha) == rank
    assert conformal_quantile(FIVE, alpha) == threshold


@pytest.mark.parametrize(
    ("alpha", "threshold"),
    [
        # The mass 1/N_q adds up to .5 at .1, 1.5 at .2, 2 at .3, 2.5 at .4 and 3 at .9.
        (0.4, 0.4),  # 0.6 × (3 + 1) = 2.4
        (0.5, 0.3),  # 2, reached exactly
        (0.25, 0.9),  # 3, reached exactly by all of them
        (0.2, math.inf),  # 3.2, more than all of them
        (0.9, 0.1),  # 0.4
    ],
)
def test_the_query_recall_threshold_of_three_queries_by_hand(alpha, threshold):
    assert query_recall_threshold(*THREE_QUERIES, alpha) == threshold


def test_the_p_values_of_five_scores_by_hand():
    at = [0.0, 0.1, 0.15, 0.4, 0.7, 0.71]
    # 5, 5, 4, 3, 1 and 0 of the five are not below; the new score counts as one more.
    expected = [6 / 6, 6 / 6, 5 / 6, 4 / 6, 2 / 6, 1 / 6]
    assert p_values(np.sort(FIVE), p_value_steps(Masses.of([1] * 5)), at).tolist() == expected


def test_the_query_recall_p_values_of_three_queries_by_hand():
    ordered, sizes = [0.1, 0.2, 0.3, 0.4, 0.9], [2, 1, 2, 2, 2]
    p = p_values(
        np.array(ordered), p_value_steps(Masses.of(sizes)), [0.1, 0.2, 0.25, 0.4, 0.9, 1.0]
    )
    # (1 + 3)/4, (1 + 2.5)/4, (1 + 1.5)/4, (1 + 1)/4, (1 + .5)/4, 1/4
    assert p.tolist() == [1.0, 0.875, 0.625, 0.5, 0.375, 0.25]


def test_tied_scores_are_kept_together():
    assert conformal_quantile([1, 2, 2, 2, 3], 0.5) == 2
    assert query_recall_threshold([1, 2, 2, 2, 3], [2, 2, 3, 3, 3], 0.5) == 2


def test_no_score_at_all_keeps_everything():
    assert conformal_quantile([], 0.5) == math.inf
    assert query_recall_threshold([], [], 0.5) == math.inf
    assert p_values(np.empty(0), p_value_steps(Masses.of([])), [0.3]).tolist() == [1.0]


def test_a_threshold_is_a_plain_float_that_was_a_calibration_score():
    assert type(conformal_quantile(FIVE, 0.2)) is float
    assert type(query_recall_threshold(*THREE_QUERIES, 0.5)) is float


def test_the_scores_that_are_passed_in_stay_as_they_are():
    scores, sizes = np.array([3.0, 1.0, 2.0]), np.array([1, 2, 2])
    conformal_quantile(scores, 0.5)
    query_recall_threshold(scores, sizes, 0.5)
    assert scores.tolist() == [3.0, 1.0, 2.0]
    assert sizes.tolist() == [1, 2, 2]


# --- alpha and ranks ------------------------------------------------------------------------------


def test_alpha_is_the_decimal_that_its_user_wrote():
    assert exact_alpha(0.1) == Fraction(1, 10) != Fraction(0.1)
    assert exact_alpha(np.float64(0.05)) == Fraction(1, 20)


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, math.nan, math.inf, -math.inf])
def test_alpha_outside_0_and_1_is_a_value_error_that_names_it(alpha):
    with pytest.raises(ValueError, match=r"alpha is .* between 0 and 1"):
        exact_alpha(alpha)


@pytest.mark.parametrize("alpha", ["0.1", True, None, [0.1]])
def test_alpha_that_is_no_number_is_a_type_error_that_names_it(alpha):
    with pytest.raises(TypeError, match=r"alpha is .* number"):
        exact_alpha(alpha)


def test_the_rank_is_exact_where_floats_are_wrong():
    wrong_in_floats = 0
    for hundredths in range(1, 100):
        alpha = hundredths / 100
        for n in range(1, 1500):
            rank = math.ceil((n + 1) * (1 - Fraction(hundredths, 100)))
            assert conformal_rank(n, alpha) == rank, (n, alpha)
            wrong_in_floats += math.ceil((n + 1) * (1 - alpha)) != rank
    assert wrong_in_floats == 867


def test_a_rank_that_floats_get_wrong_by_one():
    # 250 × 0.828 = 207, but 250 * (1 - 0.172) = 207.00000000000003
    assert math.ceil(250 * (1 - 0.172)) == 208
    assert conformal_rank(249, 0.172) == 207
    assert conformal_quantile(np.arange(1, 250), 0.172) == 207


@pytest.mark.parametrize(
    ("alpha", "needed"), [(0.5, 1), (0.3, 3), (0.2, 4), (0.1, 9), (0.05, 19), (0.01, 99)]
)
def test_the_number_of_queries_needed_by_hand(alpha, needed):
    assert queries_needed(alpha) == needed


def test_the_number_of_queries_needed_is_the_first_that_gives_a_finite_threshold():
    for alpha in (thousandths / 1000 for thousandths in range(1, 1000)):
        needed = queries_needed(alpha)
        assert conformal_rank(needed, alpha) <= needed
        assert conformal_rank(needed - 1, alpha) > needed - 1
        if needed < 200:
            enough, too_few = np.arange(needed), np.arange(needed - 1)
            for threshold in (
                conformal_quantile,
                lambda v, alpha: query_recall_threshold(v, np.ones_like(v), alpha),
            ):
                assert math.isfinite(threshold(enough, alpha))
                assert threshold(too_few, alpha) == math.inf


# --- exactly, for every data set: no tolerance ----------------------------------------------------

# alpha as hundredths and thousandths, so that (n + 1)(1 − alpha) is often a whole number
alphas = st.one_of(
    st.integers(1, 99).map(lambda i: Fraction(i, 100)),
    st.integers(1, 999).map(lambda i: Fraction(i, 1000)),
)
distinct = st.lists(st.integers(-1000, 1000), min_size=1, max_size=30, unique=True)
tied = st.lists(st.integers(0, 4), min_size=1, max_size=30)


@st.composite
def queries_of(draw, ties):
    """Queries as lists of the scores of their relevant snippets."""
    sizes = draw(st.lists(st.integers(1, 10), min_size=1, max_size=12))
    n = sum(sizes)
    values = st.integers(0, 5) if ties else st.integers(-(10**6), 10**6)
    flat = draw(st.lists(values, min_size=n, max_size=n, unique=not ties))
    ends = np.cumsum(sizes)
    return [flat[end - size : end] for size, end in zip(sizes, ends, strict=True)]


any_queries = st.one_of(queries_of(ties=False), queries_of(ties=True))


def quantile_of(scores, alpha):
    return conformal_quantile(scores, float(alpha))


def threshold_of(queries, alpha):
    scores = [score for query in queries for score in query]
    sizes = [len(query) for query in queries for _ in query]
    return query_recall_threshold(scores, sizes, float(alpha))


def mass(queries, kept):
    """Σ over queries of the share of the query's scores that is kept."""
    return sum((Fraction(sum(map(kept, q)), len(q)) for q in queries), Fraction(0))


def without(items, i):
    return items[:i] + items[i + 1 :]


@settings(max_examples=400)
@given(distinct, alphas)
def test_leaving_each_distinct_score_out_keeps_exactly_the_rank_of_them(scores, alpha):
    kept = sum(s <= quantile_of(without(scores, i), alpha) for i, s in enumerate(scores))
    n = len(scores) - 1
    assert kept == min(math.ceil((n + 1) * (1 - alpha)), n + 1)


@settings(max_examples=400)
@given(tied, alphas)
def test_leaving_each_tied_score_out_keeps_at_least_the_rank_of_them(scores, alpha):
    kept = sum(s <= quantile_of(without(scores, i), alpha) for i, s in enumerate(scores))
    assert kept >= math.ceil(len(scores) * (1 - alpha))


@settings(max_examples=400)
@given(st.one_of(distinct, tied), alphas)
def test_the_threshold_is_the_smallest_score_with_the_rank_at_or_below_it(scores, alpha):
    threshold = quantile_of(scores, alpha)
    rank = math.ceil((len(scores) + 1) * (1 - alpha))
    if rank > len(scores):
        assert threshold == math.inf
    else:
        assert threshold in scores
        assert sum(s <= threshold for s in scores) >= rank
        assert sum(s < threshold for s in scores) < rank


@settings(max_examples=400)
@given(any_queries, alphas)
def test_leaving_each_query_out_drops_at_most_alpha_of_them_in_sum(queries, alpha):
    dropped = Fraction(0)
    for i, query in enumerate(queries):
        threshold = threshold_of(without(queries, i), alpha)
        dropped += mass([query], lambda score, t=threshold: score > t)
    assert dropped <= alpha * len(queries)


@settings(max_examples=400)
@given(queries_of(ties=False), alphas)
def test_leaving_each_query_out_keeps_at_most_two_queries_more_without_ties(queries, alpha):
    kept = Fraction(0)
    for i, query in enumerate(queries):
        threshold = threshold_of(without(queries, i), alpha)
        kept += mass([query], lambda score, t=threshold: score <= t)
    assert kept <= (1 - alpha) * len(queries) + 2


@settings(max_examples=400)
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


@given(st.one_of(distinct, tied), alphas)
def test_queries_of_one_snippet_each_have_the_same_threshold_under_both_guarantees(scores, alpha):
    assert threshold_of([[s] for s in scores], alpha) == quantile_of(scores, alpha)


@settings(max_examples=300)
@given(any_queries, alphas, st.lists(st.integers(-3, 8), max_size=5))
def test_a_query_recall_p_value_is_above_alpha_exactly_if_the_score_is_kept(queries, alpha, more):
    K = len(queries)  # noqa: N806
    pairs = sorted((score, len(query)) for query in queries for score in query)
    ordered, sizes = (np.array(column) for column in zip(*pairs, strict=True))
    at = sorted({*ordered.tolist(), *more})
    p = p_values(ordered, p_value_steps(Masses.of(sizes)), at)
    for score, value in zip(at, p.tolist(), strict=True):
        exact = (1 + mass(queries, lambda a, score=score: a >= score)) / (K + 1)
        assert value == float(exact)
        assert (value > float(alpha)) == (score <= threshold_of(queries, alpha))


@settings(max_examples=300)
@given(st.one_of(distinct, tied), alphas, st.lists(st.integers(-3, 8), max_size=5))
def test_a_snippet_p_value_is_above_alpha_exactly_if_the_score_is_kept(scores, alpha, more):
    at = sorted({*scores, *more})
    p = p_values(np.sort(np.array(scores)), p_value_steps(Masses.of([1] * len(scores))), at)
    for score, value in zip(at, p.tolist(), strict=True):
        exact = Fraction(1 + sum(a >= score for a in scores), len(scores) + 1)
        assert value == float(exact)
        assert (value > float(alpha)) == (score <= quantile_of(scores, alpha))


@settings(max_examples=300)
@given(st.one_of(distinct, tied), alphas)
def test_a_score_left_out_has_a_p_value_of_at_most_alpha_no_more_often_than_alpha(scores, alpha):
    small = 0
    for i, score in enumerate(scores):
        others = np.sort(np.array(without(scores, i), dtype=float))
        small += p_values(others, p_value_steps(Masses.of([1] * len(others))), [score])[0] <= float(
            alpha
        )
    assert small <= alpha * len(scores)


def test_the_p_value_of_a_score_that_is_nan_is_nan_and_of_infinite_ones_the_extremes():
    p = p_values(np.sort(FIVE), p_value_steps(Masses.of([1] * 5)), [math.nan, math.inf, -math.inf])
    assert math.isnan(p[0])
    assert p[1:].tolist() == [1 / 6, 1.0]


# --- sums that floats get wrong -------------------------------------------------------------------


def test_a_mass_that_is_reached_exactly_is_reached_although_floats_fall_short():
    # Ten snippets of one query, 0.4 × (1 + 1) = 0.8: the eighth reaches it.
    assert np.cumsum([0.1] * 10)[7] < 0.8
    assert query_recall_threshold(np.arange(1, 11), [10] * 10, 0.6) == 8


def test_the_mass_of_all_queries_is_their_number_although_floats_fall_short():
    # Nine queries of ten, 0.9 × (9 + 1) = 9: only all of them reach it.
    assert np.cumsum([0.1] * 90)[-1] < 9
    assert query_recall_threshold(np.arange(90), [10] * 90, 0.1) == 89
    assert query_recall_threshold(np.arange(90), [10] * 90, 0.099) == math.inf


def test_a_mass_that_is_missed_by_a_hair_is_not_reached():
    # (1 − α) × 10 = 9.0000000001, and nine queries are 9: no guard against rounding lets it pass.
    assert query_recall_threshold(np.arange(9), [1] * 9, 0.09999999999) == math.inf
    assert query_recall_threshold(np.arange(9), [1] * 9, 0.10000000001) == 8


def test_the_threshold_does_not_depend_on_the_order_of_the_scores(rng):
    sizes = np.repeat([3, 7, 11, 13, 49], [3, 7, 11, 13, 49])
    scores = rng.integers(0, 20, len(sizes)).astype(float)
    thresholds, tables = set(), set()
    for _ in range(50):
        order = rng.permutation(len(sizes))
        thresholds.add(query_recall_threshold(scores[order], sizes[order], 0.3))
        by_score = order[np.argsort(scores[order])]
        p = p_values(scores[by_score], p_value_steps(Masses.of(sizes[by_score])), np.arange(20))
        tables.add(tuple(p.tolist()))
    assert len(thresholds) == len(tables) == 1


def test_p_values_stay_exact_where_the_common_denominator_exceeds_a_float():
    sizes = [size for size in range(1, 48) for _ in range(size)]
    assert math.lcm(*range(1, 48)) > 2**53
    steps = p_value_steps(Masses.of(sizes))
    for i in range(0, len(sizes) + 1, 97):
        exact = (1 + sum(Fraction(1, size) for size in sizes[i:])) / 48
        assert steps[i] == float(exact)
    assert steps[0] == 1.0
    assert steps[-1] == 1 / 48


def test_masses_are_whole_numbers_of_a_unit_of_which_a_query_has_one():
    masses = Masses.of(np.repeat([7, 3, 49], [7, 3, 49]))
    assert masses.parts.sum() == 3 * masses.new
    assert masses.parts[:10].tolist() == [masses.new // 7] * 7 + [masses.new // 3] * 3


# --- in distribution ------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "alpha"), [(20, 0.1), (50, 0.1), (99, 0.05), (200, 0.2)])
def test_the_threshold_of_uniform_scores_follows_the_beta_law(n, alpha, rng):
    # Of U(0, 1) scores the threshold is its own coverage. False alarm 1e-4, seeded.
    k = math.ceil((n + 1) * (1 - Fraction(str(alpha))))
    law = beta(k, n + 1 - k)
    draws = rng.random((3000, n))
    pooled = [conformal_quantile(scores, alpha) for scores in draws]
    by_query = [query_recall_threshold(scores, np.ones(n, int), alpha) for scores in draws[:500]]
    assert kstest(pooled, law.cdf).pvalue > 1e-4
    assert kstest(by_query, law.cdf).pvalue > 1e-4
    # The test can tell: the neighbouring ranks fail it.
    for neighbour in (k - 1, k + 1):
        wrong = np.sort(draws, axis=1)[:, min(neighbour, n) - 1]
        if neighbour <= n:
            assert kstest(wrong, law.cdf).pvalue < 1e-4


# --- AUC ------------------------------------------------------------------------------------------


def test_auc_counts_ties_half_and_leaves_nan_out():
    assert auc([0.1, 0.2], [0.2, 0.3]) == 3.5 / 4
    assert auc([0.3, math.nan], [0.1]) == 0
    assert math.isnan(auc([0.3], []))
    assert math.isnan(auc([math.nan], [0.3]))


def test_auc_is_that_of_scikit_learn(rng):
    low, high = rng.integers(0, 4, 40) / 4, rng.integers(0, 5, 30) / 4
    expected = roc_auc_score([0] * 40 + [1] * 30, [*low, *high])
    assert auc(low, high) == pytest.approx(expected)


# --- intervals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
@pytest.mark.parametrize(
    ("k", "n"), [(0, 1), (1, 1), (0, 20), (20, 20), (3, 20), (50, 100), (899, 1000), (1, 3)]
)
def test_wilsons_interval_is_scipys(k, n, level):
    reference = binomtest(k, n).proportion_ci(level, method="wilson")
    estimate, low, high = wilson_interval(k / n, n, level)
    assert estimate == k / n
    assert low == pytest.approx(reference.low, rel=1e-9, abs=1e-15)
    assert high == pytest.approx(reference.high, rel=1e-9)


def test_wilsons_interval_ends_at_a_share_of_0_or_1_itself():
    for n in range(1, 200):
        assert wilson_interval(0.0, n).low == 0.0
        assert wilson_interval(1.0, n).high == 1.0


def test_an_interval_prints_as_per_cent():
    assert str(Interval(0.9, 0.8512, 1.0)).strip() == "90.0% [85.1%, 100.0%]"


def test_one_snippet_a_query_gives_wilsons_interval_of_about_as_many():
    # K − 1: the variance is estimated from the K outcomes themselves, so t stands for z too.
    parts = np.array([1.0] * 35 + [0.0] * 5)
    assert effective_n(parts, np.ones(40)) == pytest.approx(39, rel=1e-12)
    interval = cluster_interval(parts, np.ones(40))
    level = norm.cdf(t.ppf(0.975, 39)) * 2 - 1
    assert interval == pytest.approx(wilson_interval(35 / 40, 39, level), rel=1e-9)


def test_repeating_each_querys_outcome_makes_nothing_more_certain():
    parts = np.array([1.0] * 35 + [0.0] * 5)
    once = cluster_interval(parts, np.ones(40))
    for m in (2, 7, 100):
        assert cluster_interval(m * parts, m * np.ones(40)) == pytest.approx(once, rel=1e-12)
    assert wilson_interval(35 / 40, 4000).high < once.high  # what the snippets alone would claim


def test_the_effective_number_by_hand():
    # Shares 3/4 and 1/2 of 4 snippets each: p = 5/8, residuals ±1/2,
    # V = 2/1 × (1/4 + 1/4)/64 = 1/64, and p(1 − p)/V = (15/64) × 64 = 15.
    assert effective_n([3, 2], [4, 4]) == pytest.approx(15, rel=1e-12)
    assert effective_n([0.75, 0.5], [1, 1]) == pytest.approx(15, rel=1e-12)
    # Shares 1 and 0: p = 1/2, residuals ±2, V = 2 × 8/64 = 1/4, and (1/4)/(1/4) = 1.
    assert effective_n([4, 0], [4, 4]) == pytest.approx(1, rel=1e-12)


def test_equal_shares_say_nothing_of_their_spread():
    for share in (0.3, 1 / 7, 0.99):  # of which rounding leaves a residual
        assert effective_n([share] * 21, [1] * 21) == 21


def test_a_large_query_among_small_ones_leaves_nothing_to_tell():
    interval = cluster_interval([900, 1], [1000, 1])  # as good as one query
    assert (interval.low, interval.high) == (0.0, 1.0)


def test_a_query_without_relevant_snippets_changes_no_interval():
    assert cluster_interval([3, 2, 0], [4, 4, 0]) == cluster_interval([3, 2], [4, 4])


def test_where_all_or_none_is_kept_the_queries_are_what_counts():
    assert effective_n([5, 9, 2], [5, 9, 2]) == 3
    assert effective_n([0, 0], [5, 9]) == 2
    assert cluster_interval([5] * 9, [5] * 9).low > wilson_interval(1.0, 5).low
    assert cluster_interval([1], [2]) == (0.5, 0.0, 1.0)


def test_no_query_says_nothing():
    estimate, low, high = cluster_interval([], [])
    assert math.isnan(estimate)
    assert (low, high) == (0.0, 1.0)


def test_the_cluster_interval_covers_at_its_level_where_snippets_are_clustered(rng):
    # Query q keeps each of N_q snippets with its own probability, from Beta(4.5, .5): mean .9.
    # The interval is approximate; at K = 150 it must not be told from one that covers 93 %.
    truth, covered, naive = 0.9, 0, 0
    runs = 2000
    for _ in range(runs):
        wholes = rng.integers(1, 20, 150)
        parts = rng.binomial(wholes, rng.beta(4.5, 0.5, 150))
        interval = cluster_interval(parts, wholes)
        covered += interval.low <= truth <= interval.high
        pooled = wilson_interval(parts.sum() / wholes.sum(), wholes.sum())
        naive += pooled.low <= truth <= pooled.high
    assert binomtest(covered, runs, 0.95, alternative="less").pvalue > 1e-4
    assert binomtest(covered, runs, 0.98, alternative="greater").pvalue > 1e-4
    assert binomtest(naive, runs, 0.95, alternative="less").pvalue < 1e-4


def test_p_values_are_correctly_rounded_where_sums_exceed_what_a_float_counts():
    # 64 bits hold these sums, the 53 of a float do not.
    rng = np.random.default_rng(17)
    parts = rng.integers(2**53, 2**55, size=200)
    new = 2**54 + 1
    total = sum(parts.tolist(), new)
    assert 2**53 < total < 2**63
    not_below = [sum(parts[i:].tolist(), new) for i in range(201)]
    expected = [float(Fraction(mass, total)) for mass in not_below]
    assert p_value_steps(Masses(parts, new)).tolist() == expected
