"""The choice of a query score: costs by hand, folds, what wins, and what a default is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from lookup import LookupScorer, QueryFunction

from conformal_retrievers.calibration.gate_choice import (
    can_learn,
    candidates_of,
    choose_gate,
    costs_of,
    default_gate,
    folds_of,
    pick,
    resamples,
)
from conformal_retrievers.data.hits import Hit
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.scoring import (
    BestScore,
    LearnedQueryScorer,
    RetrievalScorer,
    score_query,
)
from tests.scoring.test_learned_gate import drawn


def ones(*sizes):
    return [np.ones((1, n)) for n in sizes]


def asked(name, scores, answered=True):
    """A query with these similarities of one retriever; the first snippet answers it."""
    snippets = [
        Snippet(f"{name} {i}", hits=(Hit("dense", i, s),)) for i, s in enumerate(map(float, scores))
    ]
    relevant = [answered and i == 0 for i in range(len(snippets))]
    return JudgedQuery(name, snippets, relevant, answerable=answered)


def number(name, values):
    return QueryFunction(lambda query, texts: values[query], name)


# --- costs ----------------------------------------------------------------------------------------


def test_a_cost_by_hand():
    # ⌈4 · 0.75⌉ = 3: the threshold is 0.3. One of 3 and 2 of 2 pass.
    scores = [np.array([0.2, 0.3, 0.1]), np.array([0.3, 0.4, 0.5]), np.array([-math.inf, 0.0])]
    [cost] = costs_of(scores, ones(3, 3, 2), alpha=0.25)
    assert cost == pytest.approx(math.sqrt(1.5 / 4 * 2.5 / 3))
    # Too few answerable queries silence none of them.
    [cost] = costs_of([np.array([0.1, 0.2]), np.array([0.15, 0.3])], ones(2, 2), alpha=0.01)
    assert cost == pytest.approx(1.5 / 3)


def test_a_resample_costs_what_the_queries_that_it_draws_cost():
    rng = np.random.default_rng(0)
    scores = [rng.normal(size=40), rng.normal(1, 1, size=30), rng.normal(2, 1, size=20)]
    times = [rng.multinomial(len(s), np.full(len(s), 1 / len(s))).astype(float) for s in scores]
    drawn_again = [np.repeat(s, t.astype(int)) for s, t in zip(scores, times, strict=True)]
    one = costs_of(scores, [t[np.newaxis] for t in times], alpha=0.1)
    other = costs_of(drawn_again, ones(40, 30, 20), alpha=0.1)
    assert one == pytest.approx(other)


def test_a_question_with_and_without_its_answers_is_in_one_fold_and_drawn_together():
    answerable, unanswerable = drawn(13)
    kinds = [answerable, *unanswerable.values()]
    folds = folds_of(kinds)
    assert folds[0].tolist() == folds[1].tolist()
    assert np.ptp(np.bincount(np.concatenate([folds[0], folds[2]]))) <= 1
    drawn_times = resamples([[q.query for q in queries] for queries in kinds])
    assert (drawn_times[0] == drawn_times[1]).all()
    assert (drawn_times[0][0] == 1).all()
    assert np.ptp(drawn_times[0]) > 0
    assert ((drawn_times[0] + drawn_times[2]).sum(axis=1) == 26).all()


# --- what wins ------------------------------------------------------------------------------------


def test_a_score_that_cannot_see_an_easy_source_does_not_win_by_the_mean():
    # Of 100, "blind" passes 40 hard and 30 easy ones; "sees" 75 hard and none of the easy ones.
    answerable = [asked(f"q{i}", [0.5]) for i in range(100)]
    hard = [asked(f"h{i}", [0.5], answered=False) for i in range(100)]
    easy = [asked(f"e{i}", [0.5], answered=False) for i in range(100)]

    def values(n_hard, n_easy):
        passed = {q.query: 0.0 for q in answerable}
        passed |= {q.query: float(i >= n_hard) for i, q in enumerate(hard)}
        return passed | {q.query: float(i >= n_easy) for i, q in enumerate(easy)}

    blind, sees = number("blind", values(40, 30)), number("sees", values(75, 0))
    chosen = choose_gate(answerable, {"hard": hard, "easy": easy}, [blind, sees], alpha=0.05)
    assert chosen.costs["blind"] == pytest.approx(math.sqrt(40.5 / 101 * 30.5 / 101))
    assert chosen.costs["sees"] == pytest.approx(math.sqrt(75.5 / 101 * 0.5 / 101))
    assert chosen.costs["sees"] < chosen.costs["blind"]
    assert "blind" not in (chosen.chosen, chosen.best)


def test_what_is_learned_from_hits_wins_if_nothing_is_better():
    rng = np.random.default_rng(0)
    answerable = [asked(f"q{i}", [0.9 + rng.normal(0, 0.01), 0.1]) for i in range(40)]
    others = [asked(f"o{i}", [0.2 + rng.normal(0, 0.01), 0.1], False) for i in range(40)]
    chosen = choose_gate(answerable, {"others": others}, [], alpha=0.1)
    assert chosen.costs["best(retrieval(dense, higher))"] == pytest.approx(0.5 / 41)
    assert chosen.chosen == "learned(hits of dense)"
    assert chosen.scorer == LearnedQueryScorer.fit(answerable, {"others": others})


def test_a_simple_score_wins_if_it_is_clearly_better():
    # The verdict is always right, and whatever is learned from the hits is noise.
    rng = np.random.default_rng(0)
    answerable = [asked(f"q{i}", rng.random(3)) for i in range(40)]
    others = [asked(f"o{i}", rng.random(3), answered=False) for i in range(40)]
    verdict = QueryFunction(lambda query, texts: float(query[0] == "o"), "verdict")
    chosen = choose_gate(answerable, {"others": others}, [verdict], alpha=0.1)
    assert chosen.chosen == "verdict"
    assert chosen.scorer is verdict


def test_what_is_learned_wins_if_it_is_better():
    answerable, unanswerable = drawn(60)
    removed = {"removed": unanswerable["removed"]}
    hits = choose_gate(answerable, removed, [], alpha=0.1)
    # A verdict that is right nine times of ten, and independent of the hits.
    rng = np.random.default_rng(1)
    verdicts = {
        (q.query, *(s.text for s in q.snippets)): float(unanswered != (rng.random() < 0.1))
        for unanswered, queries in enumerate([answerable, removed["removed"]])
        for q in queries
    }
    verdict = QueryFunction(lambda query, texts: verdicts[(query, *texts)], "verdict")
    chosen = choose_gate(answerable, removed, [verdict], alpha=0.1)
    assert chosen.best == "learned(hits of bm25, hits of dense, verdict)"
    assert chosen.costs[chosen.best] < min(hits.costs.values())
    assert isinstance(chosen.scorer, LearnedQueryScorer)
    assert chosen.scorer.parts == (verdict,)


def test_noise_is_not_preferred_to_what_is_simpler():
    logs = np.array([[0.0, 0.0, 0.0], [-0.05, 0.3, -0.3], [-0.3, -0.2, -0.4]])
    assert pick(logs) == (2, 2)  # standard errors of 0.1 and 0.2
    logs[1, 0] = -0.15
    assert pick(logs) == (2, 1)


def test_every_given_scorer_scores_a_query_once():
    answerable, unanswerable = drawn(25)
    calls = []

    class Counted(LookupScorer):
        def score(self, query, snippets):
            calls.append(("snippets", query, snippets))
            return [len(s.text) for s in snippets]

    def verdict(query, texts):
        calls.append(("query", query, tuple(texts)))
        return 0.0

    given = [Counted({}, "counted"), QueryFunction(verdict, "verdict")]
    choose_gate(answerable, unanswerable, given, alpha=0.1)
    assert len(calls) == 2 * 75


def test_the_chosen_score_has_the_users_own_scorers_inside():
    answerable, unanswerable = drawn(25)
    everything = [*answerable, *unanswerable["removed"]]
    gold = LookupScorer(
        {s.text: float(s.id != "gold") for q in everything for s in q.snippets}, "gold"
    )
    bare = [
        JudgedQuery(q.query, [s.text for s in q.snippets], q.relevant, answerable=q.answerable)
        for q in everything
    ]
    chosen = choose_gate(bare[:25], {"removed": bare[25:]}, [gold], alpha=0.1)
    assert chosen.scorer == BestScore(gold)
    assert chosen.scorer.parts[0] is gold


def test_those_that_need_a_given_scorer_come_last():
    answerable, unanswerable = drawn(20)
    kinds = [answerable, *unanswerable.values()]
    verdict = number("verdict", {})
    names = [c.name for c in candidates_of(kinds, [LookupScorer({}, "rating"), verdict])]
    assert names == [
        "learned(hits of bm25, hits of dense)",
        "best(retrieval(bm25, higher))",
        "best(retrieval(dense, higher))",
        "verdict",
        "best(rating)",
        "learned(hits of bm25, hits of dense, verdict)",
        "learned(hits of bm25, hits of dense, rating)",
        "learned(hits of bm25, hits of dense, rating, verdict)",
    ]


def test_too_few_queries_teach_nothing():
    answerable, unanswerable = drawn(19)
    assert not can_learn([answerable, *unanswerable.values()])
    assert not any(c.scorer is None for c in candidates_of([answerable], []))
    chosen = choose_gate(answerable, unanswerable, [], alpha=0.1)
    assert not any(name.startswith("learned") for name in chosen.costs)


# --- the default ----------------------------------------------------------------------------------


def test_the_default_is_the_first_scorer_or_the_retriever_whose_best_stands_out_most():
    answerable, _ = drawn(30)
    assert default_gate(answerable, []) == BestScore(RetrievalScorer("dense", True))
    rating, verdict = LookupScorer({}, "rating"), number("verdict", {})
    assert default_gate(answerable, [rating, verdict]) == BestScore(rating)
    assert default_gate(answerable, [verdict, rating]) is verdict
    distances = [asked(f"q{i}", [0.1 + i / 100, 0.5]) for i in range(5)]
    gate = default_gate(distances, [])
    assert gate == BestScore(RetrievalScorer("dense", False))
    assert score_query(gate, "q", distances[2].snippets) == pytest.approx(0.12)
    plain = [JudgedQuery("q", ["a"], [True])]
    with pytest.raises(ValueError, match="scorer"):
        default_gate(plain, [])
    with pytest.raises(ValueError, match="scorer"):
        choose_gate(plain, {"u": [JudgedQuery("u", ["a"], [False])]}, [], alpha=0.1)
