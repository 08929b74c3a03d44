"""Calibrating on one half of judged queries and measuring the other, again and again."""

import re
from dataclasses import replace

import numpy as np
import pytest

from conformal_retrievers import FunctionScorer, JudgedQuery, Snippet, calibrate, evaluate
from conformal_retrievers.data.hits import Hit
from conformal_retrievers.evaluation import try_splits
from conformal_retrievers.evaluation.splits import _rows, halves


def judged_queries(n, rng):
    """Queries of ten snippets from two retrievers, of which one or two are relevant."""
    queries = []
    for i in range(n):
        relevant = rng.permutation(10) < 1 + i % 2
        hits = [[] for _ in range(10)]
        for name in ("bm25", "dense"):
            scores = rng.normal(2.0 * relevant)
            for rank, place in enumerate(np.argsort(-scores)):
                hits[place].append(Hit(name, rank, float(scores[place])))
        snippets = [Snippet(f"{i} {j}", hits=of) for j, of in enumerate(hits)]
        queries.append(JudgedQuery(f"q{i}", snippets, relevant.tolist(), id=f"q{i}", missed=i % 3))
    return queries


def test_one_split_is_what_evaluate_measures_on_the_other_half(rng):
    judged = judged_queries(60, rng)
    found = try_splits(judged, alpha=0.2, splits=1)
    [(calibrating, other)] = halves(judged, 1, seed=0)
    evaluation = evaluate(calibrate(calibrating, alpha=0.2), other)
    expected = evaluation.equal_recall.rows
    assert [row.name for row in found.rows] == [row.name for row in expected]
    for ours, theirs in zip(found.rows, expected, strict=True):
        for measure, estimate in theirs.measured.items():
            assert ours.measured[measure].estimate == pytest.approx(estimate.estimate)
    assert found.coverage.estimate == evaluation.coverage["query-recall"].estimate


@pytest.mark.slow
def test_the_coverage_is_near_its_target_on_average_and_the_spread_is_no_standard_error(rng):
    found = try_splits(judged_queries(100, rng), alpha=0.2, splits=10)
    assert found.coverage.low <= found.coverage.estimate <= found.coverage.high
    assert found.coverage.estimate == pytest.approx(0.8, abs=0.07)
    names = [row.name for row in found.rows]
    ends = ["bm25", "dense", "fusion", "bm25", "dense", "filter"]
    assert [name.split()[-1] for name in names] == ends
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    flowing = " ".join(text.split())
    assert "not a standard error" in flowing
    assert "of 10 splits" in flowing
    assert f"coverage is {100 * found.coverage.estimate:.1f} %" in flowing
    assert "it is fitted" not in flowing
    best, ours = found.best_top_k, found.filter
    swapped = {id(best): ours.measured, id(ours): best.measured}
    beaten = tuple(replace(r, measured=swapped.get(id(r), r.measured)) for r in found.rows)
    for rows, n, loses in ((found.rows, 4, False), (beaten, 5, False), (beaten, 4, True)):
        assert ("take that top k" in replace(found, rows=rows, fewer=n).comparison) is loses
    others = tuple(replace(row, setting=None) for row in found.rows)
    for tables, k in (([found] * 2, r"top \d"), ([found, replace(found, rows=others)], "top k of")):
        assert re.match(k, next(_rows(tables)).name)
    fewer = str(try_splits(judged_queries(38, rng), alpha=0.2, splits=2))  # 19 fit no score
    assert "On all 38 judged queries it is fitted" in " ".join(fewer.split())


def test_the_same_seed_draws_the_same_halves(rng):
    judged = judged_queries(40, rng)
    first, again, other = (try_splits(judged, alpha=0.3, splits=2, seed=s) for s in (0, 0, 1))
    assert repr(first) == repr(again) != repr(other)


def test_one_question_about_many_documents_is_split_and_copies_are_refused(rng):
    judged = judged_queries(40, rng)
    term = [
        replace(
            query,
            query="What is the term?",
            snippets=[replace(s, text=f"{s.text} of {query.id}") for s in query.snippets],
        )
        for query in judged
    ]
    assert try_splits(term, alpha=0.3, splits=2).n_queries == 40
    again = [replace(query, id=f"again {query.id}") for query in judged[:20]]
    with pytest.raises(ValueError, match="20 of 60 judged queries are copies"):
        try_splits([*judged, *again], alpha=0.3, splits=2)
    for one, other in halves(judged, 5, seed=3):
        assert len(one) == len(other) == 20
        assert {q.id for q in one}.isdisjoint(q.id for q in other)


def test_a_model_scores_each_query_once(rng):
    calls = []

    judged = judged_queries(30, rng)
    dense = {s.text: -s.hits[1].score for query in judged for s in query.snippets}

    def similar(query, texts):
        calls.append(query)
        return [dense[text] for text in texts]

    try_splits(judged, FunctionScorer(similar, "model"), alpha=0.3, splits=3)
    assert len(calls) == len(set(calls)) == 30


def test_too_few_queries_are_refused_with_the_number_that_is_needed(rng):
    with pytest.raises(ValueError, match="17 queries.*alpha = 0.1.*judge 18 or more"):
        try_splits(judged_queries(17, rng), alpha=0.1)
    with pytest.raises(ValueError, match="splits is 0"):
        try_splits(judged_queries(20, rng), alpha=0.1, splits=0)
