"""Windows of docstrings: exact offsets, bounded size, whole sentences if they fit."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers import Snippet
from conformal_retrievers.cli.docstrings import windows as windows_of

ANY_TEXT = st.text(max_size=400) | st.text(
    st.sampled_from("aB1 .。!?؟।,;()「」“”„'\"\n\r\t\f\x00\u0301\u200d\u2028\u2029👨👩文ไ"),
    max_size=400,
)


def held(window: Snippet) -> range:
    return range(window.position, window.position + len(window.text))


def test_two_windows_by_hand():
    assert windows_of("One two. Three four.  Five six.", 22, 12, "d") == [
        Snippet("One two. Three four.", "d:0", "d", 0),
        Snippet("Three four.  Five six.", "d:9", "d", 9),
    ]
    assert windows_of(" \r\n\t\u2029", 22, 12, "d") == []


@given(ANY_TEXT, st.integers(1, 60), st.data())
def test_windows_are_exact_bounded_in_order_and_lose_nothing_but_white_space(text, size, data):
    overlap = data.draw(st.integers(0, size - 1))
    windows = windows_of(text, size, overlap, "d")
    for window in windows:
        assert text[held(window).start : held(window).stop] == window.text
        assert 0 < len(window.text) <= size
        assert window.text == window.text.strip()
    covered = set().union(*map(held, windows))
    assert all(character.isspace() for i, character in enumerate(text) if i not in covered)
    for one, next_one in pairwise(windows):
        assert one.position < next_one.position
        assert held(one).stop < held(next_one).stop
        assert held(one).stop - next_one.position <= overlap


def test_lists_tables_and_code_are_whole_if_they_fit():
    items = "- It begins. It ends.\n- Here too. It does."
    code = "```\nIt begins. It ends.\n```"
    text = f"There are two of them:\n{items}\n\n{code}"
    windows = [w.text for w in windows_of(text, 45, 0, "d")]
    assert windows == ["There are two of them:", items, code]
    # What is longer is cut between lines, and its lines between sentences.
    assert [w.text for w in windows_of(items, 24, 0, "d")] == items.splitlines()
    assert [w.text for w in windows_of("- One two three. Four five.", 16, 0, "d")] == [
        "- One two three.",
        "Four five.",
    ]


FAMILY, ACCENTED = "👨‍👩‍👧‍👦", "e\u0301"


@pytest.mark.parametrize(
    ("text", "size", "pieces"),
    [
        ("- one two\n- three\n- four", 10, ["- one two", "- three", "- four"]),
        ("one (two), three", 7, ["one", "(two),", "three"]),
        ("一二三四五、六", 5, ["一二三四", "五、六"]),
        (FAMILY * 3, 15, [FAMILY * 2, FAMILY]),
        (ACCENTED * 4, 5, [ACCENTED * 2, ACCENTED * 2]),
        (ACCENTED, 1, ["e", "\u0301"]),
    ],
)
def test_a_long_sentence_is_cut_between_lines_then_words_then_characters_as_seen(
    text, size, pieces
):
    assert [w.text for w in windows_of(text, size, 0, "d")] == pieces


def test_flags_are_cut_between_flags_and_in_linear_time():
    """Were each flag found by counting from the first, this would take an hour."""
    text = "\U0001f1e9\U0001f1ea" * 500_000
    windows = windows_of(f"Flags: {text}", 501, 100, "d")
    assert len(windows) > 2000
    for window in windows[1:]:
        assert window.position % 2 == len("Flags: ") % 2
        assert len(window.text) % 2 == 0
