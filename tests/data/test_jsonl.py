"""Judged queries in files of JSON lines."""

import gc
import gzip
import json
import math

import pytest
from judged import QUERIES

from conformal_retrievers.data import JudgedQuery, Snippet, read_jsonl, write_jsonl


def test_judged_queries_are_read_as_they_were_written(tmp_path):
    plain, packed = tmp_path / "judged.jsonl", tmp_path / "judged.jsonl.gz"
    for path in (plain, packed):
        write_jsonl(QUERIES, path)
        assert read_jsonl(path) == read_jsonl(str(path)) == QUERIES
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    lines = plain.read_text("utf-8").split("\n")[:-1]
    first, nothing, _, unanswerable, by_ids, _ = map(json.loads, lines)
    assert first["query"] == QUERIES[0].query
    assert first["snippets"][1]["hits"] == [
        {"retriever": "dense", "rank": 0, "score": 1 / 3},
        {"retriever": "Café", "rank": 41},
    ]
    assert not {"hits", "embedding"} & first["snippets"][2].keys()
    assert nothing == {"query": "nothing retrieved", "snippets": []}
    assert not unanswerable["answerable"]
    assert by_ids == {"query": "by ids", "relevant_ids": ["a", "ü"]}


def test_a_line_needs_only_query_and_text_and_relevant(tmp_path):
    path = tmp_path / "judged.jsonl"
    path.write_text(
        '{"query": "q", "snippets": [{"text": "a", "relevant": true}]}\n'
        "\n"
        '{"id": 7, "query": "r", "snippets": '
        '[{"id": 8, "text": "a", "relevant": false, "hits": null}]}\n'
    )
    first, second = read_jsonl(path)
    assert first == JudgedQuery("q", ["a"], [True])
    assert first.missed is None  # unknown; 0 is known
    assert first.hits == {}  # the order of a file is not taken for ranks
    assert second == JudgedQuery("r", [Snippet("a", id="8")], [False], id="7")


def with_snippet(**fields):
    return json.dumps({"query": "q", "snippets": [{"text": "a", "relevant": True} | fields]})


def retrieved_by(retriever):
    return json.dumps({"query": "q", "snippets": [], "retriever": retriever})


def with_hit(**fields):
    return with_snippet(hits=[{"retriever": "r", "rank": 0} | fields])


def with_evidence(**fields):
    evidence = {"document": "d", "start": 0} | fields
    return json.dumps({"query": "q", "snippets": [], "evidence": [evidence]})


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('{"query": "q", "snippets": [', r"line \d+: it is not JSON \(.*give one object a line"),
        ('{"query": "q", "snippets": [{"text": "t"}]}', r"relevant is missing; give true or false"),
        ('{"snippets": []}', "query is missing"),
        ('{"query" : "p", "query": "q", "snippets": []}', "'query' occurs"),
        ('{"query": "q", "snippets": [{"relevant": true}]}', r"snippets\.0\.text is missing"),
        (with_snippet(embedding=[0.5]), r"embedding is \[0.5\]; remove it, since files hold no"),
        (with_snippet(relevant=None), r"relevant\[0\] is None; give true or false"),
        (with_snippet(retrieval_score=math.nan), r"snippets\.0\.retrieval_score is nan"),
        (with_snippet(retrieval_score=7).replace("7", "1e999"), "retrieval_score is inf"),
        (with_hit(rank="0"), r"hits\.0\.rank is '0'; give a number"),
        (with_evidence(end=10**9), "evidence has the range"),
        (with_snippet(hits=[{"retriever": "r"}]), r"hits\.0\.rank is missing"),
        ('{"query": "q", "snippets": [{}, {}, {}, {}, {}, {}]}', "3 more errors"),
        ('{"query": "q", "snippets": [7, {"text": "t"}]}', r"snippets\.0 is 7; give a JSON object"),
        ('{"query": "q", "snippets": [], "misssed": 1}', "misssed is an unknown field"),
        ('{"query": "q", "snippets": [], "\\u001b[2J": 1}', r"\\u001b\[2J is an unknown field"),
        ('{"query": "q\\ud800", "snippets": []}', "query (has surrogates|is 'q.ud800')"),
        (retrieved_by({"a": "BM25"}), r"retriever\.a is 'BM25'; give a JSON object"),
    ],
)
def test_a_broken_line_is_an_error_that_names_file_line_and_field(tmp_path, line, field):
    path = tmp_path / "judged.jsonl.gz"
    path.write_bytes(gzip.compress(f'{{"query": "fine", "snippets": []}}\n\n{line}\n'.encode()))
    with pytest.raises(ValueError, match=field) as error:
        read_jsonl(path)
    assert f"{path}, line 3: " in str(error.value)
    assert gc.isenabled()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_on_any_system_and_a_byte_order_mark_is_no_text(tmp_path, end):
    path = tmp_path / "judged.jsonl"
    text = end.join(['{"query": "q", "snippets": []}', "", "{"])
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    with pytest.raises(ValueError, match=r"line 3: it is not JSON"):
        read_jsonl(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("latin.jsonl", "é".encode("latin-1")),
        ("cut.jsonl.gz", gzip.compress(b"{}" * 1000, mtime=0)[:20]),
        ("broken.jsonl.gz", gzip.compress(b"", mtime=0)[:10] + b"\xff" * 9),
        ("plain.jsonl.gz", b"{}"),
    ],
)
def test_a_file_that_is_not_text_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} is not .*UTF-8"):
        read_jsonl(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl"):
        read_jsonl(tmp_path / "none.jsonl")


def test_a_query_that_cannot_be_written_leaves_the_old_file_as_it_was(tmp_path):
    path = tmp_path / "judged.jsonl"
    path.write_bytes(b"old")
    odd = JudgedQuery("new", [Snippet("a", retrieval_score=math.inf)], [True], id="q9")
    with pytest.raises(ValueError, match=r"'q9': snippets\.0\.retrieval_score is inf"):
        write_jsonl([QUERIES[1], odd], path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
