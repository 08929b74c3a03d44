"""Every guarantee, exactly for every data set, in all its combinations, and in simulations.

The theorems are about n + 1 exchangeable units, so each is held by leaving out one unit at a time:
summed over them, what the threshold of the others loses is at most α of all. These identities are
checked in fractions, with ties, through `Calibration.from_scores`. A relevant snippet that was
missed has the score +inf there, which a threshold of +inf keeps.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
from clustered import FALSE_ALARM, clustered_queries, coverage, missing
from hypothesis import given, settings
from hypothesis import strategies as st
from lookup import LookupScorer
from scipy.stats import beta, binomtest, kstest, norm, ttest_1samp

from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    JudgedQuery,
    ScoredQuery,
    calibrate,
    score_queries,
)
from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.theory.ranks import Masses, mass_threshold

GUARANTEES = get_args(Guarantee)
OF_QUERIES = ("query-recall", "all", "any")
every_guarantee = pytest.mark.parametrize("guarantee", GUARANTEES)
every_guarantee_of_queries = pytest.mark.parametrize("guarantee", OF_QUERIES)


def calibration_of(queries, alpha=0.1, guarantee="query-recall", **options):
    return Calibration.from_scores(
        queries, alpha=float(alpha), guarantee=guarantee, scorer="lookup", **options
    )


def relevant(*scores, **options):
    return ScoredQuery(scores, [True] * len(scores), **options)


def test_there_are_four_guarantees():
    assert sorted(GUARANTEES) == ["all", "any", "query-recall", "snippet"]


# --- data sets ------------------------------------------------------------------------------------

# Hundredths and thousandths, so that (n + 1)(1 − alpha) is often a whole number.
alphas = st.one_of(
    st.integers(1, 99).map(lambda i: Fraction(i, 100)),
    st.integers(1, 999).map(lambda i: Fraction(i, 1000)),
)
# Sums and quotients of these are often equal; 0.1 and 0.3 are no binary fractions.
some_weights = st.sampled_from([0.25, 0.5, 1.0, 1.0, 2.0, 3.0, 0.1, 0.3])
dyadic = st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0])


@st.composite
def judged(draw, *, ties=True, missed=False, groups=False, weights=None, most=9):
    """Scored queries, of which two or more have a relevant retrieved snippet."""
    sizes = draw(st.lists(st.integers(0 if missed else 1, 5), min_size=2, max_size=most))
    sizes[:2] = [max(1, size) for size in sizes[:2]]
    n = sum(sizes)
    values = st.integers(0, 5) if ties else st.integers(-(10**6), 10**6)
    flat = draw(st.lists(values, min_size=n, max_size=n, unique=not ties))
    ends = np.cumsum(sizes).tolist()
    return [
        relevant(
            *flat[end - size : end],
            missed=draw(st.integers(0, 3)) if missed else 0,
            group=draw(st.sampled_from("gh")) if groups else None,
            weight=draw(weights) if weights is not None else 1.0,
        )
        for size, end in zip(sizes, ends, strict=True)
    ]


def with_the_heaviest_twice(queries):
    """Repeat the heaviest query of each group, with other scores: a new one may be as heavy."""
    heaviest = {}
    for query in queries:
        if query.group not in heaviest or query.weight > heaviest[query.group].weight:
            heaviest[query.group] = query
    return [*queries, *(replace(query, scores=query.scores + 1) for query in heaviest.values())]


def without(items, i):
    return [*items[:i], *items[i + 1 :]]


def scores_of(query, count_missed=False):
    return [*query.scores[query.relevant].tolist(), *[math.inf] * (query.missed * count_missed)]


def enters(query, count_missed):
    return bool(scores_of(query, count_missed))


def share_kept(query, guarantee, threshold, count_missed=False):
    """What the guarantee is an expectation of, for one query."""
    kept = [score <= threshold for score in scores_of(query, count_missed)]
    if guarantee == "query-recall":
        return Fraction(sum(kept), len(kept))
    return Fraction((all if guarantee == "all" else any)(kept))


def left_out(queries, alpha, guarantee, **options):
    """Yield each entering query with its share at the threshold of the other queries."""
    count_missed = options.get("count_missed", False)
    for i, query in enumerate(queries):
        if enters(query, count_missed):
            others = without(queries, i)
            if any(other.relevant.any() for other in others):
                threshold = calibration_of(others, alpha, guarantee, **options)
                threshold = threshold.threshold(query.group)
            else:
                threshold = math.inf  # nothing is calibrated, so nothing is dropped
            yield query, share_kept(query, guarantee, threshold, count_missed)


# --- exactly, for every data set: no tolerance ----------------------------------------------------


@pytest.mark.parametrize("guarantee", ["all", "any"])
@settings(max_examples=150)
@given(queries=judged(), alpha=alphas)
def test_leaving_each_query_out_satisfies_at_least_the_rank_of_them(guarantee, queries, alpha):
    kept = sum(share for _, share in left_out(queries, alpha, guarantee))
    assert kept >= math.ceil(len(queries) * (1 - alpha))


@pytest.mark.parametrize("guarantee", ["all", "any"])
@settings(max_examples=150)
@given(queries=judged(ties=False), alpha=alphas)
def test_leaving_each_query_out_satisfies_exactly_the_rank_without_ties(guarantee, queries, alpha):
    kept = sum(share for _, share in left_out(queries, alpha, guarantee))
    assert kept == math.ceil(len(queries) * (1 - alpha))


@settings(max_examples=200)
@given(queries=judged(), alpha=alphas)
def test_leaving_each_query_out_loses_at_most_alpha_of_their_relevant_shares(queries, alpha):
    losses = sum(1 - share for _, share in left_out(queries, alpha, "query-recall"))
    assert losses <= alpha * len(queries)


@settings(max_examples=150)
@given(queries=st.one_of(judged(), judged(ties=False), judged(missed=True)), alpha=alphas)
def test_leaving_each_snippet_out_keeps_at_least_the_rank_of_them(queries, alpha):
    distinct = len({s for q in queries for s in q.scores}) == sum(len(q.scores) for q in queries)
    missed = sum(query.missed for query in queries)
    kept = 0
    for i, query in enumerate(queries):
        for j, score in enumerate(query.scores):
            rest = relevant(*np.delete(query.scores, j), missed=query.missed)
            others = calibration_of(
                [*without(queries, i), rest], alpha, "snippet", count_missed=True
            )
            kept += score <= others.threshold()
        if query.missed:
            fewer = replace(query, missed=query.missed - 1)
            others = calibration_of(
                [*without(queries, i), fewer], alpha, "snippet", count_missed=True
            )
            kept += query.missed * (math.inf <= others.threshold())
    n = sum(len(query.scores) for query in queries) + missed
    assert kept >= math.ceil(n * (1 - alpha))
    if distinct and not missed:
        assert kept == math.ceil(n * (1 - alpha))


@every_guarantee_of_queries
@settings(max_examples=120)
@given(queries=judged(missed=True), alpha=alphas)
def test_leaving_each_query_out_loses_at_most_alpha_where_missed_snippets_count(
    guarantee, queries, alpha
):
    shares = [share for _, share in left_out(queries, alpha, guarantee, count_missed=True)]
    assert sum(1 - share for share in shares) <= alpha * len(shares)


@every_guarantee_of_queries
@settings(max_examples=120)
@given(queries=judged(missed=True), alpha=alphas)
def test_leaving_each_query_out_loses_at_most_alpha_where_missed_snippets_do_not_count(
    guarantee, queries, alpha
):
    shares = [share for _, share in left_out(queries, alpha, guarantee)]
    assert len(shares) == sum(bool(query.relevant.any()) for query in queries)
    assert sum(1 - share for share in shares) <= alpha * len(shares)


@every_guarantee_of_queries
@settings(max_examples=120)
@given(
    queries=st.one_of(judged(groups=True, most=12), judged(groups=True, missed=True, most=12)),
    alpha=alphas,
    count_missed=st.booleans(),
)
def test_leaving_each_query_out_loses_at_most_alpha_within_each_group(
    guarantee, queries, alpha, count_missed
):
    lost, size = Counter(), Counter()
    for query, share in left_out(
        queries, alpha, guarantee, by_group=True, count_missed=count_missed
    ):
        lost[query.group] += 1 - share
        size[query.group] += 1
    for group in size:
        assert lost[group] <= alpha * size[group]


@every_guarantee_of_queries
@settings(max_examples=60)
@given(queries=judged(groups=True, most=12), alpha=alphas)
def test_leaving_each_query_out_loses_at_most_alpha_within_groups_that_are_merged(
    guarantee, queries, alpha
):
    third = [replace(query, group="i") for query in queries[::2]]
    queries = [*third, *(replace(q, group="g") for q in queries[:2]), *queries, *queries[-1:]]
    queries = [*queries, replace(queries[0], group="h"), replace(queries[1], group="h")]
    lost, size = Counter(), Counter()
    for query, share in left_out(
        queries, alpha, guarantee, by_group=True, merge_groups={"g": "both", "h": "both"}
    ):
        merged = "both" if query.group in ("g", "h") else query.group
        lost[merged] += 1 - share
        size[merged] += 1
    assert set(size) <= {"both", "i"}
    for group in size:
        assert lost[group] <= alpha * size[group]


@every_guarantee_of_queries
@settings(max_examples=150)
@given(queries=judged(missed=True, weights=some_weights), alpha=alphas)
def test_leaving_each_weighted_query_out_loses_at_most_alpha_of_the_weight(
    guarantee, queries, alpha
):
    # The theorem as it stands: the query that is left out has its own weight as the new one.
    entering = [query for query in queries if enters(query, True)]
    end = {"all": max, "any": min}.get(guarantee)
    units = [scores_of(q, True) if end is None else [end(scores_of(q, True))] for q in entering]
    weights = [Fraction(query.weight) for query in entering]
    lost = Fraction(0)
    for i, query in enumerate(entering):
        scores = [score for unit in without(units, i) for score in unit]
        masses = [
            weight / len(unit)
            for unit, weight in zip(without(units, i), without(weights, i), strict=True)
            for _ in unit
        ]
        threshold = mass_threshold(scores, Masses.weighted(masses, weights[i]), float(alpha))
        lost += weights[i] * (1 - share_kept(query, guarantee, threshold, True))
    assert lost <= alpha * sum(weights)


@every_guarantee_of_queries
@settings(max_examples=120)
@given(
    queries=judged(groups=True, missed=True, weights=some_weights).map(with_the_heaviest_twice),
    alpha=alphas,
    by_group=st.booleans(),
    count_missed=st.booleans(),
)
def test_leaving_each_weighted_query_out_of_a_calibration_loses_at_most_alpha_of_the_weight(
    guarantee, queries, alpha, by_group, count_missed
):
    # A calibration reserves the heaviest weight for the new query, which is on the safe side.
    lost, size, heaviest = Counter(), Counter(), {}
    for query in queries:
        if enters(query, count_missed):
            heaviest.setdefault(query.group * by_group, []).append(query.weight)
    for query, share in left_out(
        queries, alpha, guarantee, by_group=by_group, count_missed=count_missed
    ):
        group = query.group * by_group
        lost[group] += Fraction(query.weight) * (1 - share)
        size[group] += Fraction(query.weight)
    for group, weights in heaviest.items():
        if weights.count(max(weights)) > 1:  # a copy enters even if the original does not
            assert lost[group] <= alpha * size[group]


def sampled(scores, propensities, **options):
    """A query whose judgements were sampled, with an irrelevant one of the lowest propensity."""
    return ScoredQuery(
        [*scores, 9],
        [True] * len(scores) + [False],
        propensities=[*propensities, 1 / 8],
        **options,
    )


propensities = st.sampled_from([1.0, 0.5, 0.2, 1 / 8])
judgements = st.lists(st.tuples(st.integers(0, 5), propensities), min_size=1, max_size=4)


@settings(max_examples=200)
@given(st.lists(judgements, min_size=2, max_size=6), alphas)
def test_leaving_each_sampled_snippet_out_loses_at_most_alpha_of_what_they_stand_for(lists, alpha):
    # The new snippet may have the lowest propensity that there is, relevant or not.
    lost = total = Fraction(0)
    for i, some in enumerate(lists):
        for j, (score, propensity) in enumerate(some):
            others = [sampled(*zip(*other, strict=True)) for other in without(lists, i)]
            rest = without(some, j)
            others.append(sampled([s for s, _ in rest], [p for _, p in rest]))
            threshold = calibration_of(others, alpha, "snippet").threshold()
            stands_for = 1 / Fraction(propensity)
            lost += stands_for * (score > threshold)
            total += stands_for
    assert lost <= alpha * total


@settings(max_examples=200)
# --- thresholds, p-values and other alphas --------------------------------------------------------


@st.composite
def combinations(draw, guarantee):
    """A data set with the options that it is calibrated with, without delta."""
    by_group = draw(st.booleans())
    count_missed = draw(st.booleans())
    weights = draw(st.sampled_from([None, dyadic]))
    queries = draw(judged(missed=True, groups=by_group, weights=weights))
    options = {"by_group": by_group, "count_missed": count_missed}
    if by_group and draw(st.booleans()):
        groups = sorted({query.group for query in queries})
        options["merge_groups"] = dict.fromkeys(groups[:2], "merged")
    if guarantee == "snippet" and draw(st.booleans()):
        queries = [
            replace(
                query,
                propensities=[draw(st.sampled_from([1.0, 0.5, 0.25])) for _ in query.scores],
                only_kept=True,
            )
            if len(query.scores)
            else query
            for query in queries
        ]
        # An irrelevant snippet that was explored: without any, survivors are refused.
        queries.append(ScoredQuery([99.0], [False], propensities=[0.25], group="g"))
    return queries, options


AT = [*np.arange(-1, 7, 0.5).tolist(), math.inf, -math.inf]
RUN_TIME_GROUPS = (None, "g", "h", "unseen")


@every_guarantee
@settings(max_examples=150)
@given(data=st.data(), alpha=alphas)
def test_a_score_is_kept_exactly_if_its_p_value_is_above_alpha(guarantee, data, alpha):
    queries, options = data.draw(combinations(guarantee))
    calibration = calibration_of(queries, alpha, guarantee, **options)
    for group in RUN_TIME_GROUPS:
        kept = calibration.keep(AT, group).tolist()
        assert kept == (calibration.p_values(AT, group) > float(alpha)).tolist()


@every_guarantee
@settings(max_examples=100)
@given(data=st.data(), alpha=alphas, other=alphas)
def test_another_alpha_and_guarantee_of_the_same_scores_are_those_of_calibrating_again(
    guarantee, data, alpha, other
):
    queries, options = data.draw(combinations(guarantee))
    sampled_ones = any(q.propensities is not None and q.propensities.min() < 1 for q in queries)
    first = calibration_of(queries, alpha, guarantee, **options)
    for name in ("snippet",) if sampled_ones else GUARANTEES:
        again = first.at(float(other), guarantee=name)
        fresh = calibration_of(queries, other, name, **options)
        assert again == replace(fresh, created=first.created)
        for group in RUN_TIME_GROUPS:
            assert again.threshold(group) == fresh.threshold(group)
            assert again.p_values(AT, group).tolist() == fresh.p_values(AT, group).tolist()
    assert first.at(float(other)).guarantee == guarantee
    assert first.guarantee == guarantee
    assert first.alpha == float(alpha)


@every_guarantee
@settings(max_examples=100)
@given(data=st.data(), one=alphas, other=alphas)
def test_a_larger_alpha_keeps_a_subset(guarantee, data, one, other):
    queries, options = data.draw(combinations(guarantee))
    calibration = calibration_of(queries, min(one, other), guarantee, **options)
    larger = calibration.at(float(max(one, other)))
    for group in RUN_TIME_GROUPS:
        assert not (larger.keep(AT, group) & ~calibration.keep(AT, group)).any()


@settings(max_examples=200)
@given(
    queries=judged(groups=True, missed=True, weights=some_weights),
    alpha=alphas,
    by_group=st.booleans(),
    count_missed=st.booleans(),
)
def test_any_keeps_no_more_than_query_recall_and_query_recall_no_more_than_all(
    queries, alpha, by_group, count_missed
):
    # Of each query: all of it kept ≤ the share of it kept ≤ any of it kept.
    calibration = calibration_of(queries, alpha, by_group=by_group, count_missed=count_missed)
    for group in RUN_TIME_GROUPS:
        least, middle, most = (
            calibration.at(float(alpha), guarantee=guarantee).threshold(group)
            for guarantee in ("any", "query-recall", "all")
        )
        assert least <= middle <= most


@every_guarantee
@settings(max_examples=100)
@given(queries=judged(groups=True, missed=True, weights=some_weights), alpha=alphas)
def test_counting_missed_snippets_lowers_no_threshold(guarantee, queries, alpha):
    calibration = calibration_of(queries, alpha, guarantee)
    assert calibration.threshold() <= replace(calibration, count_missed=True).threshold()


@every_guarantee
@settings(max_examples=60)
@given(queries=judged(), alpha=alphas)
def test_where_every_query_has_one_snippet_all_guarantees_are_the_same(guarantee, queries, alpha):
    single = [relevant(query.scores[0], weight=query.weight) for query in queries]
    one = calibration_of(single, alpha, guarantee)
    assert one.threshold() == calibration_of(single, alpha).threshold()
    assert one.p_values(AT).tolist() == calibration_of(single, alpha).p_values(AT).tolist()


# --- metamorphic ----------------------------------------------------------------------------------


def assert_same(one, other, at_one=AT, at_other=AT):
    for group in RUN_TIME_GROUPS:
        assert one.keep(at_one, group).tolist() == other.keep(at_other, group).tolist()
        ours, theirs = one.p_values(at_one, group), other.p_values(at_other, group)
        assert ours.tolist() == theirs.tolist()


@every_guarantee
@settings(max_examples=60)
@given(data=st.data(), alpha=alphas, random=st.randoms(use_true_random=False))
def test_the_order_of_queries_snippets_and_groups_is_nothing(guarantee, data, alpha, random):
    queries, options = data.draw(combinations(guarantee))
    shuffled = []
    for query in random.sample(queries, len(queries)):
        order = random.sample(range(len(query.scores)), len(query.scores))
        order = np.array(order, dtype=int)
        judged_with = None if query.propensities is None else query.propensities[order]
        shuffled.append(replace(query, scores=query.scores[order], propensities=judged_with))
    one = calibration_of(queries, alpha, guarantee, **options)
    other = calibration_of(shuffled, alpha, guarantee, **options)
    assert_same(one, other)
    for group in RUN_TIME_GROUPS:
        assert one.threshold(group) == other.threshold(group)


@every_guarantee
@settings(max_examples=60)
@given(data=st.data(), alpha=alphas)
def test_a_strictly_increasing_map_of_the_scores_changes_nothing_that_is_kept(
    guarantee, data, alpha
):
    queries, options = data.draw(combinations(guarantee))
    before = calibration_of(queries, alpha, guarantee, **options)
    mapped = [replace(query, scores=2.0**query.scores - 7) for query in queries]
    after = calibration_of(mapped, alpha, guarantee, **options)
    assert_same(before, after, at_other=[2.0**score - 7 for score in AT[:-1]] + [-math.inf])


@every_guarantee
@settings(max_examples=60)
@given(data=st.data(), alpha=alphas, factor=st.sampled_from([0.5, 4.0]))
def test_the_unit_of_the_weights_is_nothing(guarantee, data, alpha, factor):
    queries, options = data.draw(combinations(guarantee))
    heavier = [replace(query, weight=query.weight * factor) for query in queries]
    assert_same(
        calibration_of(queries, alpha, guarantee, **options),
        calibration_of(heavier, alpha, guarantee, **options),
    )


@every_guarantee
@settings(max_examples=60)
@given(queries=judged(groups=True, missed=True, weights=dyadic), alpha=alphas)
def test_one_group_is_no_group_and_groups_are_calibrated_one_by_one(guarantee, queries, alpha):
    pooled = calibration_of(queries, alpha, guarantee)
    groups = {query.group for query in queries}
    merged = calibration_of(
        queries, alpha, guarantee, by_group=True, merge_groups=dict.fromkeys(groups, "one")
    )
    by_group = calibration_of(queries, alpha, guarantee, by_group=True)
    heaviest = max(query.weight for query in queries)  # may come in any group
    for group in groups:
        assert merged.threshold(group) == pooled.threshold()
        assert merged.p_values(AT, group).tolist() == pooled.p_values(AT).tolist()
        members = [query for query in queries if query.group == group]
        if any(query.relevant.any() for query in members):
            alone = calibration_of(members, alpha, guarantee, max_weight=heaviest)
            assert by_group.threshold(group) == alone.threshold()
            assert by_group.p_values(AT, group).tolist() == alone.p_values(AT).tolist()
            assert by_group.units(group).n == alone.n_units[None]


# --- groups ---------------------------------------------------------------------------------------


def two_groups(**options):
    """Twenty queries of group "long" with scores 1 to 20, and five of "short" with 101 to 105."""
    long = [relevant(i, group="long", id=f"l{i}") for i in range(1, 21)]
    short = [relevant(100 + i, group="short", id=f"s{i}") for i in range(1, 6)]
    return calibration_of([*long, *short], by_group=True, **options)


@every_guarantee
def test_each_group_has_its_own_threshold_by_hand(guarantee):
    calibration = two_groups(guarantee=guarantee, alpha=0.2)
    assert calibration.threshold("long") == 17  # ⌈21 × .8⌉
    assert calibration.threshold("short") == 105  # ⌈6 × .8⌉
    assert calibration.n_units == {"long": 20, "short": 5}
    assert calibration.n_queries == 25
    assert calibration.keep([17, 18, 105, 106], "long").tolist() == [True, False, False, False]
    assert calibration.keep([17, 18, 105, 106], "short").tolist() == [True, True, True, False]
    assert calibration.p_values([20, 105], "long").tolist() == [2 / 21, 1 / 21]
    assert calibration.p_values([20, 105], "short").tolist() == [1.0, 2 / 6]


@every_guarantee
def test_a_group_that_is_too_small_keeps_everything_and_is_named(guarantee):
    calibration = two_groups(guarantee=guarantee, alpha=0.1)
    assert calibration.threshold("long") == 19
    assert calibration.threshold("short") == math.inf
    assert calibration.keep([1e9, math.inf], "short").all()
    unit = "relevant snippets" if guarantee == "snippet" else "judged queries"
    for part in (
        "In each group of queries, ",
        f"The groups, with their number of {unit} and what is kept: long (20, score ≤ 19).",
        f"Everything is kept in short (5): 5 {unit} are too few for any threshold to promise "
        "this, which takes at least 9, that is 4 more.",
        "In a group that is not named here, everything is kept.",
    ):
        assert part in calibration.statement
    assert "Everything is kept" not in two_groups(guarantee=guarantee, alpha=0.2).statement


@every_guarantee
def test_a_group_that_was_not_seen_keeps_everything_with_a_p_value_of_1(guarantee):
    calibration = two_groups(guarantee=guarantee, alpha=0.2)
    for group in ("never seen", "", "Long", None):
        assert calibration.threshold(group) == math.inf
        assert calibration.keep([-1e9, 1e9, math.inf, math.nan], group).all()
        p = calibration.p_values([-1e9, 1e9, math.nan], group)
        assert p[:2].tolist() == [1.0, 1.0]
        assert math.isnan(p[2])
        with pytest.raises(ValueError, match=r"group is .* there are 'long', 'short'"):
            calibration.units(group)


def test_without_by_group_a_group_is_nothing():
    queries = [relevant(i, group="ab"[i % 2]) for i in range(20)]
    calibration = calibration_of(queries, 0.2)
    assert {calibration.threshold(group) for group in ("a", "b", "c", None)} == {16.0}
    assert calibration_of(queries, 0.2, by_group=True).threshold("a") == 16.0
    assert calibration_of(queries, 0.2, by_group=True).threshold("b") == 17.0


def test_groups_are_merged_by_name_alone():
    queries = [relevant(i, group=group) for i in range(4) for group in ("de", "at", "fr")]
    apart = calibration_of(queries, 0.2, by_group=True)
    merged = calibration_of(
        queries, 0.2, by_group=True, merge_groups={"de": "German", "at": "German"}
    )
    assert {apart.threshold(group) for group in ("de", "at", "fr")} == {3.0}
    assert merged.threshold("de") == merged.threshold("at") == 3.0
    assert merged.n_units == {"German": 8, "fr": 4}
    assert merged.at(0.3).threshold("de") == 3.0  # ⌈9 × .7⌉ = 7th of 0 0 1 1 2 2 3 3
    assert merged.at(0.4).threshold("at") == 2.0
    assert "German (de, at) (8, score ≤ 3), fr (4, score ≤ 3)" in merged.statement
    one_into_another = calibration_of(queries, 0.2, by_group=True, merge_groups={"at": "de"})
    assert one_into_another.n_units == {"de": 8, "fr": 4}


def test_the_mapping_of_groups_does_not_change_with_what_it_was_made_from():
    mapping = {"g": "h"}
    calibration = calibration_of([relevant(1, group="g")], 0.5, by_group=True, merge_groups=mapping)
    mapping["g"] = "other"
    assert calibration.merge_groups == {"g": "h"}


@pytest.mark.parametrize(
    ("queries", "options", "message"),
    [
        ([relevant(1, group="g"), relevant(2, id="a")], {"by_group": True}, "'a': group is None"),
        ([relevant(1, group="g")], {"merge_groups": {"g": "h"}}, "merge_groups is given without"),
        (
            [relevant(1, group="g"), relevant(2, group="h")],
            {"by_group": True, "merge_groups": {"g": "x", "i": "x"}},
            "merge_groups names 'i', a group of none of the judged queries; the groups are 'g', "
            "'h'",
        ),
    ],
)
@every_guarantee
def test_groups_that_do_not_fit_are_an_error_that_names_them(guarantee, queries, options, message):
    with pytest.raises(ValueError, match=message):
        calibration_of(queries, 0.5, guarantee, **options)


def test_a_group_that_is_no_name_is_a_type_error():
    with pytest.raises(TypeError, match="group is 5"):
        relevant(1, group=5)


# --- the group of a query at run time -------------------------------------------------------------


def filter_by_length(**options):
    return ConformalFilter(
        LookupScorer({f"{i}": float(i) for i in range(120)}),
        two_groups(alpha=0.2),
        group_of=lambda query: "long" if len(query) > 10 else "short",
        **options,
    )


async def test_a_filter_tells_the_group_of_a_query_from_its_text():
    snippets = ["17", "18", "105", "106"]
    conformal_filter = filter_by_length()
    for query, kept, group in (
        ("a long question", [0], "long"),
        ("short", [0, 1, 2], "short"),
    ):
        called = conformal_filter(query, snippets)
        awaited = await conformal_filter.acall(query, snippets)
        for filtered in (called, awaited):
            assert filtered.kept.tolist() == kept
            assert filtered.group == group
            assert filtered.threshold == conformal_filter.calibration.threshold(group)
            p = conformal_filter.calibration.p_values(filtered.scores, group)
            assert filtered.p_values.tolist() == p.tolist()


async def test_a_group_that_the_caller_names_is_not_asked_for():
    snippets = ["17", "18", "105", "106"]
    conformal_filter = filter_by_length()
    for group, kept in (("short", [0, 1, 2]), ("never seen", [0, 1, 2, 3])):
        assert conformal_filter("a long question", snippets, group).kept.tolist() == kept
        awaited = await conformal_filter.acall("a long question", snippets, group=group)
        assert awaited.kept.tolist() == kept
    # decide has no text to tell a group from, so that everything is kept.
    assert conformal_filter.decide([17, 106]).kept.tolist() == [0, 1]
    assert conformal_filter.decide([17, 106], "short").kept.tolist() == [0]


async def test_a_group_that_cannot_be_told_keeps_everything():
    conformal_filter = ConformalFilter(
        LookupScorer({"1": 1.0, "999": 999.0}), two_groups(alpha=0.2), group_of=lambda query: None
    )
    assert conformal_filter("q", ["1", "999"]).kept.tolist() == [0, 1]
    assert (await conformal_filter.acall("q", ["1", "999"])).kept.tolist() == [0, 1]


# --- missed snippets ------------------------------------------------------------------------------


def test_a_threshold_that_no_depth_reaches_is_said_to_be_so():
    # Every query keeps at most one of its two relevant snippets.
    queries = [relevant(i, missed=1) for i in range(100)]
    blind = calibration_of(queries, 0.1)
    assert math.isfinite(blind.threshold())
    assert "here 100 of the 200 known ones" in blind.statement
    assert "that are retrieved for a new query" in blind.statement
    for guarantee in ("query-recall", "snippet", "all"):
        calibration = calibration_of(queries, 0.1, guarantee, count_missed=True)
        assert calibration.threshold() == math.inf
        assert (
            "Everything is kept: no threshold reaches this at this depth K, because the retriever "
            "misses too many relevant snippets: it returns 100 of all 200 known ones (0.500), and "
            "keeping all "
            f"that is left would give {0.0 if guarantee == 'all' else 0.5:.3f}; raise K or alpha."
        ) in calibration.statement
        assert "Nothing is promised about relevant snippets that" not in calibration.statement
        assert "retrieved" not in calibration.statement.split(".")[0]
    assert math.isfinite(calibration_of(queries, 0.1, "any", count_missed=True).threshold())
    assert math.isfinite(calibration_of(queries, 0.6, count_missed=True).threshold())


def test_missed_snippets_that_count_are_no_relevant_scores():
    calibration = calibration_of(
        [relevant(1, missed=1), relevant(missed=2), relevant(2), relevant(3)],
        0.5,
        count_missed=True,
    )
    assert calibration.n_relevant == 3
    assert calibration.n_missed == 3
    assert calibration.n_queries == 4
    assert calibration.units().scores.tolist() == [1, math.inf, math.inf, math.inf, 2, 3]
    assert calibration.p_values([math.inf]).tolist() == [2.5 / 5]


def test_nothing_missed_is_the_same_counted_or_not():
    queries = [relevant(i, i + 0.5) for i in range(30)]
    for guarantee in GUARANTEES:
        one = calibration_of(queries, 0.1, guarantee)
        other = calibration_of(queries, 0.1, guarantee, count_missed=True)
        assert one.threshold() == other.threshold()
        assert "misses" in one.statement
        assert "misses" not in other.statement


# --- weights and propensities ---------------------------------------------------------------------


@every_guarantee
def test_a_heavy_query_must_be_reserved_for(guarantee):
    # Eleven of weight 1 can lose one; with one of weight 4 a new one may weigh 4 as well.
    light = [relevant(i) for i in range(11)]
    assert calibration_of(light, 0.1, guarantee).threshold() == 10
    heavy = [*light, relevant(5, weight=4.0)]
    assert calibration_of(heavy, 0.1, guarantee).threshold() == math.inf
    assert (
        "Everything is kept: a new query may count 4 times as much as one of weight 1, against 15 "
        "of all judged ones; judge more queries"
    ) in calibration_of(heavy, 0.1, guarantee).statement
    # .22 × (15 + 4) = 4.18 ≥ 4, and .26 × 19 = 4.94, .27 × 19 = 5.13 ≥ 4 + 1
    for alpha, threshold in ((0.22, 10), (0.26, 10), (0.27, 9)):
        assert calibration_of(heavy, alpha, guarantee).threshold() == threshold


def test_the_weights_are_said_to_be_what_the_promise_rests_on():
    queries = [relevant(i, weight=1.0 + i % 2) for i in range(100)]
    calibration = calibration_of(queries, 0.2)
    assert calibration.effective_queries == pytest.approx(150**2 / (50 + 200))
    assert "likelihood ratio" in calibration.statement
    assert "worth 90 queries of equal weight" in calibration.statement
    assert "likelihood" not in calibration_of([relevant(1), relevant(2)], 0.5).statement


def test_sampled_judgements_are_said_to_be_so():
    queries = [relevant(i, i, propensities=[1.0, 0.25], only_kept=True) for i in range(100)]
    statement = calibration_of(queries, 0.2, "snippet").statement
    assert "sampled with probabilities down to 0.25" in statement


def test_the_lowest_propensity_is_that_of_any_judgement():
    queries = [
        ScoredQuery([i, i + 20], [True, False], propensities=[1.0, 0.25]) for i in range(1, 13)
    ]
    # 12 + 1/.25 = 16 in all: .25 × 16 = 4 may lose nothing, .32 × 16 = 5.12 may lose one.
    assert calibration_of(queries, 0.25, "snippet").threshold() == 12
    assert calibration_of(queries, 0.24, "snippet").threshold() == math.inf
    assert calibration_of(queries, 0.32, "snippet").threshold() == 11
    assert calibration_of(queries, 0.25, "snippet").lowest_propensity == 0.25
    assert calibration_of([relevant(1)], 0.5, "snippet").lowest_propensity == 1.0


def test_a_rare_judgement_stands_for_many_by_hand():
    queries = [
        relevant(0.1, 0.9, propensities=[0.25, 1.0]),
        relevant(0.2, 0.8, propensities=[1.0, 1.0]),
    ]
    # .1 stands for 4 snippets, the others for themselves, and the new one for up to 4.
    calibration = calibration_of(queries, 0.5, "snippet")
    p = calibration.p_values([0.0, 0.15, 0.5, 0.85, 1.0])
    assert p.tolist() == [1.0, 7 / 11, 6 / 11, 5 / 11, 4 / 11]
    assert calibration.threshold() == 0.8
    with pytest.raises(ValueError, match="propensities are below 1.*choose 'snippet'"):
        calibration.at(0.5, guarantee="query-recall")


@pytest.mark.parametrize(
    ("queries", "guarantee", "delta", "message"),
    [
        (
            [relevant(1), relevant(2, id="a", only_kept=True)],
            None,
            None,
            r"'a': only_kept .* propensities are missing.*explore=0\.1",
        ),
        (
            [relevant(1), relevant(2, id="a", propensities=[0.5])],
            "all",
            None,
            "'a': propensities are below 1.*'all'.*choose 'snippet'",
        ),
        ([relevant(2, id="a", propensities=[0.5])], "any", None, "propensities are below 1.*'any'"),
        (
            [*[relevant(i) for i in range(99)], relevant(2, id="a", propensities=[0.5])],
            "query-recall",
            0.1,
            "'a': (its weight or propensities are not 1.*delta|propensities are below 1)",
        ),
        (
            [*[relevant(i) for i in range(99)], relevant(2, id="a", weight=2.0)],
            "all",
            0.1,
            "'a': (its weight or propensities are not 1.*delta|propensities are below 1)",
        ),
        (
            [relevant(1)] * 99,
            "snippet",
            0.1,
            "delta is 0.1 with guarantee 'snippet'.*'query-recall'",
        ),
        ([relevant(1)] * 99, "all", 0.0, r"delta is 0\.0.*strictly between 0 and 1"),
        ([relevant(1)] * 99, "any", 1.0, r"delta is 1\.0.*strictly between 0 and 1"),
        ([relevant(1)] * 99, "query-recall", math.nan, "delta is nan"),
    ],
)
def test_what_cannot_be_had_is_an_error_that_names_field_and_remedy(
    queries, guarantee, delta, message
):
    for name in GUARANTEES if guarantee is None else [guarantee]:
        with pytest.raises(ValueError, match=message):
            calibration_of(queries, 0.2, name, delta=delta)
    if guarantee is not None and delta is None:
        with pytest.raises(ValueError, match=message):
            calibration_of(queries, 0.2, "snippet").at(0.2, guarantee=guarantee)


@pytest.mark.parametrize("delta", ["0.1", True, [0.1]])
def test_a_delta_that_is_no_number_is_a_type_error(delta):
    with pytest.raises(TypeError, match="delta is"):
        calibration_of([relevant(1)] * 99, 0.2, delta=delta)


def test_calibrating_refuses_before_the_scorer_is_paid_for():
    class Unpaid:
        name = "unpaid"

        def score(self, query, snippets):
            raise AssertionError("the scorer was called")

    query = [JudgedQuery("q", ["a"], [True])]
    for options in ({"guarantee": "most"}, {"guarantee": "snippet", "delta": 0.1}, {"delta": 2.0}):
        with pytest.raises(ValueError, match="guarantee is|delta is"):
            calibrate(query, Unpaid(), alpha=0.1, **options)


def test_propensities_of_1_are_no_propensities():
    queries = [relevant(i, i + 0.5) for i in range(40)]
    ones = [replace(query, propensities=np.ones(2)) for query in queries]
    for guarantee in GUARANTEES:
        for delta in (None, 0.1):
            if guarantee != "snippet" or delta is None:
                one = calibration_of(queries, 0.2, guarantee, delta=delta)
                assert_same(one, calibration_of(ones, 0.2, guarantee, delta=delta))


def test_calibrating_takes_every_option_to_the_calibration(toy_corpus):
    texts = list(toy_corpus.values())
    scorer = LookupScorer({text: float(i) for i, text in enumerate(texts)})
    judged_queries = [
        JudgedQuery(
            f"q{i}",
            texts[i % 3 : i % 3 + 4],
            [True, True, False, False],
            id=f"{i}",
            group="ab"[i % 2],
            missed=i % 2,
            propensities=[1.0, 0.5, 1.0, 0.25],
            only_kept=True,
        )
        for i in range(40)
    ]
    calibration = calibrate(
        judged_queries,
        scorer,
        alpha=0.3,
        guarantee="snippet",
        by_group=True,
        merge_groups={"b": "c"},
        count_missed=True,
    )
    assert (calibration.guarantee, calibration.by_group) == ("snippet", True)
    assert calibration.merge_groups == {"b": "c"}
    assert calibration.count_missed is True
    assert calibration.lowest_propensity == 0.25
    assert calibration.n_units == {"a": 40, "c": 60}
    assert calibration.queries[0].propensities.tolist() == [1.0, 0.5]
    assert all(query.only_kept for query in calibration.queries)
    full = [replace_judged(query) for query in judged_queries]
    assert calibrate(full, scorer, alpha=0.3, guarantee="all", delta=0.1).delta == 0.1


def replace_judged(query):
    return JudgedQuery(query.query, query.snippets, query.relevant, id=query.id)


# --- the file and the statement, for every combination --------------------------------------------

GROUPINGS = ({}, {"by_group": True}, {"by_group": True, "merge_groups": {"g": "x", "h": "x"}})
SAMPLINGS = ("plain", "weights", "propensities")


def some_queries(rng, sampling, n=90):
    """Queries of three groups, one of them small, of which some miss some or all snippets."""
    queries = []
    for i in range(n):
        size = int(rng.integers(0 if i else 1, 6))
        options = {"weight": float(rng.uniform(0.5, 2))} if sampling == "weights" else {}
        if sampling == "propensities" and size:
            options = {"propensities": rng.choice([1.0, 0.3], size), "only_kept": True}
        queries.append(
            relevant(
                *rng.normal(size=size),
                id=f"q{i}",
                group="tiny" if i < 3 else "gh"[i % 2],
                missed=int(rng.random() < 0.05) + (size == 0),
                **options,
            )
        )
    return queries


def every_combination(guarantee):
    for sampling, grouping, count_missed, delta, alpha in itertools.product(
        SAMPLINGS, GROUPINGS, (False, True), (None, 0.1), (0.3, 0.02)
    ):
        if sampling == "propensities" and guarantee != "snippet":
            continue
        if delta is not None and (
            guarantee == "snippet" or sampling != "plain" or (alpha < 0.1 and not grouping)
        ):
            continue
        queries = some_queries(np.random.default_rng(7), sampling)
        options = {**grouping, "count_missed": count_missed, "delta": delta}
        yield calibration_of(queries, alpha, guarantee, **options)


@every_guarantee
def test_every_combination_survives_its_file_bit_by_bit(guarantee, tmp_path):
    at = [*np.linspace(-3, 3, 41).tolist(), math.inf, -math.inf, math.nan]
    seen = Counter()
    for calibration in every_combination(guarantee):
        calibration.save(tmp_path / "c.json")
        loaded = Calibration.load(tmp_path / "c.json")
        assert loaded == calibration
        assert loaded.checksum == calibration.checksum
        assert loaded.statement == calibration.statement
        assert loaded.n_units == calibration.n_units
        for group in ("g", "h", "tiny", "unseen", None):
            ours, theirs = (c.p_values(at, group).tobytes() for c in (calibration, loaded))
            assert ours == theirs
            assert loaded.threshold(group).hex() == calibration.threshold(group).hex()
            seen[math.isinf(loaded.threshold(group))] += 1
        for ours, theirs in zip(calibration.queries, loaded.queries, strict=True):
            assert ours.scores.tobytes() == theirs.scores.tobytes()
            assert ours.weight.hex() == theirs.weight.hex()
            assert (ours.missed, ours.only_kept) == (theirs.missed, theirs.only_kept)
            assert (ours.propensities is None) == (theirs.propensities is None)
            if ours.propensities is not None:
                assert ours.propensities.tobytes() == theirs.propensities.tobytes()
        loaded.save(tmp_path / "again.json")
        assert (tmp_path / "again.json").read_bytes() == (tmp_path / "c.json").read_bytes()
    assert seen[True] > 20
    assert seen[False] > 20


PROMISED = {
    "query-recall": ("an expected share of at least {} is kept", "with probability at least {}"),
    "snippet": ("a new relevant snippet ", "is kept with probability at least {}"),
    "all": ("with probability at least {}, none of the relevant snippets ", "is dropped"),
    "any": ("with probability at least {}, one or more of the relevant snippets ", "are kept"),
}


@every_guarantee
def test_every_combination_says_what_it_promises(guarantee):
    statements = set()
    for c in every_combination(guarantee):
        statement = c.statement
        statements.add(statement)
        assert not set("{}\n") & set(statement)
        assert "None" not in statement
        assert "  " not in statement
        promise = statement.split(" (guarantee ")[0].lower()
        for part in PROMISED[guarantee]:
            assert part.format({0.3: "0.7", 0.02: "0.98"}[c.alpha]) in promise
        assert ("retrieved" in promise) == (not c.count_missed)
        named = f"(guarantee {guarantee!r}, alpha = {c.alpha:g}"
        assert named + ("" if c.delta is None else ", delta = 0.1") + ")" in statement
        assert ("of all calibrations like this one, at least 0.9 keep" in promise) == (
            c.delta is not None
        )
        if c.by_group:
            within = "" if not c.count_missed else " that has a threshold below"
            assert f"in each group of queries{within}, " in promise
        elif c.count_missed and math.isinf(c.threshold()):
            assert promise.startswith("this is out of reach, and is not promised: that ")
        else:
            assert "out of reach" not in statement
        if c.by_group:
            for group, n in c.n_units.items():
                threshold = c.threshold(group if group != "x" else "g")
                name = "x (g, h)" if group == "x" else group
                kept = f"{name} ({n})" if math.isinf(threshold) else f"{name} ({n}, score ≤ "
                assert kept in statement
        elif math.isinf(c.threshold()):
            assert "Everything is kept: " in statement
        else:
            assert f"Kept is what 'lookup' scores at most {c.threshold():.6g}." in statement
        assert ("likelihood ratio" in statement) == c.weighted
        assert ("sampled" in statement) == (c.lowest_propensity < 1)
        assert ("promised about relevant snippets that" in statement) == (not c.count_missed)
        assert ("not. " in statement or "are not: " in statement) == (guarantee == "snippet")
    assert len(statements) == len(list(every_combination(guarantee)))


# --- in simulations, with snippets that come in queries -------------------------------------------

K = 60


@pytest.fixture(scope="module")
def thresholds():
    """The thresholds of many clustered calibrations, for each guarantee at alpha = .1."""
    rng = np.random.default_rng(11)
    found = {guarantee: [] for guarantee in GUARANTEES}
    for _ in range(700):
        calibration = calibration_of(clustered_queries(rng, K), 0.1)
        for guarantee in GUARANTEES:
            found[guarantee].append(calibration.at(0.1, guarantee=guarantee).threshold())
    return found


@pytest.mark.parametrize("guarantee", ["all", "any"])
def test_the_coverage_of_whole_queries_follows_the_beta_law(thresholds, guarantee):
    covered = [coverage(guarantee, threshold) for threshold in thresholds[guarantee]]
    k = math.ceil((K + 1) * 0.9)
    assert kstest(covered, beta(k, K + 1 - k).cdf).pvalue > FALSE_ALARM
    # The mean is k/(K + 1), and the test can tell it from the next rank's.
    mean = k / (K + 1)
    assert ttest_1samp(covered, mean).pvalue > FALSE_ALARM
    assert ttest_1samp(covered, mean + 1 / (K + 1)).pvalue < FALSE_ALARM
    assert ttest_1samp(covered, mean - 1 / (K + 1)).pvalue < FALSE_ALARM


def test_query_recall_keeps_its_own_promise(thresholds):
    covered = [coverage("query-recall", threshold) for threshold in thresholds["query-recall"]]
    assert ttest_1samp(covered, 0.9, alternative="less").pvalue > FALSE_ALARM
    assert ttest_1samp(covered, 0.9 + 2 / (K + 1), alternative="greater").pvalue > FALSE_ALARM


def test_no_guarantee_stands_in_for_a_stronger_one(thresholds):
    # Where a guarantee is named in the row, what it covers of the others is what it covers.
    mean = {
        (ours, theirs): np.mean([coverage(theirs, t) for t in thresholds[ours]])
        for ours in GUARANTEES
        for theirs in GUARANTEES
    }
    assert mean["query-recall", "all"] < 0.9 < mean["all", "query-recall"]
    assert mean["any", "query-recall"] < 0.9 < mean["query-recall", "any"]
    assert mean["snippet", "query-recall"] < 0.8
    assert mean["snippet", "any"] < 0.85
    assert mean["any", "any"] < mean["query-recall", "any"] < mean["all", "any"]


@pytest.mark.parametrize(
    ("guarantee", "alpha"), [("query-recall", 0.4), ("all", 0.4), ("any", 0.1)]
)
def test_the_end_to_end_promise_holds_where_the_retriever_misses_some(guarantee, alpha):
    rng = np.random.default_rng([13, OF_QUERIES.index(guarantee)])
    blind, counted = [], []
    for _ in range(250):
        queries = missing(rng, clustered_queries(rng, K), 0.1)
        calibration = calibration_of(queries, alpha, guarantee)
        end_to_end = replace(calibration, count_missed=True)
        blind.append(coverage(guarantee, calibration.threshold(), missed=0.1))
        counted.append(coverage(guarantee, end_to_end.threshold(), missed=0.1))
    target = 1 - alpha
    assert ttest_1samp(counted, target, alternative="less").pvalue > FALSE_ALARM
    assert ttest_1samp(counted, target + 2 / (K + 1), alternative="greater").pvalue > FALSE_ALARM
    assert ttest_1samp(blind, target, alternative="less").pvalue < FALSE_ALARM


@every_guarantee_of_queries
def test_each_group_keeps_its_promise_where_pooling_breaks_it(guarantee):
    # A third of the queries are harder, by a shift of 1 in every score.
    rng = np.random.default_rng([17, OF_QUERIES.index(guarantee)])
    covered = {"hard": [], "plain": [], "hard, pooled": []}
    for _ in range(250):
        plain = [replace(query, group="plain") for query in clustered_queries(rng, 40)]
        hard = [
            replace(query, scores=query.scores + 1, group="hard")
            for query in clustered_queries(rng, 20)
        ]
        calibration = calibration_of([*plain, *hard], 0.2, guarantee, by_group=True)
        pooled = replace(calibration, by_group=False)
        covered["plain"].append(coverage(guarantee, calibration.threshold("plain")))
        covered["hard"].append(coverage(guarantee, calibration.threshold("hard") - 1))
        covered["hard, pooled"].append(coverage(guarantee, pooled.threshold() - 1))
    for group in ("hard", "plain"):
        assert ttest_1samp(covered[group], 0.8, alternative="less").pvalue > FALSE_ALARM
    assert ttest_1samp(covered["hard, pooled"], 0.8, alternative="less").pvalue < FALSE_ALARM


@pytest.fixture(scope="module")
def shifted():
    """Thresholds where a tenth of the judged queries are hard ones, with weights and without.

    Of the new queries half are: the likelihood ratios are 5 and 5/9.
    """
    rng = np.random.default_rng(19)
    found = {}
    for _ in range(150):
        queries = [
            replace(query, scores=query.scores + 1, weight=5.0)
            if rng.random() < 0.1
            else replace(query, weight=5 / 9)
            for query in clustered_queries(rng, 100)
        ]
        weighted = calibration_of(queries, 0.2)
        alone = calibration_of([replace(query, weight=1.0) for query in queries], 0.2)
        for guarantee in OF_QUERIES:
            for name, calibration in (("weighted", weighted), ("alone", alone)):
                threshold = calibration.at(0.2, guarantee=guarantee).threshold()
                found.setdefault((guarantee, name), []).append(threshold)
    return found


@every_guarantee_of_queries
def test_weights_make_good_for_a_shift_that_is_known(shifted, guarantee):
    weighted, alone = (
        [
            (coverage(guarantee, t) + coverage(guarantee, t - 1)) / 2
            for t in shifted[guarantee, name]
        ]
        for name in ("weighted", "alone")
    )
    assert ttest_1samp(weighted, 0.8, alternative="less").pvalue > FALSE_ALARM
    assert ttest_1samp(weighted, 0.9, alternative="greater").pvalue > FALSE_ALARM
    assert ttest_1samp(alone, 0.8, alternative="less").pvalue < FALSE_ALARM


# --- feedback: judgements of what a filter let through --------------------------------------------


class Drawn:
    """Has no model: the scores are drawn, and go to `decide`."""

    name = "lookup"

    def score(self, query, snippets):
        raise NotImplementedError


def after_rounds(rng, *, rounds, explore=None):
    """Φ(threshold) after calibrating again and again on what the last filter let through.

    Each round has 20 queries with ten relevant snippets, all scores N(0, 1), so that Φ(threshold)
    is the probability that a new relevant snippet is kept, and ten irrelevant ones, N(8, 1).
    """
    relevance = np.repeat([True, False], 10)

    def draw():
        return np.concatenate([rng.normal(size=10), rng.normal(8, 1, size=10)])

    judged_queries = [ScoredQuery(draw(), relevance) for _ in range(20)]
    for _ in range(rounds):
        calibration = calibration_of(judged_queries, 0.1, "snippet")
        options = {} if explore is None else {"explore": explore, "rng": rng}
        conformal_filter = ConformalFilter(Drawn(), calibration, **options)
        judged_queries = []
        for _ in range(20):
            filtered = conformal_filter.decide(draw())
            kept = filtered.kept
            known = {"propensities": filtered.propensities[kept], "only_kept": True}
            judged_queries.append(
                ScoredQuery(
                    filtered.scores[kept], relevance[kept], **({} if explore is None else known)
                )
            )
    return norm.cdf(calibration_of(judged_queries, 0.1, "snippet").threshold())


def test_calibrating_on_survivors_loses_more_every_round():
    rng = np.random.default_rng(23)
    covered = [after_rounds(rng, rounds=10) for _ in range(30)]
    assert np.mean(covered) < 0.5
    assert max(covered) < 0.8


def test_with_exploration_the_promise_stays_round_after_round():
    rng = np.random.default_rng(29)
    covered = [after_rounds(rng, rounds=10, explore=0.2) for _ in range(120)]
    assert ttest_1samp(covered, 0.9, alternative="less").pvalue > FALSE_ALARM
    # It reserves 1/.2 of some 200, so that it keeps little more than it has to.
    assert ttest_1samp(covered, 0.94, alternative="greater").pvalue > FALSE_ALARM
    assert ttest_1samp(np.array(covered) - 0.03, 0.9, alternative="less").pvalue < FALSE_ALARM


def after_rounds_of_queries(rng, guarantee, *, queries, rounds, explore):
    """What a filter loses after calibrating again and again on the queries passed on completely.

    A query has two relevant snippets, both with the score that is its difficulty, N(0, 1), so that
    Φ(threshold) is the coverage of every guarantee, and one irrelevant one, N(8, 1).
    """

    def draw():
        return np.append(np.full(2, rng.normal()), rng.normal(8, 1))

    judged_queries = [ScoredQuery(draw(), [True, True, False]) for _ in range(queries)]
    for _ in range(rounds):
        calibration = calibration_of(judged_queries, 0.1, guarantee)
        conformal_filter = ConformalFilter(Drawn(), calibration, explore=explore, rng=rng)
        judged_queries = []
        while len(judged_queries) < queries:
            filtered = conformal_filter.decide(draw())
            if filtered.complete:
                judged = filtered.judged("q", ["a", "b", "c"], [True, True, False])
                scorer = LookupScorer(dict(zip("abc", filtered.scores, strict=True)))
                judged_queries += score_queries(scorer, [judged])
    return norm.cdf(calibration_of(judged_queries, 0.1, guarantee).threshold())


@pytest.mark.parametrize(
    ("guarantee", "queries", "explore"),
    [("query-recall", 100, 0.2), ("all", 20, 0.1), ("any", 50, 0.02), ("query-recall", 50, 0.02)],
)
def test_with_queries_explored_as_a_whole_the_promise_stays(guarantee, queries, explore):
    # Also where hardly a query is explored in a round, so that none has a weight.
    rng = np.random.default_rng(31)
    covered = [
        after_rounds_of_queries(rng, guarantee, queries=queries, rounds=5, explore=explore)
        for _ in range(40)
    ]
    assert ttest_1samp(covered, 0.9, alternative="less").pvalue > FALSE_ALARM


def test_survivors_of_a_filter_that_never_explored_are_refused():
    queries = [relevant(i, propensities=[1.0], only_kept=True) for i in range(40)]
    for guarantee in GUARANTEES:
        with pytest.raises(ValueError, match="only_kept.*all propensities are 1.*explore=0.1"):
            calibration_of(queries, 0.2, guarantee)
    explored = ScoredQuery([99.0], [False], propensities=[0.1], only_kept=True)
    assert math.isfinite(calibration_of([*queries, explored], 0.5, "snippet").threshold())


# --- the largest weight of a new query ------------------------------------------------------------


@every_guarantee
def test_the_largest_weight_is_what_a_new_query_is_reserved(guarantee):
    # Twelve of weight 1 and a new one of 4: .25 × 16 = 4 may lose nothing, .32 × 16 = 5.12 one.
    queries = [relevant(i) for i in range(12)]
    for alpha, threshold in ((0.24, math.inf), (0.25, 11), (0.32, 10)):
        calibration = calibration_of(queries, alpha, guarantee, max_weight=4)
        assert calibration.threshold() == threshold
        p = calibration.p_values([11.0, 12.0])
        assert p.tolist() == [5 / 16, 4 / 16]
        assert "no new query weighs more than 4." in calibration.statement
    heavier = [*queries[:-1], relevant(11, weight=4.0)]
    for alpha in (0.2, 0.3, 0.5):
        assert_same(
            calibration_of(heavier, alpha, guarantee),
            calibration_of(heavier, alpha, guarantee, max_weight=4.0),
        )


@every_guarantee_of_queries
@settings(max_examples=150)
@given(queries=judged(missed=True, weights=some_weights), alpha=alphas)
def test_leaving_each_query_out_where_the_heaviest_is_reserved_loses_at_most_alpha_of_the_weight(
    guarantee, queries, alpha
):
    heaviest = max(query.weight for query in queries)
    options = {"count_missed": True, "max_weight": heaviest}
    lost = size = Fraction(0)
    for query, share in left_out(queries, alpha, guarantee, **options):
        lost += Fraction(query.weight) * (1 - share)
        size += Fraction(query.weight)
    assert lost <= alpha * size


def test_a_largest_weight_that_cannot_be_is_an_error():
    queries = [relevant(i, id=f"q{i}", weight=1.0 + i % 2) for i in range(40)]
    for wrong in (1.5, 0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="max_weight is .*of weight 2.*largest weight"):
            calibration_of(queries, 0.2, max_weight=wrong)
    even = [relevant(i) for i in range(40)]
    with pytest.raises(TypeError, match="max_weight is '2'; give a number"):
        calibration_of(queries, 0.2, max_weight="2")
    with pytest.raises(ValueError, match="max_weight is 3.*delta counts every query alike"):
        calibration_of(even, 0.2, max_weight=3.0, delta=0.1)
    assert calibration_of(even, 0.2, max_weight=1.0, delta=0.1).weighted is False
    assert calibration_of(even, 0.2, max_weight=2.0).weighted is True


def test_the_largest_weight_survives_the_file(tmp_path):
    calibration = calibration_of([relevant(i) for i in range(40)], 0.2, max_weight=2.5)
    calibration.save(tmp_path / "c.json")
    loaded = Calibration.load(tmp_path / "c.json")
    assert (loaded, loaded.max_weight) == (calibration, 2.5)
    assert loaded.at(0.3).max_weight == 2.5


def test_survivors_that_say_so_are_refused():
    conformal_filter = ConformalFilter(Drawn(), two_groups(alpha=0.2), explore=0.0)
    filtered = conformal_filter.decide([1.0, 17.0, 18.0], "long")
    survivors = ScoredQuery(filtered.scores[filtered.kept], [True, False], id="log", only_kept=True)
    for guarantee in GUARANTEES:
        with pytest.raises(ValueError, match=r"'log': only_kept .*0\.90 to 0\.32"):
            calibration_of([survivors, relevant(1.0)], 0.1, guarantee)
    # Even where nothing in them is relevant, since that is no reason to trust the rest.
    with pytest.raises(ValueError, match="only_kept"):
        calibration_of([replace(survivors, missed=1), relevant(1.0)], 0.1)


# --- exploring ------------------------------------------------------------------------------------


def explorer(guarantee="query-recall", seed=0, explore=0.25, **options):
    queries = [relevant(i / 10) for i in range(1, 6)]
    calibration = calibration_of(queries, 0.4, guarantee)  # keeps at most .4
    rng = np.random.default_rng(seed)
    return ConformalFilter(Drawn(), calibration, explore=explore, rng=rng, **options)


@every_guarantee_of_queries
def test_exploring_lets_all_dropped_snippets_of_a_query_through_or_none(guarantee):
    conformal_filter = explorer(guarantee)
    runs = [conformal_filter.decide([0.1, 0.4, 0.5, 0.9, math.nan]) for _ in range(4000)]
    explored = sum(filtered.complete for filtered in runs)
    assert binomtest(explored, 4000, 0.25).pvalue > FALSE_ALARM
    for filtered in runs:
        kept = [0, 1, 2, 3, 4] if filtered.complete else [0, 1, 4]
        assert filtered.kept.tolist() == kept
        assert filtered.propensities.tolist() == [1, 1, 0.25, 0.25, 1]


def test_a_complete_query_is_judged_as_what_it_stands_for():
    conformal_filter = explorer("all", explore=0.5)
    while not (explored := conformal_filter.decide([0.1, 0.5], "g")).complete:
        with pytest.raises(ValueError, match="not complete.*leave it out"):
            explored.judged("q", ["a", "b"], [True, False])
    judged = explored.judged("q", ["a", "b"], [False, True], id="1")
    assert judged == JudgedQuery(
        "q", ["a", "b"], [False, True], id="1", group="g", weight=2.0, explore=0.5
    )
    untouched = conformal_filter.decide([0.1, 0.4, math.nan])  # nothing is dropped
    judged = untouched.judged("q", ["a", "b", "c"], [True, True, False])
    assert (judged.weight, judged.explore) == (1.0, 0.5)


def test_snippets_explored_one_by_one_are_judged_with_their_propensities():
    filtered = explorer("snippet", explore=0.5, seed=3).decide([0.1, 0.5, 0.6, 0.7])
    assert 1 < len(filtered.kept) < 4
    judged = filtered.judged("q", ["a", "b", "c", "d"], [True, False, True, False])
    assert [snippet.text for snippet in judged.snippets] == ["abcd"[i] for i in filtered.kept]
    assert judged.relevant == tuple([True, False, True, False][i] for i in filtered.kept)
    assert judged.propensities == tuple([1.0, 0.5, 0.5, 0.5][i] for i in filtered.kept)
    assert (judged.only_kept, judged.explore, judged.weight) == (True, 0.5, 1.0)


def test_what_cannot_be_judged_after_a_filter_is_an_error():
    unexplored = ConformalFilter(Drawn(), explorer().calibration).decide([0.1, 0.2])
    with pytest.raises(ValueError, match="explore is 0.*filter with explore=0.1"):
        unexplored.judged("q", ["a", "b"], [True, False])
    filtered = explorer().decide([0.1, 0.2])
    with pytest.raises(ValueError, match="the filter saw 2 snippets, but there are 1 snip"):
        filtered.judged("q", ["a"], [True, False])


@every_guarantee_of_queries
def test_a_log_in_which_nothing_was_explored_reserves_for_what_might_have_been(guarantee):
    # All of weight 1, but one in ten of those that lost something stands for ten.
    log = [relevant(i, explore=0.1) for i in range(60)]
    calibration = calibration_of(log, 0.2, guarantee)
    assert (calibration.max_weight, calibration.weighted) == (10.0, True)
    assert_same(
        calibration, calibration_of([relevant(i) for i in range(60)], 0.2, guarantee, max_weight=10)
    )
    with pytest.raises(ValueError, match="explored with probability 0.1"):
        calibration_of(log, 0.2, guarantee, max_weight=9.0)
    with pytest.raises(ValueError, match="max_weight is 10.*a filter explored.*delta"):
        calibration_of(log, 0.2, guarantee, delta=0.1)


def test_a_log_of_snippets_reserves_for_the_rarest_judgement_that_might_have_been():
    log = [relevant(i, propensities=[1.0], only_kept=True, explore=0.1) for i in range(60)]
    log.append(ScoredQuery([], [], propensities=[], only_kept=True, explore=0.1))  # nothing passed
    calibration = calibration_of(log, 0.2, "snippet")
    assert (calibration.lowest_propensity, calibration.max_weight) == (0.1, 1.0)
    assert "down to 0.1" in calibration.statement


@pytest.mark.parametrize("explore", [0, 1, -0.1, 2.0, True, "0.1", math.nan])
def test_a_probability_of_exploring_that_is_none_is_named(explore):
    with pytest.raises(ValueError, match="explore is .*; give the probability between 0 and 1"):
        relevant(1, explore=explore)


def test_exploring_lets_dropped_snippets_through_with_its_probability():
    scores = np.tile([0.1, 0.4, 0.5, 0.9, math.nan], 4000)
    filtered = explorer("snippet").decide(scores)
    passes = np.tile([True, True, False, False, True], 4000)
    assert filtered.keeps[passes].all()
    let_through = int(filtered.keeps[~passes].sum())
    assert binomtest(let_through, 8000, 0.25).pvalue > FALSE_ALARM
    assert filtered.propensities.tolist() == np.where(passes, 1.0, 0.25).tolist()
    assert filtered.explore == 0.25
    # Which ones does not depend on the score, nor on its neighbours.
    near, far = filtered.keeps[2::5], filtered.keeps[3::5]
    assert binomtest(int(near.sum()), 4000, 0.25).pvalue > FALSE_ALARM
    assert binomtest(int((near & far).sum()), 4000, 0.25**2).pvalue > FALSE_ALARM


def test_exploring_changes_no_measure_of_the_threshold():
    filtered = explorer("snippet", explore=0.999).decide([0.5, 0.9, 0.9])
    assert filtered.kept.tolist() == [0, 1, 2]
    assert (filtered.m1, filtered.m2) == (0.0, 0.0)
    assert filtered.threshold == 0.4
    assert filtered.dropped.tolist() == []


def test_the_same_seed_explores_the_same_snippets():
    scores = np.full(100, 0.9)
    runs = [
        [explorer("snippet", seed).decide(scores).kept.tolist() for _ in range(2)]
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[2][0]
    conformal_filter = explorer("snippet", 1)
    assert conformal_filter.decide(scores).kept.tolist() == runs[0][0]
    assert conformal_filter.decide(scores).kept.tolist() != runs[0][0]


def test_without_exploring_a_propensity_is_1_or_0():
    calibration = calibration_of([relevant(i / 10) for i in range(1, 6)], 0.4)
    filtered = ConformalFilter(Drawn(), calibration).decide([0.1, 0.9, math.nan])
    assert filtered.propensities.tolist() == [1.0, 0.0, 1.0]
    assert filtered.explore == 0.0


async def test_exploring_asynchronously_is_exploring():
    class Fixed:
        name = "lookup"

        def score(self, query, snippets):
            return [0.9] * len(snippets)

    calibration = calibration_of([relevant(i / 10) for i in range(1, 6)], 0.4, "snippet")
    found = []
    for _ in range(2):
        rng = np.random.default_rng(3)
        conformal_filter = ConformalFilter(Fixed(), calibration, explore=0.5, rng=rng)
        found.append(conformal_filter("q", ["a"] * 50).kept.tolist())
        found.append((await conformal_filter.acall("q", ["a"] * 50)).kept.tolist())
    assert found[:2] == found[2:]
    assert 0 < len(found[0]) < 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"explore": -0.1}, r"explore is -0\.1"),
        ({"explore": 1.0}, r"explore is 1\.0"),
        ({"explore": math.nan}, "explore is nan"),
        ({"explore": 0.1}, "explore and rng go together"),
        ({"rng": np.random.default_rng(0)}, "explore and rng go together"),
        (
            {"explore": 0.1, "rng": np.random.default_rng(0), "on_empty": "keep_best"},
            "on_empty is 'keep_best' with explore",
        ),
        (
            {"explore": 0.1, "rng": np.random.default_rng(0), "on_empty": "raise"},
            "on_empty is 'raise' with explore",
        ),
    ],
)
def test_options_of_exploring_that_do_not_go_together_are_errors(options, message):
    calibration = calibration_of([relevant(i / 10) for i in range(1, 6)], 0.4)
    with pytest.raises(ValueError, match=message):
        ConformalFilter(Drawn(), calibration, **options)


# --- found by trying to break it ------------------------------------------------------------------


def test_sums_beyond_what_a_float_holds_are_no_matter():
    sizes = [relevant(*range(i)) for i in range(1, 801)]  # the common denominator has 346 digits
    assert math.isfinite(calibration_of(sizes, 0.1).threshold())
    rng = np.random.default_rng(3)
    sampled_ones = [
        relevant(*rng.normal(size=2), propensities=rng.uniform(0.1, 1, 2)) for _ in range(60)
    ]
    assert math.isfinite(calibration_of(sampled_ones, 0.3, "snippet").threshold())


def test_a_group_of_which_nothing_was_retrieved_keeps_everything_with_delta_too():
    queries = [relevant(float(i), group="a", id=str(i)) for i in range(40)]
    queries.append(ScoredQuery([], [], group="b", missed=2, id="x"))
    calibration = calibration_of(queries, 0.1, by_group=True, delta=0.1)
    assert calibration.threshold("b") == math.inf
    assert "Everything is kept in b (0): 0 judged queries are too few" in calibration.statement


def test_each_group_that_keeps_everything_has_its_own_reason():
    big = [relevant(float(i), group="big", missed=1) for i in range(100)]
    small = [relevant(float(i), group="small") for i in range(3)]
    statement = calibration_of(big + small, 0.1, by_group=True, count_missed=True).statement
    assert "Everything is kept in big (100): no threshold reaches this" in statement
    assert "it returns 100 of all 200 known ones (0.500)" in statement
    assert "Everything is kept in small (3): 3 judged queries are too few" in statement


@pytest.mark.parametrize("sampled", [{"only_kept": True}, {"propensities": [0.5, 1.0]}])
def test_a_query_of_which_only_a_sample_was_judged_cannot_be_retrieved_for_again(sampled):
    judged = JudgedQuery("q", ["a", "b"], [True, False], **sampled)
    with pytest.raises(ValueError, match="'q': only a sample.*judge all its snippets"):
        judged.retrieved_as(["b", "a", "c"])
    full = JudgedQuery("q", ["a", "b"], [True, False], propensities=[1.0, 1.0], weight=2.0)
    assert full.retrieved_as(["b", "c"]).weight == 2.0
