"""One HTML file on a calibration and new queries: verdict, evidence, pictures.

The page needs no network and no scripts, and prints well. The same input gives the same bytes.
Everything that comes from the data is escaped.
"""

import base64
import io
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.subjects import Scores
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.files import write_whole
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.evaluation.diagnose import diagnose
from conformal_retrievers.evaluation.diagnosis import MEANING, Band, Diagnosis
from conformal_retrievers.evaluation.equal_recall import marked
from conformal_retrievers.evaluation.gate_evaluation import GateEvaluation
from conformal_retrievers.evaluation.measures import guaranteed
from conformal_retrievers.extras import require
from conformal_retrievers.theory.intervals import Interval, percent

require("report", "jinja2", "matplotlib")

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
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
    "svg.fonttype": "none",  # the reader's own font
    "svg.hashsalt": "conformal_retrievers",
}


def write(
    path: str | Path,
    calibration: Calibration,
    scored: Iterable[ScoredQuery],
    *,
    reference: Iterable[ScoredQuery] | None = None,
    level: float = 0.95,
    sources: Mapping[str, str] | None = None,
    gate: GateEvaluation | None = None,
) -> Diagnosis:
    """Diagnose the queries, write the report to a file, and return the diagnosis.

    Parameters
    ----------
    path
        An old file stays until the new one is complete.
    calibration, scored, reference, level
        As in `diagnose`, which raises ValueError for what is invalid.
    sources
        Where things come from, such as {"judged queries": "new.jsonl"}.
    gate
        What `evaluate_gate` measured of the gate in front, which gets a section of its own.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    given = ScoredQueries.of(scored)
    d = diagnose(calibration, given, reference=reference, level=level)
    page = html(d, given, sources, gate)
    write_whole(path, page.encode("utf-8"), what="report")
    return d


@matplotlib.rc_context(STYLE)
def html(
    d: Diagnosis,
    scored: Iterable[ScoredQuery],
    sources: Mapping[str, str] | None = None,
    gate: GateEvaluation | None = None,
) -> str:
    """Return a diagnosis of scored queries as one HTML page; `sources` and `gate` as in `write`."""
    environment = Environment(
        loader=PackageLoader("conformal_retrievers.evaluation", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "number": _number, "ends": _ends}
    c = d.calibration
    thresholds = {group or "all queries": c.threshold(group) for group in c.n_units}
    chosen = c.choice is not None  # then the statement has it
    scorer = None if chosen else c.scorer_provenance
    given = {"retrieval": c.retrieval, "labels": c.labels, "scorer": scorer}
    scores = _scores(d, scored)
    some_score = any(np.isfinite(of_kind).any() for _, of_kind in scores)
    return environment.get_template("report.html.jinja").render(
        sources=dict(sources or {}),
        c=c,
        d=d,
        meaning=c.subject.worded(MEANING[c.guarantee]),
        guaranteed=guaranteed(c),
        thresholds=thresholds,
        coverage=None if math.isnan(d.coverage.estimate) else _draw_coverage(d),
        removal=_draw_removal(d),
        sweep=_draw_sweep(d),
        histogram=_draw_histogram(scores, thresholds.values()) if some_score else None,
        kinds=" and ".join(name for name, _ in scores),
        provenance={f"{name}: {k}": v for name, of in given.items() for k, v in (of or {}).items()},
        infinity=math.inf,
        gate=gate,
        gate_curve=gate and _draw_gate(gate),
        limited=gate is not None and gate.false_speech is not None,
        marked=marked,
    )


def _scores(d: Diagnosis, scored: Iterable[ScoredQuery]) -> list[tuple[str, Scores]]:
    """Return relevant and irrelevant scores, or unjudged ones and the calibration's relevant."""
    queries = ScoredQueries.of(scored)
    if d.judged:
        return [
            ("relevant", queries.scores[queries.relevant]),
            ("irrelevant", queries.scores[~queries.relevant]),
        ]
    return [
        ("relevant, calibration", d.calibration.queries.scores),
        ("all of these queries", queries.scores),
    ]


def _number(value: float) -> str:
    if np.isinf(value):
        return "none, everything is kept" if value > 0 else "−∞"
    if np.isnan(value):
        return "–"
    return str(int(value)) if value == int(value) else f"{value:.4g}"


def _ends(ends: Interval | Band | None) -> str:
    if ends is None or ends[-2:] == (0, 1):
        return "–"
    return f"[{100 * ends[-2]:.1f}, {100 * ends[-1]:.1f}]"


# --- pictures, without text of the data -----------------------------------------------------------


def _draw_coverage(d: Diagnosis) -> str:
    """Draw measured coverage, with its interval, against its target over alpha."""
    axes = _axes(xlabel="α", ylabel="coverage")
    alphas = np.array([point.alpha for point in d.sweep])
    axes.plot(alphas, 1 - alphas, color=GREY, linestyle="--", label="target, 1 − α")
    estimate, low, high = np.array([point.coverage for point in d.sweep]).T
    axes.fill_between(alphas, low, high, color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(alphas, estimate, color=BLUE, label=f"measured, {100 * d.level:g} % interval")
    axes.axvline(d.calibration.alpha, color=GREY, linewidth=1, linestyle=":")
    return _image(axes)


def _draw_removal(d: Diagnosis) -> str:
    """Draw the share of snippets that is removed, over alpha."""
    axes = _axes(xlabel="α", ylabel=f"{d.calibration.subject.name} removed", ylim=(0, 1))
    alphas = [point.alpha for point in d.sweep]
    axes.plot(alphas, [point.removal for point in d.sweep], color=GREEN)
    axes.axvline(d.calibration.alpha, color=GREY, linewidth=1, linestyle=":")
    return _image(axes)


def _draw_sweep(d: Diagnosis) -> str:
    """Draw m1 and m2 over alpha with their bands, and the line 1 − α."""
    axes = _axes(
        xlabel="α", ylabel=f"share of queries, of {d.calibration.subject.name}", ylim=(0, 1.03)
    )
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
    axes.axvline(d.calibration.alpha, color=GREY, linewidth=1, linestyle=":")
    return _image(axes)


def _draw_histogram(parts: Sequence[tuple[str, Scores]], thresholds: Iterable[float]) -> str:
    """Draw the distributions of scores, by name, and the thresholds."""
    axes = _axes(xlabel="score, lower = more relevant", ylabel="share of each kind")
    # Beyond what an axis can span, a score is drawn at its end.
    finite = [(name, scores[np.isfinite(scores)].clip(-1e300, 1e300)) for name, scores in parts]
    edges = _bin_edges(np.concatenate([scores for _, scores in finite]))
    looks = ((BLUE, "-"), (RED, (0, (2, 1))))
    for (name, scores), (color, line) in zip(finite, looks, strict=False):
        axes.hist(
            scores,
            edges,
            weights=np.full(len(scores), 1 / max(1, len(scores))),
            histtype="stepfilled",
            facecolor=matplotlib.colors.to_rgba(color, 0.25),
            edgecolor=color,
            linestyle=line,
            label=f"{name} ({len(scores)})",
        )
    drawn = sorted({min(max(t, -1e300), 1e300) for t in thresholds if math.isfinite(t)})
    for i, threshold in enumerate(drawn):
        label = None if i else ("threshold" if len(drawn) == 1 else "thresholds of the groups")
        axes.axvline(threshold, color="black", linestyle="--", linewidth=1.4, label=label)
    return _image(axes)


def _draw_gate(gate: GateEvaluation) -> str:
    """Draw the share silenced of each source over the share silenced of answerable queries."""
    axes = _axes(xlabel="false silence, measured", ylabel="silent on unanswerable", ylim=(0, 1.03))
    curve, own = gate.curve, gate.curve.alpha == gate.alpha
    looks = itertools.cycle(itertools.product(("-", "-.", ":"), (BLUE, RED, GREEN)))
    for (name, silent), (line, color) in zip(curve.unanswerable.items(), looks, strict=False):
        label = repr(name[:30]).replace("$", r"\$")  # a name with _ in front would be hidden
        axes.plot(curve.answerable, silent, color=color, linestyle=line, label=label)
        axes.plot(curve.answerable[own], silent[own], "o", color=color)
    axes.axvline(gate.alpha, color=GREY, linewidth=1, linestyle=":")
    return _image(axes)


def _bin_edges(scores: Scores) -> Scores:
    """Return the edges of 40 bins over all scores, or of one around scores that hardly differ."""
    low, high = float(scores.min()), float(scores.max())
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return np.linspace(low, high, 41)
    half = max(abs(low), abs(high)) * 0.01 or 0.5
    return np.array([low - half, high + half])


def _axes(**labels: Any) -> Any:
    axes: Any = Figure(figsize=(4.6, 3.3)).subplots()
    axes.set(**labels)
    return axes


def _image(axes: Any) -> str:
    """Return the source of an image: what is inside cannot meet the page's ids, styles or text."""
    if axes.get_legend_handles_labels()[0]:
        axes.figure.legend(loc="outside upper left", ncols=2)
    file = io.StringIO()
    axes.figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue().encode()).decode()
