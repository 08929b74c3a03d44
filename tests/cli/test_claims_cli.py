"""The commands for claims, from files of annotated answers."""

import json
from dataclasses import replace

import pytest
from commands import as_json, error_of, run

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.claims import calibrate_claims, evaluate_claims, read_answers

CALIBRATE, EVALUATE = ("claims", "calibrate"), ("claims", "evaluate")
OPTIONS = ("--alpha", 0.2, "--scorer", "s")


def line(id, *claims, **more):
    rows = [{"relevance": r, "factual": f} for r, f in claims]
    return json.dumps({"id": id, "claims": rows, **more})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of answers, and calibrations of the first: 19 scores i / 20, alpha = 0.2."""
    folder = tmp_path_factory.mktemp("claims")
    lines = [line(f"q{i}", (i / 20, False), (0.99, True), group="ab"[i % 2]) for i in range(19)]
    lines += [line("none"), line("open", (0.5, None), (None, True))]
    contents = {
        "answers": lines,
        "new": [text.replace('"q', '"new') for text in lines],
        "worse": [line(f"w{i}", (0.9, False)) for i in range(10)],
        "some_new": [*lines, line("new", (0.9, True))],
        "own": lines[:19],
        "unscored": [*lines, line("failed", (None, False), (0.9, True))],
        "bad": ['{"id": "q"}'],
    }
    for name, texts in contents.items():
        (folder / f"{name}.jsonl").write_text("\n".join(texts))
    run(*CALIBRATE, folder / "answers.jsonl", *OPTIONS, "--out", folder / "c.json")
    return folder


def test_calibrate_saves_what_the_library_gives_and_prints_its_statement(files, tmp_path):
    done = run(*CALIBRATE, files / "answers.jsonl", *OPTIONS, "--out", tmp_path / "c.json")
    found = Calibration.load(tmp_path / "c.json")
    expected = calibrate_claims(read_answers(files / "answers.jsonl"), alpha=0.2, scorer="s")
    assert found == replace(expected, created=found.created, labels={"source": "answers.jsonl"})
    assert found.threshold() == 15 / 20  # ⌈20 × 0.8⌉ = 16th
    assert as_json("show", tmp_path / "c.json")["thresholds"][""]["0.01"] == "keep_none"
    assert " ".join(done.stdout.split()).startswith(" ".join(expected.statement.split()))
    options = ("--by-group", "--share", 0.5, "--delta", 0.2, "--out", tmp_path / "c.json")
    facts = as_json(*CALIBRATE, files / "answers.jsonl", *OPTIONS, *options)
    assert (facts["by_group"], facts["details"]["share"], facts["delta"]) == (True, 0.5, 0.2)
    assert facts["n_queries"] == 19


def test_a_claim_without_relevance_stops_calibration_unless_it_counts_as_dropped(files, tmp_path):
    common = (*CALIBRATE, files / "unscored.jsonl", *OPTIONS, "--out", tmp_path / "c.json")
    assert "'failed'" in error_of(*common)
    assert not (tmp_path / "c.json").exists()
    run(*common, "--on-unscorable", "drop")
    assert Calibration.load(tmp_path / "c.json").details["n_unscorable"] == 1


def test_evaluate_prints_what_the_library_measures(files):
    given = (*EVALUATE, files / "c.json", files / "new.jsonl")
    expected = evaluate_claims(Calibration.load(files / "c.json"), read_answers(given[-1]))
    assert run(*given).stdout.split() == str(expected).split()
    assert as_json(*given)["evaluation"]["factuality"]["low"] == expected.factuality.low


def test_evaluate_exits_with_1_if_the_guarantee_fails_or_nothing_is_kept(files):
    given = (*EVALUATE, files / "c.json", files / "worse.jsonl")
    found = as_json(*given, code=1)
    assert (found["fails"], found["evaluation"]["factuality"]["estimate"]) == (True, 0)
    found = as_json(*given, "--alpha", 0.01, code=1)
    assert (found["fails"], found["untested"]) == (False, True)


def test_evaluate_leaves_out_the_answers_of_the_calibration(files):
    found = as_json(*EVALUATE, files / "c.json", files / "some_new.jsonl")
    assert (found["left_out"], found["evaluation"]["n_answers"]) == (19, 1)
    assert "19 answers" in error_of(*EVALUATE, files / "c.json", files / "own.jsonl")


def test_exit_codes_distinguish_bad_data_from_a_wrong_command(files, tmp_path):
    answers, out = files / "answers.jsonl", ("--out", tmp_path / "c.json")
    assert error_of(*CALIBRATE, files / "bad.jsonl", *OPTIONS, *out)
    for wrong in ((files / "missing.jsonl",), (answers, "--alpha", 2)):
        assert error_of(*CALIBRATE, *OPTIONS, *wrong, *out, code=2)
    assert not (tmp_path / "c.json").exists()
    assert "calibration" in error_of(*EVALUATE, answers, answers)
    assert "alpha" in error_of(*EVALUATE, files / "c.json", answers, "--alpha", 0, code=2)
