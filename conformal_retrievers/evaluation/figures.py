"""The pictures of a report, as SVG: each draws one thing from a `Diagnosis` or from scores.

The same numbers give the same bytes. No text of the data is drawn. Lines differ in style as well as
in colour.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.evaluation.diagnosis import Diagnosis
from conformal_retrievers.extras import require

require("report", "matplotlib")

import matplotlib
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


def coverage(d: Diagnosis) -> str:
    """Draw measured coverage, with its interval, against its target over alpha."""

    def draw(axes: Any) -> None:
        target = np.array([1 - point.alpha for point in d.sweep])
        axes.plot(target, target, color=GREY, linestyle="--", label="target")
        estimate, low, high = np.array([point.coverage for point in d.sweep]).T
        axes.fill_between(target, low, high, color=BLUE, alpha=0.2, linewidth=0)
        axes.plot(target, estimate, color=BLUE, label=f"measured, {100 * d.level:g} % interval")
        axes.axvline(d.target, color=GREY, linewidth=1, linestyle=":")

    return _svg(draw, xlabel="target coverage, 1 − α", ylabel="coverage")


def removal(d: Diagnosis) -> str:
    """Draw the share of snippets that is removed, over alpha."""

    def draw(axes: Any) -> None:
        alphas = [point.alpha for point in d.sweep]
        axes.plot(alphas, [point.removal for point in d.sweep], color=GREEN)
        axes.axvline(d.calibration.alpha, color=GREY, linewidth=1, linestyle=":")

    return _svg(draw, xlabel="α", ylabel="snippets removed", ylim=(0, 1))


def sweep(d: Diagnosis) -> str:
    """Draw m1 and m2 over alpha with their bands, and the line 1 − α."""

    def draw(axes: Any) -> None:
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

    return _svg(draw, xlabel="α", ylabel="share of queries, of snippets", ylim=(0, 1.03))


def histogram(parts: Sequence[tuple[str, NDArray[np.float64]]], thresholds: Iterable[float]) -> str:
    """Draw the distributions of scores, by name, and the thresholds."""

    def draw(axes: Any) -> None:
        # Beyond what an axis can span, a score is drawn at its end.
        finite = [(name, scores[np.isfinite(scores)].clip(-1e300, 1e300)) for name, scores in parts]
        pooled = np.concatenate([scores for _, scores in finite])
        edges = _bin_edges(pooled)
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

    return _svg(draw, xlabel="score, lower = more relevant", ylabel="share of each kind")


def _bin_edges(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the edges of 40 bins over all scores, or of one around scores that hardly differ."""
    low, high = float(scores.min()), float(scores.max())
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return np.linspace(low, high, 41)
    half = max(abs(low), abs(high)) * 0.01 or 0.5
    return np.array([low - half, high + half])


def _svg(draw: Callable[[Any], None], **labels: Any) -> str:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3.3))
        axes: Any = figure.subplots()
        draw(axes)
        axes.set(**labels)
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside upper left", ncols=2)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()
