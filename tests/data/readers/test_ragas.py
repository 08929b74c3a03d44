"""RAGAS evaluation sets: files that RAGAS wrote, see files/README.md."""

import json
from pathlib import Path

import pytest

from conformal_retrievers.data import Hit, JudgedQuery, Snippet, read, read_ragas
from conformal_retrievers.data.queries import with_hits

FILES = Path(__file__).parent / "files"
FIRST = [
    Snippet("It's open at 7.\nCroissants 🥐", id="a"),
    Snippet('He said: "closed", or \\n', id="b"),
    Snippet("", id="3"),
]
SECOND = [Snippet("Ann did.", id="c"), Snippet("[1] It's Bob", id="4")]
EXPECTED = [  # z of the first was not retrieved
    JudgedQuery('Wann öffnet das "Café"?', with_hits(FIRST), [False, True, False], missed=1),
    JudgedQuery("Who?", with_hits(SECOND), [False, True], missed=0),
    JudgedQuery("Nothing found?", [], [], missed=1),
]


def written(tmp_path, *samples, name="set.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return path


@pytest.mark.parametrize("name", ["ragas.jsonl", "ragas.csv", "ragas-hf.jsonl"])
def test_a_set_is_read_from_each_file_that_ragas_writes(name):
    assert read(FILES / name) == read_ragas(FILES / name) == EXPECTED
    assert EXPECTED[0].snippets[1].hits == (Hit("retriever", 1),)


def test_a_test_set_without_retrieved_contexts_is_for_judge_retriever():
    with pytest.warns(UserWarning, match=r"2 of 2 .* synthesizer_name.*synthetic"):
        both, why = read(FILES / "ragas-testset.jsonl")
    assert both == JudgedQuery(
        "How do both differ?", ["One is tall.", "One is old."], [True, True]
    )  # without the marks of the generator, and `missed` is unknown
    assert (why.query, why.relevant, why.missed) == ("Why?", (True,), None)


def test_without_ids_on_both_sides_texts_are_compared():
    samples = [json.loads(line) for line in (FILES / "ragas.jsonl").read_text().splitlines()]
    for sample in samples:
        del sample["retrieved_context_ids"]
    assert [q.relevant for q in read_ragas(samples)] == [q.relevant for q in EXPECTED]
    assert [q.missed for q in read_ragas(samples)] == [1, 0, 1]
    assert read_ragas(samples)[0].snippets[1].id is None


def test_references_that_are_mostly_not_retrieved_are_warned_of():
    references = ["a ", *map(str, range(9))]  # blanks around a text do not count
    sample = {"user_input": "q", "retrieved_contexts": ["a"], "reference_contexts": references}
    with pytest.warns(UserWarning, match="9 of 10 references"):
        assert read([sample])[0].relevant == (True,)


def test_ids_alone_are_enough():
    sample = {"user_input": "q", "retrieved_context_ids": [7, 8], "id": "q1", "group": "g"}
    [one] = read([sample | {"reference_context_ids": [8, 9]}])
    assert [s.id for s in one.snippets] == ["7", "8"]
    assert (one.relevant, one.missed, one.id, one.group) == ((False, True), 1, "q1", "g")


def test_references_by_id_are_retrieved_by_judge_retriever():
    samples = [{"user_input": "q", "reference_context_ids": [7, "b"], "group": "g"}]
    assert read(samples) == [JudgedQuery.from_ids("q", ["7", "b"], group="g")]


def test_ids_that_repeat_are_those_of_documents():
    ids = {"retrieved_context_ids": ["d", "d", "e"], "reference_context_ids": ["d", "f"]}
    [one] = read_ragas([{"user_input": "q", "retrieved_contexts": ["x", "y", "z"], **ids}])
    assert [(s.id, s.document) for s in one.snippets] == [(None, "d"), (None, "d"), (None, "e")]
    assert (one.relevant, one.missed) == ((True, True, False), 1)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"retrieved_contexts": ["x"]}, "line 1: reference_contexts and reference_context_ids are"),
        ({}, "label_by_llm"),
        ({"user_input": [{"content": "x", "type": "human"}]}, "user_input is .*several turns"),
        ({"retrieved_contexts": [1], "reference_contexts": ["x"]}, "retrieved_contexts is"),
        ({"retrieved_contexts": "x", "reference_contexts": ["x"]}, "retrieved_contexts is 'x'"),
        ({"retrieved_contexts": ["x"], "retrieved_context_ids": [1, 2]}, "1 texts, but 2 ids"),
        ({"retrieved_context_ids": [1], "reference_contexts": ["x"]}, "only an id"),
        ({"retrieved_contexts": ["x"], "reference_contexts": ["y"]}, "no retrieved context"),
        ({"reference_context_ids": [1.5]}, "reference_context_ids"),
    ],
)
def test_what_cannot_be_judged_is_refused_with_line_and_field(sample, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        read(written(tmp_path, {"user_input": "q", **sample}))


def test_either_all_samples_have_retrieved_contexts_or_none(tmp_path):
    retrieved = {"user_input": "q", "retrieved_contexts": ["x"], "reference_contexts": ["x"]}
    path = written(tmp_path, retrieved, {"user_input": "p", "reference_contexts": ["x"]})
    with pytest.raises(ValueError, match="line 2: retrieved_contexts is missing"):
        read(path)
