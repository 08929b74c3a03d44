"""What `read` takes a source for, what it refuses, and the same judgements in every format."""

import gzip
import json
from pathlib import Path

import pandas as pd
import pytest

from conformal_retrievers.data import JudgedQuery, read, read_beir, write_jsonl
from conformal_retrievers.data.queries import with_hits

FILES = Path(__file__).parent / "files"
OURS = [JudgedQuery("Who?", with_hits(["Ann", "Bob"]), [True, False], id="q1", missed=0)]


def test_our_own_files_and_beir_folders_are_read(tmp_path):
    write_jsonl(OURS, tmp_path / "any.name")
    write_jsonl([], tmp_path / "empty.jsonl")
    assert read(tmp_path / "any.name") == OURS
    assert read(str(tmp_path / "empty.jsonl")) == []
    folder = tmp_path / "beir"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text('{"_id": "d", "text": "x"}\n{"_id": "e", "text": "y"}\n')
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "?"}\n')
    (folder / "qrels.tsv").write_text("q\td\t2\nq\te\t1\n")
    (folder / "run.tsv").write_text("q\te\t1\t.5\nq\td\t2\t.4\n")
    assert read(folder, "run.tsv") == read_beir(folder, "run.tsv")
    options = {"k": 1, "min_score": 2}
    assert read(folder, "run.tsv", **options) == read_beir(folder, "run.tsv", **options)
    with pytest.raises(ValueError, match="run=FILE"):
        read(folder)


@pytest.mark.filterwarnings("ignore:an LLM wrote")
def test_a_file_is_recognised_by_its_content_and_not_by_its_name(tmp_path):
    for i, source in enumerate(sorted(FILES.glob("*.[jc]s*"))):
        plain, packed = tmp_path / f"{i}.txt", tmp_path / f"{i}.gz"
        plain.write_bytes(source.read_bytes())
        packed.write_bytes(gzip.compress(source.read_bytes()))
        assert read(plain) == read(packed) == read(source) != []
    assert i == 4


def test_a_list_in_json_or_of_objects_is_read_as_json_lines(tmp_path):
    write_jsonl(OURS, ours := tmp_path / "ours.jsonl")
    for file in (FILES / "ragas.jsonl", ours):
        samples = [json.loads(line) for line in file.read_text().splitlines()]
        for indent in (None, 2):
            (tmp_path / "list").write_text(json.dumps(samples, indent=indent))
            assert read(tmp_path / "list") == read(samples) == read(file)


def test_a_frame_of_our_own_may_lack_values_and_a_table_may_have_a_column_of_evidence():
    rows = [{"query": "Who?", "snippets": [{"text": "a", "relevant": True}], "k": 5}]
    rows += [{"query": "Why?", "relevant_ids": ["b"], "answerable": True}]
    assert read(pd.DataFrame(rows)) == read(rows)
    row = {"query": "Who?", "text": "a", "relevant": 1, "evidence": "page 3", "relevant_ids": ""}
    assert read([row])[0].snippets[0].text == "a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": "x"}', r"line 1 has the fields question, .*TREC.*RAGAS.*LangSmith"),
        ("a,b\n1,2\n", "has the fields a, b"),
        ("Question,ID,label\nWho?,1,1\n", "id for ID, query for Question, relevant for label"),
        ('{"format": "conformal-retrievers/calibration"}', "is a calibration or another file"),
        ("query,Text,relevant\nq,a,1\n", "line 2: the columns id and text are missing; rename"),
        ("plain text\n", "no records"),
        ("", "no records"),
        ("[1]", "line 1, item 0 is 1; give an object"),
        ('[{"query": "x", "snippets": ["a"], "relevant": [1]}]', r"ts\.0 .* {\"text\": \"…\""),
        ('{"user_input": "q"}\n{"user_input"\n', "line 2: it is not JSON"),
        ('{"user_input": "q", "user_input": "p"}', "'user_input' occurs twice"),
        ("[" * 100_000, "not JSON"),
        ('user_input,reference_contexts\nq,"' + "[" * 5000 + '"\n', "reference_contexts is"),
        ('query,id,relevant\n"q\nr",d,1\n\n\n"q\ns",d\n', "line 6 does not have 3 columns"),
        ("query,id,relevant\rq;r;s;t;u,d\r", "line 2 does not have 3 columns"),
        ("Zinc, or iron\nIron, or zinc\n", r"judge_retriever\(retriever, questions\)"),
    ],
)
def test_what_is_unknown_or_broken_or_ambiguous_is_refused(text, message, tmp_path):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        read(path)
    assert str(path) in str(raised.value)


LONG = "x" * 100_000
ROW = {"query": "q", "id": "a", "text": "t", "relevant": 1}
SNIPPET = {"text": "t", "relevant": True}


@pytest.mark.parametrize(
    "row",
    [
        {LONG: 1},
        {"query": "q", "id": LONG, "snippets": [], "missed": LONG},
        {"query": "q", "id": LONG, "snippets": [SNIPPET | {"relevant": LONG}]},
        {"query": "q", "group": f"\x1b{LONG}", "snippets": []},
        {"query": "q", "snippets": [], LONG: 1},
        {"span_id": "s", "attributes": {"retrieval.documents": {LONG: 1}}},
        {"inputs": {LONG: 1}, "outputs": {"relevant_ids": ["a"]}},
    ],
    ids=lambda row: f"{[*row]!s:.40}",
)
def test_a_long_value_is_cut_in_the_error(row, tmp_path):
    path = tmp_path / "file.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(ValueError, match="give|remove|name") as raised:
        read(path)
    assert len(str(raised.value)) < 1000


def test_a_whole_number_as_an_id_is_exact():
    [query] = read([ROW | {"id": id} for id in [2**63 + 1, 10**400, 7.0, "b"]])
    assert [snippet.id for snippet in query.snippets] == [str(2**63 + 1), f"1{'0' * 400}", "7", "b"]


def test_a_file_that_is_not_utf_8_text_or_not_there_is_named(tmp_path):
    path = tmp_path / "latin.json"
    path.write_bytes('{"user_input": "é"}'.encode("latin-1"))
    with pytest.raises(ValueError, match="latin.json is not a complete file of UTF-8 text"):
        read(path)
    packed = tmp_path / "cut.csv.gz"
    packed.write_bytes(gzip.compress(b"user_input,x\n" * 100)[:-8])
    with pytest.raises(ValueError, match="cut.csv.gz is not a complete file"):
        read(packed)
    with pytest.raises(FileNotFoundError, match="none.json: cannot read"):
        read(tmp_path / "none.json")


def test_nothing_in_a_file_is_run(tmp_path):
    path, trace = tmp_path / "set.csv", tmp_path / "trace"
    path.write_text(f"user_input,reference_contexts\nq,\"[open({str(trace)!r}, 'w')]\"\n")
    with pytest.raises(ValueError, match="reference_contexts"):
        read(path)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ragas.jsonl", {"run": "run.txt"}, "run is 'run.txt', but .*RAGAS"),
        ("ragas.jsonl", {"relevant": "x"}, "relevant is 'x'"),
        ("phoenix.jsonl", {"query": "x"}, "query is 'x'.*OpenInference"),
    ],
)
def test_an_option_that_a_format_does_not_take_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        read(FILES / name, **options)
