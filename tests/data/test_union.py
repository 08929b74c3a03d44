"""The union of several retrievers' lists, and what becomes of one that fails."""

from __future__ import annotations

import logging

import pytest

from conformal_retrievers.data.hits import Hit
from conformal_retrievers.data.union import Item, answers, check_retrievers, unite


def test_an_item_is_recognised_by_its_id_and_has_a_hit_of_each_retriever():
    united = unite(
        {"a": [Item("1", "x", 0.9), Item("2", "y", 0.8)], "b": [Item("2", "other text", 7.0)]}
    )
    assert [*united.items()] == [
        (("a", 1), (Hit("a", 1, 0.8), Hit("b", 0, 7.0))),  # 1/62 + 1/61 > 1/61
        (("a", 0), (Hit("a", 0, 0.9),)),
    ]


@pytest.mark.parametrize(("one", "other"), [("1", None), (None, "1"), (None, None), ("1", "2")])
def test_an_item_is_recognised_by_its_text_if_not_by_its_id(one, other):
    assert unite({"a": [Item(one, "x")], "b": [Item("3", "y"), Item(other, "x")]}) == {
        ("a", 0): (Hit("a", 0), Hit("b", 1)),
        ("b", 0): (Hit("b", 0),),
    }


def test_items_of_one_list_with_other_ids_stay_apart_even_if_their_texts_are_equal():
    same = [Item("1", "x"), Item("2", "x")]
    assert len(unite({"a": same})) == 2
    assert unite({"a": same, "b": [Item("3", "x"), Item("2", "x"), Item("4", "x")]}) == {
        ("a", 0): (Hit("a", 0), Hit("b", 0)),
        ("a", 1): (Hit("a", 1), Hit("b", 1)),  # by its id, although another text came first
        ("b", 2): (Hit("b", 2),),
    }


def test_an_id_that_was_matched_by_text_is_known_to_the_next_retriever():
    lists = {"a": [Item(None, "x")], "b": [Item("1", "x")], "c": [Item("1", "another")]}
    assert unite(lists) == {("a", 0): (Hit("a", 0), Hit("b", 0), Hit("c", 0))}


def test_a_repeated_item_has_its_first_place():
    assert unite({"a": [Item(None, "x"), Item(None, "x")]}) == {("a", 0): (Hit("a", 0),)}
    assert unite({"a": [Item("1", "x"), Item("1", "y")]}) == {("a", 0): (Hit("a", 0),)}


def test_items_without_text_are_the_same_only_by_their_id():
    assert len(unite({"a": [Item(None, " "), Item(None, " ")], "b": [Item(None, " ")]})) == 3
    assert len(unite({"a": [Item("1", "")], "b": [Item("1", ""), Item("2", "")]})) == 2


def test_empty_lists_have_an_empty_union():
    assert unite({"a": [], "b": []}) == {}
    assert unite({"a": [], "b": [Item("1", "x")]}) == {("b", 0): (Hit("b", 0),)}


@pytest.mark.parametrize(
    ("retrievers", "on_error", "error", "field"),
    [
        ({}, "raise", TypeError, "retrievers"),
        (["a"], "raise", TypeError, "retrievers"),
        ({3: "a"}, "raise", TypeError, "name"),
        ({"": "a"}, "raise", ValueError, "name"),
        ({"a\n": "a"}, "raise", ValueError, "name"),
        ({"a": "a"}, "ignore", ValueError, "on_error"),
        ({"a": "a", "b": 3}, "raise", TypeError, r"retrievers\['b'\]"),
    ],
)
def test_retrievers_without_valid_names_and_an_unknown_on_error_are_refused(
    retrievers, on_error, error, field
):
    with pytest.raises(error, match=field):
        check_retrievers(retrievers, on_error, str, "a name")


def test_a_failed_retriever_is_left_out_and_each_kind_of_error_is_logged_once(caplog):
    logged: set[object] = set()
    with caplog.at_level(logging.WARNING):
        for error in (TimeoutError("slow"), TimeoutError("slow again"), OSError("down")):
            assert answers({"a": [1], "b": error}, "skip", logged) == {"a": [1]}
    assert [("'b'" in r.message, "Error" in r.message) for r in caplog.records] == [
        (True, True)
    ] * 2


def test_the_error_is_raised_if_it_is_not_skipped_or_all_failed_or_it_is_no_exception():
    failed = {"a": OSError("down"), "b": TimeoutError()}
    for on_error in ("raise", "skip"):
        with pytest.raises(OSError, match="down"):
            answers(failed, on_error, set())
    with pytest.raises(TimeoutError):
        answers({"a": [], "b": TimeoutError()}, "skip", set())
    with pytest.raises(TimeoutError):
        answers({"a": [1], "b": TimeoutError()}, "raise", set())
    with pytest.raises(KeyboardInterrupt):
        answers({"a": [1], "b": KeyboardInterrupt()}, "skip", set())
