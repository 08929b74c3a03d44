"""Relevant ids without texts, what they become once retrieved, and what is not retrieved yet."""

import math
from dataclasses import replace

import numpy as np
import pytest
from langchain_core.documents import Document
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from lookup import LENGTH

from conformal_retrievers import calibrate, calibrate_gate, score_queries
from conformal_retrievers.data import by_sentence, read_jsonl, without_relevant
from conformal_retrievers.data.queries import JudgedQuery, Snippet, as_snippets, with_hits
from conformal_retrievers.labels.judging import Judging


def found(*ids):
    return [Snippet(f"text of {id}", id=id) for id in ids]


# --- from ids -------------------------------------------------------------------------------------


def test_ids_are_recognised_and_those_that_are_not_returned_are_missed():
    judged = JudgedQuery.from_ids("q", ["doc-1", "doc-2", "doc-1"], id="q1", group="g")
    assert judged.relevant_ids == ("doc-1", "doc-2")
    again = judged.retrieved_as(found("doc-3", "doc-1"), retriever="store", k=2)
    assert (again.relevant, again.missed, again.relevant_ids) == ((False, True), 1, ())
    assert (again.id, again.group, again.retriever, again.k) == ("q1", "g", "store", 2)


def test_an_unknown_text_is_never_equal_to_a_known_one():
    judged = JudgedQuery.from_ids("q", ["doc-1"])
    again = judged.retrieved_as([Snippet("doc-1"), Snippet(""), Snippet("doc-1", id="other")])
    assert (again.relevant, again.missed) == ((False,) * 3, 1)


@pytest.mark.parametrize(
    ("error", "ids"),
    [
        (TypeError, "doc-1"),
        (TypeError, {"doc-1": 1, "doc-2": 0}),  # grades, of which 0 is irrelevant
        (TypeError, [3]),
        (TypeError, [None]),
        (ValueError, []),
        (ValueError, ["doc-1", " "]),
        (ValueError, ["\ud800"]),
    ],
)
def test_relevant_ids_are_visible_texts(error, ids):
    with pytest.raises(error, match=r"'q1': relevant_ids"):
        JudgedQuery.from_ids("q", ids, id="q1")


def test_ids_stand_neither_beside_snippets_nor_with_queries_that_nothing_answers():
    with pytest.raises(ValueError, match="relevant_ids"):
        JudgedQuery("q", ["a"], [True], relevant_ids=["doc-1"])
    with pytest.raises(ValueError, match="answerable"):
        JudgedQuery("q", [], [], relevant_ids=["doc-1"], answerable=False)


@pytest.mark.parametrize(
    "use",
    [
        lambda queries: calibrate(queries, LENGTH, alpha=0.5),
        lambda queries: calibrate(queries, alpha=0.5),
        lambda queries: score_queries(LENGTH, queries),
        lambda queries: by_sentence(queries, "sentences"),
        lambda queries: without_relevant(queries[-1], 2),
        lambda queries: Judging(queries, "none/judged.jsonl"),
    ],
)
def test_what_is_not_retrieved_yet_is_refused_by_name(use):
    with pytest.raises(ValueError, match="new"):
        use([JudgedQuery("q", ["a", "bc"], [True, False]), JudgedQuery.from_ids("new", ["doc-1"])])


def test_relevant_ids_are_read_in_place_of_snippets(tmp_path):
    path = tmp_path / "judged.jsonl"
    path.write_text('{"query": "q", "relevant_ids": ["a"], "snippets": []}')
    assert read_jsonl(path)[0].relevant_ids == ("a",)
    path.write_text('{"query": "q", "relevant_ids": []}')
    with pytest.raises(ValueError, match="line 1: snippets, relevant_ids and evidence are missing"):
        read_jsonl(path)


# --- by another value -----------------------------------------------------------------------------


BY_ID = JudgedQuery.from_ids("q", ["a", "c"])
CHUNKS = JudgedQuery("q", [Snippet("t", id="a"), Snippet("u", id="b")], [True, False])


@pytest.mark.parametrize(
    ("judged", "ids", "values", "relevant", "missed"),
    [
        (BY_ID, "c23", ["a", "b", "a"], (True, False, True), 1),  # "c" is an id of a chunk
        (BY_ID, "c23", ["a", "c", "a"], (True, True, True), 0),
        (BY_ID, "c23", ["x", None, "y"], (False,) * 3, 2),
        (CHUNKS, "ba12", ["a", "z", "a", "b"], (False, True, True, False), 0),  # their ids decide
        (JudgedQuery("q", ["a"], [True]), "1", [None], (False,), 1),  # unknown, as its id is
    ],
)
def test_all_chunks_of_a_relevant_document_are_relevant(judged, ids, values, relevant, missed):
    again = judged.retrieved_as(found(*ids), values=values)
    assert (again.relevant, again.missed) == (relevant, missed)


def test_a_value_never_becomes_the_id_that_evidence_names():
    judged = JudgedQuery("q", [Snippet("t", id="page")], [True], evidence=[("page", 0, 5)])
    assert [s.id for s in judged.retrieved_as(found("1"), values=["page"]).snippets] == ["1"]
    assert judged.retrieved_as([Snippet("t", id="1")]).snippets[0].id == "page"


# --- nothing but relevant snippets ----------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda judged, _: calibrate(judged, LENGTH, alpha=0.3),
        lambda judged, _: calibrate_gate(judged, scorer=LENGTH, alpha=0.3),
        lambda judged, path: Judging(judged, path),
    ],
    ids=["calibrate", "gate", "judge"],
)
@pytest.mark.parametrize("unmarked", [0, 4])  # queries in which a person took a mark away
def test_queries_with_nothing_but_relevant_snippets_are_refused(unmarked, use, tmp_path):
    judged = [JudgedQuery(f"q{i}", [f"d{i}", f"no-{i}"], [True, i >= unmarked]) for i in range(9)]
    for queries in (judged, [*judged, JudgedQuery("nothing found", [], [], missed=1)]):
        with pytest.raises(ValueError, match="retrieved yet.*judge_retriever"):
            use(queries, tmp_path / "judged.jsonl")
    assert not [*tmp_path.iterdir()]


def test_queries_of_which_every_snippet_is_relevant_are_warned_of():
    texts = ["x" * n for n in range(1, 11)]
    judged = [JudgedQuery(f"q{i}", texts, [True] * 9 + [i > 3], k=10) for i in range(9)]
    with pytest.warns(UserWarning, match="each snippet of most .* nothing can be") as told:
        calibrate(judged, LENGTH, alpha=0.3)
    assert told[0].filename == __file__


@pytest.mark.parametrize(
    "told",
    [
        lambda query: replace(query, retriever="store"),
        lambda query: replace(query, k=1),
        lambda query: replace(query, snippets=with_hits(query.snippets)),
        lambda query: replace(query, snippets=[Snippet("a", retrieval_score=0.0)]),
        lambda query: replace(query, snippets=["a", "bc"], relevant=[True, query.id < "q4"]),
    ],
)
def test_a_retriever_that_returns_nothing_but_relevant_snippets_is_calibrated(told):
    judged = [told(JudgedQuery(f"q{i}", ["a"], [True], id=f"q{i}")) for i in range(9)]
    assert calibrate(judged, LENGTH, alpha=0.3).threshold() in (1, 2)


# --- documents of frameworks ----------------------------------------------------------------------


def test_documents_of_both_frameworks_are_snippets():
    document = Document("text", id="1", metadata={"source": 7, "start_index": 30})
    node = TextNode(text="text", id_="1", metadata={"hidden": "x"}, start_char_idx=30)
    node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id="7")
    given = [document, NodeWithScore(node=node, score=0.5)]
    judged = [JudgedQuery("q", [one], [True]).snippets[0] for one in (*given, node)]
    plain = Snippet("text", id="1", document="7", position=30)
    assert judged == [plain, replace(plain, retrieval_score=0.5), plain]
    node.relationships[NodeRelationship.PARENT] = RelatedNodeInfo(node_id="5")
    assert as_snippets([node])[0].position is None  # 30 is where it is in the parent
    starts = {12: 12, 11.0: 11, np.int64(13): 13, -1: None, 12.5: None, math.nan: None}
    given = [Document("t", metadata={"start_index": start}) for start in (*starts, True)]
    assert [s.position for s in as_snippets(given)] == [*starts.values(), None]
    with pytest.raises(TypeError, match="text"):
        JudgedQuery("q", [{"page_content": "t"}], [True])
