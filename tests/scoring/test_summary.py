"""Query scores from what is known: numbers of scores, and how far retrievers agree."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from conformal_retrievers.data.hits import Hit
from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.scoring import (
    EmbeddingScorer,
    FunctionScorer,
    RankAgreement,
    ScoreSummary,
    ascore_query,
    score_query,
)
from conformal_retrievers.scoring.hits import FusionScorer, RetrievalScorer
from conformal_retrievers.scoring.summary import NUMBERS, summary

LENGTH = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")


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


@pytest.mark.parametrize(
    ("scores", "best", "others"),
    [
        ([], math.nan, math.nan),
        ([math.nan, math.inf], math.nan, math.nan),
        ([-math.inf, 3.0], 3.0, math.nan),
        ([2.0], 2.0, math.nan),
    ],
)
def test_too_few_finite_scores_make_a_number_unknown(scores, best, others):
    found = {number: summary(scores, number) for number in NUMBERS}
    np.testing.assert_equal(found, dict.fromkeys(NUMBERS, others) | {"best": best})


def test_equal_scores_share_alike():
    assert [summary([5.0] * 4, number) for number in NUMBERS] == [5.0, 0.0, 0.0, -0.25]


@given(arrays(np.float64, st.integers(2, 9), elements=st.floats(-1e6, 1e6)), st.randoms())
def test_the_order_of_snippets_is_irrelevant(scores, random):
    mixed = [*scores, math.nan, math.inf]
    random.shuffle(mixed)
    for number in NUMBERS:
        assert summary(mixed, number) == summary(scores, number)


# Scores on a grid, so that no map makes two of them equal that were not.
GRID = st.lists(st.integers(-50, 50).map(lambda n: n / 4), min_size=2, max_size=9)


@given(GRID, st.floats(0.01, 100), st.floats(-100, 100))
def test_the_numbers_follow_increasing_maps(scores, slope, shift):
    moved = [slope * s + shift for s in scores]
    assert summary([s**3 for s in scores], "best") == summary(scores, "best") ** 3
    assert summary(moved, "best") == slope * summary(scores, "best") + shift
    for number in ("best against mean", "margin"):
        expected = slope * summary(scores, number)
        assert summary(moved, number) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    expected = summary(scores, "share of best")
    assert summary(moved, "share of best") == pytest.approx(expected, rel=1e-6)


@given(GRID)
def test_the_numbers_have_their_ranges(scores):
    n = len(scores)
    assert summary(scores, "best") == min(scores)
    assert summary(scores, "best against mean") <= summary(scores, "margin") <= 0
    assert -1 <= summary(scores, "share of best") <= -1 / n + 1e-12


def test_a_better_best_snippet_lowers_every_number():
    for number in NUMBERS:
        worse, better = summary([1.0, 2.0, 4.0], number), summary([0.5, 2.0, 4.0], number)
        assert better < worse


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


def test_agreement_of_more_retrievers_is_the_mean_over_their_pairs():
    snippets = [Snippet("a", hits=(Hit("a", 0), Hit("b", 0))), Snippet("b", hits=(Hit("c", 0),))]
    pair = RankAgreement(["a", "b"])
    three = RankAgreement(["c", "b", "a"])
    one = pair.score_query("q", snippets[:1])
    assert three.score_query("q", snippets) == pytest.approx(one / 3)
    assert (three.retrievers, three.name) == (("a", "b", "c"), "agreement(a, b, c)")


@given(st.permutations(range(12)), st.permutations(range(12)), st.randoms())
def test_agreement_is_the_average_overlap_of_both_lists(bm25, dense, random):
    snippets = found(*zip(bm25, dense, strict=True))
    first = [
        {i for i in range(12) if ranks[i] < d} for d in range(1, 11) for ranks in (bm25, dense)
    ]
    overlaps = [len(a & b) / len(a) for a, b in zip(first[::2], first[1::2], strict=True)]
    random.shuffle(snippets)
    agreement = RankAgreement(["bm25", "dense"]).score_query("q", snippets)
    assert agreement == pytest.approx(-sum(overlaps) / 10)
    assert -1 - 1e-12 <= agreement <= 0


def test_the_best_score_of_a_retriever_that_found_nothing_is_the_worst():
    best = ScoreSummary(RetrievalScorer("bm25", higher_is_better=True), "best")
    with pytest.warns(UserWarning, match="bm25"):
        assert score_query(best, "q", found((None, 0), (None, 1))) == math.inf


def test_agreement_is_none_if_a_retriever_found_nothing():
    agreement = RankAgreement(["bm25", "dense"])
    assert score_query(agreement, "q", found((0, None), (1, None))) == 0.0
    with pytest.raises(ValueError, match="'bm25', 'dense'"):
        agreement.score_query("q", ["a", "b"])
    with pytest.raises(ValueError, match="'sparse'"):
        agreement.score_query("q", [Snippet("a", hits=(Hit("dense", 0), Hit("sparse", 0)))])


@pytest.mark.parametrize("retrievers", [[], ["a"], "ab", ["a", "a"]])
def test_agreement_needs_two_retrievers(retrievers):
    with pytest.raises(ValueError, match="retrievers is"):
        RankAgreement(retrievers)


@pytest.mark.parametrize("retrievers", [3, None, [1, 2], ["a", None]])
@pytest.mark.parametrize("scorer", [RankAgreement, FusionScorer])
def test_retrievers_are_names(scorer, retrievers):
    with pytest.raises(TypeError, match="retrievers is"):
        scorer(retrievers)


@pytest.mark.slow
async def test_the_best_cosine_parts_answered_questions_from_others(minilm, toy_judged):
    best = ScoreSummary(EmbeddingScorer(minilm.encode, "minilm"), "best")
    *answered, other = [score_query(best, q.query, q.snippets) for q in toy_judged]
    assert max(answered) < other
    again = [await ascore_query(best, q.query, q.snippets) for q in toy_judged]
    assert again == pytest.approx([*answered, other], abs=1e-6)  # of other batches of the model
