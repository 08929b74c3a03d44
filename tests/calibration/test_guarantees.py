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
from scipy.stats import beta, kstest, norm, ttest_1samp

from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    JudgedQuery,
    ScoredQuery,
    calibrate,
)
from conformal_retrievers.calibration.guarantees import Guarantee

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


@st.composite
def judged(draw, *, ties=True, missed=False, groups=False, most=9):
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
        )
        for size, end in zip(sizes, ends, strict=True)
    ]


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


@settings(max_examples=200)
# --- thresholds, p-values and other alphas --------------------------------------------------------


@st.composite
def combinations(draw, guarantee):
    """A data set with the options that it is calibrated with, without delta."""
    by_group = draw(st.booleans())
    count_missed = draw(st.booleans())
    queries = draw(judged(missed=True, groups=by_group))
    options = {"by_group": by_group, "count_missed": count_missed}
    if by_group and draw(st.booleans()):
        groups = sorted({query.group for query in queries})
        options["merge_groups"] = dict.fromkeys(groups[:2], "merged")
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
    first = calibration_of(queries, alpha, guarantee, **options)
    for name in GUARANTEES:
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
    queries=judged(groups=True, missed=True),
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
@given(queries=judged(groups=True, missed=True), alpha=alphas)
def test_counting_missed_snippets_lowers_no_threshold(guarantee, queries, alpha):
    calibration = calibration_of(queries, alpha, guarantee)
    assert calibration.threshold() <= replace(calibration, count_missed=True).threshold()


@every_guarantee
@settings(max_examples=60)
@given(queries=judged(), alpha=alphas)
def test_where_every_query_has_one_snippet_all_guarantees_are_the_same(guarantee, queries, alpha):
    single = [relevant(query.scores[0]) for query in queries]
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
        shuffled.append(replace(query, scores=query.scores[order]))
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
@given(queries=judged(groups=True, missed=True), alpha=alphas)
def test_one_group_is_no_group_and_groups_are_calibrated_one_by_one(guarantee, queries, alpha):
    pooled = calibration_of(queries, alpha, guarantee)
    groups = {query.group for query in queries}
    merged = calibration_of(
        queries, alpha, guarantee, by_group=True, merge_groups=dict.fromkeys(groups, "one")
    )
    by_group = calibration_of(queries, alpha, guarantee, by_group=True)
    for group in groups:
        assert merged.threshold(group) == pooled.threshold()
        assert merged.p_values(AT, group).tolist() == pooled.p_values(AT).tolist()
        members = [query for query in queries if query.group == group]
        if any(query.relevant.any() for query in members):
            alone = calibration_of(members, alpha, guarantee)
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


# --- what cannot be had ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queries", "guarantee", "delta", "message"),
    [
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
    with pytest.raises(ValueError, match=message):
        calibration_of(queries, 0.2, guarantee, delta=delta)


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
    assert calibration.n_units == {"a": 40, "c": 60}
    full = [replace_judged(query) for query in judged_queries]
    assert calibrate(full, scorer, alpha=0.3, guarantee="all", delta=0.1).delta == 0.1


def replace_judged(query):
    return JudgedQuery(query.query, query.snippets, query.relevant, id=query.id)


# --- the file and the statement, for every combination --------------------------------------------

GROUPINGS = ({}, {"by_group": True}, {"by_group": True, "merge_groups": {"g": "x", "h": "x"}})


def some_queries(rng, n=90):
    """Queries of three groups, one of them small, of which some miss some or all snippets."""
    queries = []
    for i in range(n):
        size = int(rng.integers(0 if i else 1, 6))
        queries.append(
            relevant(
                *rng.normal(size=size),
                id=f"q{i}",
                group="tiny" if i < 3 else "gh"[i % 2],
                missed=int(rng.random() < 0.05) + (size == 0),
            )
        )
    return queries


def every_combination(guarantee):
    for grouping, count_missed, delta, alpha in itertools.product(
        GROUPINGS, (False, True), (None, 0.1), (0.3, 0.02)
    ):
        if delta is not None and (guarantee == "snippet" or (alpha < 0.1 and not grouping)):
            continue
        queries = some_queries(np.random.default_rng(7))
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
            assert ours.missed == theirs.missed
        loaded.save(tmp_path / "again.json")
        assert (tmp_path / "again.json").read_bytes() == (tmp_path / "c.json").read_bytes()
    assert seen[True] > 10
    assert seen[False] > 10


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
            found[guarantee].append(calibration.at(0.1).guaranteeing(guarantee).threshold())
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


# --- feedback: judgements of what a filter let through --------------------------------------------


class Drawn:
    """Has no model: the scores are drawn, and go to `decide`."""

    name = "lookup"

    def score(self, query, snippets):
        raise NotImplementedError


def after_rounds(rng, *, rounds):
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
        conformal_filter = ConformalFilter(Drawn(), calibration)
        judged_queries = []
        for _ in range(20):
            filtered = conformal_filter.decide(draw())
            kept = filtered.kept
            judged_queries.append(ScoredQuery(filtered.scores[kept], relevance[kept]))
    return norm.cdf(calibration_of(judged_queries, 0.1, "snippet").threshold())


def test_calibrating_on_survivors_loses_more_every_round():
    rng = np.random.default_rng(23)
    covered = [after_rounds(rng, rounds=10) for _ in range(30)]
    assert np.mean(covered) < 0.5
    assert max(covered) < 0.8


# --- found by trying to break it ------------------------------------------------------------------


def test_sums_beyond_what_a_float_holds_are_no_matter():
    sizes = [relevant(*range(i)) for i in range(1, 801)]  # the common denominator has 346 digits
    assert math.isfinite(calibration_of(sizes, 0.1).threshold())


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
