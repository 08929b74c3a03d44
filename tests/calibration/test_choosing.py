"""The choice of a score: which queries make it, that no others do, and what it chooses."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    FunctionScorer,
    JudgedQuery,
    LearnedScorer,
    Snippet,
    calibrate,
    compare,
    diagnose,
    evaluate,
    score_queries,
)
from conformal_retrievers.calibration import needed_scorers
from conformal_retrievers.calibration.candidates import (
    FOLDS,
    Candidate,
    candidates_of,
    cross_validated,
    from_hits,
)
from conformal_retrievers.calibration.choosing import as_good, choose, pick, picked, split
from conformal_retrievers.calibration.costs import Aim, FitPart
from conformal_retrievers.calibration.guarantees import Units
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.hits import Hit, fuse
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.scoring import (
    QueryZScore,
    RankScorer,
    ZFusionScorer,
    relative_to_query,
)
from conformal_retrievers.scoring.overlap import STEMS
from conformal_retrievers.scoring.scorer import query_digest
from conformal_retrievers.theory.intervals import Interval

AIM = Aim("query-recall", 0.1)


def query_of(i, rng, *, scored=True, strength=2.0, n=12):
    """A query with one or two relevant snippets, which two retrievers tend to find early."""
    relevant = np.arange(n) < 1 + rng.integers(2)
    lists = {}
    for name in ("bm25", "dense"):
        scores = rng.normal(size=n) + strength * relevant
        order = np.argsort(-scores)[: n - 2]
        lists[name] = [(int(j), float(scores[j]) if scored else None) for j in order]
    found = fuse(lists)
    snippets = [Snippet(f"text {j}" + "." * j, hits=hits) for j, hits in found.items()]
    return JudgedQuery(f"query {i}", snippets, [relevant[j] for j in found], id=f"q{i}")


def queries(n, seed=0, **options):
    rng = np.random.default_rng(seed)
    return [query_of(i, rng, **options) for i in range(n)]


def test_the_choice_of_a_score_shows_a_bar_on_request(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    calibrate(queries(90), alpha=0.1, progress=True)
    assert "Choosing a score" in capsys.readouterr().err


def ranked(n):
    """Queries of one retriever that has no scores."""
    rng = np.random.default_rng(1)
    return [
        JudgedQuery(f"query {i}", with_hits(list("abcdef")), np.arange(6) == rng.geometric(0.6) % 6)
        for i in range(n)
    ]


JUDGED = queries(120)
NEW = queries(40, seed=9)
NEW = [replace(query, query=f"new {query.query}", id=f"new {query.id}") for query in NEW]


def of_equal_length(judged):
    """The queries without the dots that make less relevant snippets longer."""
    return [
        replace(q, snippets=[replace(s, text=s.text.rstrip(".")) for s in q.snippets])
        for q in judged
    ]


class Counting:
    """Scores by the number of dots, and counts how often it is asked."""

    name = "dots"

    def __init__(self):
        self.asked = []

    def score(self, query, snippets):
        self.asked.append(query)
        return [snippet.text.count(".") for snippet in snippets]


# --- the parts ------------------------------------------------------------------------------------


def test_a_third_is_the_fit_part_whatever_the_order_and_the_others_calibrate():
    fit, calibration = split(JUDGED)
    assert len(fit) == 40
    assert sorted(q.id for q in (*fit, *calibration)) == sorted(q.id for q in JUDGED)
    assert [q for q in JUDGED if q in calibration] == calibration
    assert split(JUDGED[::-1]) == (fit, calibration[::-1])
    many = [replace(JUDGED[0], query=f"query {i}", id=str(i)) for i in range(1000)]
    assert len(split(many).fit) == 300


def test_copies_of_a_query_are_in_one_part():
    copies = [replace(query, query=f" {query.query.upper()}", id=None) for query in JUDGED]
    fit, calibration = split([*JUDGED, *copies])
    texts = [{q.query.strip().lower() for q in part} for part in (fit, calibration)]
    assert not texts[0] & texts[1]
    assert len(fit) == 80


def test_the_fit_part_leaves_each_group_what_it_needs():
    groups = ["small" if i < 10 else "large" for i in range(100)]
    fit, calibration = split(JUDGED[:100], needed=9, groups=groups)
    left = {q.id for q in calibration}
    assert sum(q.id in left for q in JUDGED[:10]) == 9
    assert len(fit) == 1 + 30
    assert fit == sorted(fit, key=lambda query: query_digest(query.query))


# --- the guarantee --------------------------------------------------------------------------------


def test_the_choice_never_sees_the_calibration_part():
    parts = split(JUDGED)
    chosen = calibrate(JUDGED, alpha=0.1)
    drawn = queries(120, seed=5, strength=1.0)
    others = [
        replace(query, snippets=other.snippets, relevant=other.relevant)
        for query, other in zip(parts.calibration, drawn, strict=False)
    ]
    again = calibrate([*parts.fit, *others], alpha=0.1)
    assert again.scorer_provenance == chosen.scorer_provenance
    assert chosen.ids == {query.id for query in parts.calibration}
    assert not chosen.ids & set(chosen.choice.fit_ids)


@pytest.mark.parametrize("alpha", ["1/10", "1/5", "2/5"])
def test_leaving_out_each_query_of_the_calibration_part_loses_at_most_alpha(alpha):
    chosen = choose(JUDGED, None, AIM, needed=9)
    scored = ScoredQueries.of(score_queries(chosen.scorer, chosen.calibration)).relevant_only()
    lost = Fraction(0)
    for i, query in enumerate(scored):
        others = Units("query-recall", scored.select(np.arange(len(scored)) != i), False)
        kept = int((query.scores <= others.threshold(float(Fraction(alpha)), None)).sum())
        lost += 1 - Fraction(kept, len(query.scores))
    assert lost <= Fraction(alpha) * len(scored)


# --- what is chosen -------------------------------------------------------------------------------


def test_a_score_is_learned_where_two_retrievers_know_more_than_one():
    calibration = calibrate(queries(300), alpha=0.1)
    assert calibration.scorer.startswith("learned(hits of bm25, hits of dense")
    assert calibration.choice.n_fit == 100
    costs = calibration.choice.costs
    low, high = calibration.choice.interval
    assert low < costs[calibration.choice.chosen] < high
    assert "chosen among 12" in calibration.statement
    cost = str(Interval(costs[calibration.choice.chosen], low, high))
    assert f"On these 100, at alpha = 0.1, it keeps {cost} of the text" in calibration.statement
    assert costs[calibration.choice.chosen] < costs["rank(dense)"]


def about_words(judged):
    """The queries, each about a town that its relevant snippets and some others name."""
    named = np.random.default_rng(2).random((len(judged), 12)) < 0.1
    return [
        replace(
            query,
            query=f"what happened in town{i}",
            snippets=[
                replace(s, text=f"{s.text} town{i if query.relevant[j] or named[i, j] else j}")
                for j, s in enumerate(query.snippets)
            ],
        )
        for i, query in enumerate(judged)
    ]


def test_a_score_is_learned_from_words_too_where_they_tell_more_than_noise(tmp_path):
    judged = about_words(queries(300, strength=1.0))
    calibration = calibrate(judged, alpha=0.1)
    costs, name = calibration.choice.costs, "learned(hits of bm25, hits of dense, words)"
    assert calibration.choice.chosen == name
    assert costs[name] < 0.8 * costs["learned(hits of bm25, hits of dense)"]
    calibration.save(tmp_path / "calibration.json")
    loaded = Calibration.load(tmp_path / "calibration.json")
    [new, *_] = about_words(NEW)
    both = [ConformalFilter.of(one)(new.query, new.snippets) for one in (calibration, loaded)]
    assert both[0].scores.tolist() == both[1].scores.tolist()


def test_a_learned_score_of_chunks_reads_all_units_of_words_but_pieces():
    learned = [one for one in candidates_of(JUDGED, [], "query-recall") if one.scorer is None]
    words = [f"overlap({unit})" for unit in ("words", "pairs", "stems")]
    assert [[part.name for part in one.parts] for one in learned] == [[], words]


def test_a_learned_candidate_is_scored_by_fits_that_did_not_see_the_query():
    judged = queries(20)
    [learned, _] = [c for c in candidates_of(judged, [], "query-recall") if c.scorer is None]
    scores = cross_validated(learned, judged, 0.2)
    for i in (0, 7, 19):
        others = [query for j, query in enumerate(judged) if j % FOLDS != i % FOLDS]
        fitted = LearnedScorer.fit(others, alpha=0.2)
        assert scores[i].tolist() == fitted.score(judged[i].query, judged[i].snippets).tolist()


def test_nothing_is_learned_where_a_fold_has_one_kind_of_snippets():
    judged = [replace(query, relevant=[True] * len(query.snippets)) for query in queries(20)]
    assert all(c.scorer is not None for c in candidates_of(judged, [], "query-recall"))


def test_without_hits_the_given_scorers_compete():
    bare = [replace(q, snippets=[replace(s, hits=()) for s in q.snippets]) for q in queries(20)]
    length = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")
    names = [c.name for c in candidates_of(bare, [length], "query-recall")]
    assert names == ["length", "zscore(length)", "learned(words, length)"]


def test_the_file_is_enough_for_scores_bit_for_bit(tmp_path):
    calibration = calibrate(queries(300), alpha=0.1)
    calibration.save(tmp_path / "calibration.json")
    loaded = Calibration.load(tmp_path / "calibration.json")
    assert loaded == calibration
    assert needed_scorers(loaded) == []
    fitted = LearnedScorer.fit(split(queries(300)).fit, alpha=0.1)
    opened = ConformalFilter.of(loaded)
    for query in NEW:
        expected = fitted.score(query.query, query.snippets)
        assert opened(query.query, query.snippets).scores.tolist() == expected.tolist()
        filtered = asyncio.run(opened.acall(query.query, query.snippets))
        assert filtered.scores.tolist() == expected.tolist()


def test_noise_is_not_preferred_to_what_is_simpler():
    logs = np.array([[0.0, 0.0, 0.0], [-0.1, 0.3, -0.3], [-0.3, -0.2, -0.4]])
    assert pick(logs) == (2, 2)  # the others cost more in every resample: se 0.1 and 0.3
    logs[2] = [-0.11, -0.1, -0.12]
    assert pick(logs) == (2, 1)


def test_a_simpler_score_must_prove_as_good_as_what_is_learned_from_most():
    last = [0.0, 0.0, 0.0]
    assert as_good(np.array([[0.0, 0.0, 0.0], last])) == 0  # costs the same in every resample
    assert as_good(np.array([[0.019, 0.0, 0.0], last])) == 0  # 2 % more is as good
    assert as_good(np.array([[0.021, 0.0, 0.0], last])) == 1
    assert as_good(np.array([[-0.1, 0.3, -0.3], last])) == 1  # se 0.3: −0.1 + 0.15 is too much
    assert as_good(np.array([[-0.1, 0.2, -0.2], last])) == 0  # se 0.2: −0.1 + 0.1 is not
    both = np.array([[-0.1, -0.1, -0.1], [-0.3, -0.3, -0.3], last])
    assert as_good(both) == 1  # the first proves as good as the last, not as the second
    both[0] = -0.29
    assert as_good(both) == 0


def test_a_user_s_scorer_wins_only_if_no_other_is_within_the_noise_of_it():
    simple, learned = Candidate("simple", RankScorer()), Candidate("learned", None)
    costly = Candidate("costly", None, (RankScorer(),))
    three = [simple, learned, costly]
    logs = np.array([[0.0, 0.6, -0.6], [0.1, 0.0, 0.0], [-0.05, 0.0, 0.0]])
    # The simple one is within the noise of the costly one, the learned one is not.
    assert picked(three, logs) == (2, 0)
    logs[1] = [-0.02, 0.1, -0.1]
    assert picked(three, logs) == (2, 1)  # as good as the costly one, and simple proves nothing
    logs[:2] = [[0.3, 0.3, 0.3], [0.2, 0.2, 0.2]]
    logs[2] = -0.05
    assert picked(three, logs) == (2, 2)
    assert picked([simple], logs[:1]) == (0, 0)  # nothing is learned


def test_with_few_queries_what_is_learned_from_most_wins():
    judged = of_equal_length(queries(60, seed=5, strength=1.0))
    choice = calibrate(judged, alpha=0.1).choice
    assert choice.n_fit == 20
    without, with_words = list(choice.costs)[-2:]
    assert choice.costs[without] < 1.05 * choice.costs[with_words]
    assert choice.chosen == with_words  # 20 queries do not prove that words can be spared


def test_a_given_scorer_is_asked_once_for_each_query():
    scorer = Counting()
    calibration = calibrate(JUDGED, [scorer], alpha=0.1)
    assert len(set(scorer.asked)) == len(scorer.asked)
    used = bool(needed_scorers(calibration))
    assert len(scorer.asked) == (len(JUDGED) if used else calibration.choice.n_fit)


def test_the_statement_says_what_a_given_scorer_adds():
    def truth(query, texts):
        return [0.0 if text in ("text 0", "text 1") else 1.0 + len(text) for text in texts]

    oracle = FunctionScorer(truth, "oracle")
    calibration = calibrate(of_equal_length(JUDGED), [oracle], alpha=0.1)
    assert needed_scorers(calibration) == ["oracle"]
    added = calibration.choice.adds["oracle"]
    assert added.with_it < added.without
    assert "With oracle" in calibration.statement
    opened = ConformalFilter.of(calibration, oracle)
    assert opened.scorer.name == calibration.scorer
    opened = ConformalFilter.of(calibrate(JUDGED, alpha=0.1))
    with pytest.raises(ValueError, match="oracle"):
        ConformalFilter.of(calibration)


def test_a_scorer_that_was_not_chosen_may_be_given_to_the_filter():
    useless = FunctionScorer(lambda query, texts: [0.0 for _ in texts], "useless")
    calibration = calibrate(queries(300), [useless], alpha=0.1)
    assert needed_scorers(calibration) == []
    assert ConformalFilter.of(calibration, useless).scorer == ConformalFilter.of(calibration).scorer


@pytest.mark.parametrize("n", [40, 120])
def test_only_absolute_scores_compete_for_the_guarantee_on_snippets(n):
    calibration = calibrate(JUDGED[:n], alpha=0.1, guarantee="snippet")
    assert calibration.scorer in ("retrieval(bm25, higher)", "retrieval(dense, higher)")
    assert not relative_to_query(ConformalFilter.of(calibration).scorer)
    with pytest.raises(ValueError, match="guarantee"):
        calibrate(ranked(n), alpha=0.1, guarantee="snippet")


def test_nothing_is_fitted_on_fewer_than_60_queries():
    calibration = calibrate(JUDGED[:59], alpha=0.1)
    assert calibration.n_queries == 59
    kinds = {"bm25": "similarity", "dense": "similarity"}
    assert calibration.scorer == ZFusionScorer(kinds, [STEMS]).name
    assert "needs 60 judged queries" in calibration.statement
    one = []
    for query in JUDGED[:30]:
        scored = [replace(s, retrieval_score=-i) for i, s in enumerate(query.snippets)]
        one.append(replace(query, snippets=with_hits(scored)))
    name = "zfusion(retriever higher, overlap(stems))"
    assert calibrate(one, alpha=0.1).scorer == name
    scorer = Counting()
    assert calibrate(one, [scorer], alpha=0.1).scorer == QueryZScore(scorer).name


def test_a_low_alpha_leaves_no_queries_to_fit_on_and_the_statement_has_the_number_that_it_takes():
    calibration = calibrate(JUDGED[:110], alpha=0.01)
    assert calibration.choice.n_fit == 0
    assert "at least 20 more than the 99 for the threshold" in calibration.statement


def test_the_statement_says_why_another_score_that_keeps_less_at_this_alpha_was_not_chosen():
    calibration = calibrate(queries(300), alpha=0.1)
    (other, *_), chosen = [*calibration.choice.costs], calibration.choice.chosen

    def said_if(**changed):
        costs = {**calibration.choice.costs, other: 0.01, chosen: 0.02}
        choice = calibration.choice.model_copy(update={"costs": costs, **changed})
        score = {**calibration.scorer_provenance, "choice": choice.model_dump()}
        return replace(calibration, scorer_provenance=score).statement

    assert "The chosen one is the best over all these alphas." in said_if()
    assert f"{other} is better over all these alphas, but by less than" in said_if(best=other)
    assert "over all these" not in calibration.statement


def test_by_rank_alone_the_filter_is_a_calibrated_top_k():
    calibration = calibrate(ranked(30), RankScorer(), alpha=0.1)
    k = math.floor(calibration.threshold()) + 1
    assert f"calibrated top k of 'retriever', k = {k}." in calibration.statement
    assert len(ConformalFilter.of(calibration)("new", with_hits(list("abcdef"))).kept) == k


@pytest.mark.parametrize("n", [30, 120])
def test_a_retriever_without_scores_has_words_to_go_by(n):
    rng = np.random.default_rng(3)
    judged = []
    for query in ranked(n):
        town = f"town{rng.integers(10**6)}"
        marks = query.relevant | (rng.random(6) < 0.1)
        texts = [f"{i} {town if marked else ''}" for i, marked in enumerate(marks)]
        judged.append(replace(query, query=f"what of {town}", snippets=with_hits(texts)))
    calibration = calibrate(judged, alpha=0.1)
    assert ("fit" if n == 120 else "zfusion(retriever rank, overlap(stems))") in calibration.scorer
    snippets = with_hits(["a", "b", "town7", "d", "e", "f"])
    assert ConformalFilter.of(calibration)("what of town7", snippets).scores.argmin() == 2


def test_equal_scores_go_by_rank_so_that_not_all_are_kept():
    def tied(i):
        snippets = [Snippet(f"{i} {j}", retrieval_score=0.0 if j else 1.0) for j in range(10)]
        return JudgedQuery(f"query {i}", with_hits(snippets), [j == i % 4 for j in range(10)])

    for n in (30, 90):
        calibration = calibrate([tied(i) for i in range(n)], alpha=0.1)
        filtered = ConformalFilter.of(calibration)("new", tied(0).snippets)
        assert len(filtered.kept) <= 4


# --- what it costs --------------------------------------------------------------------------------


def test_costs_by_hand():
    texts = ["a", "bb", "cccc"]
    relevant = ([True, False, True], [True, False, False])
    fit = FitPart([JudgedQuery("q", texts, marks) for marks in relevant])
    scores = [np.array([1.0, 2, 3]), np.array([2.0, 1, 4])]
    aim = Aim("query-recall", 0.26, n=100)
    curve = fit.curve(scores, aim)
    assert curve.thresholds.tolist() == [1, 2, 3, math.inf]
    assert curve.lost.tolist() == [[0.5, 0.5, 0, 0], [1, 0, 0, 0]]
    assert curve.kept.tolist() == [[1, 3, 7, 7], [2, 3, 3, 7]]
    times = np.array([[1.0, 1.0], [2.0, 0.0]])
    assert fit.cost(curve, aim, times).tolist() == [6 / 14, 1.0]
    assert fit.cost(curve, replace(aim, n=2), times).tolist() == [1.0, 1.0]


# α − (1 − α)/n is 1/9, 1/19 and 2/9
@pytest.mark.parametrize(("alpha", "n", "lost"), [(0.2, 9, 1), (0.1, 19, 1), (0.3, 9, 2)])
def test_a_threshold_that_loses_just_what_is_allowed_is_taken(alpha, n, lost):
    fit = FitPart([JudgedQuery(f"{i}", ["a", "b"], [True, False]) for i in range(n)])
    aim, once = Aim("query-recall", alpha, n=n), np.ones((1, n))

    def cost(lost):  # the relevant snippet of a lost query scores 2, that of another 0
        scores = [np.array([2.0 * (i < lost), 1.0]) for i in range(n)]
        return float(fit.cost(fit.curve(scores, aim), aim, once)[0])

    assert cost(lost) == pytest.approx((n - lost) / (2 * n))
    assert cost(lost + 1) == 1.0  # then it takes the threshold 2, which keeps all


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("n", [5, 9, 46, 200])
def test_what_a_cost_allows_to_lose_is_what_a_finite_threshold_may_lose(n, alpha):
    for delta in (None, 0.1):
        allowed = Aim("all", alpha, delta=delta, n=n).allowed
        for lost in range(n + 1):
            scores = [math.inf if i < lost else 0.0 for i in range(n)]
            queries = ScoredQueries(scores, np.ones(n, dtype=bool), range(n + 1))
            finite = math.isfinite(Units("all", queries, False).threshold(alpha, delta))
            assert finite == (lost / n <= allowed + 1e-12)


def test_fewer_of_those_that_were_retrieved_may_be_lost_if_missed_ones_count():
    judged = [
        JudgedQuery("a", ["x", "y"], [True, True], missed=2),
        JudgedQuery("b", ["x"], [True], missed=0),
        JudgedQuery("c", ["x"], [False], missed=0),
    ]
    fit, aim = FitPart(judged), Aim("query-recall", 0.4)
    assert fit.share_to_lose(aim) == 0.4
    counted = replace(aim, count_missed=True)
    assert fit.share_to_lose(counted) == pytest.approx(0.2)  # 3/4 are found, of which 4/5 are 0.6
    assert fit.share_to_lose(replace(counted, alpha=0.25)) is None


def test_missed_snippets_weigh_if_they_count():
    judged = [
        JudgedQuery("a", ["x", "y"], [True, False], missed=2),
        JudgedQuery("b", ["x"], [False], missed=1),
        JudgedQuery("c", ["x"], [False], missed=0),
    ]
    fit = FitPart(judged)
    assert fit.weights(Aim("snippet", 0.1)).tolist() == [1, 0, 0]
    assert fit.weights(Aim("snippet", 0.1, count_missed=True)).tolist() == [3, 1, 0]
    assert fit.weights(Aim("all", 0.1)).tolist() == [1, 0, 0]
    assert fit.weights(Aim("all", 0.1, count_missed=True)).tolist() == [1, 1, 0]
    curve = fit.curve([np.zeros(2), np.zeros(1), np.zeros(1)], Aim("snippet", 0.1))
    assert curve.lost[0].tolist() == [0.0, 0.0]
    curve = fit.curve([np.zeros(2), np.zeros(1), np.zeros(1)], Aim("all", 0.1, count_missed=True))
    assert curve.lost[0].tolist() == [1.0, 1.0]


# --- a retriever that misses some of what is relevant ---------------------------------------------


def missing_some(n, rng):
    """Queries with a relevant snippet that bm25 ranks better than dense, but misses in 9 %."""
    judged = []
    for i in range(n):
        lists = {}
        for name, strength in (("bm25", 4.5), ("dense", 2.5)):
            scores = rng.normal(size=30) + strength * (np.arange(30) == 0)
            scores[0] -= 20 * (name == "bm25" and rng.random() < 0.09)
            order = np.argsort(-scores)[:20]
            known = [float(s) if name == "dense" else None for s in scores[order]]
            lists[name] = list(zip(order.tolist(), known, strict=True))
        found = fuse(lists)
        snippets = [Snippet(f"text {j}", hits=hits) for j, hits in found.items()]
        judged.append(JudgedQuery(f"query {i}", snippets, [j == 0 for j in found]))
    return judged


@pytest.mark.parametrize(("seed", "n"), [(1, 70), (9, 90), (9, 120), (17, 90), (19, 70)])
def test_a_score_that_misses_too_much_for_a_finite_threshold_is_not_chosen(seed, n):
    judged = missing_some(n, np.random.default_rng(seed))
    assert math.isfinite(calibrate(judged, alpha=0.1).threshold())


def test_a_threshold_that_keeps_everything_is_warned_of_and_stated():
    judged = missing_some(150, np.random.default_rng(0))
    with pytest.warns(UserWarning, match="threshold is infinite"):
        calibration = calibrate(judged, RankScorer("bm25"), alpha=0.05)
    assert calibration.keeps_everything
    short = calibrate(judged[:5], RankScorer("dense"), alpha=0.1)  # too few, which is stated
    assert short.keeps_everything
    chosen = calibrate(judged, alpha=0.1)
    assert chosen.statement.count("every snippet is kept") == 0
    with pytest.warns(UserWarning, match="threshold is infinite"):
        none = calibrate(
            judged, FunctionScorer(lambda q, texts: [math.inf] * len(texts), "inf"), alpha=0.1
        )
    none = replace(none, scorer_provenance=chosen.scorer_provenance)
    assert none.statement.count("every snippet is kept") == 2


def test_one_retriever_competes_once_it_surely_finds_enough():
    n = 40
    judged = [JudgedQuery(f"query {i}", ["x", "y"], [True, False]) for i in range(n)]
    found = [np.array([0.0, math.inf])] * n
    lost = [np.array([math.inf, 0.0])]
    fit, aim = FitPart(judged), Aim("query-recall", 0.1, n=1000)
    assert not fit.sure(found, aim)  # 0.99 ** (1 / 40) = 0.891 < 0.9
    assert fit.sure(found, replace(aim, alpha=0.12))
    assert not fit.sure([*found[1:], *lost], replace(aim, alpha=0.12))
    assert fit.sure([np.zeros(2)] * n, aim)


# --- errors, and queries that must not come back --------------------------------------------------


def test_nothing_to_score_by_is_an_error_that_says_what_to_do():
    plain = [JudgedQuery(f"query {i}", ["a", "b"], [True, False]) for i in range(80)]
    with pytest.raises(ValueError, match=r"judge_retriever.*scorer="):
        calibrate(plain, alpha=0.1)
    with pytest.raises(
        ValueError, match="none of the 7 judged queries is retrieved yet; .* judge_retriever"
    ):
        calibrate([JudgedQuery(f"query {i}", [], []) for i in range(7)], alpha=0.1)
    for scorers in (None, [], FunctionScorer(lambda query, texts: [1] * len(texts), "one")):
        with pytest.raises(ValueError, match="judged is empty"):
            calibrate([], scorers, alpha=0.1)
    with pytest.raises(ValueError, match="query 3"):
        calibrate([*JUDGED[:60], *plain[3:4]], alpha=0.1)


@pytest.mark.parametrize("scorer", ["learned", 0.1])
def test_what_is_no_scorer_is_named_whole(scorer):
    with pytest.raises(TypeError, match=f"^scorer is {scorer!r}; .* leave it out"):
        calibrate(JUDGED[:9], scorer, alpha=0.1)


def test_given_scorers_need_different_names():
    with pytest.raises(ValueError, match="dots"):
        calibrate(JUDGED, [Counting(), Counting()], alpha=0.1)
    with pytest.raises(TypeError, match="scorer"):
        calibrate(JUDGED, [3], alpha=0.1)


def test_a_query_of_the_fit_part_does_not_evaluate():
    calibration = calibrate(JUDGED, alpha=0.1)
    scorer = ConformalFilter.of(calibration).scorer
    fit = split(JUDGED).fit
    assert all(map(calibration.chosen_on, fit))
    assert not any(map(calibration.chosen_on, NEW))
    scored = [replace(q, id=fit[0].id) for q in score_queries(scorer, NEW[:1])]
    rng = np.random.default_rng(0)
    for measured in (
        lambda: evaluate(calibration, scored),
        lambda: diagnose(calibration, scored),
        lambda: compare(calibration, calibration, scored, rng=rng),
    ):
        with pytest.raises(ValueError, match=fit[0].id):
            measured()
    assert evaluate(calibration, score_queries(scorer, NEW)).held_out_verified
    without_ids = calibrate([replace(query, id=None) for query in JUDGED], alpha=0.1)
    assert without_ids.n_without_id == len(JUDGED)
    assert all(map(without_ids.chosen_on, fit))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("costs", {"a": "b"}),
        ("costs", {"other": 0.5}),  # without that of the chosen one
        ("n_fit", {"a": "b"}),
        ("fit_ids", {"a": "b"}),
        ("chosen", {"a": "b"}),
    ],
)
def test_a_choice_of_another_shape_is_an_error_that_names_its_field(field, value):
    calibration = calibrate(JUDGED, alpha=0.1)
    provenance = calibration.scorer_provenance
    choice = {**provenance["choice"], field: value}
    broken = replace(calibration, scorer_provenance={**provenance, "choice": choice})
    with pytest.raises(ValueError, match=field):
        Calibration.from_json(broken.to_json())


def test_groups_keep_their_thresholds():
    grouped = [replace(query, group="ab"[i % 2]) for i, query in enumerate(JUDGED)]
    calibration = calibrate(grouped, alpha=0.1, by_group=True)
    assert sum(calibration.n_units.values()) == 80
    assert all(math.isfinite(calibration.threshold(group)) for group in "ab")


def test_hits_of_a_retriever_that_misses_a_query_only_compete_fused():
    found = [(Hit("dense", i, 1.0 - i),) for i in range(len(JUDGED[0].snippets))]
    snippets = [replace(s, hits=of) for s, of in zip(JUDGED[0].snippets, found, strict=True)]
    alone = replace(JUDGED[0], snippets=snippets)
    scorers = [scorer.name for scorer in from_hits([alone, *JUDGED[1:]], "query-recall")]
    assert scorers[:2] == ["fusion(bm25, dense)", "rank(dense)"]  # the fusion is the simplest
    assert "rank(bm25)" not in scorers


def test_an_id_that_occurs_in_both_parts_is_an_error():
    fit, calibration = split(JUDGED)
    again = [replace(calibration[0], id=fit[0].id), *fit, *calibration[1:]]
    with pytest.raises(ValueError, match=fit[0].id):
        calibrate(again, alpha=0.1)
