"""The flag: its threshold by hand, its promise over many calibrations, its statement."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import warnings
from fractions import Fraction
from functools import partial
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import binom
from typer.testing import CliRunner

from conformal_retrievers import Calibration, CalibrationMismatch, ScoredQuery
from conformal_retrievers.cli import app
from conformal_retrievers.labels.consistency import ConsistencyLabels
from conformal_retrievers.lookback.classifier import (
    FactualityClassifier,
    JudgedRatios,
    LookbackRatios,
)
from conformal_retrievers.lookback.flag import Confidence, FactualityFlag, calibrate_flag

# Confidence is a logistic function of the middle one of three heads; the others fix the scale.
CLASSIFIER = FactualityClassifier(
    "m", "full-context", 1, 3, 1, np.array([0.0, 1.0, 0.0]), -0.5, frozenset()
)


def ratios_of(value, answer=None):
    return LookbackRatios(np.ones((1, 3, 1)), np.array([[0.0, value, 1.0]]), "m", answer)


def confidence_of(value):
    return 1 / (1 + math.exp(0.5 - value))


def judged(values, consistent, groups=None):
    groups = groups or [None] * len(values)
    return [
        JudgedRatios(ratios_of(v, f"answer {i}"), c, group=g)
        for i, (v, c, g) in enumerate(zip(values, consistent, groups, strict=True))
    ]


INCONSISTENT = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
ANSWERS = judged([*INCONSISTENT, 0.95, 0.15, 0.97], [False] * len(INCONSISTENT) + [True] * 3)


def test_the_threshold_by_hand():
    """⌈10 · 0.8⌉ = 8th of nine confidences of inconsistent answers, that of 0.8."""
    flag = calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.2)
    assert flag.calibration.threshold() == pytest.approx(confidence_of(0.8))
    assert flag(ratios_of(0.8)) == Confidence(pytest.approx(confidence_of(0.8)), True)
    assert flag(ratios_of(0.81)) == Confidence(pytest.approx(confidence_of(0.81)), False)
    assert flag(ratios_of(0.0)).flagged


def test_an_answer_without_confidence_is_flagged():
    flag = calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.2)
    nothing = LookbackRatios(np.full((1, 3, 1), np.nan), np.full((1, 3), np.nan), "m")
    said = flag(nothing)
    assert math.isnan(said.value)
    assert said.flagged


def test_inconsistent_answers_are_flagged_as_often_as_promised():
    """1000 calibrations on 19 inconsistent answers, alpha 0.25: P(flagged) is exactly 15/20."""
    rng = np.random.default_rng(7)
    flagged = 0
    for _ in range(1000):
        values = rng.beta(2, 1, 20)
        flag = calibrate_flag(judged(values[:19], [False] * 19), CLASSIFIER, alpha=0.25)
        flagged += flag(ratios_of(values[19])).flagged
    low, high = binom.ppf([5e-5, 1 - 5e-5], 1000, 0.75)
    assert low <= flagged <= high


@pytest.mark.parametrize("n", [4, 9, 19, 24])
@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.25, 0.3, 0.5])
def test_of_answers_left_out_in_turn_as_many_are_flagged_as_promised(n, alpha):
    """Exchangeability by enumeration: of n + 1 distinct confidences, each left out in turn, exactly
    ⌈(n+1)(1−α)⌉ are flagged, and with ties no fewer."""
    rng = np.random.default_rng(n)
    for values in (rng.random(n + 1), rng.integers(0, 4, n + 1) / 4):
        flagged = 0
        for i, value in enumerate(values):
            others = judged(np.delete(values, i), [False] * n)
            flagged += calibrate_flag(others, CLASSIFIER, alpha=alpha)(ratios_of(value)).flagged
        promised = math.ceil((n + 1) * (1 - Fraction(str(alpha))))
        assert flagged == promised if len(set(values)) == n + 1 else flagged >= promised


def test_with_delta_all_calibrations_but_a_few_flag_enough():
    """Confidences are uniform up to a monotone map, so a threshold is its own coverage."""
    rng = np.random.default_rng(8)
    short = 0
    for _ in range(300):
        values = rng.random(60)
        flag = calibrate_flag(judged(values, [False] * 60), CLASSIFIER, alpha=0.2, delta=0.1)
        threshold = flag.calibration.threshold()
        coverage = 0.5 + math.log(threshold / (1 - threshold))
        short += coverage < 0.8
    assert short <= binom.ppf(1 - 1e-4, 300, 0.1)
    with pytest.raises(ValueError, match="delta"):
        calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.1, delta=0.1)


def test_groups_have_thresholds_of_their_own():
    answers = judged(
        [*INCONSISTENT, 0.05, 0.06, 0.07, 0.08, 0.3],
        [False] * 13 + [True],
        ["hard"] * 9 + ["easy"] * 4 + ["easy"],
    )
    flag = calibrate_flag(answers, CLASSIFIER, alpha=0.2, by_group=True)
    assert flag(ratios_of(0.5), "hard").flagged
    assert not flag(ratios_of(0.5), "easy").flagged
    assert not flag(ratios_of(0.99), "hard").flagged
    assert "in group hard, an answer of confidence at most 0.574443 (from 9" in flag.statement
    assert "In a group that is not named here, every answer is flagged." in flag.statement


def test_an_answer_of_no_known_group_is_flagged_and_that_is_said_once():
    groups = ["hard"] * 9 + ["easy"] * 4
    answers = judged([*INCONSISTENT, 0.05, 0.06, 0.07, 0.08], [False] * 13, groups)
    flag = calibrate_flag(answers, CLASSIFIER, alpha=0.2, by_group=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")  # as Python shows them: each text and place once
        for group in (None, "unknown", "another", None):
            assert flag(ratios_of(0.99), group).flagged
        assert not flag(ratios_of(0.99), "easy").flagged
    assert [str(one.message) for one in said] == [
        "the flag is by group ('hard', 'easy'), and a question has none of these, so its answer is "
        "flagged; give the group of each question, or calibrate with more groups"
    ]
    of_all = calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not of_all(ratios_of(0.99)).flagged
        assert not of_all(ratios_of(0.99), "unknown").flagged


def test_the_statement_speaks_of_answers():
    statement = calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.2).statement
    assert statement.startswith(
        "An inconsistent answer is flagged with probability at least 0.8 (alpha = 0.2, "
        "delta = None). Flagged is, by 'factuality(m; full-context, 1×3×1, fit="
    )
    assert "an answer of confidence at most 0.574443 (from 9 inconsistent ones)" in statement
    assert "It rests on 9 inconsistent answers; 3 consistent ones did not enter." in statement
    assert "snippet" not in statement


def test_the_statement_of_a_file_is_that_of_the_flag(tmp_path):
    flag = calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.2)
    flag.calibration.save(tmp_path / "flag.json")
    loaded = Calibration.load(tmp_path / "flag.json")
    assert loaded.statement == flag.statement
    assert loaded.at(0.3).statement.startswith("An inconsistent answer is flagged with prob")


def test_too_few_inconsistent_answers_flag_everything_and_say_so():
    flag = calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.05)
    assert flag(ratios_of(1.0)).flagged
    assert "every answer, as 9 inconsistent ones are too few: it takes 19" in flag.statement


def test_delta_is_part_of_the_statement():
    answers = judged(np.linspace(0, 1, 40), [False] * 40)
    statement = calibrate_flag(answers, CLASSIFIER, alpha=0.2, delta=0.1).statement
    assert statement.startswith(
        "Of all calibrations like this one, at least 0.9 keep that an inconsistent answer is "
        "flagged with probability at least 0.8 (alpha = 0.2, delta = 0.1)."
    )


def test_a_saved_calibration_flags_the_same(tmp_path):
    flag = calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.2)
    flag.calibration.save(tmp_path / "flag.json")
    CLASSIFIER.save(tmp_path / "factuality.json")
    again = FactualityFlag(
        FactualityClassifier.load(tmp_path / "factuality.json"),
        Calibration.load(tmp_path / "flag.json"),
    )
    assert again.statement == again.calibration.statement == flag.statement
    assert again(ratios_of(0.81)) == flag(ratios_of(0.81))


@pytest.mark.parametrize("by_group", [False, True])
def test_show_speaks_of_the_answers_of_a_flags_file(tmp_path, by_group):
    groups = ["easy", "hard"] * 6
    answers = [dataclasses.replace(a, group=g) for a, g in zip(ANSWERS, groups, strict=True)]
    flag = calibrate_flag(answers, CLASSIFIER, alpha=0.2, by_group=by_group)
    path = tmp_path / "flag.json"
    flag.calibration.save(path)
    shown = CliRunner().invoke(app, ["show", str(path)])
    assert shown.exit_code == 0
    words = " ".join(shown.output.split())
    assert " ".join(flag.statement.split()) in words
    assert re.search("inconsistent answers 9 consistent answers 3 alpha 0.2 by group", words)
    assert "Flagged is an answer of confidence at most, for alpha =" in words
    assert not re.search("kept|snippet|quer(y|ies)", words, re.IGNORECASE)
    for group in ("easy", "hard") if by_group else (None,):
        row = re.search(rf"^{group or 'all answers'} +(.*)$", shown.output, re.M)[1].split()
        threshold = flag.calibration.threshold(group)
        assert row[3] == ("all" if math.isinf(threshold) else f"{threshold:.5g}")
    facts = json.loads(CliRunner().invoke(app, ["show", str(path), "--json"]).output)
    assert facts["statement"] == flag.statement
    assert (facts["inconsistent_answers"], facts["consistent_answers"]) == (9, 3)
    assert facts["classifier"] == CLASSIFIER.name
    assert Calibration.load(path).subject.name == "flags"


@pytest.mark.parametrize("command", ["evaluate", "diagnose", "report"])
def test_a_command_for_snippets_says_what_a_flags_file_is(tmp_path, command):
    path, judged_file = tmp_path / "flag.json", tmp_path / "judged.jsonl"
    calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.2).calibration.save(path)
    judged_file.write_text('{"query": "a", "snippets": [{"text": "b", "relevant": true}]}\n')
    more = ["--out", str(tmp_path / "report.html")] if command == "report" else []
    ran = CliRunner().invoke(app, [command, str(path), str(judged_file), *more])
    said = " ".join(ran.output.split())
    assert ran.exit_code == 1
    assert (
        "is the calibration of a flag for answers, not of snippets; use FactualityFlag.eval" in said
    )


def test_a_calibration_of_snippets_is_no_flag():
    scored = [ScoredQuery([0.1], [True])] * 9
    calibration = Calibration.from_scores(scored, alpha=0.2, scorer="s", labels={"source": "us"})
    message = r"calibration is one of snippets, scored by {}, .* give the one that FactualityFlag"
    with pytest.raises(ValueError, match=message.format("'s'")):
        FactualityFlag(CLASSIFIER, calibration)
    renamed = dataclasses.replace(calibration, scorer=CLASSIFIER.name)
    with pytest.raises(ValueError, match=message.format(re.escape(repr(CLASSIFIER.name)))):
        FactualityFlag(CLASSIFIER, renamed)


def test_a_calibration_of_another_classifier_is_refused():
    flag = calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.2)
    other = FactualityClassifier(
        "m", "full-context", 1, 3, 1, np.array([0.0, 2.0, 0.0]), -0.5, frozenset()
    )
    with pytest.raises(CalibrationMismatch, match="a threshold belongs to one classifier"):
        FactualityFlag(other, flag.calibration)


def test_a_flag_is_made_of_a_classifier_and_a_calibration():
    flag = calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.2)
    with pytest.raises(TypeError, match=r"classifier is the str 'factuality.json'; give a Factua"):
        FactualityFlag("factuality.json", flag.calibration)
    with pytest.raises(TypeError, match=r"calibration is a FactualityFlag; give its .calibration"):
        FactualityFlag(CLASSIFIER, flag)
    with pytest.raises(
        TypeError, match=r"calibration is the str 'flag.json'; give Calibration.loa"
    ):
        FactualityFlag(CLASSIFIER, "flag.json")


@pytest.mark.parametrize("given", ["six hours", ANSWERS[0]], ids=["text", "judged"])
def test_a_flag_is_asked_about_ratios(given):
    flag = calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.2)
    with pytest.raises(
        TypeError, match="ratios is (the str 'six hours'|a JudgedRatios); give a Look"
    ):
        flag(given)


def test_answers_are_judged_before_they_calibrate():
    flag = calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.2)
    for use in (partial(FactualityFlag.calibrate, CLASSIFIER, alpha=0.2), flag.evaluate):
        with pytest.raises(
            TypeError, match=r"answers\[0\] is a LookbackRatios; give a JudgedRatios"
        ):
            use([ratios_of(0.1)])
    with pytest.raises(
        TypeError, match="classifier is the str 'factuality.json'; give a Factuality"
    ):
        FactualityFlag.calibrate("factuality.json", ANSWERS, alpha=0.2)


def test_what_cannot_calibrate_is_refused():
    fitted_on = FactualityClassifier(
        *("m", "full-context", 1, 3, 1, np.array([0.0, 1.0, 0.0]), -0.5),
        frozenset({ANSWERS[4].ratios.digest}),
    )
    with pytest.raises(ValueError, match=r"answers\[4\] is one that the classifier was fitted on"):
        calibrate_flag(ANSWERS, fitted_on, alpha=0.2)
    with pytest.raises(ValueError, match=r"answers\[0\].group is None, but by_group is True; name"):
        calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.2, by_group=True)
    with pytest.raises(ValueError, match="all of the 2 answers are consistent"):
        calibrate_flag(judged([0.1, 0.2], [True, True]), CLASSIFIER, alpha=0.2)
    nothing = LookbackRatios(np.full((1, 3, 1), np.nan), np.full((1, 3), np.nan), "m")
    with pytest.raises(ValueError, match=r"answers\[12\] has no token, so no confidence"):
        calibrate_flag([*ANSWERS, JudgedRatios(nothing, False)], CLASSIFIER, alpha=0.2)


def test_where_the_labels_come_from_is_written_into_the_file(tmp_path):
    source = {"source": "LLM", "llm": "judge", "relevant": "anything"}
    flag = calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.2, labels=source)
    path = tmp_path / "flag.json"
    flag.calibration.save(path)
    again = Calibration.load(path)
    assert again.labels["judged_by"] == source
    assert again.subject.name == "flags"
    shown = CliRunner().invoke(app, ["show", str(path)]).output
    assert "source: LLM, llm: judge" in " ".join(shown.split())
    assert "answer 3" not in shown
    facts = json.loads(CliRunner().invoke(app, ["show", str(path), "--json"]).output)
    assert facts["labels"] == source
    labelled = ConsistencyLabels((True,), {}, source)
    with pytest.raises(
        TypeError, match="labels is a ConsistencyLabels; give a mapping, .*its .labels"
    ):
        calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.2, labels=labelled)


def judged_anew(values, consistent):
    return [
        JudgedRatios(ratios_of(v, f"new answer {i}"), c, id=f"n{i}")
        for i, (v, c) in enumerate(zip(values, consistent, strict=True))
    ]


def test_the_shares_that_are_flagged_of_new_answers_by_hand():
    """The threshold is the confidence of 0.8; Wilson's interval of 3 of 4 and of 1 of 2."""
    flag = calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.2)
    nothing = LookbackRatios(np.full((1, 3, 1), np.nan), np.full((1, 3), np.nan), "m", "nothing")
    new = judged_anew([0.1, 0.8, 0.81, 0.79, 0.99], [False, False, False, True, True])
    found = flag.evaluate([*new, JudgedRatios(nothing, False)])
    z = NormalDist().inv_cdf(0.975)
    for share, p, n in ((found.inconsistent, 0.75, 4), (found.consistent, 0.5, 2)):
        centre, scale = p + z * z / (2 * n), 1 + z * z / n
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        assert share == pytest.approx((p, (centre - half) / scale, (centre + half) / scale))
    assert (found.n_inconsistent, found.n_consistent, found.target) == (4, 2, 0.8)
    assert str(found) == (
        "flagged are 75.0% [30.1%, 95.4%] of 4 inconsistent answers, of which at least 80 % are "
        "promised, and 50.0% [9.5%, 90.5%] of 2 consistent ones"
    )
    alone = flag.evaluate(new[:1], level=0.5)
    assert alone.consistent is None
    assert str(alone).endswith("promised, and – of 0 consistent ones")
    assert alone.inconsistent.low > flag.evaluate(new[:1]).inconsistent.low


def test_a_flag_is_evaluated_group_by_group_where_it_has_groups():
    groups = ["hard"] * 9 + ["easy"] * 4
    answers = judged([*INCONSISTENT, 0.05, 0.06, 0.07, 0.08], [False] * 13, groups)
    flag = calibrate_flag(answers, CLASSIFIER, alpha=0.2, by_group=True)
    new = [
        dataclasses.replace(a, group=g)
        for a, g in zip(judged_anew([0.5] * 3, [False] * 3), ("hard", "easy", "hard"), strict=True)
    ]
    assert flag.evaluate(new).inconsistent.estimate == pytest.approx(2 / 3)


def test_a_flag_is_not_evaluated_on_what_made_it(tmp_path):
    named = [dataclasses.replace(a, id=f"q{i}") for i, a in enumerate(ANSWERS)]
    flag = calibrate_flag(named, CLASSIFIER, alpha=0.2)
    flag.calibration.save(tmp_path / "flag.json")
    flag = FactualityFlag(CLASSIFIER, Calibration.load(tmp_path / "flag.json"))
    new = judged_anew([0.1], [False])
    for old in (ANSWERS[4], ANSWERS[11]):  # an inconsistent and a consistent one
        with pytest.raises(
            ValueError, match=r"answers\[1\] is one that the flag was calibrated on"
        ):
            flag.evaluate([*new, old])
    with pytest.raises(ValueError, match=r"answers\[0\], id 'q2', is one that the flag was calib"):
        flag.evaluate([dataclasses.replace(new[0], id="q2")])
    with pytest.raises(ValueError, match=r"answers\[1\] is the same answer as answers\[0\]"):
        flag.evaluate([*new, *new])
    with pytest.raises(ValueError, match="there are no answers"):
        flag.evaluate([])
    fitted = dataclasses.replace(CLASSIFIER, fitted_on=frozenset({new[0].ratios.digest}))
    with pytest.raises(ValueError, match=r"answers\[0\] is one that the classifier was fitted on"):
        calibrate_flag(ANSWERS, fitted, alpha=0.2).evaluate(new)


def test_an_answer_that_is_there_twice_is_refused():
    again = JudgedRatios(ratios_of(0.99, "answer 2"), False, id="other")
    with pytest.raises(
        ValueError, match=r"answers\[12\] is the same answer as answers\[2\].*leave"
    ):
        calibrate_flag([*ANSWERS, again], CLASSIFIER, alpha=0.2)


def test_an_id_names_one_answer():
    flag = calibrate_flag(ANSWERS, CLASSIFIER, alpha=0.2)  # of none of which it is known
    first, *others = judged_anew([0.1, 0.2, 0.3], [False, True, False])
    same = [first, others[0], dataclasses.replace(others[1], id=first.id)]
    message = r"answers\[2\].id is 'n0', and so is that of answers\[0\]; an id names one answer"
    for use in (partial(FactualityFlag.calibrate, CLASSIFIER, alpha=0.5), flag.evaluate):
        with pytest.raises(ValueError, match=message):
            use(same)


def test_a_confidence_that_points_the_wrong_way_is_said():
    swapped = judged(INCONSISTENT[1:], [True] * 4 + [False] * 4)
    with pytest.warns(UserWarning, match=r"less confidence than inconsistent ones \(AUROC 0.00"):
        flag = calibrate_flag(swapped, CLASSIFIER, alpha=0.4)
    assert flag(ratios_of(0.8)).flagged  # and the promise stands
    # An AUROC of 0.25 is within chance of so few: 1.96 · √(9/192) = 0.42 below 0.5.
    mixed = judged([0.1, 0.2, 0.5, 0.6, 0.3, 0.4, 0.7, 0.8], [True] * 4 + [False] * 4)
    calibrate_flag(mixed, CLASSIFIER, alpha=0.4)  # a warning would be an error here
