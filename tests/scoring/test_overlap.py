"""Overlap in pairs, stems and pieces, by hand and by its definition."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers.scoring.overlap import asked, in_words, shares_of


def scores(unit, query, *texts):
    return (-shares_of(query, texts, unit)[0]).tolist()


def test_pairs_are_shared_in_any_case_and_stop_words_of_the_query_do_not_count():
    texts = "The river bank.", "RIVER, banks! River-Bank", "riverbanks", ""
    assert scores("pairs", "Where is the river bank of the Rhine?", *texts) == [-0.5, -0.5, 0, 0]
    assert scores("pairs", "x 1 of 10", "x 1", "1 10", "x 1 10") == [0, -1, -1]  # no pair: x 1


@pytest.mark.parametrize("unit", ["pairs", "stems", "pieces"])
def test_a_query_of_stop_words_shares_nothing_with_any_snippet(unit):
    assert scores(unit, "Who was that?", "who was that", "a man") == [0, 0]
    assert scores(unit, "river") == []


WORDS = st.sampled_from(
    ["a", "ca", "cat", "cats", "splitting", "splits", "Straße", "ÉTÉ", "x_1", "٣", "ſo", "目录"]
)
TEXTS = st.lists(st.tuples(WORDS, st.sampled_from([" ", ", ", "\n", "-", "", "  ("]))).map(
    lambda parts: "".join(word + between for word, between in parts)
)


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", re.sub("([目录])", r" \1 ", text.lower().replace("_", " ")))


def expected_scores(unit: str, asked: list[str], texts: list[str]) -> np.ndarray:
    """What the definition of a unit gives, from the words of the query that count."""
    words = [*map(words_of, texts)]
    if unit == "pairs":
        units = sorted({pair for pair in pairwise(asked) if pair[0][1:] or pair[1][1:]})
        has = [[pair in pairwise(of_text) for pair in units] for of_text in words]
    elif unit == "pieces":
        units = sorted({w[i : i + 4] for w in asked for i in range(len(w) - 3)})
        units += sorted({f" {w} " for w in asked if len(w) < 4})
        has = [[one in f" {' '.join(of_text)} " for one in units] for of_text in words]
    else:
        units = sorted({word[:5] for word in asked})
        has = [[any(w.startswith(one) for w in of_text) for one in units] for of_text in words]
    found = np.array(has, dtype=float).reshape(len(texts), len(units))
    n, m, weights = len(texts), found.sum(axis=0), np.ones(len(units))
    if unit in ("stems", "pieces"):
        weights = np.where(m > 0, np.log1p((n - m + 0.5) / (m + 0.5)), 0)
    return -(found @ weights) / (weights.sum() or 1)


@given(
    st.lists(WORDS, min_size=1, max_size=4),
    st.lists(TEXTS, min_size=1, max_size=4),
    st.integers(0, 20),
)
def test_a_text_and_its_start_have_the_units_that_their_definition_gives_them(query, texts, n):
    asked = [word for word in words_of(" ".join(query)) if word != "a"]
    starts = [text[:n] for text in texts]
    for unit in ("pairs", "stems", "pieces"):
        found = scores(unit, " ".join(query), *texts)
        np.testing.assert_allclose(found, expected_scores(unit, asked, texts), atol=1e-12)
    _, of_starts = shares_of(" ".join(query), texts, "stems", starts=[starts])
    np.testing.assert_allclose(-of_starts, expected_scores("stems", asked, starts), atol=1e-12)


def test_letters_count_in_lower_case_whatever_stands_beside_them():
    texts = ["İZMİR ΟΔΟΣ", "izmir οδος", "𝒙 ν❤️1️⃣\U000f0001", "हिंदी", "𠀀", "𠀁-字・", "字カa"]
    read = in_words(texts).decode().replace("\0", "|").split()
    # All of the rarest Chinese characters count as one.
    assert " ".join(read) == "| izmir οδοσ | izmir οδοσ | 𝒙 ν 1 | हिंदी | 𠀀 | 𠀀 字 | 字 カ a |"
    assert in_words(["\ud800é\0é"]).decode() == " \0  é é \0 "
    assert asked("Where is İzmir's ०?") == ["izmir", "s", "०"]


def test_what_is_no_letter_mark_or_digit_stands_between_words():
    texts = ["“Red”—wine", "red\xa0wine", "red-wine", "red\0wine", "(Red), wine", "red_wine"]
    assert scores("pairs", "red wine", *texts, "redwine") == [-1] * 6 + [0]
    assert scores("pairs", "red wine", *texts[3:], "redwine") == [-1] * 3 + [0]  # in ASCII
