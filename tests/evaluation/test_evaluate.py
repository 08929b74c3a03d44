"""What is measured on judged queries: by hand, at the ends, and against simulations."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from lookup import LookupScorer
from scipy.stats import betabinom, binom, binomtest

from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    JudgedQuery,
    ScoredQuery,
    diagnose,
    evaluate,
    iter_jsonl,
    read_jsonl,
    score_queries,
    write_jsonl,
)
from conformal_retrievers.evaluation.evaluate import measure
from conformal_retrievers.evaluation.measures import GUARANTEES
from conformal_retrievers.theory.intervals import wilson_interval

QUERIES = [
    ScoredQuery([0.1, 0.2, 0.3, 0.4], [True, False, True, False], missed=2),  # keeps .1 .2
    ScoredQuery([0.2, 0.9], [True, False]),  # keeps .2
    ScoredQuery([0.7, 0.8, 0.9, 1.0, 1.1], [False, True, True, True, False]),  # keeps nothing
    ScoredQuery([0.1], [False], missed=1),  # keeps .1, has nothing relevant
]
KEPT = [query.scores <= 0.25 for query in QUERIES]


def calibrated(scores=(0.25,), alpha=0.5, **options):
    queries = [ScoredQuery([score], [True]) for score in scores]
    return Calibration.from_scores(queries, alpha=alpha, scorer="lookup", **options)


def test_the_shares_of_four_queries_by_hand():
    e = measure(QUERIES, KEPT)
    assert (e.n_queries, e.n_relevant, e.n_missed, e.n_snippets) == (4, 6, 3, 12)
    assert {name: share.estimate for name, share in e.shares.items()} == pytest.approx(
        {
            "query-recall": (1 / 2 + 1 + 0) / 3,
            "snippet": 2 / 6,
            "all": 1 / 3,
            "any": 2 / 3,
            "end-to-end query-recall": (1 / 4 + 1 + 0 + 0) / 4,
            "end-to-end snippet": 2 / 9,
            "end-to-end all": 1 / 4,
            "end-to-end any": 2 / 4,
            "recall@K": (2 / 4 + 1 + 1 + 0) / 4,
            "removal": 8 / 12,
            "precision": 2 / 4,
            "m1": 3 / 4,
            "m2": (2 / 4 + 1 / 2 + 0 + 1) / 4,
            "unscorable": 0,
        },
        abs=1e-15,
    )
    assert e.coverage_std == pytest.approx(np.std([1 / 2, 1, 0]), abs=1e-15)
    assert e.tokens_saved is None


def test_every_interval_holds_its_estimate_and_stays_between_0_and_1():
    for kept in (KEPT, [q.scores > 0 for q in QUERIES], [q.scores < 0 for q in QUERIES]):
        for share in measure(QUERIES, kept).shares.values():
            assert share.n == 0 or 0 <= share.low <= share.estimate <= share.high <= 1
            assert share.low < share.high


def test_a_calibration_is_measured_at_its_threshold():
    calibration = calibrated()
    assert calibration.threshold() == 0.25
    assert evaluate(calibration, QUERIES).shares == measure(QUERIES, KEPT).shares


def test_a_snippet_that_cannot_be_scored_counts_as_kept_and_as_unscorable():
    e = evaluate(calibrated(), [ScoredQuery([math.nan, 0.9], [True, True])])
    assert e.coverage["query-recall"].estimate == 0.5
    assert e.removal.estimate == 0.5
    assert e.unscorable.estimate == 0.5


def test_without_anything_relevant_coverage_is_not_a_number_and_its_interval_everything():
    e = measure([ScoredQuery([0.1], [False])], [[True]])
    for share in e.coverage.values():
        assert math.isnan(share.estimate)
        assert (share.low, share.high, share.n) == (0, 1, 0)
    assert e.m1.estimate == 1


def test_a_query_of_which_nothing_was_retrieved_counts_in_m1_and_recall():
    nothing = ScoredQuery([], [], missed=1)
    e = measure([nothing, QUERIES[1]], [[], [True, True]])
    assert e.m1.estimate == 0.5
    assert e.recall_at_k.estimate == 0.5
    assert e.m2.estimate == 1


def test_what_queries_say_yes_or_no_to_has_wilsons_interval():
    queries = [ScoredQuery([0.0], [True], missed=i // 399) for i in range(400)]
    e = measure(queries, [[i < 300] for i in range(400)])
    for share in (e.m1, e.coverage["all"], e.coverage["any"], e.end_to_end["any"]):
        assert share.interval == wilson_interval(0.75, 400)
        assert (share.n, share.effective_n, share.design_effect) == (400, 400, 1)


def test_snippets_that_share_their_querys_fate_are_worth_one_each_query():
    queries = [ScoredQuery(np.zeros(5), np.ones(5, bool))] * 100
    e = measure(queries, [np.full(5, i < 80) for i in range(100)])
    assert e.coverage["snippet"].n == 500
    assert e.coverage["snippet"].effective_n == pytest.approx(99)
    assert e.coverage["snippet"].design_effect == pytest.approx(500 / 99)


def test_groups_are_measured_apart():
    queries = [
        ScoredQuery([0.1], [True], group="a"),
        ScoredQuery([0.9], [True], group="b"),
        ScoredQuery([0.1], [True]),
    ]
    e = evaluate(calibrated(), queries)
    assert list(e.by_group) == ["a", "b", None]
    assert [part.coverage["all"].estimate for part in e.by_group.values()] == [1, 0, 1]
    assert [part.n_queries for part in e.by_group.values()] == [1, 1, 1]
    merged = Calibration.from_scores(
        [ScoredQuery([0.25], [True], group=group) for group in "ab"],
        alpha=0.5,
        scorer="lookup",
        by_group=True,
        merge_groups={"a": "both", "b": "both"},
    )
    assert list(evaluate(merged, queries).by_group) == ["both", None]
    assert evaluate(calibrated(), QUERIES).by_group == {}


# --- filters --------------------------------------------------------------------------------------

TEXTS = {"one two": 0.1, "three": 0.2, "four five six": 0.9, "seven": math.nan}


def lookup_filter(**options):
    return ConformalFilter(LookupScorer(TEXTS), calibrated(), **options)


def test_a_filter_scores_judged_queries_and_saves_tokens():
    judged = [JudgedQuery("q", list(TEXTS), [True, False, True, False])]
    e = evaluate(lookup_filter(), judged)
    assert e.tokens_saved.estimate == 13 / 30  # of the characters
    assert e.coverage["snippet"].estimate == 0.5
    assert e.removal.estimate == 1 / 4

    def words(text):
        return len(text.split())

    assert evaluate(lookup_filter(), judged, count_tokens=words).tokens_saved.estimate == 3 / 7
    scored = score_queries(LookupScorer(TEXTS), judged)
    own = {name: share for name, share in e.shares.items() if name != "tokens saved"}
    assert repr(evaluate(calibrated(), scored).shares) == repr(own)  # nan equals nothing


def test_what_is_added_to_an_empty_result_is_kept_but_not_in_m1_and_m2():
    judged = [JudgedQuery("q", ["four five six"], [True])]
    e = evaluate(lookup_filter(on_empty="keep_best"), judged)
    assert e.coverage["all"].estimate == 1
    assert (e.m1.estimate, e.m2.estimate) == (0, 0)
    assert evaluate(lookup_filter(), judged).coverage["all"].estimate == 0


def test_a_filter_decides_by_the_group_of_the_query():
    queries = [
        ScoredQuery([score], [True], group=group) for score, group in ((0.1, "a"), (0.9, "b"))
    ]
    calibration = Calibration.from_scores(queries, alpha=0.5, by_group=True, scorer="lookup")
    conformal = ConformalFilter(LookupScorer(TEXTS), calibration)
    judged = [JudgedQuery("q", ["four five six"], [True], group=group) for group in ("a", "b")]
    scored = [ScoredQuery([0.9], [True], group=group) for group in ("a", "b")]
    for e in (evaluate(conformal, judged), evaluate(calibration, scored)):
        assert [part.coverage["all"].estimate for part in e.by_group.values()] == [0, 1]


def test_any_iterable_is_read_once_and_a_file_streams(tmp_path):
    judged = [JudgedQuery(f"q{i}", list(TEXTS), [True, False, True, False]) for i in range(3)]
    write_jsonl(judged, tmp_path / "judged.jsonl")
    streamed = iter_jsonl(tmp_path / "judged.jsonl")
    assert iter(streamed) is streamed
    once, at_once = evaluate(lookup_filter(), streamed), evaluate(lookup_filter(), judged)
    assert repr(once) == repr(at_once)  # recall@K is nan, which equals nothing
    assert list(iter_jsonl(tmp_path / "judged.jsonl")) == read_jsonl(tmp_path / "judged.jsonl")


def test_a_stream_yields_what_comes_before_a_bad_line(tmp_path):
    path = tmp_path / "judged.jsonl"
    path.write_text('{"query": "a", "snippets": []}\n{"query": "b"}\n')
    stream = iter_jsonl(path)
    assert next(stream).query == "a"
    with pytest.raises(ValueError, match=r"judged\.jsonl, line 2: snippets is missing; give it"):
        next(stream)


# --- what is refused ------------------------------------------------------------------------------


def test_masks_that_do_not_fit_are_refused():
    for queries, kept in ((QUERIES, KEPT[:3]), (QUERIES[:1], [[True]])):
        with pytest.raises(ValueError, match="kept does not fit scored"):
            measure(queries, kept)
    with pytest.raises(ValueError, match="there is no judged query"):
        measure([], [])


def test_what_is_not_scored_or_not_judged_is_refused():
    with pytest.raises(TypeError, match="a calibration has no scorer"):
        evaluate(calibrated(), [JudgedQuery("q", [], [])])
    with pytest.raises(TypeError, match="give JudgedQuery objects"):
        evaluate(lookup_filter(), QUERIES)
    with pytest.raises(TypeError, match="give a ConformalFilter"):
        evaluate(0.25, QUERIES)


def test_a_query_of_the_calibration_is_refused():
    mine = ScoredQuery([0.25], [True], id="q1")
    calibration = Calibration.from_scores([mine], alpha=0.5, scorer="lookup")
    with pytest.raises(ValueError, match="query 'q1' has the id of one that the calibration"):
        evaluate(calibration, [mine])


def test_a_query_that_occurs_twice_is_refused():
    with pytest.raises(ValueError, match="query 'q' occurs twice"):
        evaluate(calibrated(), [ScoredQuery([0.1], [True], id="q")] * 2)


def test_a_query_that_the_scorer_was_fitted_on_is_refused():
    from conformal_retrievers.scoring.scorer import query_digest

    class Fitted(LookupScorer):
        fitted_on = frozenset({query_digest("q")})

    with pytest.raises(ValueError, match="was fitted on query 'q'"):
        evaluate(ConformalFilter(Fitted(TEXTS), calibrated()), [JudgedQuery("q", [], [])])


# --- the verdict ----------------------------------------------------------------------------------


def half_covered(n, kept, **options):
    """Queries with one relevant snippet, of which `kept` score below a threshold of 0.5."""
    return [ScoredQuery([0.1 if i < kept else 0.9], [True], **options) for i in range(n)]


def test_the_p_value_is_that_of_the_beta_binomial():
    calibration = calibrated(np.linspace(0, 0.5, 99), alpha=0.1, guarantee="all")
    verdict = evaluate(calibration, half_covered(50, 39)).verdict
    assert verdict.p_value == pytest.approx(betabinom(50, 90, 10).cdf(39), rel=1e-9)
    assert (verdict.target, verdict.coverage.estimate, verdict.end_to_end) == (0.9, 0.78, False)
    assert verdict.fails
    assert "The promise fails: all coverage is 78.0%" in str(verdict)
    fine = evaluate(calibration, half_covered(50, 45)).verdict
    assert not fine.fails
    assert "Nothing speaks against the promise" in str(fine)


def test_a_promise_fails_below_5_of_100():
    calibration = calibrated(np.linspace(0, 0.5, 99), alpha=0.1, guarantee="all")
    verdict = evaluate(calibration, half_covered(50, 40)).verdict
    assert 0.05 < verdict.p_value < 0.06
    assert not verdict.fails


def test_snippets_that_come_in_queries_count_by_their_effective_number():
    """Three snippets of one score each are worth one, in the calibration and beyond."""
    threes = [ScoredQuery([s] * 3, [True] * 3) for s in np.linspace(0, 0.5, 99)]
    calibration = Calibration.from_scores(threes, alpha=0.1, guarantee="snippet", scorer="lookup")
    new = [ScoredQuery([0.1 if i < 39 else 0.9] * 3, [True] * 3) for i in range(50)]
    verdict = evaluate(calibration, new).verdict
    n, m = round(calibration.effective_n), round(verdict.coverage.effective_n)
    assert (n, m, verdict.coverage.n) == (98, 49, 150)
    k = math.ceil((n + 1) * 0.9)
    kept = math.ceil(0.78 * m)
    assert verdict.p_value == pytest.approx(betabinom(m, k, n + 1 - k).cdf(kept), rel=1e-9)


def test_a_share_of_a_query_counts_as_one_yes_or_no():
    """Which is cautious: 50 queries with shares of 1/2 and 1 tell more than 50 yes or no would."""
    calibration = calibrated(np.linspace(0, 0.5, 99), alpha=0.1)
    new = [ScoredQuery([0.1, 0.9 if i < 30 else 0.1], [True, True]) for i in range(50)]
    verdict = evaluate(calibration, new).verdict
    assert verdict.coverage.effective_n > 100
    assert verdict.p_value == pytest.approx(betabinom(50, 90, 10).cdf(35), rel=1e-9)


def test_with_delta_the_p_value_is_binomial():
    calibration = calibrated(np.linspace(0, 0.5, 99), alpha=0.1, guarantee="all", delta=0.1)
    verdict = evaluate(calibration, half_covered(50, 40)).verdict
    assert verdict.p_value == pytest.approx(binom(50, 0.9).cdf(40), rel=1e-9)


def test_missed_snippets_count_in_the_verdict_where_they_are_promised():
    calibration = calibrated(np.linspace(0, 0.5, 99), alpha=0.1, count_missed=True)
    verdict = evaluate(calibration, half_covered(50, 50, missed=1)).verdict
    assert verdict.end_to_end
    assert verdict.coverage.estimate == 0.5
    assert verdict.fails


def test_a_calibration_that_keeps_everything_promises_nothing_that_could_fail():
    calibration = calibrated([0.1], alpha=0.1)
    assert math.isinf(calibration.threshold())
    assert evaluate(calibration, half_covered(10, 0)).verdict is None
    assert measure(QUERIES, KEPT).verdict is None


def test_a_calibration_that_keeps_nothing_that_has_a_score_is_tested_like_any():
    calibration = calibrated([-math.inf] * 19 + [0.1], alpha=0.1)
    assert calibration.threshold() == -math.inf
    e = evaluate(calibration, half_covered(50, 50))
    assert e.coverage["query-recall"].estimate == 0
    assert e.verdict.fails
    assert "The promise fails: query-recall coverage is 0.0%" in str(e.verdict)
    counted = calibrated([-math.inf] * 19 + [0.1], alpha=0.1, count_missed=True)
    assert not counted.out_of_reach  # there is a threshold, and it is tested
    assert evaluate(counted, half_covered(50, 50)).verdict.fails


def test_a_group_that_keeps_nothing_that_has_a_score_counts_among_those_tested():
    queries = [
        ScoredQuery([score], [True], group=group)
        for group, scores in (("a", np.linspace(0, 0.5, 99)), ("none", [-math.inf] * 99))
        for score in scores
    ]
    calibration = Calibration.from_scores(queries, alpha=0.1, by_group=True, scorer="lookup")
    new = half_covered(50, 46, group="a") + half_covered(50, 50, group="none")
    e = evaluate(calibration, new)
    assert (e.verdict.group, e.verdict.tests, e.verdict.fails) == ("none", 2, True)
    d = diagnose(calibration, new)
    assert {row.group: row.p_value for row in d.groups} == {
        name: part.verdict.p_value for name, part in e.by_group.items()
    }
    assert d.judgements.p_value == e.verdict.p_value


def test_each_group_says_whether_its_own_queries_are_told_apart():
    own = [ScoredQuery([i / 9], [True], id=f"c{i}") for i in range(9)]
    new = [ScoredQuery([0.1], [True], id=id, group=g) for id, g in (("1", "a"), (None, "b"))]
    calibration = Calibration.from_scores(own, alpha=0.5, scorer="lookup")
    e = evaluate(calibration, new)
    assert (e.told_apart, {g: p.told_apart for g, p in e.by_group.items()}) == (
        False,
        {"a": True, "b": False},
    )
    parts = evaluate(calibrated(np.linspace(0, 1, 9)), new).by_group.values()  # made without ids
    assert not any(part.told_apart for part in parts)


def test_by_group_the_worst_group_counts_with_the_number_of_groups():
    queries = [
        ScoredQuery([score], [True], group=group)
        for group in ("a", "b")
        for score in np.linspace(0, 0.5, 99)
    ]
    calibration = Calibration.from_scores(
        queries, alpha=0.1, guarantee="all", by_group=True, scorer="lookup"
    )
    e = evaluate(calibration, half_covered(50, 41, group="a") + half_covered(50, 46, group="b"))
    alone = betabinom(50, 90, 10).cdf(41)
    assert e.by_group["a"].verdict.p_value == pytest.approx(alone, rel=1e-9)
    assert e.verdict.p_value == pytest.approx(2 * alone, rel=1e-9)
    assert e.verdict.group == "a"
    assert "in group 'a'" in str(e.verdict)


def test_a_promise_that_holds_is_called_broken_in_at_most_5_of_100():
    """400 calibrations and evaluations of exchangeable queries; exact binomial tests at 1e-4."""
    rng = np.random.default_rng(11)

    def queries(n):
        sizes = rng.integers(1, 5, size=n)
        shift = rng.normal(size=n)
        return [
            ScoredQuery(s + rng.normal(size=m), np.ones(m, bool))
            for s, m in zip(shift, sizes, strict=True)
        ]

    alarms = dict.fromkeys(GUARANTEES, 0)
    for _ in range(400):
        calibration = Calibration.from_scores(queries(60), alpha=0.1, scorer="simulated")
        new = queries(80)
        for guarantee in GUARANTEES:
            alarms[guarantee] += evaluate(
                calibration.at(0.1).guaranteeing(guarantee), new
            ).verdict.fails
    for number in alarms.values():
        assert binomtest(number, 400, 0.05, alternative="greater").pvalue > 1e-4


def test_snippets_of_one_query_are_no_independent_evidence():
    calibration = calibrated(np.linspace(0, 0.5, 99), alpha=0.1, guarantee="snippet")
    together = [
        ScoredQuery([0.1 if i < 42 else 0.9] * 4, [True] * 4) for i in range(50)
    ]  # 200 snippets
    verdict = evaluate(calibration, together).verdict
    assert round(verdict.coverage.effective_n) == 49  # the variance has 49 degrees of freedom
    n = round(calibration.effective_n)
    k = math.ceil((n + 1) * 0.9)
    law = betabinom(49, k, n + 1 - k)
    assert verdict.p_value == pytest.approx(law.cdf(math.ceil(0.84 * 49)), rel=1e-9)


def without_scores(n, none, **options):
    """Queries with one relevant snippet, of which the first `none` could not be scored."""
    return [ScoredQuery([math.nan if i < none else 0.1], [True], **options) for i in range(n)]


@pytest.mark.parametrize(("none", "tested"), [(0, True), (1, True), (24, True), (25, False)])
def test_what_cannot_be_scored_is_in_the_verdict_and_from_half_on_tests_nothing(none, tested):
    e = evaluate(calibrated(np.linspace(0, 0.5, 99), alpha=0.1), without_scores(50, none))
    assert e.verdict.unscorable == none / 50
    assert e.mostly_unscorable == e.verdict.untested == (not tested)
    assert ("Nothing speaks against the promise" in str(e)) == tested
    assert ("The promise is not tested" in str(e)) == (not tested)
    said = f"{none / 50:.1%} of the snippets could not be scored, and are kept"
    assert (said in str(e)) == (none > 0)


def test_by_group_the_verdict_counts_what_could_not_be_scored_in_all_of_them():
    scores = np.linspace(0, 0.5, 99)
    queries = [ScoredQuery([s], [True], group=group) for group in ("a", "b") for s in scores]
    calibration = Calibration.from_scores(queries, alpha=0.1, by_group=True, scorer="lookup")
    new = [*without_scores(50, 50, group="a"), *without_scores(50, 0, group="b")]
    e = evaluate(calibration, new)
    assert (e.by_group["a"].verdict.unscorable, e.by_group["b"].verdict.unscorable) == (1, 0)
    assert e.verdict.unscorable == 0.5
    assert e.verdict.untested


@pytest.mark.parametrize("level", [95, 1, 0, math.nan])
def test_a_level_that_is_no_confidence_is_refused(level):
    for measured in (
        lambda: evaluate(calibrated(), QUERIES, level=level),
        lambda: measure(QUERIES, KEPT, level=level),
    ):
        with pytest.raises(ValueError, match=f"level is {level}; give a confidence"):
            measured()


def test_a_broken_promise_is_found():
    rng = np.random.default_rng(12)
    calibration = calibrated(rng.normal(size=300), alpha=0.1)
    shifted = [ScoredQuery([s + 0.7], [True]) for s in rng.normal(size=300)]
    assert evaluate(calibration, shifted).verdict.p_value < 1e-4


# --- what nobody knows ----------------------------------------------------------------------------


def test_where_no_query_names_a_missed_snippet_recall_and_the_end_to_end_shares_are_unknown():
    unaware = [replace(query, missed=0) for query in QUERIES]
    e = measure(unaware, KEPT)
    for share in (e.recall_at_k, *e.end_to_end.values()):
        assert math.isnan(share.estimate)
        assert (share.low, share.high, share.n) == (0, 1, 0)
    assert not e.misses_known
    assert "unknown how many relevant ones were missed" in str(e)
    assert "nan" not in str(e)
    aware = measure(QUERIES, KEPT)
    assert aware.misses_known
    assert e.coverage == aware.coverage


def test_a_group_in_which_nothing_was_missed_has_full_recall_where_others_tell():
    queries = [
        ScoredQuery([0.1], [True], group="a"),
        ScoredQuery([0.1], [True], group="b", missed=1),
    ]
    parts = evaluate(calibrated(), queries).by_group
    assert [part.recall_at_k.estimate for part in parts.values()] == [1, 0.5]
    assert all(part.misses_known for part in parts.values())


def test_a_calibration_that_counts_missed_snippets_takes_none_named_for_none_missed():
    calibration = calibrated(np.linspace(0, 0.5, 99), alpha=0.1, count_missed=True)
    e = evaluate(calibration, half_covered(50, 40))
    assert (e.recall_at_k.estimate, e.verdict.coverage.estimate) == (1, 0.8)


# --- intervals ------------------------------------------------------------------------------------


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
        share = measure(queries, kept).coverage["snippet"]
        hits += share.low <= 7 / 9 <= share.high
    assert binomtest(hits, 1000, 0.93, alternative="less").pvalue > 1e-4
    assert binomtest(hits, 1000, 0.97, alternative="greater").pvalue > 1e-4


@pytest.mark.parametrize(("name", "truth"), [("m2", 0.3), ("query-recall", 0.9)])
def test_intervals_of_mean_shares_are_as_narrow_as_they_may_be(name, truth):
    """A query's share varies less than a yes or no; 1,000 sets of 60, tests at 1e-4 as above."""
    rng = np.random.default_rng(7)
    size, chance = (20, (3, 7)) if name == "m2" else (3, (9, 1))
    queries = [ScoredQuery(np.zeros(size), np.ones(size, bool))] * 60
    hits = 0
    for _ in range(1000):
        kept = [rng.random(size) < p for p in rng.beta(*chance, size=60)]
        share = measure(queries, kept).shares[name]
        hits += share.low <= truth <= share.high
        assert share.effective_n > share.n
    assert binomtest(hits, 1000, 0.92, alternative="less").pvalue > 1e-4
    assert binomtest(hits, 1000, 0.97, alternative="greater").pvalue > 1e-4
