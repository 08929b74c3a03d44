"""The command that calibrates a gate, and the others with the files of gates."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from commands import as_json, error_of, run

from conformal_retrievers import (
    Calibration,
    Gate,
    calibrate,
    calibrate_gate,
    evaluate,
    read_beir,
    read_jsonl,
    score_queries,
    write_jsonl,
)
from conformal_retrievers.cli.unanswerable import REMOVED
from conformal_retrievers.data.queries import JudgedQuery, Snippet, with_hits
from conformal_retrievers.data.unanswerable import without_relevant
from conformal_retrievers.evaluation import evaluate_gate
from conformal_retrievers.monitoring import FilterLog, event_of

K = 4


def queries(n, kind, best, *, relevant, start=0):
    """Queries of four snippets with falling scores; the best is around `best`, the others 0."""
    rng = np.random.default_rng(start + round(10 * best))
    found = []
    for i in range(start, start + n):
        scores = sorted([float(rng.normal(best)), *rng.normal(0, 0.3, K - 1).tolist()])[::-1]
        texts = [Snippet(f"{kind} {i} {j}", retrieval_score=s) for j, s in enumerate(scores)]
        marks = [relevant, *[False] * (K - 1)]
        found.append(
            JudgedQuery(
                f"{kind} {i}",
                with_hits(texts),
                marks,
                id=f"{kind}{i}",
                group="ab"[i % 2],
                answerable=relevant,
            )
        )
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with answerable and unanswerable queries, old and new, and a gate of the old."""
    folder = tmp_path_factory.mktemp("gates")
    for name, start in (("", 0), ("new-", 1000)):
        write_jsonl(
            queries(120, "asked", 4, relevant=True, start=start), folder / f"{name}judged.jsonl"
        )
        write_jsonl(
            queries(60, "hard", 2.5, relevant=False, start=start), folder / f"{name}hard.jsonl"
        )
        write_jsonl(
            queries(60, "easy", 0, relevant=False, start=start), folder / f"{name}easy.jsonl"
        )
    run("gate", folder / "judged.jsonl", *sources(folder), "--alpha", "0.1", *out(folder, "gate"))
    return folder


def sources(folder, new=""):
    hard, easy = (folder / f"{new}{name}.jsonl" for name in ("hard", "easy"))
    return ("--unanswerable", hard, "--unanswerable", f"off topic={easy}")


def out(folder, name):
    return ("--out", folder / f"{name}.json")


def read_sources(folder, new=""):
    return {
        f"{new}hard": read_jsonl(folder / f"{new}hard.jsonl"),
        "off topic": read_jsonl(folder / f"{new}easy.jsonl"),
    }


def one_line(text):
    return " ".join(text.split())


# --- gate and show --------------------------------------------------------------------------------


def test_a_gate_of_the_command_line_is_that_of_the_library(files, tmp_path):
    options = ("--false-speech", "0.2", "--delta", "0.1", "--by-group")
    command = ("gate", files / "judged.jsonl", *sources(files), "--alpha", "0.1", *options)
    done = run(*command, *out(tmp_path, "g"))
    expected = calibrate_gate(
        read_jsonl(files / "judged.jsonl"),
        read_sources(files),
        alpha=0.1,
        false_speech=0.2,
        delta=0.1,
        by_group=True,
        labels={"source": "judged.jsonl"},
    )
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
    assert "scores" not in json.dumps(facts["details"])


def test_without_unanswerable_queries_nothing_is_known_of_them(files, tmp_path):
    done = run("gate", files / "judged.jsonl", "--alpha", "0.1", *out(tmp_path, "g"))
    assert "Unanswerable queries: none are known" in done.stdout
    assert "silent_on" in as_json("show", tmp_path / "g.json")
    assert "Silent on" not in run("show", tmp_path / "g.json").stdout


def test_queries_that_are_judged_unanswerable_are_a_source(files, tmp_path):
    both = [q for name in ("judged", "hard") for q in read_jsonl(files / f"{name}.jsonl")]
    write_jsonl(both, tmp_path / "both.jsonl")
    options = ("--alpha", "0.1", "--false-speech", "0.3")
    run("gate", tmp_path / "both.jsonl", *options, *out(tmp_path, "g"))
    assert set(as_json("show", tmp_path / "g.json")["silent_on"]) == {"judged unanswerable"}


# --- evaluate and diagnose ------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["evaluate", "diagnose"])
def test_a_gate_is_measured_as_the_library_measures_it(command, files):
    given = (command, files / "gate.json", files / "new-judged.jsonl", *sources(files, "new-"))
    expected = evaluate_gate(
        Gate.load(files / "gate.json"),
        read_jsonl(files / "new-judged.jsonl"),
        read_sources(files, "new-"),
    )
    assert one_line(run(*given).stdout).startswith(one_line(str(expected)))
    found = as_json(*given)
    assert found["left_out"] == 0
    measured = found["evaluation"]["unanswerable"]["new-hard"]["silent"]
    assert measured["estimate"] == expected.unanswerable["new-hard"].silent.estimate
    assert found["evaluation"]["curve"]["answerable"] == expected.curve.answerable.tolist()


def test_evaluate_takes_another_alpha_of_a_gate(files):
    given = ("evaluate", files / "gate.json", files / "new-judged.jsonl", "--alpha")
    assert as_json(*given, "0.3")["evaluation"]["alpha"] == 0.3


def test_a_gate_that_is_silent_too_often_exits_with_1(files, tmp_path):
    write_jsonl(queries(80, "far", 0, relevant=True), tmp_path / "far.jsonl")
    done = run("evaluate", files / "gate.json", tmp_path / "far.jsonl", code=1)
    assert "False silence" in done.stdout
    run("diagnose", files / "gate.json", tmp_path / "far.jsonl", code=1)


def test_what_is_held_out_is_new_to_the_gate_and_the_rest_is_left_out(files, tmp_path):
    judged = files / "judged.jsonl"
    given = ("--alpha", "0.2", "--hold-out", "0.5", *out(tmp_path, "half"))
    run("gate", judged, *sources(files), *given)
    used = Gate.load(tmp_path / "half.json").calibration.used_ids
    n = sum("asked" in id for id in used)
    assert 40 <= n <= 80  # of 120, each with probability 1/2
    found = as_json("evaluate", tmp_path / "half.json", judged, *sources(files))
    assert found["evaluation"]["answerable"]["n"] == 120 - n
    assert "no answerable query is new" in error_of("evaluate", files / "gate.json", judged)


def test_gate_and_filter_hold_out_the_same_queries(files, tmp_path):
    judged, half = files / "judged.jsonl", ("--alpha", "0.2", "--hold-out", "0.5")
    run("gate", judged, *half, *out(tmp_path, "gate"))
    run("calibrate", judged, *half, *out(tmp_path, "filter"))
    gate, plain = (Calibration.load(tmp_path / f"{name}.json") for name in ("gate", "filter"))
    assert gate.used_ids == plain.used_ids


# --- a filter behind a gate -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def both(files):
    judged, options = files / "judged.jsonl", ("--alpha", "0.3", "--scorer", "zscore")
    run("calibrate", judged, *options, "--gate", files / "gate.json", *out(files, "both"))
    return Calibration.load(files / "both.json")


def test_a_filter_is_calibrated_behind_the_gate(files, both):
    expected = calibrate(
        read_jsonl(files / "judged.jsonl"),
        zscore(both),
        alpha=0.3,
        gate=Gate.load(files / "gate.json"),
        labels={"source": "judged.jsonl"},
    )
    assert replace(both, created=expected.created) == expected
    assert both.gate == Gate.load(files / "gate.json").calibration
    facts = as_json("show", files / "both.json")
    assert facts["gate"]["silent_on"]["hard"]["n"] == 60 - 20  # less those that chose the score
    assert "queries" not in facts["gate"]


def zscore(calibration):
    from conformal_retrievers.scoring import HitScorer, QueryZScore

    scorer = QueryZScore(HitScorer("retriever", higher_is_better=True))
    assert scorer.name == calibration.scorer
    return scorer


def test_a_filter_that_holds_a_gate_is_measured_with_it(files, both):
    gate = Gate.of(both.gate)
    new = [
        *read_jsonl(files / "new-judged.jsonl"),
        *[replace(q, answerable=True) for q in read_jsonl(files / "new-easy.jsonl")],
    ]
    write_jsonl(new, files / "mixed.jsonl")
    expected = evaluate(both, score_queries(zscore(both), new, gate=gate))
    found = as_json("evaluate", files / "both.json", files / "mixed.jsonl")["evaluation"]
    assert found["silent"]["estimate"] == expected.silent.estimate > 0.2
    assert found["removal"]["estimate"] == expected.removal.estimate
    run("diagnose", files / "both.json", files / "mixed.jsonl")


def test_questions_that_calibrated_the_gate_are_not_new_to_the_filter(files, tmp_path):
    judged = files / "new-judged.jsonl"
    options = ("--alpha", "0.3", "--scorer", "zscore", "--gate", files / "gate.json")
    run("calibrate", judged, *options, *out(tmp_path, "c"))
    message = error_of("evaluate", tmp_path / "c.json", files / "judged.jsonl")
    assert "120 queries belong to the calibration" in message


def test_the_queries_that_a_gate_silences_are_silenced_in_a_log_too(files, both, tmp_path):
    from conformal_retrievers import ConformalFilter

    conformal, log = ConformalFilter.of(both), FilterLog(tmp_path / "log.jsonl")
    asked = [*read_jsonl(files / "new-judged.jsonl"), *read_jsonl(files / "new-easy.jsonl")]
    silent = 0
    for query in asked:
        filtered = conformal(query.query, query.snippets)
        silent += filtered.silenced
        log.append(event_of(filtered, query=query.query))
    found = as_json("diagnose", files / "both.json", "--log", log.path)["evaluation"]
    assert found["silent"]["estimate"] == silent / len(asked) > 0.2


# --- a BEIR folder --------------------------------------------------------------------------------

N, DEPTH = 90, 8
RUNS = ("--run", "dense.tsv", "--run", "bm25.tsv")


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    """A folder with two runs of eight documents, of which the relevant one is often first.

    The first query is without a run, and the second is in one run only.
    """
    folder, rng = tmp_path_factory.mktemp("beir"), np.random.default_rng(3)
    rows = {name: [] for name in ("corpus", "queries", "qrels", "dense", "bm25")}
    for i in range(N):
        rows["queries"].append(json.dumps({"_id": f"q{i}", "text": f"question {i}"}))
        rows["qrels"].append(f"q{i}\td{i}-0\t1")
        for j in range(DEPTH + 2):
            rows["corpus"].append(json.dumps({"_id": f"d{i}-{j}", "text": f"text {i} {j}"}))
        for name in ("dense", "bm25")[: i if i < 2 else 2]:
            scores = rng.normal([3, *[0] * (DEPTH + 1)])
            for rank, j in enumerate(np.argsort(-scores)[:DEPTH], start=1):
                rows[name].append(f"q{i}\td{i}-{j}\t{rank}\t{scores[j]:.6f}")
    for name, lines in rows.items():
        ending = "jsonl" if name in ("corpus", "queries") else "tsv"
        (folder / f"{name}.{ending}").write_text("\n".join(lines))
    return folder


@pytest.mark.filterwarnings("ignore:no snippet of a query has a hit of 'bm25'")
def test_a_folder_gives_its_questions_without_their_answers(beir, tmp_path):
    given = ("--k", 5, "--without-answers", "--alpha", "0.2", *out(tmp_path, "g"))
    run("gate", beir, *RUNS, *given)
    names = ["dense.tsv", "bm25.tsv"]
    deep = [query for query in read_beir(beir, names) if query.snippets]
    removed = [without_relevant(query, {"dense": 5, "bm25": 5}) for query in deep]
    assert {query.k for query in removed} == {10}
    expected = calibrate_gate(
        read_beir(beir, names, k=5),
        {REMOVED: removed},
        alpha=0.2,
        retrieval={"runs": names},
        labels={"source": beir.name},
    ).calibration
    made = Calibration.load(tmp_path / "g.json")
    assert replace(made, created=expected.created) == expected
    assert len(expected.details["unanswerable"][REMOVED]["scores"]) > 50


def test_a_gate_of_a_folder_is_measured_at_its_depth_with_answers_removed(beir, tmp_path):
    given = ("--k", 5, "--without-answers", "--alpha", "0.2", "--hold-out", "0.5")
    run("gate", beir, *RUNS, *given, *out(tmp_path, "g"))
    found = as_json("evaluate", tmp_path / "g.json", beir, *RUNS, "--without-answers")
    n, m = found["evaluation"]["answerable"]["n"], found["evaluation"]["unanswerable"][REMOVED]["n"]
    assert 25 < n <= m < 65
    done = run("evaluate", tmp_path / "g.json", beir, *RUNS, "--without-answers", "--k", 8)
    assert "fewer snippets than before" in done.stderr
    assert "16" in done.stderr  # another depth than the calibration's


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--alpha", "2"), "--alpha"),
        ((), "--alpha"),
        (("--alpha", "0.1", "--false-speech", "2"), "--false-speech"),
        (("--alpha", "0.1", "--false-speech", "0.2"), "--unanswerable FILE"),
        (("--alpha", "0.1", "--unanswerable", "no.jsonl"), "--unanswerable"),
        (("--alpha", "0.1", "--unanswerable", "=hard.jsonl"), "--unanswerable"),
        (("--alpha", "0.1", "--without-answers"), "--without-answers"),
        (("--alpha", "0.1", "--delta", "2"), "--delta"),
        (("--alpha", "0.1", "--name", "m"), "--name"),
        (("--alpha", "0.1", "--run", "r.tsv"), "--run"),
    ],
)
def test_a_wrong_command_exits_with_2_and_names_the_option(options, named, files, tmp_path):
    command = ("gate", files / "judged.jsonl", *out(tmp_path, "g"), *options)
    assert named in error_of(*command, code=2)
    assert not (tmp_path / "g.json").exists()


def test_two_sources_have_two_names(files, tmp_path):
    given = ("--alpha", "0.1", *out(tmp_path, "g"), "--unanswerable", files / "hard.jsonl")
    message = error_of("gate", files / "judged.jsonl", *given, *given[-2:], code=2)
    assert "--unanswerable" in message
    assert "'hard'" in message


def test_a_folder_needs_a_depth_for_its_questions_without_answers(beir, tmp_path):
    given = ("--alpha", "0.1", *out(tmp_path, "g"), "--without-answers")
    assert "--k 10" in error_of("gate", beir, *RUNS, *given, code=2)
    own = ("--unanswerable", f"{REMOVED}={beir / 'queries.jsonl'}", "--k", 5)
    (beir / "none.jsonl").touch()
    own = ("--unanswerable", f"{REMOVED}={beir / 'none.jsonl'}", "--k", 5)
    assert "--unanswerable" in error_of("gate", beir, *RUNS, *given, *own, code=2)


def test_an_unanswerable_query_with_a_relevant_snippet_is_named(files, tmp_path):
    given = ("--unanswerable", files / "new-judged.jsonl", "--alpha", "0.1", *out(tmp_path, "g"))
    assert "asked1000" in error_of("gate", files / "judged.jsonl", *given)


def test_snippets_without_hits_need_a_model(files, tmp_path):
    bare = [
        replace(q, snippets=[replace(s, hits=()) for s in q.snippets])
        for q in read_jsonl(files / "judged.jsonl")
    ]
    write_jsonl(bare, tmp_path / "bare.jsonl")
    given = ("gate", tmp_path / "bare.jsonl", "--alpha", "0.1", *out(tmp_path, "g"))
    assert "--model MODEL" in error_of(*given, code=2)


def test_files_of_gates_and_filters_are_not_taken_for_each_other(files, both, tmp_path):
    judged = files / "judged.jsonl"
    given = ("calibrate", judged, "--alpha", "0.3", *out(tmp_path, "c"), "--gate")
    assert "snippets" in error_of(*given, files / "both.json")
    for command in ("evaluate", "diagnose"):
        asked = (command, files / "both.json", files / "new-judged.jsonl")
        assert "--unanswerable" in error_of(*asked, *sources(files), code=2)
        assert "--without-answers" in error_of(*asked, "--without-answers", code=2)
    log = ("diagnose", files / "gate.json", "--log", judged)
    assert "--log" in error_of(*log, code=2)


@pytest.mark.parametrize("name", ["judged", "hard", "gate"])
def test_no_command_writes_over_what_it_reads(name, files):
    path = files / (f"{name}.json" if name == "gate" else f"{name}.jsonl")
    before = path.read_bytes()
    command = {
        "judged": ("gate", files / "judged.jsonl"),
        "hard": ("gate", files / "judged.jsonl", *sources(files)),
        "gate": ("calibrate", files / "judged.jsonl", "--scorer", "zscore", "--gate", path),
    }[name]
    assert "--out" in error_of(*command, "--alpha", "0.1", "--out", path, code=2)
    assert path.read_bytes() == before
