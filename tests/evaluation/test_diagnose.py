"""Diagnoses: m1 and m2 by hand and in simulations, exact tests and bands, every finding."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from lookup import LookupScorer
from scipy.stats import binom, binomtest

from conformal_retrievers import (
    Calibration,
    CalibrationMismatch,
    ConformalFilter,
    JudgedQuery,
    ScoredQuery,
    certify,
    diagnose,
    evaluate,
)
from conformal_retrievers.theory.exchangeability import (
    m1_band,
    m2_band,
    p_at_threshold,
    two_sample_test,
)

CALIBRATION = Calibration.from_scores(
    [ScoredQuery([s, s + 1], [True, False]) for s in (0.1, 0.2, 0.25)],
    alpha=0.25,
    guarantee="any",
    scorer="by hand",
)  # threshold 0.25, lowest scores .1 .2 .25

QUERIES = [
    ScoredQuery([0.1, 0.3, 0.2, 0.4], [True, False, False, True], missed=2, group="a"),
    ScoredQuery([0.9, 0.2], [True, False], group="a"),  # keeps an irrelevant one alone
    ScoredQuery([0.7, 0.8], [False, True], group="b"),  # keeps nothing
    ScoredQuery([0.1], [False], missed=1, group="b"),
]


def by_name(diagnosis, name):
    found = [finding for finding in diagnosis.findings if finding.name == name]
    assert len(found) == 1, [finding.name for finding in diagnosis.findings]
    return found[0]


def names(diagnosis, severity):
    return {finding.name for finding in diagnosis.findings if finding.severity == severity}


def draw(rng, n, *, relevant=1.0, separation=4.0, shift=0.0, k=10):
    """Draw n queries of k snippets, one of them relevant if it is retrieved, its score N(0, 1)."""
    queries = []
    for _ in range(n):
        scores = rng.normal(separation, 1, k)
        mask = np.zeros(k, bool)
        mask[rng.integers(k)] = rng.random() < relevant
        scores[mask] -= separation
        queries.append(ScoredQuery(scores + shift, mask, missed=int(not mask.any())))
    return queries


# --- by hand --------------------------------------------------------------------------------------


def test_four_queries_by_hand():
    d = diagnose(CALIBRATION, QUERIES)
    assert CALIBRATION.threshold() == 0.25
    assert (d.n_queries, d.n_snippets) == (4, 9)
    assert d.m1.estimate == 3 / 4
    assert d.m2.estimate == pytest.approx((2 / 4 + 1 / 2 + 0 + 1) / 4, abs=1e-15)
    assert d.removal == pytest.approx(5 / 9, abs=1e-15)
    j = d.judgements
    assert (j.n_queries, j.n_measured, j.n_relevant, j.n_missed) == (4, 3, 4, 3)
    assert j.recall_at_k.estimate == pytest.approx((2 / 4 + 1 + 1 + 0) / 4, abs=1e-15)
    assert j.coverage.estimate == pytest.approx(1 / 3, abs=1e-15)  # "any", of queries that have one
    assert j.end_to_end.estimate == 1 / 4
    assert (j.relevant_kept, j.only_irrelevant) == (1 / 4, 2 / 4)
    assert j.irrelevant_share == 3 / 4
    assert j.auc_within.estimate == pytest.approx((2 / 4 + 0 + 0) / 3, abs=1e-15)


@pytest.mark.parametrize(
    ("guarantee", "coverage", "end_to_end"),
    [
        ("query-recall", (1 / 2 + 0 + 0) / 3, (1 / 4 + 0 + 0 + 0) / 4),
        ("snippet", 1 / 4, 1 / 7),
        ("all", 0, 0),
        ("any", 1 / 3, 1 / 4),
    ],
)
def test_coverage_has_the_sense_of_the_guarantee(guarantee, coverage, end_to_end):
    j = diagnose(CALIBRATION.at(0.25).guaranteeing(guarantee), QUERIES).judgements
    assert j.coverage.estimate == pytest.approx(coverage, abs=1e-15)
    assert j.end_to_end.estimate == pytest.approx(end_to_end, abs=1e-15)


def test_the_depth_cuts_each_list_in_the_retrievers_order():
    d = diagnose(CALIBRATION, QUERIES)
    assert [point.k for point in d.depths] == [1, 2, 3, 4]
    first, second, *_, last = d.depths
    assert (first.m1, first.m2) == (2 / 4, 2 / 4)  # of .1 | .9 | .7 | .1
    assert first.recall.estimate == pytest.approx((1 / 4 + 1 + 0 + 0) / 4, abs=1e-15)
    assert (second.m1, second.m2) == (3 / 4, (1 / 2 + 1 / 2 + 0 + 1) / 4)
    assert second.end_to_end.estimate == 1 / 4
    assert (last.m1, last.m2) == (d.m1.estimate, d.m2.estimate)
    assert last.recall == d.judgements.recall_at_k


def test_the_sweep_is_what_each_alpha_keeps():
    d = diagnose(CALIBRATION, QUERIES, alphas=(0.2, 0.5))
    assert [point.alpha for point in d.sweep] == [0.2, 0.25, 0.5]
    everything, own, half = d.sweep
    assert (everything.threshold, everything.m1, everything.removal) == (math.inf, 1, 0)
    assert (own.m1, own.removal, own.m1_band) == (d.m1.estimate, d.removal, d.m1_band)
    assert half.threshold == 0.2
    assert half.coverage.estimate == pytest.approx(1 / 3, abs=1e-15)


def test_groups_have_rows_of_their_own():
    a, b = diagnose(CALIBRATION, QUERIES).groups
    assert (a.group, a.n_queries, a.n_measured, a.m1.estimate) == ("a", 2, 2, 1)
    assert (b.group, b.n_queries, b.n_measured, b.m1.estimate) == ("b", 2, 1, 1 / 2)
    assert a.coverage.estimate == 1 / 2
    assert b.coverage.estimate == 0
    assert a.removal == 3 / 6


def test_a_query_may_be_judged_filtered_or_just_its_scores():
    snippets = [JudgedQuery("q", ["x", "y"], [True, False])]
    scorer = LookupScorer({"x": 0.1, "y": 0.9})
    calibration = Calibration.from_scores(CALIBRATION.queries, alpha=0.25, scorer="lookup")
    filtered = ConformalFilter(scorer, calibration)("q", snippets[0].snippets)
    d = diagnose(calibration, [filtered, [0.1, 0.9], np.array([0.3, 0.9])])
    assert (d.m1.estimate, d.judgements) == (pytest.approx(2 / 3), None)
    with pytest.raises(CalibrationMismatch, match="queries\\[0\\] was filtered with scorer"):
        diagnose(CALIBRATION, [filtered])


def test_scored_queries_without_a_known_relevant_snippet_are_not_judged():
    unjudged = [replace(q, relevant=np.zeros(len(q.scores), bool), missed=0) for q in QUERIES]
    d = diagnose(CALIBRATION, unjudged)
    assert d.judgements is None
    assert d.sweep[0].coverage is None
    assert d.m1_band == diagnose(CALIBRATION, [q.scores for q in QUERIES]).m1_band
    mixed = diagnose(CALIBRATION, [*QUERIES, [0.1]])
    assert (mixed.n_queries, mixed.judgements.n_queries) == (5, 4)
    assert mixed.judgements == diagnose(CALIBRATION, QUERIES).judgements


def test_a_snippet_that_cannot_be_scored_is_kept_and_told():
    d = diagnose(CALIBRATION, [[math.nan, 0.9], [0.9, 0.9], []])
    assert d.m1.estimate == pytest.approx(1 / 3, abs=1e-15)
    assert d.m2.estimate == 1 / 4
    assert by_name(d, "unscorable").evidence == {"unscorable": 1 / 4}
    assert d.comparison.n_new == 2


@pytest.mark.parametrize(
    ("queries", "error", "message"),
    [
        ([], ValueError, "queries is empty"),
        ([[[0.1]]], TypeError, r"queries\[0\] is \[\[0.1\]\]; give a ScoredQuery"),
        (["text"], TypeError, r"queries\[0\] is 'text'"),
        ([ScoredQuery([0.1], [True], id="seen")], ValueError, "'seen', has the id of one"),
    ],
)
def test_what_cannot_be_diagnosed_is_refused(queries, error, message):
    own = [*CALIBRATION.queries, ScoredQuery([0.3], [True], id="seen")]
    calibration = Calibration.from_scores(own, alpha=0.25, scorer="by hand")
    with pytest.raises(error, match=message):
        diagnose(calibration, queries)


def test_a_query_counts_once_among_new_ones_and_in_a_reference(rng):
    named = [replace(q, id=f"q{i}") for i, q in enumerate(draw(rng, 8))]
    with pytest.raises(ValueError, match=r"queries\[8\], query 'q0', occurs twice; .*remove one"):
        diagnose(CALIBRATION, named * 8)
    with pytest.raises(ValueError, match=r"reference\[9\], query 'q1', occurs twice"):
        diagnose(CALIBRATION, named, reference=[*draw(rng, 1), *named, named[1]])
    assert diagnose(CALIBRATION, draw(rng, 2) * 2).n_queries == 4  # without ids nobody knows


def unscored(queries, share):
    """The queries, the first snippets of all of them together without a score, up to a share."""
    n = sum(len(q.scores) for q in queries)
    lost, changed = round(share * n), []
    for query in queries:
        scores = query.scores.copy()
        scores[:lost] = math.nan
        lost = max(0, lost - len(scores))
        changed.append(replace(query, scores=scores))
    return changed


@pytest.mark.parametrize(("share", "bad"), [(0.1, False), (0.49, False), (0.5, True), (1, True)])
def test_where_half_of_the_snippets_have_no_score_nothing_is_promised(share, bad, rng):
    calibration = Calibration.from_scores(draw(rng, 100), alpha=0.1, scorer="drawn")
    d = diagnose(calibration, unscored(draw(rng, 100), share))
    found = by_name(d, "unscorable")
    assert found.severity == ("problem" if bad else "notice")
    assert found.evidence == {"unscorable": share}
    assert f"{share:.1%} of the snippets could not be scored" in d.verdict
    assert d.fails or not bad
    assert d.verdict.startswith("Do not rely" if bad else "As far as these queries tell")
    assert "removal" not in {finding.name for finding in d.findings}


def test_what_cannot_be_scored_is_not_taken_for_scores_that_separate_poorly(rng):
    calibration = Calibration.from_scores(draw(rng, 100), alpha=0.1, scorer="drawn")
    d = diagnose(calibration, unscored(draw(rng, 100), 0.97))
    assert 0 < d.removal < 0.05
    assert "removal" not in {finding.name for finding in d.findings}
    poor = Calibration.from_scores(draw(rng, 100, separation=0), alpha=0.02, scorer="drawn")
    d = diagnose(poor, unscored(draw(rng, 100, separation=0), 0.3))
    assert by_name(d, "removal").severity == "notice"


def test_scores_without_use_are_no_comfort_where_the_promise_is_broken(rng):
    queries = [replace(q, scores=np.zeros(10)) for q in draw(rng, 100)]
    calibration = Calibration.from_scores(queries[:50], alpha=0.1, scorer="drawn")
    comfort = "the promise does not suffer"
    d = diagnose(calibration, queries[50:])
    assert not d.fails
    assert comfort in by_name(d, "separation").sentence
    higher = [replace(q, scores=np.ones(10)) for q in queries[50:]]
    for bad in (higher, unscored(queries[50:], 0.6)):
        d = diagnose(calibration, bad)
        assert d.verdict.startswith("Do not rely")
        assert comfort not in d.verdict
        assert "so that little can be removed" in by_name(d, "separation").sentence


def test_one_query_is_one_query(rng):
    calibration = Calibration.from_scores(draw(rng, 60), alpha=0.1, scorer="drawn")
    d = diagnose(calibration, draw(rng, 1))
    assert "(1 query against 60, " in by_name(d, "scores").sentence
    assert "on 1 judged query, and" in by_name(d, "coverage").sentence
    assert "1 queries" not in str(d)


def test_level_and_alphas_are_checked():
    with pytest.raises(ValueError, match="level is 95"):
        diagnose(CALIBRATION, QUERIES, level=95)
    with pytest.raises(ValueError, match="alpha is 0"):
        diagnose(CALIBRATION, QUERIES, alphas=(0, 0.1))


def test_alphas_that_delta_cannot_promise_are_left_out(rng):
    calibration = Calibration.from_scores(
        draw(rng, 11), alpha=0.2, delta=0.1, guarantee="any", scorer="drawn"
    )  # 0.8¹¹ ≤ 0.1 < 0.8¹⁰
    d = diagnose(calibration, draw(rng, 40))
    needed = calibration.units().n_needed
    assert [p.alpha for p in d.sweep] == [k / 40 for k in range(1, 21) if needed(k / 40, 0.1) <= 11]
    assert d.sweep[0].alpha == 0.2


# --- exact tests ----------------------------------------------------------------------------------


def every_split(n_reference, n_new):
    """Yield the ranks of the reference queries for each of the equally likely splits."""
    pooled = range(n_reference + n_new)
    yield from (set(chosen) for chosen in combinations(pooled, n_reference))


@pytest.mark.parametrize("rank", [1, 3, 4])
def test_the_test_at_a_threshold_is_valid_over_all_splits(rank):
    """Whether the threshold is fixed, or is itself the reference's lowest score of that rank."""
    for fixed in (False, True):
        rejected = dict.fromkeys((Fraction(k, 20) for k in range(1, 11)), 0)
        total = 0
        for reference in every_split(5, 6):
            cut = 2 * rank if fixed else sorted(reference)[rank - 1]
            c = sum(r <= cut for r in reference)
            x = sum(r <= cut for r in range(11) if r not in reference)
            p = p_at_threshold(c, x, 5, 6)
            total += 1
            for level in rejected:
                rejected[level] += p <= float(level)
        assert all(Fraction(count, total) <= level for level, count in rejected.items())
        assert rejected[Fraction(1, 2)] > 0


def test_one_side_of_that_test_is_the_exact_law_of_the_rank():
    """P(at most x new ones below the c-th lowest of the reference), counted over all splits."""
    splits = list(every_split(5, 6))
    for x in range(3):
        below = [
            sum(r < sorted(reference)[3] for r in range(11) if r not in reference)
            for reference in splits
        ]
        counted = sum(b <= x for b in below) / len(splits)
        assert p_at_threshold(4, x, 5, 6) == pytest.approx(min(1, 2 * counted), abs=1e-12)


@pytest.mark.parametrize(("c", "n_reference", "n_new"), [(9, 10, 20), (0, 5, 7), (5, 5, 7)])
def test_the_band_is_what_the_test_does_not_reject(c, n_reference, n_new):
    low, high = m1_band(c, n_reference, n_new, level=0.9)
    inside = [x for x in range(n_new + 1) if p_at_threshold(c, x, n_reference, n_new) > 0.1]
    assert (low, high) == (inside[0] / n_new, inside[-1] / n_new)
    assert len(inside) == inside[-1] - inside[0] + 1


def test_the_distance_and_its_p_value_by_hand():
    c = two_sample_test(np.array([1.0, 2, 3]), np.array([4.0, 5, 6]), (3, 0))
    assert c.distance == 1
    assert c.p_everywhere == pytest.approx(
        2 / 20, abs=1e-12
    )  # 2 of C(6, 3) splits are so far apart
    assert (c.m1_reference, c.m1_new, c.higher, c.overlap) == (1, 0, 1, 0)
    assert c.p_at_threshold == pytest.approx(2 / 20, abs=1e-12)
    assert c.p_value == pytest.approx(4 / 20, abs=1e-12)
    alike = two_sample_test(np.array([1.0, 2, 2]), np.array([2.0, 1, 2]), None)
    assert (alike.distance, alike.p_value, alike.higher, alike.overlap) == (0, 1, 0.5, 1)


@pytest.mark.parametrize("guarantee", ["query-recall", "any", "snippet"])
def test_exchangeable_queries_raise_no_alarm_more_often_than_they_may(guarantee):
    """300 draws; each test may reject 5 %, and a true 5 % fails here once in 10,000."""
    rng = np.random.default_rng(11)
    alarms = {"scores": 0, "coverage": 0, "band": 0}
    for _ in range(300):
        separation = float(rng.choice([1.0, 3.0]))
        queries = draw(rng, 100, separation=separation, relevant=0.9)
        calibration = Calibration.from_scores(
            queries[:60], alpha=0.2, guarantee=guarantee, scorer="drawn"
        )
        d = diagnose(calibration, queries[60:], alphas=())
        alarms["scores"] += by_name(d, "scores").severity == "problem"
        alarms["coverage"] += by_name(d, "coverage").severity == "problem"
        alarms["band"] += not d.m1_band[0] <= d.m1.estimate <= d.m1_band[1]
    for count in alarms.values():
        assert binomtest(count, 300, 0.05, alternative="greater").pvalue > 1e-4, alarms


@pytest.mark.parametrize("guarantee", ["all", "any"])
def test_the_p_value_of_a_coverage_is_exact_where_units_are_queries(guarantee, rng):
    queries = draw(rng, 100)
    calibration = Calibration.from_scores(
        queries[:40], alpha=0.15, guarantee=guarantee, scorer="drawn"
    )
    p_value = diagnose(calibration, queries[40:]).judgements.p_value
    assert p_value == pytest.approx(certify(calibration, queries[40:]).surprise, abs=1e-12)
    strict = Calibration.from_scores(
        queries[:40], alpha=0.15, delta=0.1, guarantee=guarantee, scorer="drawn"
    )
    d = diagnose(strict, queries[40:])
    kept = round(60 * d.judgements.coverage.estimate)
    assert d.judgements.p_value == pytest.approx(binom.cdf(kept, 60, 0.85), abs=1e-12)


@pytest.mark.parametrize("guarantee", ["query-recall", "snippet", "all", "any"])
@pytest.mark.parametrize("count_missed", [False, True])
def test_a_diagnosis_measures_what_an_evaluation_does(guarantee, count_missed, rng):
    queries = [
        replace(q, group="ab"[i % 2], missed=int(i % 9 == 0))
        for i, q in enumerate(draw(rng, 260, separation=2))
    ]
    for by_group in (False, True):
        calibration = Calibration.from_scores(
            queries[:130],
            alpha=0.3,
            guarantee=guarantee,
            count_missed=count_missed,
            by_group=by_group,
            scorer="drawn",
        )
        d, e = diagnose(calibration, queries[130:]), evaluate(calibration, queries[130:])
        measured = e.end_to_end if count_missed else e.coverage
        assert d.promised_coverage == measured[guarantee].interval
        assert d.judgements.end_to_end == e.end_to_end[guarantee].interval
        assert (d.m1, d.m2, d.removal) == (e.m1.interval, e.m2.interval, e.removal.estimate)
        own = next(point for point in d.sweep if point.alpha == 0.3)
        assert own.coverage == d.promised_coverage
        if not by_group:
            assert d.judgements.p_value == e.verdict.p_value
        for row in d.groups:
            part = e.by_group[row.group]
            assert (
                row.coverage
                == (part.end_to_end if count_missed else part.coverage)[guarantee].interval
            )
            assert not by_group or row.p_value == part.verdict.p_value


def test_a_group_in_which_nothing_is_missed_has_full_recall_where_others_tell():
    queries = [replace(q, missed=2 * (q.group == "b")) for q in QUERIES]
    a, b = diagnose(CALIBRATION, queries).groups
    assert a.recall_at_k.estimate == 1
    assert b.recall_at_k.estimate == (1 / 3 + 0) / 2


def test_where_no_query_names_a_missed_snippet_recall_is_unknown_at_every_depth():
    d = diagnose(CALIBRATION, [replace(q, missed=0) for q in QUERIES])
    assert math.isnan(d.judgements.recall_at_k.estimate)
    assert math.isnan(d.judgements.end_to_end.estimate)
    assert {point.recall for point in d.depths} == {None}
    assert "unknown" in by_name(d, "recall").sentence
    assert "missing" not in {finding.name for finding in d.findings}


def test_queries_that_cannot_be_scored_count_in_the_band_for_m2(rng):
    queries = [q.scores for q in draw(rng, 60)]
    calibration = Calibration.from_scores(draw(rng, 60), alpha=0.1, scorer="drawn")
    blank = [[math.nan] * 10] * 40
    d = diagnose(calibration, queries + blank, reference=queries)
    kept = np.array([(scores <= calibration.threshold()).mean() for scores in queries])
    assert d.m2_band == m2_band(kept, 100)
    assert d.m1_band == m1_band(sum(kept > 0), 60, 60)


def test_the_band_for_m2_holds_95_percent_of_exchangeable_queries():
    """1,000 draws; fails once in 10,000 if it holds 93 % to 97 %."""
    rng = np.random.default_rng(12)
    shares = rng.beta(2, 3, size=(1000, 90)).round(1)
    hits = 0
    for row in shares:
        low, high = m2_band(row[:50], 40)
        hits += low <= row[50:].mean() <= high
    assert binomtest(hits, 1000, 0.93, alternative="less").pvalue > 1e-4
    assert binomtest(hits, 1000, 0.97, alternative="greater").pvalue > 1e-4


def test_m1_has_its_band_at_every_alpha_from_the_calibrations_file_alone(rng):
    """Of each band, that the queries calibrated on, given as a reference, have the same."""
    judged = draw(rng, 80)
    calibration = Calibration.from_scores(judged, alpha=0.1, scorer="drawn")
    loaded = Calibration.from_json(calibration.to_json())
    new = [q.scores for q in draw(rng, 60)]
    alone, held = diagnose(loaded, new), diagnose(loaded, new, reference=judged)
    assert len(alone.sweep) == 20
    for mine, same in zip(alone.sweep, held.sweep, strict=True):
        assert mine.m1_band is not None
        assert mine.m1_band == same.m1_band
        assert mine.m2_band is None


def test_a_reference_gives_the_bands_that_the_calibration_cannot(rng):
    queries = draw(rng, 200)
    calibration = Calibration.from_scores(queries[:100], alpha=0.1, scorer="drawn")
    alone = diagnose(calibration, queries[100:])
    held = diagnose(calibration, queries[100:], reference=queries[:100])
    assert (alone.m2_band, alone.depths[-1].m1_band) == (None, None)
    assert held.m1_band == alone.m1_band  # the reference's lowest scores are the calibration's own
    assert held.comparison == alone.comparison
    assert held.m2_band[0] < held.m2.estimate < held.m2_band[1]
    assert (held.depths[-1].m1_band, held.depths[-1].m2_band) == (held.m1_band, held.m2_band)
    first = np.array([q.scores[0] for q in queries[:100]]) <= calibration.threshold()
    assert held.depths[0].m1_band == m1_band(int(first.sum()), 100, 100)
    assert held.depths[0].m2_band == m2_band(first.astype(float), 100)
    grouped = [replace(q, group="ab"[i % 2]) for i, q in enumerate(queries)]
    by_group = Calibration.from_scores(grouped[:100], alpha=0.1, by_group=True, scorer="drawn")
    assert diagnose(by_group, grouped[100:]).m1_band is None
    assert diagnose(by_group, grouped[100:]).comparison.p_at_threshold is None
    assert diagnose(by_group, grouped[100:], reference=grouped[:100]).m1_band is not None


# --- what m1 is, and is not -----------------------------------------------------------------------


def test_m1_is_the_sum_of_relevant_kept_and_only_irrelevant_kept(rng):
    for separation in (0.5, 2, 4):
        calibration = Calibration.from_scores(
            draw(rng, 80, separation=separation), alpha=0.15, scorer="drawn"
        )
        d = diagnose(calibration, draw(rng, 150, relevant=0.7, separation=separation))
        j = d.judgements
        assert j.m1 == pytest.approx(d.m1.estimate, abs=1e-15)
        assert j.only_irrelevant > 0
        assert j.relevant_kept == pytest.approx(
            j.recall_at_k.estimate * j.coverage.estimate, abs=1e-12
        )  # one relevant snippet a query


@pytest.mark.parametrize(
    ("recall", "separation", "m1", "end_to_end"),
    [(1.0, 4.0, 0.906, None), (0.75, 1.0, 1.0, 0.675), (0.75, 4.0, 0.70, 0.675)],
)
def test_m1_moves_with_misses_and_irrelevant_passes_while_coverage_stands(
    recall, separation, m1, end_to_end
):
    """Nine irrelevant snippets, at most one relevant; of those retrieved 90 % are kept."""
    rng = np.random.default_rng(13)
    queries = draw(rng, 6000, relevant=recall, separation=separation)
    calibration = Calibration.from_scores(queries[:3000], alpha=0.1, scorer="drawn")
    d = diagnose(calibration, queries[3000:], alphas=())
    assert d.judgements.coverage.estimate == pytest.approx(0.9, abs=0.025)  # four standard errors
    assert d.m1.estimate == pytest.approx(m1, abs=0.04)
    if recall < 1:
        assert d.judgements.end_to_end.estimate == pytest.approx(end_to_end, abs=0.045)
    else:
        assert by_name(d, "recall").severity == "notice"  # not one is known to be missing
    assert by_name(d, "coverage").severity == "fine"
    assert d.verdict.startswith("As far as these queries tell, the promise holds")
    assert ("missing" in names(d, "notice")) == (recall < 1)
    assert ("irrelevant" in names(d, "notice")) == (separation == 1)


# --- findings -------------------------------------------------------------------------------------


def test_a_shift_of_the_scores_is_found_without_judgements(rng):
    calibration = Calibration.from_scores(draw(rng, 200), alpha=0.1, scorer="drawn")
    d = diagnose(calibration, [q.scores for q in draw(rng, 200, shift=0.8)])
    found = by_name(d, "scores")
    assert found.severity == "problem"
    assert found.evidence["higher"] > 0.6
    assert "higher than a calibration query's" in d.verdict
    assert d.verdict.startswith("Do not rely on this calibration for these queries.")
    assert not d.m1_band[0] <= d.m1.estimate
    assert by_name(d, "m1").severity == "notice"


def test_scores_of_another_scale_are_called_so(rng):
    queries = draw(rng, 100)
    calibration = Calibration.from_scores(queries[:50], alpha=0.1, scorer="drawn")
    d = diagnose(calibration, [100 + q.scores for q in queries[50:]])
    assert "not one is within the calibration's range" in by_name(d, "scores").sentence


def test_lost_coverage_is_found_and_says_more_than_chance(rng):
    calibration = Calibration.from_scores(draw(rng, 200), alpha=0.1, scorer="drawn")
    queries = draw(rng, 200)
    harder = [replace(q, scores=np.where(q.relevant, q.scores + 1, q.scores)) for q in queries]
    d = diagnose(calibration, harder)
    found = by_name(d, "coverage")
    assert found.severity == "problem"
    assert found.evidence["p_value"] < 1e-4
    assert "less, more than chance explains" in d.verdict


def test_reversed_scores_are_found(rng):
    calibration = Calibration.from_scores(draw(rng, 50), alpha=0.1, scorer="drawn")
    d = diagnose(calibration, [replace(q, scores=-q.scores) for q in draw(rng, 50)])
    assert by_name(d, "direction").severity == "problem"
    assert by_name(d, "direction").evidence["auc_over"] < 0.1


def test_scores_that_tell_queries_apart_but_not_snippets_are_all_or_nothing(rng):
    def flat(n):
        return [
            ScoredQuery(np.full(6, rng.normal()) + rng.normal(0, 1e-3, 6), [True] + [False] * 5)
            for _ in range(n)
        ]

    calibration = Calibration.from_scores(flat(400), alpha=0.2, scorer="drawn")
    d = diagnose(calibration, flat(200))
    found = by_name(d, "all-or-nothing")
    assert found.evidence["m2"] == pytest.approx(found.evidence["m1"], abs=0.03)
    assert "separation" in names(d, "notice")


def test_ties_and_coarse_scores_are_told(rng):
    def rated(n):
        return [
            replace(q, scores=np.round(q.scores / 2).clip(0, 3)) for q in draw(rng, n, separation=3)
        ]

    calibration = Calibration.from_scores(rated(100), alpha=0.1, scorer="drawn")
    d = diagnose(calibration, rated(100))
    assert d.scores.distinct == 4
    found = by_name(d, "ties")
    assert found.severity == "notice"
    assert found.evidence["at_threshold"] > 0.05
    assert found.evidence["calibration_ties"] > 0.05
    elsewhere = [np.where(q.scores == calibration.threshold(), 9.0, q.scores) for q in rated(100)]
    assert by_name(diagnose(calibration, elsewhere), "coarse").evidence["distinct"] == 4


def test_a_filter_that_removes_little_or_nothing_says_so(rng):
    few = Calibration.from_scores(draw(rng, 5), alpha=0.1, scorer="drawn")
    found = by_name(diagnose(few, draw(rng, 20)), "threshold")
    assert (found.severity, found.evidence["n_needed"]) == ("notice", 9)
    weak = Calibration.from_scores(draw(rng, 100, separation=0.3), alpha=0.015, scorer="drawn")
    d = diagnose(weak, draw(rng, 100, separation=0.3))
    assert "removal" in names(d, "notice")
    missed = Calibration.from_scores(
        draw(rng, 100, relevant=0.5), alpha=0.1, count_missed=True, scorer="drawn"
    )
    assert by_name(diagnose(missed, draw(rng, 20)), "threshold").severity == "problem"


def test_a_group_below_the_target_is_named(rng):
    def two(n):
        easy = [replace(q, group="easy") for q in draw(rng, 4 * n)]
        hard = [
            replace(q, group="hard", scores=np.where(q.relevant, q.scores + 2, q.scores))
            for q in draw(rng, n)
        ]
        return easy + hard

    calibration = Calibration.from_scores(two(50), alpha=0.1, scorer="drawn")
    d = diagnose(calibration, two(50))
    found = by_name(d, "group")
    assert found.severity == "notice"
    assert "'hard'" in found.sentence
    assert found.evidence["p_value"] == 2 * d.groups[1].p_value  # there are two groups
    assert "calibrating by group" in found.sentence
    by_group = Calibration.from_scores(two(50), alpha=0.1, by_group=True, scorer="drawn")
    assert "group" not in {f.name for f in diagnose(by_group, two(50)).findings}


def test_by_group_only_groups_with_a_promise_are_tested_and_merged_ones_as_one(rng):
    """The p-values and the verdict are those of an evaluation of the same queries."""

    def of(group, n, shift=0.0):
        drawn = draw(rng, n)
        return [
            replace(q, group=group, scores=np.where(q.relevant, q.scores + shift, q.scores))
            for q in drawn
        ]

    judged = [*of("a", 60), *of("b", 30), *of("c", 30), *of("few", 3)]
    calibration = Calibration.from_scores(
        judged, alpha=0.1, by_group=True, merge_groups={"b": "bc", "c": "bc"}, scorer="drawn"
    )
    new = [*of("a", 60), *of("b", 40), *of("c", 8, 1.5), *of("few", 30, 9.0), *of("other", 9)]
    d, e = diagnose(calibration, new), evaluate(calibration, new)
    assert {row.group: row.p_value for row in d.groups} == {
        name: part.verdict and part.verdict.p_value for name, part in e.by_group.items()
    }
    assert {row.group for row in d.groups if row.p_value is None} == {"few", "other"}
    assert (e.verdict.tests, d.judgements.p_value) == (2, e.verdict.p_value)
    assert by_name(d, "coverage").severity == "fine"
    assert "promised in each group that has a threshold." in by_name(d, "coverage").sentence
    worse = [*new, *of("b", 20, 9.0)]
    found = by_name(diagnose(calibration, worse), "group")
    assert (found.severity, "'bc'" in found.sentence) == ("problem", True)
    assert found.evidence["p_value"] == evaluate(calibration, worse).verdict.p_value


def test_queries_that_may_be_the_calibrations_own_are_told_with_the_remedy(rng):
    def named(n, start):
        return [replace(q, id=f"q{start + i}") for i, q in enumerate(draw(rng, n))]

    nameless, own, new = draw(rng, 60), named(60, 0), named(60, 100)
    known = Calibration.from_scores(own, alpha=0.1, scorer="drawn")
    unknown = Calibration.from_scores(nameless, alpha=0.1, scorer="drawn")
    for calibration, queries, told in (
        (known, new, True),
        (known, [*new[1:], replace(new[0], id=None)], False),  # one is enough
        (known, [replace(q, id=None) for q in own], False),  # its own, and coverage looks fine
        (unknown, new, False),
        (unknown, [q.scores for q in new], True),  # scores of live traffic, not judged ones
    ):
        d = diagnose(calibration, queries)
        assert d.told_apart is told
        if told:
            assert "ids" not in {finding.name for finding in d.findings}
            continue
        found = by_name(d, "ids")
        assert found.severity == "notice"
        assert "give every judged query an id" in found.sentence
        assert found.sentence in d.verdict


def test_queries_of_an_unknown_group_keep_everything_and_that_is_told(rng):
    grouped = [replace(q, group="a") for q in draw(rng, 60)]
    calibration = Calibration.from_scores(grouped, alpha=0.1, by_group=True, scorer="drawn")
    d = diagnose(calibration, [*(replace(q, group="a") for q in draw(rng, 30)), [0.1, 9.0]])
    assert by_name(d, "threshold").evidence["keep_all"] == 1 / 31
    assert d.keep_all == 1 / 31


def test_a_calibration_that_keeps_nothing_that_has_a_score_does_not_keep_everything(rng):
    lost = [ScoredQuery([-math.inf, 3.0], [True, False], group="lost") for _ in range(30)]
    d = diagnose(Calibration.from_scores(lost, alpha=0.1, scorer="drawn"), draw(rng, 30))
    assert (d.keep_all, d.removal) == (0, 1)
    found = by_name(d, "threshold")
    assert (found.severity, d.fails) == ("notice", True)  # the coverage is the problem
    assert found.sentence.startswith("Nothing that has a score is kept: the relevant snippets")
    grouped = [*lost, *(replace(q, group="a") for q in draw(rng, 30))]
    calibration = Calibration.from_scores(grouped, alpha=0.1, by_group=True, scorer="drawn")
    new = [replace(q, group="lost" if i < 10 else "a") for i, q in enumerate(draw(rng, 30))]
    d = diagnose(calibration, new)
    assert d.keep_all == 0
    found = by_name(d, "threshold")
    assert found.sentence.startswith("Nothing that has a score is kept of 33.3% of the queries")
    assert found.evidence["keep_none"] == 1 / 3


def test_judged_queries_without_a_retrieved_relevant_snippet_do_not_speak_for_the_promise(rng):
    calibration = Calibration.from_scores(draw(rng, 60), alpha=0.1, scorer="drawn")
    lost = [replace(q, relevant=np.zeros(10, bool), missed=1) for q in draw(rng, 30)]
    d = diagnose(calibration, lost)
    assert d.judgements.n_measured == 0
    assert d.judgements.recall_at_k.estimate == 0
    assert "the promise holds" not in d.verdict
    assert "coverage" not in {finding.name for finding in d.findings}


def test_without_judgements_the_verdict_claims_no_coverage(rng):
    calibration = Calibration.from_scores(draw(rng, 100), alpha=0.1, scorer="drawn")
    d = diagnose(calibration, [q.scores for q in draw(rng, 100)])
    assert d.verdict.startswith("Nothing speaks against the promise, and without judged")
    assert "It is no coverage" in by_name(d, "m1").sentence
    assert by_name(d, "m1").severity == "fine"
    assert d.verdict in str(d)
