"""Lists that are not what was calibrated: shorter ones, and scores of another store."""

import asyncio
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
from lookup import LookupScorer

from conformal_retrievers import Calibration, ConformalFilter, FunctionScorer, RetrievalScorer
from conformal_retrievers.calibration import calibrate, calibrate_gate
from conformal_retrievers.data.hits import Hit
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery, Snippet, with_hits
from conformal_retrievers.data.snippets import as_snippets
from conformal_retrievers.scoring import BestScore, FusionScorer, QueryZScore, RankScorer
from conformal_retrievers.scoring.scorer import score_snippets

N, K = 30, 20


def similarities(rng, n=K):
    """A list in which one snippet or two stand out from the rest."""
    return np.sort(np.append(rng.uniform(0.1, 0.4, n - 2), rng.uniform(0.6, 0.9, 2)))[::-1]


def listed(scores):
    return with_hits([Snippet(f"{i}", retrieval_score=s) for i, s in enumerate(scores.tolist())])


def judged(rng, lengths=(K,)):
    return [
        JudgedQuery(f"q{i}", listed(similarities(rng, n)), np.arange(n) < 2, k=K)
        for i in range(N)
        for n in [lengths[i % len(lengths)]]
    ]


Z_SCORE = QueryZScore(RetrievalScorer())


def test_a_list_shorter_than_any_calibrated_is_kept_whole_and_warned_of_once(rng):
    keep = ConformalFilter.of(calibrate(judged(rng), Z_SCORE, alpha=0.05))
    gates = [calibrate_gate(judged(rng), (), of, alpha=0.05) for of in (BestScore(Z_SCORE), None)]
    assert keep.calibration.fewest == gates[0].calibration.fewest == K
    assert 0 < len(keep("q", listed(similarities(rng))).kept) < 5
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for found in (*(similarities(rng)[:n] for n in (1, 3, 5, 17)), np.linspace(0.4, 0.1, 19)):
            snippets, n = listed(found), len(found)
            assert not any(gate("q", snippets).silent for gate in gates)
            for filtered in (keep("q", snippets), asyncio.run(keep.acall("q", snippets))):
                assert (filtered.keeps.all(), len(filtered.unscorable), filtered.m2) == (True, n, 1)
    assert len([w for w in seen if f"{Z_SCORE.name!r} compares" in str(w.message)]) == 1


def test_what_drops_snippets_in_front_is_warned_of_unless_it_did_where_it_was_calibrated(rng):
    filtered, whole = listed(similarities(rng)), judged(rng)
    cut = [replace(q, snippets=q.snippets[::2], relevant=q.relevant[::2]) for q in whole]
    of_whole, of_cut = (ConformalFilter.of(calibrate(q, alpha=0.2)) for q in (whole, cut))
    with pytest.warns(UserWarning, match="something drops snippets"):
        of_whole("q", filtered[::2])
    with pytest.warns(UserWarning, match="something drops snippets"):
        asyncio.run(of_whole.acall("q", [filtered[0], *filtered[4:]]))
    of_whole("q", [filtered[0], *filtered[3:]])  # a tenth, or one, may have been returned twice
    of_short = ConformalFilter.of(calibrate(judged(rng, lengths=(6,)), alpha=0.2))
    of_short("q", [filtered[0], *filtered[2:6]])
    of_cut("q", filtered[::2])


def test_scores_are_warned_of_where_the_retriever_is_known_to_give_none(rng):
    scored = judged(rng)
    bare = [replace(q, snippets=with_hits([s.text for s in q.snippets])) for q in scored]
    named = [replace(q, retriever="BM25Retriever()") for q in bare]
    partly = [*named[1:], replace(scored[0], retriever="BM25Retriever()")]
    for queries in (named, bare, [*named[1:], bare[0]], partly):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            keep = ConformalFilter.of(calibrate(queries, alpha=0.2))
            keep("q", bare[0].snippets), keep("q", listed(similarities(rng)))
        assert len([w for w in seen if "reranker" in str(w.message)]) == (queries is named)
    by_text = FunctionScorer(lambda query, texts: [float(len(text)) for text in texts], "length")
    keep = ConformalFilter.of(calibrate(named, by_text, alpha=0.2), by_text)
    keep("q", listed(similarities(rng)))  # without a warning: it reads no ranks
    some = with_hits([Snippet("a", retrieval_score=0.9), *[s.text for s in bare[0].snippets[1:]]])
    ConformalFilter.of(calibrate(named, alpha=0.2))("q", some)  # of a store that keeps a score


def test_lists_as_short_as_calibrated_ones_are_filtered(rng):
    keep = ConformalFilter.of(calibrate(judged(rng, lengths=(5, K, 8)), Z_SCORE, alpha=0.05))
    assert keep.calibration.fewest == 5
    for n in (5, 8, K):
        assert 0 < len(keep("q", listed(similarities(rng, n))).kept) < 5
    with pytest.warns(UserWarning, match="which have 5 or more"), UNSCORED:
        assert len(keep("q", listed(similarities(rng, 4))).kept) == 4


@pytest.mark.parametrize("n", [1, 3, 5, 9, 10])
def test_by_default_a_list_that_is_cut_keeps_its_best_under_the_threshold_of_full_lists(n, rng):
    asked = [replace(query, query=f"0 1 {query.query}") for query in judged(rng)]
    by_hits, by_words = (ConformalFilter.of(calibrate(q, alpha=0.05)) for q in (judged(rng), asked))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for found in [similarities(rng) for _ in range(12)]:
            for keep, query in ((by_hits, "q"), (by_words, "0 1 q")):
                assert keep(query, listed(found)).kept.tolist() == [0, 1]
                assert keep(query, listed(found[:n])).kept.tolist() == [0, 1][:n]
            assert len(by_words("none", listed(found[-n:])).kept) or 2 * n >= K
    said = " ".join(str(w.message) for w in seen)  # not that all of a short list passes
    assert ("(LlamaIndex: similarity_top_k)" in said, "threshold" in said) == (n < K / 2, False)
    grouped = calibrate([replace(q, group="a") for q in judged(rng)], alpha=0.05, by_group=True)
    ConformalFilter.of(grouped)("q", listed(found[:n]), "a")  # a group's may be as short


UNSCORED = pytest.warns(UserWarning, match="could not score any")


@pytest.mark.parametrize(
    "scorer",
    [RankScorer(), FusionScorer(["retriever"]), LookupScorer({f"{i}": i for i in range(K)})],
    ids=["rank", "fusion", "absolute"],
)
def test_scores_that_mean_the_same_in_any_list_filter_short_ones(scorer, rng):
    keep = ConformalFilter(scorer, calibrate(judged(rng), scorer, alpha=0.05))
    with pytest.warns(UserWarning, match="fewer than 10 snippets for a query, but 20 or more"):
        assert len(keep("q", with_hits([*"567"])).kept) == 2 * hasattr(scorer, "of_columns")


@pytest.mark.parametrize("scorer", [Z_SCORE, None], ids=["z-score", "default"])
def test_the_same_vectors_by_similarity_and_by_distance_give_the_same_survivors(scorer, rng):
    keep = ConformalFilter.of(calibrate(judged(rng), scorer, alpha=0.05))
    for _ in range(20):
        found = similarities(rng)
        kept = keep("q", listed(found)).kept.tolist()
        assert kept
        assert keep("q", listed(1 - found)).kept.tolist() == kept
        assert keep("q", listed(2 - 2 * found)).kept.tolist() == kept


def numbers(rng, n):
    """Scores and judgements of queries: each has a level of its own, as real ones do."""
    scores = rng.normal(size=(n, 1)) + rng.normal(size=(n, 5))
    relevant = rng.random((n, 5)) < 1 / (1 + np.exp(2 * scores))
    relevant[np.arange(n), scores.argmin(axis=1)] |= ~relevant.any(axis=1)
    return scores, relevant


NUMBER = FunctionScorer(lambda query, texts: [float(text) for text in texts], "number")


def calibrated_on_numbers(rng, n, alpha):
    scored = [ScoredQuery(*query) for query in zip(*numbers(rng, n), strict=True)]
    return ConformalFilter(NUMBER, Calibration.from_scores(scored, alpha=alpha, scorer="number"))


@pytest.mark.parametrize(("n", "alpha"), [(9, 0.1), (9, 0.5), (20, 0.8), (100, 0.5), (100, 0.1)])
def test_queries_like_the_calibrated_ones_are_no_cause_for_a_warning(n, alpha, rng):
    for _ in range(10):  # any warning is an error; measured in 1,800 such streams: 2 warnings
        keep = calibrated_on_numbers(rng, n, alpha)
        for scores in numbers(rng, 100)[0]:
            keep("q", [str(score) for score in scores])
        keep("q", [])


@pytest.mark.parametrize(
    ("every", "shift", "words"),
    [(1, 20, "none of the snippets for 6 of the last 6"), (1, -20, "all of the snippets for 6 of"),
     (2, 20, r"none of the snippets for \d+ of the last 1\d")],
)  # fmt: skip
def test_scores_beyond_the_calibrated_ones_are_warned_of_once(every, shift, words, rng):
    keep = calibrated_on_numbers(rng, 100, 0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i, scores in enumerate(numbers(rng, 60)[0]):
            keep("q", [str(score + (shift if i % every == 0 else 0)) for score in scores])
    [said] = [str(warning.message) for warning in caught]
    assert re.match(rf"the threshold passed {words}.* for \d of the 100 calibration queries", said)
    assert said.endswith("run conformal-retrievers diagnose CALIBRATION --log LOG")


def test_what_was_kept_before_does_not_delay_the_warning(rng):
    keep = calibrated_on_numbers(rng, 100, 0.1)
    lowest = keep.calibration.lowest_scores
    for _ in range(50):
        assert len(keep("q", [str(lowest[50]), "99"]).kept) == 1
        assert len(keep("q", [str(lowest[0])]).kept) == 1  # all, and no lower than calibrated ones
    for _ in range(5):
        keep("q", ["99"])
    with pytest.warns(UserWarning, match="none of the snippets for 6 of the last 6 queries"):
        keep("q", ["99"])


def test_by_group_nothing_is_known_of_how_many_queries_keep_none(rng):
    queries = zip(*numbers(rng, 100), strict=True)
    scored = [ScoredQuery(*query, group="ab"[i % 2]) for i, query in enumerate(queries)]
    calibration = Calibration.from_scores(scored, alpha=0.2, scorer="number", by_group=True)
    keep = ConformalFilter(NUMBER, calibration)
    for _ in range(20):  # a warning is an error
        assert not len(keep("q", ["99"], group="a").kept)


def test_one_query_at_many_alphas_is_one_query(rng):
    keep = calibrated_on_numbers(rng, 100, 0.1)
    for alpha in (0.11, 0.12, 0.13, 0.14, 0.15, 0.16, 0.17, 0.18):  # a warning is an error
        keep.at(alpha)("q", ["99", "98"])
    assert not len(keep("q", ["99", "98"]).kept)


def test_a_query_for_which_a_retriever_has_no_scores_is_kept_whole(rng):
    keep = ConformalFilter.of(calibrate(judged(rng), alpha=0.05))
    snippets = listed(np.full(K, np.nan))
    assert np.isnan(score_snippets(Z_SCORE, "q", listed(similarities(rng)))).sum() == 0
    with pytest.warns(UserWarning, match="ranks and no scores"), UNSCORED:
        assert keep("q", snippets).keeps.all()


def test_lists_shorter_or_where_k_is_unknown_longer_than_all_judged_ones_are_warned_of(rng):
    keep = ConformalFilter.of(calibrate([replace(q, k=None) for q in judged(rng)], alpha=0.2))
    for i in range(45):  # a few are no cause for a warning
        keep("q", listed(similarities(rng, K + 5 * (i % 10 == 0 or i >= 40))))
    with pytest.warns(UserWarning, match="6 of the last 6 lists have more snippets .* of the 30"):
        keep("q", listed(similarities(rng, K + 5)))
    for _ in range(5):
        keep("q", listed(similarities(rng, K - 1))), keep("q", [])  # of empty ones others tell
    with pytest.warns(UserWarning, match="6 of the last 6 lists have fewer snippets .* of the 30"):
        keep("q", listed(similarities(rng, K - 1)))
    known = ConformalFilter.of(calibrate(judged(rng, lengths=(12,)), alpha=0.2))
    for _ in range(20):  # of a corpus that grew, at the k of the calibration
        known("q", listed(similarities(rng, 14)))
    with pytest.warns(UserWarning, match="nothing was found for 6 of the last 6 .* 0 of the 30"):
        assert not any(len(known("q", []).kept) for _ in range(6))


@pytest.mark.parametrize("by_group", [False, True])
def test_a_retriever_that_finds_nothing_far_more_often_is_warned_of_once(by_group, rng):
    def found(bm25):
        by_dense = enumerate(similarities(rng).tolist())
        hits = [[Hit("dense", i, s), *[Hit("bm25", i, None)] * bm25] for i, s in by_dense]
        return as_snippets([Snippet(f"{i}", hits=own) for i, own in enumerate(hits)])

    seldom = [i % 10 > 0 for i in range(40)]
    fields = {"group": "a", "relevant": np.arange(K) < 2}
    queries = [JudgedQuery(f"q{i}", found(s), **fields) for i, s in enumerate(seldom)]
    calibration = calibrate(queries, alpha=0.2, by_group=by_group)
    assert calibration.retrieval["found_by"] == {"bm25": 36, "dense": 40}
    keep = ConformalFilter.of(calibration)
    for bm25 in seldom:  # a warning is an error
        keep("q", found(bm25), "a")
    ranks = RankScorer("dense")
    by_dense = ConformalFilter(ranks, calibrate(queries, ranks, alpha=0.2))
    for failed, n in (["bm25"], 0), ([], not by_group):  # what has failed is told otherwise
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(30):
                (lost := found(False)).failed = failed
                keep("q", lost, "a"), by_dense("q", found(False))
        said = [str(one.message) for one in caught if "found nothing" in str(one.message)]
        assert ["'bm25' found nothing for 10 of the last 10" in text for text in said] == [True] * n
