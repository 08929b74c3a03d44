"""Z-scores by hand, and scorers that are made of others."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lookup import LookupScorer, Sum

from conformal_retrievers import Snippet
from conformal_retrievers.scoring import QueryZScore, relative_to_query

ABCD = [Snippet(text) for text in "abcd"]


def lookup(name="lookup", **scores):
    return LookupScorer(scores, name)


# --- z-scores -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1.0, 2.0, 3.0, 2.0], [-math.sqrt(2), 0.0, math.sqrt(2), 0.0]),
        ([0.1, 0.1, 0.1], [0.0] * 3),  # their mean is not exactly 0.1
        ([0.1], [0.0]),
        ([math.nan, 1.0, math.inf, 3.0], [math.nan, -1.0, math.inf, 1.0]),
    ],
)
def test_a_z_score_is_the_distance_from_the_mean_of_finite_scores(scores, expected):
    scorer = QueryZScore(LookupScorer(dict(zip("abcd", scores, strict=False))))
    np.testing.assert_allclose(scorer.score("q", ABCD[: len(scores)]), expected, rtol=1e-15, atol=0)


any_float = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(any_float, min_size=4, max_size=4, unique=True), st.permutations(range(4)))
def test_z_scores_do_not_depend_on_the_order_of_snippets_and_never_reverse_scores(scores, order):
    scorer = QueryZScore(LookupScorer(dict(zip("abcd", scores, strict=True))))
    z = scorer.score("q", ABCD)
    assert np.isfinite(z).all()
    assert (np.diff(z[np.argsort(scores)]) >= 0).all()
    assert scorer.score("q", [ABCD[i] for i in order]).tolist() == z[list(order)].tolist()


# --- all of them ----------------------------------------------------------------------------------


def combinations(one, other):
    return [QueryZScore(one), Sum(one, other)]


def test_a_combination_has_the_names_of_its_parts_and_is_relative_to_the_query_if_one_is():
    one, other, relative = lookup("one"), lookup("other"), QueryZScore(lookup())
    assert [scorer.name for scorer in combinations(one, other)] == ["zscore(one)", "one + other"]
    assert [relative_to_query(s) for s in combinations(one, other)] == [True, False]
    assert all(map(relative_to_query, combinations(one, relative)))
    assert all(map(relative_to_query, combinations(relative, one)))


async def test_asynchronous_scores_are_the_synchronous_ones():
    one = lookup(a=0.5, b=math.nan, c=0.1, d=0.6)
    for scorer in combinations(one, lookup(a=0.5, b=0.3, c=0.2, d=0.1)):
        np.testing.assert_array_equal(await scorer.ascore("q", ABCD), scorer.score("q", ABCD))
        assert scorer.score("q", []).tolist() == []
