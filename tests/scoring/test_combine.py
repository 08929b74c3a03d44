"""Z-scores and tie-breaks: by hand, and in exact arithmetic."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lookup import LookupScorer

from conformal_retrievers import Snippet
from conformal_retrievers.scoring import (
    QueryZScore,
    TieBreak,
    ascore_snippets,
    relative_to_query,
)
from conformal_retrievers.scoring.combine import lexicographic

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
    z = scorer.score("q", ABCD[: len(scores)])
    np.testing.assert_allclose(z, expected, rtol=1e-15, atol=0)


any_float = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(any_float, min_size=4, max_size=4, unique=True), st.permutations(range(4)))
def test_z_scores_do_not_depend_on_the_order_of_snippets_and_never_reverse_scores(scores, order):
    scorer = QueryZScore(LookupScorer(dict(zip("abcd", scores, strict=True))))
    z = scorer.score("q", ABCD)
    assert np.isfinite(z).all()
    assert (np.diff(z[np.argsort(scores)]) >= 0).all()
    assert scorer.score("q", [ABCD[i] for i in order]).tolist() == z[list(order)].tolist()


# --- ties -----------------------------------------------------------------------------------------


float32 = np.float32
in_float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
nearly = st.sampled_from([0.0, -0.0, 1.0, 1 + 2**-52, 1 - 2**-53, 2**-149, -(2**-149), 1e-300])
MAX = float(np.finfo(float32).max)


@given(st.lists(st.tuples(in_float32 | nearly, any_float | nearly), min_size=2, max_size=6))
@example([(1.0, 0.0), (1.0, -0.0), (-0.0, 1.0), (0.0, 1.0)])
@example([(MAX, 0.5), (-MAX, 0.5)])
@example([(1.0, 3e38), (1.0, 1e39), (1.0, -1e300)])
def test_the_order_is_lexicographic(pairs):
    first, second = np.array(pairs).T
    scores = lexicographic(first, second)
    assert np.isfinite(scores).all()
    with np.errstate(over="ignore"):
        seconds = second.astype(float32).astype(float)
    seconds = np.clip(seconds, -(2.0**128), 2.0**128)  # beyond float32, all values are one
    for i, p in enumerate(first):
        for j, q in enumerate(first):
            if float32(p) < float32(q):
                assert scores[i] < scores[j]
            elif float32(p) == float32(q) and seconds[i] <= seconds[j]:
                assert scores[i] <= scores[j]
                # 20 bits after the leading one count, and 0 differs from everything larger.
                apart = seconds[j] - seconds[i] > 2**-20 * max(abs(seconds[i]), abs(seconds[j]))
                if apart and max(abs(seconds[i]), abs(seconds[j])) > 2**-120:
                    assert scores[i] < scores[j]


@given(in_float32 | nearly, any_float)
@example(MAX, 0.5)
def test_a_broken_tie_is_exactly_between_the_score_and_the_next_float32(p, s):
    (score,) = lexicographic([p], [s])
    below = Fraction(float(float32(p)))
    with np.errstate(over="ignore"):
        above = float(np.nextafter(float32(p), float32(np.inf)))
    above = Fraction(2) ** 128 if math.isinf(above) else Fraction(above)
    steps = (Fraction(float(score)) - below) / (above - below) * 2**29
    assert steps.denominator == 1
    assert 0 <= steps < 2**29


def test_infinite_scores_stay_and_nan_of_either_scorer_is_nan():
    inf, nan = math.inf, math.nan
    np.testing.assert_array_equal(
        lexicographic([inf, -inf, nan, 0.5, inf, nan], [0.1, 0.1, 0.1, nan, nan, nan]),
        [inf, -inf, nan, nan, nan, nan],
    )
    last, first, middle = lexicographic([0.5, 0.5, 0.5], [inf, -inf, 0.0])
    assert 0.5 <= first < middle < last < np.nextafter(float32(0.5), float32(1))


# --- all of them ----------------------------------------------------------------------------------


def combinations(one, other):
    return [QueryZScore(one), TieBreak(one, then=other)]


def test_a_combination_has_the_names_of_its_parts_and_is_relative_to_the_query_if_one_is():
    one, other, relative = lookup("one"), lookup("other"), QueryZScore(lookup())
    names = [scorer.name for scorer in combinations(one, other)]
    assert names == ["zscore(one)", "tiebreak(one, then=other)"]
    assert [relative_to_query(s) for s in combinations(one, other)] == [True, False]
    assert all(map(relative_to_query, combinations(one, relative)))
    assert all(map(relative_to_query, combinations(relative, one)))


async def test_asynchronous_scores_are_the_synchronous_ones():
    one = lookup(a=0.5, b=math.nan, c=0.1, d=0.6)
    other = lookup(a=0.5, b=0.3, c=0.2, d=0.1)
    for scorer in combinations(one, other):
        awaited = await scorer.ascore("q", ABCD)
        np.testing.assert_array_equal(awaited, scorer.score("q", ABCD))
        assert scorer.score("q", []).tolist() == []


@dataclass(frozen=True)
class Meeting:
    """A scorer that waits until the other one was called too."""

    name: str
    mine: asyncio.Event
    others: asyncio.Event

    def score(self, query, snippets):
        raise AssertionError("called in a thread")

    async def ascore(self, query, snippets):
        self.mine.set()
        await self.others.wait()
        if self.name == "failing":
            raise RuntimeError("the model is gone")
        return [0.5] * len(snippets)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_no_task_goes_on_after_a_failure_or_a_cancellation(cancelled):
    waiting = Meeting("waiting", asyncio.Event(), asyncio.Event())
    failing = Meeting("failing", asyncio.Event(), asyncio.Event() if cancelled else waiting.mine)
    scoring = asyncio.ensure_future(ascore_snippets(TieBreak(waiting, then=failing), "q", ABCD))
    await waiting.mine.wait()
    if cancelled:
        scoring.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else RuntimeError):
        await scoring
    assert asyncio.all_tasks() == {asyncio.current_task()}
