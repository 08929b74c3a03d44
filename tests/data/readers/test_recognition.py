"""What `read` takes a source for, what it refuses, and the same judgements in every format."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers import JudgedQuery, Snippet, read, write_jsonl
from conformal_retrievers.data.beir import read_beir
from conformal_retrievers.data.hits import Hit
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
    assert read(folder, "run.tsv", k=1, min_score=2) == read_beir(
        folder, "run.tsv", k=1, min_score=2
    )
    with pytest.raises(ValueError, match="run=FILE"):
        read(folder)


def test_a_file_is_recognised_by_its_content_and_not_by_its_name(tmp_path):
    for i, source in enumerate(sorted(FILES.glob("*.[jc]s*"))):
        plain, packed = tmp_path / f"{i}.txt", tmp_path / f"{i}.gz"
        plain.write_bytes(source.read_bytes())
        packed.write_bytes(gzip.compress(source.read_bytes()))
        assert read(plain) == read(packed) == read(source) != []
    assert i == 6


def test_a_list_in_json_is_read_as_json_lines(tmp_path):
    samples = [json.loads(line) for line in (FILES / "ragas.jsonl").read_text().splitlines()]
    for name, value in (("list", samples), ("page", {"data": samples, "next_cursor": None})):
        for indent in (None, 2):
            (tmp_path / name).write_text(json.dumps(value, indent=indent))
            assert read(tmp_path / name) == read(FILES / "ragas.jsonl")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": "x"}', r"line 1 has the fields question, .*TREC.*RAGAS.*LangSmith"),
        ("a,b\n1,2\n", "has the fields a, b"),
        ("plain text\n", "no records"),
        ("", "no records"),
        ("[]", "no records"),
        ("[1]", "line 1, item 0 is 1; give an object"),
        ('{"user_input": "q"', "not JSON"),
        ('{"user_input": "q"}\n{"user_input"\n', "line 2: it is not JSON"),
        ('{"user_input": "q", "user_input": "p"}', "'user_input' occurs twice"),
        ("[" * 100_000, "not JSON"),
        ('user_input,reference_contexts\nq,"' + "[" * 5000 + '"\n', "reference_contexts is"),
        ("query,id,relevant\nq,d\n", "line 2 does not have 3 columns"),
        ("query,id,relevant\nq,d,1,2\n", "line 2 does not have 3 columns"),
        (f"query,text,relevant\nq,{'x' * 200_000},1\n", "line 2 is not CSV.*JSON lines"),
        (
            '{"user_input": "q", "query": "q", "text": "x", "relevant": 1}',
            "fields of RAGAS and of a table; .*read_ragas or read_frame",
        ),
        (
            '{"queries": {}, "corpus": {}, "relevant_docs": {}, "inputs": {}, "outputs": {}}',
            "fields of LlamaIndex and of LangSmith",
        ),
    ],
)
def test_what_is_unknown_or_broken_or_ambiguous_is_refused(text, message, tmp_path):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        read(path)
    assert str(path) in str(raised.value)


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


def test_a_file_larger_than_memory_is_refused(tmp_path, monkeypatch):
    records = sys.modules["conformal_retrievers.data.readers.records"]
    monkeypatch.setattr(records, "MOST", 100)
    path = tmp_path / "large.csv.gz"
    path.write_bytes(gzip.compress(b"user_input,reference\n" + b"q,r\n" * 100))
    with pytest.raises(ValueError, match=r"large\.csv\.gz has more than 100 characters"):
        read(path)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ragas.jsonl", {"run": "run.txt"}, "run is 'run.txt', but .*RAGAS"),
        ("ragas.jsonl", {"relevant": "x"}, "relevant is 'x'"),
        ("embedding-qa.json", {"k": 5}, "k is 5.*LlamaIndex"),
        ("phoenix.jsonl", {"query": "x"}, "query is 'x'.*OpenInference"),
    ],
)
def test_an_option_that_a_format_does_not_take_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        read(FILES / name, **options)


# --- the same judgements in every format ----------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@st.composite
def queries(draw):
    """Return judged queries as one retriever gives them, with all that the formats have."""
    found = []
    for i, text in enumerate(draw(st.lists(TEXTS, min_size=1, max_size=3, unique=True))):
        texts = draw(st.lists(TEXTS, max_size=4, unique=True))
        scores = draw(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4))
        snippets = with_hits(
            [Snippet(one, id=f"d{i}-{j}", retrieval_score=scores[j]) for j, one in enumerate(texts)]
        )
        relevant = draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts)))
        missed = draw(st.integers(0, 2))
        found.append(JudgedQuery(text, snippets, relevant, id=f"q{i}", missed=missed))
    return found


def known(query, *, scores=True, missed=True):
    """Return what a format keeps of a query: all, or all but scores or the number of missed."""
    return (
        query.query,
        query.id,
        [(s.id, s.text, [h.rank for h in s.hits]) for s in query.snippets],
        [s.hits[0].score for s in query.snippets] if scores else None,
        query.relevant,
        query.missed if missed else None,
    )


def relevant_of(query):
    pairs = zip(query.snippets, query.relevant, strict=True)
    return [s for s, relevant in pairs if relevant]


@given(queries())
def test_ragas_keeps_texts_ids_order_and_missed(judged):
    samples = [
        {
            "user_input": query.query,
            "retrieved_contexts": [s.text for s in query.snippets],
            "retrieved_context_ids": [s.id for s in query.snippets],
            "reference_context_ids": [s.id for s in relevant_of(query)]
            + [f"missed {i}" for i in range(query.missed)],
            "id": query.id,
        }
        for query in judged
    ]
    if not any(any(query.relevant) for query in judged):
        with pytest.raises(ValueError, match="no retrieved context"):
            read(samples)
        return
    assert [known(q, scores=False) for q in read(samples)] == [
        known(q, scores=False) for q in judged
    ]


def csv_of(rows):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@given(queries())
def test_a_table_keeps_everything_in_memory_and_in_a_csv(tmp_path_factory, judged):
    rows = [
        {"query_id": query.id, "query": query.query, "id": s.id, "text": s.text, "relevant": r,
         "rank": s.hits[0].rank, "score": s.retrieval_score}
        for query in judged
        for s, r in zip(query.snippets, query.relevant, strict=True)
    ] + [
        {"query_id": query.id, "query": query.query, "id": f"missed {i}", "text": "", "relevant": 1,
         "rank": None, "score": None}
        for query in judged
        for i in range(query.missed)
    ]  # fmt: skip
    expected = [known(q) for q in judged if q.snippets or q.missed]
    if any(query.missed for query in judged) and any(query.snippets for query in judged):
        assert sorted(map(known, read(rows))) == sorted(expected)
        path = tmp_path_factory.mktemp("table") / "rows.csv"
        path.write_bytes(csv_of(rows).encode())
        assert sorted(map(known, read(path))) == sorted(expected)


@given(queries())
def test_trec_keeps_ids_order_scores_and_missed(tmp_path_factory, judged):
    folder = tmp_path_factory.mktemp("trec")
    run = [
        f"{query.id} Q0 {s.id} {s.hits[0].rank} {s.retrieval_score!r} tag\n"
        for query in judged
        for s in query.snippets
    ]
    qrels = [
        f"{query.id} 0 {id} {relevance}\n"
        for query in judged
        for id, relevance in [
            *((s.id, int(r)) for s, r in zip(query.snippets, query.relevant, strict=True)),
            *((f"missed-{i}", 1) for i in range(query.missed)),
        ]
    ]
    (folder / "run").write_text("".join(run))
    (folder / "qrels").write_text("".join(qrels))
    if run and qrels:
        in_qrels = [q for q in judged if q.snippets or q.missed]
        found = read(folder / "qrels", folder / "run")
        assert [
            (q.id, [(s.id, s.hits) for s in q.snippets], q.relevant, q.missed) for q in found
        ] == [(q.id, [(s.id, s.hits) for s in q.snippets], q.relevant, q.missed) for q in in_qrels]


@given(queries())
def test_langsmith_keeps_texts_ids_order_scores_and_missed(judged):
    records = []
    for query in judged:
        documents = [
            {"page_content": s.text, "id": s.id, "metadata": {"relevance_score": s.retrieval_score}}
            for s in query.snippets
        ]
        ids = [s.id for s in relevant_of(query)] + [f"missed {i}" for i in range(query.missed)]
        records += [
            {"id": query.id, "run_type": "retriever", "inputs": {"query": query.query},
             "outputs": {"documents": documents}, "reference_example_id": f"of {query.id}"},
            {"id": f"of {query.id}", "inputs": {"question": "-"}, "outputs": {"relevant_ids": ids}},
        ]  # fmt: skip
    assert [known(q) for q in read(records)] == [known(q) for q in judged]


@given(queries())
def test_spans_keep_texts_ids_order_and_scores(judged):
    records = []
    for query in judged:
        documents = [
            {"document.id": s.id, "document.content": s.text, "document.score": s.retrieval_score}
            for s in query.snippets
        ]
        records += [
            {"context": {"span_id": query.id},
             "attributes": {"input.value": query.query, "retrieval.documents": documents}},
            *({"span_id": query.id, "document_position": i, "result": {"score": int(r)}}
              for i, r in enumerate(query.relevant)),
        ]  # fmt: skip
    expected = [known(q, missed=False) for q in judged if q.snippets]
    if expected:
        assert [known(q, missed=False) for q in read(records)] == expected


@given(queries())
def test_an_embedding_data_set_keeps_the_relevant_snippets(judged):
    asked = [query for query in judged if any(query.relevant)]
    dataset = {
        "queries": {query.id: query.query for query in asked},
        "corpus": {s.id: s.text for query in judged for s in query.snippets},
        "relevant_docs": {query.id: [s.id for s in relevant_of(query)] for query in asked},
    }
    found = read(json.loads(json.dumps(dataset)))
    assert [(q.id, q.query, [(s.id, s.text) for s in q.snippets]) for q in found] == [
        (q.id, q.query, [(s.id, s.text) for s in relevant_of(q)]) for q in asked
    ]
    assert all(all(query.relevant) and query.missed is None for query in found)
    assert all(s.hits == () for query in found for s in query.snippets)
    assert Hit("retriever", 0) not in found
