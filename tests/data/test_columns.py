import numpy as np
import pytest

from conformal_retrievers import JudgedQuery, ScoredQueries, ScoredQuery
from conformal_retrievers.data.hits import Hit, HitColumns, hit_columns

GIVEN = {"scores": [0.1, 0.7, 0.4, 0.2, 0.9], "relevant": [1, 0, 0, 1, 0], "offsets": [0, 3, 5]}


def test_columns_of_queries_give_the_queries_back():
    dense = HitColumns(np.array([0.0, np.inf]), np.array([0.9, np.nan]))
    queries = [
        ScoredQuery([0.1, 0.7, 0.4], [1, 0, 0], id="a", group="g", missed=2, tokens=[3, 1, 2]),
        ScoredQuery([], [], id="b", missed=0, silenced=True),
        ScoredQuery([0.2, np.nan], [1, 0], hits={"dense": dense}, unscorable={1: "empty"}),
    ]
    again = list(ScoredQueries.of(queries))
    assert str(again) == str(queries)  # its scores, judgements, names and flags
    for query, other in zip(queries, again, strict=True):
        assert (query.missed, query.unscorable) == (other.missed, other.unscorable)
        np.testing.assert_equal(query.tokens, other.tokens)
        np.testing.assert_equal(dict(query.hits), dict(other.hits))


@pytest.mark.parametrize("writeable", [True, False])  # as pandas gives the columns of a frame
def test_columns_do_not_change_with_the_arrays_that_they_were_made_from(writeable):
    given = {name: np.array(values) for name, values in {**GIVEN, "missed": [0.0, 0.0]}.items()}
    given["relevant"] = given["relevant"].astype(bool)
    views = {name: array.view() for name, array in given.items()}
    for view in views.values():
        view.flags.writeable = writeable
    queries = ScoredQueries(**views)
    for array in given.values():
        array[:] = 1
    assert queries.scores.tolist() == GIVEN["scores"]
    assert queries.relevant.tolist() == [True, False, False, True, False]
    assert queries.missed.tolist() == [0, 0]
    with pytest.raises(ValueError, match="read-only"):
        queries.scores[0] = 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("scores", [0.1]),
        ("relevant", [2, 0, 0, 1, 0]),
        ("relevant", [True]),
        ("offsets", [0, 3, 2]),
        ("offsets", [1, 5]),
        ("offsets", []),
        ("offsets", np.array([0, 6, 5], np.uint32)),
        ("document_of", [0, 0, 1, 0, -1]),
        ("ids", ["a"]),
        ("ids", ["a", "\ud800"]),
        ("groups", ["a", "\n"]),
        ("missed", [-1, 0]),
        ("missed", [0]),
        ("silenced", [2, 0]),
        ("tokens", [1, 2, 3, 4, -5]),
        ("hits", {"dense": HitColumns(np.zeros(1), np.zeros(1))}),
    ],
)
def test_a_wrong_column_is_refused_by_its_name(field, value):
    with pytest.raises(ValueError, match=rf"{field}|{field.removesuffix('s')}"):
        ScoredQueries(**{**GIVEN, field: value})


def test_ids_are_text():
    assert [type(id) for id in ScoredQueries(**GIVEN, ids=np.array(["a", "b"])).ids] == [str, str]
    with pytest.raises(TypeError, match=r"ids\[1\] is 2"):
        ScoredQueries(**GIVEN, ids=["a", 2])


@pytest.mark.parametrize(
    ("queries", "field"),
    [
        ([JudgedQuery("q", ["a"], [True])], "JudgedQuery"),
        ([ScoredQuery([1], [1]), ScoredQuery([1], [1], split="s")], "split"),
        ([ScoredQuery([1], [1], tokens=[1], token_unit=u) for u in ("a", "b")], "token_unit"),
    ],
)
def test_queries_that_do_not_go_together_are_refused(queries, field):
    with pytest.raises((TypeError, ValueError), match=field):
        ScoredQueries.of(queries)


# --- what retrievers know ---


def test_columns_have_an_infinite_rank_where_a_retriever_did_not_find_a_snippet():
    columns = hit_columns([(Hit("b", 0, 0.9), Hit("a", 3)), (), (Hit("b", 1, -1),)])
    assert list(columns) == ["a", "b"]
    np.testing.assert_array_equal(columns["a"].ranks, [3, np.inf, np.inf])
    np.testing.assert_array_equal(columns["a"].scores, [np.nan] * 3)
    np.testing.assert_array_equal(columns["b"].ranks, [0, np.inf, 1])
    np.testing.assert_array_equal(columns["b"].scores, [0.9, np.nan, -1])
    assert hit_columns([]) == hit_columns([(), ()]) == {}
