"""Judgements of what was retrieved: by text, a field, evidence; and what nothing was found for."""

from dataclasses import replace

import pytest

from conformal_retrievers.data import JudgedQuery, Snippet, read, write_jsonl
from conformal_retrievers.data.matching import retrieve_and_judge
from conformal_retrievers.data.retrieval import Retrieval
from conformal_retrievers.data.sentences import splitter

TEXT = "".join(f"{i:09d} " for i in range(100))  # a document of 1,000 characters


ASKED = Retrieval("store")


def judge_retrieved(judged, retrieved, *, asked=ASKED, **options):
    return retrieve_and_judge(judged, lambda texts: (retrieved, asked), **options)


def chunk(start, end, **fields):
    return Snippet(TEXT[start:end], document="page", position=start, **fields)


def found(*pairs):
    """Return a retrieved list: of each snippet the text, the id and the fields."""
    return [(Snippet(text, id=id), {"id": id, **fields}) for text, id, fields in pairs]


# --- evidence -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("evidence", "chunks", "relevant", "missed"),
    [
        ([(100, 150)], [(0, 200), (200, 400)], [True, False], 0),
        ([(100, 300)], [(0, 200), (200, 400)], [True, True], 0),  # half in each
        ([(100, 300)], [(0, 198), (202, 400)], [True, True], 0),  # white space between is lost
        ([(140, 300)], [(0, 200), (200, 400)], [False, True], 0),
        ([(140, 300)], [(0, 200)], [False], 1),  # less than half of it was retrieved
        ([(100, 900)], [(0, 200), (200, 400), (880, 1000)], [True, True, False], 0),
        ([(100, 150), (700, 750)], [(0, 200), (100, 300)], [True, True], 1),
        ([(100, 150), (100, 150)], [(500, 600)], [False], 1),  # one piece, given twice
        ([(109, 110)], [(0, 200)], [False], 1),  # a blank
        ([(100, 109)], [], [], 1),
    ],
)
def test_a_chunk_is_relevant_that_has_half_of_the_evidence_or_is_half_evidence(
    evidence, chunks, relevant, missed
):
    judged = JudgedQuery("q", [], [], evidence=[("page", *one) for one in evidence])
    retrieved = [[(chunk(*one), {}) for one in chunks]]
    (again,) = judge_retrieved([judged], retrieved, key="evidence", asked=Retrieval("store", 4))
    assert (list(again.relevant), again.missed) == (relevant, missed)
    assert (again.retriever, again.k, again.evidence) == ("store", 4, judged.evidence)


def test_evidence_in_a_chunk_by_its_id_is_in_that_chunk_alone():
    judged = JudgedQuery("q", ["old"], [True], missed=3, evidence=[("7", 0, 20)])
    retrieved = [[(chunk(0, 200, id="7"), {}), (chunk(0, 200, id="8"), {})]]
    (again,) = judge_retrieved([judged], retrieved, key="evidence")
    assert (again.relevant, again.missed) == ((True, False), 3)


@pytest.mark.parametrize(
    ("judged", "key"),
    [
        (JudgedQuery("q", ["a"], [True], id="q1"), "evidence"),
        (JudgedQuery.from_ids("q", ["a"], id="q1"), "evidence"),
        (JudgedQuery("q", [], [], id="q1", evidence=[("page", 0, 9)]), None),
        (JudgedQuery("q", [], [], id="q1", evidence=[("page", 0, 9)]), "source"),
    ],
)
def test_a_query_needs_evidence_where_evidence_counts_and_otherwise_more(judged, key):
    with pytest.raises(ValueError, match="'q1'.*evidence"):
        judge_retrieved([judged], [found(("a", "1", {"source": "s"}))], key=key)


def test_a_relevant_snippet_without_an_id_is_found_in_no_field():
    judged = JudgedQuery("q", ["a"], [True], id="q1")
    with pytest.raises(ValueError, match="'q1'.*'source'"):
        judge_retrieved([judged], [found(("a", "1", {"source": "s"}))], key="source")


def test_a_query_that_nothing_answers_needs_no_evidence():
    judged = JudgedQuery("q", [], [], answerable=False)
    (again,) = judge_retrieved([judged], [[(chunk(0, 200), {})]], key="evidence")
    assert (again.relevant, again.missed, again.answerable) == ((False,), 0, False)


QUOTE = TEXT[300:420]


def test_evidence_is_quoted_in_place_of_offsets():
    quoted = JudgedQuery.from_evidence("q", [("page", QUOTE)], id="q1")
    counted = JudgedQuery.from_evidence("q", [("page", 300, 420)], id="q1")
    retrieved = [[(chunk(0, 350), {}), (chunk(350, 600), {}), (chunk(600, 900), {})]]
    (one,) = judge_retrieved([quoted], retrieved, key="evidence")
    assert [one] == judge_retrieved([counted], retrieved, key="evidence")  # the quote is in two
    assert (one.relevant, one.missed, one.evidence[0].start) == ((False, True, False), 0, 300)
    assert judge_retrieved([quoted], retrieved, split=splitter("sentences")) == judge_retrieved(
        [counted], retrieved, split=splitter("sentences")
    )


STORY = "Ann did it in May. Bob saw her from afar. Nobody told Carl about it."


def test_a_quote_that_was_not_retrieved_is_missed():
    judged = [JudgedQuery.from_evidence("q", [("page", "Bob saw her")]) for _ in range(2)]
    other = Snippet(STORY[42:], document="page", position=42)
    retrieved = [[(other, {})], [(Snippet("other", id="x"), {})]]
    for one in judge_retrieved(judged, retrieved, key="evidence"):
        assert (one.relevant, one.missed) == ((False,), 1)


def test_a_quote_at_several_places_is_the_first_one_with_a_warning():
    judged = JudgedQuery.from_evidence("q", [("page", "May"), ("page", "Bob saw")], id="q1")
    snippet = Snippet(f"{STORY} In May, all were told.", id="page")
    with pytest.warns(UserWarning, match="1 of 2 quotes .*'May' of query 'q1', in 'page'"):
        (one,) = judge_retrieved([judged], [[(snippet, {})]], key="evidence")
    assert one.evidence[0] == ("page", 14, 17)


def test_documents_of_evidence_that_are_the_values_of_a_field_are_told():
    judged = [JudgedQuery.from_evidence(f"q{i}", [(f"{i}.txt", "Bob")]) for i in range(10)]
    retrieved = [found((STORY, "7", {"file_name": f"{i}.txt"})) for i in range(10)]
    with pytest.raises(ValueError, match=r"10 of them are the file_name\. Evidence names a doc"):
        judge_retrieved(judged, retrieved, key="evidence")


@pytest.mark.parametrize("whole", [True, False])
def test_a_quote_with_an_error_has_the_nearest_passage(whole):
    judged = JudgedQuery.from_evidence("q", [("page", "Bob saw him from afar.")], id="q1")
    chunk = Snippet(STORY[10:45], document="page", position=10)
    snippet = Snippet(STORY, id="page") if whole else chunk
    with pytest.raises(ValueError, match="'q1'.*not in 'page'; the nearest there is 'Bob saw her "):
        judge_retrieved([judged], [[(snippet, {})]], key="evidence")


def test_evidence_beyond_the_end_of_its_document_is_an_error_whoever_retrieved_it():
    judged = [
        JudgedQuery("q", [], [], id="q1", evidence=[("page", 990, 1001)], relevant_ids=["page"]),
        JudgedQuery.from_ids("r", ["page"]),
    ]
    with pytest.raises(ValueError, match=r"'q1': evidence has the range \(990, 1001\) of 'page'"):
        judge_retrieved(judged, [[], [(Snippet(TEXT, id="page"), {})]])


def test_quotes_stay_in_a_file(tmp_path):
    judged = [JudgedQuery.from_evidence("q", [("page", QUOTE), ("page", 0, 9)], id="q1")]
    judged = [replace(judged[0], snippets=["a"], relevant=[False])]
    write_jsonl(judged, tmp_path / "q.jsonl")
    assert read(tmp_path / "q.jsonl") == judged
    line = '{"query": "q", "evidence": [{"document": "d", "text": "Bob"}]}'
    (tmp_path / "q.jsonl").write_text(line)
    assert read(tmp_path / "q.jsonl") == [JudgedQuery.from_evidence("q", [("d", "Bob")])]


@pytest.mark.parametrize("evidence", [[], [("page", " ")], [("page",)], [("page", 3)]])
def test_from_evidence_needs_pieces_of_evidence(evidence):
    with pytest.raises((TypeError, ValueError), match=r"query 'q'.*\(document, text\)"):
        JudgedQuery.from_evidence("q", evidence)


# --- text and fields ------------------------------------------------------------------------------


def test_numbers_in_the_metadata_are_compared_as_texts():
    retrieved = [found(("a", "4", {"page": 3}), ("b", "3", {}), ("c", "9", {"page": None}))]
    (again,) = judge_retrieved([JudgedQuery.from_ids("q", ["3", "4"])], retrieved, key="page")
    assert (again.relevant, again.missed) == ((True, False, False), 1)  # "3" is an id of no page


def test_judged_chunks_are_known_by_their_ids_where_a_field_is_compared():
    judged = JudgedQuery("q", [Snippet("a", id="1"), Snippet("b", id="2")], [True, False])
    retrieved = [found(("other", "1", {"source": "s"}), ("b", "2", {"source": "s"}))]
    (again,) = judge_retrieved([judged], retrieved, key="source")
    assert (again.relevant, again.missed) == ((True, False), 0)


def test_a_warning_tells_once_that_ids_name_documents():
    two = [(f"{i}", f"{i}", {"page": i // 2}) for i in range(4)]
    judged = [JudgedQuery.from_ids(f"q{i}", [str(i)], id=f"q{i}") for i in range(2)]
    with pytest.warns(UserWarning, match=r"2 snippets of query 'q0' .* id '0'.*missed") as seen:
        judge_retrieved(judged, [found(*two), found(*two)], key="page")
    assert len(seen) == 1
    judge_retrieved(judged, [found(*two[::2]), found(*two[::2])], key="page")  # one of each
    judge_retrieved(judged, [found(*two), found(*two)])


@pytest.mark.parametrize(
    ("judged", "key", "field"),
    [
        (JudgedQuery.from_ids("q", ["a"]), "sorce", "key is 'sorce'.*'source'"),
        (JudgedQuery.from_ids("q", ["a"]), "tags", "key is 'tags'"),  # which have lists
        (JudgedQuery("q", ["a"], [True], id="q1"), "source", "'q1'.*id.*from_ids"),
    ],
)
def test_a_key_that_compares_nothing_is_refused(judged, key, field):
    retrieved = [found(("a", "1", {"source": "s", "tags": ["t"]}))]
    with pytest.raises(ValueError, match=field):
        judge_retrieved([judged], retrieved, key=key)
    with pytest.raises(TypeError, match="key is 5"):
        judge_retrieved([judged], retrieved, key=5)


# --- what nothing was found for -------------------------------------------------------------------


def queries(n, name="doc-{}"):
    return [JudgedQuery.from_ids(f"q{i}", [name.format(i)], id=f"q{i}") for i in range(n)]


def lists(n, name="doc-{}", **fields):
    return [found((f"t{i}", name.format(i), fields)) for i in range(n)]


def test_ten_ids_that_nothing_has_are_an_error_with_the_nearest():
    with pytest.raises(ValueError, match=r"'doc-0' of query 'q0' \(nearest: 'doc_0'\)") as error:
        judge_retrieved(queries(10), lists(10, "doc_{}", source="s"))
    assert "10 of 10" in str(error.value)
    assert "source" not in str(error.value)
    assert str(error.value).count("of query") == 3  # the first few


def test_fewer_ids_that_nothing_has_are_a_warning_as_retrievers_miss_some():
    with pytest.warns(UserWarning, match=r"9 of 9 relevant ids.*nearest: 'doc_0'"):
        (first, *_) = judge_retrieved(queries(9), lists(9, "doc_{}"))
    assert (first.relevant, first.missed) == ((False,), 1)


def test_a_warning_counts_the_ids_that_nothing_has_if_they_are_many():
    judged = queries(24)
    with pytest.warns(UserWarning, match=r"8 of 24 .*, and 8 of 24 queries .* misses") as record:
        judge_retrieved(judged, lists(16) + lists(8, "other-{}"))
    assert len(record) == 1
    judge_retrieved(judged, lists(17) + lists(7, "other-{}"))  # a warning is an error
    of_both = [JudgedQuery.from_ids(f"q{i}", [f"doc-{i}", f"a{i}", f"b{i}"]) for i in range(8)]
    with pytest.warns(UserWarning, match="16 of 24 .*, and 0 of 8 queries"):  # more than half
        judge_retrieved(of_both, lists(8))
    judge_retrieved(judged, lists(24)[::-1])  # all are in the store, and none is found
    judge_retrieved(judged, [[] for _ in judged])  # which a calibration tells


def test_one_id_in_another_case_or_punctuation_is_a_warning_with_the_one_that_is_meant():
    for name in ("DOC-{}", "Doc_{}"):
        text = f"1 of 8 .*'{name.format(0)}' of query 'q0' .nearest: 'doc-0'.*1 of them differ"
        with pytest.warns(UserWarning, match=text):
            judge_retrieved(queries(1, name) + queries(8)[1:], lists(8))


def test_long_ids_are_compared_and_shown_by_their_ends():
    start = "https://example.org/" + "folder/" * 20
    with pytest.raises(ValueError, match=r"r/folder/folder/part_0' of .*nearest: '.*/part-0'\)"):
        judge_retrieved(queries(10, start + "part_{}"), lists(10, start + "part-{}"))


def test_the_field_that_has_the_ids_is_named():
    fields = [{"source": f"doc-{i}", "page": i} for i in range(10)]
    retrieved = [found((f"t{i}", str(i), one)) for i, one in enumerate(fields)]
    for key in (None, "page"):
        with pytest.raises(ValueError, match=r"10 of them are the source .* key='source'"):
            judge_retrieved(queries(10), retrieved, key=key)
    with pytest.raises(ValueError, match=r"10 of them are the id .* leave key out"):
        judge_retrieved(queries(10, "{}"), retrieved, key="source")
    in_metadata = [found((f"t{i}", None, {"id": f"doc-{i}"})) for i in range(10)]
    with pytest.raises(ValueError, match=r"10 of them are the id .* key='id'$"):
        judge_retrieved(queries(10), in_metadata)


def test_a_field_that_has_none_of_the_ids_is_not_named():
    fields = [{"source": f"a-{i}", "start_index": 0} for i in range(10)]
    retrieved = [found((f"t{i}", str(i), one)) for i, one in enumerate(fields)]
    with pytest.raises(ValueError, match=r"No field .* has them. A store that was") as error:
        judge_retrieved(queries(10), retrieved, key="source")
    assert "start_index" not in str(error.value)


def test_that_nothing_retrieved_has_an_id_is_said_where_ids_are_looked_for():
    retrieved = [found((f"t{i}", None, {"source": "a"})) for i in range(10)]
    of_texts = [JudgedQuery(f"q{i}", [f"other {i}"], [True]) for i in range(10)]
    with pytest.raises(ValueError, match="What was retrieved has no ids: give the store documents"):
        judge_retrieved(queries(10), retrieved)
    for judged, key in ((of_texts, None), (queries(10), "source")):
        with pytest.raises(ValueError, match="No field of what was retrieved has"):
            judge_retrieved(judged, retrieved, key=key)


@pytest.mark.parametrize(
    ("name", "remedy"), [("t-{}", "leave key out$"), ("s-{}", "give key='source'$")]
)
def test_ids_that_are_given_as_texts_are_told(name, remedy):
    judged = [JudgedQuery(f"q{i}", [name.format(i)], [True]) for i in range(10)]
    retrieved = [found(("text", f"t-{i}", {"source": f"s-{i}"})) for i in range(10)]
    told = rf"10 of 10 relevant texts.*from_ids\(query, ids\), and {remedy}"
    with pytest.raises(ValueError, match=told):
        judge_retrieved(judged, retrieved)


def test_a_document_of_evidence_that_nothing_has_is_named():
    judged = [JudgedQuery("q", [], [], evidence=[(f"page {i}", 0, 9)]) for i in range(10)]
    with pytest.raises(ValueError, match=r"'page 0' of query 'q' \(nearest: 'page'\)") as error:
        judge_retrieved(judged, [[(chunk(0, 200), {})] for _ in judged], key="evidence")
    assert "give the field" not in str(error.value)
