"""Calibrations: what enters, what is kept, what is said, and the file."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import stat
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lookup import LookupScorer

from conformal_retrievers import Calibration, JudgedQuery, ScoredQuery, calibrate
from conformal_retrievers.theory.ranks import conformal_quantile, query_recall_threshold

GUARANTEES = ("query-recall", "snippet", "all", "any")
every_guarantee = pytest.mark.parametrize("guarantee", GUARANTEES)


def three_queries():
    """Three queries with (.1, .3), (.2) and (.4, .9) relevant, one that misses all, one without."""
    return [
        ScoredQuery([0.3, 0.8, 0.1], [True, False, True], id="a", missed=2),
        ScoredQuery([0.2, 0.7], [True, False], id="b", group="g"),
        ScoredQuery([0.95, 0.4, 0.9], [False, True, True], id="c", missed=1),
        ScoredQuery([0.6, 1.5], [False, False], id="d", missed=4),
        ScoredQuery([0.7, 1.2], [False, False], id="e"),
    ]


def calibration_of(queries=None, *, alpha=0.4, scorer="lookup", **options):
    queries = three_queries() if queries is None else queries
    return Calibration.from_scores(queries, alpha=alpha, scorer=scorer, **options)


def relevant(*scores, **options):
    return ScoredQuery(scores, [True] * len(scores), **options)


# --- by hand --------------------------------------------------------------------------------------


def test_the_threshold_is_that_of_the_relevant_scores_alone():
    # 1/N_q adds up to 2.5 ≥ 0.6 × (3 + 1) at 0.4; of 5 snippets the ⌈6 × 0.6⌉ = 4th is 0.4.
    assert calibration_of().threshold() == 0.4
    assert calibration_of(guarantee="snippet").threshold() == 0.4
    assert calibration_of(alpha=0.5).threshold() == 0.3
    assert calibration_of(alpha=0.25).threshold() == 0.9
    assert calibration_of(alpha=0.25, guarantee="snippet").threshold() == 0.9  # ⌈4.5⌉ = 5th
    assert calibration_of(alpha=0.2).threshold() == math.inf
    assert calibration_of(alpha=0.1, guarantee="snippet").threshold() == math.inf
    # Of the highest, .3, .2 and .9, and of the lowest, .1, .2 and .4, the ⌈4 × 0.6⌉ = 3rd.
    assert calibration_of(guarantee="all").threshold() == 0.9
    assert calibration_of(guarantee="any").threshold() == 0.4
    assert calibration_of(alpha=0.5, guarantee="all").threshold() == 0.3
    assert calibration_of(alpha=0.5, guarantee="any").threshold() == 0.2
    assert calibration_of(alpha=0.2, guarantee="any").threshold() == math.inf


def test_the_threshold_where_missed_snippets_count_by_hand():
    # Shares of 4, 1, 3 and 4: 1/4 + 1 + 1/4 + 1/3 + 1/3 = 2.17 is the most that can be kept.
    assert calibration_of(alpha=0.64, count_missed=True).threshold() == 0.4  # 1.83 ≥ 1.8 > 1.5
    assert calibration_of(alpha=0.57, count_missed=True).threshold() == 0.9  # 2.15
    assert calibration_of(alpha=0.56, count_missed=True).threshold() == math.inf  # 2.2
    # Twelve snippets, seven of them at +inf: the ⌈13 × .4⌉ = 6th is one of those.
    for alpha, threshold in ((0.6, math.inf), (0.65, 0.9), (0.75, 0.4)):
        missed = calibration_of(alpha=alpha, guarantee="snippet", count_missed=True)
        assert missed.threshold() == threshold
    # The highest are +inf, .2, +inf and +inf, the lowest .1, .2, .4 and +inf.
    for guarantee, alpha, threshold in (
        ("all", 0.8, 0.2),
        ("all", 0.79, math.inf),
        ("any", 0.4, 0.4),
        ("any", 0.39, math.inf),
    ):
        missed = calibration_of(alpha=alpha, guarantee=guarantee, count_missed=True)
        assert missed.threshold() == threshold


def test_a_score_is_kept_up_to_the_threshold_and_with_it():
    scores = [0.39, 0.4, math.nextafter(0.4, 1), math.nan, -math.inf, math.inf]
    assert calibration_of().keep(scores).tolist() == [True, True, False, True, True, False]


def test_a_calibration_that_is_too_small_keeps_everything():
    scores = [-math.inf, 0.0, 1e300, math.inf, math.nan]
    for guarantee in GUARANTEES:
        assert calibration_of(alpha=0.05, guarantee=guarantee).keep(scores).all()


def test_the_p_values_are_those_of_the_guarantee():
    at = [0.1, 0.25, 0.4, 0.95]
    assert calibration_of().p_values(at).tolist() == [1.0, 0.625, 0.5, 0.25]
    of_snippets = calibration_of(guarantee="snippet").p_values(at).tolist()
    assert of_snippets == [6 / 6, 4 / 6, 3 / 6, 1 / 6]
    assert calibration_of(guarantee="all").p_values(at).tolist() == [1.0, 0.75, 0.5, 0.25]
    assert calibration_of(guarantee="any").p_values(at).tolist() == [1.0, 0.5, 0.5, 0.25]
    assert np.isnan(calibration_of().p_values([math.nan])).all()


def test_what_is_no_path_is_told():
    with pytest.raises(TypeError, match=r"path is \{'a': 1\}; give the path of a calibration"):
        Calibration.load({"a": 1})


def test_a_calibration_that_would_drop_nothing_of_its_own_queries_says_so():
    """The threshold may be an LLM's worst rating: then whatever it rates is kept."""
    judged = [JudgedQuery(f"q{i}", ["near", "far"], [True, False]) for i in range(9)]
    with pytest.warns(UserWarning, match=r"not drop a single snippet .* at alpha = 0\.3; a larger"):
        calibrate(judged, LookupScorer({"near": 0.1, "far": 0.1}), alpha=0.3)
    only_relevant = [JudgedQuery(f"q{i}", ["near"], [True]) for i in range(9)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rightly in (judged, only_relevant, judged[:1]):  # the last has no threshold
            calibrate(rightly, LookupScorer({"near": 0.1, "far": 0.9}), alpha=0.3)


@pytest.mark.parametrize(
    ("count_missed", "n_queries", "n_snippets"), [(False, 3, 5), (True, 4, 12)]
)
def test_the_counts_are_those_of_the_queries_that_have_something_relevant(
    count_missed, n_queries, n_snippets
):
    for guarantee in GUARANTEES:
        calibration = calibration_of(alpha=0.9, guarantee=guarantee, count_missed=count_missed)
        assert calibration.n_queries == n_queries
        assert calibration.n_relevant == 5
        assert calibration.n_without_relevant == 1
        assert calibration.n_missed == 2 + 0 + 1 + 4
        n_units = n_snippets if guarantee == "snippet" else n_queries
        assert calibration.n_units == {None: n_units}


def test_what_is_held_is_the_sorted_relevant_scores_and_how_many_were_missed():
    held = [(q.id, q.scores.tolist(), q.missed) for q in calibration_of().queries]
    assert held == [("a", [0.1, 0.3], 2), ("b", [0.2], 0), ("c", [0.4, 0.9], 1), ("d", [], 4)]
    assert all(query.relevant.all() for query in calibration_of().queries)


def test_calibrating_scores_each_judged_query_and_takes_the_scorers_name(toy_judged, toy_corpus):
    scores = {text: i / 10 for i, text in enumerate(toy_corpus.values())}
    scorer = LookupScorer(scores, name="by place")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # places know nothing of relevance
        calibration = calibrate(
            toy_judged, scorer, alpha=0.5, retrieval={"k": 9}, labels={"source": "hand"}
        )
    assert calibration.scorer == "by place"
    assert [q.scores.tolist() for q in calibration.queries] == [[0.0, 0.1], [0.3], [0.6, 0.7]]
    assert [q.id for q in calibration.queries] == ["q0", "q1", "q2"]
    assert calibration.n_without_relevant == 1
    assert calibration.guarantee == "query-recall"
    assert calibration.retrieval == {"k": 9}
    assert calibration.labels == {"source": "hand"}
    # 1/N_q adds up to .5, 1, 2, 2.5, 3; 0.5 × (3 + 1) = 2
    assert calibration.threshold() == 0.3


def retrieved(retriever=None, k=None, id=None):
    return JudgedQuery("q", ["a", "b"], [True, False], id=id, retriever=retriever, k=k)


def test_a_calibration_says_what_retrieved_its_queries_and_how_deep():
    scorer = LookupScorer({"a": 0.1, "b": 0.9})
    queries = [retrieved("store", 8, "1"), retrieved(id="2"), retrieved("store", 8, "3")]
    told = calibrate(queries, scorer, alpha=0.5, retrieval={"chunking": "500", "k": 8})
    assert told.retrieval == {"chunking": "500", "k": 8, "retriever": "store"}
    assert told.k == 8
    untold = calibrate([retrieved()], scorer, alpha=0.5)
    assert (untold.retrieval, untold.k) == (None, None)


@pytest.mark.parametrize(
    ("queries", "told", "differs"),
    [
        ([retrieved("one", 8), retrieved("other", 8)], None, "retriever: 'one', 'other'"),
        ([retrieved("one", 8), retrieved("one", 20)], None, "k: 20, 8"),
        ([retrieved("one", 8)], {"k": 5}, "k: 5, 8"),
    ],
)
def test_a_calibration_is_of_one_retriever_at_one_depth(queries, told, differs):
    with pytest.raises(ValueError, match=f"judged queries differ in their {differs}; a calib"):
        calibrate(queries, LookupScorer({"a": 0.1, "b": 0.9}), alpha=0.5, retrieval=told)


def test_a_scored_query_is_not_changed_by_calibrating():
    queries = three_queries()
    calibration_of(queries)
    for query, fresh in zip(queries, three_queries(), strict=True):
        assert query.scores.tolist() == fresh.scores.tolist()
        assert query.relevant.tolist() == fresh.relevant.tolist()


# --- what may not enter ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "error"),
    [
        (0, ValueError),
        (1, ValueError),
        (-0.1, ValueError),
        (1.1, ValueError),
        (math.nan, ValueError),
        ("0.1", TypeError),
        (True, TypeError),
        (None, TypeError),
    ],
)
def test_a_bad_alpha_is_an_error_that_names_it(alpha, error):
    judged = [JudgedQuery("q", ["a"], [True])]
    with pytest.raises(error, match="alpha is"):
        calibration_of(alpha=alpha)
    with pytest.raises(error, match="alpha is"):
        calibration_of().at(alpha)
    with pytest.raises(error, match="alpha is"):
        calibrate(judged, Unpaid(), alpha=alpha)


def test_alpha_has_no_default():
    with pytest.raises(TypeError, match="alpha"):
        Calibration.from_scores(three_queries(), scorer="lookup")
    with pytest.raises(TypeError, match="alpha"):
        calibrate([JudgedQuery("q", ["a"], [True])], Unpaid())


@pytest.mark.parametrize("guarantee", ["recall", "All", "", None])
def test_an_unknown_guarantee_is_an_error_that_names_the_known_ones(guarantee):
    with pytest.raises(ValueError, match=r"guarantee is .*'query-recall', 'snippet', 'all', 'any'"):
        calibration_of(guarantee=guarantee)
    with pytest.raises(ValueError, match="guarantee is"):
        calibrate([JudgedQuery("q", ["a"], [True])], Unpaid(), alpha=0.1, guarantee=guarantee)


class Unpaid:
    """A scorer that must not be called."""

    name = "unpaid"

    def score(self, query, snippets):
        raise AssertionError("the scorer was called before the arguments were checked")


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        ([], "there are no judged queries; give those to calibrate on"),
        ([ScoredQuery([0.1], [False])], "none of the 1 judged queries has a relevant"),
        ([ScoredQuery([], [], missed=3)], "none of the 1 judged queries has a relevant"),
        ([relevant(0.1, id="a"), relevant(0.2, math.nan, id="b")], r"'b': scores\[1\] is nan"),
        ([relevant(0.1), relevant(math.nan)], r"query number 2: scores\[0\] is nan"),
        ([relevant(0.1, id="a"), relevant(0.2, id="a")], "query id 'a' occurs 2 times"),
        ([ScoredQuery([], [], id="a", missed=3)], "none of the 1 judged queries has a relevant"),
    ],
)
@every_guarantee
def test_what_cannot_be_calibrated_on_is_an_error_that_names_query_and_field(
    queries, message, guarantee
):
    with pytest.raises(ValueError, match=message):
        calibration_of(queries, guarantee=guarantee)


def test_queries_without_an_id_are_different_queries():
    assert calibration_of([relevant(0.1), relevant(0.2)]).n_queries == 2


def test_a_scorer_that_returns_the_wrong_number_of_scores_is_named():
    class Short:
        name = "short"

        def score(self, query, snippets):
            return [0.1]

    with pytest.raises(ValueError, match=r"'short' returned an array of shape \(1,\) for 2"):
        calibrate([JudgedQuery("q", ["a", "b"], [True, False])], Short(), alpha=0.1)


@pytest.mark.parametrize(
    ("queries", "auc"),
    [
        # Of the four pairs of a relevant and an irrelevant score, one is in the right order.
        ([ScoredQuery([0.9, 0.2, 0.5, 0.1], [True, True, False, False])], "0.25"),
        ([ScoredQuery([0.5, 0.5, 0.1], [True, False, False])], "0.25"),  # a tie counts half
        ([ScoredQuery([2.0], [True]), ScoredQuery([1.0], [False])], "0.00"),
    ],
)
def test_a_reversed_direction_warns_and_names_the_auc(queries, auc):
    with pytest.warns(UserWarning, match=rf"AUC {auc}.*lower = more relevant") as caught:
        calibration_of(queries)
    assert caught[0].filename == __file__.replace(".pyc", ".py")


@pytest.mark.parametrize(
    "queries",
    [
        [ScoredQuery([0.1, 0.9], [True, False])],
        [ScoredQuery([0.5, 0.5], [True, False])],
        [relevant(0.1, 0.2)],
    ],
)
def test_the_right_direction_does_not_warn(queries):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert calibration_of(queries).n_queries == 1


# --- what is said ---------------------------------------------------------------------------------


def test_the_statement_of_query_recall_says_what_over_what_and_from_how_much():
    statement = calibration_of(alpha=0.4).statement
    for part in (
        "at least 0.6",
        "'query-recall', alpha = 0.4",
        "'lookup' scores at most 0.4",
        "exchangeable",
        "the same retriever, depth, chunking and scorer",
        "5 relevant snippets of 3 queries",
        "2 more had no relevant snippet retrieved and did not enter",
        "here 7 of the 12 known ones",
        "design effect",
    ):
        assert part in statement
    assert "\n" not in statement


def test_the_statement_of_snippet_says_that_clusters_break_it():
    statement = calibration_of(alpha=0.4, guarantee="snippet").statement
    for part in (
        "'snippet', alpha = 0.4",
        "at least 0.6",
        "are not",
        "'query-recall' assumes less",
    ):
        assert part in statement


@pytest.mark.parametrize(
    ("guarantee", "unit", "needed", "more"),
    [
        ("query-recall", "3 judged queries", 19, 16),
        ("snippet", "5 relevant snippets", 19, 14),
        ("all", "3 judged queries", 19, 16),
        ("any", "3 judged queries", 19, 16),
    ],
)
def test_the_statement_of_keeping_everything_says_how_many_more_are_needed(
    guarantee, unit, needed, more
):
    statement = calibration_of(alpha=0.05, guarantee=guarantee).statement
    assert f"Everything is kept: {unit} are too few for any threshold" in statement
    assert f"at least {needed}, that is {more} more" in statement
    assert "scores at most" not in statement


def test_the_statement_mentions_nothing_that_did_not_happen():
    statement = calibration_of([relevant(0.1), relevant(0.2)]).statement
    assert "had no relevant" not in statement
    assert "known ones" not in statement
    assert "Nothing is promised about relevant snippets that the retriever misses." in statement


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (None, None),
        ({"source": "judged.jsonl"}, None),
        ({"source": "LLM"}, "Relevant is what an LLM called so, which nobody audited."),
        (
            {"source": "LLM", "llm": "m-4"},
            "Relevant is what the LLM 'm-4' called so, which nobody audited.",
        ),
        (
            {"source": "LLM", "llm": "m-4", "audit": {"audited": 200, "of": 3000}},
            "Relevant is what the LLM 'm-4' called so, and a person judged 200 of its labels "
            "again.",
        ),
    ],
)
def test_the_statement_says_where_an_llm_labelled_and_whether_anyone_looked(labels, said):
    queries = [ScoredQuery([i / 20], [True]) for i in range(20)]
    statement = Calibration.from_scores(queries, alpha=0.1, scorer="s", labels=labels).statement
    if said is None:
        assert "LLM" not in statement
    else:
        assert said in statement


def test_the_number_that_is_said_to_be_enough_is_enough():
    for guarantee in GUARANTEES:
        for queries, finite in ((18, False), (19, True)):
            scored = [relevant(i / 100) for i in range(queries)]
            calibration = calibration_of(scored, alpha=0.05, guarantee=guarantee)
            assert math.isfinite(calibration.threshold()) == finite


def test_snippets_of_a_query_that_are_kept_together_are_worth_one():
    together = [relevant(*[float(i)] * 10) for i in range(20)]
    calibration = calibration_of(together, alpha=0.5)
    assert calibration.n_relevant == 200
    assert calibration.effective_n == pytest.approx(19)
    assert calibration.design_effect == pytest.approx(200 / 19)


# --- other alphas ---------------------------------------------------------------------------------

alphas = st.integers(1, 99).map(lambda i: i / 100)
# Whole numbers from a small range, so that ties are common and 2 ** score is exact.
query_scores = st.lists(st.integers(-9, 9), min_size=1, max_size=6)
scored_lists = st.lists(query_scores, min_size=1, max_size=12)
guarantees = st.sampled_from(GUARANTEES)


def calibration_from(lists, alpha, guarantee):
    return calibration_of([relevant(*q) for q in lists], alpha=alpha, guarantee=guarantee)


@every_guarantee
def test_another_alpha_needs_no_other_scores(guarantee):
    calibration = calibration_of(guarantee=guarantee, labels={"source": "hand"})
    for alpha in (0.05, 0.2, 0.25, 0.5, 0.9):
        other, direct = calibration.at(alpha), calibration_of(alpha=alpha, guarantee=guarantee)
        assert other.alpha == alpha
        assert other.threshold() == direct.threshold()
        assert other.labels == {"source": "hand"}
        at = [0.1, 0.25, 0.4, 0.95]
        assert other.p_values(at).tolist() == calibration.p_values(at).tolist()
    assert calibration.alpha == 0.4
    assert calibration.at(0.4) == calibration


@given(scored_lists, alphas, alphas, guarantees)
def test_a_larger_alpha_keeps_a_subset(lists, one, other, guarantee):
    smaller, larger = sorted((one, other))
    at = np.arange(-10, 11)
    kept = calibration_from(lists, smaller, guarantee).keep(at)
    fewer = calibration_from(lists, larger, guarantee).keep(at)
    assert not (fewer & ~kept).any()
    by_at = calibration_from(lists, smaller, guarantee).at(larger).keep(at)
    assert by_at.tolist() == fewer.tolist()


@settings(max_examples=200)
@given(scored_lists, alphas, guarantees)
def test_a_score_is_kept_exactly_if_its_p_value_is_above_alpha(lists, alpha, guarantee):
    calibration = calibration_from(lists, alpha, guarantee)
    at = np.array([*range(-10, 11), math.inf, -math.inf])
    assert calibration.keep(at).tolist() == (calibration.p_values(at) > alpha).tolist()


@given(scored_lists, alphas)
def test_the_threshold_is_that_of_the_theorem_over_the_pooled_scores(lists, alpha):
    pooled = [score for query in lists for score in query]
    sizes = [len(query) for query in lists for _ in query]
    by_query = calibration_from(lists, alpha, "query-recall").threshold()
    assert by_query == query_recall_threshold(pooled, sizes, alpha)
    by_snippet = calibration_from(lists, alpha, "snippet").threshold()
    assert by_snippet == conformal_quantile(pooled, alpha)
    for guarantee, end in (("all", max), ("any", min)):
        by_end = calibration_from(lists, alpha, guarantee).threshold()
        assert by_end == conformal_quantile([end(query) for query in lists], alpha)


# --- metamorphic ----------------------------------------------------------------------------------


@given(scored_lists, alphas, guarantees, st.randoms(use_true_random=False))
def test_the_order_of_queries_and_of_snippets_is_nothing(lists, alpha, guarantee, random):
    shuffled = [random.sample(query, len(query)) for query in lists]
    random.shuffle(shuffled)
    one = calibration_from(lists, alpha, guarantee)
    other = calibration_from(shuffled, alpha, guarantee)
    at = np.arange(-10, 11)
    assert one.threshold() == other.threshold()
    assert one.p_values(at).tolist() == other.p_values(at).tolist()


@given(scored_lists, alphas, guarantees)
def test_irrelevant_snippets_are_nothing(lists, alpha, guarantee):
    mixed = [
        ScoredQuery([*q, 10, 11], [True] * len(q) + [False] * 2) for q in (*lists, [])
    ]  # and a query that has nothing else
    with_them = calibration_of(mixed, alpha=alpha, guarantee=guarantee)
    assert with_them.threshold() == calibration_from(lists, alpha, guarantee).threshold()


@given(scored_lists, alphas, guarantees)
def test_a_strictly_increasing_map_of_the_scores_changes_nothing_that_is_kept(
    lists, alpha, guarantee
):
    at = np.arange(-10, 11)
    before = calibration_from(lists, alpha, guarantee)
    mapped = [[2.0**score - 7 for score in query] for query in lists]
    after = calibration_from(mapped, alpha, guarantee)
    assert after.keep(2.0**at - 7).tolist() == before.keep(at).tolist()
    assert after.p_values(2.0**at - 7).tolist() == before.p_values(at).tolist()


# --- the file -------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    """A file with a threshold of 0.4, and everything that a file may hold."""
    path = tmp_path / "calibration.json"
    calibration_of(retrieval={"retriever": "Café", "k": 20}, labels={"source": None}).save(path)
    return path


def changed(path, *, resign=False, **fields):
    """Change fields of a file; `resign` makes its checksum fit again."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content.update(fields)
    if resign:
        del content["sha256"]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        content["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(content), encoding="utf-8")


def queries_with(path, **fields):
    queries = json.loads(path.read_text(encoding="utf-8"))["queries"]
    queries[0].update(fields)
    return queries


AWKWARD = [0.1 + 0.2, 1 / 3, 5e-324, -0.0, 1e300, math.pi, -2.5e-10]


@every_guarantee
@pytest.mark.parametrize("alpha", [0.4, 0.172, 0.01])
def test_a_calibration_survives_its_file_bit_by_bit(tmp_path, guarantee, alpha):
    queries = [relevant(*AWKWARD, id="ü", group="g", missed=3), relevant(1.0), *three_queries()]
    calibration = calibration_of(
        queries,
        alpha=alpha,
        guarantee=guarantee,
        scorer="modèle « é »",
        retrieval={"k": 20, "nested": [1, {"a": None}]},
        labels={"source": "hand", "share": 0.1 + 0.2},
    )
    calibration.save(tmp_path / "c.json")
    loaded = Calibration.load(tmp_path / "c.json")
    assert loaded == calibration
    assert hash(loaded) == hash(calibration)
    assert loaded.checksum == calibration.checksum
    assert loaded.statement == calibration.statement
    assert loaded.threshold() == calibration.threshold()
    at = np.array([*AWKWARD, 0.3, 0.4, 7.0])
    assert loaded.p_values(at).tolist() == calibration.p_values(at).tolist()
    for ours, theirs in zip(calibration.queries, loaded.queries, strict=True):
        assert ours.scores.tobytes() == theirs.scores.tobytes()
        assert (ours.id, ours.group, ours.missed) == (theirs.id, theirs.group, theirs.missed)
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "c.json").read_bytes()


def test_keeping_everything_survives_its_file(tmp_path):
    path = tmp_path / "c.json"
    calibration_of(alpha=0.01).save(path)
    assert json.loads(path.read_text())["threshold"] == "keep_all"
    assert Calibration.load(path).threshold() == math.inf


def test_the_file_is_json_that_its_reader_understands(saved):
    content = json.loads(saved.read_text(encoding="utf-8"))
    assert content["format"] == "conformal-retrievers/calibration"
    assert content["version"] == 1
    assert content["guarantee"] == "query-recall"
    assert (content["alpha"], content["threshold"]) == (0.4, 0.4)
    assert (content["n_queries"], content["n_relevant"], content["n_without_relevant"]) == (3, 5, 1)
    assert content["scorer"] == "lookup"
    assert content["retrieval"] == {"retriever": "Café", "k": 20}
    assert content["queries"][0] == {
        "id": "a",
        "group": None,
        "missed": 2,
        "scores": [0.1, 0.3],
    }
    assert [query["id"] for query in content["queries"]] == ["a", "b", "c", "d"]
    assert (content["delta"], content["by_group"], content["merge_groups"]) == (None, False, None)
    assert content["count_missed"] is False
    assert "Café" in saved.read_text(encoding="utf-8")
    assert len(saved.read_text(encoding="utf-8").splitlines()) > 20


def test_calibrations_are_equal_if_their_files_are():
    one = calibration_of()
    same = replace(calibration_of(), created=one.created)
    assert one == same == one.at(0.4)
    assert {one, same} == {one}
    for other in (one.at(0.3), replace(one, created="then"), replace(one, scorer="s"), "text"):
        assert one != other


@every_guarantee
def test_a_calibration_survives_pickling(guarantee):
    calibration = calibration_of(guarantee=guarantee)
    fresh = pickle.loads(pickle.dumps(calibration))
    assert calibration.threshold() == fresh.threshold()
    used = pickle.loads(pickle.dumps(calibration))  # with what it has derived by now
    assert used == fresh == calibration


def test_a_file_that_is_cut_off_anywhere_is_an_error_that_names_it(saved):
    whole = saved.read_bytes()
    for length in [*range(0, len(whole) - 2, 41), len(whole) - 3, len(whole) - 2]:
        saved.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="not a complete calibration file") as error:
            Calibration.load(saved)
        assert str(saved) in str(error.value)


def test_a_byte_that_changes_anywhere_is_noticed(saved):
    whole = saved.read_bytes()
    for place in range(0, len(whole), 17):
        broken = bytearray(whole)
        broken[place] ^= 0x01
        saved.write_bytes(bytes(broken))
        with pytest.raises(ValueError, match="calibration") as error:
            Calibration.load(saved)
        assert str(saved) in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"threshold: 0.4",
        b"\xff\xfe\x00",
        b"\x80\x04\x95.",  # a pickle
        b'{"format": "conformal-retrievers/calibration", "alpha": NaN}',
        b'{"format": "conformal-retrievers/calibration", "threshold": Infinity}',
    ],
)
def test_a_file_that_is_not_json_is_an_error_that_names_it(tmp_path, content):
    path = tmp_path / "calibration.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"calibration\.json is not a complete calibration file"):
        Calibration.load(path)


@pytest.mark.parametrize(
    "content", ["[]", "0.4", "null", "{}", '{"format": "mine"}', '{"threshold": 0.4}']
)
def test_another_json_file_is_an_error_that_names_the_field(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"other\.json is not a calibration file.*'format'"):
        Calibration.load(path)


def test_a_newer_version_is_an_error_that_says_to_upgrade(saved):
    for resign in (False, True):
        changed(saved, version=2, resign=resign, new_field="from the future")
        with pytest.raises(ValueError, match=r"version 2.*upgrade conformal-retrievers"):
            Calibration.load(saved)


@pytest.mark.parametrize(
    "fields",
    [
        {"alpha": 0.5},
        {"threshold": 0.9},
        {"threshold": "keep_all"},
        {"guarantee": "snippet"},
        {"scorer": "another"},
        {"n_without_relevant": 0},
        {"created": "yesterday"},
        {"extra": 1},
        {"sha256": None},
        {"sha256": "0" * 64},
    ],
)
def test_a_field_that_was_changed_is_noticed(saved, fields):
    changed(saved, **fields)
    with pytest.raises(ValueError, match=r"was changed after it was written.*'sha256'") as error:
        Calibration.load(saved)
    assert str(saved) in str(error.value)


def test_a_score_that_was_changed_or_a_checksum_that_was_removed_is_noticed(saved):
    changed(saved, queries=queries_with(saved, scores=[0.1, 0.30000000000000004]))
    with pytest.raises(ValueError, match="'sha256'"):
        Calibration.load(saved)
    content = json.loads(saved.read_text(encoding="utf-8"))
    del content["sha256"]
    saved.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="'sha256'"):
        Calibration.load(saved)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"threshold": 0.9}, "field 'threshold' is 0.9, but its scores give 0.4"),
        ({"threshold": "keep_all"}, "field 'threshold' is 'keep_all', but its scores give 0.4"),
        ({"threshold": 0.4000000000000001}, "field 'threshold'"),
        ({"alpha": 0.5}, "field 'threshold' is 0.4, but its scores give 0.3"),
        ({"alpha": 0.1}, "field 'threshold' is 0.4, but its scores give 'keep_all'"),
        ({"n_queries": 300}, "field 'n_queries' is 300, but its scores give 3"),
        ({"n_relevant": 500}, "field 'n_relevant' is 500, but its scores give 5"),
        ({"alpha": 1.5}, "alpha is 1.5"),
        ({"alpha": "0.4"}, "alpha is "),
        ({"alpha": True}, "alpha is "),
        ({"delta": 0.1}, "delta is 0.1 with alpha 0.4, which 3 judged queries cannot promise"),
        ({"delta": 1.5}, "delta is 1.5"),
        ({"delta": "0.1"}, "delta is "),
        ({"guarantee": "all"}, "field 'threshold' is 0.4, but its scores give 0.9"),
        ({"guarantee": "most"}, "guarantee is "),
        ({"guarantee": "snippet", "delta": 0.1}, "delta is 0.1 with guarantee 'snippet'"),
        ({"count_missed": True}, "field 'threshold' is 0.4, but its scores give 'keep_all'"),
        ({"count_missed": 1}, "count_missed is "),
        ({"by_group": True}, "'a': group is None, but the calibration is by group"),
        ({"merge_groups": {"g": "h"}}, "merge_groups is given without by_group=True"),
        ({"threshold": {"": 0.4}}, r"field 'threshold' is \{'': 0.4\}, but its scores give 0.4"),
        ({"threshold": "none"}, "threshold"),
        ({"scorer": None}, "scorer is "),
        ({"queries": []}, "there are no judged queries"),
        ({"queries": "none"}, "queries is "),
        ({"extra": 1}, "extra is "),
        ({"version": "1"}, "version '1'"),
        ({"version": 0}, "version 0"),
    ],
)
def test_a_changed_field_with_a_checksum_that_fits_is_noticed_too(saved, fields, message):
    changed(saved, resign=True, **fields)
    with pytest.raises(ValueError, match=message) as error:
        Calibration.load(saved)
    assert str(saved) in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scores": [0.1, 0.35, 0.36]}, "'n_relevant' is 5, but its scores give 6"),
        ({"scores": [0.5, 0.6]}, "'threshold' is 0.4, but its scores give 0.6"),
        ({"scores": [0.1, "0.3"]}, r"queries\.0\.scores\.1"),
        ({"scores": [0.1, None]}, r"queries\.0\.scores\.1"),
        ({"missed": -1}, "missed"),
        ({"scores": []}, "'threshold' is 0.4, but its scores give 0.9"),
        ({"group": 5}, r"queries\.0\.group"),
        ({"missed": 1.5}, r"queries\.0\.missed"),
        ({"id": "b"}, "query id 'b' occurs 2 times"),
        ({"more": 1}, r"queries\.0\.more"),
    ],
)
def test_a_changed_query_with_a_checksum_that_fits_is_noticed_too(saved, fields, message):
    changed(saved, resign=True, queries=queries_with(saved, **fields))
    with pytest.raises(ValueError, match=message) as error:
        Calibration.load(saved)
    assert str(saved) in str(error.value)


def test_a_field_that_is_missing_is_named(saved):
    content = json.loads(saved.read_text(encoding="utf-8"))
    for name in content.keys() - {"sha256", "format"}:
        saved.write_text(json.dumps({k: v for k, v in content.items() if k != name}))
        changed(saved, resign=True)
        said = "has version None" if name == "version" else f"{name} is missing"
        with pytest.raises(ValueError, match=said):
            Calibration.load(saved)


def test_the_test_signs_as_the_library_does(saved):
    changed(saved, resign=True)
    assert Calibration.load(saved).threshold() == 0.4


def test_a_file_that_is_not_there_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        Calibration.load(tmp_path / "none.json")


def test_a_newer_calibration_replaces_an_older_file(saved):
    calibration_of(alpha=0.5).save(saved)
    assert Calibration.load(saved).alpha == 0.5
    assert os.listdir(saved.parent) == [saved.name]


def test_a_path_may_be_a_string_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calibration_of().save("calibration.json")
    assert Calibration.load("calibration.json").threshold() == 0.4
    assert os.listdir(tmp_path) == ["calibration.json"]


def test_a_saved_file_is_as_readable_as_any_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        calibration_of().save(tmp_path / "calibration.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "calibration.json").stat().st_mode) == 0o640


@pytest.mark.parametrize("unwritable", ["none/c.json", "calibration.json/c.json", "."])
def test_a_path_that_cannot_be_written_is_named_and_old_files_stay(saved, unwritable):
    folder, before = saved.parent, saved.read_bytes()
    path = folder / unwritable
    with pytest.raises(OSError, match="cannot write the calibration") as error:
        calibration_of(alpha=0.5).save(path)
    assert error.value.filename == str(path)
    assert str(path) in str(error.value)
    assert saved.read_bytes() == before
    assert os.listdir(folder) == [saved.name]
    assert list(folder.parent.glob(".*.json*")) == []


def test_a_folder_at_the_path_is_named_and_stays(saved):
    (saved.parent / "taken").mkdir()
    with pytest.raises(OSError, match="cannot write the calibration"):
        calibration_of().save(saved.parent / "taken")
    assert sorted(os.listdir(saved.parent)) == [saved.name, "taken"]


@pytest.mark.parametrize("step", ["replace", "fsync", "chmod"])
def test_a_failure_while_writing_leaves_the_old_file_and_nothing_else(saved, monkeypatch, step):
    before = saved.read_bytes()

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match=r"cannot write the calibration.*No space left") as error:
        calibration_of(alpha=0.5).save(saved)
    assert error.value.errno == 28
    assert error.value.filename == str(saved)
    monkeypatch.undo()
    assert saved.read_bytes() == before
    assert Calibration.load(saved).alpha == 0.4
    assert os.listdir(saved.parent) == [saved.name]


def test_the_old_file_is_whole_until_it_is_replaced(saved, monkeypatch):
    before, replaced = saved.read_bytes(), os.replace

    def look(temporary, path):
        assert saved.read_bytes() == before
        assert Calibration.load(temporary).alpha == 0.5
        replaced(temporary, path)

    monkeypatch.setattr(os, "replace", look)
    calibration_of(alpha=0.5).save(saved)
    assert Calibration.load(saved).alpha == 0.5


# --- nothing lost ---------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["retrieval", "labels"])
@pytest.mark.parametrize("value", [math.nan, {1, 2}, "\ud800"])
def test_provenance_that_a_file_cannot_hold_is_refused_at_once(field, value):
    with pytest.raises(ValueError, match=f"{field} is .*JSON cannot hold"):
        calibration_of(**{field: {"x": value}})


def test_provenance_does_not_change_with_what_it_was_made_from():
    given = {"list": [1]}
    calibration = calibration_of(labels=given)
    given["list"].append(2)
    assert calibration.labels == {"list": [1]}


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, MemoryError])
def test_whatever_interrupts_writing_leaves_the_old_file_and_nothing_beside_it(
    tmp_path, monkeypatch, interruption
):
    path = tmp_path / "calibration.json"
    calibration_of().save(path)
    before = path.read_bytes()

    def interrupted(*_):
        raise interruption

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(interruption):
        calibration_of(alpha=0.3).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "calibration.json"
    link.symlink_to(tmp_path / "real" / "calibration.json")
    calibration_of().save(link)
    assert link.is_symlink()
    assert Calibration.load(tmp_path / "real" / "calibration.json") == Calibration.load(link)


def test_lists_without_end_are_no_calibration(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="is not a complete calibration file"):
        Calibration.load(path)


@pytest.mark.parametrize("alpha", [1e-7, 1e-12])
def test_a_tiny_alpha_does_not_become_a_promise_of_everything(alpha):
    assert f"at least {1 - alpha!r} is kept" in calibration_of(alpha=alpha).statement


def test_alpha_in_single_precision_is_the_decimal_it_prints_as():
    assert calibration_of(alpha=np.float32(0.7)).alpha == 0.7
    assert calibration_of().at(np.float32(0.7)) == calibration_of().at(0.7)


def test_an_irrelevant_snippet_may_have_any_score_or_none():
    odd = ScoredQuery([0.1, math.nan, math.inf, -math.inf], [True, False, False, False])
    plain = relevant(0.1)
    assert calibration_of([odd]).threshold() == calibration_of([plain]).threshold()


def test_zero_and_minus_zero_are_one_score():
    one = calibration_of([relevant(0.0)], alpha=0.5)
    other = calibration_of([relevant(-0.0)], alpha=0.5)
    assert np.signbit(other.queries[0].scores).tolist() == [False]
    assert one.threshold() == other.threshold() == 0


@pytest.mark.parametrize("scorer", [None, 7, "two\nlines", "\ud800"])
def test_a_scorers_name_is_printable_text(scorer):
    with pytest.raises(ValueError, match="scorer is .*; give the scorer's name"):
        calibration_of(scorer=scorer)


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ('"alpha": 0.4', '"alpha": 0.5, "alpha": 0.4'),
    ],
)
def test_what_a_reader_could_read_otherwise_is_refused(saved, written, instead):
    text = saved.read_text(encoding="utf-8")
    assert written in text
    saved.write_text(text.replace(written, instead, 1))
    with pytest.raises(ValueError, match="is not a complete calibration file"):
        Calibration.load(saved)


def test_a_file_keeps_its_mode(saved):
    saved.chmod(0o600)
    calibration_of(alpha=0.3).save(saved)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


def test_what_is_no_regular_file_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="regular file"):
        calibration_of().save(pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_the_lowest_score_of_each_judged_query_is_kept_whatever_is_relevant(tmp_path):
    scored = [
        ScoredQuery([0.2, 0.5, math.nan], [True, False, False]),
        ScoredQuery([0.4, 0.1], [False, False]),  # nothing relevant: new queries may be like that
        ScoredQuery([math.nan, math.inf], [False, False]),
        ScoredQuery([], [], missed=2),
        ScoredQuery([0.3], [True]),
    ]
    calibration = calibration_of(scored)
    assert calibration.lowest_scores == (0.1, 0.2, 0.3)
    calibration.save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json").lowest_scores == (0.1, 0.2, 0.3)
    assert calibration.at(0.5).lowest_scores == (0.1, 0.2, 0.3)


def test_infinite_scores_are_kept_never_and_always_and_go_through_the_file(tmp_path):
    # What a scorer itself drops is lost at every finite threshold; what it takes in is kept.
    scored = [relevant(0.1 * i, id=f"q{i}") for i in range(8)]
    scored += [relevant(math.inf, 0.5, id="dropped"), relevant(-math.inf, id="taken in")]
    for guarantee, alpha, threshold in (
        ("all", 0.2, 0.7),  # the 9th of 10 maxima
        ("all", 0.1, math.inf),
        ("any", 0.1, 0.7),
        ("query-recall", 0.2, 0.7),  # of the 8.8 queries it takes, 8.5 are found at .6
        ("all", 0.95, -math.inf),
    ):
        calibration = calibration_of(scored, alpha=alpha, guarantee=guarantee)
        assert calibration.threshold() == pytest.approx(threshold)
        calibration.save(tmp_path / "c.json")
        loaded = Calibration.load(tmp_path / "c.json")
        assert loaded == calibration
        assert loaded.threshold() == calibration.threshold()
        assert loaded.keep([-math.inf, math.inf]).tolist() == [True, threshold == math.inf]
    out_of_reach = calibration_of(scored, alpha=0.1, guarantee="all").statement
    assert "the scorer itself drops 1 of 11 relevant snippets" in out_of_reach


# --- as text --------------------------------------------------------------------------------------


def test_the_text_of_a_calibration_is_its_file_and_makes_it_again(tmp_path):
    queries = [ScoredQuery([0.1 * i], [True]) for i in range(20)]
    calibration = Calibration.from_scores(queries, alpha=0.1, scorer="s")
    calibration.save(tmp_path / "calibration.json")
    text = (tmp_path / "calibration.json").read_text(encoding="utf-8")
    assert calibration.to_json() == text
    assert Calibration.from_json(text) == calibration
    assert Calibration.from_json(json.dumps(json.loads(text))) == calibration
    with pytest.raises(ValueError, match="the text is not a complete calibration file"):
        Calibration.from_json(text[:-20])


def test_a_threshold_of_minus_infinity_is_said_to_keep_nothing_that_has_a_score():
    scored = [ScoredQuery([math.nan], [True]) for _ in range(19)] + [ScoredQuery([0.5], [True])]
    kept = {"on_unscorable": "keep", "alpha": 0.5, "scorer": "s"}
    calibration = Calibration.from_scores(scored, **kept)
    assert calibration.keep([-0.99, math.nan]).tolist() == [False, True]
    assert "Nothing that has a score is kept: the relevant snippets that" in calibration.statement
    assert "verything is kept" not in calibration.statement
    grouped = Calibration.from_scores(
        [replace(query, group="g") for query in scored], by_group=True, **kept
    )
    assert "Nothing that has a score is kept in g (20): the relevant" in grouped.statement
    missed = Calibration.from_scores(scored, count_missed=True, **kept)
    assert "out of reach" not in missed.statement


@pytest.mark.parametrize("on_unscorable", ["raise", "keep"])
def test_where_no_relevant_snippet_can_be_scored_there_is_nothing_to_calibrate_on(on_unscorable):
    scored = [ScoredQuery([math.nan, 0.5], [True, False]) for _ in range(20)]
    with pytest.raises(ValueError, match="not one of the 20 relevant snippets could be scored by"):
        Calibration.from_scores(scored, alpha=0.5, scorer="s", on_unscorable=on_unscorable)
