"""Windows of text: exact offsets, bounded size, whole sentences, any script."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers.snippets import split_snippets

PROSE = " ".join(f"Sentence number {i} says that {i} follows {i - 1}." for i in range(1, 60))


def test_a_short_text_is_one_window():
    [window] = split_snippets("One sentence.", document="d")
    assert (window.text, window.position, window.id, window.document) == (
        "One sentence.",
        0,
        "d:0",
        "d",
    )


def test_windows_start_and_end_with_sentences_and_share_some():
    windows = split_snippets(PROSE, size=200, overlap=60)
    assert len(windows) > 10
    for window in windows:
        assert re.fullmatch(r"Sentence .*\.", window.text)
    for one, next_one in pairwise(windows):
        shared = one.position + len(one.text) - next_one.position
        assert 0 < shared <= 60


def test_every_sentence_is_in_some_window_whole():
    windows = split_snippets(PROSE, size=200, overlap=60)
    for sentence in re.findall(r"Sentence .*?\.", PROSE):
        assert any(sentence in window.text for window in windows)


@given(st.text(max_size=400), st.integers(2, 60), st.data())
def test_offsets_are_exact_and_nothing_but_white_space_is_lost(text, size, data):
    overlap = data.draw(st.integers(0, size - 1))
    windows = split_snippets(text, size=size, overlap=overlap)
    covered = [False] * len(text)
    for window in windows:
        end = window.position + len(window.text)
        assert text[window.position : end] == window.text
        assert 0 < len(window.text) <= size
        covered[window.position : end] = [True] * len(window.text)
    assert all(seen or character.isspace() for seen, character in zip(covered, text, strict=True))
    assert [w.position for w in windows] == sorted(w.position for w in windows)


def test_other_scripts_are_cut_at_their_sentences():
    text = "これは文です。" * 30
    windows = split_snippets(text, size=50, overlap=10)
    assert all(window.text.endswith("。") for window in windows)


def test_without_a_document_there_is_no_id():
    assert split_snippets("text")[0].id is None


@pytest.mark.parametrize(("size", "overlap"), [(0, 0), (10, 10), (10, -1), (10, 11)])
def test_an_overlap_that_does_not_fit_is_an_error(size, overlap):
    with pytest.raises(ValueError, match=f"size is {size} and overlap is {overlap}"):
        split_snippets("text", size=size, overlap=overlap)
