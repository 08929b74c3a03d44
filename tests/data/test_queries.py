"""Judged and scored queries: what may enter, and judgements that follow another retriever."""

from dataclasses import replace

import numpy as np
import pytest

from conformal_retrievers.data import Hit, JudgedQuery, ScoredQuery, Snippet, by_sentence

# --- values ---------------------------------------------------------------------------------------


def test_strings_become_snippets_and_judgements_become_bools():
    query = JudgedQuery("q", iter(["a", Snippet("b", id="s1")]), np.array([1, 0]))
    assert query.snippets == (Snippet("a"), Snippet("b", id="s1"))
    assert query.relevant == (True, False)
    assert all(type(judgement) is bool for judgement in query.relevant)
    assert (query.id, query.group, query.missed) == (None, None, None)
    assert JudgedQuery("q", [], [], missed=1).snippets == ()


def asked(snippets, **fields):
    return JudgedQuery("q", snippets, [True] * len(snippets), **fields)


@pytest.mark.parametrize(
    ("error", "field", "make"),
    [
        (TypeError, "text is 5", lambda: Snippet(5)),
        (TypeError, "text is .{60};", lambda: Snippet(["a"] * 99)),
        (TypeError, "position is '7' and", lambda: Snippet("a", position="7")),
        (TypeError, "retrieval_score '0.5'; give", lambda: Snippet("a", retrieval_score="0.5")),
        (TypeError, "snippets is a single dict", lambda: JudgedQuery("q", {"a": "text"}, [True])),
        (TypeError, "relevant is True; give a list", lambda: JudgedQuery("q", ["a"], True)),
        (TypeError, "query is None", lambda: JudgedQuery(None, ["a"], [True])),
        (TypeError, "snippets is a single str", lambda: JudgedQuery("q", "abc", [True] * 3)),
        (ValueError, "1 snippets but 2 judgements", lambda: JudgedQuery("q", ["a"], [1, 0])),
        (ValueError, r"relevant\[1\] is 2", lambda: JudgedQuery("q", ["a", "b"], [1, 2])),
        (ValueError, "scores: the shape is", lambda: ScoredQuery([0.1], [True, False])),
        (TypeError, "group is 7", lambda: ScoredQuery([], [], group=7)),
        (TypeError, "id is 7", lambda: JudgedQuery("q", [], [], id=7)),
        (ValueError, "tokens is", lambda: ScoredQuery([0.1], [True], tokens=[-1])),
        (ValueError, r"'q\\ud800': query", lambda: JudgedQuery("q\ud800", [], [])),
        (ValueError, r"'q1': snippets\[0\]: text", lambda: asked(["\ud800"], id="q1")),
        (ValueError, "id has surrogates", lambda: ScoredQuery([], [], id="\udfff")),
        (ValueError, r"group is 'a\\x1b'", lambda: ScoredQuery([], [], group="a\x1b")),
        (ValueError, "retriever is", lambda: JudgedQuery("q", [], [], retriever="a\u202e")),
        (TypeError, "answerable is 0", lambda: JudgedQuery("q", [], [], answerable=0)),
        (ValueError, "answerable", lambda: asked([], evidence=[("d", 0, 9)], answerable=False)),
        (ValueError, "rank", lambda: asked([Snippet("a", hits=(Hit("a", -1),))])),
        (TypeError, r"snippets\[0\]: hits are", lambda: asked([Snippet("a", hits=({"rank": 0},))])),
        (ValueError, "hits", lambda: asked([Snippet("a", hits=(Hit("a", 0), Hit("a", 1)))])),
        (ValueError, "'q1': k is 1", lambda: JudgedQuery("q", ["a", "b"], [1, 1], id="q1", k=1)),
    ],
)
def test_a_wrong_value_is_an_error_that_names_the_field(error, field, make):
    with pytest.raises(error, match=field):
        make()


@pytest.mark.parametrize("number", [-1, 1.5, True, "2", 10**13])
def test_missed_and_k_are_numbers_of_snippets(number):
    with pytest.raises(ValueError, match=r"'q1': missed is"):
        JudgedQuery("q", [], [], id="q1", missed=number)
    with pytest.raises(ValueError, match="missed is"):
        ScoredQuery([], [], missed=number)
    for k in (0, number):
        with pytest.raises(ValueError, match="k is"):
            JudgedQuery("q", [], [], k=k)


def test_a_snippet_id_occurs_once_in_a_query():
    snippets = [Snippet("a", id="s7"), Snippet("b"), Snippet("b"), Snippet("c", id="s7")]
    with pytest.raises(ValueError, match=r"'q1'.*'s7'"):
        JudgedQuery("q", snippets, [True] * 4, id="q1")
    assert len(JudgedQuery("q", snippets[:3], [True] * 3).snippets) == 3  # equal texts without ids


def test_scores_are_copied_and_cannot_be_written_to():
    scores = np.array([0.1, -0.0, np.nan])
    query = ScoredQuery(scores, [1, 0, 0], missed=np.int64(2))
    scores[0] = 9.0
    assert str(query.scores.tolist()) == "[0.1, 0.0, nan]"  # minus zero is zero
    assert (query.scores.dtype, query.relevant.dtype) == (np.float64, np.bool_)
    assert type(query.missed) is int
    for array in (query.scores, query.relevant):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


# --- retrieved by another retriever ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("judged", "retrieved", "relevant", "missed"),
    [
        # Without ids, the text counts.
        ([("a", None), ("b", None)], [("b", None), ("z", None)], (True, False), 1),
        ([("a", "1"), ("b", "2")], [("b", None)], (True,), 1),
        # With judged ids, the id counts: "2" has another text now.
        ([("a", "1"), ("b", "2")], [("new", "9"), ("x", "2")], (False, True), 1),
        # A store that assigns ids of its own.
        ([("a", "1"), ("b", "2")], [("b", "x"), ("a", "y")], (True, True), 0),
        # Of equal texts, as many are found as are returned.
        ([("a", "1"), ("a", "2")], [], (), 2),
        ([("a", "1"), ("a", "2")], [("a", "x")], (True,), 1),
        ([("a", "1"), ("a", "2")], [("a", "x"), ("a", "y"), ("a", "z")], (True,) * 3, 0),
        # A snippet with a judged id leaves the other of equal text to the unknown id.
        ([("a", "1"), ("a", "2")], [("a", "x"), ("a", "1")], (True, True), 0),
        ([("a", "1"), ("a", "2")], [("a", "1"), ("a", "x")], (True, True), 0),
        # A relevant snippet that is returned twice is not two.
        ([("a", None), ("b", None)], [("a", None), ("a", None)], (True, True), 1),
    ],
)
def test_judgements_follow_the_snippets_that_another_retriever_returns(
    judged, retrieved, relevant, missed
):
    query = JudgedQuery("q", [Snippet(*s) for s in judged], [True] * len(judged))
    again = query.retrieved_as([Snippet(*s) for s in retrieved])
    assert (again.relevant, again.missed) == (relevant, missed)


def test_a_judged_id_decides_though_a_relevant_snippet_has_the_same_text():
    judged = JudgedQuery("q", [Snippet("a", id="1"), Snippet("a", id="2")], [True, False])
    again = judged.retrieved_as([Snippet("a", id="2")])
    assert (again.relevant, again.missed) == ((False,), 1)


def test_a_query_that_is_retrieved_again_keeps_its_fields_and_names_the_retriever():
    judged = JudgedQuery("q", ["a", "b", "c"], [1, 1, 0], id="q1", group="g", missed=5)
    again = judged.retrieved_as(["b", "z"], retriever="store", k=2)
    assert (again.query, again.id, again.group, again.missed) == ("q", "q1", "g", 6)
    assert (again.retriever, again.k) == ("store", 2)
    assert (judged.missed, judged.retriever, judged.k) == (5, None, None)


def test_a_query_that_nothing_answers_stays_one():
    judged = JudgedQuery(
        "q", [Snippet("It rains. Ann did.", id="1")], [0], missed=0, answerable=np.bool_(False)
    )
    again = judged.retrieved_as([Snippet("c", id="2"), Snippet("It rains. Ann did.", id="1")], k=2)
    assert (judged.answerable, again.answerable, again.missed) == (False, False, 0)
    assert replace(again, id="q1").answerable is False
    (cut_one,) = by_sentence([again], "sentences")
    assert (cut_one.answerable, len(cut_one.snippets)) == (False, 3)
    assert JudgedQuery("q", ["a"], [False]).answerable is True


def test_masked_scores_are_refused_since_what_a_mask_hides_is_no_score():
    with pytest.raises(ValueError, match=r"scores are not numbers .*filled\(np\.nan\)"):
        ScoredQuery(np.ma.array([1.0, 2.0], mask=[False, True]), [True, False])
