"""Fusion of z-scores: by hand, on what is missing, and made again from its provenance."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from conformal_retrievers.data.hits import Hit
from conformal_retrievers.data.queries import JudgedQuery, Snippet, with_hits
from conformal_retrievers.scoring import (
    FunctionScorer,
    LearnedScorer,
    OverlapScorer,
    ZFusionScorer,
    ascore_snippets,
    relative_to_query,
    retrievers_of,
    scorer_of,
)
from conformal_retrievers.scoring.combine import z_scores
from conformal_retrievers.scoring.features import features, within_query
from conformal_retrievers.scoring.rebuild import needs
from conformal_retrievers.scoring.sources import Sources

# Similarities of a, distances of b, ranks of c. b did not find the second, nor c the first.
HITS = [
    (Hit("a", 0, 9.0), Hit("b", 1, 0.5)),
    (Hit("a", 1, 5.0), Hit("c", 0)),
    (Hit("a", 2, 4.0), Hit("b", 0, 0.1), Hit("c", 1)),
    (Hit("c", 2),),
]
TEXTS = ["red wine", "white wine", "water", "red"]
SNIPPETS = [Snippet(text, hits=hits) for text, hits in zip(TEXTS, HITS, strict=True)]
KINDS = {"a": "similarity", "b": "distance", "c": "rank"}
LENGTH = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")
BY_HAND = [
    [-9.0, -5.0, -4.0, -4.0],
    [0.5, 0.5, 0.1, 0.5],
    np.log([4, 1, 2, 3]),
]


def test_a_score_is_the_z_score_of_the_mean_z_score():
    scores = ZFusionScorer(KINDS).score("q", SNIPPETS)
    expected = z_scores(np.mean([z_scores(values) for values in BY_HAND], axis=0))
    np.testing.assert_allclose(scores, expected, rtol=1e-12)
    scorer = ZFusionScorer(KINDS, [LENGTH, OverlapScorer("words")])
    words = OverlapScorer("words").score("red wine", TEXTS)
    of_all = [*BY_HAND, [len(text) for text in TEXTS], words]
    expected = z_scores(np.mean([z_scores(values) for values in of_all], axis=0))
    np.testing.assert_allclose(scorer.score("red wine", SNIPPETS), expected, rtol=1e-12)
    found = asyncio.run(ascore_snippets(scorer, "red wine", SNIPPETS))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_what_cannot_be_scored_is_nan_and_changes_no_other_score():
    known = ZFusionScorer(KINDS).score("q", SNIPPETS)
    lost = [Snippet("no hit"), Snippet("no score", hits=(Hit("a", 3),))]
    scores = ZFusionScorer(KINDS).score("q", [*SNIPPETS, *lost])
    assert scores[:4].tolist() == known.tolist()
    assert np.isnan(scores[4:]).all()
    part = FunctionScorer(lambda query, texts: [float(t != "water") or np.nan for t in texts], "f")
    assert np.isnan(ZFusionScorer(KINDS, [part]).score("q", SNIPPETS)).tolist() == [0, 0, 1, 0]
    assert ZFusionScorer(KINDS).score("q", []).tolist() == []
    assert ZFusionScorer({"a": "rank"}).score("q", with_hits(["x"], "a")).tolist() == [0.0]
    with pytest.raises(
        ValueError, match=r"needs hits of 'a', 'b', 'c', but the snippets have none"
    ):
        ZFusionScorer(KINDS).score("q", ["a text"])


def test_scores_do_not_depend_on_the_order_of_the_snippets():
    scorer = ZFusionScorer(KINDS, [LENGTH])
    assert scorer.score("q", SNIPPETS[::-1])[::-1].tolist() == scorer.score("q", SNIPPETS).tolist()


def test_it_comes_back_from_json_and_needs_the_scorers_that_have_a_model():
    scorer = ZFusionScorer(KINDS, [LENGTH, OverlapScorer("stems")])
    assert scorer.name == "zfusion(a higher, b lower, c rank, length, overlap(stems))"
    assert retrievers_of(scorer) == ("a", "b", "c")
    assert relative_to_query(scorer)
    stored = json.loads(json.dumps(scorer.provenance))
    assert needs(stored) == ["length"]
    assert scorer_of(stored, [LENGTH]) == scorer
    assert ZFusionScorer(dict(sorted(KINDS.items(), reverse=True))) == ZFusionScorer(KINDS)


@pytest.mark.parametrize(
    ("retrievers", "message"),
    [({}, "retrievers is empty"), ({"a": "cosine"}, "'a' is 'cosine'; give one of similarity")],
)
def test_a_retriever_needs_a_known_kind(retrievers, message):
    with pytest.raises(ValueError, match=message):
        ZFusionScorer(retrievers)
    if retrievers:
        with pytest.raises(ValueError, match=message):
            scorer_of({"kind": "zfusion", "retrievers": retrievers, "scorers": []})


def test_the_consensus_of_a_learned_score_counts_words_once_and_ranks_not_twice():
    units = [OverlapScorer(unit) for unit in ("words", "pairs", "stems")]
    sources = Sources(tuple(KINDS.items()), tuple(unit.name for unit in units), "none")
    columns = [unit.score("red wine", TEXTS) for unit in units]
    found = features(sources, columns, SNIPPETS).consensus
    z = [z_scores(values) for values in (*BY_HAND, columns[2])]
    np.testing.assert_allclose(found.table[:, 0], np.mean(z, axis=0), rtol=1e-12)
    fusion = ZFusionScorer(KINDS, [units[2]]).score("red wine", SNIPPETS)
    again = within_query(found.table.T, np.sort(found.table.T))[2][0]
    np.testing.assert_allclose(again, fusion, rtol=1e-9)


def test_a_few_queries_teach_the_consensus_what_they_do_not_teach_the_features():
    rng = np.random.default_rng(0)

    def query_of(i, n=30):
        relevant = np.arange(n) == rng.integers(n)
        found = [rng.normal(size=n) + relevant for _ in range(6)]
        hits = [
            tuple(Hit(f"r{j}", int((s > s[k]).sum()), float(s[k])) for j, s in enumerate(found))
            for k in range(n)
        ]
        return JudgedQuery(f"q{i}", [Snippet("text", hits=h) for h in hits], relevant)

    learned = LearnedScorer.fit([query_of(i) for i in range(12)])
    ranks = []  # of the relevant snippet
    for query in map(query_of, range(100, 300)):
        both = learned.score(query.query, query.snippets)
        alone = -learned.stages.log_odds(features(learned.sources, [], query.snippets))
        place = int(np.argmax(query.relevant))
        ranks.append([(both < both[place]).sum(), (alone < alone[place]).sum()])
    assert np.mean(ranks, axis=0)[0] < 0.8 * np.mean(ranks, axis=0)[1]
