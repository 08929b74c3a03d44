"""The pictures: what is drawn are the numbers of the value."""

from dataclasses import replace

import numpy as np
import pytest
from drawn import calibrated, draw, unjudged
from gates import gate_of, query, unanswerable
from matplotlib.colors import same_color
from matplotlib.figure import Figure

from conformal_retrievers.evaluation import diagnose, evaluate, evaluate_gate
from conformal_retrievers.evaluation.baselines import FILTER
from conformal_retrievers.evaluation.plot import BLUE, GREY, LONGEST, plot


@pytest.fixture
def calibration(rng):
    return calibrated(draw(rng, 90))


@pytest.fixture
def queries(rng):
    return draw(rng, 70, relevant=0.8)


def lines(axes):
    """Return x and y of each line by its label; one without a label goes by "_" and its place."""
    return {line.get_label(): line.get_xydata().T for line in axes.lines}


def verticals(axes):
    """Return where vertical lines are drawn."""
    two = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 2]
    return {float(x[0]) for x in two if x[0] == x[1]}


def bands(axes):
    """Return the lower and the upper end of each band at its x, in the order of drawing."""
    found = []
    for part in axes.collections:
        at = {}
        for x, y in part.get_paths()[0].vertices:
            at.setdefault(float(x), []).append(float(y))
        found.append([(x, min(ys), max(ys)) for x, ys in sorted(at.items())])
    return found


def heights(axes):
    """Return the different heights of bins in each histogram, by its label."""
    return {patch.get_label(): {*patch.get_xy()[:, 1].round(9)} for patch in axes.patches}


def rows(axes):
    """Return the estimate and the ends of each row of dots that has an interval, by its name."""
    names = [label.get_text() for label in axes.get_yticklabels()]
    points = [line for line in axes.lines if len(line.get_xdata()) == 1]
    dots = {point.get_ydata()[0]: point.get_xdata()[0] for point in points}
    ends = {bar[0, 1]: bar[:, 0] for part in axes.collections for bar in part.get_segments()}
    return {names[round(y)]: [dots[y], *ends[y]] for y in ends}


def test_what_reaches_the_model_is_drawn_with_the_recall_of_rows_at_another(calibration, queries):
    e = evaluate(calibration, [replace(q, tokens=[500.0] * 10) for q in queries])
    axes, _ = plot(e).axes
    drawn, table = rows(axes), e.equal_recall
    colors = [line.get_color() for line in axes.lines if len(line.get_xdata()) == 1]
    for row, (name, found), color in zip(table.rows, drawn.items(), colors, strict=True):
        recall = f", recall {100 * row.measured['recall'].estimate:.1f} %"
        assert name == (row.name if row.equal else row.name + recall)
        assert found == pytest.approx([x / 1000 for x in row.measured["tokens"]])
        assert same_color(color, BLUE if row.name == FILTER else GREY)
    ours = table.filter.measured
    recall = f"{100 * ours['recall'].estimate:.1f} % recall"
    assert axes.get_xlabel().startswith(f"1,000 tokens per query, at {recall}")
    assert verticals(axes) == {ours["tokens"].estimate / 1000}
    top, bottom = axes.get_ylim()[::-1]
    assert top < 0 < bottom  # the first row is at the top


def test_a_diagnosis_and_an_evaluation_are_drawn_over_alpha(calibration, queries):
    d = diagnose(calibration, queries, reference=list(calibration.queries) + queries)
    covered, removed, kept, scores = plot(d).axes
    alphas = [point.alpha for point in d.sweep]
    for axes in (covered, plot(evaluate(calibration, queries)).axes[1]):
        drawn = lines(axes)
        measured = [(p.alpha, p.coverage.estimate) for p in d.sweep]
        np.testing.assert_array_equal(drawn["measured, 95 % interval"].T, measured)
        target = [(alpha, 1 - alpha) for alpha in alphas]
        np.testing.assert_array_equal(drawn["target, 1 − α"].T, target)
        assert bands(axes) == [[(p.alpha, p.coverage.low, p.coverage.high) for p in d.sweep]]
        [own] = [xy for xy in drawn.values() if len(xy.T) == 1]
        assert own.ravel().tolist() == [0.1, d.coverage.estimate]
    [over_alpha, _] = removed.lines
    assert over_alpha.get_xydata().tolist() == [[p.alpha, p.removal] for p in d.sweep]
    drawn = lines(kept)
    for name in ("m1", "m2"):
        np.testing.assert_array_equal(drawn[name][1], [getattr(p, name) for p in d.sweep])
    np.testing.assert_array_equal(drawn["1 − α, not a target"][1], 1 - np.array(alphas))
    m1_bands = [(p.alpha, *p.m1_band) for p in d.sweep]
    assert bands(kept) == [m1_bands, [(p.alpha, *p.m2_band) for p in d.sweep]]
    assert [verticals(axes) for axes in (covered, removed, kept)] == [{0.1}] * 3
    pooled = np.concatenate([q.scores for q in queries])
    relevant = np.concatenate([q.relevant for q in queries])
    expected = {}
    for name, of_kind in (("relevant", pooled[relevant]), ("irrelevant", pooled[~relevant])):
        counts, _ = np.histogram(of_kind, 40, (pooled.min(), pooled.max()))
        expected[f"{name} ({len(of_kind)})"] = {0.0, *(counts / len(of_kind)).round(9)}
    assert heights(scores) == expected
    assert scores.get_ylabel() == "share of each kind"


def test_a_calibration_is_drawn_with_its_threshold_at_every_alpha(calibration):
    scores, over_alpha = plot(calibration).axes
    assert set(lines(scores)["threshold"][0]) == {calibration.threshold()}
    assert scores.get_ylabel() == "share"
    alphas, thresholds = over_alpha.lines[0].get_xydata().T
    assert alphas.tolist() == [k / 40 for k in range(1, 21)]
    assert thresholds.tolist() == [calibration.at(alpha).threshold() for alpha in alphas.tolist()]


def test_each_group_is_drawn_at_its_own_threshold(rng):
    few = [replace(q, group="few") for q in draw(rng, 5)]  # keeps everything
    some = [replace(q, group="some") for q in draw(rng, 40)]
    more = [replace(q, group="more") for q in draw(rng, 40)]
    made = calibrated([*few, *some, *more], by_group=True)
    scores, over_alpha = plot(made).axes
    drawn = lines(over_alpha)
    at = drawn["some"][0].tolist().index(0.1)
    assert drawn["some"][1][at] == made.threshold("some")
    assert np.isnan(drawn["few"][1][at])
    assert verticals(scores) == {made.threshold("some"), made.threshold("more")}
    assert {*lines(scores)} >= {"thresholds of the groups"}
    assert "threshold" not in lines(scores)
    _, labels = scores.get_legend_handles_labels()
    assert len(labels) == 2  # one for all groups


def test_a_gate_is_drawn_with_both_errors(rng):
    gate = gate_of(rng.normal(size=60).tolist(), alpha=0.1)
    long = "$" + "x" * LONGEST
    found = {n: [unanswerable(n + str(i), s) for i, s in enumerate(range(9))] for n in ("y", long)}
    known = [query(f"new {i}", s) for i, s in enumerate(rng.normal(size=40))]
    e = evaluate_gate(gate, known, found)
    drawn = lines(plot(e).axes[0])
    np.testing.assert_array_equal(drawn["false silence"], [e.curve.alpha, e.curve.answerable])
    np.testing.assert_array_equal(drawn["false silence, at most"], [e.curve.alpha] * 2)
    np.testing.assert_array_equal(drawn["speaks: y"][1], 1 - e.curve.unanswerable["y"])
    assert rf"speaks: \${long[1 : LONGEST - 1]}…" in drawn


def test_unjudged_queries_and_other_axes_are_drawn_as_far_as_there_is_any(calibration, queries):
    unknown = unjudged(queries)
    e = evaluate(calibration, unknown)
    measured = rows(plot(e).axes[0])
    assert measured["m1"] == [100 * x for x in e.m1.interval]
    assert "recall@K" not in measured
    *_, scores = plot(diagnose(calibration, unknown)).axes
    assert [*heights(scores)] == ["relevant, calibration (90)", "all of these queries (700)"]
    figure = Figure()
    assert plot(diagnose(calibration, queries), axes=figure.subplots(1, 2)) is figure
    assert [axes.get_ylabel() for axes in figure.axes] == ["coverage", "snippets removed"]
    with pytest.raises(TypeError, match="give what evaluate"):
        plot(0.1)
    assert plot(calibration)._repr_png_().startswith(b"\x89PNG")
