"""pandas frames, CSV files that pandas writes, and the frames of other tools."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers.data import JudgedQuery, Snippet, read, read_frame
from conformal_retrievers.data.queries import with_hits

FILES = Path(__file__).parent / "files"
ROWS = [
    ("q1", "Wann?", "a", 'Um "7"\n🥐', 1, 2, 0.5, "g"),
    ("q1", "Wann?", "b", "Nie.", 0, 1, 0.75, "g"),
    ("q2", "Who?", "7", "Ann did.", 1, 1, np.nan, None),
]
COLUMNS = ["query_id", "query", "id", "text", "relevant", "rank", "score", "group"]
FOUND = [
    Snippet("Nie.", id="b", retrieval_score=0.75),
    Snippet('Um "7"\n🥐', id="a", retrieval_score=0.5),
]
EXPECTED = [
    JudgedQuery("Wann?", with_hits(FOUND), [False, True], id="q1", group="g"),
    JudgedQuery("Who?", with_hits([Snippet("Ann did.", id="7")]), [True], id="q2"),
]


def frame(rows=ROWS, columns=COLUMNS):
    return pd.DataFrame(rows, columns=columns)


def test_a_frame_in_long_form_is_read_as_the_files_that_pandas_writes_of_it(tmp_path):
    assert read(frame()) == read_frame(frame()) == EXPECTED
    assert read(frame().set_index("query_id", drop=False).set_index("id", append=True)) == EXPECTED
    frame().to_csv(tmp_path / "rows.csv", index=False)
    frame().to_csv(tmp_path / "rows.csv.gz", index=False)
    frame().to_csv(tmp_path / "rows.tsv", index=False, sep="\t")
    frame().to_csv(tmp_path / "semicolons.csv", index=False, sep=";", decimal=",")
    frame().to_json(tmp_path / "rows.json", orient="records")
    frame().to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
    for path in tmp_path.iterdir():
        assert read(path) == EXPECTED, path.name
    rows = partial(frame().to_dict, "records")  # as a Polars frame gives them
    assert read(SimpleNamespace(columns=[], to_dict=None, to_dicts=rows)) == EXPECTED
    path.write_text(f"query;id;text;relevant;rank;score\nQ;1,5;{'3,14' * 50_000};1,0;1;-0,5")
    (only,) = read(path)[0].snippets
    assert (only.id, only.text, only.retrieval_score) == ("1,5", "3,14" * 50_000, -0.5)


@pytest.mark.parametrize(
    "change",
    [
        {"rank": [1, 0, 0]},
        {"relevant": ["relevant", "FALSCH", "VRAI"]},
        {"relevant": [True, False, True]},
        {"relevant": ["1", "0", "1.0"]},
    ],
)
def test_ranks_count_from_0_or_1_and_judgements_may_be_words_or_flags(change):
    assert read(frame().assign(**change)) == EXPECTED


def test_without_ranks_the_order_is_not_taken_for_ranks():
    first, _ = read(frame().drop(columns="rank"))
    assert [s.id for s in first.snippets] == ["a", "b"]
    assert first.snippets[0] == Snippet('Um "7"\n🥐', id="a", retrieval_score=0.5)


def test_a_relevant_row_without_a_rank_was_missed():
    run = frame()[["query_id", "query", "id", "rank"]]
    rows = [("q1", "Wann?", *one) for one in (("a", 1), ("b", 0), ("z", 1), ("y", 0))]
    names = ["query_id", "query", "id", "relevant"]
    qrels = pd.DataFrame([*rows, ("q2", "Who?", "7", 1)], columns=names)
    first, second = read(run.merge(qrels, how="outer", on=["query_id", "query", "id"]))
    assert ([s.id for s in first.snippets], first.relevant, first.missed) == (
        ["b", "a"], (False, True), 1,
    )  # fmt: skip
    assert (second.missed, EXPECTED[0].missed) == (0, None)


def test_missing_values_of_every_kind_are_none():
    for missing in (None, np.nan, pd.NA, pd.NaT):
        ranks = pd.Series([2, 1, missing], dtype=object)
        groups = pd.Series(["g", "g", missing], dtype=object)
        first, second = read(frame().assign(rank=ranks, group=groups))
        assert (first.missed, second.missed, second.snippets, second.group) == (0, 1, (), None)


def test_columns_may_be_named_and_numbers_have_a_threshold():
    named = frame().rename(columns={"query": "question", "relevant": "grade"})
    named = named.assign(grade=[3, 1, 2])
    with pytest.raises(ValueError, match=r"row 0: relevant is 3\..*min_score"):
        read(named.assign(grade=[3.0, 1, 2]), query="question", relevant="grade")
    assert read(named, query="question", relevant="grade", min_score=2) == EXPECTED


def test_qrels_as_a_frame_are_ids_of_relevant_snippets():
    qrels = frame()[["query_id", "query", "id", "relevant"]].assign(group="g")
    assert read(qrels) == [
        JudgedQuery.from_ids("Wann?", ["a"], id="q1", group="g"),
        JudgedQuery.from_ids("Who?", ["7"], id="q2", group="g"),
    ]
    with pytest.raises(ValueError, match="row 0: query 'q1': relevant_ids is empty"):
        read(qrels.assign(relevant=[0, 0, 1]))


@pytest.mark.parametrize("dtype", ["float64", "Int64", "object", "string"])
def test_ids_are_texts_whatever_their_type_in_a_frame(dtype):
    rows = pd.DataFrame({"query": ["q", "q"], "id": [12, 13], "relevant": [1, 1]})
    [one] = read(rows.assign(id=rows["id"].astype(dtype)))
    assert one.relevant_ids == ("12", "13")


def test_rows_without_a_text_beside_others_are_warned_of():
    with pytest.warns(UserWarning, match="1 of 3 rows have no text, and others have one"):
        assert {
            s.text for q in read(frame().assign(text=["x", None, "y"])) for s in q.snippets
        } == {*"xy", ""}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"relevant": [1, None, 1]}, "row 1: relevant is None; give true or false"),
        ({"relevant": ["maybe", 1, 1]}, "row 0: relevant is 'maybe'"),
        ({"relevant": [None, None, None]}, "row 0: relevant is missing"),
        ({"query": ["Wann?", None, "Who?"]}, "row 1: query is missing"),
        ({"query": ["Wann?", "Wo?", "Who?"]}, "row 1: query is 'Wo\\?'"),
        ({"query_id": ["q1", None, "q2"]}, "row 1: query_id is missing"),
        ({"group": ["g", "h", None]}, "row 1: group is 'h'"),
        ({"rank": [1, 1, 1]}, "row 1: rank is 1"),
        ({"score": ["high", 1, 1]}, "row 0: score is 'high'"),
        ({"id": ["a", "a", "7"]}, "row 0: query 'q1': id 'a' occurs twice"),
        ({"text": [None, 7, "x"]}, "row 1: text is 7"),
        ({"conformal_score": [0.1, 0.2, 0.3]}, "row 0: 'conformal_score' shows"),
        ({"position": [-1, 0, 0]}, "row 0: position is -1"),
    ],
)
def test_a_broken_row_is_refused_with_place_and_field(change, message):
    with pytest.raises(ValueError, match=message):
        read(frame().assign(**{n: pd.Series(cells, dtype=object) for n, cells in change.items()}))


def test_a_ragas_frame_has_arrays_where_it_comes_from_parquet():
    samples = [json.loads(line) for line in (FILES / "ragas.jsonl").read_text().splitlines()]
    rows = pd.DataFrame(samples)
    for name in ("retrieved_contexts", "reference_contexts", "retrieved_context_ids"):
        rows[name] = [np.array(cell, dtype=object) for cell in rows[name]]
    assert read(rows) == read(FILES / "ragas.jsonl")


# --- judged queries that are written as tables are read as they were ------------------------------

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
        pd.DataFrame(rows, dtype=object).to_csv(path, index=False, lineterminator="\r\n")
        assert {query.id: query for query in read(path)} == expected
