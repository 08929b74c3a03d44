"""The commands with sentences: calibrate --split, and what follows the calibration's split."""

import json
import random

import pytest
from commands import error_of, run
from pages import NAME, asked, by_line

from conformal_retrievers import Calibration, SentenceFilter, calibrate, write_jsonl
from conformal_retrievers.data.sentences.evidence import by_sentence
from conformal_retrievers.monitoring import FilterLog, event_of

SPLIT = ("--split", "sentences")


def queries(n, start=0):
    """Queries about a number, which one sentence of the first or second page has."""
    rng = random.Random(start)
    found = []
    for i in range(start, start + n):
        pages = [[rng.randint(10**6, 10**7) for _ in range(3)] for _ in range(3)]
        at = rng.randrange(2)
        pages[at][rng.randrange(3)] = f"q{i:04}word"
        place = next(j for j, number in enumerate(pages[at]) if number == f"q{i:04}word")
        found.append(asked(f"q{i:04}word", pages, {at: [place]}, k=3))
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sentences")
    write_jsonl(queries(80), folder / "judged.jsonl")
    write_jsonl(queries(40, start=1000), folder / "new.jsonl")
    write_jsonl(by_sentence(queries(40, start=1000), "sentences"), folder / "cut.jsonl")
    out = ("--out", folder / "c.json")
    run("calibrate", folder / "judged.jsonl", "--alpha", "0.1", *SPLIT, *out)
    return folder


def test_calibrate_cuts_the_snippets(files):
    calibration = Calibration.load(files / "c.json")
    assert (calibration.split, calibration.k) == (NAME, 3)
    assert calibration.threshold() < float("inf")
    shown = run("show", files / "c.json").stdout
    assert "relevant sentences" in shown
    assert NAME in " ".join(shown.split())


def test_judged_queries_that_are_sentences_need_no_split(files):
    out = files / "again.json"
    run("calibrate", files / "cut.jsonl", "--alpha", "0.1", "--out", out)
    assert Calibration.load(out).split == NAME


@pytest.mark.parametrize("judged", ["new.jsonl", "cut.jsonl"])
def test_evaluate_and_diagnose_follow_the_split_of_the_calibration(files, judged):
    shown = run("evaluate", files / "c.json", files / judged).stdout
    assert "40 queries, 360 sentences, 40 of them relevant" in shown
    assert "sentences per query" in " ".join(shown.split())
    diagnosed = run("diagnose", files / "c.json", files / judged).stdout
    assert "Queries: 40, with 360 sentences." in diagnosed


def test_a_log_of_sentences_is_diagnosed(files):
    prune = SentenceFilter.of(Calibration.load(files / "c.json"))
    log = FilterLog(files / "filter.jsonl")
    for query in queries(40, start=1000):
        log.append(event_of(prune(query.query, query.snippets), query=query.query))
    shown = run("diagnose", files / "c.json", "--log", files / "filter.jsonl").stdout
    assert "Queries: 40, with 360 sentences." in shown


def test_judgements_without_evidence_are_refused(files, tmp_path):
    rows = [json.loads(line) for line in (files / "judged.jsonl").read_text("utf-8").splitlines()]
    for row in rows:
        del row["evidence"]
    (tmp_path / "whole.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    given = ("calibrate", tmp_path / "whole.jsonl", "--alpha", "0.1")
    assert "evidence" in error_of(*given, *SPLIT)
    assert "evidence" in error_of("evaluate", files / "c.json", tmp_path / "whole.jsonl")


def test_a_splitter_of_ones_own_is_not_run(files, tmp_path):
    calibrate(queries(30), alpha=0.1, split=by_line).save(tmp_path / "lines.json")
    refused = error_of("evaluate", tmp_path / "lines.json", files / "new.jsonl")
    assert "a function that the command line does not have" in refused
    write_jsonl(by_sentence(queries(40, start=1000), by_line), tmp_path / "cut.jsonl")
    shown = run("evaluate", tmp_path / "lines.json", tmp_path / "cut.jsonl").stdout
    assert "120 sentences" in shown
