"""The learned query score: its features by hand, its fit, its provenance, what it does not know."""

import asyncio
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lookup import LENGTH, LONGEST, LookupScorer, QueryFunction

from conformal_retrievers import scoring
from conformal_retrievers.data.hits import Hit, fuse
from conformal_retrievers.data.queries import JudgedQuery, Snippet, as_snippets
from conformal_retrievers.scoring.hit_features import Sources, sources_of
from conformal_retrievers.scoring.learned.prior import prior_of
from conformal_retrievers.scoring.learned.queries import fitted_queries, table_of, weights_of
from conformal_retrievers.scoring.learned.query_features import (
    AWAY,
    columns,
    in_units,
    query_features,
    units_of,
)
from conformal_retrievers.scoring.learned.regression import most_probable
from conformal_retrievers.scoring.registry import needs, query_scorer_of
from conformal_retrievers.scoring.scorer import check_not_fitted_on

DENSE = Sources((("dense", "similarity"),), (), "none")
HYBRID = Sources((("bm25", "similarity"), ("dense", "similarity")), (), "none")


def fit(answerable, unanswerable, scorers=()):
    """The scorer of the sources that the queries have, fitted to all of them."""
    kinds = [[*answerable], *map(list, unanswerable.values())]
    sources = sources_of([asked for queries in kinds for asked in queries])
    return fitted_queries(sources, [*scorers], *kinds)


def query(name, dense, bm25, *, relevant=None):
    """A query whose snippets have these similarities, by key, in each list."""
    lists = {"dense": [*dense.items()], "bm25": [*bm25.items()]}
    found = fuse({n: sorted(items, key=lambda item: -item[1]) for n, items in lists.items()})
    snippets = [Snippet(f"text {key}", id=key, hits=hits) for key, hits in found.items()]
    answers = [key == relevant for key in found]
    return JudgedQuery(name, snippets, answers, answerable=relevant is not None)


def drawn(n, seed=0):
    """Queries with an answer, the same without it, and others from which all is further away."""
    rng = np.random.default_rng(seed)

    def one(name, answered, away):
        dense = {f"s{i}": float(x) for i, x in enumerate(rng.normal(0.3 - away, 0.1, 12))}
        bm25 = {f"s{i + 4}": float(x) for i, x in enumerate(rng.gamma(3, 2, 12))}
        if answered:
            dense["gold"], bm25["gold"] = 0.7 + rng.normal(0, 0.1), 14 + rng.normal(0, 3)
        return query(name, dense, bm25, relevant="gold" if answered else None)

    answerable = [one(f"q{i}", True, 0) for i in range(n)]
    removed = [one(f"q{i}", False, 0) for i in range(n)]
    return answerable, {"removed": removed, "others": [one(f"o{i}", False, 0.4) for i in range(n)]}


ANSWERABLE, UNANSWERABLE = drawn(20)
LEARNED = fit(ANSWERABLE, UNANSWERABLE)


def named(sources, row):
    return dict(zip(map(str, columns(sources)), row, strict=True))


# --- features -------------------------------------------------------------------------------------


def test_the_features_of_two_retrievers_by_hand():
    asked = query(
        "Red wine and the red river",  # three words, without "and" and "the"
        {"a": 0.9, "b": 0.5, "c": 0.25},
        {"b": 7.0, "d": 4.0},
    )
    snippets = [replace(s, text=f"{s.id} WINES" if s.id == "c" else "…") for s in asked.snippets]
    found = named(HYBRID, query_features(HYBRID, asked.query, [], as_snippets(snippets)))
    expected = {
        "best by bm25": -7.0,
        "last by bm25": -4.0,
        "fall by bm25": 3 / (1 + math.log(4)),
        "best elsewhere by bm25": math.log(2),  # b is the second of dense
        "best by dense": -0.9,
        "last by dense": -0.25,
        "fall by dense": 0.65 / (1 + math.log(4)),
        "best elsewhere by dense": math.log(3),  # a is behind the two of BM25
        "words found": 1 / 3,
        "words of one": 1 / 3,
        "intercept": 1.0,
    }
    assert list(found) == list(expected)
    assert found == pytest.approx(expected, rel=1e-12)


def test_words_are_sought_in_the_first_five_snippets():
    texts = ["red", "…", "…", "…", "WINES", "ΟΔΟΣ", "ΟΔΟΣ"]
    for scores, share in (([1, 2, 3, 4, 5, 6, 7], 2 / 3), ([1, 2, 3, 4, 5, 5, 7], 1)):
        hits = [(Hit("dense", i, -float(s)),) for i, s in enumerate(scores)]
        snippets = [Snippet(t, hits=h) for t, h in zip(texts, hits, strict=True)]
        found = query_features(DENSE, "the red wine and the οδος", [], as_snippets(snippets[::-1]))
        assert found[-3] == pytest.approx(share)  # those that share the fifth place count too
        assert found[-2] == pytest.approx(1 / 3)  # no snippet has two of them


@given(st.randoms(use_true_random=False))
def test_the_order_of_the_snippets_does_not_count(random):
    asked = random.choice([*ANSWERABLE, *UNANSWERABLE["removed"]])
    shuffled = random.sample(asked.snippets, len(asked.snippets))
    for sources in (HYBRID, DENSE):
        one = query_features(sources, "text s1", [], asked.retrieved)
        other = query_features(sources, "text s1", [], as_snippets(shuffled))
        assert one.tobytes() == other.tobytes()


# --- the fit --------------------------------------------------------------------------------------


def test_it_is_the_most_probable_one_of_the_prior_and_the_queries():
    answerable, unanswerable = drawn(12)
    own = columns(HYBRID)
    tables = [table_of(HYBRID, [], [], queries) for queries in [answerable, *unanswerable.values()]]
    table = in_units(own, units_of(own, tables[0]), np.concatenate(tables))
    # All answerable queries weigh as much as all others, and each source as much as another.
    weights = np.array([*[1 / 12] * 12, *[1 / 24] * 24]) * 18
    mean, sd = prior_of("queries").of(own)
    expected = most_probable(table, np.arange(36) < 12, mean, sd, weights)
    np.testing.assert_allclose(fit(answerable, unanswerable).coefficients, expected, rtol=1e-6)
    assert weights_of([10, 8, 0, 20]).tolist() == pytest.approx(
        (np.array([*[1 / 10] * 10, *[1 / 16] * 8, *[1 / 40] * 20]) * 19).tolist()
    )


def test_without_queries_of_both_kinds_the_prior_alone_scores():
    alone = fit(ANSWERABLE, {})
    assert alone.coefficients == tuple(prior_of("queries").of(columns(HYBRID))[0])
    yes = [scoring.score_query(alone, q.query, q.snippets) for q in ANSWERABLE]
    for queries in UNANSWERABLE.values():
        no = [scoring.score_query(alone, q.query, q.snippets) for q in queries]
        assert np.mean(np.array(no) > np.quantile(yes, 0.9)) > 0.7


@pytest.mark.parametrize("times", [2.0**-7, 2.0**10])
def test_the_scale_of_a_retriever_s_scores_does_not_count(times):
    def scaled(s):
        return replace(s, hits=tuple(h._replace(score=(h.score + 3) * times) for h in s.hits))

    others = [replace(q, snippets=[*map(scaled, q.snippets)]) for q in ANSWERABLE]
    falls = [
        np.diff([scoring.score_query(learned, "q", q.snippets) for q in queries])
        for queries in (ANSWERABLE, others)
        for learned in [fit(queries, {})]
    ]
    np.testing.assert_allclose(*falls, rtol=1e-6)


def test_queries_without_a_relevant_snippet_do_not_count_as_answerable():
    lost = [replace(q, relevant=(False,) * len(q.snippets), missed=1) for q in ANSWERABLE[:5]]
    assert fit([*ANSWERABLE, *lost], UNANSWERABLE) == LEARNED


def test_scorers_of_snippets_and_of_queries_are_features():
    learned = fit(ANSWERABLE, UNANSWERABLE, [LONGEST, LENGTH])
    assert learned.parts == (LENGTH, LONGEST)
    assert "scorer's best by length" in learned.provenance["coefficients"]
    assert [*learned.provenance["coefficients"]][-1] == "scorer's number by longest"
    asked = ANSWERABLE[0]
    [row] = table_of(learned.sources, [LENGTH], [LONGEST], [asked])
    own = columns(learned.sources, ["longest"])
    expected = -float((in_units(own, learned.units, row) * learned.coefficients).sum())
    assert scoring.score_query(learned, asked.query, asked.snippets) == expected
    assert asyncio.run(scoring.ascore_query(learned, asked.query, asked.snippets)) == expected


def test_scorers_alone_are_enough():
    answerable = [JudgedQuery(f"q{i}", ["good", "bad"], [True, False]) for i in range(3)]
    unanswerable = [JudgedQuery(f"u{i}", ["bad", "bad"], [False, False]) for i in range(3)]
    learned = fit(answerable, {"u": unanswerable}, [LookupScorer({"good": 0.0, "bad": 1.0})])
    assert learned.retrievers == ()
    scores = [learned.score_query("q", [Snippet(one), Snippet("bad")]) for one in ("good", "bad")]
    assert scores[0] < scores[1]


def test_what_cannot_be_fitted_is_an_error():
    with pytest.raises(ValueError, match="scorers are"):
        fit(ANSWERABLE, UNANSWERABLE, [LONGEST, LONGEST])
    plain = JudgedQuery("q", ["a"], [True])
    with pytest.raises(ValueError, match="hits"):
        fit([plain], {"u": [replace(plain, relevant=(False,))]})


# --- what is unknown ------------------------------------------------------------------------------


def test_a_retriever_that_found_nothing_speaks_against_an_answer():
    asked = drawn(1)[0][0]
    dense = [
        replace(s, hits=tuple(h for h in s.hits if h.retriever == "dense"))
        for s in asked.snippets
        if any(h.retriever == "dense" for h in s.hits)
    ]
    alone = scoring.score_query(LEARNED, asked.query, dense)
    assert alone > scoring.score_query(LEARNED, asked.query, asked.snippets)
    row = query_features(LEARNED.sources, asked.query, [], as_snippets(dense))
    assert np.isnan(row).sum() == 4  # best, last, fall and best elsewhere by bm25
    filled = named(HYBRID, in_units(columns(HYBRID), LEARNED.units, row))
    assert [filled[f"{feature} by bm25"] for feature in ("best", "last", "fall")] == [AWAY, AWAY, 0]


def test_it_is_unknown_if_a_part_does_not_know():
    shy = QueryFunction(lambda query, texts: None if query == "new" else 0.5, "shy")
    learned = fit(ANSWERABLE, UNANSWERABLE, [shy])
    assert math.isfinite(scoring.score_query(learned, "q1", ANSWERABLE[1].snippets))
    assert math.isnan(scoring.score_query(learned, "new", ANSWERABLE[1].snippets))


# --- provenance -----------------------------------------------------------------------------------


def test_it_is_made_again_bit_for_bit_from_its_provenance():
    learned = fit(ANSWERABLE, UNANSWERABLE, [LENGTH, LONGEST])
    stored = json.loads(json.dumps(learned.provenance))
    again = query_scorer_of(stored, [LONGEST, LENGTH])
    assert (again, again.name) == (learned, learned.name)
    assert needs(stored) == ["length", "longest"]
    assert scoring.retrievers_of(learned) == ("bm25", "dense")
    for asked in ANSWERABLE:
        scores = [one.score_query(asked.query, asked.snippets) for one in (learned, again)]
        assert scores[0] == scores[1]


def test_it_was_fitted_on_the_queries_of_both_kinds():
    for asked in (ANSWERABLE[3], UNANSWERABLE["others"][3]):
        with pytest.raises(ValueError, match="fitted"):
            check_not_fitted_on(LEARNED, [asked])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("version", 1), ("scorers", ["other"]), ("query_scorers", [])),
        *(("middles", [0.0]), ("scales", [0.0] * 3), ("coefficients", {"one": 1.0})),
    ],
)
def test_a_provenance_that_was_changed_is_an_error(name, value):
    learned = fit(ANSWERABLE, UNANSWERABLE, [LONGEST])
    with pytest.raises(ValueError, match=name):
        scoring.LearnedQueryScorer.from_provenance({**learned.provenance, name: value}, [LONGEST])
