"""The flag: its threshold by hand, its guarantee over many calibrations, its file."""

import dataclasses
import math
import warnings
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from drawn import calibrated
from scipy.stats import betabinom

from conformal_retrievers import Calibration, CalibrationMismatch
from conformal_retrievers.lookback import FactualityClassifier, JudgedRatios, LookbackRatios
from conformal_retrievers.lookback.flag import Confidence, FactualityFlag, calibrate_flag
from conformal_retrievers.theory.intervals import wilson_interval

# Confidence is a logistic function of the middle one of three heads; the others fix the scale.
CLASSIFIER = FactualityClassifier(
    "m", "full-context", 1, 3, 1, np.array([0.0, 1.0, 0.0]), -0.5, frozenset()
)
NOTHING = LookbackRatios(np.full((1, 3, 1), np.nan), np.full((1, 3), np.nan), "m", "no token")


def ratios_of(value, answer=None):
    return LookbackRatios(np.ones((1, 3, 1)), np.array([[0.0, value, 1.0]]), "m", answer)


def confidence_of(value):
    return 1 / (1 + math.exp(0.5 - value))


def judged(values, consistent, groups=None, name="answer"):
    groups = groups or [None] * len(values)
    return [
        JudgedRatios(ratios_of(v, f"{name} {i}"), c, group=g)
        for i, (v, c, g) in enumerate(zip(values, consistent, groups, strict=True))
    ]


def flag_of(answers, alpha=0.2, **options):
    return calibrate_flag(answers, CLASSIFIER, alpha=alpha, **options)


INCONSISTENT = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
ANSWERS = judged([*INCONSISTENT, 0.95, 0.15, 0.97], [False] * len(INCONSISTENT) + [True] * 3)
AGAIN = JudgedRatios(ratios_of(0.99, "answer 2"), False, id="other")
GROUPS = ["hard"] * 9 + ["easy"] * 4
BY_GROUP = judged([*INCONSISTENT, 0.05, 0.06, 0.07, 0.08], [False] * 13, GROUPS)


@pytest.fixture(scope="module")
def flag():
    return flag_of(ANSWERS)


# --- the guarantee --------------------------------------------------------------------------------


def test_the_threshold_by_hand(flag):
    """⌈10 · 0.8⌉ = 8th of nine confidences of inconsistent answers, that of 0.8."""
    assert flag.calibration.threshold() == pytest.approx(confidence_of(0.8))
    assert flag(ratios_of(0.8)) == Confidence(pytest.approx(confidence_of(0.8)), True)
    assert flag(ratios_of(0.81)) == Confidence(pytest.approx(confidence_of(0.81)), False)
    assert flag(ratios_of(0.0)).flagged
    assert "inconsistent answer" in flag.calibration.statement
    assert "snippet" not in flag.calibration.statement


@pytest.mark.parametrize("n", [4, 19])
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_left_out_in_turn_exactly_the_guaranteed_number_is_flagged(n, alpha):
    """Of n + 1 distinct confidences ⌈(n+1)(1−α)⌉ are flagged, and with ties no fewer."""
    rng = np.random.default_rng(n)
    for values in (rng.random(n + 1), rng.integers(0, 4, n + 1) / 4):
        flagged = 0
        for i, value in enumerate(values):
            others = judged(np.delete(values, i), [False] * n)
            flagged += flag_of(others, alpha)(ratios_of(value)).flagged
        guaranteed = math.ceil((n + 1) * (1 - Fraction(str(alpha))))
        assert flagged == guaranteed if len(set(values)) == n + 1 else flagged >= guaranteed


def test_groups_have_thresholds_and_without_a_known_one_it_is_flagged_with_a_warning(flag):
    grouped = flag_of(BY_GROUP, by_group=True)
    assert [grouped(ratios_of(0.5), group).flagged for group in ("hard", "easy")] == [True, False]
    assert not grouped(ratios_of(0.99), "hard").flagged
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")  # as Python shows them: each text and place once
        for group in (None, "unknown", "another", None):
            assert grouped(ratios_of(0.99), group).flagged
        assert not flag(ratios_of(0.99), "unknown").flagged
    unknown, none = "a query has a group that is not among", "a query has no group among"
    assert [str(one.message).partition(" 'hard', 'easy'")[0] for one in shown] == [none, unknown]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "options", "message"),
    [
        (ANSWERS, {"by_group": True}, "group is None"),
        (ANSWERS, {"delta": 0.01}, "delta"),
        (judged([0.1, 0.2], [True, True]), {}, "2 consistent and no inconsistent"),
        ([*ANSWERS, JudgedRatios(NOTHING, False)], {}, r"answers\[12\] has no token"),
        ([*ANSWERS, AGAIN], {}, r"answers\[12\] is the same answer .* answers\[2\]"),
    ],
    ids=["no group", "too few", "all consistent", "no token", "twice"],
)
def test_answers_that_cannot_calibrate_are_refused(answers, options, message):
    with pytest.raises(ValueError, match=message):
        calibrate_flag(answers, CLASSIFIER, alpha=0.2, **options)
    with pytest.raises(TypeError, match=r"answers\[0\] is 1"):
        flag_of([1])


def test_an_id_identifies_one_answer(flag):
    first, *others = (
        dataclasses.replace(a, id=f"n{i}")
        for i, a in enumerate(judged([0.1, 0.2, 0.3], [False, True, False], name="new"))
    )
    same = [first, others[0], dataclasses.replace(others[1], id=first.id)]
    for use in (partial(calibrate_flag, classifier=CLASSIFIER, alpha=0.5), flag.evaluate):
        with pytest.raises(ValueError, match=r"id.*'n0'|'n0'.*id"):
            use(same)


def test_a_calibration_of_another_subject_or_classifier_is_refused(flag):
    with pytest.raises(CalibrationMismatch, match="snippets"):
        FactualityFlag(CLASSIFIER, calibrated([0.1] * 9, 0.2, CLASSIFIER.name))
    other = dataclasses.replace(CLASSIFIER, coefficients=np.array([0.0, 2.0, 0.0]))
    with pytest.raises(CalibrationMismatch, match="calibrat"):
        FactualityFlag(other, flag.calibration)
    for use, remedy in (
        (lambda: flag("attention"), r"give lookback_ratios\(attention\)"),
        (lambda: FactualityFlag("fact.json", flag.calibration), "give FactualityClassifier.load"),
        (lambda: calibrate_flag(ANSWERS, flag, alpha=0.2), "give FactualityClassifier.load"),
        (lambda: JudgedRatios("attention", True), r"give lookback_ratios\(generated.attention\)"),
        (lambda: dataclasses.replace(AGAIN, id=3), "id is 3; give a str"),
    ):
        with pytest.raises(TypeError, match=remedy):
            use()
    with pytest.warns(UserWarning, match="alpha is 0.9, the risk"):
        flag_of(ANSWERS, alpha=0.9)


# --- files, evaluation ----------------------------------------------------------------------------


def test_the_shares_of_new_answers_that_are_flagged_by_hand(flag):
    """The threshold is the confidence of 0.8; the answer without a token is flagged."""
    new = judged([0.1, 0.8, 0.81, 0.79, 0.99], [False, False, False, True, True], name="new")
    found = flag.evaluate([*new, JudgedRatios(NOTHING, False)])
    assert (found.inconsistent.n, found.consistent.n, found.target) == (4, 2, 0.8)
    assert found.inconsistent.interval == pytest.approx(wilson_interval(0.75, 4))
    assert found.consistent.interval == pytest.approx(wilson_interval(0.5, 2))
    assert "75.0 % [30.1, 95.4] of 4 inconsistent answers" in str(found)
    assert max(map(len, str(found).splitlines())) <= 80
    alone = flag.evaluate(new[:1], level=0.5)
    assert alone.consistent.n == 0
    assert alone.inconsistent.low > flag.evaluate(new[:1]).inconsistent.low


def test_the_verdict_on_a_flag_by_hand():
    """Rank 80 of 99 confidences: BetaBinomial(40; 80, 20) of 40 new answers are flagged."""
    fitted = flag_of(judged(np.linspace(0.01, 0.99, 99), [False] * 99))
    new = judged([0.1] * 25 + [0.99] * 15 + [0.1], [False] * 40 + [True], name="new")
    found = fitted.evaluate(dataclasses.replace(a, id=f"n{i}") for i, a in enumerate(new))
    assert found.verdict.p_value == pytest.approx(betabinom(40, 80, 20).cdf(25), rel=1e-9)
    assert (found.verdict.n, found.verdict.fails, found.by_group) == (40, True, {})
    assert "recall of inconsistent answers is 62.5 %" in str(found)
    assert "Cannot verify" in str(found)  # those that were calibrated on have no id


def test_each_group_of_a_flag_is_tested_and_one_without_a_threshold_is_not():
    grouped = flag_of(BY_GROUP, by_group=True)
    values, groups = [0.95] * 9 + [0.01] * 9, ["hard"] * 9 + ["none"] * 9
    with pytest.warns(UserWarning, match="'hard', 'easy'"):
        found = grouped.evaluate(judged(values, [False] * 18, groups, name="new"))
    assert list(found.by_group) == ["hard", "none"]
    assert found.by_group["none"].verdict is None
    assert (found.verdict.group, found.verdict.fails) == ("hard", True)
    assert found.by_group["hard"].inconsistent.estimate == 0


def test_evaluation_refuses_answers_that_calibrated_or_were_fitted_on(tmp_path):
    named = [dataclasses.replace(a, id=f"q{i}") for i, a in enumerate(ANSWERS)]
    flag_of(named).calibration.save(tmp_path / "flag.json")
    flag = FactualityFlag(CLASSIFIER, Calibration.load(tmp_path / "flag.json"))
    [new] = judged([0.1], [False], name="new")
    flag.evaluate([new])
    for answers, words in (
        ([new, ANSWERS[4]], r"answers\[1\] .* calibrate the flag"),  # an inconsistent one
        ([new, ANSWERS[11]], r"answers\[1\] .* calibrate the flag"),  # and a consistent one
        ([], "no answers"),
        ([dataclasses.replace(new, id="q2")], "'q2'"),
        ([new, new], r"answers\[1\] .*answers\[0\]"),
    ):
        with pytest.raises(ValueError, match=words):
            flag.evaluate(answers)
    fitted = dataclasses.replace(CLASSIFIER, fitted_on=frozenset({new.ratios.digest}))
    for use in (
        FactualityFlag(fitted, flag.calibration).evaluate,
        partial(calibrate_flag, classifier=fitted, alpha=0.2),
    ):
        with pytest.raises(ValueError, match=r"answers\[0\] .* fit the classifier"):
            use([new])


def test_labels_that_are_turned_round_are_warned_of():
    values, consistent = np.random.default_rng(3).normal(size=60), np.arange(60) % 2 == 0
    flag_of(judged(values.tolist(), consistent.tolist()))  # by chance alone: no warning
    with pytest.warns(UserWarning, match="inconsistent answers have higher confid"):
        flag_of(judged((values - 2 * consistent).tolist(), consistent.tolist()))


def test_where_all_is_flagged_nothing_is_tested():
    few = flag_of(judged([0.1, 0.2, 0.9], [False, False, True]))
    assert "not tested: every answer is flagged." in str(
        few.evaluate(judged([0.5], [False], name="new"))
    )
