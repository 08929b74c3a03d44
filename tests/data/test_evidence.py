"""Evidence: from ranges of documents to relevant sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import by_line

from conformal_retrievers.data.queries import Hit, JudgedQuery, Snippet, with_hits
from conformal_retrievers.data.sentences import cut, splitter
from conformal_retrievers.data.sentences.evidence import by_sentence

TEXT = "It rains. Ann did it. So she said."
#       0         10          22


def judged(*evidence, snippets=None, **fields):
    documents = snippets or [Snippet(TEXT, id="a"), Snippet("Bob slept.", id="b")]
    relevant = [True] + [False] * (len(documents) - 1)
    return JudgedQuery("Who?", documents, relevant, evidence=evidence, **fields)


def marks(*evidence, **fields):
    [query] = by_sentence([judged(*evidence, **fields)], "sentences")
    return list(query.relevant), query.missed


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (10, 21, [False, True, False, False]),
        (6, 13, [True, True, False, False]),  # over a boundary
        (7, 21, [False, True, False, False]),  # two characters too many
        (7, 12, [True, True, False, False]),  # two characters of each
        (8, 12, [False, True, False, False]),  # one, and two
    ],
)
def test_a_sentence_is_relevant_if_it_shares_three_visible_letters_with_evidence(
    start, end, expected
):
    assert marks(("a", start, end)) == (expected, 0)


def test_evidence_of_which_nothing_was_retrieved_is_missed():
    assert marks(("a", 10, 21), ("c", 0, 5), ("d", 3, 4)) == ([False, True, False, False], 2)
    assert marks(("a", 10, 21), missed=7) == ([False, True, False, False], 7)  # of documents
    assert marks(("a", 10, 21), ("c", 0, 5), ("d", 3, 4), missed=1)[1] == 2
    none = JudgedQuery("Who?", [TEXT], [False])
    assert by_sentence([none], "sentences")[0].relevant == (False, False, False)


def test_evidence_of_a_source_is_found_in_the_windows_of_it_that_have_a_position():
    windows = [
        Snippet("It rains. Ann did it!", id="w1", document="doc", position=100),
        Snippet("Ann did it. So she said.", id="w2", document="doc", position=110),
        Snippet("Bob slept.", id="w3", document="other", position=100),
    ]
    assert marks(("doc", 112, 115), snippets=windows) == ([False, True, True, False, False], 0)
    assert marks(("doc", 12, 15), snippets=windows) == ([False] * 5, 1)
    assert marks(("doc", 113, 114), snippets=windows) == ([False] * 5, 0)  # a space
    only_end = [True, *[False] * 4]
    assert marks(("doc", 0, 104), snippets=windows) == (only_end, 1)  # it lacks the rest
    assert marks(("doc", 98, 121), snippets=windows) == ([True, True, True, False, False], 0)
    assert marks(("doc", 91, 121), snippets=windows)[1] == 0
    assert marks(("doc", 90, 121), snippets=windows)[1] == 1  # ten characters are not retrieved
    assert marks(("doc", 111, 136), snippets=windows)[1] == 0
    [found] = by_sentence([judged(("doc", 112, 115), snippets=windows)], "sentences")
    places = [(s.document, s.position, s.id) for s in found.snippets]
    assert places[1:3] == [("doc", 110, "w1:10"), ("doc", 110, "w2:0")]  # one place of the source
    assert found.document_of.tolist() == [0, 0, 1, 1, 2]  # in two retrieved documents
    [two] = by_sentence([judged(("doc", 112, 115), snippets=windows[:2], k=2)], "sentences")
    assert len(two.snippets) == 4
    other = Snippet("Which colour has a zebra?", id="w4", document="doc", position=100)
    with pytest.raises(ValueError, match=r"'It rains.*' at 100, but also 'Which.* one splitter"):
        marks(("doc", 112, 115), snippets=[*windows, other])
    windows[1] = Snippet("Ann did it.", id="w2", document="doc")
    with pytest.raises(ValueError, match="position"):
        marks(("doc", 112, 115), snippets=windows)


def test_sentences_have_the_hits_of_their_document_and_the_query_its_other_fields():
    snippets = with_hits([Snippet(TEXT, id="a"), Snippet("Bob slept.", id="b")], "bm25")
    fields = {"id": "q", "group": "g", "retriever": "store", "k": 2, "missed": 1}
    [found] = by_sentence([judged(("a", 10, 21), snippets=snippets, **fields)], "sentences")
    texts = ["It rains.", "Ann did it.", "So she said.", "Bob slept."]
    assert [s.text for s in found.snippets] == texts
    assert [s.hits for s in found.snippets] == [(Hit("bm25", rank),) for rank in (0, 0, 0, 1)]
    places = [(s.document, s.position) for s in found.snippets[1:]]
    assert places == [("a", 10), ("a", 22), ("b", 0)]
    assert found.document_of.tolist() == [0, 0, 0, 1]
    assert (found.id, found.group, found.retriever, found.k) == ("q", "g", "store", 2)
    assert (found.split, found.evidence) == (splitter("sentences").name, ())
    assert by_sentence([found], "sentences") == [found]


def test_k_counts_documents():
    [found] = by_sentence([judged(("a", 10, 21), k=2)], "sentences")
    assert len(found.snippets) > found.k
    with pytest.raises(ValueError, match="k is 1"):
        JudgedQuery(found.query, found.snippets, found.relevant, k=1, split=found.split)


def test_evidence_stays_with_what_another_retriever_returns_and_sentences_are_refused():
    query = judged(("a", 10, 21))
    again = query.retrieved_as([Snippet("Bob slept.", id="b")], k=1)
    assert (again.evidence, again.missed) == (query.evidence, 1)
    [found] = by_sentence([query], "sentences")
    with pytest.raises(ValueError, match="split"):
        found.retrieved_as([Snippet(TEXT, id="a")])


@pytest.mark.parametrize(
    "evidence",
    [("a", 3, 3), ("a", -1, 3), ("a", 0, 2.5), ("a", 0, True), (7, 0, 2), ("a", 0), "abc"],
)
def test_evidence_that_is_no_range_is_refused(evidence):
    with pytest.raises((TypeError, ValueError), match="evidence"):
        judged(evidence)


def test_judgements_of_whole_snippets_and_ranges_outside_their_text_are_refused():
    for fields in ({}, {"missed": 1}):
        with pytest.raises(ValueError, match=r"evidence.*label_by_answer.*label_by_llm"):
            marks(**fields)
    with pytest.raises(ValueError, match="evidence"):
        by_sentence([JudgedQuery("Who?", [TEXT], [False], missed=1)], "sentences")
    for start, end in ((30, 35), (34, 50), (9, 10)):
        with pytest.raises(ValueError, match="evidence"):
            marks(("a", start, end))
    [found] = by_sentence([judged(("a", 10, 21))], "sentences")
    with pytest.raises(ValueError, match="split"):
        by_sentence([found], by_line)
    with pytest.raises(TypeError, match="judged"):
        by_sentence(["Who?"], "sentences")


@given(st.lists(st.sampled_from(["a", " ", "\n", ". B"]), min_size=1, max_size=12), st.data())
def test_the_relevant_sentences_are_those_that_hold_enough_of_the_evidence(parts, data):
    text = "".join(["x", *parts])
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    documents = [Snippet(text, id="a")]
    query = JudgedQuery("Who?", documents, [True], evidence=[("a", start, end)])
    if not text[start:end].strip():
        with pytest.raises(ValueError, match="evidence"):
            by_sentence([query], by_line)
        return
    [found] = by_sentence([query], by_line)
    ranges = cut(documents, by_line).ranges[0]

    def visible(start, end):
        return {i for i in range(start, end) if not text[i].isspace()}

    shared = [len(visible(*r) & visible(start, end)) for r in ranges]
    assert list(found.relevant) == [
        n > 0 and n >= min(3, max(shared), len(visible(*r)))
        for n, r in zip(shared, ranges, strict=True)
    ]
    assert found.missed == 0


def test_evidence_of_documents_that_no_query_retrieved_is_warned_of():
    def of(*documents):
        return JudgedQuery("Who?", [Snippet(TEXT, id="a")], [True], evidence=[*documents])

    known = [("a", 0, 5)]
    by_sentence([of(*known, ("b", 0, 5))], "sentences")  # one of two: too few to tell
    with pytest.warns(UserWarning, match=r"names 2 of 2 .*'a1' \(nearest: 'a'\)"):
        by_sentence([of(("a1", 0, 5), ("a2", 0, 5))], "sentences")
    by_sentence([of(("a1", 0, 5))], "sentences")  # the retriever may have missed it
    unknown = [(f"b{i}", 0, 5) for i in range(9)]
    with pytest.warns(UserWarning, match=r"evidence names 9 of 10 .*'b0'"):
        by_sentence([of(*known, *unknown)], "sentences")
    with pytest.raises(ValueError, match=r"evidence names 10 of 10 .*'b0'"):
        by_sentence([of(*unknown, ("b9", 0, 5))], "sentences")
    with pytest.warns(UserWarning, match="10 of 10"):  # a calibration tells that there is none
        by_sentence([JudgedQuery("Who?", [], [], evidence=[*known, *unknown])], "sentences")


@pytest.mark.parametrize("id", [None, "own id of the store"])
def test_evidence_follows_a_snippet_that_is_recognised_by_its_text(id):
    known = judged(("a", 10, 21), snippets=[Snippet(TEXT, id="a")])
    returned = [Snippet("Bob slept.", id="c"), Snippet(TEXT, id=id), Snippet(TEXT, id="twice")]
    [found] = by_sentence([known.retrieved_as(returned)], "sentences")
    relevant = [s.text for s, r in zip(found.snippets, found.relevant, strict=True) if r]
    assert relevant == ["Ann did it."]
    assert found.missed == 0
