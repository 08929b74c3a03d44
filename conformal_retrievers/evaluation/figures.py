"""The pictures of a report, as SVG: each draws one thing from a `Diagnosis` or from scores.

The same numbers give the same bytes. No text of the data is drawn. Lines differ in style as well as
in colour.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.evaluation.diagnosis import Diagnosis
from conformal_retrievers.evaluation.sweeps import Band
from conformal_retrievers.extras import require

require("report", "matplotlib")

import matplotlib
from matplotlib.figure import Figure

BLUE, RED, GREEN, GREY = "#0072b2", "#c04a00", "#00785a", "#595959"  # legible on white
STYLE: Any = {  # versions of matplotlib differ in how they type its keys
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
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
        intervals = [point.coverage for point in d.sweep if point.coverage is not None]
        estimate, low, high = np.array(intervals).T
        axes.fill_between(target, low, high, color=BLUE, alpha=0.2, linewidth=0)
        axes.plot(target, estimate, color=BLUE, label=f"measured, {d.level:.0%} interval")
        axes.axvline(1 - d.calibration.alpha, color=GREY, linewidth=1, linestyle=":")
        axes.set(xlabel="target coverage, 1 − α", ylabel="coverage")

    return _svg(draw)


def removal(d: Diagnosis) -> str:
    """Draw the share of snippets that is removed, over alpha."""

    def draw(axes: Any) -> None:
        axes.plot(_alphas(d), [point.removal for point in d.sweep], color=GREEN)
        axes.axvline(d.calibration.alpha, color=GREY, linewidth=1, linestyle=":")
        axes.set(xlabel="α", ylabel="snippets removed", ylim=(0, 1))

    return _svg(draw)


def sweep(d: Diagnosis) -> str:
    """Draw m1 and m2 over alpha with their bands, and the line 1 − α."""

    def draw(axes: Any) -> None:
        alphas = _alphas(d)
        _line(axes, alphas, [p.m1 for p in d.sweep], [p.m1_band for p in d.sweep], BLUE, "-", "m1")
        _line(axes, alphas, [p.m2 for p in d.sweep], [p.m2_band for p in d.sweep], RED, "-.", "m2")
        axes.plot(alphas, 1 - alphas, color=GREY, linestyle="--", label="1 − α, not a target")
        axes.axvline(d.calibration.alpha, color=GREY, linewidth=1, linestyle=":")
        axes.set(xlabel="α", ylabel="share of queries, of snippets", ylim=(0, 1.03))

    return _svg(draw)


def depths(d: Diagnosis) -> str:
    """Draw m1 and m2 over the number of snippets retrieved, and recall if it is known."""

    def draw(axes: Any) -> None:
        k = np.array([point.k for point in d.depths])
        _line(axes, k, [p.m1 for p in d.depths], [p.m1_band for p in d.depths], BLUE, "-", "m1")
        _line(axes, k, [p.m2 for p in d.depths], [p.m2_band for p in d.depths], RED, "-.", "m2")
        recall = [point.recall.estimate for point in d.depths if point.recall is not None]
        if recall:
            axes.plot(k, recall, color=GREEN, linestyle=(0, (5, 1)), label="recall@K")
        axes.set(xlabel="K, snippets retrieved", ylabel="share", ylim=(0, 1.03))
        axes.xaxis.get_major_locator().set_params(integer=True)

    return _svg(draw)


def histogram(parts: Sequence[tuple[str, NDArray[np.float64]]], thresholds: Sequence[float]) -> str:
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
        axes.set(xlabel="score, lower = more relevant", ylabel="share of each kind")

    return _svg(draw)


def _bin_edges(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the edges of 40 bins over all scores, or of one around scores that hardly differ."""
    low, high = float(scores.min()), float(scores.max())
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return np.linspace(low, high, 41)
    half = max(abs(low), abs(high)) * 0.01 or 0.5
    return np.array([low - half, high + half])


def _alphas(d: Diagnosis) -> NDArray[np.float64]:
    return np.array([point.alpha for point in d.sweep])


def _line(
    axes: Any,
    x: NDArray[Any],
    y: Sequence[float],
    bands: Sequence[Band | None],
    color: str,
    style: str,
    name: str,
) -> None:
    known = [band for band in bands if band is not None]
    if len(known) == len(x):
        low, high = np.array(known).T
        axes.fill_between(
            x, low, high, color=color, alpha=0.18, linewidth=0, label=f"{name} if exchangeable"
        )
    axes.plot(x, y, color=color, linestyle=style, label=name)


def _svg(draw: Any) -> str:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3.3))
        draw(figure.subplots())
        if figure.axes[0].get_legend_handles_labels()[0]:
            figure.legend(loc="outside upper left", ncols=2)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()
