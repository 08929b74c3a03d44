"""The commands for claims, from files of annotated answers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.claims import calibrate_claims, evaluate_claims, read_answers
from conformal_retrievers.cli import app


def run(*arguments, code=0):
    done = CliRunner().invoke(app, ["claims", *map(str, arguments)], env={"COLUMNS": "80"})
    assert done.exit_code == code, done.output
    return done


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
    common = ("calibrate", folder / "answers.jsonl", "--alpha", 0.2, "--scorer", "s")
    run(*common, "--out", folder / "c.json")
    return folder


def test_calibrate_saves_what_the_library_gives_and_prints_its_statement(files, tmp_path):
    found = Calibration.load(files / "c.json")
    expected = calibrate_claims(read_answers(files / "answers.jsonl"), alpha=0.2, scorer="s")
    assert found == replace(expected, created=found.created, labels={"source": "answers.jsonl"})
    assert found.threshold() == 15 / 20  # ⌈20 × 0.8⌉ = 16th
    shown = CliRunner().invoke(app, ["show", str(files / "c.json"), "--json"])
    facts = json.loads(shown.stdout)
    assert facts["thresholds"][""]["0.01"] == "keep_none"
    common = ("calibrate", files / "answers.jsonl", "--alpha", 0.2, "--scorer", "s")
    done = run(*common, "--out", tmp_path / "c.json")
    assert " ".join(done.stdout.split()).startswith(" ".join(expected.statement.split()))


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        (("--by-group",), "by_group", True),
        (("--share", 0.5), "share", 0.5),
        (("--delta", 0.1), "delta", 0.1),
    ],
)
def test_calibrate_passes_its_options_on(options, field, value, files, tmp_path):
    common = ("calibrate", files / "answers.jsonl", "--alpha", 0.2, "--scorer", "s", "--json")
    facts = json.loads(run(*common, "--out", tmp_path / "c.json", *options).stdout)
    assert {**facts, **facts["details"]}[field] == value
    assert facts["n_queries"] == 19


def test_a_claim_without_relevance_stops_calibration_unless_it_counts_as_dropped(files, tmp_path):
    common = ("calibrate", files / "unscored.jsonl", "--alpha", 0.2, "--scorer", "s")
    common += ("--out", tmp_path / "c.json")
    assert "'failed'" in run(*common, code=1).stderr
    assert not (tmp_path / "c.json").exists()
    run(*common, "--on-unscorable", "drop")
    assert Calibration.load(tmp_path / "c.json").details["n_unscorable"] == 1


def test_evaluate_prints_what_the_library_measures(files):
    expected = evaluate_claims(
        Calibration.load(files / "c.json"), read_answers(files / "new.jsonl")
    )
    done = run("evaluate", files / "c.json", files / "new.jsonl")
    assert done.stdout.split() == str(expected).split()
    found = json.loads(run("evaluate", files / "c.json", files / "new.jsonl", "--json").stdout)
    assert found["evaluation"]["factuality"]["low"] == expected.factuality.low


def test_evaluate_exits_with_1_if_the_guarantee_fails_or_nothing_is_kept(files):
    given = ("evaluate", files / "c.json", files / "worse.jsonl", "--json")
    found = json.loads(run(*given, code=1).stdout)
    assert (found["fails"], found["evaluation"]["factuality"]["estimate"]) == (True, 0)
    found = json.loads(run(*given, "--alpha", 0.01, code=1).stdout)
    assert (found["fails"], found["untested"]) == (False, True)


def test_evaluate_leaves_out_the_answers_of_the_calibration(files):
    given = ("evaluate", files / "c.json", files / "some_new.jsonl", "--json")
    found = json.loads(run(*given).stdout)
    assert (found["left_out"], found["evaluation"]["n_answers"]) == (19, 1)
    assert "19 answers" in run("evaluate", files / "c.json", files / "own.jsonl", code=1).stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("calibrate", "answers.jsonl", "--alpha", 2, "--scorer", "s"), 2),
        (("calibrate", "answers.jsonl", "--alpha", 0.1, "--share", 0, "--scorer", "s"), 2),
        (("calibrate", "answers.jsonl", "--alpha", 0.1, "--delta", 2, "--scorer", "s"), 2),
        (("calibrate", "missing.jsonl", "--alpha", 0.1, "--scorer", "s"), 2),
        (("calibrate", "bad.jsonl", "--alpha", 0.1, "--scorer", "s"), 1),
        (("evaluate", "answers.jsonl", "answers.jsonl"), 1),
        (("evaluate", "c.json", "answers.jsonl", "--alpha", 0), 2),
    ],
)
def test_exit_codes_distinguish_bad_data_from_a_wrong_command(arguments, code, files, tmp_path):
    given = [files / a if str(a).endswith((".jsonl", ".json")) else a for a in arguments]
    out = ("--out", tmp_path / "c.json") if arguments[0] == "calibrate" else ()
    assert run(*given, *out, code=code).stderr
    assert not (tmp_path / "c.json").exists()
