"""Overlap in words, pairs, stems and pieces: by hand, and in a learned scorer in one file."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers import JudgedQuery, LearnedScorer, Snippet
from conformal_retrievers.scoring import OverlapScorer, scorer_of
from conformal_retrievers.scoring.overlap import OVERLAPS


def scores(unit, query, *texts):
    return OverlapScorer(unit).score(query, texts).tolist()


def test_words_are_shared_in_any_case_and_stop_words_of_the_query_do_not_count():
    texts = "The river rose.", "RIVER, banks!", "riverbanks", ""
    assert scores("words", "Where is the river bank of the Rhine?", *texts) == [
        -1 / 3,
        -1 / 3,
        0,
        0,
    ]


@pytest.mark.parametrize("unit", ["words", "pairs", "stems", "pieces"])
def test_a_query_of_stop_words_shares_nothing_with_any_snippet(unit):
    assert scores(unit, "Who was that?", "who was that", "a man") == [0, 0]
    assert OverlapScorer(unit).score("river", []).shape == (0,)


def test_an_unknown_unit_is_an_error():
    with pytest.raises(ValueError, match="unit"):
        OverlapScorer("letters")


def test_a_learned_score_of_overlaps_comes_back_from_its_provenance_alone():
    judged = [
        JudgedQuery(
            f"which river flows through town {i}",
            [Snippet(f"The river of town {i} flows"), Snippet("Snow fell"), Snippet("A town")],
            [True, False, False],
        )
        for i in range(4)
    ]
    learned = LearnedScorer.fit(judged, OVERLAPS.values())
    again = scorer_of(json.loads(json.dumps(learned.provenance)))
    assert again == learned
    assert again.score(judged[0].query, judged[0].snippets).argmin() == 0
    assert [scorer_of(s.provenance) for s in OVERLAPS.values()] == [*OVERLAPS.values()]


WORDS = st.sampled_from(
    ["a", "ca", "cat", "cats", "split", "splitting", "splits", "Straße", "ÉTÉ", "x_1", "٣", "ſo"]
)
TEXTS = st.lists(st.tuples(WORDS, st.sampled_from([" ", ", ", "\n", "-", "", "  ("]))).map(
    lambda parts: "".join(word + between for word, between in parts)
)


def expected_scores(unit: str, asked: list[str], texts: list[str]) -> np.ndarray:
    """What the definition of a unit gives, from the words of the query that count."""
    words = [re.findall(r"\w+", text.lower()) for text in texts]
    if unit == "words":
        units = sorted({*asked})
        has = [[one in of_text for one in units] for of_text in words]
    elif unit == "pairs":
        units = sorted({*pairwise(asked)})
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


@given(st.lists(WORDS, min_size=1, max_size=4), st.lists(TEXTS, min_size=1, max_size=4))
def test_a_text_has_the_units_that_their_definition_gives_it(query, texts):
    asked = [word for word in " ".join(query).lower().split() if word != "a"]
    for unit in ("words", "pairs", "stems", "pieces"):
        found = scores(unit, " ".join(query), *texts)
        np.testing.assert_allclose(found, expected_scores(unit, asked, texts), atol=1e-12)


def test_what_is_no_letter_digit_or_underscore_stands_between_words():
    texts = ["“Red”—wine", "red\xa0wine", "red-wine", "red\0wine", "(Red), wine", "red_wine"]
    for unit in ("words", "pairs"):
        assert scores(unit, "red wine", *texts) == [-1] * 5 + [0]
        assert scores(unit, "red wine", *texts[3:], "redwine") == [-1, -1, 0, 0]  # in ASCII
