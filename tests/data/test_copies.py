"""Copies of a judged query count once."""

from dataclasses import replace
from pathlib import Path

import pytest

from conformal_retrievers import JudgedQuery, Snippet, calibrate, diagnose, read, write_jsonl
from conformal_retrievers.data.copies import copies_in, near_copies_in
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.evaluation import report
from conformal_retrievers.scoring import RankScorer, score_queries

WORDS = ("amber", "birch", "cedar", "dune", "ember", "fjord", "glade", "heath", "islet", "jetty")


def judged(text: str, place: str, *, id: str | None = None) -> JudgedQuery:
    """Return a query about a place, whose three snippets have ids of that place."""
    snippets = with_hits([Snippet(f"{place} {i}", id=f"{place}-{i}") for i in range(3)])
    return JudgedQuery(text, snippets, [True, False, False], id=id, missed=0)


def different(n: int) -> list[JudgedQuery]:
    texts = [f"{WORDS[i % 10]} {WORDS[i // 10 % 10][::-1]} number {i}?" for i in range(n)]
    return [judged(text, f"place {i}", id=f"q{i}") for i, text in enumerate(texts)]


def test_copies_are_an_error_that_says_so_whichever_ids_they_have() -> None:
    queries = different(30)
    copies = [judged(f" {q.query.upper()} ", f"place {i}") for i, q in enumerate(queries[:5])]
    with pytest.raises(ValueError, match=r"5 of 35 judged queries are copies.*of query 'q0'"):
        calibrate([*queries, *copies], alpha=0.2)


def test_a_file_with_copies_is_read_without_them_and_says_so(tmp_path: Path) -> None:
    queries = different(30)
    write_jsonl([*queries, judged(queries[3].query, "place 3", id="again")], tmp_path / "q.jsonl")
    with pytest.warns(UserWarning, match="1 of 31 judged queries.*'again' of query 'q3'.*left out"):
        assert read(tmp_path / "q.jsonl") == queries


def test_one_question_about_many_documents_is_no_copy(recwarn: pytest.WarningsRecorder) -> None:
    asked = ["Who are the parties?", "When does it end?", "Which law governs it?"]
    queries = [judged(asked[i % 3], f"contract {i}", id=f"q{i}") for i in range(30)]
    assert calibrate(queries, alpha=0.2).n_queries == 30
    assert not recwarn


def test_near_copies_are_counted_in_a_warning(tmp_path: Path) -> None:
    queries = different(55)
    near = [judged(f"So, {q.query}", f"place {i}", id=f"n{i}") for i, q in enumerate(queries[:25])]
    warned = "25 of 80 judged queries are near copies.*'So, amber rebma number 0.' .n0. of"
    with pytest.warns(UserWarning, match=warned):
        calibrate([*queries, *near], alpha=0.2)
    write_jsonl([*queries, *near], tmp_path / "q.jsonl")
    with pytest.warns(UserWarning, match=warned):
        assert len(read(tmp_path / "q.jsonl")) == 80


def test_the_report_finds_copies_and_near_copies() -> None:
    queries = different(40)
    calibration = calibrate(queries[:20], RankScorer(), alpha=0.2)
    new = queries[20:]
    new += [replace(q, id=f"{q.id} again") for q in new[:3]]
    new += [replace(q, query=f"So, {q.query}", id=f"{q.id} so") for q in new[:2]]
    scored = score_queries(RankScorer(), new)
    page = report.html(diagnose(calibration, scored), scored, judged=new)
    assert "3 of 25 judged queries are copies" in page
    assert "2 of 22 judged queries are near copies" in page


@pytest.mark.parametrize(("shared", "near"), [((0, 0), True), ((1, 1), False), ((0, 1), False)])
def test_a_near_copy_shares_a_relevant_snippet(shared, near):
    texts = [["a", "b"], ["c", "d"]]
    texts[1][shared[1]] = texts[0][shared[0]]
    first, second = (JudgedQuery("Who wrote it?", own, [True, False]) for own in texts)
    assert len(near_copies_in([first, replace(second, query="So, who wrote it?")])) == near


def test_a_copy_in_another_group_or_with_other_ids_is_a_copy():
    one = JudgedQuery("Who?", [Snippet("a", "1"), Snippet("b", "2")], [True, False], group="x")
    other = JudgedQuery("who?", [Snippet("a", "3"), Snippet("b")], [True, False], group="y")
    assert len(copies_in([one, other])) == 1
