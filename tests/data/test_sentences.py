"""Documents cut into sentences, and passages of those that are kept."""

from functools import partial

import numpy as np
import pytest

from conformal_retrievers.data import Hit, Snippet
from conformal_retrievers.data.ranges import Range
from conformal_retrievers.data.sentences.cutting import cut, passages, splitter, with_neighbours

TEXT = " One two. Three four.  Five six.\nSeven. "
HITS = (Hit("bm25", 0, 2.0),)


def words(text):
    """A splitter that cuts at spaces."""
    start = 0
    for i, character in enumerate(text):
        if character == " ":
            yield start, i
            start = i
    yield start, len(text)


def test_each_sentence_is_a_snippet_of_its_document():
    sentences = cut([Snippet(TEXT, "d", "file", 40, 0.5, HITS, np.ones(3)), "Eight. Nine."], words)
    assert sentences.ranges[1] == (Range(0, 6), Range(7, 12))
    assert sentences.split == f"{words.__module__}.words"
    assert sentences.snippets[0] == Snippet("One", "d:1", "file", 41, 0.5, HITS)
    assert sentences.snippets[0].embedding is None
    for without in (Snippet("One", "d", "file"), Snippet("One", "d", None, 40)):
        assert cut([without], words).snippets[0] == Snippet("One", "d:0", "d", 0)
    assert cut([Snippet("One", None, "file", 40)], words).snippets[0].document == "0"
    assert sentences.snippets[-1] == Snippet("Nine.", None, "1", 7)
    assert sentences.document_of.tolist() == [0] * 6 + [1] * 2
    assert [s.text for s in sentences.documents] == [TEXT, "Eight. Nine."]


@pytest.mark.parametrize("text", ["", " ", " \r\n\u2029"])
def test_a_blank_document_is_one_range(text):
    for split in ("sentences", words):
        sentences = cut(["a", text], split)
        assert sentences.ranges[1] == (Range(0, len(text)),)
        assert sentences.snippets[1].text == text
        assert passages(sentences, [False, True])[0].text == text


def test_no_documents_have_no_sentences():
    sentences = cut([], "sentences")
    assert (sentences.snippets, sentences.document_of.shape) == ((), (0,))
    assert passages(sentences, []) == []
    assert with_neighbours(sentences, [], 1).tolist() == []


def joined(keeps):
    """Return the passage of TEXT with these of its sentences kept."""
    (passage,) = passages(cut([TEXT], "sentences"), [k == "x" for k in keeps])
    return passage.text, passage.ranges


def test_neighbouring_sentences_keep_the_text_between_them_and_a_mark_shows_what_is_cut():
    assert joined("xx..") == ("One two. Three four.", ((1, 21),))
    assert joined(".xx.") == ("Three four.  Five six.", ((10, 32),))
    assert joined("x.x.") == ("One two. … Five six.", ((1, 9), (23, 32)))
    assert joined("x..x") == ("One two.\n…\nSeven.", ((1, 9), (33, 39)))
    assert joined("xxxx") == (TEXT, ((0, len(TEXT)),))


def test_a_passage_is_of_its_document_and_others_are_left_out():
    sentences = cut(["One. Two.", "Three.", "Four. Five."], "sentences")
    keeps = [False, False, True, False, True]
    found = [(p.document, p.text, p.ranges) for p in passages(sentences, np.array(keeps))]
    assert found == [(1, "Three.", ((0, 6),)), (2, "Five.", ((6, 11),))]
    assert passages(sentences, [False] * 5) == []


def test_neighbours_are_of_the_same_document():
    sentences = cut(["One. Two. Three.", "Four. Five."], "sentences")
    keeps = np.array([False, False, True, False, False])
    assert with_neighbours(sentences, keeps, 0).tolist() == keeps.tolist()
    assert with_neighbours(sentences, keeps, 1).tolist() == [False, True, True, False, False]
    assert with_neighbours(sentences, keeps, 9).tolist() == [True, True, True, False, False]
    assert keeps.tolist() == [False, False, True, False, False]


class Whole:
    def split(self, text):
        return [(0, len(text))]


def split_at(n):
    return lambda text: [(0, n), (n, len(text))]


def test_a_splitter_has_a_name():
    assert splitter(splitter(words)) == splitter(words)
    assert cut(["a b"], splitter(words)) == cut(["a b"], words)
    for nameless in (split_at(2), Whole().split, partial(words), str.split, len):
        with pytest.raises(ValueError, match="split .*`name`"):
            splitter(nameless)
    named = split_at(2)
    named.name = "at 2"
    assert splitter(named).name == "at 2"
    with pytest.raises(ValueError, match="split"):
        splitter("words")
    with pytest.raises(TypeError, match="split"):
        splitter(None)


LOST = [[(0, 4)], [(4, 8)], [(0, 3), (5, 8)], [(0, 5), (4, 8)], [(4, 8), (0, 4)], [(0, 9)], []]
NO_PAIRS = [["One.", "Two"], "12345678", [(0, 1, 2)], [(0.0, 8.0)], [8]]


@pytest.mark.parametrize(
    ("error", "found"),
    [*((ValueError, one) for one in [*LOST, [(-1, 8)]]), *((TypeError, one) for one in NO_PAIRS)],
)
def test_what_is_no_range_or_loses_or_repeats_characters_is_an_error(error, found):
    def returned(text):
        return found

    returned.name = "returned"
    with pytest.raises(error, match="split returned gave"):
        cut(["One. Two"], returned)


def test_ranges_are_plain_numbers_whatever_the_splitter_computes_with():
    def returned(text):
        return np.array([[0, 4], [4, 8]])

    ranges = cut(["One. Two"], returned).ranges[0]
    assert ranges == ((0, 4), (5, 8))
    assert {type(number) for found in ranges for number in found} == {int}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_code_and_lists_keep_the_indentation_of_their_first_line(end):
    text = end.join(["Keep.", "", "Drop it.", "", "    if x:", "        y", "    z", ""])
    [passage] = passages(cut([text], "sentences"), [True, False, True])
    assert passage.text == f"Keep.\n…\n    if x:{end}        y{end}    z"
    assert "".join(text[a:b] for a, b in passage.ranges) == passage.text.replace("\n…\n", "")
