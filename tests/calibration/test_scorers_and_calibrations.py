"""What a scorer tells a calibration about itself, beside its name."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
from lookup import LookupScorer

from conformal_retrievers import (
    Cache,
    CachedScorer,
    Calibration,
    Cascade,
    EmbeddingScorer,
    JudgedQuery,
    QueryZScore,
    RetrievalScorer,
    ScoredQuery,
    TieBreak,
    calibrate,
    certify,
    score_queries,
)
from conformal_retrievers.scoring.scorer import (
    check_not_fitted_on,
    provenance_of,
    query_digest,
    relative_to_query,
    text_only,
)

OF_QUERIES = ("query-recall", "all", "any")


class Telling(LookupScorer):
    """A scorer that ranks within the query, was fitted, and tells from what."""

    def __init__(self, relative=True, fitted_on=()):
        super().__init__({f"s{i}": float(i) for i in range(30)})
        self.relative_to_query = relative
        self.fitted_on = frozenset(map(query_digest, fitted_on))
        self.provenance = {"coefficients": [0.1, -2.5], "features": ["gap"]}


@pytest.fixture
def judged():
    return [JudgedQuery(f"q{i}", [f"s{i}", "s29"], [True, False], id=f"q{i}") for i in range(20)]


def test_a_scorer_that_says_nothing_scores_each_snippet_alone(judged):
    scorer = LookupScorer({f"s{i}": float(i) for i in range(30)})
    assert relative_to_query(scorer) is False
    assert provenance_of(scorer) is None
    check_not_fitted_on(scorer, judged)
    calibration = calibrate(judged, scorer, alpha=0.2, guarantee="snippet")
    assert calibration.relative_to_query is False
    assert calibration.scorer_provenance is None


def test_scores_relative_to_the_query_are_refused_for_single_snippets(judged):
    scorer = Telling()
    calls = []
    scorer.score = lambda query, snippets: calls.append(query)
    with pytest.raises(ValueError, match="guarantee is 'snippet', but 'lookup' .*'query-recall'"):
        calibrate(judged, scorer, alpha=0.2, guarantee="snippet")
    assert not calls  # refused before it was paid for
    scored = score_queries(Telling(), judged)
    for guarantee in OF_QUERIES:
        calibration = calibrate(judged, Telling(), alpha=0.2, guarantee=guarantee)
        assert calibration.relative_to_query is True
        with pytest.raises(ValueError, match="scores a snippet by the others of its query"):
            calibration.at(0.2).guaranteeing("snippet")
    with pytest.raises(ValueError, match="scores a snippet by the others of its query"):
        Calibration.from_scores(
            scored, alpha=0.2, guarantee="snippet", scorer="z", relative_to_query=True
        )


def test_the_file_keeps_what_the_scorer_was_made_from(judged, tmp_path):
    calibration = calibrate(judged, Telling(), alpha=0.2)
    calibration.save(tmp_path / "c.json")
    loaded = Calibration.load(tmp_path / "c.json")
    assert loaded == calibration
    assert loaded.scorer_provenance == {"coefficients": [0.1, -2.5], "features": ["gap"]}
    with pytest.raises(ValueError, match="scores a snippet by the others of its query"):
        loaded.at(0.3).guaranteeing("snippet")


def test_provenance_is_copied_and_must_fit_into_json(judged):
    scorer = Telling()
    calibration = calibrate(judged, scorer, alpha=0.2)
    scorer.provenance["coefficients"].append(1.0)
    assert calibration.scorer_provenance["coefficients"] == [0.1, -2.5]
    scorer.provenance["coefficients"].append(object())
    with pytest.raises(ValueError, match="scorer_provenance is .*JSON cannot hold"):
        calibrate(judged, scorer, alpha=0.2)


def test_calibrating_on_a_query_that_the_scorer_was_fitted_on_is_refused(judged):
    scorer = Telling(fitted_on=["elsewhere", "q7"])
    with pytest.raises(ValueError, match="'lookup' was fitted on query 'q7'.*other queries"):
        calibrate(judged, scorer, alpha=0.2)
    calibrate(judged[:7] + judged[8:], scorer, alpha=0.2)


# --- scorers that are made of others --------------------------------------------------------------


def of_parts(inner, other):
    return {
        "tie-break": TieBreak(inner, then=other),
        "tie-broken by it": TieBreak(other, then=inner),
        "cascade": Cascade(other, inner, pass_below=100.0),
        "cheap first": Cascade(inner, other, pass_below=100.0),
        "z-score": QueryZScore(inner),
        "z-score within": TieBreak(other, then=QueryZScore(inner)),
    }


@pytest.mark.parametrize("name", of_parts(Telling(), LookupScorer({})))
def test_what_a_part_was_fitted_on_and_made_from_counts_for_the_whole(judged, name):
    inner = Telling(fitted_on=["q7"])
    whole = of_parts(inner, LookupScorer({f"s{i}": float(i) for i in range(30)}, name="other"))[
        name
    ]
    with pytest.raises(ValueError, match="was fitted on query 'q7'"):
        calibrate(judged, whole, alpha=0.2)
    calibration = calibrate(judged[:7] + judged[8:], whole, alpha=0.2)
    assert calibration.scorer_provenance == {"lookup": inner.provenance}
    assert calibration.relative_to_query is True


def test_a_cached_scorer_tells_what_the_one_inside_does(judged, tmp_path):
    inner = Telling(relative=False, fitted_on=["q7"])
    cached = CachedScorer(inner, Cache(tmp_path / "cache.db"))
    with pytest.raises(ValueError, match="was fitted on query 'q7'"):
        calibrate(judged, cached, alpha=0.2)
    assert calibrate(judged[:7], cached, alpha=0.2).scorer_provenance == inner.provenance


def test_what_goes_by_more_than_texts_is_not_cached_wherever_it_is(tmp_path):
    lookup = LookupScorer({}, name="other")
    retrieval = RetrievalScorer("store", higher_is_better=True)
    brought = EmbeddingScorer(lambda texts: texts, "e", reuse_embeddings=True)
    for scorer in (*of_parts(retrieval, lookup).values(), brought, retrieval):
        if not relative_to_query(scorer):
            with pytest.raises(TypeError, match="reads more of a snippet than its text"):
                CachedScorer(scorer, Cache(tmp_path / "cache.db"))
    assert text_only(TieBreak(lookup, then=EmbeddingScorer(lambda texts: texts, "e")))


# --- relevant snippets that cannot be scored ------------------------------------------------------


def test_a_relevant_snippet_that_cannot_be_scored_counts_as_kept_where_it_is_asked_for():
    queries = [ScoredQuery([i / 10], [True], id=f"q{i}") for i in range(9)]
    lost = ScoredQuery([math.nan, 5.0], [True, True], id="lost")
    with pytest.raises(ValueError, match="'lost': .*on_unscorable='keep'"):
        Calibration.from_scores([*queries, lost], alpha=0.2, scorer="s")
    calibration = Calibration.from_scores(
        [*queries, lost], alpha=0.2, scorer="s", on_unscorable="keep"
    )
    # .8 × 11 = 8.8 queries: one half of the lost one at any threshold, and nine halves more.
    assert calibration.threshold() == 0.8
    assert "1 of them could not be scored" in calibration.statement
    assert calibration.queries[-1].scores.tolist() == [-math.inf, 5.0]
    with pytest.raises(ValueError, match="on_unscorable is 'drop'; give 'raise' or 'keep'"):
        Calibration.from_scores(queries, alpha=0.2, scorer="s", on_unscorable="drop")


def test_calibrating_takes_what_cannot_be_scored_to_the_calibration(judged):
    scores = {f"s{i}": float(i) for i in range(30)} | {"s3": math.nan}
    with pytest.raises(ValueError, match="could not be scored"):
        calibrate(judged, LookupScorer(scores), alpha=0.2)
    calibration = calibrate(judged, LookupScorer(scores), alpha=0.2, on_unscorable="keep")
    assert sum(q.scores.tolist() == [-math.inf] for q in calibration.queries) == 1


@pytest.mark.parametrize("guarantee", OF_QUERIES)
def test_with_unscorable_ones_kept_the_promise_is_exactly_kept_leaving_each_out(guarantee):
    # Alpha of eleven queries at most are lost in turn, where the filter keeps what has no score.
    rng = np.random.default_rng(3)
    for _ in range(60):
        queries = []
        for _ in range(11):
            scores = np.round(rng.normal(size=rng.integers(1, 4)), 1)
            scores[rng.random(len(scores)) < 0.2] = math.nan
            queries.append(ScoredQuery(scores, [True] * len(scores)))
        lost = Fraction(0)
        for i, query in enumerate(queries):
            rest = Calibration.from_scores(
                queries[:i] + queries[i + 1 :],
                alpha=0.3,
                guarantee=guarantee,
                scorer="s",
                on_unscorable="keep",
            )
            kept = rest.keep(query.scores)
            share = {"query-recall": Fraction(int(kept.sum()), len(kept))}.get(
                guarantee, Fraction(int(kept.all() if guarantee == "all" else kept.any()))
            )
            lost += 1 - share
        assert lost <= Fraction(3, 10) * 11


def test_queries_without_anything_relevant_are_known_again_by_their_ids(tmp_path):
    scored = [ScoredQuery([i / 10], [i % 2 == 0], id=f"q{i}") for i in range(20)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibration = Calibration.from_scores(scored, alpha=0.2, scorer="s")
    assert calibration.ids == {f"q{i}" for i in range(20)}
    calibration.save(tmp_path / "c.json")
    assert Calibration.load(tmp_path / "c.json").ids == calibration.ids
    with pytest.raises(ValueError, match="query 'q1' is one of those"):
        certify(calibration, [ScoredQuery([0.1], [True], id="q1")])
