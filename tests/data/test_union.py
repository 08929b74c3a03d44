"""The union of several retrievers' lists, and what becomes of one that fails."""

import asyncio
import logging

import pytest

from conformal_retrievers.data.hits import Hit
from conformal_retrievers.data.union import Item, aask, answers, check_retrievers, unite

X, FIRST = Item("1", "x"), ("a", 0)


def hits(**ranks):
    return tuple(Hit(name, rank) for name, rank in ranks.items())


@pytest.mark.parametrize(
    ("lists", "united"),
    [
        # By id: 1/62 + 1/61 > 1/61.
        (
            {"a": [X, Item("2", "y")], "b": [Item("2", "other text")]},
            {("a", 1): hits(a=1, b=0), FIRST: hits(a=0)},
        ),
        # By text, if not by id.
        *(
            (
                {"a": [Item(one, "x")], "b": [Item("3", "y"), Item(other, "x")]},
                {FIRST: hits(a=0, b=1), ("b", 0): hits(b=0)},
            )
            for one, other in [("1", None), (None, "1"), (None, None), ("1", "2")]
        ),
        # Other ids in one list stay apart; an id decides, although another text came first.
        (
            {"a": [X, Item("2", "x")], "b": [Item("3", "x"), Item("2", "x"), Item("4", "x")]},
            {FIRST: hits(a=0, b=0), ("a", 1): hits(a=1, b=1), ("b", 2): hits(b=2)},
        ),
        # An id that was matched by text is known to the next retriever.
        (
            {"a": [Item(None, "x")], "b": [X], "c": [Item("1", "another")]},
            {FIRST: hits(a=0, b=0, c=0)},
        ),
        # A repeated item has its first place.
        ({"a": [Item(None, "x"), Item(None, "x")]}, {FIRST: hits(a=0)}),
        ({"a": [X, Item("1", "y")]}, {FIRST: hits(a=0)}),
        # Items without text are the same only by their id.
        (
            {"a": [Item(None, " "), Item(None, " ")], "b": [Item(None, " ")]},
            {FIRST: hits(a=0), ("b", 0): hits(b=0), ("a", 1): hits(a=1)},
        ),
        ({"a": [Item("1", "")], "b": [Item("1", "")]}, {FIRST: hits(a=0, b=0)}),
        ({"a": [], "b": [X]}, {("b", 0): hits(b=0)}),
    ],
)
def test_what_is_the_same_item_has_the_hits_of_each_retriever(lists, united):
    assert [*unite(lists).items()] == [*united.items()]


@pytest.mark.parametrize(
    ("retrievers", "on_error", "error", "field"),
    [
        ({}, "raise", TypeError, "retrievers"),
        (["a"], "raise", TypeError, "retrievers"),
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
    told = [("'b'" in r.message, "Error" in r.message) for r in caplog.records]
    assert told == [(True, True)] * 2


async def test_an_awaited_retriever_that_fails_is_named_and_stops_the_others():
    tidied = []

    async def fails():
        raise OSError("down")

    async def waits():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            tidied.append(True)

    with pytest.raises(OSError, match="down") as caught:
        await aask({"a": waits(), "b": fails()}, "raise", set())
    assert caught.value.__notes__ == ["the retriever 'b' failed"]
    assert tidied == [True]


def test_the_error_is_raised_if_it_is_not_skipped_or_all_failed_or_it_is_no_exception():
    for on_error in ("raise", "skip"):
        with pytest.raises(OSError, match="down"):
            answers({"a": OSError("down"), "b": TimeoutError()}, on_error, set())
    with pytest.raises(TimeoutError):
        answers({"a": [], "b": TimeoutError()}, "skip", set())
    with pytest.raises(TimeoutError):
        answers({"a": [1], "b": TimeoutError()}, "raise", set())
    with pytest.raises(KeyboardInterrupt):
        answers({"a": [1], "b": KeyboardInterrupt()}, "skip", set())
