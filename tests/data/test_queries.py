"""Judged queries: what may enter, and the files that they are read from and written to."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math

import numpy as np
import pytest

from conformal_retrievers import (
    JudgedQuery,
    ScoredQuery,
    Snippet,
    read_beir,
    read_jsonl,
    write_jsonl,
)

# --- values ---------------------------------------------------------------------------------------


def test_strings_become_snippets_and_judgements_become_bools():
    query = JudgedQuery("q", ["a", Snippet("b", id="s1")], np.array([1, 0]), missed=np.int64(2))
    assert query.snippets == (Snippet("a"), Snippet("b", id="s1"))
    assert query.relevant == (True, False)
    assert all(type(judgement) is bool for judgement in query.relevant)
    assert (query.id, query.group, query.missed) == (None, None, 2)


def test_a_judged_query_may_come_from_iterators():
    query = JudgedQuery("q", iter(["a", "b"]), (letter == "a" for letter in "ab"))
    assert query.relevant == (True, False)


def test_a_judged_query_may_have_retrieved_nothing():
    assert JudgedQuery("q", [], [], missed=1).snippets == ()


def test_values_are_frozen():
    for value, field in (
        (Snippet("a"), "text"),
        (JudgedQuery("q", [], []), "missed"),
        (ScoredQuery([], []), "missed"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field, 1)


@pytest.mark.parametrize(
    ("error", "field", "make"),
    [
        (TypeError, "text is 5", lambda: Snippet(5)),
        (TypeError, "text is None", lambda: Snippet(None)),
        (TypeError, "query is None", lambda: JudgedQuery(None, ["a"], [True])),
        (TypeError, "snippets is one str", lambda: JudgedQuery("q", "abc", [True] * 3)),
        (TypeError, "snippets is one Snippet", lambda: JudgedQuery("q", Snippet("a"), [True])),
        (TypeError, "text is 5", lambda: JudgedQuery("q", [5], [True])),
        (ValueError, "1 snippets but 2 judgements", lambda: JudgedQuery("q", ["a"], [1, 0])),
        (ValueError, "2 snippets but 0 judgements", lambda: JudgedQuery("q", ["a", "b"], [])),
        (ValueError, r"relevant\[1\] is 2", lambda: JudgedQuery("q", ["a", "b"], [1, 2])),
        (ValueError, r"relevant\[0\] is 0.5", lambda: JudgedQuery("q", ["a"], [0.5])),
        (ValueError, r"relevant\[0\] is 'no'", lambda: JudgedQuery("q", ["a"], ["no"])),
        (ValueError, r"relevant\[0\] is None", lambda: JudgedQuery("q", ["a"], [None])),
        (ValueError, "missed is -1", lambda: JudgedQuery("q", [], [], missed=-1)),
        (ValueError, "missed is 1.5", lambda: JudgedQuery("q", [], [], missed=1.5)),
        (ValueError, "missed is True", lambda: JudgedQuery("q", [], [], missed=True)),
        (ValueError, "scores has shape", lambda: ScoredQuery([0.1], [True, False])),
        (ValueError, "scores has shape", lambda: ScoredQuery([[0.1]], [True])),
        (ValueError, r"relevant\[0\] is nan", lambda: ScoredQuery([0.1], [float("nan")])),
        (
            ValueError,
            "missed is 10000000000000, but",
            lambda: JudgedQuery("q", [], [], missed=10**13),
        ),
        (ValueError, "missed is 1000001, but", lambda: ScoredQuery([], [], missed=1_000_001)),
        (ValueError, "missed is -2", lambda: ScoredQuery([0.1], [True], missed=-2)),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_the_field(error, field, make):
    with pytest.raises(error, match=field):
        make()


def test_a_snippet_id_that_occurs_twice_in_a_query_is_an_error():
    snippets = [Snippet("a", id="s7"), Snippet("b"), Snippet("c", id="s7")]
    with pytest.raises(ValueError, match=r"'q1'.*'s7' occurs twice"):
        JudgedQuery("q", snippets, [True, False, False], id="q1")


def test_snippets_without_an_id_may_have_the_same_text():
    assert len(JudgedQuery("q", ["a", "a"], [True, False]).snippets) == 2


def test_errors_name_the_query_by_its_id_or_else_by_its_text():
    with pytest.raises(ValueError, match="query 'q9'"):
        JudgedQuery("How soon?", ["a"], [], id="q9")
    with pytest.raises(ValueError, match="How soon"):
        JudgedQuery("How soon?", ["a"], [])


def test_scores_are_copied_and_cannot_be_written_to():
    scores = np.array([0.1, 0.2])
    query = ScoredQuery(scores, [True, False])
    scores[0] = 9.0
    assert query.scores.tolist() == [0.1, 0.2]
    assert query.scores.dtype == np.float64
    assert query.relevant.dtype == np.bool_
    for array in (query.scores, query.relevant):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_a_score_that_is_nan_may_enter_a_scored_query():
    assert np.isnan(ScoredQuery([np.nan], [True]).scores).all()


# --- retrieved by another retriever ---------------------------------------------------------------


def test_judgements_follow_the_snippets_that_another_retriever_returns():
    judged = JudgedQuery(
        "q",
        [Snippet("a", id="1"), Snippet("b", id="2"), Snippet("c", id="3"), Snippet("d", id="4")],
        [True, True, False, True],
        id="q1",
        group="g",
        missed=5,
    )
    # By id first: "2" has another text now. An unknown snippet is irrelevant, and 1 and 4 are gone.
    again = judged.retrieved_as(
        [Snippet("new", id="9"), Snippet("x", id="2"), Snippet("c", id="3")]
    )
    assert again.relevant == (False, True, False)
    assert again.missed == 5 + 2
    assert (again.query, again.id, again.group) == ("q", "q1", "g")
    assert [s.text for s in again.snippets] == ["new", "x", "c"]
    assert judged.missed == 5


def test_judgements_follow_the_text_where_a_side_has_no_id():
    judged = JudgedQuery("q", [Snippet("a", id="1"), Snippet("b", id="2")], [True, True])
    again = judged.retrieved_as(["b", "z"])
    assert (again.relevant, again.missed) == ((True, False), 1)


def test_a_snippet_of_another_judged_id_is_another_snippet_though_its_text_is_the_same():
    judged = JudgedQuery("q", [Snippet("a", id="1"), Snippet("a", id="2")], [True, False])
    again = judged.retrieved_as([Snippet("a", id="2")])
    assert (again.relevant, again.missed) == ((False,), 1)


def test_judgements_follow_the_text_where_the_store_gives_ids_of_its_own():
    judged = JudgedQuery("q", [Snippet("a", id="1"), Snippet("b", id="2")], [True, False])
    again = judged.retrieved_as([Snippet("b", id="x"), Snippet("a", id="y")])
    assert (again.relevant, again.missed) == ((False, True), 0)


def test_of_relevant_snippets_of_equal_text_as_many_are_found_as_are_returned():
    judged = JudgedQuery("q", [Snippet("a", id="1"), Snippet("a", id="2")], [True, True])
    fresh = [Snippet("a", id="x"), Snippet("a", id="y")]
    assert [judged.retrieved_as(fresh[:n]).missed for n in (0, 1, 2)] == [2, 1, 0]
    again = judged.retrieved_as([*fresh, Snippet("a", id="z")])
    assert (again.relevant, again.missed) == ((True, True, True), 0)
    without_ids = JudgedQuery("q", ["a", "a"], [True, True]).retrieved_as(["a", "a"])
    assert (without_ids.relevant, without_ids.missed) == ((True, True), 0)


def test_a_snippet_known_by_its_id_is_not_taken_for_another_of_equal_text():
    judged = JudgedQuery("q", [Snippet("a", id="1"), Snippet("a", id="2")], [True, True])
    for returned in (["x", "1"], ["1", "x"]):  # "x" is the other one, wherever it stands
        again = judged.retrieved_as([Snippet("a", id=id) for id in returned])
        assert (again.relevant, again.missed) == ((True, True), 0)


def test_a_relevant_snippet_that_is_returned_twice_is_missed_by_nobody():
    judged = JudgedQuery("q", ["a", "b"], [True, True])
    again = judged.retrieved_as(["a", "a"])
    assert (again.relevant, again.missed) == ((True, True), 1)


def test_a_retriever_that_returns_nothing_misses_everything_relevant():
    again = JudgedQuery("q", ["a", "b", "c"], [True, True, False]).retrieved_as([])
    assert (again.snippets, again.missed) == ((), 2)


def test_what_retrieved_the_snippets_and_how_deep_is_kept():
    judged = JudgedQuery("q", ["a", "b", "c"], [True, True, False])
    assert (judged.retriever, judged.k) == (None, None)
    again = judged.retrieved_as(["b", "z"], retriever="store", k=2)
    assert (again.retriever, again.k) == ("store", 2)
    with pytest.raises(ValueError, match="query 'q': 2 snippets but k is 1; give the depth"):
        judged.retrieved_as(["b", "z"], k=1)
    with pytest.raises(TypeError, match="query 'q': retriever is 7; give a str"):
        judged.retrieved_as([], retriever=7)


@pytest.mark.parametrize("k", [0, -1, 2.0, True, "8"])
def test_a_depth_is_a_number_of_snippets(k):
    with pytest.raises(ValueError, match="k is .*; give the number of snippets"):
        JudgedQuery("q", [], [], k=k)


# --- JSON lines -----------------------------------------------------------------------------------

QUERIES = [
    JudgedQuery(
        "Wann öffnet das Café — 7 Uhr? 🥐",
        [
            Snippet("Das Café öffnet um 7.\nIn Zürich\u2028", id="s1", document="d", position=0),
            Snippet('"quoted" \\ \t tab', id="s2", retrieval_score=0.1 + 0.2),
            Snippet(""),
        ],
        [True, False, False],
        id="q1",
        group="deutsch",
        missed=3,
        retriever="store(model)",
        k=3,
    ),
    JudgedQuery("nothing retrieved", [], []),
]


@pytest.mark.parametrize("name", ["judged.jsonl", "judged.jsonl.gz"])
def test_judged_queries_survive_being_written_and_read(tmp_path, name):
    path = tmp_path / name
    write_jsonl(QUERIES, path)
    assert read_jsonl(path) == QUERIES
    assert read_jsonl(str(path)) == QUERIES


def test_a_name_that_ends_in_gz_is_compressed_and_another_is_plain_text(tmp_path):
    write_jsonl(QUERIES, tmp_path / "plain.jsonl")
    write_jsonl(QUERIES, tmp_path / "packed.jsonl.gz")
    plain = (tmp_path / "plain.jsonl").read_bytes()
    assert gzip.decompress((tmp_path / "packed.jsonl.gz").read_bytes()) == plain
    assert len(plain.decode().split("\n")) == len(QUERIES) + 1
    assert json.loads(plain.decode().split("\n")[0])["query"] == QUERIES[0].query


def test_a_file_of_judged_queries_needs_only_query_and_text_and_relevant(tmp_path):
    path = tmp_path / "judged.jsonl"
    path.write_text(
        '{"query": "q", "snippets": [{"text": "a", "relevant": true}]}\n'
        "\n"
        '{"id": 7, "query": "r", "snippets": [{"id": 8, "text": "a", "relevant": false}]}\n'
    )
    first, second = read_jsonl(path)
    assert first == JudgedQuery("q", ["a"], [True])
    assert second == JudgedQuery("r", [Snippet("a", id="8")], [False], id="7")


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('{"query": "q", "snippets": [', "JSON"),
        ("not json", "JSON"),
        ('["query"]', "object"),
        ('{"snippets": []}', "query"),
        ('{"query": null, "snippets": []}', "query"),
        ('{"query": "q"}', "snippets"),
        ('{"query": "q", "snippets": "a"}', "snippets"),
        ('{"query": "q", "snippets": [{"relevant": true}]}', r"snippets\.0\.text"),
        (
            '{"query": "q", "snippets": [{"text": "a", "relevant": true}, {"text": "a"}]}',
            r"snippets\.1\.relevant",
        ),
        ('{"query": "q", "snippets": [{"text": "a", "relevant": 2}]}', r"relevant\[0\] is 2"),
        ('{"query": "q", "snippets": [{"text": "a", "relevant": null}]}', r"relevant\[0\] is None"),
        ('{"query": "q", "snippets": [{"text": "a", "relevant": "yes"}]}', "relevant.* is 'yes'"),
        ('{"query": "q", "snippets": [], "missed": true}', "missed is True"),
        (
            '{"query": "q", "snippets": [{"text": "a", "relevent": true}]}',
            r"0\.relevant is missing",
        ),
        (
            '{"query": "q", "snippets": [{"text": "a", "relevant": true, "position": "last"}]}',
            r"snippets\.0\.position",
        ),
        (
            '{"query": "q", "snippets": [{"text": "a", "relevant": true, "retrieval_score": ""}]}',
            r"snippets\.0\.retrieval_score",
        ),
        ('{"query": "q", "snippets": [], "missed": -1}', "missed"),
        ('{"query": "q", "snippets": [], "missed": "few"}', "missed"),
        ('{"query": "q", "snippets": [], "misssed": 1}', "misssed"),
        (
            '{"query": "q", "snippets": [{"id": "s", "text": "a", "relevant": true},'
            ' {"id": "s", "text": "b", "relevant": true}]}',
            "'s' occurs twice",
        ),
    ],
)
@pytest.mark.parametrize("name", ["judged.jsonl", "judged.jsonl.gz"])
def test_a_broken_line_is_an_error_that_names_file_line_and_field(tmp_path, name, line, field):
    path = tmp_path / name
    text = '{"query": "fine", "snippets": []}\n\n' + line + "\n"
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    with pytest.raises(ValueError, match=field) as error:
        read_jsonl(path)
    assert f"{path}, line 3: " in str(error.value)


def test_a_file_of_judged_queries_that_is_not_there_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl"):
        read_jsonl(tmp_path / "none.jsonl")


# --- BEIR -----------------------------------------------------------------------------------------

CORPUS = [
    {"_id": "d1", "title": "Liver", "text": "Alcohol strains it."},
    {"_id": "d2", "title": "", "text": "Everest is high."},
    {"_id": "d3", "text": "Bäckereien öffnen früh."},
    {"_id": "d4", "title": None, "text": "Four."},
]
BEIR_QUERIES = [
    {"_id": "q1", "text": "Is alcohol bad?"},
    {"_id": "q2", "text": "Wie früh?", "group": "deutsch"},
    {"_id": "q3", "text": "Nothing is retrieved for this one."},
]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq1\td4\t1\nq2\td3\t1\nq3\td2\t1\n"
RUN = "q1\td2\t2\t0.5\nq1\td1\t1\t0.75\nq1\td4\t3\t0.25\nq2\td2\t1\t1e-3\n"


@pytest.fixture
def beir(tmp_path):
    """A folder in the BEIR layout, with a run."""
    write_lines(tmp_path / "corpus.jsonl", CORPUS)
    write_lines(tmp_path / "queries.jsonl", BEIR_QUERIES)
    (tmp_path / "qrels.tsv").write_text(QRELS)
    (tmp_path / "run.tsv").write_text(RUN)
    return tmp_path


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def test_a_beir_folder_is_read_by_hand(beir):
    first, second, third = read_beir(beir, "run.tsv")
    assert first == JudgedQuery(
        "Is alcohol bad?",
        [  # by rank, not in the order of the file
            Snippet("Liver Alcohol strains it.", id="d1", document="d1", retrieval_score=0.75),
            Snippet("Everest is high.", id="d2", document="d2", retrieval_score=0.5),
            Snippet("Four.", id="d4", document="d4", retrieval_score=0.25),
        ],
        [True, False, True],
        id="q1",
    )
    assert (second.query, second.group) == ("Wie früh?", "deutsch")
    assert (second.relevant, second.missed) == ((False,), 1)
    assert (third.snippets, third.missed) == ((), 1)


def test_the_k_best_of_a_run_are_kept_and_the_others_are_missed(beir):
    first = read_beir(beir, "run.tsv", k=1)[0]
    assert [s.id for s in first.snippets] == ["d1"]
    assert first.missed == 1
    assert len(read_beir(beir, "run.tsv", k=3)[0].snippets) == 3


def test_a_snippet_is_relevant_from_the_smallest_score_that_counts(beir):
    strict = read_beir(beir, "run.tsv", min_score=2)
    assert strict[0].relevant == (True, False, False)
    assert [query.missed for query in strict] == [0, 0, 0]
    lenient = read_beir(beir, "run.tsv", min_score=0)
    assert lenient[0].relevant == (True, True, True)


def test_a_run_in_trecs_six_columns_is_the_same_run(beir):
    expected = read_beir(beir, "run.tsv")
    rows = [row.split("\t") for row in RUN.splitlines()]
    for separator in ("\t", " ", "   "):
        trec = [separator.join([q, "Q0", d, rank, score, "tag"]) for q, d, rank, score in rows]
        (beir / "run.trec").write_text("\n".join(trec) + "\n")
        assert read_beir(beir, "run.trec") == expected


def test_qrels_in_trecs_four_columns_are_the_same_qrels(beir):
    expected = read_beir(beir, "run.tsv")
    rows = [row.split("\t") for row in QRELS.splitlines()[1:]]
    (beir / "qrels.tsv").write_text("".join(f"{q} 0 {d} {score}\n" for q, d, score in rows))
    assert read_beir(beir, "run.tsv") == expected


def test_a_run_may_have_no_scores(beir):
    (beir / "run.tsv").write_text("q1\td1\t1\t\nq1\td2\t2\t\r\n")
    first = read_beir(beir, "run.tsv")[0]
    assert [s.retrieval_score for s in first.snippets] == [None, None]
    assert [s.id for s in first.snippets] == ["d1", "d2"]


def test_a_header_may_be_there_or_not(beir):
    expected = read_beir(beir, "run.tsv")
    (beir / "run.tsv").write_text("query-id\tcorpus-id\trank\tscore\n" + RUN)
    (beir / "qrels.tsv").write_text(QRELS.split("\n", 1)[1])
    assert read_beir(beir, "run.tsv") == expected


def test_every_file_of_a_beir_folder_may_be_compressed(beir):
    expected = read_beir(beir, "run.tsv")
    for name in ("corpus.jsonl", "queries.jsonl", "qrels.tsv", "run.tsv"):
        (beir / f"{name}.gz").write_bytes(gzip.compress((beir / name).read_bytes()))
        (beir / name).unlink()
    assert read_beir(beir, "run.tsv") == expected
    assert read_beir(beir, beir / "run.tsv.gz") == expected


def test_qrels_may_lie_in_their_folder_and_a_run_outside(beir, tmp_path_factory):
    expected = read_beir(beir, "run.tsv")
    (beir / "qrels").mkdir()
    (beir / "qrels.tsv").rename(beir / "qrels" / "test.tsv")
    elsewhere = tmp_path_factory.mktemp("runs") / "bm25.tsv"
    (beir / "run.tsv").rename(elsewhere)
    assert read_beir(str(beir), str(elsewhere)) == expected


def test_the_judged_queries_of_a_beir_folder_survive_json_lines(beir):
    queries = read_beir(beir, "run.tsv")
    write_jsonl(queries, beir / "judged.jsonl")
    assert read_jsonl(beir / "judged.jsonl") == queries


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl", "qrels.tsv", "run.tsv"])
def test_a_missing_file_is_named(beir, name):
    (beir / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        read_beir(beir, "run.tsv")


def test_a_document_that_the_corpus_does_not_hold_is_named(beir):
    (beir / "run.tsv").write_text(RUN + "q2\td99\t2\t0.1\n")
    with pytest.raises(ValueError, match=r"run.tsv.*'q2'.*'d99'.*corpus"):
        read_beir(beir, "run.tsv")


def test_a_query_of_the_run_that_is_unknown_is_named(beir):
    (beir / "run.tsv").write_text(RUN + "q99\td1\t1\t0.1\n")
    with pytest.raises(ValueError, match=r"run.tsv.*'q99'"):
        read_beir(beir, "run.tsv")


def test_a_query_of_the_qrels_that_is_unknown_is_named(beir):
    (beir / "qrels.tsv").write_text(QRELS + "q99\td1\t1\n")
    with pytest.raises(ValueError, match=r"qrels.*'q99'"):
        read_beir(beir, "run.tsv")


@pytest.mark.parametrize(
    ("name", "text", "place", "field"),
    [
        ("run.tsv", "q1\td1\t1\n", 1, "3 columns; 4 or 6"),
        ("run.tsv", RUN + "q1\td1\tfirst\t0.1\n", 5, "rank is 'first'"),
        ("run.tsv", RUN + "q2\td1\t2\thigh\n", 5, "score is 'high'"),
        ("run.tsv", RUN + "q2\td1\t2\tnan\n", 5, "score is 'nan'"),
        ("qrels.tsv", "q1\td1\n", 1, "2 columns; 3 or 4"),
        ("qrels.tsv", QRELS + "q1\td3\tyes\n", 7, "score is 'yes'"),
        ("corpus.jsonl", '{"_id": "d1", "text": "a"}\n{"_id": "d2"', 2, "not JSON"),
        ("corpus.jsonl", '{"_id": "d1"}\n', 1, "'text' is missing"),
        ("corpus.jsonl", '{"id": "d1", "text": "a"}\n', 1, "'_id' is missing"),
        ("corpus.jsonl", "[1]\n", 1, "object"),
        ("queries.jsonl", '{"_id": "q1", "query": "a"}\n', 1, "'text' is missing"),
    ],
)
def test_a_broken_beir_line_is_an_error_that_names_file_line_and_field(
    beir, name, text, place, field
):
    (beir / name).write_text(text)
    with pytest.raises(ValueError, match=field) as error:
        read_beir(beir, "run.tsv")
    assert f"{name}, line {place}: " in str(error.value)


# --- nothing lost ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["id", "group"])
def test_an_id_or_group_that_is_no_text_is_refused_before_anything_is_scored(name):
    with pytest.raises(TypeError, match=f"{name} is 7; give a str"):
        JudgedQuery("q", [], [], **{name: 7})
    with pytest.raises(TypeError, match=f"{name} is 7; give a str"):
        ScoredQuery([], [], **{name: 7})


def test_counts_of_numpy_become_plain_ones():
    assert type(ScoredQuery([0.1], [True], missed=np.int64(2)).missed) is int


@pytest.mark.parametrize("name", ["judged.jsonl", "judged.jsonl.gz"])
def test_a_file_that_cannot_be_written_leaves_the_old_one_as_it_was(tmp_path, name):
    path = tmp_path / name
    write_jsonl([JudgedQuery("old", ["a"], [True])], path)
    before = path.read_bytes()
    odd = JudgedQuery("new", [Snippet("a", retrieval_score=math.inf)], [True])
    with pytest.raises(ValueError, match=r"snippets\[0\]\.retrieval_score is inf"):
        write_jsonl([JudgedQuery("first", ["a"], [True]), odd], path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("latin.jsonl", "é".encode("latin-1")),
        ("cut.jsonl.gz", gzip.compress(b"{}" * 1000, mtime=0)[:20]),
        ("plain.jsonl.gz", b"{}"),
    ],
)
def test_a_file_that_is_no_text_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} is no complete .*UTF-8 text"):
        read_jsonl(tmp_path / name)


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("corpus.jsonl", '{"_id": "d1", "text": "again"}', "'d1' occurs a second time"),
        ("queries.jsonl", '{"_id": "q1", "text": "again"}', "'q1' occurs a second time"),
        ("run.tsv", "q1\td1\t9\t0.1", "'q1' retrieves 'd1' a second time"),
    ],
)
def test_what_stands_twice_in_a_beir_folder_is_named(tmp_path, file, line, said):
    contents = {
        "corpus.jsonl": '{"_id": "d1", "text": "one"}\n',
        "queries.jsonl": '{"_id": "q1", "text": "which"}\n',
        "qrels.tsv": "q1\td1\t1\n",
        "run.tsv": "q1\td1\t1\t0.5\n",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content + (line + "\n" if name == file else ""))
    with pytest.raises(ValueError, match=rf"{file}, line 2: .*{said}"):
        read_beir(tmp_path, "run.tsv")


@pytest.mark.parametrize("k", [0, -1])
def test_a_depth_below_one_is_refused(tmp_path, k):
    with pytest.raises(ValueError, match=f"k is {k}"):
        read_beir(tmp_path, "run.tsv", k=k)
