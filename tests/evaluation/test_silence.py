"""What is measured of a filter behind a gate: what the gate silences counts as dropped."""

import math
from dataclasses import replace

import numpy as np
import pytest
from gates import FIRST, LAST, drawn
from scipy.stats import beta

from conformal_retrievers import ConformalFilter, ScoredQuery, calibrate, diagnose, score_queries
from conformal_retrievers.calibration import Calibration, CalibrationMismatch, Gate, calibrate_gate
from conformal_retrievers.evaluation import Finding, compare, evaluate
from conformal_retrievers.theory.exchangeability import m1_band, m2_band


@pytest.fixture(scope="module")
def gate():
    return calibrate_gate(drawn(np.random.default_rng(3), 200, "gate"), (), FIRST, alpha=0.1)


@pytest.fixture(scope="module")
def calibration(gate):
    return calibrate(drawn(np.random.default_rng(3), 200, "gate"), LAST, alpha=0.2, gate=gate)


def new(n=200, seed=5, **options):
    return drawn(np.random.default_rng(seed), n, "new", **options)


def scored(gate, n=200, **options):
    return score_queries(LAST, new(n, **options), gate=gate)


def silence_in(diagnosis) -> Finding:
    [found] = [one for one in diagnosis.findings if one.name == "silence"]
    return found


def test_silenced_queries_by_hand(calibration):
    kept, dropped = calibration.threshold() - 0.1, calibration.threshold() + 0.1
    queries = [
        ScoredQuery([math.inf, math.inf], [True, False], silenced=True, missed=0),
        ScoredQuery([kept, dropped], [True, False], silenced=False, missed=0),
        ScoredQuery([math.inf], [False], silenced=True, missed=1),
        ScoredQuery([kept], [False], silenced=False, missed=0),
    ]
    e = evaluate(calibration, queries)
    assert (e.silent.estimate, e.silent.n) == (2 / 4, 4)
    assert (e.false_silence.estimate, e.false_silence.n) == (1 / 2, 2)
    assert (e.coverage["query-recall"].estimate, e.m1.estimate, e.m2.estimate) == (
        *(1 / 2, 2 / 4, (0 + 1 / 2 + 0 + 1) / 4),
    )
    assert "silent                    50.0 [" in str(e).replace(" %", "")
    without = [ScoredQuery([0.1], [True])]
    assert evaluate(Calibration.from_scores(without, alpha=0.5, scorer="s"), without).silent is None


def test_what_the_gate_silences_is_dropped_as_the_filter_drops_it(gate, calibration):
    queries = new(answerable=0.7)
    e = evaluate(calibration, score_queries(LAST, queries, gate=gate))
    conformal = ConformalFilter(LAST, calibration, gate=gate)
    found = [conformal(query.query, query.snippets) for query in queries]
    assert e.silent.estimate == np.mean([one.silenced for one in found])
    assert e.m1.estimate == np.mean([one.m1 for one in found])
    assert e.m2.estimate == pytest.approx(np.mean([one.m2 for one in found]))
    assert ("silent" in str(e), "nan" in str(e)) == (True, False)


def test_it_is_dropped_at_an_infinite_threshold_too(gate, calibration):
    few = drawn(np.random.default_rng(3), 3, "few")  # too few for a finite threshold of either
    of_few = calibrate_gate(few, (), FIRST, alpha=0.1).calibration
    assert of_few.keeps_everything
    own = score_queries(LAST, few, gate=Gate(FIRST, of_few))
    everything = Calibration.from_scores(own, alpha=0.2, scorer=LAST.name, gate=of_few)
    assert everything.keeps_everything
    e = evaluate(everything, scored(gate, answerable=0.5))
    assert e.m1.estimate == pytest.approx(1 - e.silent.estimate)


def test_queries_scored_without_the_gate_are_refused(gate, calibration):
    without = calibrate(new(30, seed=6), LAST, alpha=0.2)
    with pytest.raises(CalibrationMismatch, match="gate"):
        evaluate(calibration, score_queries(LAST, new(20)))
    with pytest.raises(CalibrationMismatch, match="gate"):
        diagnose(without, score_queries(LAST, drawn(np.random.default_rng(1), 9, "x"), gate=gate))


def test_a_filter_compares_with_itself_behind_a_gate_and_with_one_without(gate, calibration):
    queries = drawn(np.random.default_rng(8), 60, "new")
    behind, plain = score_queries(LAST, queries, gate=gate), score_queries(LAST, queries)
    without = calibrate(drawn(np.random.default_rng(4), 200, "own"), LAST, alpha=0.2)
    assert compare(calibration, calibration.at(0.15), behind)["silent"].estimate == 0
    assert compare(calibration, without, behind, plain)["removal"].estimate == pytest.approx(
        evaluate(calibration, behind).removal.estimate - evaluate(without, plain).removal.estimate
    )


def test_every_part_of_a_diagnosis_behind_a_gate_is_finite(gate, calibration):
    queries = scored(gate, answerable=0.6)
    d = diagnose(calibration, queries, reference=scored(gate, seed=9))
    assert d.auc_within.estimate > 0.9
    assert d.ties.n_scores == sum(len(one.scores) for one in queries if not one.silenced)
    assert "nan" not in str(d)
    assert "inf" not in str(d)


def test_the_bands_are_about_queries_that_pass(gate, calibration):
    def passing(queries):
        return [one for one in queries if not one.silenced]

    queries, reference = scored(gate, answerable=0.5), scored(gate, seed=9, answerable=0.8)
    kept = np.array([calibration.keep(one.scores).mean() for one in passing(reference)])
    n = len(passing(queries))
    share = n / len(queries)
    d = diagnose(calibration, queries, reference=reference)
    for band, (low, high) in (
        (d.m1_band, m1_band(sum(kept > 0), len(kept), n)),
        (d.m2_band, m2_band(kept, n)),
    ):
        assert band == pytest.approx((share * low, share * high), rel=1e-12)


def test_a_diagnosis_states_how_often_the_gate_is_silent(gate, calibration):
    for queries, severity, words in (
        (scored(gate), "fine", "10 % at most is guaranteed"),
        (scored(gate)[:8], "notice", "Too few to tell"),
        (scored(gate, shift=1.0), "problem", "calibrate, does not explain the difference"),
    ):
        d = diagnose(calibration, queries)
        found = silence_in(d)
        assert found.severity == severity
        assert words in found.sentence
        assert str(d.evaluation.silent) in found.sentence


def test_without_judgements_much_silence_means_unanswerable_queries(gate, calibration):
    half, every = (
        diagnose(
            calibration,
            [replace(q, relevant=q.scores != q.scores) for q in scored(gate, answerable=share)],
        )
        for share in (0.5, 1.0)
    )
    likely = beta.ppf(0.95, 20, 181)  # of calibrations on 200
    least = (half.evaluation.silent.low - likely) / (1 - likely)
    assert silence_in(half).severity == "notice"
    assert f"silence at most {100 * likely:.1f} % of these." in silence_in(half).sentence
    assert f"So at least about {100 * least:.1f} % of the queries" in silence_in(half).sentence
    assert silence_in(every).severity == "fine"
