"""Scorers that read hits: by hand, on what is missing, and made again from their provenance."""

import asyncio
import json
import math

import numpy as np
import pytest
from lookup import LENGTH

from conformal_retrievers import RetrievalScorer
from conformal_retrievers.data.hits import Hit, fuse
from conformal_retrievers.data.queries import Snippet, with_hits
from conformal_retrievers.scoring import (
    FusionScorer,
    QueryZScore,
    RankScorer,
    ascore_snippets,
    relative_to_query,
    retrievers_of,
    scorer_of,
)
from conformal_retrievers.scoring.registry import needs, query_scorer_of

# a is found by both, b by dense alone, c by bm25 alone, d by neither.
A = Snippet("a", hits=(Hit("dense", 1, 0.5), Hit("bm25", 0, 7.0)))
B = Snippet("b", hits=(Hit("dense", 0, 0.9),))
C = Snippet("c", hits=(Hit("bm25", 1, 3.0),))
D = Snippet("d")
OF_VECTORS = Snippet("a", hits=(Hit("vectors", 0), Hit("bm25", 1)))
ABCD = [A, B, C, D]
ALL = [RankScorer("dense"), FusionScorer(["dense", "bm25"]), RetrievalScorer("dense")]


def same(found, expected):
    np.testing.assert_array_equal(found, np.array(expected, dtype=float))


@pytest.mark.parametrize(
    ("scorer", "expected"),
    [
        (RankScorer("dense"), [1, 0, math.inf, math.nan]),
        (RankScorer("bm25"), [0, math.inf, 1, math.nan]),
        (RetrievalScorer("dense", higher_is_better=True), [-0.5, -0.9, math.inf, math.nan]),
        (RetrievalScorer("bm25", higher_is_better=False), [7, math.inf, 3, math.nan]),
        (FusionScorer(["bm25", "dense"]), [-(1 / 61 + 1 / 62), -1 / 61, -1 / 62, math.nan]),
        (FusionScorer(["dense"]), [-1 / 62, -1 / 61, math.inf, math.nan]),
    ],
)
def test_what_another_retriever_found_is_inf_and_what_none_found_is_nan(scorer, expected):
    same(scorer.score("q", ABCD), expected)
    same(asyncio.run(ascore_snippets(scorer, "q", ABCD)), expected)
    assert scorer.score("q", []).shape == (0,)


def test_a_found_snippet_without_a_score_is_unscorable():
    unscored = Snippet("e", hits=(Hit("dense", 2),))
    same(RetrievalScorer("dense").score("q", [B, unscored]), [-0.9, math.nan])


def test_the_order_of_fusion_is_that_of_the_hybrid_retriever():
    rng = np.random.default_rng(0)
    lists = {
        name: [(int(key), None) for key in rng.permutation(60)[:40]]
        for name in ("dense", "bm25", "sparse")
    }
    snippets = [Snippet(str(key), hits=hits) for key, hits in fuse(lists).items()]
    scores = FusionScorer(lists).score("q", snippets)
    assert (np.diff(scores) >= -1e-15).all()
    assert np.diff(scores).max() > 0


def test_names_do_not_depend_on_the_order_of_retrievers():
    assert FusionScorer(["dense", "bm25"]) == FusionScorer(["bm25", "dense"])
    assert FusionScorer("dense") == FusionScorer(["dense"])
    names = ["rank(dense)", "fusion(bm25, dense)", "retrieval(dense, higher)"]
    assert [scorer.name for scorer in ALL] == names
    assert RetrievalScorer("dense", higher_is_better=False).name == "retrieval(dense, lower)"


@pytest.mark.parametrize("retrievers", [3, None, [1, 2], ["a", None], [], ["a", "a"]])
def test_retrievers_are_different_names(retrievers):
    with pytest.raises((TypeError, ValueError), match="retrievers is"):
        FusionScorer(retrievers)


def test_scorers_state_what_they_read():
    read = [("dense",), ("bm25", "dense"), ("dense",)]
    assert [retrievers_of(QueryZScore(scorer)) for scorer in ALL] == read
    assert [relative_to_query(scorer) for scorer in ALL] == [True, True, False]


@pytest.mark.parametrize(
    ("scorer", "found", "told"),
    [
        *((scorer, ["a", "b"], r"'dense'.*with_hits") for scorer in ALL[:2]),
        (ALL[1], with_hits(["a"], "store"), r"'dense'.*'store'"),
        (ALL[1], [OF_VECTORS], "'dense'.*'vectors'.*Hyb"),
        (ALL[1], with_hits(["a", "b"]), "a single retriever; put HybridRetriever"),
    ],
)
def test_missing_hits_and_hits_of_another_name_are_an_error_that_names_both(scorer, found, told):
    with pytest.raises(ValueError, match=told):
        scorer.score("q", found)


def test_a_retriever_that_found_nothing_and_one_that_is_not_read_change_no_fusion():
    assert np.isfinite(ALL[1].score("q", with_hits(["a", "b"], retriever="bm25"))).all()
    more = Snippet("e", hits=(*A.hits, Hit("web", 0)))
    assert ALL[1].score("q", [more, B]).tolist() == ALL[1].score("q", [A, B]).tolist()


@pytest.mark.parametrize("scorer", [RankScorer("bm25"), RetrievalScorer("bm25")])
def test_nothing_is_scored_by_a_retriever_that_found_nothing_for_a_query(scorer):
    others = with_hits(["a", "b"], retriever="dense")  # no word of the query is in the corpus
    with pytest.warns(UserWarning, match="'bm25'.*'dense'"):
        assert np.isnan(scorer.score("q", others)).all()


@pytest.mark.parametrize("found", [["a", "b"], with_hits(["a", "b"])], ids=["texts", "hits"])
def test_what_a_retriever_found_without_scores_is_unscorable_with_a_warning(found):
    with pytest.warns(UserWarning, match=r"a single retriever have ranks and no scores"):
        assert np.isnan(RetrievalScorer().score("q", found)).all()


def test_snippets_without_hits_have_the_scores_that_are_given_in_the_order_of_the_list():
    given = [Snippet(str(score), retrieval_score=score) for score in (0.1, 0.2, 0.5, 0.5, 0.6)]
    same(RetrievalScorer("l2", False).score("q", given), [0.1, 0.2, 0.5, 0.5, 0.6])
    with pytest.raises(ValueError, match="'cosine' are distances"):
        RetrievalScorer("cosine").score("q", given)
    z = QueryZScore(RetrievalScorer("l2", False)).score("q", given)
    same(QueryZScore(RetrievalScorer("cosine")).score("q", given), z)


def listed(*scores):
    return [Snippet(str(i), hits=(Hit("dense", i, score),)) for i, score in enumerate(scores)]


@pytest.mark.parametrize("n", [2, 3])
def test_a_score_list_in_the_other_direction_is_turned_round_where_scores_are_only_compared(n):
    similarities, distances = listed(*(0.9, 0.5, 0.4)[:n]), listed(*(0.1, 0.5, 0.6)[:n])
    for scorer in (
        QueryZScore(RetrievalScorer("dense")),
        QueryZScore(RetrievalScorer("dense", higher_is_better=False)),
    ):
        z = scorer.score("q", similarities)
        assert z.argmin() == 0
        np.testing.assert_allclose(scorer.score("q", distances), z, rtol=1e-12)


@pytest.mark.parametrize("higher", [True, False])
def test_a_score_list_in_the_other_direction_is_refused_where_a_threshold_is_on_the_score(higher):
    scores = (0.1, 0.2, 0.5, 0.5, 0.6) if higher else (0.6, 0.5, 0.5, 0.2, 0.1)
    scorer = RetrievalScorer("dense", higher_is_better=higher)
    words = "'dense' are distances.*but similarities" if higher else "are similarities.*distances"
    with pytest.raises(ValueError, match=words):
        scorer.score("q", listed(*scores))
    # A few scores, equal scores, and scores in no order, show no direction.
    for unclear in (scores[:2], (0.5,) * 5, (0.5, *scores[:4]), (None, *scores[:2])):
        assert np.isfinite(scorer.score("q", listed(*unclear))).any()


# --- provenance -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scorer",
    [
        *ALL,
        RetrievalScorer("bm25", higher_is_better=False),
        QueryZScore(FusionScorer(["a", "b"])),
        QueryZScore(RetrievalScorer("bm25")),
    ],
    ids=lambda scorer: scorer.name,
)
def test_a_scorer_is_made_again_from_its_provenance(scorer):
    assert scorer_of(json.loads(json.dumps(scorer.provenance))) == scorer


def test_scorers_with_models_are_named_and_given():
    scorer = QueryZScore(QueryZScore(LENGTH))
    assert needs(scorer.provenance) == ["length"]
    assert scorer_of(scorer.provenance, [LENGTH]) == scorer
    assert scorer_of(scorer.provenance, [QueryZScore(LENGTH)]) == scorer  # as a part of it
    with pytest.raises(ValueError, match="'length'"):
        scorer_of(scorer.provenance, [RankScorer("dense")])


@pytest.mark.parametrize(
    "provenance",
    [
        {"kind": "pickle", "retriever": "dense"},
        {"kind": "rank"},
        {"kind": "retrieval", "retriever": "store", "higher_is_better": 1},
        {"kind": "fusion", "retrievers": [1, 2]},
        {"kind": "fusion", "retrievers": None},
        {"kind": "zscore", "scorer": "os.system"},
        {"kind": "rank", "retriever": "dense", "more": 1},
        {"kind": "best", "scorer": {"kind": "rank", "retriever": "dense"}},  # scores queries
        {},
    ],
)
def test_a_provenance_of_another_shape_is_an_error(provenance):
    with pytest.raises(ValueError, match="scorer_provenance"):
        scorer_of(provenance)
    with pytest.raises(ValueError, match="scorer_provenance"):  # and those that score snippets
        query_scorer_of({"kind": "best", "scorer": {"kind": "best", "scorer": provenance}})


@pytest.mark.parametrize("scores", [(np.nan, 0.9, 0.8, 0.2), (0.9, 0.9, 0.8, 0.8, 0.2)])
def test_a_missing_score_and_sentences_of_one_snippet_hide_no_direction(scores):
    ranks = [sorted({*scores}, reverse=True).index(s) if s == s else 0 for s in scores]
    pairs = [*zip(ranks, scores, strict=True)]
    similar = [Snippet(f"{i}", hits=(Hit("d", r, s),)) for i, (r, s) in enumerate(pairs)]
    far = [Snippet(f"{i}", hits=(Hit("d", r, 1 - s),)) for i, (r, s) in enumerate(pairs)]
    scorer = QueryZScore(RetrievalScorer("d"))
    np.testing.assert_allclose(scorer.score("q", far), scorer.score("q", similar), rtol=1e-9)
