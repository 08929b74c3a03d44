"""Query scores: one number a query, from scores, from hits, from parts and from functions."""

from __future__ import annotations

import json
import math

import pytest

from conformal_retrievers.data.hits import Hit
from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.scoring import (
    FunctionQueryScorer,
    FunctionScorer,
    HitScorer,
    QueryTieBreak,
    QueryZScore,
    RankAgreement,
    ScoreSummary,
    scorer_of,
)
from conformal_retrievers.scoring.rebuild import needs, query_scorer_of
from conformal_retrievers.scoring.summary import NUMBERS, summary

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


# --- from a provenance ----------------------------------------------------------------------------

BEST = ScoreSummary(HitScorer("dense"), "best")


@pytest.mark.parametrize(
    "scorer",
    [
        *(ScoreSummary(QueryZScore(HitScorer("bm25")), number) for number in NUMBERS),
        RankAgreement(["a", "b", "c"]),
        QueryTieBreak(RankAgreement(["a", "b"]), then=BEST),
    ],
    ids=lambda scorer: scorer.name,
)
def test_a_query_scorer_is_made_again_from_its_provenance(scorer):
    again = query_scorer_of(json.loads(json.dumps(scorer.provenance)))
    assert (again, again.name) == (scorer, scorer.name)


def test_what_a_provenance_names_is_given():
    scorer = QueryTieBreak(LONGEST, then=ScoreSummary(LENGTH, "margin"))
    assert needs(scorer.provenance) == ["longest", "length"]
    assert query_scorer_of(scorer.provenance, [LENGTH, LONGEST]) == scorer
    assert query_scorer_of({"name": "longest"}, [scorer]) == LONGEST  # as a part of it
    with pytest.raises(ValueError, match="'longest'"):
        query_scorer_of(scorer.provenance, [LENGTH])


@pytest.mark.parametrize(
    "provenance",
    [
        {"kind": "pickle"},
        {"kind": "summary", "number": "best"},
        {"kind": "summary", "number": "best", "scorer": RankAgreement(["a", "b"]).provenance},
        {"kind": "query tiebreak", "scorer": BEST.provenance},
        {"kind": "query tiebreak", "scorer": BEST.provenance, "then": HitScorer().provenance},
        {"kind": "agreement", "retrievers": [1, 2]},
        HitScorer().provenance,  # it scores snippets
        {},
    ],
)
def test_a_provenance_of_something_else_is_an_error(provenance):
    with pytest.raises(ValueError, match="scorer_provenance"):
        query_scorer_of(provenance)
    with pytest.raises(ValueError, match="scorer_provenance"):
        scorer_of(BEST.provenance)
