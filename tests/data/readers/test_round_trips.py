"""Judged queries, written as tables and TREC have them, are read as they were."""

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers import JudgedQuery, Snippet, read
from conformal_retrievers.data.queries import with_hits

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@st.composite
def queries(draw):
    """Return judged queries as one retriever gives them."""
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
    if any(query.missed for query in judged) and any(query.snippets for query in judged):
        expected = {query.id: query for query in judged if query.snippets or query.missed}
        assert {query.id: query for query in read(rows)} == expected
        path = tmp_path_factory.mktemp("table") / "rows.csv"
        path.write_bytes(csv_of(rows).encode())
        assert {query.id: query for query in read(path)} == expected
