"""Z-scores, tie-breaks and cascades: by hand, in exact arithmetic, and what they do to coverage."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from frameworks import judged as real_judged
from frameworks import snippets as real_snippets
from hypothesis import example, given
from hypothesis import strategies as st
from lookup import LookupScorer

from conformal_retrievers import (
    Calibration,
    Cascade,
    ConformalFilter,
    EmbeddingScorer,
    JudgedQuery,
    QueryZScore,
    ScoredQuery,
    Scorer,
    Snippet,
    TieBreak,
    calibrate,
    score_queries,
)
from conformal_retrievers.scoring import AsyncScorer
from conformal_retrievers.scoring.combine import lexicographic
from conformal_retrievers.scoring.scorer import ascore_snippets, query_digest, relative_to_query

ABCD = [Snippet(text) for text in "abcd"]


@dataclass(frozen=True)
class Table:
    """Scores snippets by their place among a query's."""

    scores: tuple[float, ...]
    name: str = "table"
    relative_to_query: bool = False

    def score(self, query, snippets):
        return self.scores[: len(snippets)]


def lookup(name="lookup", **scores):
    return LookupScorer(scores, name)


def loss_when_left_out(queries, alpha):
    """Return the mean share of relevant snippets that the others' threshold drops, exactly."""
    shares = []
    for i, left_out in enumerate(queries):
        others = [*queries[:i], *queries[i + 1 :]]
        calibration = Calibration.from_scores(others, alpha=alpha, scorer="s")
        keeps = calibration.keep(left_out.scores)[left_out.relevant]
        shares.append(Fraction(int((~keeps).sum()), len(keeps)))
    return sum(shares) / len(shares)


def random_judged(rng, queries=60, most=8):
    """Judged queries whose snippets' texts are unique, and a scorer for which relevant are low."""
    scores, judged = {}, []
    for i in range(queries):
        relevant = rng.random(most) < 0.3
        relevant[0] = True
        texts = [f"{i}.{j}" for j in range(most)]
        scores |= dict(zip(texts, rng.normal(1 - relevant, 0.6).tolist(), strict=True))
        judged.append(JudgedQuery(f"query {i}", texts, relevant.tolist(), id=f"q{i}"))
    return judged, LookupScorer(scores, "real numbers")


# --- z-scores -------------------------------------------------------------------------------------


def test_a_z_score_is_the_distance_from_the_querys_mean_in_standard_deviations():
    scorer = QueryZScore(lookup(a=1.0, b=2.0, c=3.0, d=2.0))
    expected = [-math.sqrt(2), 0.0, math.sqrt(2), 0.0]
    np.testing.assert_allclose(scorer.score("q", ABCD), expected, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("score", [0.1, 0.0, -7.0, 1e300])  # three times .1 has not the mean .1
def test_the_z_score_of_equal_scores_and_of_a_single_one_is_zero(score):
    scorer = QueryZScore(LookupScorer(dict.fromkeys("abcd", score)))
    assert scorer.score("q", ABCD[:3]).tolist() == [0.0, 0.0, 0.0]
    assert scorer.score("q", ABCD[:1]).tolist() == [0.0]


def test_what_has_no_finite_score_is_left_out_of_the_z_scores_and_stays():
    scores = {"a": math.nan, "b": 1.0, "c": math.inf, "d": 3.0}
    z = QueryZScore(LookupScorer(scores)).score("q", ABCD)
    np.testing.assert_array_equal(z, [math.nan, -1.0, math.inf, 1.0])
    nothing = QueryZScore(LookupScorer(dict.fromkeys("abcd", math.nan)))
    assert np.isnan(nothing.score("q", ABCD)).all()


scores_of_four = st.lists(
    st.floats(allow_nan=False, allow_infinity=False), min_size=4, max_size=4, unique=True
)


@given(scores_of_four, st.permutations(range(4)))
def test_z_scores_follow_the_snippets_into_any_order_and_never_reverse_them(scores, order):
    scorer = QueryZScore(LookupScorer(dict(zip("abcd", scores, strict=True))))
    z = scorer.score("q", ABCD)
    assert np.isfinite(z).all()
    assert (np.diff(z[np.argsort(scores)]) >= 0).all()
    assert scorer.score("q", [ABCD[i] for i in order]).tolist() == z[list(order)].tolist()


def test_z_scores_do_not_depend_on_where_the_scores_lie(rng):
    scores = rng.normal(size=9)
    z = QueryZScore(Table(tuple(scores))).score("q", [Snippet("a")] * 9)
    moved = QueryZScore(Table(tuple(1e3 * scores - 7))).score("q", [Snippet("a")] * 9)
    np.testing.assert_allclose(moved, z, rtol=0, atol=1e-12)
    assert abs(z.mean()) < 1e-12
    assert z.std() == pytest.approx(1, abs=1e-12)


# --- ties -----------------------------------------------------------------------------------------


def test_a_tie_is_broken_and_nothing_else_changes():
    first = lookup("rating", a=0.3, b=0.1, c=0.3, d=0.2)
    second = lookup("distance", a=0.9, b=1.0, c=0.5, d=0.0)
    scores = TieBreak(first, then=second).score("q", ABCD)
    assert np.argsort(scores).tolist() == [1, 3, 2, 0]
    np.testing.assert_allclose(scores, [0.3, 0.1, 0.3, 0.2], rtol=1e-6, atol=0)


float32 = np.float32
any_float = st.floats(allow_nan=False, allow_infinity=False)
in_float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
nearly = st.sampled_from([0.0, -0.0, 1.0, 1 + 2**-52, 1 - 2**-53, 2**-149, -(2**-149), 1e-300])


@given(
    st.lists(st.tuples(in_float32 | nearly, any_float | nearly), min_size=2, max_size=6),
)
@example([(1.0, 0.0), (1.0, -0.0), (-0.0, 1.0), (0.0, 1.0)])
@example([(float(np.finfo(float32).max), 0.5), (-float(np.finfo(float32).max), 0.5)])
@example([(1.0, 3e38), (1.0, 1e39), (1.0, -1e300)])
def test_the_order_is_lexicographic(pairs):
    first, second = np.array(pairs).T
    scores = lexicographic(first, second)
    assert np.isfinite(scores).all()
    with np.errstate(over="ignore"):
        seconds = second.astype(float32).astype(float)
    seconds = np.clip(seconds, -(2.0**128), 2.0**128)  # what is beyond float32 is one value
    for i, p in enumerate(first):
        for j, q in enumerate(first):
            if float32(p) < float32(q):
                assert scores[i] < scores[j]
            elif float32(p) == float32(q) and seconds[i] <= seconds[j]:
                assert scores[i] <= scores[j]
                # 20 bits after the leading one are told apart, and 0 from everything larger.
                apart = seconds[j] - seconds[i] > 2**-20 * max(abs(seconds[i]), abs(seconds[j]))
                if apart and max(abs(seconds[i]), abs(seconds[j])) > 2**-120:
                    assert scores[i] < scores[j]


@given(in_float32 | nearly, any_float)
@example(float(np.finfo(float32).max), 0.5)
def test_the_broken_score_is_exactly_between_the_score_and_the_next_float32(p, s):
    (score,) = lexicographic([p], [s])
    below = Fraction(float(float32(p)))
    with np.errstate(over="ignore"):
        above = float(np.nextafter(float32(p), float32(np.inf)))
    above = Fraction(2) ** 128 if math.isinf(above) else Fraction(above)
    steps = (Fraction(float(score)) - below) / (above - below) * 2**29
    assert steps.denominator == 1
    assert 0 <= steps < 2**29


@pytest.mark.parametrize("levels", [11, 5])
def test_ratings_and_ratings_are_told_apart_exactly(levels):
    ratings = [1 - i / (levels - 1) for i in range(levels)]
    pairs = sorted((a, b) for a in ratings for b in ratings)
    first, second = np.array(pairs).T
    scores = lexicographic(first, second)
    assert (np.diff(scores) > 0).all()
    assert (scores.astype(float32) - first.astype(float32) <= np.spacing(float32(1))).all()


def test_first_scores_that_a_float32_cannot_tell_apart_count_as_tied():
    closer = np.nextafter(0.3, 1)
    assert lexicographic([0.3], [0.5]) == lexicographic([closer], [0.5])
    assert lexicographic([0.3], [0.5]) > lexicographic([closer], [0.4])


@pytest.mark.parametrize("second", [1.0, 0.75, -1.0, 3e-5])
def test_second_scores_are_told_apart_to_20_bits_after_the_leading_one(second):
    step = 2.0 ** (math.frexp(second)[1] - 1 - 20)
    grid = [second, second + step, second + 2 * step]
    assert (np.diff(lexicographic([0.3] * 3, grid)) > 0).all()
    assert lexicographic([0.3], [1.0]) == lexicographic([0.3], [1 + 2.0**-22])


def test_infinite_scores_stay_and_unscorable_ones_are_unscorable():
    inf, nan = math.inf, math.nan
    np.testing.assert_array_equal(
        lexicographic([inf, -inf, nan, 0.5, inf, nan], [0.1, 0.1, 0.1, nan, nan, nan]),
        [inf, -inf, nan, nan, nan, nan],
    )
    last, first, middle = lexicographic([0.5, 0.5, 0.5], [inf, -inf, 0.0])
    assert 0.5 <= first < middle < last < np.nextafter(float32(0.5), float32(1))


@pytest.mark.parametrize("score", [3.5e38, -1e300])
def test_a_first_score_beyond_float32_is_an_error_that_names_the_scorer(score):
    scorer = TieBreak(lookup("huge", a=score), then=lookup(a=0.0))
    with pytest.raises(ValueError, match=r"'huge' returned -?[\d.]+e\+\d+.*scale"):
        scorer.score("q", ABCD[:1])


# --- ties and coverage ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cosine():
    """The cosine distance of the real MiniLM, its embeddings computed once."""
    from frameworks import _vector

    return EmbeddingScorer(lambda texts: [_vector(text) for text in texts], "cosine")


@dataclass(frozen=True)
class Rounded:
    """Another scorer's scores, rounded to steps of 1/n, as ratings are."""

    scorer: Scorer
    n: int

    @property
    def name(self):
        return f"{self.scorer.name} in steps of 1/{self.n}"

    def score(self, query, snippets):
        return np.round(np.clip(self.scorer.score(query, snippets), 0, 1) * self.n) / self.n


def removed(scored, alpha):
    calibration = Calibration.from_scores(scored, alpha=alpha, scorer="s")
    irrelevant = np.concatenate([q.scores[~q.relevant] for q in scored])
    return 1 - calibration.keep(irrelevant).mean()


@pytest.mark.parametrize("n", [10, 4])
def test_where_ratings_over_cover_a_tie_break_keeps_1_minus_alpha_and_drops_more(cosine, n):
    """Of 80 real questions, each is left out once, so that bounds hold without a doubt.

    A threshold loses at most alpha, and without ties at least alpha − 2/(K + 1), of the others.
    """
    rating = Rounded(cosine, n)
    plain = score_queries(rating, real_judged())
    broken = score_queries(TieBreak(rating, then=cosine), real_judged())
    relevant = np.concatenate([query.scores[query.relevant] for query in broken])
    assert len(set(relevant.tolist())) > 0.98 * len(relevant)
    k = len(broken)
    better = 0
    for alpha in (0.05, 0.1, 0.2, 0.3):
        assert loss_when_left_out(plain, alpha) <= Fraction(repr(alpha))
        loss = loss_when_left_out(broken, alpha)
        # No more than three scores of relevant snippets tie anywhere.
        assert Fraction(repr(alpha)) - Fraction(4, k) <= loss <= Fraction(repr(alpha))
        assert loss >= loss_when_left_out(plain, alpha)
        assert removed(broken, alpha) >= removed(plain, alpha)
        better += removed(broken, alpha) > removed(plain, alpha) + 0.02
    assert better >= 2


def test_p_values_of_broken_ties_are_kept_where_they_are_above_alpha(cosine):
    rating = Rounded(cosine, 4)
    scorer = TieBreak(rating, then=cosine)
    calibration = calibrate(real_judged()[::2], scorer, alpha=0.1)
    plain = calibrate(real_judged()[::2], rating, alpha=0.1)
    some = real_snippets()[:60]
    different = [set(), set()]
    for query in real_judged()[1::8]:
        scores = scorer.score(query.query, some)
        p = calibration.p_values(scores)
        for alpha in (0.03, 0.1, 0.17, 0.4):
            assert (calibration.at(alpha).keep(scores) == (p > alpha)).all()
        different[0] |= set(p.tolist())
        different[1] |= set(plain.p_values(rating.score(query.query, some)).tolist())
    assert len(different[0]) > 20
    assert len(different[1]) <= 5


@pytest.mark.parametrize("alpha", [0.07, 0.1, 0.25])
def test_leaving_each_query_out_of_a_tie_break_loses_alpha_and_hardly_less(rng, alpha):
    judged, exact = random_judged(rng)
    rating = Rounded(exact, 2)
    scored = score_queries(TieBreak(rating, then=exact), judged)
    loss = loss_when_left_out(scored, alpha)
    assert Fraction(repr(alpha)) - Fraction(2, len(judged)) <= loss <= Fraction(repr(alpha))
    plain = loss_when_left_out(score_queries(rating, judged), alpha)
    assert plain < Fraction(repr(alpha)) - Fraction(2, len(judged))  # ties, so it keeps too much


# --- cascades -------------------------------------------------------------------------------------


class Counting:
    """A scorer that remembers which texts it was asked about."""

    name = "costly"

    def __init__(self, **scores):
        self.scores = scores
        self.asked = []

    def score(self, query, snippets):
        self.asked.append([snippet.text for snippet in snippets])
        return [self.scores[snippet.text] for snippet in snippets]


def test_a_cascade_asks_the_costly_scorer_about_what_the_cheap_one_passes():
    costly = Counting(a=5.0, b=6.0, c=math.nan)
    cascade = Cascade(lookup(a=0.5, b=math.nan, c=0.1, d=0.6), costly, pass_below=0.5)
    scores = cascade.score("q", ABCD)
    np.testing.assert_array_equal(scores, [5.0, 6.0, math.nan, math.inf])
    assert costly.asked == [["a", "b", "c"]]


async def test_the_costly_scorer_is_not_called_about_nothing():
    costly = Counting()
    cascade = Cascade(LookupScorer(dict.fromkeys("abcd", 1.0)), costly, pass_below=0.5)
    assert cascade.score("q", ABCD).tolist() == [math.inf] * 4
    assert (await cascade.ascore("q", ABCD)).tolist() == [math.inf] * 4
    assert costly.asked == []


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.4])
def test_leaving_each_query_out_of_a_cascade_loses_alpha_in_both_stages_together(rng, alpha):
    judged, exact = random_judged(rng)
    cascade = Cascade(Rounded(exact, 1), exact, pass_below=0.0)
    scored = score_queries(cascade, judged)
    dropped = np.mean([np.isinf(query.scores[query.relevant]).mean() for query in scored])
    assert 0.02 < dropped < 0.35
    if dropped > alpha + 0.02:
        assert loss_when_left_out(scored, alpha) == 0  # everything is kept
        return
    loss = loss_when_left_out(scored, alpha)
    assert Fraction(repr(alpha)) - Fraction(2, len(judged)) <= loss <= Fraction(repr(alpha))


def test_a_cascade_that_drops_too_much_keeps_everything_and_says_why(tmp_path):
    judged = [JudgedQuery(f"q{i}", ABCD, [True, i % 2 == 0, False, False]) for i in range(40)]
    cascade = Cascade(
        lookup(a=0.1, b=0.9, c=0.2, d=0.9), lookup(a=0.0, b=1.0, c=2.0, d=3.0), pass_below=0.5
    )
    calibration = calibrate(judged, cascade, alpha=0.2)  # a quarter of a query's are dropped
    assert calibration.threshold() == math.inf
    reason = "the scorer itself drops 20 of 60 relevant snippets"
    assert reason in calibration.statement
    filtered = ConformalFilter(cascade, calibration)("new", ABCD)
    assert filtered.kept.tolist() == [0, 1, 2, 3]
    assert (filtered.p_values > 0.2).all()

    enough = calibration.at(0.3)
    assert enough.threshold() == 0.0
    assert "Kept is what" in enough.statement
    filtered = ConformalFilter(cascade, enough)("new", ABCD)
    assert filtered.kept.tolist() == [0]
    assert (filtered.p_values > 0.3).tolist() == [True, False, False, False]


@pytest.mark.parametrize("guarantee", ["query-recall", "all", "any", "snippet"])
def test_relevant_snippets_that_a_cascade_drops_are_in_the_calibrations_file(tmp_path, guarantee):
    queries = [ScoredQuery([0.1 * i, math.inf], [True, i % 3 == 0], id=str(i)) for i in range(30)]
    calibration = Calibration.from_scores(queries, alpha=0.3, guarantee=guarantee, scorer="s")
    calibration.save(tmp_path / "c.json")
    rows = json.loads((tmp_path / "c.json").read_text())["queries"]
    assert rows[3]["scores"] == [0.1 * 3, "inf"]
    loaded = Calibration.load(tmp_path / "c.json")
    assert loaded == calibration
    assert loaded.threshold() == calibration.threshold()
    assert [q.scores.tolist() for q in loaded.queries] == [
        q.scores.tolist() for q in calibration.queries
    ]


@pytest.mark.parametrize("threshold", [math.nan, math.inf, "0.5", True, None])
def test_a_pass_mark_that_is_no_number_is_an_error(threshold):
    with pytest.raises(ValueError, match="pass_below is"):
        Cascade(lookup(), lookup(), pass_below=threshold)


# --- all of them ----------------------------------------------------------------------------------


def combinations(one, other):
    return [
        QueryZScore(one),
        TieBreak(one, then=other),
        Cascade(one, other, pass_below=0.5),
    ]


def test_a_name_tells_the_parts_and_every_parameter():
    one, other = lookup("one"), lookup("other")
    scorers = [
        *combinations(one, other),
        *combinations(other, one),
        Cascade(one, other, pass_below=0.25),
        TieBreak(TieBreak(one, then=other), then=one),
        TieBreak(one, then=TieBreak(other, then=one)),
    ]
    names = [scorer.name for scorer in scorers]
    assert len(set(names)) == len(names)
    assert names[:3] == [
        "zscore(one)",
        "tiebreak(one, then=other)",
        "cascade(one ≤ 0.5, other)",
    ]
    assert Cascade(one, other, pass_below=np.float32(1)).name == "cascade(one ≤ 1.0, other)"
    assert all(name.isprintable() for name in names)
    assert all(isinstance(scorer, AsyncScorer) for scorer in scorers)


def test_what_is_no_scorer_cannot_be_combined():
    for combine in (
        lambda: QueryZScore("x"),
        lambda: TieBreak("x", then=lookup()),
        lambda: TieBreak(lookup(), then="x"),
        lambda: Cascade("x", lookup(), pass_below=0),
        lambda: Cascade(lookup(), "x", pass_below=0),
    ):
        with pytest.raises(TypeError, match="scorer is 'x'"):
            combine()


def test_scores_that_depend_on_the_querys_other_snippets_say_so():
    plain, relative = lookup(), QueryZScore(lookup())
    assert not relative_to_query(plain)
    assert relative_to_query(relative)
    assert [relative_to_query(s) for s in combinations(plain, plain)] == [True, False, False]
    assert all(map(relative_to_query, combinations(plain, relative)))
    assert all(map(relative_to_query, combinations(relative, plain)))


def test_no_snippets_have_no_scores():
    for scorer in combinations(lookup(), lookup()):
        assert scorer.score("q", []).tolist() == []


async def test_asynchronous_scores_are_the_synchronous_ones():
    one = lookup(a=0.5, b=math.nan, c=0.1, d=0.6)
    other = lookup(a=0.5, b=0.3, c=0.2, d=0.1)
    for scorer in combinations(one, other):
        awaited = await scorer.ascore("q", ABCD)
        np.testing.assert_array_equal(awaited, scorer.score("q", ABCD))


class Meeting:
    """A scorer that waits until the other one was called too."""

    def __init__(self, name, mine, others):
        self.name, self.mine, self.others = name, mine, others

    def score(self, query, snippets):
        raise AssertionError("called in a thread")

    async def ascore(self, query, snippets):
        self.mine.set()
        await self.others.wait()
        return [0.5] * len(snippets)


async def test_both_scorers_of_a_tie_break_are_awaited_at_once():
    a, b = asyncio.Event(), asyncio.Event()
    scorer = TieBreak(Meeting("a", a, b), then=Meeting("b", b, a))
    assert len(await asyncio.wait_for(scorer.ascore("q", ABCD), timeout=20)) == 4


class Failing:
    name = "failing"

    def score(self, query, snippets):
        raise AssertionError("called in a thread")

    async def ascore(self, query, snippets):
        await asyncio.sleep(0)
        raise RuntimeError("the model is gone")


@pytest.mark.parametrize("cancelled", [False, True])
async def test_no_task_goes_on_when_one_scorer_fails_or_the_caller_gives_up(cancelled):
    waiting = Meeting("waiting", asyncio.Event(), asyncio.Event())
    other = Meeting("other", asyncio.Event(), asyncio.Event()) if cancelled else Failing()
    scoring = asyncio.ensure_future(ascore_snippets(TieBreak(waiting, then=other), "q", ABCD))
    await waiting.mine.wait()
    if cancelled:
        scoring.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else RuntimeError):
        await scoring
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_the_digest_of_a_query_is_the_beginning_of_its_sha_256():
    assert query_digest("abc") == "ba7816bf8f01cfea"
    assert query_digest("ü") != query_digest("u")
    assert query_digest("u\u0308 \u212b") == query_digest("ü Å")  # composed or not
    assert query_digest("\u01f0") == "3651063ff416cf3b"  # as ever, where a text is composed


@pytest.mark.parametrize("same", ["a b ", "\ta\n b", "A B", "a\u00a0B"])
def test_case_and_white_space_make_no_other_query(same):
    assert query_digest(same) == query_digest("a b")
    assert query_digest(same) != query_digest("ab")
