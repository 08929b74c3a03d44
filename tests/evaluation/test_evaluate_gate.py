"""What a gate's evaluation measures: both errors by hand, by group, and what the user reads."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from gates import FIRST, drawn, gate_of, query, unanswerable
from scipy.stats import betabinom

from conformal_retrievers import JudgedQuery, calibrate_gate
from conformal_retrievers.evaluation.evaluate_gate import ALPHAS, evaluate_gate
from conformal_retrievers.scoring.scorer import query_digest
from conformal_retrievers.theory.tolerance import binomial_interval

GATE = gate_of([0.1, 0.2, 0.3, 0.4, 0.5])  # k = ⌈6 · 0.8⌉ = 5: silent above 0.5
ANSWERABLE = [query(f"new{i}", score) for i, score in enumerate((0.0, 0.45, 0.6, math.nan))]
SOURCES = {
    "removed": [unanswerable(f"removed{i}", s) for i, s in enumerate((0.05, 0.7, 0.8))],
    "other": [unanswerable(f"other{i}", s) for i, s in enumerate((0.9, 1.0))],
}


# --- both errors ----------------------------------------------------------------------------------


def test_the_shares_by_hand():
    e = evaluate_gate(GATE, ANSWERABLE, SOURCES)
    assert (e.alpha, e.answerable.n, e.answerable.unscored) == (0.2, 4, 1)
    assert e.false_silence.interval == binomial_interval(1, 4)
    assert e.verdict.p_value == pytest.approx(betabinom(4, 5, 1).cdf(3))  # k = n = 5
    assert e.unanswerable["removed"].silent.interval == binomial_interval(2, 3)
    assert e.unanswerable["removed"].speaks.interval == binomial_interval(1, 3)
    assert e.unanswerable["other"].silent.interval == binomial_interval(2, 2)
    assert [*e.unanswerable] == ["removed", "other"]
    half = evaluate_gate(GATE, ANSWERABLE, level=0.5)
    assert half.false_silence.interval == binomial_interval(1, 4, 0.5)


def test_queries_without_a_relevant_snippet_are_sources_of_their_own():
    missed = query("missed", 0.7, (), (3.0,), missed=1)
    e = evaluate_gate(GATE, [*ANSWERABLE, missed, unanswerable("none", 0.2)], SOURCES["removed"])
    assert e.answerable.n == 4
    assert {name: (of.n, of.silent.estimate) for name, of in e.unanswerable.items()} == {
        "judged unanswerable": (1, 0.0),
        "unanswerable": (3, 2 / 3),
        "nothing relevant retrieved": (1, 1.0),
    }


def test_the_curve_has_the_shares_at_each_alpha():
    curve = evaluate_gate(GATE, ANSWERABLE, SOURCES).curve
    assert curve.alpha.tolist() == sorted({*ALPHAS, 0.2})
    at = dict(zip(curve.alpha.tolist(), range(len(curve.alpha)), strict=True))
    # The threshold at alpha 0.5 is the third of five scores, 0.3, and +inf below alpha 1/6.
    assert [curve.answerable[at[alpha]] for alpha in (0.15, 0.2, 0.5)] == [0, 1 / 4, 2 / 4]
    assert [curve.unanswerable["removed"][at[a]] for a in (0.15, 0.2, 0.5)] == [0, 2 / 3, 2 / 3]
    assert (np.diff(curve.unanswerable["other"]) >= 0).all()


def test_the_worst_queries_come_first():
    e = evaluate_gate(GATE, ANSWERABLE, SOURCES)
    decisions = [(one.id, one.decision) for one in e.answerable.worst]
    assert decisions == [("new2", "silent"), ("new1", "speaks"), ("new0", "speaks")]
    first = e.unanswerable["removed"].worst[0]
    assert (first.query, first.score, first.p_value) == ("removed0", 0.05, 1.0)
    assert [one.id for one in e.unanswerable["other"].worst] == ["other0", "other1"]


# --- the verdict ----------------------------------------------------------------------------------


def test_a_gate_by_group_is_measured_in_each_group():
    given = [query(f"a{i}", float(i), group="a") for i in range(9)]
    given += [query(f"b{i}", 10.0 + i, group="b") for i in range(9)]
    new = [query(f"new a{i}", 9.0 + i, group="a") for i in range(3)]
    new += [query(f"new b{i}", 9.0 + i, group="b") for i in range(3)]
    far = [unanswerable("far", 17.0, group="a"), unanswerable("near", 17.0, group="b")]
    e = evaluate_gate(calibrate_gate(given, (), FIRST, alpha=0.1, by_group=True), new, far)
    parts = {group: part.false_silence.estimate for group, part in e.by_group.items()}
    assert parts == {"a": 1.0, "b": 0.0}
    assert e.false_silence.estimate == 0.5
    silent = [part.unanswerable["unanswerable"].silent.estimate for part in e.by_group.values()]
    assert silent == [1.0, 0.0]
    assert (e.verdict.group, e.verdict.tests) == ("a", 2)
    assert e.verdict.fails
    assert "group 'a'" in str(e)


def test_a_gate_that_is_never_silent_is_not_tested():
    e = evaluate_gate(gate_of([0.1, 0.2]), ANSWERABLE)
    assert e.verdict is None
    assert e.false_silence.estimate == 0
    assert "Nothing is tested" in str(e)


# --- what the user reads --------------------------------------------------------------------------


def test_the_first_lines_say_whether_the_gate_separates_here():
    said = " ".join(str(evaluate_gate(GATE, ANSWERABLE, SOURCES)).split())
    assert "False silence: 25.0 % [0.6, 80.6] of the answerable queries" in said
    assert "at most 20 % is guaranteed" in said
    removed, other = "66.7 % [9.4, 99.2] of 'removed'", "100.0 % [15.8, 100.0] of 'other'."
    assert f"At its α of 20 % it is silent on {removed} and {other}" in said
    near = [unanswerable(f"near{i}", score) for i, score in enumerate([0.1] * 8)]
    assert "Not separable" not in str(evaluate_gate(GATE, ANSWERABLE, near[:3]))  # 70.8 may be it
    said = " ".join(str(evaluate_gate(GATE, ANSWERABLE, near)).split())
    assert "Not separable here: at its α of 20 % it is silent on 0.0 % [0.0, 36.9] of" in said
    assert "[0.0, 36.9] of the unanswerable." in said
    assert "is unknown: none were given" in " ".join(str(evaluate_gate(GATE, ANSWERABLE)).split())


def test_the_text_is_at_most_80_columns_wide_and_has_no_control_characters():
    long = {"a source with a name of many words " * 3: SOURCES["removed"], "b": SOURCES["other"]}
    hostile = query("what\x1b[2J is\n" + "long " * 30, 0.6)
    hostile = replace(hostile, query="what\x1b[2J is\n" + "long " * 30)
    said = str(evaluate_gate(gate_of([0.1, 0.2, 0.3, 0.4, 0.5]), [*ANSWERABLE, hostile], long))
    assert max(map(len, said.splitlines())) <= 80
    assert r"what\u001b[2J is long" in said
    assert "\x1b" not in said


# --- what is refused ------------------------------------------------------------------------------


def test_questions_of_the_calibration_are_refused_by_id_and_by_text():
    with pytest.raises(ValueError, match="q1"):
        evaluate_gate(GATE, [*ANSWERABLE, query("q1", 0.2)])
    again = replace(query("other id", 0.2), query="Q1 ")
    for given, others in (([again], ()), (ANSWERABLE, [replace(again, relevant=(False,))])):
        with pytest.raises(ValueError, match="other id"):
            evaluate_gate(GATE, given, others)
    on_new = [query_digest("new1")]
    fitted = SimpleNamespace(name=FIRST.name, score_query=FIRST.score_query, fitted_on=on_new)
    with pytest.raises(ValueError, match="new1"):
        evaluate_gate(replace(GATE, scorer=fitted), ANSWERABLE)


def test_questions_that_the_score_was_chosen_on_are_refused_by_text():
    rng = np.random.default_rng(19)
    scores = enumerate(rng.normal(2, 1, 90).tolist())
    known = [unanswerable(f"none {i}", score) for i, score in scores]
    gate = calibrate_gate(drawn(rng, 180, "own"), known, [FIRST], alpha=0.1)
    fitted = [i for i in range(180) if gate.calibration.chosen_on(query(f"own {i}", 0.1))]
    assert fitted
    again = replace(query("other id", 0.1), query=f"own {fitted[0]}")
    with pytest.raises(ValueError, match="fitted on query"):
        evaluate_gate(gate, [*ANSWERABLE, again])


@pytest.mark.parametrize(
    ("given", "others", "named"),
    [
        ([], (), "judged|answerable"),
        ([unanswerable("a", 0.1)], (), "answerable"),
        ([*ANSWERABLE, ANSWERABLE[0]], (), "new0"),
        (ANSWERABLE, {"x": [query("relevant", 0.1)]}, "unanswerable.*relevant"),
        (ANSWERABLE, {"x": [unanswerable("twice", 0.1)] * 2}, "twice"),
    ],
)
def test_invalid_queries_are_named(given, others, named):
    with pytest.raises(ValueError, match=named):
        evaluate_gate(GATE, given, others)
    with pytest.raises(ValueError, match="level"):
        evaluate_gate(GATE, ANSWERABLE, level=1.0)
    with pytest.raises(TypeError, match="gate is"):
        evaluate_gate(GATE.calibration, ANSWERABLE)


def test_queries_without_ids_are_not_verified_as_held_out():
    e = evaluate_gate(GATE, [JudgedQuery("no id", ["0.1 1.0"], [True])])
    assert not e.held_out_verified
    assert "Cannot verify" in str(e)
    assert evaluate_gate(GATE, ANSWERABLE).held_out_verified
