"""The learned scorer: its features by hand, its fit against scikit-learn, and its provenance."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lookup import LookupScorer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

from conformal_retrievers import JudgedQuery, LearnedScorer, Snippet
from conformal_retrievers.data.hits import Hit
from conformal_retrievers.scoring.combine import z_scores
from conformal_retrievers.scoring.features import feature_names, features
from conformal_retrievers.scoring.regression import C, focused, regress, weights_of
from conformal_retrievers.scoring.scorer import query_digest, relative_to_query
from conformal_retrievers.scoring.sources import Sources, numbers_of, sources_of
from conformal_retrievers.scoring.stages import FOLDS, standing_names, with_standing
from conformal_retrievers.scoring.trees import grow

BEFORE = "log number expected before"

CONTEXTS = ("none", "document", "document+position")


def by_name(sources, scores, snippets):
    known, table, *_ = features(sources, [np.array(x, dtype=float) for x in scores], snippets)
    columns = feature_names(sources)
    assert table.shape == (known.sum(), len(columns))
    assert len(set(columns)) == len(columns)
    return dict(zip(columns, table.T, strict=True))


def of_scores(scores, snippets, context):
    return by_name(Sources((), ("s",), context), [scores], snippets)


# --- features -------------------------------------------------------------------------------------


def test_the_features_of_scores_by_hand():
    snippets = [Snippet("a"), Snippet("bbb"), Snippet("c"), Snippet("dddd")]
    columns = of_scores([0.5, 0.25, 0.75, 0.5], snippets, "none")
    sd = math.sqrt(2 * 0.25**2 / 4)
    expected = {
        "score by s": [0.5, 0.25, 0.75, 0.5],
        "gap to best by s": [0.25, 0, 0.5, 0.25],
        "z-score by s": [0, -0.25 / sd, 0.25 / sd, 0],
        "share of best by s": [0.5, 1, 0, 0.5],
        "log rank by s": np.log([2.5, 1, 4, 2.5]),
        "log length": np.log([2, 4, 2, 5]),
        "log number of snippets": [math.log(4)] * 4,
    }
    assert list(columns) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(columns[name], values, rtol=1e-14, atol=1e-14, err_msg=name)


def test_the_features_of_documents_and_positions_by_hand():
    # Document x at 10, 30, 40 and 70, y at 5 and 6, z once; not in their order.
    where = [("y", 6), ("x", 30), ("x", 10), ("z", 0), ("x", 70), ("y", 5), ("x", 40)]
    snippets = [Snippet("text", document=d, position=p) for d, p in where]
    scores = [0.42, 0.3, 0.1, 0.98, 0.95, 0.4, 0.36]  # y is better on average
    columns = of_scores(scores, snippets, "document+position")
    of_documents = {
        "best of document by s": [0.4, 0.1, 0.1, 0.98, 0.1, 0.4, 0.1],
        "mean of document by s": [0.41, 0.4275, 0.4275, 0.98, 0.4275, 0.41, 0.4275],
        "gap to best of document by s": [0.02, 0.2, 0, 0, 0.85, 0, 0.26],
        "log rank of document by s": np.log([2, 1, 1, 3, 1, 2, 1]),
        "log size of document": np.log([2, 4, 4, 1, 4, 2, 4]),
    }
    of_positions = {
        "score two before by s": [0.98, 0.98, 0.98, 0.98, 0.3, 0.98, 0.1],
        "score before by s": [0.4, 0.1, 0.98, 0.98, 0.36, 0.98, 0.3],
        "score after by s": [0.98, 0.36, 0.3, 0.98, 0.98, 0.42, 0.95],
        "score two after by s": [0.98, 0.95, 0.36, 0.98, 0.98, 0.98, 0.98],
        "relative position": [1, 1 / 3, 0, 0, 1, 0, 2 / 3],
    }
    for name, values in (of_documents | of_positions).items():
        np.testing.assert_allclose(columns[name], values, rtol=1e-12, atol=1e-15, err_msg=name)
    documents = of_scores(scores, snippets, "document")
    assert set(columns) - set(documents) == set(of_positions)
    assert set(documents) - set(of_scores(scores, snippets, "none")) == set(of_documents)
    for name, values in documents.items():
        assert values.tolist() == columns[name].tolist()


def test_snippets_at_one_position_are_one_neighbour():
    twice = Snippet("b", document="d", position=1)
    snippets = [Snippet("a", document="d", position=0), twice, twice]
    columns = of_scores([0.1, 0.4, 0.4], snippets, "document+position")
    assert columns["score after by s"].tolist() == [0.4, 0.4, 0.4]
    assert columns["score before by s"].tolist() == [0.4, 0.1, 0.1]
    assert columns["relative position"].tolist() == [0, 1, 1]


def test_the_features_of_hits_by_hand():
    # Similarities of a that fall with the rank, ranks only of b; b did not find the last snippet.
    hits = [
        (Hit("a", 1, 0.6), Hit("b", 0)),
        (Hit("a", 0, 0.9), Hit("b", 4)),
        (Hit("b", 2),),
        (Hit("a", 3, 0.5),),
    ]
    snippets = [Snippet("x", hits=h) for h in hits]
    sources = sources_of([JudgedQuery("q", snippets, [True, False, False, False])])
    assert sources == Sources((("a", "similarity"), ("b", "rank")), (), "none")
    columns = by_name(sources, [], snippets)
    fusion = [-1 / 62 - 1 / 61, -1 / 61 - 1 / 65, -1 / 63, -1 / 64]
    log_b = np.log([1, 5, 3, 6])
    expected = {
        "score by a": [-0.6, -0.9, -0.5, -0.5],
        "score by b": log_b,
        "score by fusion": fusion,
        "gap to best by a": [0.3, 0, 0.4, 0.4],
        "gap to best by fusion": np.array(fusion) - fusion[0],
        "share of best by a": [0.25, 1, 0, 0],
        "log rank by a": np.log([2, 1, 5, 4]),
        "log rank by b": log_b,
        "log rank by fusion": np.log([1, 2, 3, 4]),
        "found by a": [1, 1, 0, 1],
        "found by b": [1, 1, 1, 0],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(columns[name], values, rtol=1e-12, atol=1e-15, err_msg=name)
    z = columns["z-score by a"]
    assert (abs(z.mean()) < 1e-12, abs(z.std() - 1) < 1e-12, z.argmin()) == (True, True, 1)


def test_a_retriever_that_found_nothing_tells_the_snippets_of_a_query_nothing():
    sources = Sources((("a", "similarity"), ("b", "similarity")), (), "none")
    columns = by_name(sources, [], [Snippet("x", hits=(Hit("a", i, -i),)) for i in range(3)])
    zeros = ("score", "gap to best", "z-score", "log rank", "found")
    found = {name: columns[f"{name} by b"].tolist() for name in zeros}
    assert all(values == [0, 0, 0] for values in found.values())
    assert columns["share of best by b"].tolist() == [1, 1, 1]


numbers = st.floats(-100, 100).map(lambda x: round(x, 2))
snippets_of_a_query = st.lists(
    st.tuples(
        numbers,
        st.one_of(st.none(), numbers),
        st.sampled_from("xyz"),
        st.integers(0, 4),
        st.sampled_from("ab"),
    ),
    min_size=1,
    max_size=8,
)


@given(snippets_of_a_query, st.randoms(use_true_random=False), st.sampled_from(CONTEXTS))
def test_features_do_not_depend_on_the_order_of_snippets(rows, random, context):
    def table(rows):
        snippets = [
            Snippet(
                text,
                document=document,
                position=position,
                hits=(Hit("dense", int(score + 100), score),) + (Hit("lexical", 0, other),) * found,
            )
            for score, other, document, position, text in rows
            for found in [other is not None]
        ]
        kinds = (("dense", "distance"), ("lexical", "similarity"))
        sources = Sources(kinds, ("s",), context)
        found = features(sources, [np.array([r[0] for r in rows])], snippets)
        assert found.known.all()
        return with_standing(found, found.table[:, 0] / 50)

    order = list(range(len(rows)))
    random.shuffle(order)
    assert np.isfinite(table(rows)).all()
    assert table([rows[i] for i in order]).tolist() == table(rows)[order].tolist()


# --- the fit --------------------------------------------------------------------------------------


def noisy(queries=60, n=8):
    """Return judged queries, and two scorers that each know a little of what is relevant."""
    rng = np.random.default_rng(3)
    scores, judged = [{}, {}], []
    for i in range(queries):
        relevant = rng.random(n) < 0.3
        snippets = [Snippet(f"{i}.{j}", document=f"{i}.{j // 4}", position=j) for j in range(n)]
        for table, noise in zip(scores, (1.0, 1.5), strict=True):
            values = rng.normal(-relevant.astype(float), noise) + rng.normal()
            table |= {s.text: float(v) for s, v in zip(snippets, values, strict=True)}
        judged.append(JudgedQuery(f"query {i}", snippets, relevant.tolist(), id=f"q{i}"))
    return judged, [LookupScorer(scores[0], "one"), LookupScorer(scores[1], "two")]


@pytest.fixture(scope="module")
def fitted():
    judged, scorers = noisy()
    return LearnedScorer.fit(judged[:30], scorers), judged, scorers


def of_query(scorers, query):
    sources = Sources((), ("one", "two"), "document+position")
    scores = [s.score(query.query, query.snippets) for s in scorers]
    return features(sources, scores, query.snippets)


def stacked(scorers, queries):
    """Return features and judgements of the queries, and the weights of these."""
    tables = [of_query(scorers, query).table for query in queries]
    relevant = [np.array(query.relevant) for query in queries]
    return np.vstack(tables), np.concatenate(relevant), weights_of(relevant)


def test_the_first_stage_is_the_regression_that_another_method_finds(fitted):
    learned, judged, scorers = fitted
    x, y, _ = stacked(scorers, judged[:30])
    spread = x.std(axis=0)
    spread[spread < 1e-12] = 1
    # A query's relevant snippets weigh 1 in all, and so do its irrelevant ones.
    weights = np.array([1 / q.relevant.count(r) for q in judged[:30] for r in q.relevant])
    model = LogisticRegression(C=C, solver="newton-cg", tol=1e-10, max_iter=10_000)
    model.fit((x - x.mean(axis=0)) / spread, y, sample_weight=weights / weights.mean())
    for query in judged[30:]:
        table = of_query(scorers, query).table
        expected = model.decision_function((table - x.mean(axis=0)) / spread)
        found = learned.stages.first.log_odds(table)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_constant_features_tell_nothing_and_give_no_warning():
    relevant = np.arange(240) < 84
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        regression = regress(np.full((240, 2), 7.0), relevant, weights_of([relevant]))
    assert regression.coefficients == (0.0, 0.0)
    assert regression.intercept == pytest.approx(0, abs=1e-9)  # both kinds weigh the same


def second_tables(scorers, queries):
    """Return the features of the second stage, from regressions that did not see the query."""
    tables = []
    for i, query in enumerate(queries):
        others = [other for j, other in enumerate(queries) if j % FOLDS != i % FOLDS]
        found = of_query(scorers, query)
        tables.append(
            with_standing(found, regress(*stacked(scorers, others)).log_odds(found.table))
        )
    return np.vstack(tables)


def test_the_second_stage_learns_from_log_odds_of_fits_without_the_query(fitted):
    learned, judged, scorers = fitted
    table = second_tables(scorers, judged[:30])
    _, labels, weights = stacked(scorers, judged[:30])
    assert learned.stages.second == regress(table, labels, weights)
    assert learned.stages.trees == grow(table, labels, weights)


def test_the_score_is_minus_the_mean_log_odds_of_regression_and_trees_and_of_the_consensus(fitted):
    learned, judged, scorers = fitted
    first, second, trees = learned.stages
    assert learned.consensus.trees is None
    for query in judged[30:40]:
        found = of_query(scorers, query)
        table = with_standing(found, first.log_odds(found.table))
        own = (second.log_odds(table) + trees.log_odds(table)) / 2
        z = [z_scores(scorer.score(query.query, query.snippets)) for scorer in scorers]
        means = found._replace(table=np.mean(z, axis=0)[:, np.newaxis])
        odds = learned.consensus.first.log_odds(means.table)
        odds = learned.consensus.second.log_odds(with_standing(means, odds))
        expected = -(30 * own + 60 * odds) / 90  # fitted on 30 queries
        np.testing.assert_allclose(learned.score(query.query, query.snippets), expected, rtol=1e-9)


def test_trees_score_as_those_of_scikit_learn():
    rng = np.random.default_rng(4)
    # Numbers that float32 holds exactly: scikit-learn rounds to it.
    table = rng.integers(0, 64, (800, 6)) / 8
    relevant = (table[:, 0] > 4) ^ (table[:, 1] + rng.normal(size=800) > 5)
    weights = np.where(relevant, 1.5, 0.5)
    model = GradientBoostingClassifier(
        n_estimators=50, learning_rate=0.1, max_depth=3, min_samples_leaf=60, max_features=0.2,
        subsample=0.5, init="zero", random_state=0,
    ).fit(table, relevant, sample_weight=weights)  # fmt: skip
    trees = grow(table, relevant, weights)
    expected = model.decision_function(table)
    np.testing.assert_allclose(trees.log_odds(table), expected, rtol=1e-12, atol=1e-12)
    assert trees.log_odds(table[4:6])[1] == trees.log_odds(table)[5]
    assert np.ptp(expected) > 1
    few = grow(table[:20], relevant[:20], weights[:20])  # too few for a question
    np.testing.assert_allclose(few.log_odds(table[:3]), few.log_odds(table[:1])[0])


def test_where_log_odds_stand_by_hand():
    # Document d has positions 0, 1 and 5; e has one.
    where = [("d", 1), ("e", 0), ("d", 0), ("d", 5)]
    snippets = [Snippet("text", document=d, position=p) for d, p in where]
    sources = Sources((), ("s",), "document+position")
    found = features(sources, [np.arange(4.0)], snippets)
    z = np.array([1.0, 3.0, -1.0, 1.0])
    p = 1 / (1 + np.exp(-z))
    table = with_standing(found, z)
    assert np.array_equal(table[:, : found.table.shape[1]], found.table)
    columns = dict(zip(standing_names("document+position"), table[:, -17:].T, strict=True))
    expected = {
        "log-odds": z,
        "log-odds below best": [2, 0, 4, 2],
        "log share of odds": z - math.log(2 * math.e + math.e**3 + math.e**-1),
        "log rank by log-odds": np.log([2.5, 1, 4, 2.5]),
        "log number expected above": np.log(0.01 + np.array([p[1], 0, p[1] + 2 * p[0], p[1]])),
        "log number expected": [math.log(p.sum())] * 4,
        "log-odds of second below best": [2] * 4,
        "log-odds of fifth below best": [4] * 4,  # the last, if there are fewer
        "log-odds below best of document": [0, 0, 2, 0],
        "log number expected before": np.log(0.01 + np.array([p[2], 0, 0, p[2] + p[0]])),
        # Of the two best of d, the first counts.
        "log places from best of document": np.log([1, 1, 2, 2]),
        "log-odds 3 before": [-1] * 4,
        "log-odds 2 before": [-1, -1, -1, -1],
        "log-odds 1 before": [-1, -1, -1, 1],
        "log-odds 1 after": [1, -1, 1, -1],
        "log-odds 2 after": [-1, -1, 1, -1],
        "log-odds 3 after": [-1] * 4,
    }
    assert list(columns) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(columns[name], values, rtol=1e-8, atol=1e-12, err_msg=name)


def test_of_snippets_at_one_place_the_best_is_what_is_expected_there():
    snippets = [Snippet("text", document="d", position=p) for p in (0, 0, 7)]
    found = features(Sources((), ("s",), "document+position"), [np.arange(3.0)], snippets)
    names = standing_names("document+position")
    before = with_standing(found, np.array([0.0, 2.0, 1.0]))[:, names.index(BEFORE) - len(names)]
    p = 1 / (1 + math.exp(-2))
    np.testing.assert_allclose(before, np.log([0.01, 0.01, 0.01 + p]), rtol=1e-8)


def test_what_is_expected_before_does_not_depend_on_the_order_of_snippets():
    rng = np.random.default_rng(0)
    sources = Sources((), ("s",), "document+position")
    for _ in range(20):
        log_odds = rng.normal(size=30)
        places = [(str(rng.integers(4)), int(rng.integers(9))) for _ in range(30)]
        snippets = [Snippet("text", document=d, position=p) for d, p in places]
        order = rng.permutation(30)
        table = with_standing(features(sources, [-log_odds], snippets), log_odds)
        moved = [snippets[i] for i in order]
        again = with_standing(features(sources, [-log_odds[order]], moved), log_odds[order])
        assert np.array_equal(again, table[order])


def test_a_snippet_without_the_score_of_a_retriever_that_found_it_is_left_out():
    snippets = [Snippet("a", hits=(Hit("r", i, s),)) for i, s in enumerate([3.0, None, 1.0])]
    sources = Sources((("r", "similarity"),), (), "none")
    known, numbers = numbers_of(sources, [], snippets)
    assert known.tolist() == [True, False, True]
    assert numbers.values.tolist() == [[-3.0, -1.0]]
    assert numbers.ranks.tolist() == [[0.0, 2.0]]


def test_the_second_and_the_fifth_log_odds_stand_below_the_best():
    found = features(Sources((), ("s",), "none"), [np.zeros(7)], [Snippet("text")] * 7)
    table = with_standing(found, np.array([-9.0, 2.0, 5.0, -3.0, 1.0, -20.0, 4.0]))
    assert table[:, -2:].tolist() == [[1.0, 8.0]] * 7


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("z", [[-1e4], [1e4], [1e30, 0.0, -1e30], [-800.0, -800.0]])
def test_log_odds_of_any_size_stand_somewhere_without_a_warning(z, context):
    snippets = [Snippet("text", document="d", position=p) for p in range(len(z))]
    found = features(Sources((), ("s",), context), [np.zeros(len(z))], snippets)
    with np.errstate(all="raise", under="ignore"):
        table = with_standing(found, np.array(z))
        nothing = features(Sources((), ("s",), context), [np.empty(0)], [])
        assert with_standing(nothing, np.empty(0)).shape == (0, table.shape[1])
    assert np.isfinite(table).all()


@pytest.mark.parametrize("n", [1, 6])
def test_a_fold_whose_other_queries_have_one_kind_of_snippets_takes_the_fit_on_all(n):
    judged, scorers = noisy(n)
    marks = [[False] * 8 for _ in judged]
    marks[0] = judged[0].relevant if n > 1 else [True, *[False] * 7]
    assert any(marks[0])
    judged = [JudgedQuery(q.query, q.snippets, list(m)) for q, m in zip(judged, marks, strict=True)]
    stages = LearnedScorer.fit(judged, scorers).stages
    tables, relevant = [of_query(scorers, q) for q in judged], [np.array(m) for m in marks]
    labels, weights = np.concatenate(relevant), weights_of(relevant)
    # The queries at 0 and 4 are in one fold, which has all that is relevant; the others keep it.
    known = []
    for i, found in enumerate(tables):
        others = [j for j in range(n) if j % FOLDS != i % FOLDS]
        first = stages.first
        if 0 in others:
            first = regress(
                np.vstack([tables[j].table for j in others]),
                np.concatenate([relevant[j] for j in others]),
                weights_of([relevant[j] for j in others]),
            )
        known.append(with_standing(found, first.log_odds(found.table)))
    assert stages.second == regress(np.vstack(known), labels, weights)


def test_the_second_fit_weighs_snippets_by_how_near_they_are_to_the_threshold():
    log_odds = np.array([3.0, -1.0, 1.0, 0.0, 2.0])
    relevant = np.array([True, True, True, False, False])
    weights = np.array([1.0, 1.0, 1.0, 0.5, 1.5])
    # Of the three relevant ones, −1 is dropped: the threshold is 1.
    expected = weights / np.cosh([0.5, 0.5, 0, 0.25, 0.25]) ** 2
    expected[:3] /= math.e
    found = focused(weights, log_odds, relevant, 0.4)
    np.testing.assert_allclose(found, expected / expected.mean(), rtol=1e-14)
    np.testing.assert_allclose(  # from 2 on it stays e⁻¹
        focused(weights, log_odds + 1, relevant, 0.4), found, rtol=1e-14
    )
    assert not np.allclose(focused(weights, log_odds, relevant, 0.1), found)


def test_at_an_alpha_the_second_stage_is_fitted_again_with_the_weights_of_its_own(fitted):
    plain, judged, scorers = fitted
    at_alpha = LearnedScorer.fit(judged[:30], scorers, alpha=0.2)
    table = second_tables(scorers, judged[:30])
    _, labels, weights = stacked(scorers, judged[:30])
    near = focused(weights, plain.stages.second.log_odds(table), labels, 0.2)
    assert at_alpha.stages.second == regress(table, labels, near) != plain.stages.second
    assert (at_alpha.stages.first, at_alpha.stages.trees) == (
        plain.stages.first,
        plain.stages.trees,
    )
    assert LearnedScorer.from_provenance(at_alpha.provenance, scorers).name == at_alpha.name


def test_a_feature_that_never_varied_has_no_weight():
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.normal(size=50), np.full(50, 0.1)])
    regression = regress(table, table[:, 0] + rng.normal(size=50) < 0)
    table[:, 1] = 1000.0
    at_1000 = regression.log_odds(table)
    table[:, 1] = 0.1
    np.testing.assert_allclose(at_1000, regression.log_odds(table), rtol=0, atol=1e-6)


# --- where snippets come from ---------------------------------------------------------------------


def with_last_snippet(judged, **changes):
    """Return the queries, with the last snippet of the last one changed."""
    *first, last = judged
    s = last.snippets[-1]
    changed = Snippet(s.text, **({"document": s.document, "position": s.position} | changes))
    snippets = [*last.snippets[:-1], changed]
    return [*first, JudgedQuery(last.query, snippets, last.relevant, id=last.id)]


@pytest.mark.parametrize(
    ("changes", "context", "number", "more"),
    [
        ({}, "document+position", 2 * 13 + 4, 17),
        ({"position": None}, "document", 2 * 9 + 3, 9),
        ({"document": None}, "none", 2 * 5 + 2, 8),
    ],
)
def test_the_fit_uses_documents_and_positions_that_every_snippet_has(
    fitted, changes, context, number, more
):
    _, judged, scorers = fitted
    learned = LearnedScorer.fit(with_last_snippet(judged[:30], **changes), scorers)
    assert learned.sources.context == context
    assert len(learned.stages.first.coefficients) == number
    assert len(learned.stages.second.coefficients) == number + more
    assert learned.name.startswith(f"learned(one, two; context={context}, fit=")


@pytest.mark.parametrize("changes", [{"document": None}, {"position": None}, math.nan, math.inf])
def test_an_unscorable_snippet_changes_no_other_score(fitted, changes):
    learned, judged, (one, two) = fitted
    query = judged[40]
    if isinstance(changes, dict):
        (query,) = with_last_snippet([query], **changes)
    else:
        broken = LookupScorer({**two.scores, query.snippets[-1].text: changes}, "two")
        learned = LearnedScorer.from_provenance(learned.provenance, [one, broken])
    scores = learned.score(query.query, query.snippets)
    assert np.isnan(scores).tolist() == [False] * 7 + [True]
    assert scores[:7].tolist() == fitted[0].score(query.query, query.snippets[:7]).tolist()


def test_a_snippet_that_a_part_cannot_score_does_not_enter_the_fit(fitted):
    _, judged, (one, two) = fitted
    first = judged[0]
    broken = LookupScorer({**two.scores, first.snippets[2].text: math.nan}, "two")
    left = [i for i in range(8) if i != 2]
    shorter = JudgedQuery(
        first.query, [first.snippets[i] for i in left], [first.relevant[i] for i in left]
    )
    learned = LearnedScorer.fit(judged[:30], [one, broken])
    assert learned.stages == LearnedScorer.fit([shorter, *judged[1:30]], [one, two]).stages


# --- hits ---------------------------------------------------------------------------------------


def with_hits_of_two(queries=40, n=12, seed=5):
    """Return queries with hits of two retrievers: distances by `near`, only ranks by `words`."""
    rng = np.random.default_rng(seed)
    judged = []
    for i in range(queries):
        relevant = rng.random(n) < 0.3
        relevant[:2] = True, False
        places = [np.argsort(np.argsort(rng.normal(size=n) - 2 * relevant)) for _ in range(2)]
        snippets = []
        for j, (near, words) in enumerate(zip(*places, strict=True)):
            hits = (Hit("near", int(near), 0.1 * near + rng.random() / 20),) * int(near < 8)
            hits += (Hit("words", int(words)),) * int(words < 8 or near >= 8)
            snippets.append(Snippet(f"{i}.{j}", hits=hits))
        judged.append(JudgedQuery(f"query {i}", snippets, relevant.tolist(), id=f"q{i}"))
    return judged


@pytest.fixture(scope="module")
def of_hits():
    judged = with_hits_of_two()
    return LearnedScorer.fit(judged[:30]), judged


def test_a_score_is_learned_from_hits_alone_and_orders_better_than_each_retriever(of_hits):
    learned, judged = of_hits
    assert learned.retrievers == ("near", "words")
    assert learned.sources.retrievers == (("near", "distance"), ("words", "rank"))

    def wrong_pairs(scores_of):
        pairs = []
        for query in judged[30:]:
            scores, relevant = scores_of(query), np.array(query.relevant)
            pairs.append(scores[relevant][:, None] >= scores[~relevant])
        return np.mean([pair.mean() for pair in pairs])

    ours = wrong_pairs(lambda query: learned.score(query.query, query.snippets))
    assert ours < 0.8 * min(wrong_pairs(lambda q, r=r: q.hits[r].ranks) for r in learned.retrievers)


def test_a_retriever_that_found_nothing_for_a_query_is_no_error(of_hits):
    learned, judged = of_hits
    for kept in learned.retrievers:
        snippets = [
            Snippet(s.text, hits=tuple(hit for hit in s.hits if hit.retriever == kept))
            for s in judged[35].snippets
        ]
        scores = learned.score("q", snippets)
        assert np.isnan(scores).tolist() == [not s.hits for s in snippets]
        assert learned.score("q", [s for s in snippets if s.hits]).tolist() == [
            x for x in scores.tolist() if not math.isnan(x)
        ]
    assert learned.score("q", []).shape == (0,)


def test_a_snippet_without_hits_or_without_a_needed_score_is_unscorable(of_hits):
    learned, judged = of_hits
    snippets = list(judged[35].snippets)
    expected = learned.score("q", snippets).tolist()
    scored = Hit("near", 3, 0.5)
    for hits in ((), (Hit("other", 0, 1.0),), (Hit("near", 99), Hit("words", 99)), (scored,)):
        scores = learned.score("q", [*snippets, Snippet("more", hits=hits)]).tolist()
        assert math.isnan(scores[-1]) == (hits != (scored,))
        if hits != (scored,):
            assert scores[:-1] == expected


def test_a_query_without_the_hits_that_the_fit_had_is_an_error_that_names_the_retriever(of_hits):
    learned, judged = of_hits
    renamed = Snippet("a", hits=(Hit("near", 0, 1.0), Hit("other", 0, 1.0)))
    for snippets in (["a"], [Snippet("a", hits=(Hit("other", 0, 1.0),))], [renamed]):
        with pytest.raises(ValueError, match="'near', 'words'"):
            learned.score("q", snippets)
    ranks = [
        Snippet(s.text, hits=tuple(Hit(hit.retriever, hit.rank) for hit in s.hits))
        for s in judged[35].snippets
    ]
    with pytest.warns(UserWarning, match="'near' have ranks and no scores"):
        assert np.isnan(learned.score("q", ranks)).all()
    turned = [
        replace(s, hits=tuple(h._replace(score=h.score and -h.score) for h in s.hits))
        for s in judged[35].snippets
    ]
    with pytest.raises(ValueError, match="by the order of its list"):
        learned.score("q", turned)


@pytest.mark.parametrize(
    ("scores", "kind"),
    [
        ([[0.9, 0.8, 0.7], [0.3, 0.2, 0.1]], "similarity"),
        ([[0.1, 0.2, 0.3], [0.7, 0.7, 0.7]], "distance"),
        ([[0.9, 0.8, 0.7], [0.3, 0.2, 0.1], [0.1, 9.0]], "similarity"),  # in most queries
        ([[0.9, 0.8, 0.7], [0.3, 0.2, 0.1], [0.1, 0.2, 9.0]], "rank"),  # in no order
        ([[0.9, 0.8, None], [0.3, 0.2, 0.1]], "rank"),
        ([[0.5, 0.5, 0.5]], "rank"),
    ],
)
@pytest.mark.filterwarnings("ignore:1 of 6 hits of 'r' have no score")
def test_the_direction_of_a_retrievers_score_follows_from_its_ranks(scores, kind):
    judged = [
        JudgedQuery(
            f"q{i}",
            [Snippet(f"{j}", hits=(Hit("r", j, x),)) for j, x in reversed([*enumerate(row)])],
            [j == (1 if len(row) == 2 else 0) for j in reversed(range(len(row)))],
        )
        for i, row in enumerate(scores)
    ]
    learned = LearnedScorer.fit(judged)
    assert learned.sources.retrievers == (("r", kind),)
    assert learned.score("q", judged[0].snippets).argmin() == len(scores[0]) - 1


def test_scores_that_tie_in_one_retriever_are_ordered_by_another():
    judged = with_hits_of_two()
    tied = []
    for query in judged:
        snippets = [
            Snippet("same", hits=(Hit("words", 0, 0.0), *(h for h in s.hits if h[0] == "near")))
            for s in query.snippets
        ]
        tied.append(JudgedQuery(query.query, snippets, query.relevant))
    learned = LearnedScorer.fit(tied[:30])
    for query in tied[30:]:
        assert len(set(learned.score(query.query, query.snippets).tolist())) >= 8


# --- provenance and errors ------------------------------------------------------------------------


def test_a_scorer_comes_back_from_json_bit_for_bit_and_its_name_is_that_of_the_fit(fitted):
    learned, judged, scorers = fitted
    provenance = json.loads(json.dumps(learned.provenance, allow_nan=False, sort_keys=True))
    again = LearnedScorer.from_provenance(provenance, scorers)
    assert again == learned
    fewer, turned = (judged[:29], scorers), (judged[:30], scorers[::-1])
    others = {LearnedScorer.fit(*arguments).name for arguments in (fewer, turned)}
    assert len({again.name, learned.name, *others}) == 3
    assert relative_to_query(again)
    assert provenance["scorers"] == ["one", "two"]
    names = feature_names(learned.sources) + standing_names(learned.sources.context)
    assert provenance["features"] == names
    assert provenance["fitted_on"] == sorted(query_digest(q.query) for q in judged[:30])


def test_what_was_learned_from_hits_comes_back_from_json_without_any_part(of_hits):
    learned, judged = of_hits
    provenance = json.loads(json.dumps(learned.provenance, allow_nan=False, sort_keys=True))
    again = LearnedScorer.from_provenance(provenance)
    assert (again, again.name, again.retrievers) == (learned, learned.name, learned.retrievers)
    for query in judged[30:]:
        scores = again.score(query.query, query.snippets)
        assert scores.tolist() == learned.score(query.query, query.snippets).tolist()


def test_a_provenance_of_other_parts_or_another_version_is_an_error(fitted):
    learned, _, (one, two) = fitted
    for parts in ([two, one], [one], [one, LookupScorer({}, "three")]):
        with pytest.raises(ValueError, match="scorers"):
            LearnedScorer.from_provenance(learned.provenance, parts)
    for field in ("format", "version"):
        with pytest.raises(ValueError, match=field):
            LearnedScorer.from_provenance({**learned.provenance, field: 99}, [one, two])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("retrievers", {"near": "closeness"}),
        ("context", 3),
        ("features", []),
        ("fitted_on", [3]),
        ("surplus", 1),
        ("first", {}),
        ("second", None),
    ],
)
def test_a_provenance_that_no_fit_writes_is_an_error_that_names_the_field(of_hits, field, value):
    learned, _ = of_hits
    with pytest.raises(ValueError, match=field):
        LearnedScorer.from_provenance({**learned.provenance, field: value})


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("first", "means", ["a"]),
        ("second", "means", [0.0]),
        ("first", "scales", [0.0]),
        ("second", "coefficients", [math.nan]),
        ("first", "intercept", math.inf),
        ("first", "intercept", "1"),
        ("second", "intercept", 10**400),
        ("trees", "features", [[0] * 6] * 50),
        ("trees", "features", [[47] * 7] * 50),
        ("trees", "features", [[-1] * 7] * 50),
        ("trees", "thresholds", [[math.nan] * 7] * 50),
        ("trees", "values", []),
    ],
)
def test_a_stage_that_no_fit_writes_is_an_error_that_names_the_field(fitted, part, field, value):
    learned, _, scorers = fitted
    assert len(learned.provenance["features"]) == 47
    broken = {**learned.provenance[part], field: value}
    with pytest.raises(ValueError, match=field if part != "trees" else f"{part}|{field}"):
        LearnedScorer.from_provenance({**learned.provenance, part: broken}, scorers)


def test_a_fit_needs_scorers_with_different_names_and_both_kinds_of_snippets(fitted):
    _, judged, (one, two) = fitted
    for parts in ([], [one, one]):  # these queries have no hits
        with pytest.raises(ValueError, match="scorers"):
            LearnedScorer.fit(judged, parts)
    relevant = [JudgedQuery(q.query, q.snippets, [True] * 8) for q in judged[:5]]
    unscorable = LookupScorer(dict.fromkeys(two.scores, math.nan), "nothing")
    for queries, parts in ((relevant, [one]), ([], [one]), (judged, [one, unscorable])):
        with pytest.raises(ValueError, match="judged"):
            LearnedScorer.fit(queries, parts)


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 1.0, float("nan")])
def test_an_alpha_outside_its_range_is_refused(alpha):
    with pytest.raises(ValueError, match="alpha"):
        LearnedScorer.fit([], alpha=alpha)
