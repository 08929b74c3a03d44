"""`conformal-retrievers judge`: a process that is killed, started again, and calibrated from."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.client import HTTPException

import pytest
from commands import as_json, error_of, run
from judging import ask, command, finish, queries

from conformal_retrievers.data.jsonl import read_jsonl, write_jsonl
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.labels import read_labels, write_labelled
from conformal_retrievers.labels.judging import Judging


@pytest.fixture
def retrieved(tmp_path):
    write_jsonl(queries(6, 20, marked=[0, 3]), tmp_path / "retrieved.jsonl")
    return tmp_path / "retrieved.jsonl"


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.05, 0.2, 0.5])
def test_nothing_is_lost_if_a_process_is_killed_while_it_stores_marks(seconds, retrieved, tmp_path):
    out, answered = tmp_path / "judged.jsonl", []

    def post(url, n):
        with contextlib.suppress(OSError, HTTPException):
            for version in range(10_000):
                fields = {"marks": [bool(version % 2)] * n, "done": True, "version": version}
                assert ask(url, "?number=0", fields)[0] == 200
                answered.append(version)

    with command(retrieved, "--out", out) as (process, url):
        posting = threading.Thread(target=post, args=[url, len(ask(url)[1]["marks"])])
        posting.start()
        time.sleep(seconds)
        process.kill()
        posting.join(60)
    judging = Judging(read_jsonl(retrieved), out)
    stored = judging.question(0)["version"] - 1
    assert stored - len(answered) in (-1, 0)  # one may be stored that was not answered for
    if answered:
        assert judging.question(0)["marks"][0] == bool(stored % 2)
        assert read_labels(out)["queries"] == 1
        shown = judging.sample.shown[judging.sample.order[0]]
        assert read_jsonl(out)[0].relevant[shown[0]] == bool(stored % 2)
    judging.close()


@pytest.mark.slow
def test_a_second_process_is_refused_and_the_first_ends_with_what_to_do_next(retrieved, tmp_path):
    out = tmp_path / "judged.jsonl"
    with command(retrieved, "--out", out, "--by", "Ann") as (process, url):
        assert "another process" in error_of("judge", retrieved, "--out", out, "--by", "Ann")
        ask(url, "?number=0", {"marks": ask(url)[1]["marks"], "done": True, "version": 0})
        process.send_signal(signal.SIGINT)
        said = process.stdout.read()
        assert process.wait(20) == 0
    assert "1 of 6 questions" in said
    assert f"calibrate {out}" in " ".join(said.split())


def test_what_was_judged_goes_into_a_calibration_with_its_record(tmp_path):
    retrieved, out = tmp_path / "retrieved.jsonl", tmp_path / "judged.jsonl"
    judged = []
    for q in queries(30, 12, marked=[0, 3]):
        found = [replace(s, retrieval_score=1 / (1 + i)) for i, s in enumerate(q.snippets)]
        judged.append(replace(q, snippets=with_hits(found)))
    write_labelled(judged, {"source": "LLM", "llm": "m"}, retrieved)
    judging = Judging(read_jsonl(retrieved), out, given={"source": "LLM", "llm": "m"})
    finish(judging)
    judging.close()
    for name in ("calibrate", "gate"):
        saved = ("--alpha", "0.2", "--out", tmp_path / f"{name}.json")
        shown = as_json(name, out, *saved)
        assert "questions" not in shown["labels"]
        said = run(name, out, *saved, "--synthetic").stdout
        assert "questions are synthetic" in " ".join(said.split())
        assert shown["labels"]["source"] == "person"
        assert shown["labels"]["given"] == {"source": "LLM", "llm": "m"}
    out.write_text(out.read_text().replace('"relevant":true', '"relevant":false', 1))
    arguments = ("calibrate", out, "--alpha", "0.2", "--out", tmp_path / "c.json")
    assert "judged.labels.json" in error_of(*arguments)


def test_the_command_line_loads_no_server_until_it_judges():
    code = "import conformal_retrievers.labels, sys; sys.exit('http.server' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
