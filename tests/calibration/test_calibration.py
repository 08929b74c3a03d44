"""Calibrations: what enters, what is kept, and what they are worth."""

import math
import pickle
from dataclasses import replace
from enum import Enum

import numpy as np
import pytest
from calibrations import GUARANTEES, OF_QUERIES, calibration_of, every_guarantee, relevant
from lookup import LookupScorer

from conformal_retrievers.calibration import calibrate
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery, with_hits
from conformal_retrievers.scoring.scorer import query_digest


def test_the_p_values_of_three_queries_by_hand():
    p = {g: calibration_of(guarantee=g).p_values([0.1, 0.25, 0.4, 0.95]) for g in GUARANTEES}
    assert p["query-recall"].tolist() == [1.0, 0.625, 0.5, 0.25]
    assert p["snippet"].tolist() == [6 / 6, 4 / 6, 3 / 6, 1 / 6]
    assert p["all"].tolist() == [1.0, 0.75, 0.5, 0.25]
    assert p["any"].tolist() == [1.0, 0.5, 0.5, 0.25]
    assert np.isnan(calibration_of().p_values([math.nan])).all()


@every_guarantee
@pytest.mark.parametrize(
    ("count_missed", "n_queries", "n_snippets"), [(False, 3, 5), (True, 4, 12)]
)
def test_queries_and_snippets_are_counted(guarantee, count_missed, n_queries, n_snippets):
    calibration = calibration_of(alpha=0.9, guarantee=guarantee, count_missed=count_missed)
    assert calibration.n_queries == n_queries
    assert calibration.n_units == {None: n_snippets if guarantee == "snippet" else n_queries}
    assert (calibration.n_relevant, calibration.n_missed) == (5, 2 + 0 + 1 + 4)
    assert calibration.n_without_relevant == 1
    assert (calibration.ids, calibration.n_without_id) == (set("abcde"), 0)


def test_ids_prove_that_queries_are_new_to_a_calibration_whose_queries_all_have_one():
    calibration = calibration_of()
    assert calibration.held_out(["x", "y"])
    assert not calibration.held_out(["x", None])
    for own in "ae":  # with a relevant snippet, and without
        with pytest.raises(ValueError, match=f"'{own}'"):
            calibration.held_out(["x", own])
    assert not calibration_of([relevant(0.1), relevant(0.2, id="b")]).held_out(["x"])


def test_a_calibration_holds_the_sorted_relevant_scores():
    calibration = calibration_of()
    held = [(q.id, q.scores.tolist(), q.missed) for q in calibration.queries]
    assert held == [("a", [0.1, 0.3], 2), ("b", [0.2], 0), ("c", [0.4, 0.9], 1), ("d", [], 4)]
    assert "'query-recall', alpha=0.4, scorer='lookup', 3 judged queries" in repr(calibration)


def test_snippets_of_a_query_that_are_kept_together_are_worth_one():
    together = calibration_of([relevant(*[float(i)] * 10) for i in range(20)], 0.5)
    assert together.n_relevant == 200
    assert together.effective_n == pytest.approx(19)
    assert together.design_effect == pytest.approx(200 / 19)


def test_calibrations_are_equal_if_their_files_are():
    one = calibration_of()
    same = replace(calibration_of(), created=one.created)
    assert one == same == one.at(0.4)
    assert {one, same} == {one}
    assert pickle.loads(pickle.dumps(one)) == one
    for other in (one.at(0.3), replace(one, created="then"), replace(one, scorer="s"), "text"):
        assert one != other


@pytest.mark.filterwarnings("ignore:relevant snippets score higher")
def test_calibrate_scores_each_judged_query(toy_judged, toy_corpus):
    scorer = LookupScorer({text: i / 10 for i, text in enumerate(toy_corpus.values())}, "by place")
    stated = {"retrieval": {"k": 9}, "labels": {"source": "hand"}}
    calibration = calibrate(toy_judged, scorer, alpha=0.5, **stated)
    assert calibration.scorer == "by place"
    assert [q.scores.tolist() for q in calibration.queries] == [[0.0, 0.1], [0.3], [0.6, 0.7]]
    assert [q.id for q in calibration.queries] == ["q0", "q1", "q2"]
    assert calibration.n_without_relevant == 1
    assert (calibration.guarantee, calibration.subject.name) == ("query-recall", "snippets")
    assert (calibration.retrieval, calibration.labels) == ({"k": 9}, {"source": "hand"})
    assert calibration.threshold() == 0.3  # 1/N_q adds up to .5, 1, 2, 2.5, 3; 0.5 × (3 + 1) = 2


def retrieved_as(id, query="q"):
    return JudgedQuery(query, with_hits(["a", "b"]), [True, False], id=id)


def test_an_alpha_that_looks_like_the_share_to_be_kept_is_questioned():
    with pytest.warns(UserWarning, match=r"alpha is 0.9, .* To guarantee 0.9, give alpha=0.1"):
        calibrate([retrieved_as("a")], alpha=0.9)
    with pytest.warns(UserWarning, match=r"delta is 0.9, .* give delta=0.1"):
        calibrate([retrieved_as(q, q) for q in "abc"], alpha=0.5, delta=0.9)
    with pytest.raises(ValueError, match="to keep 95 % give 0.05"):
        calibrate([retrieved_as("a")], alpha=95)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_unscorable": "drop"}, "on_unscorable"),
        ({"by_group": True}, "group is None"),
        ({"count_missed": True}, "count_missed"),
        ({"alpha": 0}, "alpha is 0"),
        ({"labels": {"x": math.nan}}, "labels is"),
        ({"judged": [retrieved_as("a"), retrieved_as("a", "r")]}, "'a' occurs 2 times"),
        ({"judged": [retrieved_as("a", " ")]}, r"judged\[0\]: query is ' '"),
    ],
)
def test_what_calibrates_nothing_is_refused_before_anything_is_scored(options, message):
    given = {"judged": [retrieved_as(f"q{i}", f"q{i}") for i in range(30)], "alpha": 0.1} | options
    with pytest.raises(ValueError, match=message):
        calibrate(given.pop("judged"), LookupScorer({}), **given)


def retrieved(retriever=None, k=None, query="q"):
    return JudgedQuery(query, ["a", "b"], [True, False], retriever=retriever, k=k)


def test_retriever_and_depth_are_those_of_the_judged_queries():
    scorer = LookupScorer({"a": 0.1, "b": 0.9})
    queries = [retrieved("store", 8, "p"), retrieved(), retrieved("store", 8, "r")]
    stated = calibrate(queries, scorer, alpha=0.5, retrieval={"chunking": "500", "k": 8})
    found = {"retriever": "store", "k": 8, "lengths": {"2": 2}}
    assert (stated.retrieval, stated.k) == ({"chunking": "500", **found}, 8)
    unknown = calibrate([retrieved()], scorer, alpha=0.5)
    assert (unknown.retrieval, unknown.k) == (None, None)
    for differing, retrieval, name in (
        ([retrieved("one", 8), retrieved("other", 8)], None, "retriever"),
        ([retrieved("one", 8), retrieved("one", 20)], None, "k"),
        ([retrieved("one", 8)], {"k": 5}, "k"),
    ):
        with pytest.raises(ValueError, match=f"differ in {name}:"):
            calibrate(differing, scorer, alpha=0.5, retrieval=retrieval)


def test_a_threshold_that_drops_nothing_warns():
    judged = [JudgedQuery(f"q{i}", ["near", "far"], [True, False]) for i in range(9)]
    with pytest.warns(UserWarning, match=r"drops none .* alpha = 0\.3"):
        calibrate(judged, LookupScorer({"near": 0.1, "far": 0.1}), alpha=0.3)
    only_relevant = [JudgedQuery(f"q{i}", ["near"], [True], k=1) for i in range(9)]
    for rightly in (judged, only_relevant, judged[:1]):  # the last has no threshold
        calibrate(rightly, LookupScorer({"near": 0.1, "far": 0.9}), alpha=0.3)  # no warning


class Fitted(LookupScorer):
    """A scorer that ranks within the query and was fitted."""

    relative_to_query = True

    def __init__(self, fitted_on=()):
        super().__init__({f"s{i}": float(i) for i in range(30)})
        object.__setattr__(self, "fitted_on", frozenset(map(query_digest, fitted_on)))
        object.__setattr__(self, "provenance", {"coefficients": [0.1, -2.5]})


@pytest.fixture
def judged():
    return [JudgedQuery(f"q{i}", [f"s{i}", "s29"], [True, False], id=f"q{i}") for i in range(20)]


def test_scores_relative_to_the_query_are_refused_for_single_snippets(judged):
    refused = pytest.raises(ValueError, match="guarantee is 'snippet'")
    for guarantee in OF_QUERIES:
        of_enum = Enum("G", {"own": guarantee}, type=str).own
        calibration = calibrate(judged, Fitted(), alpha=0.2, guarantee=of_enum)
        assert calibration.relative_to_query is True
        assert f"{guarantee!r}, alpha" in repr(calibration)
        with refused:
            calibration.guaranteeing("snippet")
    unpaid = Fitted()
    unpaid.scores.clear()
    with refused:
        calibrate(judged, unpaid, alpha=0.2, guarantee="snippet")


def test_calibrating_on_a_query_that_the_scorer_was_fitted_on_is_refused(judged):
    scorer = Fitted(fitted_on=["elsewhere", "q7"])
    with pytest.raises(ValueError, match="fitted on query 'q7'"):
        calibrate(judged, scorer, alpha=0.2)
    calibration = calibrate(judged[:7] + judged[8:], scorer, alpha=0.2)
    scorer.provenance["coefficients"].append(1.0)
    assert calibration.scorer_provenance == {"coefficients": [0.1, -2.5]}  # a copy


def test_a_relevant_snippet_without_a_score_may_count_as_kept(judged):
    queries = [relevant(i / 10, id=f"q{i}") for i in range(9)]
    queries.append(relevant(math.nan, 5.0, id="lost"))
    with pytest.raises(ValueError, match="'lost': .*on_unscorable='keep'"):
        calibration_of(queries, 0.2)
    calibration = calibration_of(queries, 0.2, on_unscorable="keep")
    # .8 × 11 = 8.8 queries: one half of the lost one at any threshold, and nine halves more.
    assert calibration.threshold() == 0.8
    assert calibration.queries[-1].scores.tolist() == [-math.inf, 5.0]
    with_nan = LookupScorer({f"s{i}": float(i) for i in range(30)} | {"s3": math.nan})
    kept = calibrate(judged, with_nan, alpha=0.2, on_unscorable="keep")
    assert [-math.inf] in [query.scores.tolist() for query in kept.queries]


@pytest.mark.parametrize("on_unscorable", ["raise", "keep"])
def test_a_scorer_that_scores_no_relevant_snippet_is_refused(on_unscorable):
    scored = [ScoredQuery([math.nan, 0.5], [True, False]) for _ in range(20)]
    with pytest.raises(ValueError, match="20 of 20 .* 'lookup'"):
        calibration_of(scored, 0.5, on_unscorable=on_unscorable)


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (ValueError, {"delta": 0.1}),  # three queries are too few
        *((ValueError, {"delta": 0.1, "guarantee": "snippet"}), (ValueError, {"delta": 1.0})),
        *((ValueError, {"alpha": 0}), (ValueError, {"guarantee": "recall"})),
        *((ValueError, {"retrieval": odd}) for odd in ({"x": {1, 2}}, {"k": 0})),
        *((TypeError, {"alpha": "0.1"}), (TypeError, {"by_group": 1})),
        *((TypeError, {"count_missed": "no"}), (TypeError, {"retrieval": [1]})),
        (ValueError, {"scorer": "two\nlines"}),
    ],
)
def test_an_argument_out_of_range_is_named(error, options):
    with pytest.raises(error, match=f"^{next(iter(options))}(: k)? is"):
        calibration_of(**options)
    if "alpha" in options:
        with pytest.raises(error, match="alpha is"):
            calibration_of().at(options["alpha"])


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        ([1], r"scored_queries\[0\] is 1"),
        ([], "there are no judged queries"),
        ([ScoredQuery([0.1], [False])], "none of the 1 judged queries"),
        ([ScoredQuery([], [], id="a", missed=3)], "none of the 1 judged queries"),
        ([relevant(0.1, id="a"), relevant(0.2, math.nan, id="b")], r"'b': scores\[1\] is nan"),
        ([relevant(0.1), relevant(math.nan)], r"query number 2: scores\[0\] is nan"),
        ([relevant(0.1, id="a"), relevant(0.2, id="a")], "query id 'a' occurs 2 times"),
        ([relevant(0.1, id="a"), ScoredQuery([1], [False], id="a")], "id 'a' occurs 2 times"),
    ],
)
def test_queries_that_cannot_calibrate_are_named(queries, message):
    with pytest.raises((TypeError, ValueError), match=message):
        calibration_of(queries)


def test_queries_that_are_not_retrieved_yet_are_told_so_and_how_to_retrieve_them():
    plain = [JudgedQuery(f"q{i}", [], []) for i in range(9)]
    quoted = [JudgedQuery.from_evidence(f"q{i}", [("page", "Ann did.")]) for i in range(9)]
    for to_judge in (plain, quoted):
        for scorer in (None, LookupScorer({})):
            with pytest.raises(ValueError, match=r"9 .* retrieved yet; .*judge_retriever\("):
                calibrate(to_judge, scorer, alpha=0.2)
    with pytest.raises(ValueError, match="returned nothing for all 9 queries"):
        calibrate([replace(query, retriever="store") for query in plain], alpha=0.2)
