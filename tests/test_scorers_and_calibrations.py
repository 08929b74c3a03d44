"""What a scorer tells a calibration about itself, beside its name."""

from __future__ import annotations

import pytest
from conftest import LookupScorer

from conformal_retrievers import Calibration, JudgedQuery, calibrate, score_queries
from conformal_retrievers.scoring.scorer import (
    check_not_fitted_on,
    provenance_of,
    query_digest,
    relative_to_query,
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
            calibration.at(0.2, guarantee="snippet")
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
        loaded.at(0.3, guarantee="snippet")


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
