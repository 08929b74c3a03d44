"""Hits: columns of what retrievers know, and the union of their lists by reciprocal rank fusion."""

import numpy as np

from conformal_retrievers import FunctionScorer, JudgedQuery, ScoredQuery, score_queries
from conformal_retrievers.data.hits import Hit, fuse, hit_columns
from conformal_retrievers.data.queries import with_hits


def test_columns_have_an_infinite_rank_where_a_retriever_did_not_find_a_snippet():
    columns = hit_columns([(Hit("b", 0, 0.9), Hit("a", 3)), (), (Hit("b", 1, -1),)])
    assert list(columns) == ["a", "b"]
    np.testing.assert_array_equal(columns["a"].ranks, [3, np.inf, np.inf])
    np.testing.assert_array_equal(columns["a"].scores, [np.nan] * 3)
    np.testing.assert_array_equal(columns["b"].ranks, [0, np.inf, 1])
    np.testing.assert_array_equal(columns["b"].scores, [0.9, np.nan, -1])
    assert hit_columns([]) == hit_columns([(), ()]) == {}


def test_fusion_sums_reciprocal_ranks_over_the_retrievers_that_found_an_item():
    lists = {"dense": [("x", 0.9), ("y", 0.8), ("z", 0.7)], "bm25": [("z", 5.0), ("w", 4.0)]}
    fused = fuse(lists)
    # z: 1/63 + 1/61, x: 1/61, y and w: 1/62, of which y's retriever comes first
    assert list(fused) == ["z", "x", "y", "w"]
    assert fused["z"] == (Hit("dense", 2, 0.7), Hit("bm25", 0, 5.0))
    assert fused["w"] == (Hit("bm25", 1, 4.0),)


def test_scored_queries_have_the_hits_of_the_judged_ones():
    length = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")
    [scored] = score_queries(length, [JudgedQuery("q", with_hits(["a", "bc"]), [True, False])])
    np.testing.assert_array_equal(scored.hits["retriever"].ranks, [0, 1])
    assert ScoredQuery([1.0], [True]).hits == {}
