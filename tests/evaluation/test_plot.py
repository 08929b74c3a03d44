"""The pictures: what is drawn are the numbers of the value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drawn import draw, unjudged
from gates import gate_of, query, unanswerable
from matplotlib.figure import Figure

from conformal_retrievers import Calibration, compare, diagnose, evaluate
from conformal_retrievers.evaluation import evaluate_gate
from conformal_retrievers.evaluation.plot import LONGEST, plot


@pytest.fixture
def calibration(rng):
    return Calibration.from_scores(draw(rng, 90), alpha=0.1, scorer="drawn")


@pytest.fixture
def queries(rng):
    return draw(rng, 70, relevant=0.8)


def lines(axes):
    """Return x and y of each line by its label, those without one left out."""
    return {line.get_label(): line.get_xydata().T for line in axes.lines}


def rows(axes):
    """Return the estimate and the ends of each row of dots that has an interval, by its name."""
    names = [label.get_text() for label in axes.get_yticklabels()]
    dots = {
        line.get_ydata()[0]: line.get_xdata()[0]
        for line in axes.lines
        if len(line.get_xdata()) == 1
    }
    ends = {bar[0, 1]: bar[:, 0] for part in axes.collections for bar in part.get_segments()}
    return {names[round(y)]: [dots[y], *ends[y]] for y in ends}


def test_an_evaluation_is_drawn_at_equal_recall_and_over_alpha(calibration, queries):
    e, d = evaluate(calibration, queries), diagnose(calibration, queries)
    at_equal_recall, over_alpha = plot(e).axes
    drawn = rows(at_equal_recall)
    assert len(drawn) == len(e.equal_recall.rows)
    for row in e.equal_recall.rows:
        name = next(name for name in drawn if name.startswith(row.name[:LONGEST]))
        assert drawn[name] == list(row.measured["snippets"])
    recall = f"{100 * e.equal_recall.filter.measured['recall'].estimate:.1f} % recall"
    assert recall in at_equal_recall.get_xlabel()
    measured = lines(over_alpha)["measured, 95 % interval"]
    np.testing.assert_array_equal(
        measured, np.transpose([(p.alpha, p.coverage.estimate) for p in d.sweep])
    )


def test_a_calibration_is_drawn_with_its_threshold_at_every_alpha(calibration):
    scores, over_alpha = plot(calibration).axes
    assert set(lines(scores)["threshold"][0]) == {calibration.threshold()}
    alphas, thresholds = over_alpha.lines[0].get_xydata().T
    assert thresholds.tolist() == [calibration.at(alpha).threshold() for alpha in alphas.tolist()]


def test_each_group_is_drawn_at_its_own_threshold(rng):
    few = [replace(q, group="few") for q in draw(rng, 5)]  # keeps everything
    some = [replace(q, group="some") for q in draw(rng, 40)]
    made = Calibration.from_scores([*few, *some], alpha=0.1, by_group=True, scorer="drawn")
    drawn = lines(plot(made).axes[1])
    at = drawn["some"][0].tolist().index(0.1)
    assert (drawn["some"][1][at], drawn["few"][1][at]) == (
        made.threshold("some"),
        pytest.approx(np.nan, nan_ok=True),
    )


def test_a_gate_is_drawn_with_both_errors(rng):
    gate = gate_of(rng.normal(size=60).tolist(), alpha=0.1)
    others = {"$x$": [unanswerable(f"n{i}", s) for i, s in enumerate(rng.normal(2, 1, 30))]}
    known = [query(f"new {i}", s) for i, s in enumerate(rng.normal(size=40))]
    e = evaluate_gate(gate, known, others)
    drawn = lines(plot(e).axes[0])
    np.testing.assert_array_equal(drawn["false silence"], [e.curve.alpha, e.curve.answerable])
    np.testing.assert_array_equal(drawn[r"speaks: \$x\$"][1], 1 - e.curve.unanswerable["$x$"])


def test_a_comparison_is_drawn_in_points(calibration, queries, rng):
    found = compare(calibration, calibration.at(0.3), queries, rng=rng)
    drawn = rows(plot(found).axes[0])
    assert drawn["m1"] == pytest.approx([100 * end for end in found["m1"][:3]])


def test_unjudged_queries_and_other_axes_are_drawn_as_far_as_there_is_something(
    calibration, queries
):
    measured = rows(plot(evaluate(calibration, unjudged(queries))).axes[0])
    assert "m1" in measured
    assert "recall@K" not in measured
    figure = Figure()
    assert plot(diagnose(calibration, queries), axes=figure.subplots(1, 2)) is figure
    assert [axes.get_ylabel() for axes in figure.axes] == ["coverage", "snippets removed"]
    with pytest.raises(TypeError, match="give what evaluate"):
        plot(0.1)
    assert plot(calibration)._repr_png_().startswith(b"\x89PNG")
