"""The scorer of a calibration: made again from what the calibration holds, or given."""

from __future__ import annotations

import pytest

from conformal_retrievers import (
    Calibration,
    CalibrationMismatch,
    ConformalFilter,
    FunctionScorer,
    JudgedQuery,
    RetrievalScorer,
    ScoredQuery,
    Snippet,
    calibrate,
)
from conformal_retrievers.calibration import needed_scorers
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.scoring import QueryZScore, RankScorer
from conformal_retrievers.sentence_filter import open_filter


def calibrated_on(scorer, judged, **options):
    return calibrate(judged, scorer, alpha=0.4, **options)


def hits_of(n):
    snippets = [
        Snippet(letter * (i + 1), retrieval_score=-i) for i, letter in enumerate("abcdef"[:n])
    ]
    return with_hits(snippets, retriever="dense")


JUDGED_WITH_HITS = [
    JudgedQuery(f"q{i}", hits_of(6), [j == i % 3 for j in range(6)], id=str(i)) for i in range(9)
]


@pytest.mark.parametrize(
    "scorer",
    [
        RankScorer("dense"),
        QueryZScore(RetrievalScorer("dense")),
        RetrievalScorer("dense"),
    ],
    ids=lambda scorer: scorer.name,
)
def test_a_filter_needs_no_scorer_if_the_calibration_holds_it(scorer, tmp_path):
    calibration = calibrated_on(scorer, JUDGED_WITH_HITS)
    calibration.save(tmp_path / "calibration.json")
    assert needed_scorers(calibration) == []
    expected = ConformalFilter(scorer, calibration)("q", hits_of(6))
    for opened in (
        ConformalFilter.of(calibration),
        open_filter(tmp_path / "calibration.json"),
        open_filter(calibration, scorer),
        open_filter(calibration, [scorer]),
    ):
        assert opened("q", hits_of(6)).scores.tolist() == expected.scores.tolist()
        assert opened("q", hits_of(6)).kept.tolist() == expected.kept.tolist()


def test_a_filter_is_made_of_the_model_that_its_score_is_made_of():
    length = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")
    other = FunctionScorer(lambda query, texts: [len(text) for text in texts], "other")
    zscore = QueryZScore(length)
    calibration = calibrated_on(zscore, JUDGED_WITH_HITS)
    assert needed_scorers(calibration) == ["length"]
    assert ConformalFilter.of(calibration, length).scorer == zscore
    assert ConformalFilter.of(calibration, [zscore]).scorer == zscore
    for given in ([], other, [other], [length, other]):
        with pytest.raises(CalibrationMismatch, match="other" if given else "length"):
            ConformalFilter.of(calibration, given)


def test_a_calibration_without_provenance_needs_its_scorer():
    scored = [ScoredQuery([n], [True]) for n in (1, 2, 3)]
    calibration = Calibration.from_scores(scored, alpha=0.4, scorer="s")
    assert needed_scorers(calibration) == ["s"]
    with pytest.raises(CalibrationMismatch, match="'s'"):
        ConformalFilter.of(calibration)
    with pytest.raises(TypeError, match="scorer"):
        ConformalFilter.of(calibration, [3])


def test_a_scorer_that_is_not_needed_is_named_with_what_to_do():
    calibration = calibrated_on(RankScorer("dense"), JUDGED_WITH_HITS)
    embedding = FunctionScorer(lambda query, texts: [len(text) for text in texts], "cosine(toy)")
    with pytest.raises(CalibrationMismatch, match=r"no model.*cosine\(toy\).*leave it out"):
        ConformalFilter.of(calibration, embedding)
