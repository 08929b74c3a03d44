"""Diagnoses: m1 and m2 by hand and in simulations, their bands, and every finding."""

import math
from dataclasses import replace

import numpy as np
import pytest
from drawn import calibrated, draw, unjudged
from scipy.stats import binomtest

from conformal_retrievers import JudgedQuery, ScoredQuery, Snippet, calibrate, diagnose, evaluate
from conformal_retrievers.calibration.file_schema import Choice
from conformal_retrievers.calibration.guarantees import n_needed
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.evaluation.diagnosis import Ties
from conformal_retrievers.evaluation.power import coverage_p_value
from conformal_retrievers.scoring import RetrievalScorer
from conformal_retrievers.theory.exchangeability import m1_band, m2_band
from conformal_retrievers.theory.intervals import percent

THREE = [ScoredQuery([s, s + 1], [True, False]) for s in (0.1, 0.2, 0.25)]
CALIBRATION = calibrated(THREE, 0.25, guarantee="any")  # threshold .25, lowest scores .1 .2 .25

QUERIES = [
    ScoredQuery([0.1, 0.3, 0.2, 0.4], [True, False, False, True], missed=2, group="a"),
    ScoredQuery([0.9, 0.2], [True, False], group="a"),  # keeps an irrelevant one only
    ScoredQuery([0.7, 0.8], [False, True], group="b"),  # keeps nothing
    ScoredQuery([0.1], [False], missed=1, group="b"),
]


def by_name(diagnosis, name):
    found = [finding for finding in diagnosis.findings if finding.name == name]
    assert len(found) == 1, [finding.name for finding in diagnosis.findings]
    return found[0]


def names(diagnosis, *severities):
    return {f.name for f in diagnosis.findings if not severities or f.severity in severities}


# --- by hand --------------------------------------------------------------------------------------


def test_four_queries_by_hand():
    d = diagnose(CALIBRATION, QUERIES)
    assert CALIBRATION.threshold() == 0.25
    assert repr(d.evaluation) == repr(evaluate(CALIBRATION, QUERIES))  # NaN is unequal to itself
    assert d.coverage.estimate == 1 / 3
    assert d.evaluation.only_irrelevant == 2 / 4
    assert d.auc_within.estimate == pytest.approx((2 / 4 + 0 + 0) / 3, abs=1e-15)
    assert d.auc_over == pytest.approx(5.5 / 20, abs=1e-15)
    assert d.ties == Ties(n_scores=9, distinct=7, at_threshold=0)


def test_the_sweep_is_what_each_alpha_keeps():
    d = diagnose(CALIBRATION, QUERIES)
    assert [point.alpha for point in d.sweep] == [k / 40 for k in range(1, 21)]
    everything, own, half = (d.sweep[i] for i in (7, 9, 19))
    assert (everything.threshold, everything.m1, everything.removal) == (math.inf, 1, 0)
    e = d.evaluation
    assert [own.m1, own.m2, own.removal] == [s.estimate for s in (e.m1, e.m2, e.removal)]
    assert (own.m1_band, own.coverage) == (d.m1_band, d.coverage)
    assert half.threshold == 0.2
    assert half.coverage.estimate == pytest.approx(1 / 3, abs=1e-15)


def test_queries_without_a_known_relevant_snippet_are_not_judged():
    d, same = diagnose(CALIBRATION, unjudged(QUERIES)), diagnose(CALIBRATION, QUERIES)
    assert (d.judged, same.judged) == (False, True)
    assert math.isnan(d.coverage.estimate)
    assert math.isnan(d.sweep[0].coverage.estimate)
    assert "coverage" not in names(d)
    assert (d.evaluation.m1, d.evaluation.m2) == (same.evaluation.m1, same.evaluation.m2)
    assert (d.m1_band, d.comparison) == (same.m1_band, same.comparison)


def test_an_unscorable_snippet_is_kept_and_reported():
    scores = ([math.nan, 0.9], [0.9, 0.9], [])
    d = diagnose(CALIBRATION, [ScoredQuery(s, [False] * len(s)) for s in scores])
    assert d.evaluation.m1.estimate == pytest.approx(1 / 3, abs=1e-15)
    assert d.evaluation.m2.estimate == 1 / 4
    assert "25.0 %" in by_name(d, "unscorable").sentence
    assert d.comparison.n_new == 2


def test_invalid_queries_levels_and_alphas_are_refused():
    own = ScoredQuery([0.3], [True], id="seen")
    calibration = calibrated([*CALIBRATION.queries, own], alpha=0.25)
    with pytest.raises(ValueError, match="'seen'"):
        diagnose(calibration, [own])
    assert diagnose(calibration, QUERIES, reference=[own]).comparison.n_reference == 1
    with pytest.raises(ValueError, match="'seen'"):
        diagnose(calibration, QUERIES, reference=[own, own])
    with pytest.raises(ValueError, match="level is 95"):
        diagnose(CALIBRATION, QUERIES, level=95)


def test_alphas_out_of_reach_of_delta_are_left_out(rng):
    # 0.8¹¹ ≤ 0.1 < 0.8¹⁰
    d = diagnose(calibrated(draw(rng, 11), alpha=0.2, delta=0.1, guarantee="any"), draw(rng, 40))
    possible = [k / 40 for k in range(1, 21) if n_needed("any", k / 40, 0.1) <= 11]
    assert [point.alpha for point in d.sweep] == possible
    assert d.sweep[0].alpha == 0.2


# --- tests and bands ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["query-recall", "any", "snippet"])
def test_exchangeable_queries_raise_alarms_no_more_often_than_allowed(guarantee):
    """300 draws; each test may reject 5 %, and a true 5 % fails here once in 10,000."""
    rng = np.random.default_rng(11)
    alarms = {"scores": 0, "coverage": 0, "band": 0}
    for _ in range(300):
        queries = draw(rng, 100, separation=float(rng.choice([1.0, 3.0])), relevant=0.9)
        d = diagnose(calibrated(queries[:60], 0.2, guarantee=guarantee), queries[60:])
        alarms["scores"] += by_name(d, "scores").severity == "problem"
        alarms["coverage"] += by_name(d, "coverage").severity == "problem"
        alarms["band"] += not d.m1_band[0] <= d.evaluation.m1.estimate <= d.m1_band[1]
    for count in alarms.values():
        assert binomtest(count, 300, 0.05, alternative="greater").pvalue > 1e-4, alarms


def test_a_reference_gives_the_bands_that_the_calibration_cannot(rng):
    queries = draw(rng, 200)
    own, new = queries[:100], queries[100:]
    calibration = calibrated(own)
    alone, held = diagnose(calibration, new), diagnose(calibration, new, reference=own)
    assert alone.m2_band is None
    assert held.m1_band == alone.m1_band  # the reference's lowest scores are the calibration's own
    assert held.comparison == alone.comparison
    assert [p.m1_band for p in held.sweep] == [p.m1_band for p in alone.sweep]
    assert held.m2_band[0] < held.evaluation.m2.estimate < held.m2_band[1]
    assert held.m2_band == next(p for p in held.sweep if p.alpha == 0.1).m2_band
    grouped = [replace(q, group="ab"[i % 2]) for i, q in enumerate(queries)]
    by_group = calibrated(grouped[:100], by_group=True)
    assert diagnose(by_group, grouped[100:]).m1_band is None
    assert diagnose(by_group, grouped[100:]).comparison.p_at_threshold is None
    assert diagnose(by_group, grouped[100:], reference=grouped[:100]).m1_band is not None


def test_queries_without_a_score_count_in_the_band_for_m2(rng):
    queries = draw(rng, 60)
    calibration = calibrated(draw(rng, 60))
    blank = [ScoredQuery([math.nan] * 9 + [99.0], [False] * 10)] * 40
    d = diagnose(calibration, [*unjudged(queries), *blank], reference=queries)
    kept = np.array([(q.scores <= calibration.threshold()).mean() for q in queries])
    assert d.m2_band == m2_band(kept, 100)
    of_60 = np.array(m1_band(sum(kept > 0), 60, 60))  # the 40 are kept whatever the threshold
    assert d.m1_band == pytest.approx(0.6 * of_60 + 0.4)
    d = diagnose(calibration, [*queries, *[ScoredQuery([], [])] * 20, *blank], reference=queries)
    assert d.m1_band == pytest.approx((60 * of_60 + 40) / 120)  # and of the 20, nothing can be
    assert d.m2_band == m2_band(kept, 100)


# --- what m1 is, and is not -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recall", "separation", "m1", "end_to_end"),
    [(1.0, 4.0, 0.906, 0.9), (0.75, 1.0, 1.0, 0.675), (0.75, 4.0, 0.70, 0.675)],
)
def test_m1_moves_with_misses_and_irrelevant_passes_but_coverage_does_not(
    recall, separation, m1, end_to_end
):
    """Nine irrelevant snippets, at most one relevant; of those retrieved 90 % are kept."""
    queries = draw(np.random.default_rng(13), 6000, relevant=recall, separation=separation)
    d = diagnose(calibrated(queries[:3000]), queries[3000:])
    assert d.coverage.estimate == pytest.approx(0.9, abs=0.025)  # four standard errors
    e = d.evaluation
    assert e.m1.estimate == pytest.approx(m1, abs=0.04)
    assert e.end_to_end["query-recall"].estimate == pytest.approx(end_to_end, abs=0.045)
    assert not d.fails
    assert by_name(d, "coverage").severity == "fine"
    assert e.recall_at_k.estimate == pytest.approx(recall, abs=0.03)
    advised = any("A deeper retriever might." in finding.sentence for finding in d.findings)
    assert advised == ("missing" in names(d, "notice")) == (recall < 1)
    assert ("irrelevant" in names(d, "notice")) == (separation == 1)


# --- findings -------------------------------------------------------------------------------------


def test_a_shift_of_the_scores_is_found_without_judgements(rng):
    calibration = calibrated(draw(rng, 200))
    elsewhere = diagnose(calibration, unjudged(draw(rng, 50, shift=100)))
    assert elsewhere.comparison.overlap == 0
    assert "outside" in by_name(elsewhere, "scores").sentence
    d = diagnose(calibration, unjudged(draw(rng, 200, shift=0.8)))
    found = by_name(d, "scores")
    assert (found.severity, d.fails) == ("problem", True)
    assert d.comparison.higher > 0.6
    assert d.paragraph.startswith("Do not rely on this calibration")
    assert found.sentence in d.paragraph
    assert d.m1_band[0] > d.evaluation.m1.estimate
    assert by_name(d, "m1").severity == "notice"


def test_lost_coverage_is_a_problem(rng):
    d = diagnose(calibrated(draw(rng, 200)), of(rng, None, 200, shift=1))
    found = by_name(d, "coverage")
    assert found.severity == "problem"
    assert d.evaluation.verdict.p_value < 1e-4
    assert found.sentence in d.paragraph


def test_if_only_relevant_snippets_score_higher_the_calibration_may_be_unlucky(rng):
    low, high = (
        [ScoredQuery([s, more + s, 5, 5], [0, 1, 0, 0]) for s in rng.uniform(size=100)]
        for more in (1, 1.3)
    )
    made = calibrated(low)
    said = by_name(diagnose(made, high), "scores").sentence
    assert "look like those of the calibration" in said
    assert "may be an unlucky one" in said
    assert "unlucky" in str(evaluate(made, high))
    assert "unlucky" not in f"{diagnose(made, low)} {evaluate(made, low)}"


def test_too_few_queries_are_noticed(rng):
    few, enough = (diagnose(calibrated(draw(rng, 399)), draw(rng, n)) for n in (15, 1000))
    assert by_name(few, "coverage").severity == "notice"
    assert few.summary == few.evaluation.verdict.shortage
    assert by_name(enough, "coverage").severity == "fine"
    assert enough.summary.startswith("Coverage on these queries")


@pytest.mark.parametrize(
    ("reference", "new", "needed"),
    [
        (60, 84, "85 queries like these, or a calibration of 61 or more: 82 judged queries"),
        (399, 15, "by 25 points takes 39 queries like these."),
        (60, 85, None),
        (36, 299, "takes a calibration of 40 or more: 54 judged queries"),  # or of 1,338 new ones
        (35, 999, "takes a calibration of 37 or more: 50 judged queries"),
    ],
)
def test_too_few_queries_to_compare_scores_are_noticed(rng, reference, new, needed):
    learned = {"score": "x", "choice": Choice(chosen="x", given=[]).model_dump()}
    calibration = calibrated(draw(rng, reference), scorer_provenance=learned)
    d = diagnose(calibration, unjudged(draw(rng, new)))
    given = replace(d, calibration=replace(calibration, scorer_provenance=None))
    assert "judged queries" not in given.few_scores  # none would fit a score that is given
    assert by_name(d, "scores").severity == ("notice" if needed else "fine")
    assert d.few_scores[:-1] in by_name(d, "scores").sentence
    assert ("too few queries" in d.summary) == bool(needed)
    assert needed is None if not d.few_scores else needed in d.few_scores


def test_reversed_scores_are_a_problem(rng):
    d = diagnose(calibrated(draw(rng, 50)), [replace(q, scores=-q.scores) for q in draw(rng, 50)])
    assert by_name(d, "direction").severity == "problem"
    assert d.auc_over < 0.1


def test_ties_at_the_threshold_are_noticed(rng):
    def rated(n):
        drawn = draw(rng, n, separation=3)
        return [replace(q, scores=np.round(q.scores / 2).clip(0, 3)) for q in drawn]

    d = diagnose(calibrated(rated(100)), rated(100))
    assert by_name(d, "ties").severity == "notice"
    assert d.ties.distinct == 4
    assert d.ties.at_threshold > 0.05


def test_a_filter_that_removes_little_or_nothing_is_noticed(rng):
    found = by_name(diagnose(calibrated(draw(rng, 5)), draw(rng, 20)), "threshold")
    assert found.severity == "notice"
    assert "has 5 units and needs 9" in found.sentence
    weak = calibrated(draw(rng, 100, separation=0.3), 0.015)
    assert "removal" in names(diagnose(weak, draw(rng, 100, separation=0.3)), "notice")
    missed = calibrated(draw(rng, 100, relevant=0.5), count_missed=True)
    assert by_name(diagnose(missed, draw(rng, 20)), "threshold").severity == "problem"


def unscored(queries, share):
    """The queries, a share of all snippets without a score, from the first query on."""
    lost, size = round(share * 10 * len(queries)), np.arange(10)
    return [
        replace(q, scores=np.where(10 * i + size < lost, math.nan, q.scores))
        for i, q in enumerate(queries)
    ]


@pytest.mark.parametrize(("share", "bad"), [(0.1, False), (0.49, False), (0.5, True), (1, True)])
def test_unscorable_snippets_are_a_problem_from_half_on(share, bad, rng):
    d = diagnose(calibrated(draw(rng, 100)), unscored(draw(rng, 100), share))
    found = by_name(d, "unscorable")
    assert found.severity == ("problem" if bad else "notice")
    assert found.sentence.startswith(percent(share))
    assert found.sentence in d.paragraph
    assert d.fails == bad
    assert "removal" not in names(d)


def test_unscorable_snippets_are_not_taken_for_scores_that_separate_poorly(rng):
    d = diagnose(calibrated(draw(rng, 100)), unscored(draw(rng, 100), 0.97))
    assert 0 < d.evaluation.removal.estimate < 0.05
    assert "removal" not in names(d)
    poor = calibrated(draw(rng, 100, separation=0), 0.02)
    d = diagnose(poor, unscored(draw(rng, 100, separation=0), 0.3))
    assert by_name(d, "removal").severity == "notice"


def of(rng, group, n, shift=0.0):
    """Queries of a group, whose relevant snippets score higher by `shift`."""
    return [
        replace(q, group=group, scores=np.where(q.relevant, q.scores + shift, q.scores))
        for q in draw(rng, n)
    ]


def test_a_group_below_the_target_is_named(rng):
    def two():
        return of(rng, "easy", 200) + of(rng, "hard", 50, shift=2)

    d = diagnose(calibrated(two()), two())
    found = by_name(d, "group")
    assert ("'hard'" in found.sentence, found.severity) == (True, "notice")
    assert found.sentence.endswith("calibrate with by_group=True (--by-group).")
    hard = d.evaluation.by_group["hard"].coverage["query-recall"]
    assert f"p = {2 * coverage_p_value(d.calibration, hard):.2g} for 2 groups" in found.sentence
    assert "group" not in names(diagnose(calibrated(two(), by_group=True), two()))


def test_by_group_only_groups_with_a_threshold_are_tested(rng):
    judged = [*of(rng, "a", 60), *of(rng, "b", 60), *of(rng, "few", 3)]
    new = [*of(rng, "a", 60), *of(rng, "b", 40), *of(rng, "b", 20, 9.0), *of(rng, "few", 30, 9.0)]
    d = diagnose(calibrated(judged, by_group=True), [*new, *of(rng, "other", 9)])
    assert {g for g, e in d.evaluation.by_group.items() if e.verdict is None} == {"few", "other"}
    found = by_name(d, "group")
    assert found.severity == "problem"
    assert "'b'" in found.sentence
    assert f"p = {d.evaluation.verdict.p_value:.2g} for 2 groups" in found.sentence


def test_queries_without_a_finite_threshold_are_noticed(rng):
    lost = [ScoredQuery([-math.inf, 3.0], [True, False], group="lost") for _ in range(30)]
    d = diagnose(calibrated(lost), draw(rng, 30))
    assert d.evaluation.removal.estimate == 1
    assert (by_name(d, "threshold").severity, d.fails) == ("notice", True)  # coverage fails
    calibration = calibrated([*lost, *of(rng, "a", 30)], by_group=True)
    d = diagnose(calibration, [*of(rng, "lost", 10), *of(rng, "a", 20)])
    assert "33.3 % of the queries, by their group" in by_name(d, "threshold").sentence
    d = diagnose(calibration, [*of(rng, "a", 20), *of(rng, "unknown", 10)])
    assert "33.3 % of the queries keep everything" in by_name(d, "threshold").sentence
    d = diagnose(calibration, of(rng, "A", 30))  # a misspelt group: the filter does nothing
    assert calibration.keeps_all_of(d.evaluation.by_group)
    assert "too few calibration queries ('A')" in by_name(d, "threshold").sentence


def test_queries_that_may_belong_to_the_calibration_are_noticed(rng):
    new = draw(rng, 60)
    assert "ids" in names(diagnose(calibrated(draw(rng, 60)), new), "notice")
    named = [replace(q, id=f"q{i}") for i, q in enumerate(draw(rng, 60))]
    new = [replace(q, id=f"n{i}") for i, q in enumerate(new)]
    assert "ids" not in names(diagnose(calibrated(named), new))


def test_queries_without_judgements_or_without_a_retrieved_relevant_snippet_confirm_nothing(rng):
    d = diagnose(calibrated(draw(rng, 60)), unjudged(draw(rng, 100)))
    assert str(d).startswith("Nothing contradicts")
    assert "judge 300 of them to tell a coverage of 90 % from one of 85 %" in d.summary
    assert " ".join(str(d).split()).count(by_name(d, "scores").sentence) == 1
    assert max(map(len, str(d).split("\n"))) <= 80
    beyond = replace(d, findings=(replace(by_name(d, "m1"), severity="notice"),))
    assert beyond.summary.startswith("m1 is outside its band, as it is by chance in 5 % of")
    lost = [replace(q, relevant=np.zeros(10, bool), missed=1) for q in draw(rng, 30)]
    d = diagnose(calibrated(draw(rng, 60)), lost)
    assert d.evaluation.recall_at_k.estimate == 0
    assert "coverage" not in names(d)
    assert "These queries are not judged" in d.summary


def test_more_queries_without_a_snippet_than_where_it_was_calibrated_are_a_problem(rng):
    snippets = with_hits([Snippet("a", retrieval_score=0.9), Snippet("b", retrieval_score=0.1)])
    judged = [JudgedQuery(f"q{i}", snippets, [True, False], k=2) for i in range(27)]
    judged += [JudgedQuery(f"none {i}", [], [], missed=1, k=2) for i in range(3)]
    made = calibrate(judged, RetrievalScorer(), alpha=0.2)
    found, nothing = ScoredQuery([-0.9, -0.1], [False] * 2), ScoredQuery([], [])
    more = replace(made, retrieval={"lengths": {"2": 18}, "empty": 12})
    cases = [(made, 3, "notice"), (made, 5, "notice"), (made, 12, "problem"), (more, 1, "notice")]
    for calibration, n, severity in [*cases, (CALIBRATION, 12, "notice")]:
        d = diagnose(calibration, [found] * (30 - n) + [nothing] * n)
        assert by_name(d, "empty").severity == severity
        before = {id(made): ", and for 3 of 30 where", id(more): ", and for 12 of 30 where"}
        assert f"nothing for {n} of 30 queries{before.get(id(calibration), '.')}" in d.paragraph
    assert "empty" not in names(diagnose(made, [found] * 30))
    unknown = calibrate([*judged[:-1], replace(judged[-1], k=None)], RetrievalScorer(), alpha=0.2)
    again = calibrate(judged[:27], RetrievalScorer(), alpha=0.2, retrieval=unknown.retrieval)
    assert (unknown.empty_lists, made.empty_lists, again.empty_lists) == ((0, 0), (3, 30), (0, 27))
    like = diagnose(made, [found] * 18 + [nothing] * 12, reference=[found] * 18 + [nothing] * 12)
    assert by_name(like, "empty").severity == "notice"
