"""Pictures of what `evaluate`, `diagnose`, `evaluate_gate`, `evaluate_answers`, `calibrate` return.

`plot` draws those that a value has; the report takes its pictures from the same functions. They are
legible on light and on dark pages, in grey, and without colour vision.
"""

import io
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.subjects import CLAIMS, FLAGS, QUERIES, RETRIEVED, Scores
from conformal_retrievers.data.text import shortened
from conformal_retrievers.evaluation import measures
from conformal_retrievers.evaluation.diagnosis import Diagnosis
from conformal_retrievers.evaluation.equal_recall import EqualRecall
from conformal_retrievers.evaluation.evaluate import Evaluation
from conformal_retrievers.evaluation.evaluate_gate import GateEvaluation
from conformal_retrievers.evaluation.per_query_counts import Observed, alphas_of
from conformal_retrievers.evaluation.wording import say
from conformal_retrievers.extras import require
from conformal_retrievers.theory.intervals import Interval, percent

require("cli", "matplotlib")

import matplotlib.style
from matplotlib.figure import Figure

BLUE, RED, GREEN, GREY = "#0072b2", "#c04a00", "#00785a", "#595959"  # legible on white
STYLE: Any = {  # versions of matplotlib differ in how they type its keys
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.size": 9.5,
    "grid.alpha": 0.35,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "savefig.facecolor": "white",  # a page may be dark
    "svg.fonttype": "none",  # the reader's own font
    "svg.hashsalt": "conformal_retrievers",
}
LONGEST = 34  # characters of a name
ON_AXIS = {CLAIMS: "relevance", FLAGS: "confidence", QUERIES: "score, lower = more answerable"}
Draw = Callable[[Any], None]


class Drawable(Protocol):
    """What draws itself, such as what `evaluate_answers` returns."""

    def draw(self, axes: Any) -> None:
        """Draw into axes of matplotlib."""


Drawn = Evaluation | Diagnosis | Calibration | GateEvaluation | Drawable


class Picture(Figure):
    """A figure that a notebook shows as it is, whatever its own settings of matplotlib are."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        with matplotlib.style.context(["default", STYLE]):
            self.savefig(file, format="png", dpi=110, metadata={"Software": None})
        return file.getvalue()


def plot(value: Drawn, *, axes: Any = None) -> Figure:
    """Draw a value, and return the matplotlib figure, which a notebook shows.

    ==================  ==========================================================================
    an evaluation       what reaches the model at equal recall; coverage over alpha, with its target
    a calibration       the scores that it holds, with the threshold; the threshold over alpha
    a diagnosis         coverage, removal, m1 and m2 over alpha; scores
    a gate's            both errors over alpha
    that of answers     the share of answers that will do, against the tokens of context
    ==================  ==========================================================================

    Parameters
    ----------
    value
        From `evaluate`, `diagnose`, `evaluate_gate`, `evaluate_answers`, or a `Calibration`.
    axes
        Axes of matplotlib, one or several, for as many of the pictures. By default all of them are
        drawn side by side in a new figure.

    Raises
    ------
    TypeError
        For any other value.
    """
    pictures = _pictures(value)
    if axes is not None:
        given = np.ravel(axes).tolist()
        for draw, on in zip(pictures, given, strict=False):
            draw(on)
        return given[0].figure  # type: ignore[no-any-return]
    with matplotlib.style.context(["default", STYLE]):
        figure = Picture(figsize=(5.2 * len(pictures), 3.4))
        side_by_side = figure.subplots(1, len(pictures), squeeze=False)[0]
        for draw, on in zip(pictures, side_by_side, strict=True):
            draw(on)
        figure.set_figheight(max(3.4, 1 + 0.28 * max(len(on.get_yticks()) for on in side_by_side)))
    return figure


def _pictures(value: Drawn) -> list[Draw]:
    match value:
        case Evaluation():
            return list(_of_evaluation(value))
        case Calibration():
            scores = {_judged(value): value.queries.scores}
            return [
                partial(histogram, scores=scores, calibration=value),
                partial(threshold_over_alpha, calibration=value),
            ]
        case Diagnosis():
            return [*of_diagnosis(value).values()]
        case GateEvaluation():
            return [partial(gate_errors, gate=value)]
        case object(draw=draw):
            return [draw]
    raise TypeError(say("not drawn", value=value))


def _of_evaluation(e: Evaluation) -> Iterable[Draw]:
    if e.equal_recall:
        yield partial(equal_recall, table=e.equal_recall)
    if e._of_snippets and e.n_relevant + e.n_missed:
        calibration, queries, level = e._of_snippets
        seen, name = Observed.of(calibration, queries), measures.guaranteed(calibration)
        alphas = alphas_of(calibration)
        intervals = [measures.share(seen.at(i), name, level).interval for i in range(len(alphas))]
        yield partial(coverage, alphas=alphas, found=intervals, own=calibration.alpha, level=level)
    else:
        yield partial(shares, found={name: s.interval for name, s in e.shares.items() if s.n})


def of_diagnosis(d: Diagnosis) -> dict[str, Draw]:
    """Return the pictures of a diagnosis by their names in the report's template."""
    known, scores = not math.isnan(d.coverage.estimate), scores_of(d)
    drawn: dict[str, Draw] = {"coverage": partial(coverage_of, d=d)} if known else {}
    drawn |= {"removal": partial(removal, d=d), "sweep": partial(m1_and_m2, d=d)}
    if any(np.isfinite(of_kind).any() for of_kind in scores.values()):
        drawn["histogram"] = partial(histogram, scores=scores, calibration=d.calibration)
    return drawn


def scores_of(d: Diagnosis) -> dict[str, Scores]:
    """Return relevant and irrelevant scores, or unjudged ones and the calibration's relevant."""
    queries: Any = d.evaluation._queries  # `diagnose` has them
    if d.judged:
        scores, relevant = queries.scores, queries.relevant
        return {"relevant": scores[relevant], "irrelevant": scores[~relevant]}
    known = d.calibration.queries.scores
    return {"relevant, calibration": known, "all of these queries": queries.scores}


# --- one picture each, on given axes --------------------------------------------------------------


def equal_recall(axes: Any, table: EqualRecall) -> None:
    """Draw what reaches the model of each way to choose, and the recall of those at another."""
    scale, recall = table.scales[-1], percent(table.filter.measured["recall"].estimate)
    names = [_name(row.name) for row in table.rows]
    for i, row in enumerate(table.rows):
        if not row.equal:
            names[i] += f", recall {percent(row.measured['recall'].estimate)}"
    costs = [np.array(row.measured[scale.measure]) / scale.unit for row in table.rows]
    colors = [BLUE if row is table.filter else GREY for row in table.rows]
    _dots(axes, names, costs, colors)
    label = f"{table.head(scale)} per query, at {recall} recall or as named"
    axes.set(xlabel=label, xlim=(0, None))
    axes.axvline(costs[colors.index(BLUE)][0], color=BLUE, linewidth=1, linestyle=":")


def coverage_of(axes: Any, d: Diagnosis) -> None:
    """Draw the coverage of a diagnosis over alpha, see `coverage`."""
    alphas, intervals = zip(*((point.alpha, point.coverage) for point in d.sweep), strict=True)
    coverage(axes, alphas, intervals, d.calibration.alpha, d.level)


def coverage(
    axes: Any, alphas: Sequence[float], found: Sequence[Interval], own: float, level: float
) -> None:
    """Draw measured coverage, with its interval, against its target over alpha."""
    at, (estimate, low, high) = np.array(alphas), np.array(found).T
    axes.plot(at, 1 - at, color=GREY, linestyle="--", label="target, 1 − α")
    axes.fill_between(at, low, high, color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(at, estimate, color=BLUE, label=f"measured, {100 * level:g} % interval")
    axes.plot(own, estimate[alphas.index(own)], "o", color=BLUE)
    _finish(axes, own, ylabel="coverage")


def removal(axes: Any, d: Diagnosis) -> None:
    """Draw the share of snippets that is removed, over alpha."""
    axes.plot([point.alpha for point in d.sweep], [point.removal for point in d.sweep], color=GREEN)
    _finish(axes, d.calibration.alpha, f"{d.calibration.subject.name} removed", (0, 1))


def m1_and_m2(axes: Any, d: Diagnosis) -> None:
    """Draw m1 and m2 over alpha with their bands, and the line 1 − α."""
    alphas = np.array([point.alpha for point in d.sweep])
    for name, color, style in (("m1", BLUE, "-"), ("m2", RED, "-.")):
        bands = [getattr(point, f"{name}_band") for point in d.sweep]
        if None not in bands:
            low, high = np.array(bands).T
            label = f"{name} if exchangeable"
            axes.fill_between(alphas, low, high, color=color, alpha=0.18, lw=0, label=label)
        values = [getattr(point, name) for point in d.sweep]
        axes.plot(alphas, values, color=color, linestyle=style, label=name)
    axes.plot(alphas, 1 - alphas, color=GREY, linestyle="--", label="1 − α, not a target")
    name = d.calibration.subject.name
    _finish(axes, d.calibration.alpha, f"share of queries, of {name}", (0, 1.03))


def histogram(axes: Any, scores: Mapping[str, Scores], calibration: Calibration) -> None:
    """Draw the distributions of scores, by name, and the thresholds."""
    finite = {name: values[np.isfinite(values)] for name, values in scores.items()}
    edges = _bin_edges(np.concatenate([*finite.values()]))
    looks = ((BLUE, "-"), (RED, (0, (2, 1))))
    for (name, of_kind), (color, line) in zip(finite.items(), looks, strict=False):
        axes.hist(
            of_kind,
            edges,
            weights=np.full(len(of_kind), 1 / max(1, len(of_kind))),
            histtype="stepfilled",
            facecolor=matplotlib.colors.to_rgba(color, 0.25),
            edgecolor=color,
            linestyle=line,
            label=f"{name} ({len(of_kind)})",
        )
    thresholds = {calibration.threshold(group) for group in calibration.n_units}
    drawn = sorted(filter(math.isfinite, thresholds))
    for i, threshold in enumerate(drawn):
        label = None if i else ("threshold" if len(drawn) == 1 else "thresholds of the groups")
        axes.axvline(threshold, color="black", linestyle="--", linewidth=1.4, label=label)
    axes.set_xlabel(ON_AXIS.get(calibration.subject, "score, lower = more relevant"))
    axes.set_ylabel("share of each kind" if len(finite) > 1 else "share")
    _legend(axes)


def threshold_over_alpha(axes: Any, calibration: Calibration) -> None:
    """Draw the threshold at each alpha, of each group; where it is infinite, nothing is drawn."""
    alphas = alphas_of(calibration)
    at = [calibration.thresholds_at(alpha) for alpha in alphas]
    looks = zip(itertools.cycle(["-", "--", "-.", ":"]), itertools.cycle([BLUE, RED, GREEN]))
    for group, (look, color) in zip(calibration.n_units, looks, strict=False):
        name = None if group is None else _name(str(group))
        limits = np.array([thresholds[group] for thresholds in at])
        finite = np.where(np.isfinite(limits), limits, np.nan)
        axes.plot(alphas, finite, look, color=color, label=name)
    _finish(axes, calibration.alpha, "threshold")


def gate_errors(axes: Any, gate: GateEvaluation) -> None:
    """Draw false silence, and the share of each source on which a gate speaks, over alpha."""
    curve = gate.curve
    axes.plot(curve.alpha, curve.alpha, color=GREY, linestyle="--", label="false silence, at most")
    axes.plot(curve.alpha, curve.answerable, color=BLUE, label="false silence")
    looks = zip(itertools.cycle(("-.", ":", "-")), itertools.cycle((RED, GREEN)), strict=False)
    for (name, silent), (line, color) in zip(curve.unanswerable.items(), looks, strict=False):
        axes.plot(curve.alpha, 1 - silent, line, color=color, label=f"speaks: {_name(name)}")
    _finish(axes, gate.alpha, "share of the queries", (0, 1.03))


def shares(axes: Any, found: Mapping[str, Interval]) -> None:
    """Draw measures with their intervals."""
    _dots(axes, [*found], [*(100 * np.array([*found.values()]))], [BLUE] * len(found))
    axes.set(xlabel="%", xlim=(0, 100))


def _dots(axes: Any, names: Sequence[str], found: Sequence[Any], colors: Sequence[str]) -> None:
    """Draw estimates with their intervals, a row each, from top to bottom."""
    for y, ((estimate, low, high), color) in enumerate(zip(found, colors, strict=True)):
        if not math.isnan(low):
            axes.hlines(y, low, high, color=color)
        axes.plot(estimate, y, "o", color=color)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def _finish(axes: Any, own: float, ylabel: str, ylim: Any = None) -> None:
    axes.axvline(own, color=GREY, linewidth=1, linestyle=":")
    axes.set(xlabel="α", ylabel=ylabel, ylim=ylim)
    _legend(axes)


def _legend(axes: Any) -> None:
    if labels := axes.get_legend_handles_labels()[1]:
        columns = 1 if max(map(len, labels)) > 24 else 2
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0.2)


def _name(text: str) -> str:
    """Return a name as it is: $ would begin mathematics, and a long one leaves no room."""
    return shortened(text, LONGEST).replace("$", r"\$")


def _judged(calibration: Calibration) -> str:
    subject = calibration.subject
    return f"relevant {subject.name}" if subject in RETRIEVED else subject.judged


def _bin_edges(scores: Scores) -> Scores:
    """Return the edges of 40 bins over all scores, or of one around scores that hardly differ."""
    if not len(scores):
        return np.array([0.0, 1.0])
    low, high = float(scores.min()), float(scores.max())
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return np.linspace(low, high, 41)
    half = max(abs(low), abs(high)) * 0.01 or 0.5
    return np.array([low - half, high + half])
