"""The learned scorer: its features by hand, its fit against scikit-learn, and what it refuses."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from frameworks import judged as real_judged
from hypothesis import given
from hypothesis import strategies as st
from lookup import LookupScorer
from sklearn.linear_model import LogisticRegression

from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    EmbeddingScorer,
    JudgedQuery,
    LearnedScorer,
    QueryZScore,
    Snippet,
    calibrate,
    score_queries,
)
from conformal_retrievers.scoring.bm25 import BM25Scorer
from conformal_retrievers.scoring.features import feature_names, features
from conformal_retrievers.scoring.learned import C, regress, weights_by_query
from conformal_retrievers.scoring.scorer import query_digest, relative_to_query

CONTEXTS = ("none", "document", "document+position")


def by_name(scores, snippets, context, names=("s",)):
    table = features(np.array(scores, dtype=float), snippets, context)
    columns = feature_names(names, context)
    assert table.shape == (len(snippets), len(columns))
    assert len(set(columns)) == len(columns)
    return dict(zip(columns, table.T, strict=True))


# --- features -------------------------------------------------------------------------------------


def test_the_features_of_scores_by_hand():
    snippets = [Snippet("a"), Snippet("bbb"), Snippet("c"), Snippet("dddd")]
    columns = by_name([[0.5], [0.25], [0.75], [0.5]], snippets, "none")
    sd = math.sqrt(2 * 0.25**2 / 4)
    expected = {
        "score by s": [0.5, 0.25, 0.75, 0.5],
        "gap to best by s": [0.25, 0, 0.5, 0.25],
        "z-score by s": [0, -0.25 / sd, 0.25 / sd, 0],
        "log rank by s": np.log([2.5, 1, 4, 2.5]),
        "relative rank by s": [0.625, 0.25, 1, 0.625],
        "share of best by s": [0.5, 1, 0, 0.5],
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
    scores = [[0.42], [0.3], [0.1], [0.98], [0.95], [0.4], [0.36]]  # y is better on average
    columns = by_name(scores, snippets, "document+position")
    expected = {
        "best of document by s": [0.4, 0.1, 0.1, 0.98, 0.1, 0.4, 0.1],
        "mean of document by s": [0.41, 0.4275, 0.4275, 0.98, 0.4275, 0.41, 0.4275],
        "gap to best of document by s": [0.02, 0.2, 0, 0, 0.85, 0, 0.26],
        "log rank of document by s": np.log([2, 1, 1, 3, 1, 2, 1]),
        "score two before by s": [0.98, 0.98, 0.98, 0.98, 0.3, 0.98, 0.1],
        "score before by s": [0.4, 0.1, 0.98, 0.98, 0.36, 0.98, 0.3],
        "score after by s": [0.98, 0.36, 0.3, 0.98, 0.98, 0.42, 0.95],
        "score two after by s": [0.98, 0.95, 0.36, 0.98, 0.98, 0.98, 0.98],
        "log size of document": np.log([2, 4, 4, 1, 4, 2, 4]),
        "relative position": [1, 1 / 3, 0, 0, 1, 0, 2 / 3],
    }
    alone = {"log length", "log number of snippets"}
    plain = by_name(scores, snippets, "none")
    assert set(columns) == set(expected) | set(plain)
    for name in {*plain} - alone:
        assert columns[name].tolist() == plain[name].tolist()
    for name, values in expected.items():
        np.testing.assert_allclose(columns[name], values, rtol=1e-12, atol=1e-15, err_msg=name)
    of_documents = by_name(scores, snippets, "document")
    assert set(columns) - set(of_documents) == {
        "score two before by s",
        "score before by s",
        "score after by s",
        "score two after by s",
        "relative position",
    }
    for name, values in of_documents.items():
        assert values.tolist() == columns[name].tolist()


def test_a_single_snippet_has_features_too():
    snippet = Snippet("abc", document="d", position=7)
    columns = by_name([[0.4]], [snippet], "document+position")
    own = {name: values.item() for name, values in columns.items()}
    zero = {"gap to best", "z-score", "log rank", "gap to best of document", "log rank of document"}
    assert all(own[f"{name} by s"] == 0 for name in zero)
    assert own["share of best by s"] == 1
    assert (own["relative position"], own["log number of snippets"]) == (0, 0)
    assert {own[f"{name} by s"] for name in ("score", "score before", "score after")} == {0.4}


def test_snippets_at_one_place_are_one_neighbour_and_have_the_same_features():
    twice = Snippet("b", document="d", position=1)
    snippets = [Snippet("a", document="d", position=0), twice, twice]
    columns = by_name([[0.1], [0.4], [0.4]], snippets, "document+position")
    assert columns["score after by s"].tolist() == [0.4, 0.4, 0.4]
    assert columns["score before by s"].tolist() == [0.4, 0.1, 0.1]
    assert columns["relative position"].tolist() == [0, 1, 1]
    for values in columns.values():
        assert values[1] == values[2]


def test_each_scorer_has_its_own_features():
    scores = np.array([[0.5, 3.0], [0.25, 1.0]])
    snippets = [Snippet("a"), Snippet("b")]
    both = by_name(scores, snippets, "none", names=("one", "two"))
    for i, name in enumerate(("one", "two")):
        alone = by_name(scores[:, [i]], snippets, "none", names=(name,))
        for column, values in alone.items():
            assert both[column].tolist() == values.tolist()


numbers = st.floats(-100, 100).map(lambda x: round(x, 2))
snippets_of_a_query = st.lists(
    st.tuples(numbers, numbers, st.sampled_from("xyz"), st.integers(0, 4), st.sampled_from("ab")),
    min_size=1,
    max_size=8,
)


@given(snippets_of_a_query, st.randoms(use_true_random=False), st.sampled_from(CONTEXTS))
def test_features_follow_the_snippets_into_any_order(rows, random, context):
    def table(rows):
        snippets = [Snippet(text, document=d, position=p) for _, _, d, p, text in rows]
        return features(np.array([row[:2] for row in rows]), snippets, context)

    order = list(range(len(rows)))
    random.shuffle(order)
    assert np.isfinite(table(rows)).all()
    assert table([rows[i] for i in order]).tolist() == table(rows)[order].tolist()


# --- the fit --------------------------------------------------------------------------------------


def noisy(rng, queries=60, n=8, places=True):
    """Judged queries, and two scorers that each tell a little of what is relevant."""
    scores, judged = [{}, {}], []
    for i in range(queries):
        relevant = rng.random(n) < 0.3
        snippets = [
            Snippet(
                f"{i}.{j}",
                document=f"{i}.{j // 4}" if places else None,
                position=j if places else None,
            )
            for j in range(n)
        ]
        for table, noise in zip(scores, (1.0, 1.5), strict=True):
            values = rng.normal(-relevant.astype(float), noise) + rng.normal()
            table |= {s.text: float(v) for s, v in zip(snippets, values, strict=True)}
        judged.append(JudgedQuery(f"query {i}", snippets, relevant.tolist(), id=f"q{i}"))
    return judged, [
        LookupScorer(table, name) for table, name in zip(scores, ("one", "two"), strict=True)
    ]


@pytest.fixture(scope="module")
def fitted():
    judged, scorers = noisy(np.random.default_rng(3))
    return LearnedScorer.fit(judged[:30], scorers), judged, scorers


def auc(scored):
    relevant = np.concatenate([q.scores[q.relevant] for q in scored])
    irrelevant = np.concatenate([q.scores[~q.relevant] for q in scored])
    return (relevant[:, None] < irrelevant).mean()


def test_what_was_learned_ranks_new_queries_better_than_each_part(fitted):
    learned, judged, scorers = fitted
    parts = [auc(score_queries(scorer, judged[30:])) for scorer in scorers]
    assert auc(score_queries(learned, judged[30:])) > max(parts) + 0.05
    assert min(parts) > 0.5


def test_the_score_is_minus_the_log_odds_of_scikit_learns_regression(fitted):
    learned, judged, scorers = fitted

    def table(query):
        scores = np.column_stack([s.score(query.query, query.snippets) for s in scorers])
        return features(scores, query.snippets, "document+position")

    x = np.vstack([table(query) for query in judged[:30]])
    y = [relevant for query in judged[:30] for relevant in query.relevant]
    spread = x.std(axis=0)
    spread[spread < 1e-12] = 1
    model = LogisticRegression(C=C, max_iter=10_000).fit((x - x.mean(axis=0)) / spread, y)
    for query in judged[30:]:
        expected = -model.decision_function((table(query) - x.mean(axis=0)) / spread)
        scores = learned.score(query.query, query.snippets)
        np.testing.assert_allclose(scores, expected, rtol=1e-9, atol=1e-9)


def test_by_query_a_long_list_weighs_as_much_as_a_short_one():
    short, long, nothing = [True, False], [True, True, False, False, False, False], [False]
    weights = weights_by_query([np.array(r) for r in (short, long, nothing)])
    assert weights.mean() == pytest.approx(1)
    expected = np.array([1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 1]) * 9 / 5
    np.testing.assert_allclose(weights, expected, rtol=1e-12)


def test_the_fit_weighs_what_it_was_told_to():
    judged, scorers = noisy(np.random.default_rng(3), places=False)
    parts = [QueryZScore(s) for s in scorers]
    by_query = LearnedScorer.fit(judged[:30], parts, unit="query")
    table = np.vstack([_features(parts, query) for query in judged[:30]])
    relevant = [np.array(query.relevant) for query in judged[:30]]
    expected = regress(table, np.concatenate(relevant), weights_by_query(relevant))
    assert by_query.regression == expected
    assert by_query.regression != LearnedScorer.fit(judged[:30], parts).regression
    assert LearnedScorer.fit(judged[:30], parts).regression == regress(
        table, np.concatenate(relevant)
    )
    with pytest.raises(ValueError, match="unit"):
        LearnedScorer.fit(judged[:30], parts, unit="row")


def _features(parts, query):
    scores = np.column_stack([part.score(query.query, query.snippets) for part in parts])
    return features(scores, query.snippets, "none")


def test_a_feature_that_never_varied_weighs_nothing():
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.normal(size=50), np.full(50, 0.1)])
    regression = regress(table, table[:, 0] + rng.normal(size=50) < 0)
    table[:, 1] = 1000.0
    at_1000 = regression.log_odds(table)
    table[:, 1] = 0.1
    np.testing.assert_allclose(at_1000, regression.log_odds(table), rtol=0, atol=1e-6)


@given(st.permutations(range(8)))
def test_scores_follow_the_snippets_into_any_order(fitted, order):
    learned, judged, _ = fitted
    query = judged[40]
    scores = learned.score(query.query, query.snippets)
    moved = learned.score(query.query, [query.snippets[i] for i in order])
    assert moved.tolist() == scores[list(order)].tolist()


async def test_asynchronous_scores_are_the_synchronous_ones(fitted):
    learned, judged, _ = fitted
    scores = [learned.score(q.query, q.snippets).tolist() for q in judged[30:35]]
    awaited = await asyncio.gather(*(learned.ascore(q.query, q.snippets) for q in judged[30:35]))
    assert [a.tolist() for a in awaited] == scores
    assert learned.score("q", []).tolist() == []
    assert (await learned.ascore("q", [])).tolist() == []


def test_it_says_that_a_score_depends_on_the_other_snippets(fitted):
    assert relative_to_query(fitted[0])


# --- where snippets come from ---------------------------------------------------------------------


def without(judged, **changes):
    """Return the queries, their last snippet changed."""
    *first, last = judged
    snippets = list(last.snippets)
    fields = {"text": snippets[-1].text, "document": snippets[-1].document}
    snippets[-1] = Snippet(**{**fields, "position": snippets[-1].position, **changes})
    return [*first, JudgedQuery(last.query, snippets, last.relevant, id=last.id)]


@pytest.mark.parametrize(
    ("changes", "context", "number"),
    [
        ({}, "document+position", 2 * 14 + 4),
        ({"position": None}, "document", 2 * 10 + 3),
        ({"document": None}, "none", 2 * 6 + 2),
    ],
)
def test_what_is_not_known_of_every_snippet_is_no_feature_and_the_name_says_so(
    fitted, changes, context, number
):
    _, judged, scorers = fitted
    learned = LearnedScorer.fit(without(judged[:30], **changes), scorers)
    assert learned.context == context
    assert len(learned.regression.coefficients) == number
    assert learned.name.startswith(f"learned(one, two; context={context}, fit=")
    # Where places are no feature, they do not matter.
    query = judged[40]
    moved = [Snippet(s.text, document="elsewhere", position=0) for s in query.snippets]
    same = np.array_equal(
        learned.score(query.query, query.snippets), learned.score(query.query, moved)
    )
    assert same == (context == "none")


@pytest.mark.parametrize("changes", [{"document": None}, {"position": None}])
def test_a_snippet_without_the_place_that_was_learned_from_cannot_be_scored(fitted, changes):
    learned, judged, _ = fitted
    (query,) = without([judged[40]], **changes)
    scores = learned.score(query.query, query.snippets)
    assert np.isnan(scores).tolist() == [False] * 7 + [True]
    alone = learned.score(query.query, query.snippets[:7])
    assert scores[:7].tolist() == alone.tolist()


@pytest.mark.parametrize("unknown", [math.nan, math.inf, -math.inf])
def test_what_a_part_cannot_score_is_unscorable_and_nothing_to_compare_with(unknown):
    judged, (one, two) = noisy(np.random.default_rng(3))
    learned = LearnedScorer.fit(judged[:30], [one, two])
    query = judged[40]
    broken = LookupScorer({**two.scores, query.snippets[2].text: unknown}, "two")
    rest = [s for i, s in enumerate(query.snippets) if i != 2]
    scores = LearnedScorer.from_provenance(learned.provenance, [one, broken]).score(
        query.query, query.snippets
    )
    assert np.isnan(scores).tolist() == [False, False, True] + [False] * 5
    assert np.delete(scores, 2).tolist() == learned.score(query.query, rest).tolist()


def test_what_a_part_cannot_score_is_left_out_of_the_fit():
    judged, (one, two) = noisy(np.random.default_rng(3))
    first = judged[0]
    broken = LookupScorer({**two.scores, first.snippets[2].text: math.nan}, "two")
    left = [i for i in range(8) if i != 2]
    shorter = JudgedQuery(
        first.query, [first.snippets[i] for i in left], [first.relevant[i] for i in left]
    )
    learned = LearnedScorer.fit(judged[:30], [one, broken])
    assert learned.regression == LearnedScorer.fit([shorter, *judged[1:30]], [one, two]).regression
    nothing = LookupScorer(dict.fromkeys(two.scores, math.nan), "nothing")
    with pytest.raises(ValueError, match="0 relevant and 0 irrelevant snippets that all parts"):
        LearnedScorer.fit(judged[:30], [one, nothing])


# --- provenance -----------------------------------------------------------------------------------


def test_a_scorer_comes_back_from_json_bit_by_bit(fitted):
    learned, judged, scorers = fitted
    text = json.dumps(learned.provenance, allow_nan=False)
    again = LearnedScorer.from_provenance(json.loads(text), scorers)
    assert again == learned
    assert again.name == learned.name
    assert again.provenance == learned.provenance
    for query in judged[30:]:
        scores = learned.score(query.query, query.snippets)
        assert again.score(query.query, query.snippets).tobytes() == scores.tobytes()


def test_the_provenance_says_what_was_fitted_to_what(fitted):
    learned, judged, _ = fitted
    provenance = learned.provenance
    assert provenance["scorers"] == ["one", "two"]
    assert provenance["context"] == "document+position"
    assert provenance["n_queries"] == 30
    names = [feature["name"] for feature in provenance["features"]]
    assert names == feature_names(["one", "two"], "document+position")
    assert provenance["fitted_on"] == sorted(query_digest(q.query) for q in judged[:30])
    assert learned.fitted_on == frozenset(provenance["fitted_on"])
    assert hashlib.sha256(b"query 0").hexdigest()[:16] in learned.fitted_on
    assert query_digest(judged[30].query) not in learned.fitted_on


def test_every_difference_of_the_fit_is_another_name(fitted):
    learned, judged, scorers = fitted
    others = [
        LearnedScorer.fit(judged[:29], scorers),
        LearnedScorer.fit(judged[:30], scorers[::-1]),
        LearnedScorer.fit(judged[:30], [QueryZScore(scorers[0]), scorers[1]]),
        LearnedScorer.fit(judged[:30], scorers[:1]),
        LearnedScorer.fit(judged[:30], scorers, unit="query"),
    ]
    assert len({learned.name, *(other.name for other in others)}) == 6
    assert LearnedScorer.fit(judged[:30], scorers).name == learned.name
    assert learned.name.isprintable()


def test_other_parts_than_those_it_was_fitted_with_are_an_error_that_names_both(fitted):
    learned, _, (one, two) = fitted
    for parts in ([two, one], [one], [one, LookupScorer({}, "three")]):
        with pytest.raises(ValueError, match="scorers are"):
            LearnedScorer.from_provenance(learned.provenance, parts)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", "another/format"),
        ("version", 2),
        ("context", "none"),
        ("context", "everything"),
        ("context", None),
        ("unit", "everything"),
        ("intercept", math.nan),
        ("intercept", None),
        ("features", []),
        ("features", "many"),
        ("fitted_on", 3),
        ("n_queries", 29),
        ("another", 1),
    ],
)
def test_a_provenance_that_was_changed_or_is_another_is_an_error(fitted, field, value):
    learned, _, scorers = fitted
    with pytest.raises(ValueError, match="provenance"):
        LearnedScorer.from_provenance({**learned.provenance, field: value}, scorers)


@pytest.mark.parametrize("field", ["format", "context", "features", "intercept", "fitted_on"])
def test_a_provenance_that_lacks_something_is_an_error(fitted, field):
    learned, _, scorers = fitted
    lacking = {k: v for k, v in learned.provenance.items() if k != field}
    with pytest.raises(ValueError, match="provenance"):
        LearnedScorer.from_provenance(lacking, scorers)
    with pytest.raises(ValueError, match="provenance"):
        LearnedScorer.from_provenance({}, scorers)


@pytest.mark.parametrize("key", ["name", "mean", "scale", "coefficient"])
def test_a_feature_that_was_changed_is_an_error(fitted, key):
    learned, _, scorers = fitted
    provenance = learned.provenance
    provenance["features"][3][key] = "no number"
    with pytest.raises(ValueError, match="provenance"):
        LearnedScorer.from_provenance(provenance, scorers)


def test_scoring_needs_no_scikit_learn_and_fitting_names_the_extra(fitted):
    learned, _, _ = fitted
    code = """
import json, sys
sys.modules["sklearn"] = None
from conformal_retrievers import JudgedQuery, LearnedScorer, Snippet
class Scorer:
    def __init__(self, name): self.name = name
    def score(self, query, snippets): return [len(s.text) for s in snippets]
parts = [Scorer("one"), Scorer("two")]
learned = LearnedScorer.from_provenance(json.loads(sys.stdin.read()), parts)
snippets = [Snippet("a", document="d", position=i) for i in range(3)]
print(len(learned.score("q", snippets)))
try:
    LearnedScorer.fit([JudgedQuery("q", ["a", "bb"], [True, False])], parts)
except ModuleNotFoundError as error:
    print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(learned.provenance),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines()[0] == "3"
    assert "conformal-retrievers[learned]" in ran.stdout.splitlines()[1]


# --- what cannot be learned from ------------------------------------------------------------------


def test_parts_that_are_none_or_twice_the_same_are_an_error(fitted):
    _, judged, (one, _) = fitted
    with pytest.raises(ValueError, match="scorers are"):
        LearnedScorer.fit(judged, [])
    with pytest.raises(ValueError, match="scorers are"):
        LearnedScorer.fit(judged, [one, one])
    with pytest.raises(TypeError, match="scorer is 'one'"):
        LearnedScorer.fit(judged, ["one"])


@pytest.mark.parametrize("relevant", [True, False])
def test_it_takes_relevant_and_irrelevant_snippets(fitted, relevant):
    _, judged, scorers = fitted
    same = [JudgedQuery(q.query, q.snippets, [relevant] * 8) for q in judged[:5]]
    counts = "40 relevant and 0" if relevant else "0 relevant and 40"
    with pytest.raises(ValueError, match=f"judged has {counts} irrelevant"):
        LearnedScorer.fit(same, scorers)
    with pytest.raises(ValueError, match="0 relevant and 0 irrelevant"):
        LearnedScorer.fit([], scorers)


# --- the whole way --------------------------------------------------------------------------------


def test_the_whole_way_with_the_real_model_and_bm25(tmp_path):
    """A third of 80 real questions trains, a third calibrates and a third is filtered."""
    from frameworks import _vector

    cosine = EmbeddingScorer(lambda texts: [_vector(text) for text in texts], "cosine")
    bm25 = BM25Scorer(s.text for s in real_judged()[0].snippets)
    training, calibrating, filtering = (real_judged()[i::3] for i in range(3))
    learned = LearnedScorer.fit(training, [cosine, bm25])
    assert learned.context == "document+position"
    calibrate(calibrating, learned, alpha=0.2).save(tmp_path / "c.json")
    conformal = ConformalFilter(learned, Calibration.load(tmp_path / "c.json"))
    plain = ConformalFilter(cosine, calibrate(calibrating, cosine, alpha=0.2))
    kept, coverage = np.zeros(2), np.zeros(2)
    for query in filtering:
        for i, f in enumerate((conformal, plain)):
            keeps = f(query.query, query.snippets).keeps
            kept[i] += keeps.mean()
            coverage[i] += keeps[np.array(query.relevant)].mean()
    assert kept[0] < 0.9 * kept[1]
    assert (coverage / len(filtering) > 0.6).all()
