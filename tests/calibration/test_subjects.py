"""Snippets, claims and flags: one engine, three comparisons, and three filters."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from calibrations import calibration_of, relevant
from lookup import LookupScorer

from conformal_retrievers import ConformalFilter, Monitor, compare, diagnose, evaluate
from conformal_retrievers.calibration import Calibration, CalibrationMismatch
from conformal_retrievers.calibration.checks import check_same_scorer
from conformal_retrievers.calibration.subjects import CLAIMS, FLAGS, SENTENCES, SNIPPETS
from conformal_retrievers.claims import ClaimFilter, evaluate_claims
from conformal_retrievers.data.sentences.cutting import Splitter
from conformal_retrievers.lookback import FactualityClassifier, FactualityFlag
from conformal_retrievers.sentence_filter import SentenceFilter

LINES = Splitter("lines", lambda text: [(0, len(text))])
SUBJECTS = (SNIPPETS, SENTENCES, CLAIMS, FLAGS)


def calibration_about(subject, scorer="lookup"):
    return Calibration(
        0.4,
        "all",
        scorer,
        tuple(relevant(i / 10) for i in range(1, 6)),
        subject=subject,
        retrieval={"split": "lines"} if subject == SENTENCES else None,
    )


@pytest.mark.parametrize(
    ("subject", "kept"),
    [
        *((one, [True, True, False, True, True, False]) for one in (SNIPPETS, SENTENCES, FLAGS)),
        (CLAIMS, [False, False, True, False, False, True]),
    ],
)
def test_the_comparison_at_the_threshold(subject, kept):
    calibration = calibration_about(subject)
    assert calibration.threshold() == 0.4  # the ⌈6 × .6⌉-th
    at = [0.3, 0.4, math.nextafter(0.4, 1), math.nan, -math.inf, math.inf]
    assert calibration.keep(at).tolist() == kept


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_alpha_and_delta_are_as_written_at_any_precision(subject):
    queries = tuple(relevant(i / 60) for i in range(60))
    given = {"subject": subject, "delta": np.float32(0.1), "retrieval": {"split": "lines"}}
    calibration = Calibration(np.float32(0.4), "all", "lookup", queries, **given)
    assert (calibration.alpha, calibration.delta) == (0.4, 0.1)
    assert type(calibration.at(np.float32(0.7)).alpha) is float
    with pytest.raises(TypeError, match="delta is 'x'"):
        replace(calibration, delta="x")


class ClaimScorer:
    name = "lookup"

    def relevance(self, query, claims, documents):
        raise NotImplementedError


CLASSIFIER = FactualityClassifier("m", "full-context", 1, 1, 1, np.array([1.0]), -0.5, frozenset())


@pytest.mark.parametrize("given", SUBJECTS, ids=lambda subject: subject.name)
@pytest.mark.parametrize("expected", SUBJECTS, ids=lambda subject: subject.name)
def test_each_filter_refuses_the_calibrations_of_other_subjects(expected, given):
    make, scorer = {
        "snippets": (ConformalFilter, LookupScorer({})),
        "sentences": (partial(SentenceFilter, split=LINES), LookupScorer({})),
        "claims": (ClaimFilter, ClaimScorer()),
        "flags": (FactualityFlag, CLASSIFIER),
    }[expected.name]
    calibration = calibration_about(given, scorer.name)
    if given == expected:
        assert make(scorer, calibration).calibration is calibration
        with pytest.raises(TypeError, match="calib|scorer"):
            make(calibration, scorer)
    else:
        names = f"{given.name}.*({expected.made_by}|SentenceFilter)"
        with pytest.raises(CalibrationMismatch, match=names):
            make(scorer, calibration)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda c: evaluate(c, []), SNIPPETS),
        (lambda c: diagnose(c, []), SNIPPETS),
        (lambda c: compare(c, c, []), SNIPPETS),
        (Monitor, SNIPPETS),
        (lambda c: evaluate_claims(c, []), CLAIMS),
    ],
)
def test_everything_that_takes_a_calibration_names_what_it_needs(use, expected):
    for given in ("c.json", None):
        with pytest.raises(TypeError, match=f"calibration is {given!r}"):
            use(given)
    other = CLAIMS if expected == SNIPPETS else SNIPPETS
    with pytest.raises(CalibrationMismatch, match=f"{other.name}.*{expected.made_by}"):
        use(calibration_about(other))


def test_another_scorer_is_refused_by_both_names():
    with pytest.raises(CalibrationMismatch, match="'lookup'.*'other'"):
        ConformalFilter(LookupScorer({}, name="other"), calibration_of())
    with pytest.raises(CalibrationMismatch, match=r"name='cosine\(a\)'"):
        check_same_scorer("cosine(b)", calibrated="cosine(a)")
