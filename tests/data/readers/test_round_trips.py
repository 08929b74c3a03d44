"""Judged queries, written as each tool writes them, are read as they were."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers import JudgedQuery, Snippet, read
from conformal_retrievers.data.hits import Hit
from conformal_retrievers.data.queries import with_hits

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
