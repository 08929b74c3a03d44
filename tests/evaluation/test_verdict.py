"""The test of a guarantee on new queries."""

import math

import drawn
import numpy as np
import pytest
from scipy.stats import beta, betabinom, binom, binomtest

from conformal_retrievers import ScoredQuery, diagnose, evaluate
from conformal_retrievers.evaluation.measures import GUARANTEES
from conformal_retrievers.evaluation.power import coverage_p_value
from conformal_retrievers.evaluation.share import Share

NINETY_NINE = np.linspace(0, 0.5, 99)


def calibrated(given=NINETY_NINE, alpha=0.1, **options):
    return drawn.calibrated(given, alpha, **options)


def covered(n, kept, **options):
    """Queries with one relevant snippet, of which `kept` score below a threshold of 0.5."""
    return [ScoredQuery([0.1 if i < kept else 0.9], [True], **options) for i in range(n)]


# --- the p-value ----------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", ["all", "any"])
@pytest.mark.parametrize("kept", [36, 39, 40, 45, 50])
def test_the_p_value_of_whole_queries_is_beta_binomial(guarantee, kept):
    verdict = evaluate(calibrated(guarantee=guarantee), covered(50, kept)).verdict
    assert verdict.p_value == pytest.approx(betabinom(50, 90, 10).cdf(kept), rel=1e-9)
    assert (verdict.target, verdict.coverage.estimate) == (0.9, kept / 50)
    assert verdict.fails == (kept <= 39)  # .055 at 40
    assert ("fails" in str(verdict)) == verdict.fails
    assert f"{guarantee} coverage is {100 * kept / 50:.1f} %" in str(verdict)


def test_snippets_count_by_their_effective_number():
    """Three snippets of one score each are worth one, in the calibration and beyond."""
    threes = [ScoredQuery([s] * 3, [True] * 3) for s in np.linspace(0, 0.5, 99)]
    calibration = calibrated(threes, guarantee="snippet")
    new = [ScoredQuery([0.1 if i < 39 else 0.9] * 3, [True] * 3) for i in range(50)]
    verdict = evaluate(calibration, new).verdict
    n, m = round(calibration.effective_n), round(verdict.coverage.effective_n)
    assert (n, m, verdict.coverage.n) == (98, 49, 150)
    k = math.ceil((n + 1) * 0.9)
    kept = math.ceil(0.78 * m)
    assert verdict.p_value == pytest.approx(betabinom(m, k, n + 1 - k).cdf(kept), rel=1e-9)


def test_the_share_of_a_query_counts_conservatively_as_yes_or_no():
    new = [ScoredQuery([0.1, 0.9 if i < 30 else 0.1], [True, True]) for i in range(50)]
    verdict = evaluate(calibrated(), new).verdict
    assert verdict.coverage.effective_n > 100
    assert verdict.p_value == pytest.approx(betabinom(50, 90, 10).cdf(35), rel=1e-9)


def test_with_delta_the_p_value_is_binomial():
    verdict = evaluate(calibrated(guarantee="all", delta=0.1), covered(50, 40)).verdict
    assert verdict.p_value == pytest.approx(binom(50, 0.9).cdf(40), rel=1e-9)


def test_without_measured_units_the_p_value_is_1():
    assert coverage_p_value(calibrated(), Share.of_units([])) == 1


def test_missed_snippets_count_if_the_calibration_counts_them():
    verdict = evaluate(calibrated(count_missed=True), covered(50, 50, missed=1)).verdict
    assert verdict.measure == "end-to-end query-recall coverage"
    assert verdict.coverage.estimate == 0.5
    assert verdict.fails


def test_a_calibration_that_keeps_everything_has_no_verdict():
    measured = evaluate(calibrated([0.1]), covered(10, 0))
    assert measured.verdict is None
    assert "Nothing is tested" in str(measured)


@pytest.mark.parametrize("count_missed", [False, True])
def test_a_calibration_with_threshold_minus_infinity_is_tested(count_missed):
    calibration = calibrated([-math.inf] * 19 + [0.1], count_missed=count_missed)
    assert calibration.threshold() == -math.inf
    e = evaluate(calibration, covered(50, 50, missed=0))
    assert (e.coverage["query-recall"].estimate, e.verdict.fails) == (0, True)
    assert not e.out_of_reach


def grouped(**groups):
    return [ScoredQuery([s], [True], group=g) for g, scores in groups.items() for s in scores]


def test_by_group_the_worst_group_is_corrected_for_the_number_of_groups():
    calibration = calibrated(grouped(a=NINETY_NINE, b=NINETY_NINE), guarantee="all", by_group=True)
    e = evaluate(calibration, covered(50, 41, group="a") + covered(50, 46, group="b"))
    alone = betabinom(50, 90, 10).cdf(41)
    assert e.by_group["a"].verdict.p_value == pytest.approx(alone, rel=1e-9)
    assert (e.verdict.p_value, e.verdict.group_p_value) == pytest.approx((2 * alone, alone))
    assert (e.verdict.group, e.verdict.tests) == ("a", 2)
    alone = covered(50, 41, group="a")
    more = evaluate(calibration, alone + covered(1, 1, group="new")).verdict
    assert (more.tests, more.needed) == (1, evaluate(calibration, alone).verdict.needed)
    assert "in group 'a'" in str(e.verdict)


def test_a_group_with_threshold_minus_infinity_is_among_those_tested():
    calibration = calibrated(grouped(a=NINETY_NINE, none=[-math.inf] * 99), by_group=True)
    new = covered(50, 46, group="a") + unscored(50, 0, group="none")
    e, d = evaluate(calibration, new), diagnose(calibration, new)
    assert (e.verdict.group, e.verdict.tests, e.verdict.fails) == ("none", 2, True)
    assert repr(d.evaluation) == repr(e)  # holds NaN, which is unequal to itself


def unscored(n, none, **options):
    """Queries with one relevant snippet, of which the first `none` have no score."""
    return [ScoredQuery([math.nan if i < none else 0.1], [True], **options) for i in range(n)]


@pytest.mark.parametrize(("none", "tested"), [(0, True), (1, True), (24, True), (25, False)])
def test_nothing_is_tested_if_half_of_the_snippets_are_unscorable(none, tested):
    e = evaluate(calibrated(), unscored(50, none))
    assert e.verdict.unscorable == none / 50
    assert e.mostly_unscorable == e.verdict.untested == (not tested)
    assert ("is not tested" in str(e.verdict)) == (not tested)
    assert (f"{100 * none / 50:.1f} % of the snippets could not be scored" in str(e)) == (none > 0)


@pytest.mark.slow
def test_a_guarantee_that_holds_fails_in_at_most_5_of_100():
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
        calibration, new = calibrated(queries(60)), queries(80)
        for guarantee in GUARANTEES:
            alarms[guarantee] += evaluate(calibration.guaranteeing(guarantee), new).verdict.fails
    for number in alarms.values():
        assert binomtest(number, 400, 0.05, alternative="greater").pvalue > 1e-4


# --- too few to tell ------------------------------------------------------------------------------

LARGE = np.linspace(0, 0.5, 399)


def test_queries_that_all_keep_rule_5_points_less_out_from_19_on():
    """0.85^18 = 0.054 and 0.85^19 = 0.046."""
    few, enough = (evaluate(calibrated(LARGE), covered(n, n)).verdict for n in (18, 19))
    assert (few.too_few, few.needed, enough.too_few) == (True, 300, False)
    assert "Too few to tell: 18 of the 300 queries" in str(few)
    assert "of 90 % from one of 85 %." in str(few)
    assert "No evidence" not in str(few)
    assert "No evidence" in str(enough)
    assert "and 85 % is ruled out" in str(enough)


@pytest.mark.parametrize(("alpha", "needed"), [(0.05, 180), (0.1, 300), (0.2, 460)])
@pytest.mark.parametrize("guarantee", ["query-recall", "all"])
def test_the_number_that_tells_rules_5_points_less_out_with_probability_80_percent(
    alpha, needed, guarantee
):
    def power(m):
        kept = np.arange(m + 1)
        return binom(m, 1 - alpha).sf(kept[binom(m, 0.95 - alpha).sf(kept - 1) < 0.05][0] - 1)

    assert power(needed - 20) < 0.8 <= power(needed)
    for n in (40, 400):  # in calibrations
        calibration = calibrated(np.linspace(0, 0.5, n), alpha, guarantee=guarantee)
        verdict = evaluate(calibration, covered(10, 9)).verdict
        assert (verdict.n, verdict.needed, verdict.too_few) == (10, needed, True)


def test_between_the_two_coverages_the_number_that_tells_is_that_of_the_coverage_measured():
    """Of 300 queries 87 % are kept, which contradicts neither 85 % nor the guarantee."""

    def tell(m):
        low, high = math.ceil(0.87 * m), math.floor(0.87 * m)
        return min(betabinom(m, 360, 40).cdf(low), binom(m, 0.85).sf(high - 1)) < 0.05

    verdict = evaluate(calibrated(LARGE), covered(300, 261)).verdict
    assert verdict.too_few
    assert verdict.needed == 960
    assert (tell(300), tell(940), tell(960)) == (False, False, True)


def test_a_failure_and_5_points_below_no_coverage_are_never_too_few_to_tell():
    failed = evaluate(calibrated(LARGE), covered(11, 3)).verdict
    assert (failed.fails, failed.too_few) == (True, False)
    verdict = evaluate(calibrated(alpha=0.95), covered(1, 1)).verdict
    assert not verdict.too_few
    assert "ruled out" not in str(verdict)


def test_after_a_small_calibration_no_number_of_queries_contradicts_5_points_less():
    assert beta(90, 10).cdf(0.85) > 0.05
    assert beta(109, 12).cdf(0.85) < 0.05  # of 120 queries
    e = evaluate(calibrated(), covered(2000, 1700))
    assert (e.verdict.needed, e.verdict.fails) == (math.inf, False)
    assert "The calibration is too small to tell, however many new queries are measured" in str(e)
    assert "Calibrate on more queries." in str(e).replace("\n", " ")


def test_the_group_that_lacks_most_is_too_small_to_tell():
    one, other = (np.linspace(0, 0.5, n) for n in (399, 999))
    by_group = calibrated(grouped(a=one, b=other), by_group=True)
    verdict = evaluate(by_group, covered(400, 370, group="a") + covered(12, 12, group="b")).verdict
    assert (verdict.group, verdict.n, verdict.tests) == ("a", 12, 2)
    assert verdict.needed == 380  # at 0.025, for two groups
    assert "in one group" in verdict.shortage
