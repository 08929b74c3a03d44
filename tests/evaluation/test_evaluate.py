"""What is measured on judged queries: by hand, at the limits, and against simulations."""

import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import drawn
import numpy as np
import pytest
from lookup import LookupScorer

from conformal_retrievers import CalibrationMismatch, ConformalFilter, calibrate, score_queries
from conformal_retrievers.calibration.subjects import CLAIMS
from conformal_retrievers.data import Hit, JudgedQuery, ScoredQuery
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.data.retrieval import Described, Hybrid, Retrieval
from conformal_retrievers.evaluation import Share, diagnose, evaluate
from conformal_retrievers.theory.intervals import wilson_interval

QUERIES = [
    ScoredQuery([0.1, 0.2, 0.3, 0.4], [True, False, True, False], missed=2),  # keeps .1 .2
    ScoredQuery([0.2, 0.9], [True, False], missed=0),  # keeps .2
    ScoredQuery([0.7, 0.8, 0.9, 1.0, 1.1], [False, True, True, True, False], missed=0),
    ScoredQuery([0.1], [False], missed=1),  # keeps .1, has nothing relevant
]


def calibrated(given=(0.25,), alpha=0.5, **options):
    return drawn.calibrated(given, alpha, **options)


def test_the_shares_of_four_queries_by_hand():
    e = evaluate(calibrated(), QUERIES)
    assert (e.n_queries, e.n_relevant, e.n_missed, e.n_snippets) == (4, 6, 3, 12)
    assert {name: share.estimate for name, share in e.shares.items()} == pytest.approx(
        {
            "query-recall": (1 / 2 + 1 + 0) / 3,
            "snippet": 2 / 6,
            "all": 1 / 3,
            "any": 2 / 3,
            "end-to-end query-recall": (1 / 4 + 1 + 0 + 0) / 4,
            "end-to-end snippet": 2 / 9,
            "end-to-end all": 1 / 4,
            "end-to-end any": 2 / 4,
            "recall@K": (2 / 4 + 1 + 1 + 0) / 4,
            "removal": 8 / 12,
            "precision": 2 / 4,
            "m1": 3 / 4,
            "m2": (2 / 4 + 1 / 2 + 0 + 1) / 4,
            "unscorable": 0,
        },
        abs=1e-15,
    )
    assert e.coverage_std == pytest.approx(np.std([1 / 2, 1, 0]), abs=1e-15)
    assert e.text_removed is None


OF_FIVE = {"snippets": with_hits([*"abcde"]), "relevant": [True] + [False] * 4}
FOUND_BY_TWO = [replace(s, hits=(*s.hits, Hit("dense", 0))) for s in with_hits(["a", "b c"])]


def test_judged_queries_are_scored_as_the_filter_does():
    found = with_hits(["a", "b c"])
    judged = [JudgedQuery(f"q{i}", found, [True, False], id=f"q{i}") for i in range(12)]
    calibration, new = calibrate(judged[:8], alpha=0.5), judged[8:]
    by_hand = evaluate(calibration, score_queries(ConformalFilter.of(calibration).scorer, new))
    assert str(evaluate(calibration, new).shares) == str(by_hand.shares)  # with NaN
    assert str(diagnose(calibration, new).evaluation.shares) == str(by_hand.shares)
    for given, error in ((judged, "query id 'q0' was used to calibrate"), ("q", "Judged")):
        with pytest.raises((TypeError, ValueError), match=error):
            evaluate(calibration, given)
    unjudged = evaluate(calibration, [replace(query, relevant=[False] * 2) for query in new])
    assert "No snippet is marked as relevant, so coverage is unknown" in str(unjudged)


FAISS, INDEX = (Described(name=f"{f}()", framework=f) for f in ("LangChain", "LlamaIndex"))


def union(retriever):
    return {"retriever": Hybrid({"dense": Retrieval(retriever)})}


@pytest.mark.parametrize(
    ("calibrated", "new", "warns"),
    [
        ({"k": 20}, {"k": 60}, "judged queries have k 60, but the calibration has 20"),
        ({"retriever": "store(a)"}, {"retriever": "store(b)"}, r"retriever 'store\(b\)'"),
        ({"retriever": FAISS}, {"retriever": INDEX}, None),
        (union(FAISS), union(INDEX), None),
        ({"retriever": INDEX}, union(INDEX), "have retriever HybridRetriever"),
        ({}, {"k": 60}, None),
        (OF_FIVE, {}, "fewer than 3 snippets for a query, but 5 or more for nearly all"),
        ({"snippets": FOUND_BY_TWO}, {}, "judged queries have no hits of 'dense', which the cal"),
    ],
)
@pytest.mark.parametrize("measure", [evaluate, diagnose])
def test_queries_that_were_retrieved_otherwise_are_warned_of(calibrated, new, warns, measure):
    judged = [JudgedQuery(f"q{i}", with_hits(["a", "b c"]), [True, False]) for i in range(8)]
    calibration = calibrate([replace(query, **calibrated) for query in judged], alpha=0.5)
    others = [replace(query, query=f"new {query.query}", **new) for query in judged]
    with pytest.warns(UserWarning, match=warns) if warns else nullcontext():  # else an error
        measure(calibration, others)


def test_judged_queries_whose_score_the_file_does_not_hold_are_to_be_scored():
    remedy = r"'lookup'.*give score_queries\(scorer, judged\)"
    with pytest.raises(CalibrationMismatch, match=remedy):
        evaluate(calibrated(), [JudgedQuery("q", ["a", "b"], [True, False])])


def test_a_query_without_retrieved_snippets_counts_in_m1_and_recall():
    nothing, all_kept = ScoredQuery([], [], missed=1), replace(QUERIES[1], scores=[0.2, 0.1])
    e = evaluate(calibrated(), [nothing, all_kept])
    assert [share.estimate for share in (e.m1, e.recall_at_k, e.m2)] == [0.5, 0.5, 1]


def test_shares_of_whole_queries_have_wilsons_interval():
    scores = [0.1] * 300 + [0.9] * 100
    queries = [ScoredQuery([s], [True], missed=i // 399) for i, s in enumerate(scores)]
    e = evaluate(calibrated(), queries)
    for share in (e.m1, e.coverage["all"], e.coverage["any"], e.end_to_end["any"]):
        assert share.interval == wilson_interval(0.75, 400)
        assert (share.n, share.effective_n) == (400, 400)
        assert share == Share.of_units([i < 300 for i in range(400)])


def test_groups_are_measured_separately():
    queries = [
        ScoredQuery([0.1], [True], group="a"),
        ScoredQuery([0.9], [True], group="b"),
        ScoredQuery([0.1], [True]),
    ]
    e = evaluate(calibrated(), queries)
    assert list(e.by_group) == ["a", "b", None]
    assert [part.coverage["all"].estimate for part in e.by_group.values()] == [1, 0, 1]
    assert [part.n_queries for part in e.by_group.values()] == [1, 1, 1]
    assert evaluate(calibrated(), QUERIES).by_group == {}


def test_a_group_that_is_covered_too_little_is_named_without_a_change_of_the_verdict():
    rng = np.random.default_rng(2)

    def two():
        of_group = {"a": rng.normal(size=300), "b": rng.normal(2, size=60)}
        return [ScoredQuery([s], [True], group=g) for g, scores in of_group.items() for s in scores]

    made, new = calibrated(two(), 0.1), two()
    e = evaluate(made, new)
    assert e.groups_below.keys() == {"b"}
    assert not e.verdict.fails
    of_all = evaluate(made, [replace(q, group=None) for q in new])
    assert repr(e.verdict) == repr(of_all.verdict)  # it has NaN
    assert "below the target in 'b'" in str(e)
    assert "--by-group" in str(e)
    assert not evaluate(calibrated(two(), 0.1, by_group=True), new).groups_below


# --- tokens ---------------------------------------------------------------------------------------

TEXTS = {"one two": 0.1, "three": 0.2, "four five six": 0.9, "seven": math.nan}


def test_text_removed_are_those_of_dropped_snippets():
    judged = [JudgedQuery("q", list(TEXTS), [True, False, True, False])]
    scorer = LookupScorer(TEXTS)
    e = evaluate(calibrated(), score_queries(scorer, judged))
    assert e.text_removed.estimate == 13 / 30  # of the characters
    words = score_queries(scorer, judged, count_tokens=lambda text: len(text.split()))
    assert evaluate(calibrated(), words).text_removed.estimate == 3 / 7
    assert evaluate(calibrated(), [*words, ScoredQuery([0.1], [True])]).text_removed is None


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queries", "error", "match"),
    [
        ([], ValueError, "judged is empty"),
        ([QUERIES[0], JudgedQuery("q", [], [])], TypeError, r"judged\[1\]"),
        (SimpleNamespace(columns=["question"]), TypeError, r"judged is a table; give read\(table"),
        (QUERIES[0], TypeError, "judged is a single ScoredQuery"),
        (JudgedQuery("q", [], []), TypeError, "judged is a single JudgedQuery"),
        ([ScoredQuery([0.1], [True], id="own")], ValueError, "'own'"),
        ([ScoredQuery([0.1], [True], id="twice")] * 2, ValueError, "'twice'"),
    ],
)
def test_queries_that_cannot_be_evaluated_are_refused(queries, error, match):
    own = [ScoredQuery([0.25], [True], id="own")]
    with pytest.raises(error, match=match):
        evaluate(calibrated(own), queries)
    with pytest.raises(ValueError, match="level is 95"):
        evaluate(calibrated(own), QUERIES, level=95)


def test_a_calibration_of_another_subject_is_refused():
    with pytest.raises(CalibrationMismatch, match="claims"):
        evaluate(replace(calibrated(guarantee="all"), subject=CLAIMS), QUERIES)


# --- missed snippets ------------------------------------------------------------------------------


def test_recall_and_end_to_end_shares_are_unknown_without_missed_snippets():
    e, none_missed = (
        evaluate(calibrated(), [replace(query, missed=missed) for query in QUERIES])
        for missed in (None, 0)
    )
    for share in (e.recall_at_k, *e.end_to_end.values()):
        assert math.isnan(share.estimate)
        assert (share.low, share.high, share.n) == (0, 1, 0)
    assert "nan" not in str(e)
    assert none_missed.recall_at_k.estimate == 1
    assert none_missed.end_to_end == none_missed.coverage == e.coverage


def test_recall_is_over_the_queries_whose_missed_snippets_are_known():
    queries = [
        ScoredQuery([0.1], [True], group="a"),
        ScoredQuery([0.1], [True], group="b", missed=1),
        ScoredQuery([0.1], [True], group="b", missed=0),
    ]
    e = evaluate(calibrated(), queries)
    assert (e.recall_at_k.estimate, e.recall_at_k.n) == (0.75, 2)
    assert math.isnan(e.by_group["a"].recall_at_k.estimate)
    assert e.by_group["b"].end_to_end["query-recall"].estimate == 0.75


@pytest.mark.parametrize("ids", [(True, True), (True, False), (False, True)])
def test_queries_are_verified_as_held_out_only_if_all_have_ids(ids):
    own, new = (
        [ScoredQuery([i / 9], [True], id=f"{name}{i}" if known else None) for i in range(9)]
        for name, known in zip(("c", "n"), ids, strict=True)
    )
    e = evaluate(calibrated(own), new)
    assert e.held_out_verified == all(ids)
    assert ("Cannot verify" in str(e)) == (not all(ids))


# --- what is printed ------------------------------------------------------------------------------


def test_it_prints_the_verdict_first_in_short_lines_and_coverage_of_its_own_guarantee_only():
    e = evaluate(calibrated(guarantee="any"), QUERIES)
    lines = str(e).splitlines()
    assert "".join(lines).startswith(str(e.verdict)[:20])
    assert max(map(len, lines)) <= 80
    rows = [line[:24].rstrip() for line in lines]
    assert [name for name in e.shares if name in rows] == [
        *("any", "end-to-end any", "recall@K", "removal", "precision", "m1", "m2")
    ]
