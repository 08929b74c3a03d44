"""The command that calibrates on a model's answers, against a server on loopback."""

import json
import re

import pytest
from commands import as_json, error_of, run

from conformal_retrievers import Calibration, ConformalFilter, JudgedQuery, write_jsonl
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.monitoring import FilterLog, event_of

CITIES = ["Paris", "Rome", "Oslo", "Lima", "Bern", "Cairo", "Delhi", "Quito", "Tokyo", "Accra"]


def written(folder, n=40):
    """Write questions whose answer stands in one of six snippets, and their references."""
    queries, lines = [], []
    for i in range(n):
        city = CITIES[i % 10]
        texts = [f"Note {i}-{j}: the office opens at {j + 7}." for j in range(6)]
        texts[i % 3] = f"Note {i}: guild {i} meets in {city}."
        question = f"Where does guild {i} meet?"
        queries.append(JudgedQuery(question, with_hits(texts), [False] * 6, id=f"q{i}"))
        answer = city if i % 2 else [city, f"in {city}"]
        lines.append(json.dumps({"query": question, "answer": answer}))
    write_jsonl(queries, folder / "retrieved.jsonl")
    (folder / "expected.jsonl").write_text("\n".join(lines))
    return queries


def reply(body):
    """Answer with the city that the snippets name for the guild."""
    user = body["messages"][-1]["content"]
    if "<answer_a>" in user:
        reference, answer = re.findall(r"<answer_.>\"(.*)\"</answer_.>", user)
        return json.dumps({"reasoning": "…", "verdict": "yes" if reference in answer else "no"})
    guild = re.search(r"guild (\d+) meet\?", user)[1]
    found = re.search(rf"guild {guild} meets in (\w+)\.", user)
    return found[1] if found else "unknown"


@pytest.fixture
def server(tmp_path, monkeypatch, llm_server):
    monkeypatch.chdir(tmp_path)
    llm_server.reply = reply
    return llm_server


@pytest.fixture
def ask(server):
    return ["answers", "retrieved.jsonl", "--alpha", 0.2, "--llm", "toy", "--base-url", server.url]


@pytest.mark.slow
def test_questions_and_a_model_become_a_calibration_that_filters(tmp_path, server, ask):
    queries = written(tmp_path)
    printed = run(*ask).stdout
    assert "the chain's answer is the one from all retrieved snippets" in " ".join(printed.split())
    n = len(server.bodies)
    assert 40 * 3 < n <= 40 * 8
    right = as_json(*ask, "--expected", "expected.jsonl", "--out", "right.json")
    assert right["file"] == "right.json"
    assert len(server.bodies) == n  # what was answered is not asked for again
    calibration = Calibration.load("right.json")
    assert calibration.statement.startswith("Keeps snippets from which the chain's answer is right")
    kept = [ConformalFilter.of(calibration)(query.query, query.snippets).kept for query in queries]
    assert sum(i % 3 in of for i, of in enumerate(kept)) >= 0.8 * len(queries)
    assert run("show", "right.json").stdout.startswith("Keeps snippets from which")


def test_the_model_may_compare_the_answers(tmp_path, server, ask):
    written(tmp_path, 20)
    assert "(by llm_same(toy, prompt=" in run(*ask, "--by-llm").stdout


def test_a_question_without_a_reference_is_named(tmp_path, server, ask):
    written(tmp_path, 5)
    (tmp_path / "expected.jsonl").write_text('{"query": "Where does guild 0 meet?", "answer": "x"}')
    error = error_of(*ask, "--expected", "expected.jsonl")
    assert "expected has no reference for 'Where does guild 1 meet?'; give a reference" in error
    assert server.bodies == []


@pytest.mark.slow
def test_a_week_in_shadow_says_what_a_filter_by_answers_would_save(tmp_path, server, ask):
    queries = written(tmp_path)
    run(*ask)
    shadow = ConformalFilter.of(Calibration.load("answers.json"), shadow=True)
    log = FilterLog(tmp_path / "shadow.jsonl")
    for query in queries:
        log.append(event_of(shadow(query.query, query.snippets), query=query.query))
    printed = run("diagnose", "answers.json", "--log", "shadow.jsonl").stdout
    assert printed.startswith("In shadow at alpha = 0.2, over 40 queries: the filter would")
    error = error_of("diagnose", "answers.json", "retrieved.jsonl")
    assert "measure its filter with evaluate_answers" in error
