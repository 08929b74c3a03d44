"""Query scores: one number a query, from scores, from hits, from parts and from functions."""

from __future__ import annotations

import math

import pytest

from conformal_retrievers.data.hits import Hit
from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.scoring import (
    FunctionQueryScorer,
    FunctionScorer,
    RankAgreement,
    ScoreSummary,
)
from conformal_retrievers.scoring.summary import summary

LENGTH = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")
LONGEST = FunctionQueryScorer(lambda query, texts: -max(map(len, texts)), "longest")


def found(*ranks):
    """Return snippets with the ranks of two retrievers; None where one did not find it."""
    names = ("bm25", "dense")
    return [
        Snippet("a", hits=tuple(Hit(n, r) for n, r in zip(names, of, strict=True) if r is not None))
        for of in ranks
    ]


# --- numbers of scores ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ("best", 1.0),
        ("best against mean", 1 - (2 + 4 + 5) / 3),
        ("margin", 1 - 2.0),
        ("share of best", -(5 - 1) / (4 + 3 + 1 + 0)),
    ],
)
def test_the_numbers_are_those_of_their_formulas(number, expected):
    scores = [4.0, math.inf, 1.0, math.nan, 5.0, 2.0, -math.inf]
    assert summary(scores, number) == pytest.approx(expected, abs=1e-12)
    snippets = ["a" * n for n in (4, 1, 5, 2)]
    assert ScoreSummary(LENGTH, number).score_query("q", snippets) == pytest.approx(expected)


# --- agreement of ranks ---------------------------------------------------------------------------


def test_agreement_is_the_mean_overlap_of_the_first_places():
    agreement = RankAgreement(["dense", "bm25"])
    # Both lists begin with the same snippet, and have nothing else in common.
    terms = sum(1 / d for d in range(1, 11)) / 10
    apart = found((0, 0), (1, None), (None, 1))
    assert agreement.score_query("q", apart) == pytest.approx(-terms)
    # The first two are exchanged: they count from the second place on.
    exchanged = found((0, 1), (1, 0))
    assert agreement.score_query("q", exchanged) == pytest.approx(
        -2 * sum(1 / d for d in range(2, 11)) / 10
    )
    assert agreement.score_query("q", found((9, 0))) == pytest.approx(-1 / 100)
    assert agreement.score_query("q", found((10, 0))) == 0.0
    assert agreement.score_query("q", found(*[(i, i) for i in range(50)])) == pytest.approx(-1)
