"""LlamaIndex data sets: files that LlamaIndex wrote, see files/make_llama_index.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformal_retrievers import JudgedQuery, Snippet, read
from conformal_retrievers.data import read_llama_index

FILES = Path(__file__).parent / "files"
CAFE = Snippet("Das Café öffnet um 7.\n🥐", id="node-1")
EVEREST = Snippet("Everest is the highest mountain.", id="node-2")


def test_an_embedding_data_set_has_queries_with_their_relevant_snippets():
    expected = [
        JudgedQuery("What is Café?", [CAFE], [True], id="q0"),
        JudgedQuery("Where is Café?", [CAFE], [True], id="q1"),
        JudgedQuery("What is Everest?", [EVEREST], [True], id="q2"),
        JudgedQuery("Where is Everest?", [EVEREST, CAFE], [True, True], id="q3"),
    ]
    path = FILES / "embedding-qa.json"
    assert read(path) == read_llama_index(path) == read(json.loads(path.read_text())) == expected


def test_a_labelled_data_set_has_queries_with_their_reference_contexts():
    with pytest.warns(UserWarning, match=r"1 of 2 .* query_by .*synthetic"):
        cafe, everest = read(FILES / "labelled-rag.json")
    assert cafe == JudgedQuery(
        "What is the Café?", [CAFE.text, "It sells croissants."], [True, True]
    )
    assert everest == JudgedQuery("Where is Everest?", ["Everest is in Nepal."], [True])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"relevant_docs": {"q": []}}, r"relevant_docs: q is \[\]; give"),
        ({"relevant_docs": {}}, "relevant_docs: q is missing"),
        ({"relevant_docs": {"q": ["e"]}}, "'e' is not in the corpus"),
        ({"relevant_docs": {"q": ["d"], "p": ["d"]}}, "relevant_docs has 'p'"),
        ({"queries": {"q": 1}}, "queries: q is 1"),
        ({"queries": ["q"]}, "queries is"),
        ({"corpus": {"d": None}}, "corpus: d is missing"),
        ({"mode": "image"}, "mode is 'image'"),
    ],
)
def test_a_broken_embedding_data_set_is_refused_with_the_field(change, message, tmp_path):
    whole = {"queries": {"q": "?"}, "corpus": {"d": "x"}, "relevant_docs": {"q": ["d"]}}
    path = tmp_path / "set.json"
    path.write_text(json.dumps(whole | change, indent=4))
    with pytest.raises(ValueError, match=message) as raised:
        read(path)
    assert "set.json" in str(raised.value)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ({"query": "?", "reference_contexts": None}, r"examples\[1\]: reference_contexts is miss"),
        ({"query": "", "reference_contexts": ["x"]}, r"examples\[1\]: query"),
        ("x", r"examples\[1\] is 'x'"),
    ],
)
def test_an_example_without_reference_contexts_is_refused(example, message):
    with pytest.raises(ValueError, match=message):
        read({"examples": [{"query": "q", "reference_contexts": ["x"]}, example]})
