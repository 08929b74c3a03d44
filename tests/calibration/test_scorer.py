"""The scorer of a calibration: made again from what the calibration holds, or given."""

import pytest

from conformal_retrievers import ConformalFilter, JudgedQuery, ScoredQuery, Snippet, calibrate
from conformal_retrievers.calibration import Calibration, CalibrationMismatch, needed_scorers
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.scoring import FunctionScorer, QueryZScore, RankScorer, RetrievalScorer
from conformal_retrievers.sentence_filter import open_filter

SNIPPETS = [Snippet(letter * (i + 1), retrieval_score=-i) for i, letter in enumerate("abcdef")]
FOUND = with_hits(SNIPPETS, retriever="dense")
JUDGED = [JudgedQuery(f"q{i}", FOUND, [j == i % 3 for j in range(6)], id=str(i)) for i in range(9)]
LENGTH, OTHER = (
    FunctionScorer(lambda query, texts: [len(text) for text in texts], name)
    for name in ("length", "other")
)


@pytest.mark.parametrize(
    "scorer",
    [RankScorer("dense"), QueryZScore(RetrievalScorer("dense")), RetrievalScorer("dense")],
    ids=lambda scorer: scorer.name,
)
def test_a_filter_needs_no_scorer_if_the_calibration_holds_it(scorer, tmp_path):
    calibration = calibrate(JUDGED, scorer, alpha=0.4)
    calibration.save(tmp_path / "calibration.json")
    assert needed_scorers(calibration) == []
    expected = ConformalFilter(scorer, calibration)("q", FOUND)
    for opened in (
        ConformalFilter.of(calibration),
        open_filter(tmp_path / "calibration.json"),
        open_filter(calibration, scorer),
        open_filter(calibration, [scorer]),
    ):
        assert opened("q", FOUND).scores.tolist() == expected.scores.tolist()
        assert opened("q", FOUND).kept.tolist() == expected.kept.tolist()


def test_a_filter_is_made_of_the_model_that_its_score_is_made_of():
    zscore = QueryZScore(LENGTH)
    calibration = calibrate(JUDGED, zscore, alpha=0.4)
    assert needed_scorers(calibration) == ["length"]
    assert ConformalFilter.of(calibration, LENGTH).scorer == zscore
    assert ConformalFilter.of(calibration, [zscore]).scorer == zscore
    for given in ([], OTHER, [OTHER], [LENGTH, OTHER]):
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
    with pytest.raises(CalibrationMismatch, match="no model.*length.*leave it out"):
        ConformalFilter.of(calibrate(JUDGED, RankScorer("dense"), alpha=0.4), LENGTH)
