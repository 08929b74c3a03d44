"""The tables of a real model's answers and ratings follow from what is in the repository of it."""

import sys

import pytest
from rich.console import Console

from benchmarks import answers, ratings
from conformal_retrievers import JudgedQuery


def test_each_question_is_asked_of_a_server_once(llm_server, tmp_path, monkeypatch):
    llm_server.reply = lambda body: f"limit {body['max_tokens']}"
    made = [JudgedQuery(f"q{i}?", ["a", "b"], [True, False], id=f"q{i}") for i in range(3)]
    rows = [(query, query.snippets, {"id": query.id}) for query in made]
    monkeypatch.setattr(answers, "questions", lambda data, name, cache: rows)
    monkeypatch.setattr(answers, "REPLIES", tmp_path / "replies.jsonl.gz")
    for n in ("2", "3"):
        url = ["--base-url", llm_server.url, "--n", n, "--name", "m"]
        monkeypatch.setattr(sys, "argv", ["answers", *url])
        answers.collect(answers.parsed_arguments())
    assert len(llm_server.bodies) == 3 * len(answers.contexts(made[0], made[0].snippets))
    found = [(row["id"], row["replies"]["gold"]) for row in answers.read_rows(answers.REPLIES)]
    assert found == [(query.id, "limit 24") for query in made]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sections", "replies", "tables"),
    [
        (answers.sections, answers.REPLIES, answers.TABLES),
        (ratings.sections, ratings.RATINGS, ratings.TABLE),
    ],
    ids=["answers", "ratings"],
)
def test_the_tables_are_those_of_the_replies(sections, replies, tables):
    console = Console(record=True, width=160)
    for part in sections(answers.read_rows(replies)):
        console.print(part, markup=False, highlight=False, soft_wrap=True)
    text = "\n".join(line.rstrip() for line in console.export_text().splitlines())
    assert text.strip() == tables.read_text(encoding="utf-8").strip()
