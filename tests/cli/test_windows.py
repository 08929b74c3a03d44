"""Windows of docstrings: exact offsets, bounded size, whole sentences if they fit."""

from __future__ import annotations

from itertools import pairwise

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
