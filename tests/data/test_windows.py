"""Windows of text: exact offsets, bounded size, whole sentences of any script."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers import Snippet
from conformal_retrievers.data.windows import split_snippets

# One sentence each, whose end is found wherever another one follows, but for the one in brackets.
SENTENCES = ["Wait six hours after the last drink.", 'Is that "all"?', "(See below.)", "他走了。"]
SENTENCES += ["It fell by 3.4 percent in the U.S. market, etc. and so on!", "So is\r\nthis one."]
SENTENCES += ["The line is\nwrapped here.", "これは文です。", "「はい。」", "هل هذا سؤال؟"]
SENTENCES += ["نعم، هذا جواب.", "यह एक वाक्य है।", "Ça va, e\u0301le\u0300ve\u202f!"]
SENTENCES += ["ประเทศไทยมีประชากรมาก.", "A NUL \x00 within.", "A family 👨‍👩‍👧‍👦 of four…\u200d."]
TEXT = "One two. Three four.  Five six."
ANY_TEXT = st.text(max_size=400) | st.text(
    st.sampled_from("aB1 .。!?؟।,;()「」“”„'\"\n\r\t\f\x00\u0301\u200d\u2028\u2029👨👩文ไ"),
    max_size=400,
)


def held(window: Snippet) -> range:
    return range(window.position, window.position + len(window.text))


def test_two_windows_by_hand():
    assert [(w.position, w.text) for w in split_snippets(TEXT, 22, 12)] == [
        (0, "One two. Three four."),
        (9, "Three four.  Five six."),
    ]
    assert split_snippets(TEXT, document="d") == [Snippet(TEXT, "d:0", "d", 0)]
    assert split_snippets(TEXT) == [Snippet(TEXT, position=0)]
    assert split_snippets(" \r\n\t\u2029") == []


@given(ANY_TEXT, st.integers(1, 60), st.data())
def test_windows_are_exact_bounded_in_order_and_lose_nothing_but_white_space(text, size, data):
    overlap = data.draw(st.integers(0, size - 1))
    windows = split_snippets(text, size, overlap)
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


@given(
    st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=12),
    st.sampled_from([" ", "  ", "\n", "\n\n", "\r\n \r\n", "\u2029", " \t\n"]),
    st.integers(1, 150),
    st.data(),
)
def test_no_sentence_that_fits_is_cut(sentences, between, size, data):
    overlap = data.draw(st.integers(0, size - 1))
    text = between.join(sentences)
    windows = split_snippets(text, size, overlap)
    starts, ends, end = [], [], 0
    for sentence in sentences:
        starts.append(text.index(sentence, end))
        end = starts[-1] + len(sentence)
        ends.append(end)
        if len(sentence) <= size:
            assert any(w.position <= starts[-1] and end <= held(w).stop for w in windows), sentence
    if max(map(len, sentences)) <= size:
        assert {w.position for w in windows} <= set(starts)
        assert {held(w).stop for w in windows} <= set(ends)


@given(st.lists(st.sampled_from(SENTENCES), min_size=2, max_size=12), st.data())
def test_windows_hold_and_share_as_much_as_fits(sentences, data):
    size = data.draw(st.integers(max(map(len, sentences)), 150))
    overlap = data.draw(st.integers(0, size - 1))
    text = "\n\n".join(sentences)
    begins = [0]
    for sentence in sentences:
        begins.append(begins[-1] + len(sentence) + 2)
    ends = [begin - 2 for begin in begins[1:]]
    windows = split_snippets(text, size, overlap)
    for one, next_one in pairwise(windows):
        following = next(end for end in ends if end > held(one).stop)
        assert following - one.position > size  # one more sentence would not have fitted
        earlier = [b for b in begins[:-1] if one.position < b < next_one.position]
        for begin in earlier:  # nor would one more have been shared
            assert held(one).stop - begin > overlap or following - begin > size


def test_lists_tables_and_code_are_whole_if_they_fit():
    items = "- It begins. It ends.\n- Here too. It does."
    code = "```\nIt begins. It ends.\n```"
    text = f"There are two of them:\n{items}\n\n{code}"
    windows = [w.text for w in split_snippets(text, 45, 0)]
    assert windows == ["There are two of them:", items, code]
    # What is longer is cut between lines, and its lines between sentences.
    assert [w.text for w in split_snippets(items, 24, 0)] == items.splitlines()
    assert [w.text for w in split_snippets("- One two three. Four five.", 16, 0)] == [
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
    assert [w.text for w in split_snippets(text, size, 0)] == pieces


def test_flags_are_cut_between_flags_and_in_linear_time():
    """Were each flag found by counting from the first, this would take an hour."""
    text = "\U0001f1e9\U0001f1ea" * 500_000
    windows = split_snippets(f"Flags: {text}", 501, 100)
    assert len(windows) > 2000
    for window in windows[1:]:
        assert window.position % 2 == len("Flags: ") % 2
        assert len(window.text) % 2 == 0


@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (10, 10), (10, -1), (10, 11)])
def test_an_overlap_that_does_not_fit_is_an_error(size, overlap):
    with pytest.raises(ValueError, match=f"{size} .*overlap is {overlap}"):
        split_snippets("text", size=size, overlap=overlap)
