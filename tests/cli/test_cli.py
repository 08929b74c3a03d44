"""The command line: what it prints, what it writes, and how it exits."""

import json
import os
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest
from commands import as_json, error_of, judged_queries, retrieval_in, run, write_beir
from lookup import LookupScorer

from conformal_retrievers import Calibration, ConformalFilter, calibrate, diagnose, evaluate
from conformal_retrievers.calibration import needed_scorers, plan, smallest_alpha
from conformal_retrievers.claims import AnnotatedAnswer, calibrate_claims
from conformal_retrievers.cli.inputs import held_out
from conformal_retrievers.data.jsonl import read_jsonl, write_jsonl
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery, Snippet, with_hits
from conformal_retrievers.data.retrieval import Hybrid, Retrieval
from conformal_retrievers.evaluation.report import html
from conformal_retrievers.monitoring import FilterLog, event_of
from conformal_retrievers.scoring import RankScorer, RetrievalScorer, score_queries
from conformal_retrievers.scoring.scorer import query_digest

SCORER = RetrievalScorer("toy", higher_is_better=True)


def test_try_measures_halves_of_the_judged_queries_against_top_k(tmp_path):
    write_jsonl(judged_queries(40), tmp_path / "judged.jsonl")
    asked = ("try", tmp_path / "judged.jsonl", "--alpha", "0.2", "--splits", "3")
    assert "not a standard error" in " ".join(run(*asked).stdout.split())
    found = as_json(*asked)
    assert [row["rule"] for row in found["rows"]][-1] == "the filter"
    assert found["n_splits"] == 3
    assert "judge 98 or more" in error_of("try", tmp_path / "judged.jsonl", "--alpha", "0.02")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with judged queries and a calibration for each of some options."""
    folder = tmp_path_factory.mktemp("files")
    write_jsonl(judged_queries(200), folder / "judged.jsonl")
    write_jsonl(judged_queries(200, start=1000), folder / "new.jsonl")
    write_jsonl(judged_queries(200, start=1000, shift=1.5), folder / "shifted.jsonl")
    easy = judged_queries(200, start=1000, groups=("a",))
    hard = judged_queries(30, start=2000, shift=1.5, groups=("b",))
    write_jsonl([*easy, *hard], folder / "one_hard_group.jsonl")
    write_jsonl(judged_queries(60, start=1000, groups=("A",)), folder / "other_groups.jsonl")
    unscored = [[replace(s, retrieval_score=None, hits=()) for s in q.snippets] for q in easy]
    pairs = zip(easy, unscored, strict=True)
    write_jsonl([replace(q, snippets=s) for q, s in pairs], folder / "unscored.jsonl")
    judged, labels = read_jsonl(folder / "judged.jsonl"), {"source": "judged.jsonl"}
    plain = calibrate(judged, SCORER, alpha=0.1, labels=labels)
    for name, options in {
        "plain": {},
        "by_group": {"by_group": True},
        "delta": {"delta": 0.1},
        "end_to_end": {"count_missed": True, "alpha": 0.6},
        "out_of_reach": {"count_missed": True, "alpha": 0.02},
        "keeps_everything": {"alpha": 0.001},
    }.items():
        replace(plain, **options).save(folder / f"{name}.json")
    calibrate(held_out(judged, 0.5), SCORER, alpha=0.1, labels=labels).save(folder / "half.json")
    return folder


def new_scored(files, name="new.jsonl", calibration=None):
    known = calibration.ids if calibration else frozenset()
    return [q for q in score_queries(SCORER, read_jsonl(files / name)) if q.id not in known]


# --- calibrate and show ---------------------------------------------------------------------------


def test_a_calibration_of_the_command_line_is_that_of_the_library(files, tmp_path):
    out = tmp_path / "c.json"
    options = ("--guarantee", "all", "--count-missed", "--by-group", "--out", out)
    command = ("calibrate", files / "judged.jsonl", "--alpha", "0.1", *options)
    assert run(*command).stdout.split()[-1].endswith("c.json")
    found = Calibration.load(out)
    given = {"alpha": 0.1, "guarantee": "all", "count_missed": True, "by_group": True}
    given["labels"] = {"source": "judged.jsonl"}
    expected = calibrate(read_jsonl(files / "judged.jsonl"), **given)
    assert found == replace(expected, created=found.created)
    assert retrieval_in(out) == {"retriever": "toy", "k": 5}
    facts = as_json(*command)
    del facts["passing"]
    assert facts == as_json("show", out)


def test_a_calibration_shows_how_much_would_pass_at_each_alpha(files, tmp_path):
    command = ("calibrate", files / "judged.jsonl", "--alpha", 0.15, "--out", tmp_path / "c.json")
    passing = as_json(*command)["passing"]
    filters = ConformalFilter.of(Calibration.load(tmp_path / "c.json"))
    judged = read_jsonl(files / "judged.jsonl")
    rest = [q for q in judged if query_digest(q.query) not in filters.scorer.fitted_on]
    assert 0 < len(rest) < len(judged)
    for alpha in (0.05, 0.15, 0.4):
        kept = [filters.at(alpha)(q.query, q.snippets).kept for q in rest]
        characters = [len(q.snippets[i].text) for q, of in zip(rest, kept, strict=True) for i in of]
        means = {"snippets": round(sum(map(len, kept)) / len(rest), 1)}
        means["tokens"] = pytest.approx(sum(characters) / 4 / len(rest), abs=0.51)
        assert passing[f"{alpha:g}"] == means
    row = re.search(r"^0.15 +(.*)$", run(*command).stdout, re.M)[1].split()
    assert row == [f"{n:,}" for n in passing["0.15"].values()]


def test_evaluate_leaves_out_the_queries_that_were_not_held_out(files):
    used = Calibration.load(files / "half.json").ids
    assert 80 <= len(used) <= 120  # of 200, each with probability 1/2
    found = as_json("evaluate", files / "half.json", files / "judged.jsonl")
    assert (found["left_out"], found["evaluation"]["n_queries"]) == (len(used), 200 - len(used))
    assert "200 queries" in error_of("evaluate", files / "plain.json", files / "judged.jsonl")


def test_show_has_the_statement_the_labels_and_a_threshold_for_each_alpha(files):
    calibration = Calibration.load(files / "by_group.json")
    shown = run("show", files / "by_group.json").stdout
    assert " ".join(calibration.statement.split()) in " ".join(shown.split())
    assert "judged.jsonl" in shown
    for group in ("a", "b"):
        row = re.search(rf"^{group} +(.*)$", shown, re.M)[1].split()
        assert row[2] == f"{calibration.threshold(group):.4g}"
    facts = as_json("show", files / "by_group.json")
    assert facts["thresholds"]["a"]["0.1"] == calibration.threshold("a")
    assert facts["sha256"] == calibration.checksum
    assert "0.6" in as_json("show", files / "end_to_end.json")["thresholds"][""]  # its own alpha
    assert "0.01" not in as_json("show", files / "delta.json")["thresholds"][""]  # impossible


def test_a_calibration_of_claims_is_refused_where_snippets_are_filtered(files, tmp_path):
    out = tmp_path / "claims.json"
    answers = [AnnotatedAnswer([i / 20, 0.99], [False, True], id=f"a{i}") for i in range(19)]
    calibrate_claims(answers, alpha=0.2, scorer="s").save(out)
    for command in ("evaluate", "diagnose"):
        assert "claims" in error_of(command, out, files / "new.jsonl")
    assert "snippets" in error_of("claims", "evaluate", files / "plain.json", out)


def test_retrievers_or_depths_are_not_mixed_and_a_threshold_that_drops_none_is_named(
    files, tmp_path
):
    first, *others = read_jsonl(files / "judged.jsonl")
    command = ("calibrate", tmp_path / "judged.jsonl", "--out", tmp_path / "c.json")
    for field, other in (("retriever", "another"), ("k", 7)):
        write_jsonl([replace(first, **{field: other}), *others], tmp_path / "judged.jsonl")
        assert field in error_of(*command, "--alpha", "0.1")
        done = run("evaluate", files / "plain.json", tmp_path / "judged.jsonl", code=3)
        assert done.stderr.startswith("Warning: ")  # above the error
        assert repr(other) in done.stderr
    parts = [Hybrid({"a; b": Retrieval("BM25()", k), "c": Retrieval("store")}) for k in (3, 4)]
    asked = [replace(query, retriever=parts[0]) for query in (first, *others)]
    write_jsonl([replace(first, retriever=parts[1]), *asked[1:]], tmp_path / "judged.jsonl")
    assert f"retriever: {parts[0]}, {parts[1]}" in error_of(*command, "--alpha", "0.1")
    write_jsonl(asked, tmp_path / "judged.jsonl")
    run(*command, "--alpha", "0.1")
    assert f"retriever = {parts[0]}" in " ".join(run("show", tmp_path / "c.json").stdout.split())
    write_jsonl([replace(first, relevant=[False] * 4 + [True]), *others], tmp_path / "judged.jsonl")
    assert "drops none" in run(*command, "--alpha", "0.006").stderr


# --- BEIR folders and scorers ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def beir(tmp_path_factory):
    """The queries of judged.jsonl in the BEIR layout. The corpus holds all their snippets."""
    queries = judged_queries(200)
    pairs = [(q, s) for q in queries for s in q.snippets]
    return write_beir(
        tmp_path_factory.mktemp("beir"),
        {s.id: s.text for _, s in pairs},
        {q.id: q.query for q in queries},
        [(q.id, q.snippets[0].id, 1) for q in queries],
        {"run": [(q.id, s.id, s.hits[0].rank, s.retrieval_score) for q, s in pairs]},
    )


def test_a_beir_folder_is_read_with_its_run_to_the_depth_of_the_calibration(beir, tmp_path):
    out = tmp_path / "c.json"
    options = ("--alpha", "0.2", "--hold-out", "0.5", "--out", out)
    run("calibrate", beir, "--run", "run.tsv", "--k", "3", *options)
    assert retrieval_in(out) == {"run": "run.tsv", "k": 3}
    found = as_json("evaluate", out, beir, "--run", "run.tsv")
    assert found["evaluation"]["n_snippets"] == 3 * found["evaluation"]["n_queries"] > 0
    assert "--run" in error_of("evaluate", out, beir, code=2)
    warned = run("diagnose", out, beir, "--run", "run.tsv", "--k", "2").stderr
    assert warned.startswith("Warning: judged queries have k 2, but the calibration has 3")


def test_bm25_of_a_corpus_is_one_more_scorer_and_is_asked_for(beir, files, tmp_path):
    judged, out = files / "judged.jsonl", tmp_path / "c.json"
    corpus = ("--corpus", beir / "corpus.jsonl")
    run("calibrate", judged, *corpus, "--alpha", "0.2", "--hold-out", "0.5", "--out", out)
    (needed,) = needed_scorers(Calibration.load(out))
    assert needed.startswith("bm25s(")
    assert "--corpus" in error_of("evaluate", out, judged, code=2)
    run("evaluate", out, judged, *corpus)


@pytest.mark.slow
def test_the_commands_of_the_guide_work_as_pasted(tmp_path):
    numbers = [f"The number {i} stands alone." for i in range(80)]
    marks, found = [True, False, False, False], [with_hits(numbers[i : i + 4]) for i in range(76)]
    judged = [JudgedQuery(f"number {i}", s, marks, id=f"q{i}") for i, s in enumerate(found)]
    write_jsonl(judged, tmp_path / "judged.jsonl")
    guide = (Path(__file__).parents[2] / "docs/commands.md").read_text(encoding="utf-8")
    script = "\n".join(re.findall(r"^    (conformal-retrievers .*)$", guide, re.M))
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env=os.environ | path, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, b"")  # no progress bar either
    half = Calibration.load(tmp_path / "half.json")
    assert half.scorer.startswith("learned(hits of retriever, words; context=none, fit=")


def test_a_calibration_never_names_the_model_that_is_loaded(files, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    judged, out = files / "new.jsonl", tmp_path / "c.json"
    Calibration.from_scores(new_scored(files), alpha=0.1, scorer="cosine(m)").save(out)
    for command in ("evaluate", "diagnose"):
        assert "give --model MODEL" in error_of(command, out, judged, code=2)
    replace(Calibration.load(out), scorer="mine").save(out)
    assert "'mine'" in error_of("evaluate", out, judged)


@pytest.mark.slow
def test_a_model_that_does_not_exist_is_named(files, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    Calibration.from_scores(new_scored(files), alpha=0.1, scorer="cosine(m)").save(tmp_path / "c")
    given = (tmp_path / "c", files / "judged.jsonl", "--model", "no/such/model")
    assert "no/such/model" in error_of("evaluate", *given)


# --- evaluate -------------------------------------------------------------------------------------


def test_evaluate_measures_what_the_library_measures(files):
    expected = evaluate(Calibration.load(files / "plain.json"), new_scored(files))
    shown = " ".join(run("evaluate", files / "plain.json", files / "new.jsonl").stdout.split())
    assert shown.startswith(" ".join(str(expected).split()))
    found = as_json("evaluate", files / "plain.json", files / "new.jsonl")["evaluation"]
    assert found["coverage"]["all"]["estimate"] == expected.coverage["all"].estimate
    assert found["removal"]["low"] == expected.removal.low
    shown = run("evaluate", files / "by_group.json", files / "new.jsonl").stdout
    assert re.search(r"^a +100 ", shown, re.M)


def test_evaluate_takes_another_alpha(files):
    given = ("evaluate", files / "plain.json", files / "new.jsonl", "--alpha")
    assert as_json(*given, "0.3")["evaluation"]["verdict"]["target"] == 0.7
    judged = files / "new.jsonl"
    for command in (("evaluate", judged, files / "plain.json"), ("show", judged)):
        assert "not a calibration; give its file" in error_of(*command)


@pytest.mark.parametrize("command", ["evaluate", "diagnose"])
def test_evaluate_and_diagnose_lead_with_top_k_at_the_recall_of_the_filter(command, files):
    given = (command, files / "plain.json", files / "new.jsonl")
    table = str(evaluate(Calibration.load(files / "plain.json"), new_scored(files)).equal_recall)
    shown = run(*given).stdout
    assert table in shown
    assert shown.index(table) < 500  # under a line on what is out of reach, or the verdict
    top, *_, ours = (row for row in as_json(*given)["equal_recall"]["rows"] if row["equal"])
    assert (top["rule"], ours["rule"]) == ("top k", "the filter")
    assert top["measured"]["recall"] == pytest.approx(ours["measured"]["recall"])


@pytest.mark.parametrize(
    ("calibration", "judged", "code"),
    [
        ("plain", "new", 0),
        ("end_to_end", "new", 0),
        ("keeps_everything", "new", 1),
        ("plain", "shifted", 1),
        ("by_group", "one_hard_group", 1),
        ("by_group", "other_groups", 1),
        ("out_of_reach", "new", 1),
        ("plain", "unscored", 1),
    ],
)
def test_evaluate_and_diagnose_exit_alike(calibration, judged, code, files):
    given = (files / f"{calibration}.json", files / f"{judged}.jsonl")
    run("evaluate", *given, code=code)
    run("diagnose", *given, code=code)


def test_evaluate_exits_with_1_where_nothing_is_relevant(files, tmp_path):
    new = [*read_jsonl(files / "new.jsonl")]
    write_jsonl([replace(q, relevant=[False] * 5) for q in new], tmp_path / "unjudged.jsonl")
    shown = run("evaluate", files / "plain.json", tmp_path / "unjudged.jsonl", code=1).stdout
    assert "No snippet is marked as relevant" in shown
    write_jsonl([replace(q, missed=None) for q in new], tmp_path / "unknown.jsonl")
    shown = run("evaluate", files / "end_to_end.json", tmp_path / "unknown.jsonl", code=1).stdout
    assert "No query has the number of relevant snippets that were missed" in shown


def test_queries_without_ids_are_evaluated_but_cannot_be_held_out(files, tmp_path):
    without = [replace(query, id=None) for query in read_jsonl(files / "judged.jsonl")]
    write_jsonl(without, tmp_path / "without.jsonl")
    command = ("calibrate", tmp_path / "without.jsonl", "--alpha", "0.1")
    assert "200 queries have no id" in run(*command, "--out", tmp_path / "c.json").stderr
    found = as_json("evaluate", tmp_path / "c.json", files / "new.jsonl")
    assert not found["evaluation"]["held_out_verified"]
    assert "all 200 queries belong" in error_of("evaluate", tmp_path / "c.json", command[1])
    assert "--hold-out" in error_of(*command, "--hold-out", "0.5", "--out", tmp_path / "h.json")


# --- diagnose and report --------------------------------------------------------------------------


def test_diagnose_prints_every_finding_once(files):
    found = diagnose(Calibration.load(files / "plain.json"), new_scored(files))
    words = " ".join(run("diagnose", files / "plain.json", files / "new.jsonl").stdout.split())
    for finding in found.findings:
        assert words.count(" ".join(finding.sentence.split())) == 1
    fields = as_json("diagnose", files / "plain.json", files / "new.jsonl")
    assert fields["verdict"] == found.paragraph
    assert fields["evaluation"]["coverage"]["query-recall"]["estimate"] == found.coverage.estimate


def test_the_queries_of_the_calibration_give_the_range_of_m2_if_all_are_given(files, tmp_path):
    calibration = Calibration.load(files / "half.json")
    found = as_json("diagnose", files / "half.json", files / "judged.jsonl")
    own = [q for q in new_scored(files, "judged.jsonl") if q.id in calibration.ids]
    new = new_scored(files, "judged.jsonl", calibration)
    assert found["m2_band"] == list(diagnose(calibration, new, reference=own).m2_band)
    assert found["left_out"] == len(own)
    one, *others = read_jsonl(files / "judged.jsonl")
    write_jsonl(others if one.id in calibration.ids else [one], tmp_path / "some.jsonl")
    assert as_json("diagnose", files / "half.json", tmp_path / "some.jsonl")["m2_band"] is None


@pytest.mark.slow
def test_the_report_is_that_of_the_library(files, tmp_path):
    page = tmp_path / "report.html"
    given = (files / "half.json", files / "new.jsonl")
    assert run("diagnose", *given, "--out", page).stdout.endswith("report.html\n")
    assert "ends in .html" in error_of("diagnose", *given, "--out", tmp_path / "r.pdf", code=2)
    calibration, new = Calibration.load(files / "half.json"), new_scored(files)
    sources = {"calibration": "half.json", "judged queries": "new.jsonl"}
    d, judged = diagnose(calibration, new), read_jsonl(files / "new.jsonl")
    assert page.read_text() == html(d, new, sources=sources, judged=judged)
    above = {q.id for q in new if (q.scores[q.relevant] > calibration.threshold()).any()}
    assert {lost["id"] for lost in as_json("diagnose", *given)["dropped"]} == above != set()


# --- the filter log -------------------------------------------------------------------------------


def logged(calibrations, path, n=90, queries="hashed"):
    """Log one decision a query with each calibration in turn; the first half has one query."""
    rng, log = np.random.default_rng(5), FilterLog(path, queries=queries)
    for i in range(n):
        conformal = ConformalFilter(LookupScorer({}, name="s"), calibrations[i % len(calibrations)])
        filtered = conformal.decide(np.sort(rng.normal(size=10)))
        log.append(event_of(filtered, query=f"q{max(i, n // 2)}"))
    return path


@pytest.fixture
def calibration(rng, tmp_path):
    """A saved calibration of 100 queries, each with the two lowest of ten scores relevant."""
    queries = [
        ScoredQuery(np.sort(rng.normal(size=10)), np.arange(10) < 2, id=str(i)) for i in range(100)
    ]
    made = Calibration.from_scores(queries, alpha=0.1, scorer="s")
    made.save(tmp_path / "c.json")
    return made


@pytest.mark.parametrize(("queries", "n"), [("hashed", 45), ("none", 90)])
def test_a_log_counts_a_query_that_recurs_once_and_any_alpha(queries, n, calibration, tmp_path):
    ours = [calibration.at(alpha) for alpha in (0.1, 0.2, 0.3)]
    log = logged(ours, tmp_path / "log.jsonl", queries=queries)
    found = as_json("diagnose", tmp_path / "c.json", "--log", log)
    measured = found["evaluation"]
    assert (measured["n_queries"], measured["n_snippets"], found["left_out"]) == (n, 10 * n, 0)
    assert found["repeated"] == 90 - n
    shown = run("diagnose", tmp_path / "c.json", "--log", log).stdout
    assert (f"Repeated, and counted once, as filtered last: {90 - n}." in shown) == (n < 90)
    assert "ids" not in [finding["name"] for finding in found["findings"]]


def test_of_a_repeated_query_the_last_event_of_each_group_counts(calibration, tmp_path):
    conformal, log = ConformalFilter(LookupScorer({}, "s"), calibration), tmp_path / "log.jsonl"
    scores = np.linspace(-2, 2, 10)
    for failed, group, of_event in (
        ([], "a", scores + 9),
        (["bm25"], "a", np.append(scores, np.nan)),
        (["bm25"], "b", scores),
        ([], "a", scores),
    ):
        filtered = conformal.decide(of_event, group=group)
        FilterLog(log).append(event_of(filtered, query="Again?", failed=failed))
    found = as_json("diagnose", tmp_path / "c.json", "--log", log)
    assert (found["evaluation"]["n_queries"], found["repeated"]) == (2, 2)
    assert found["evaluation"]["m1"]["estimate"] == 1  # of the first event, nothing was kept
    assert found["failed_retrievers"] == {"bm25": 2}
    shown = run("diagnose", tmp_path / "c.json", "--log", log).stdout
    assert "The retriever 'bm25' failed in 2 events." in shown


@pytest.mark.parametrize(
    ("n", "told"), [(4, "fewer than 5 snippets"), (5, None), (12, None), (13, "than k = 12")]
)
def test_lists_of_another_depth_in_a_log_are_warned_of(n, told, tmp_path):
    judged = [
        JudgedQuery(f"q{i}", with_hits([f"{i} {j}" for j in range(10)]), [True] + [False] * 9, k=12)
        for i in range(12)
    ]
    calibration = calibrate(judged, RankScorer(), alpha=0.2)
    calibration.save(tmp_path / "c.json")
    conformal, log = ConformalFilter.of(calibration), FilterLog(tmp_path / "log.jsonl")
    for i in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the filter's own, shown once
            filtered = conformal(f"new {i}", with_hits([f"{j}" for j in range(n)]))
        log.append(event_of(filtered, query=f"new {i}"))
    said = run("diagnose", tmp_path / "c.json", "--log", log.path).stderr
    assert (told in " ".join(said.split())) if told else not said


def test_events_of_other_calibrations_are_left_out(calibration, tmp_path):
    other = replace(calibration, guarantee="any")
    log = logged([calibration, other, other], tmp_path / "log.jsonl", queries="none")
    strange = logged([other], tmp_path / "strange.jsonl")
    for logs in (["--log", log, "--log", log, "--log", strange], ["--log", strange, "--log", log]):
        found = run("diagnose", tmp_path / "c.json", *logs).stdout  # each log is read
        assert re.search(r"s: 30, .* calibration: 0\..*another calibration: 150\.", found, re.S)
    (tmp_path / "empty.jsonl").touch()
    for name, why in (("strange", "none of the 90 events"), ("empty", "no event of a filter")):
        one = ("--log", tmp_path / f"{name}.jsonl")
        assert f"{name}.jsonl: {why}" in error_of("diagnose", tmp_path / "c.json", *one)


@pytest.mark.parametrize("queries", ["hashed", "text"])
def test_queries_of_a_calibration_are_left_out_of_a_log_by_their_texts(queries, tmp_path):
    def judged(i):
        rng = np.random.default_rng(i)
        scores = np.sort(rng.normal(size=10))[::-1]
        snippets = with_hits([Snippet("text", retrieval_score=float(s)) for s in scores])
        return JudgedQuery(f"number {i}", snippets, np.arange(10) == rng.integers(2))

    made = calibrate([judged(i) for i in range(90)], alpha=0.2)
    made.save(tmp_path / "c.json")
    assert made.choice.n_fit == 22
    log, conformal = FilterLog(tmp_path / "log.jsonl", queries=queries), ConformalFilter.of(made)
    for i in range(100):  # a person types the queries in capitals
        query = judged(i)
        log.append(event_of(conformal(query.query, query.snippets), query=query.query.upper()))
    found = run("diagnose", tmp_path / "c.json", "--log", log.path).stdout
    assert re.search(r"s: 10, .* this calibration: 90\.\n\n", found, re.S)


# --- what is printed ---


def test_control_characters_of_files_are_printed_visibly(files, tmp_path):
    bad, out = "\x1b[2J\x9b\u202e\nsha256: 0", tmp_path / "c.json"
    facts = {"source": bad, bad: bad}
    replace(Calibration.load(files / "by_group.json"), labels=facts, retrieval=facts).save(out)
    (tmp_path / "bad.jsonl").write_text(json.dumps({bad: 1}))
    for command in (("show", out), ("evaluate", out, files / "new.jsonl")):
        for options in ((), ("--json",)):
            shown = run(*command, *options).stdout
            assert not re.search(r"[\x1b\x9b\u202e]", shown)
    assert as_json("show", out)["labels"] == facts
    shown = run("show", out).stdout
    assert r"\u001b[2J" in shown
    assert shown.count("\nsha256: ") == 1
    assert r"\u001b[2J" in error_of("evaluate", out, tmp_path / "bad.jsonl")


def test_a_pipe_of_another_encoding_gets_every_character(files):
    command = [sys.executable, "-m", "conformal_retrievers", "show", "plain.json"]
    env = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    assert "score ≤ " in subprocess.check_output(command, cwd=files, env=env).decode()


@pytest.mark.parametrize("arguments", [["--help"], ["show", "plain.json"], ["plan", "--json"]])
def test_a_full_device_is_an_error_on_one_line(arguments, files):
    arguments += ["--alpha", "0.1"] if arguments[0] == "plan" else []
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "conformal_retrievers", *arguments]
        done = subprocess.run(command, cwd=files, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (3, "Error: No space left on device\n")


def test_a_closed_output_is_no_error(files):
    command = [sys.executable, "-m", "conformal_retrievers", "show", files / "plain.json"]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_command_line_needs_no_package_of_the_demo():
    names = "regex sentencex bm25s jinja2 matplotlib langchain_core llama_index"
    code = f"""
import sys
sys.modules.update(dict.fromkeys({names.split()}))
from conformal_retrievers.cli import app
app(["demo"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3
    (command,) = re.findall("pip install (.*);", done.stderr.splitlines()[0])
    wanted = "bm25s regex sentencex jinja2 matplotlib langchain-core llama-index-core"
    named = command.replace(" langchain-conformal", "")  # which may be missing, too
    assert named == f"{wanted} llama-index-postprocessor-conformal"


# --- what is refused ------------------------------------------------------------------------------


def test_no_command_writes_over_what_it_reads(files, tmp_path):
    judged, link = files / "judged.jsonl", tmp_path / "link"
    link.symlink_to(judged)
    calibrate = ("calibrate", judged, "--alpha", "0.2")
    report = ("diagnose", files / "plain.json", files / "new.jsonl")
    claims = ("claims", "calibrate", judged, "--alpha", "0.2", "--scorer", "s")
    gate = ("gate", judged, "--alpha", "0.2", "--unanswerable", files / "new.jsonl")
    behind = (*calibrate, "--gate", files / "plain.json")
    cases = [(calibrate, judged), (calibrate, link), (claims, judged), (gate, judged)]
    cases += [(report, files / "plain.json"), (gate, files / "new.jsonl")]
    for command, out in [*cases, (behind, files / "plain.json")]:
        before = out.read_bytes()
        assert "--out" in error_of(*command, "--out", out, code=2)
        assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("line", "field"),
    [("nothing", "line 1"), ('{"query": "q", "snippets": [], "mised": 1}', "mised")],
)
def test_bad_data_gives_one_line_with_file_and_field(line, field, files, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(line)
    calibrating = ("calibrate", bad, "--alpha", "0.1", "--out", tmp_path / "c.json")
    for command in (calibrating, ("evaluate", files / "plain.json", bad)):
        message = error_of(*command)
        assert field in message
        assert "bad.jsonl" in message
    assert not (tmp_path / "c.json").exists()


def test_a_broken_calibration_and_a_missing_folder_are_named(files, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "is a pipe; write it to a file" in error_of("calibrate", tmp_path / "pipe", "--alpha=.1")
    (tmp_path / "bad.json").write_text("{")
    assert "bad.json" in error_of("show", tmp_path / "bad.json")
    command = ("calibrate", files / "judged.jsonl", "--alpha", "0.1")
    for gone in ("gone/c.json", "gone" * 100):
        assert "gone" in error_of(*command, "--out", tmp_path / gone)


CALIBRATE = "calibrate judged.jsonl --out c.json"
GATE = "gate judged.jsonl --out c.json --alpha 0.1"


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (f"{CALIBRATE} --alpha 1.5", "--alpha"),
        (f"{CALIBRATE} --alpha 10%", "'10%' is not a number"),
        (f"{CALIBRATE} --alpha 0.1 --run x", "--run"),
        (f"{CALIBRATE} --alpha 0.1 --delta 2", "delta"),
        (CALIBRATE, "--alpha"),
        (f"{CALIBRATE} --alpha 0.1 --hold-out 1", "--hold-out"),
        ("diagnose plain.json", "--log"),
        ("diagnose plain.json new.jsonl --log new.jsonl", "--log"),
        ("diagnose plain.json --log new.jsonl --k 10", "--k"),
        ("plan --alpha 0.1 --have 0", "--have"),
        ("plan --alpha 0.1 --have 1000000000000", "--have"),
        (f"{GATE} --unanswerable =new.jsonl", "--unanswerable"),
        (f"{GATE} --unanswerable new.jsonl --unanswerable new.jsonl", "name 'new'"),
        ("judge judged.jsonl --out judged.jsonl", "--out"),
        ("judge judged.jsonl --out c.json --sample 0", "share"),
    ],
)
def test_a_wrong_command_exits_with_2_and_names_the_option(command, field, files, monkeypatch):
    monkeypatch.chdir(files)
    assert field in error_of(*command.split(), code=2)
    assert not (files / "c.json").exists()


@pytest.mark.slow
def test_a_file_that_no_command_wrote_is_not_replaced(files, tmp_path):
    other = tmp_path / "judged.jsonl"
    write_jsonl(judged_queries(3), other)
    before = other.read_bytes()
    calibrating = ("calibrate", files / "judged.jsonl", "--alpha", 0.1, "--out")
    diagnosing = ("diagnose", files / "plain.json", files / "new.jsonl", "--out")
    for command, out in ((calibrating, "c.json"), (diagnosing, "report.html")):
        assert "judged.jsonl exists" in error_of(*command, other, code=2)
        assert other.read_bytes() == before
        (tmp_path / out).touch()
        for _ in range(2):  # what a command wrote, or an empty file, is
            run(*command, tmp_path / out)


# --- plan, help and the installed command ---------------------------------------------------------


def test_a_plan_is_that_of_the_library():
    command = ("plan", "--alpha", 0.1, "--have", 300)
    expected = plan(0.1, 300)
    assert run(*command).stdout == f"{expected}\n"
    found = as_json(*command)
    assert found["feasible"] == expected.feasible
    assert found["smallest_alpha"] == smallest_alpha(300)


def test_the_plan_in_the_documentation_is_what_is_printed():
    page = (Path(__file__).parents[2] / "docs/guarantees.md").read_text(encoding="utf-8")
    assert indent(run("plan", "--alpha", 0.1, "--have", 50).stdout, "    ") in page


def test_the_version_and_help_fit_into_80_columns():
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", run("--version").stdout)
    assert "..." not in run("--help").stdout.partition("Commands:")[2]  # no summary is cut
    for command in ["calibrate", "gate", "show", "evaluate", "diagnose", "plan", "demo", "claims"]:
        assert "--help" in run(command, "--help").stdout
