"""The learned score: its features by hand, its fit against other optimisers, and its provenance."""

import json
import math
import warnings
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lookup import LookupScorer
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from conformal_retrievers.data import Hit, JudgedQuery, Snippet
from conformal_retrievers.data.snippets import as_snippets
from conformal_retrievers.scoring import LearnedScorer, relative_to_query
from conformal_retrievers.scoring.hit_features import Sources, sources_of
from conformal_retrievers.scoring.learned.features import (
    WORDS,
    columns,
    features,
    in_documents,
    words_of,
)
from conformal_retrievers.scoring.learned.feedback import feedback
from conformal_retrievers.scoring.learned.layout import layout_of
from conformal_retrievers.scoring.learned.prior import prior_of
from conformal_retrievers.scoring.learned.regression import most_probable
from conformal_retrievers.scoring.learned.score import by_share, contributions, fitted, table_of
from conformal_retrievers.scoring.overlap import shares_of
from conformal_retrievers.scoring.scorer import query_digest

CONTEXTS = ("none", "document", "document+position")


def by_name(sources, scores, snippets, words=((0,),) * 5, *sentences):
    words, scores = np.array(words) * np.ones(len(snippets)), [*map(np.array, scores)]
    known, table = features(sources, "q", words, scores, as_snippets(snippets), *sentences)
    names = [*map(str, columns(sources))]
    assert known.all()
    assert len(set(names)) == len(names)
    return dict(zip(names, table, strict=True))


def same(found, expected):
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-12, atol=1e-12, err_msg=name)


# --- features -------------------------------------------------------------------------------------


def test_the_features_of_hits_by_hand():
    # Similarities of a that fall with the rank, ranks only of b; neither found all, and c nothing.
    hits = [
        (Hit("a", 1, 0.6), Hit("b", 0)),
        (Hit("a", 0, 0.9), Hit("b", 4)),
        (Hit("b", 2),),
        (Hit("a", 3, 0.5),),
    ]
    snippets = [Snippet("x", hits=h) for h in hits]
    sources = sources_of([JudgedQuery("q", snippets, [True, False, False, False])])
    assert sources == Sources((("a", "similarity"), ("b", "rank")), (), "none")
    more = Sources((*sources.retrievers, ("c", "similarity")), ("s",), "none")
    found = by_name(more, [[0.0, 0, 0, -9]], snippets)
    x, list_a, log_b = np.array([-0.6, -0.9, -0.5, -0.5]), [-0.6, -0.9, -0.5], np.log([1, 5, 3, 6])
    found_a, found_b = np.array([1, 1, 0, 1]), np.array([1, 1, 1, 0])
    z_a = (x - np.mean(list_a)) / np.std(list_a) - math.log(50 / 3) * found_a
    z_b = (log_b - log_b[:3].mean()) / log_b[:3].std() - math.log(50 / 3) * found_b
    expected = {
        "z-score by a": z_a,
        "gap to best by a": (x + 0.9) / np.std(list_a),
        "log rank by a": np.log([2, 1, 5, 4]),
        "found by a": found_a,
        "z-score by b": z_b,
        "gap to best by b": log_b / log_b[:3].std(),
        "log rank by b": log_b,
        "found by b": found_b,
        **{f"{feature} by c": [0] * 4 for feature in ("z-score", "gap to best")},
        "log rank by c": [math.log(5)] * 4,  # behind the last of all
        "found by c": [0] * 4,
    }
    assert list(found)[:12] == list(expected)
    best = [min(z_a[0], z_b[0]), min(z_a[1], z_b[1]), z_b[2], z_a[3]]  # of those that found it
    same(found, {**expected, "best z-score": best})
    hits = [(Hit("a", i, -i / 9), Hit("b", i))[: 1 + (i < 60)] for i in range(61)]
    found = by_name(sources, [], [Snippet("x", hits=h) for h in hits])
    assert found["z-score by b"][60] > found["z-score by b"][59]  # behind the last of a long list
    assert found["best z-score"][60] == found["z-score by a"][60] > 0


def test_the_features_of_documents_and_places_by_hand():
    # Document x at 10, 30 twice and 70, y at 5 and 6, z once; not in their order.
    where = [("y", 6), ("x", 30), ("x", 10), ("z", 0), ("x", 70), ("y", 5), ("x", 30)]
    snippets = [Snippet("text", document=d, position=p) for d, p in where]
    scores = [0.42, 0.3, 0.1, 0.98, 0.95, 0.4, 0.36]
    found = by_name(Sources((), ("s",), "document+position"), [scores], snippets)
    m = found["scorer's z-score by s"] / 2  # the mean of it and of stems, which are all alike
    y, x30, x10, _, x70, y5, x30b = m
    best, mean = [y5, x10, x10, m[3], x10, y5, x10], np.mean([x10, x30, x30b, x70])
    sizes = np.array([2, 4, 4, 1, 4, 2, 4])
    others = 1 - sizes / 7
    means = [(y + y5) / 2, mean, mean, m[3], mean, (y + y5) / 2, mean]
    of_documents = {
        "best of document": (best - m) * others,
        "mean of document": (means - m) * others,
        "size of document": np.log(sizes) * others,
    }
    of_places = {
        "two before": [0, 0, 0, 0, x10 - x70, 0, 0],
        "before": [y5 - y, x10 - x30, 0, 0, x30 - x70, 0, x10 - x30b],
        "after": [0, x70 - x30, x30 - x10, 0, 0, y - y5, x70 - x30b],
        "two after": [0, 0, x70 - x10, 0, 0, 0, 0],
        "place": [1, 0.5, 0, 0, 1, 0, 0.5],
        "first": [0, 0, 1, 1, 0, 1, 0],
        "last": [1, 0, 0, 1, 1, 0, 0],
    }
    assert list(found)[-10:] == [*of_documents, *of_places]
    same(found, of_documents | of_places)
    layout = layout_of(*map(list, zip(*where, strict=True)))
    for of_sentences, of_snippets in zip(
        in_documents(m, layout, sentences=True), of_documents.values(), strict=True
    ):
        np.testing.assert_allclose(of_sentences * others, of_snippets, atol=1e-12)
    documents = by_name(Sources((), ("s",), "document"), [scores], snippets)
    assert list(documents) == list(found)[:-7]
    same(documents, {name: found[name] for name in documents})


def test_a_first_line_and_a_title_have_their_own_shares_of_the_query():
    long = f"{'x' * 99} red {'x' * 199} wine"  # cut to 200 letters, and to 100
    texts = ["\n Red: white\nwine", "Wine. Red wine", long, "赤。 red bread wine"]
    lines = ["Red: white", "Wine. Red wine", "red", "赤。 red bread wine"]
    words = words_of("red wine", texts)
    for part, share in zip((lines, ["Red", "Wine", "x", "赤"]), words[2:4], strict=True):
        assert share.tolist() == (-shares_of("red wine", part, "stems")[0]).tolist()
    words[:2] = words[2:4]  # stems and pieces, which are alike
    z = [(row - row.mean()) / row.std() for row in words[:4]]
    for times, sentences, shorter in ((1, False, np.log(50 / 4) / 2), (1, True, 0), (14, False, 0)):
        given, own = [*map(Snippet, texts * times)], np.tile(words, times)
        found = by_name(Sources((), ("s",), "none"), [[0.0] * 4 * times], given, own, sentences)
        same(found, dict(zip(WORDS[:4], np.tile(z, times) - shorter, strict=True)))
    assert found["pairs"].tolist() == own[4].tolist()


def test_feedback_is_weighed_by_the_mean_z_score_and_is_one_itself():
    texts = ["a red wine", "red and white", "white bread", "a loaf of bread", "q red"]
    found = by_name(Sources((), ("s",), "none"), [[0.0, 1, 3, 2, 9]], [Snippet(t) for t in texts])
    # Half: the mean with the stems, which are 0 here.
    own = -feedback("q", texts, found["scorer's z-score by s"] / 2)
    same(found, {"feedback": (own - own.mean()) / own.std() - math.log(50 / 5) / 2})


numbers = st.floats(-100, 100).map(lambda x: round(x, 2))
texts = st.sampled_from(["a", "red ant", "red"])
row = st.tuples(numbers, st.none() | numbers, st.sampled_from("xy"), st.integers(0, 2), texts)


@given(st.permutations(range(8)), st.lists(row, min_size=8, max_size=8), st.sampled_from(CONTEXTS))
def test_features_do_not_depend_on_the_order_of_snippets(order, rows, context):
    kinds = (("dense", "distance"), ("lexical", "similarity"))

    def table(rows):
        snippets = []
        for score, other, document, position, text in rows:
            hits = (Hit("dense", int(score + 100), score), Hit("lexical", 0, other))
            hits = hits[: 1 + (other is not None)]
            snippets.append(Snippet(text, document=document, position=position, hits=hits))
        words = words_of("red ants", [s.text for s in snippets])
        scores = [np.array([score for score, *_ in rows])]
        sources = Sources(kinds, ("s",), context)
        known, found = features(sources, "red ants", words, scores, as_snippets(snippets))
        assert known.all()
        return found.T

    assert np.isfinite(table(rows)).all()
    assert table([rows[i] for i in order]).tolist() == table(rows)[order].tolist()


# --- the prior and the fit ------------------------------------------------------------------------


@pytest.mark.parametrize("item", ["snippets", "sentences"])
def test_a_prior_names_its_sets_with_their_licences_and_has_every_feature(item):
    prior = prior_of(item)
    assert (prior.item, prior.name) == (item, f"{item} {prior.version}")
    assert prior.sets
    assert all(one.keys() == {"name", "licence"} and all(one.values()) for one in prior.sets)
    every = columns(Sources((("a", "rank"),), ("s",), "document+position"))
    for coefficients in (prior.one_retriever, prior.several_retrievers):
        assert {*coefficients} == {column.feature for column in every}


@pytest.mark.parametrize("retrievers", ["", "a", "ab", "abc"])
def test_without_judged_queries_coefficients_are_means_of_the_prior_shared_by_sources(retrievers):
    prior, r = prior_of("snippets"), len(retrievers)
    normals = prior.several_retrievers if r > 1 else prior.one_retriever
    sources = Sources(tuple((name, "rank") for name in retrievers), ("s", "t"), "document")
    means, sds = prior.of(columns(sources))
    assert fitted(sources, (), [], "snippets").coefficients == tuple(means)
    for (feature, source), mean, sd in zip(columns(sources), means, sds, strict=True):
        # Without a retriever, scorers rank as one does.
        normal = normals[feature if r else feature.removeprefix("scorer's ")]
        times = 1 if source is None else 2 if source in "st" else r
        assert (mean, sd) == (normal.mean / times, normal.sd)


@pytest.mark.parametrize("names", ["a", "ab"])
def test_by_the_prior_a_document_of_several_is_better_unless_it_is_the_only_one(names):
    def scores(documents, context="document"):
        documents = [*documents, *map(str, range(45))] if len({*documents}) > 1 else ["x"] * 50
        hits = [[Hit(name, i) for name in names] for i in range(50)]
        given = [Snippet("text", document=d, hits=h) for d, h in zip(documents, hits, strict=True)]
        sources = Sources(tuple((name, "rank") for name in names), (), context)
        return fitted(sources, (), [], "snippets").score("q", given)

    alone, beside = scores("xyzuv"), scores("xyxuv")
    assert (beside - alone)[[0, 2]].max() < 0 < (beside - alone)[[1, 3, 4, 49]].min()
    assert alone.tolist() == scores("xxxxx").tolist() == scores("xxxxx", "none").tolist()


def drawn(queries=45, n=12):
    """Return queries with hits of `near`, distances, and `words`, ranks, and two scorers."""
    rng, scores, judged = np.random.default_rng(5), ({}, {}), []
    for i in range(queries):
        relevant = rng.random(n) < 0.3
        relevant[:2] = True, False
        places = [np.argsort(np.argsort(rng.normal(size=n) - 2 * relevant)) for _ in range(2)]
        snippets = []
        for j, (near, words) in enumerate(zip(*places, strict=True)):
            hits = (Hit("near", int(near), 0.1 * near + rng.random() / 20),) * int(near < 8)
            hits += (Hit("words", int(words)),) * int(words < 8 or near >= 8)
            where = {"document": f"{i}.{j // 4}", "position": j}
            snippets.append(Snippet(f"{i}.{j}", hits=hits, **where))
            for of_scorer in scores:
                of_scorer[f"{i}.{j}"] = float(rng.normal() - relevant[j])
        judged.append(JudgedQuery(f"query {i}", snippets, relevant, id=f"q{i}"))
    return judged, [LookupScorer(scores[0], "one"), LookupScorer(scores[1], "two")]


JUDGED, SCORERS = drawn()
NEW = JUDGED[30:]
LEARNED = LearnedScorer.fit(JUDGED[:30], SCORERS)


def test_the_fit_is_the_optimum_of_its_formula_and_the_score_is_the_expected_share_per_cost():
    y, table = table_of(LEARNED.sources, SCORERS, JUDGED[:30])
    assert y.tolist() == [mark for query in JUDGED[:30] for mark in query.relevant]
    x = table.T
    m, s = prior_of("snippets").of(columns(LEARNED.sources))

    def total(b):
        return np.logaddexp(0, -(2 * y - 1) * (x @ b)).sum() + (((b - m) / s) ** 2).sum() / 2

    best = minimize(total, m, tol=1e-9).x
    np.testing.assert_allclose(LEARNED.coefficients, best, atol=1e-4)
    assert np.abs(best - m).max() > 0.1
    for query in NEW:
        for prior, c in (("snippets 1", 500), ("sentences 1", 100)):
            scorer, of_item = replace(LEARNED, prior=prior), replace(query, split="s" * (c == 100))
            log_odds = table_of(LEARNED.sources, SCORERS, [of_item])[1].T @ LEARNED.coefficients
            p = 1 / (1 + np.exp(-log_odds))
            shares = [one / (1 + sum(p) - one) for one in p]
            expected = np.log([1 + len(t) / c for t in query.retrieved.texts]) - np.log(shares)
            np.testing.assert_allclose(scorer.score(query.query, query.snippets), expected)
    odds = np.random.default_rng(0).normal(size=100)  # bit for bit, in whatever order
    np.testing.assert_array_equal(by_share(odds[::-1]), by_share(odds)[::-1])


def test_without_a_prior_the_regression_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    table, weights = rng.normal(2, 3, size=(200, 3)), rng.random(200)
    relevant, weights = table[:, 0] + rng.normal(size=200) < 1, weights / weights.mean()
    model = LogisticRegression(C=0.1, tol=1e-10).fit(table, relevant, sample_weight=weights)
    x = np.hstack([table, np.ones((200, 1))])
    found = most_probable(x, relevant, np.zeros(4), np.array([*[0.1**0.5] * 3, np.inf]), weights)
    np.testing.assert_allclose(found, [*model.coef_[0], *model.intercept_], atol=1e-4)


def test_the_fit_ends_where_a_step_goes_too_far():
    x = np.array([[1e3, 1.0], [-1e3, 1.0]])
    b = most_probable(x, np.array([True, False]), mean=np.array([-5.0, 0.0]), sd=np.ones(2))
    assert 0 < b[0] < 1


def with_other_hits(judged, change):
    return [
        replace(q, snippets=[replace(s, hits=(*map(change, s.hits),)) for s in q.snippets])
        for q in judged
    ]


def scores_of(judged, scorers=()):
    learned = LearnedScorer.fit(judged[:30], scorers)
    return np.concatenate([learned.score(q.query, q.snippets) for q in judged[30:]])


@pytest.mark.parametrize("names", [{"near": "z", "words": "a"}, {"near": "words", "words": "near"}])
def test_it_does_not_matter_how_retrievers_are_called_or_which_scorer_comes_first(names):
    other = with_other_hits(JUDGED, lambda hit: hit._replace(retriever=names[hit.retriever]))
    found = scores_of(other, SCORERS[::-1])
    np.testing.assert_allclose(found, scores_of(JUDGED, SCORERS), atol=1e-12)


@pytest.mark.parametrize("scale", [(2.0, 0.0), (0.01, 7.0), (-1.0, 1.0), (-3.0, 0.0)])
def test_the_scale_and_the_direction_of_scores_do_not_matter(scale):
    a, b = scale
    other = with_other_hits(
        JUDGED, lambda hit: hit._replace(score=None if hit.score is None else a * hit.score + b)
    )
    np.testing.assert_allclose(scores_of(other), scores_of(JUDGED), atol=1e-9)


def test_a_source_counts_by_the_spread_within_queries_of_what_it_adds_to_the_log_odds():
    same = LookupScorer(dict.fromkeys(SCORERS[0].scores, 0.5), "same")
    cut = [(q, q.snippets[:n], q.relevant[:n]) for n, q in enumerate(JUDGED[:20])]
    judged = [replace(q, snippets=snippets, relevant=marks) for q, snippets, marks in cut]
    lost = LookupScorer(dict.fromkeys(same.scores, math.nan), "lost")
    assert contributions(LearnedScorer.fit(judged, [lost]), judged)["lost"] == 0
    learned = LearnedScorer.fit(judged, [*SCORERS, same])
    b = np.array(learned.coefficients)
    rows = [i for i, column in enumerate(columns(learned.sources)) if column.source == "one"]
    added = [b[rows] @ table_of(learned.sources, learned.scorers, [q])[1][rows] for q in judged[1:]]
    for sign in (1, -1):  # turned round, it counts the other way
        counts = contributions(replace(learned, coefficients=(*(sign * b),)), judged)
        assert counts["one"] == pytest.approx(sign * np.hstack([a - a.mean() for a in added]).std())
        assert abs(counts["same"]) < 1e-12  # it tells nothing apart


# --- what cannot be scored ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        *({"document": None}, {"position": None}, math.nan, math.inf, {"hits": ()}),
        {"hits": (Hit("other", 0, 1.0),)},
        {"hits": (Hit("near", 99), Hit("words", 99))},  # without the score that hits of near have
    ],
)
def test_a_snippet_that_cannot_be_scored_changes_no_other_score_and_no_fit(change):
    query, scorers = replace(JUDGED[0], query="none"), SCORERS
    if isinstance(change, dict):
        first, *others = query.snippets
        query = replace(query, snippets=[replace(first, **change), *others])
    else:
        scores = {**SCORERS[1].scores, query.snippets[0].text: change}
        scorers = [SCORERS[0], LookupScorer(scores, "two")]
    shorter = replace(query, snippets=query.snippets[1:], relevant=query.relevant[1:])
    unstated = isinstance(change, dict) and "hits" not in change
    with pytest.warns(UserWarning, match="some snippets") if unstated else nullcontext():
        found = replace(LEARNED, scorers=tuple(scorers)).score(query.query, query.snippets)
        fits = [
            fitted(LEARNED.sources, parts, [one], "snippets").coefficients
            for parts, one in ((scorers, query), (SCORERS, shorter))
        ]
    assert np.isnan(found).tolist() == [True] + [False] * 11
    assert found[1:].tolist() == LEARNED.score(query.query, shorter.snippets).tolist()
    assert fits[0] == fits[1]


@pytest.mark.parametrize("kept", ["near", "words"])
def test_a_retriever_that_found_nothing_for_a_query_is_no_error(kept):
    snippets = [
        replace(s, hits=tuple(hit for hit in s.hits if hit.retriever == kept))
        for s in NEW[0].snippets
    ]
    scores = LEARNED.score("q", snippets)
    assert np.isnan(scores).tolist() == [not s.hits for s in snippets]
    found = LEARNED.score("q", [s for s in snippets if s.hits])
    assert found.tolist() == scores[~np.isnan(scores)].tolist()


def test_snippets_of_which_none_states_a_document_are_documents_of_their_own():
    learned, snippets = LearnedScorer.fit(JUDGED[:30]), NEW[0].snippets
    assert learned.sources.context == "document+position"
    bare = [replace(s, document=None, position=None) for s in snippets]
    own = [replace(s, document=f"own {i}", position=0) for i, s in enumerate(bare)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # as Python shows them: each text and place once
        scores, _ = (learned.score("q", bare[n:]) for n in range(2))
    assert ["no snippet of a query has one" in str(one.message) for one in caught] == [True] * 2
    assert "(LangChain: metadata['source']; LlamaIndex: ref_doc_id" in str(caught[0].message)
    assert np.isfinite(scores).all()
    assert scores.tolist() == learned.score("q", own).tolist()
    assert scores.tolist() != learned.score("q", snippets).tolist()
    with pytest.warns(UserWarning, match="of each snippet, and some snippets"):
        some = learned.score("q", [own[0], *bare[1:]])
    assert np.isnan(some).tolist() == [False] + [True] * (len(bare) - 1)


def test_a_query_without_the_hits_that_the_fit_had_is_an_error_that_names_the_retriever():
    renamed = Snippet("a", hits=(Hit("near", 0, 1.0), Hit("other", 0, 1.0)))
    for snippets in (["a"], [Snippet("a", hits=(Hit("other", 0, 1.0),))], [renamed]):
        with pytest.raises(ValueError, match="'near', 'words'"):
            LearnedScorer.fit(JUDGED).score("q", snippets)
    assert LEARNED.score("q", []).shape == (0,)


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
    judged = []
    for row in scores:
        snippets = [Snippet("a", hits=(Hit("r", j, x),)) for j, x in reversed([*enumerate(row)])]
        judged.append(JudgedQuery("q", snippets, [True] * len(row)))
    assert sources_of(judged).retrievers == (("r", kind),)


# --- provenance and errors ------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [[], SCORERS])
def test_a_scorer_comes_back_from_json_bit_for_bit_and_its_name_is_that_of_the_fit(parts):
    learned = LearnedScorer.fit(JUDGED[:30], parts)
    provenance = json.loads(json.dumps(learned.provenance, allow_nan=False))
    again = LearnedScorer.from_provenance(provenance, parts)
    assert (again, again.name, relative_to_query(again)) == (learned, learned.name, True)
    for query in NEW:
        scores = again.score(query.query, query.snippets)
        assert scores.tolist() == learned.score(query.query, query.snippets).tolist()
    assert LearnedScorer.fit(JUDGED[:29], parts).name != learned.name
    read = ", ".join(["hits of near", "hits of words", "words", *provenance["scorers"]])
    assert again.name.startswith(f"learned({read}; context=document+position, fit=")
    assert provenance["scorers"] == [part.name for part in parts]
    assert provenance["prior"] == prior_of("snippets").name
    assert provenance["fitted_on"] == sorted(query_digest(q.query) for q in JUDGED[:30])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("version", 99), ("scorers", ["two", "one"]), ("surplus", 1), ("prior", "x 1")),
        *(("coefficients", {"z-score by near": value}) for value in (1.0, math.nan)),
    ],
)
def test_a_provenance_that_no_fit_writes_is_an_error_that_names_the_field(field, value):
    with pytest.raises(ValueError, match=field):
        LearnedScorer.from_provenance({**LEARNED.provenance, field: value}, SCORERS)


def test_a_fit_needs_hits_or_scorers_with_different_names():
    bare = [replace(q, snippets=[replace(s, hits=()) for s in q.snippets]) for q in JUDGED]
    for parts in ([], [SCORERS[0]] * 2):
        with pytest.raises(ValueError, match="scorers"):
            LearnedScorer.fit(bare, parts)
