"""`conformal-retrievers show`: what a calibration file promises, and what it rests on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.subjects import SNIPPETS
from conformal_retrievers.cli.options import Json
from conformal_retrievers.cli.terminal import (
    bad_data_in_one_line,
    print_json,
    score,
    table,
)

ALPHAS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4)

CalibrationFile = Annotated[
    Path,
    typer.Argument(help="A calibration file.", exists=True, dir_okay=False, metavar="CALIBRATION"),
]


def show(calibration: CalibrationFile, as_json: Json = False) -> None:
    """Show what a calibration file guarantees, and the numbers behind it."""
    with bad_data_in_one_line():
        shown = Calibration.load(calibration)
    known = facts_of(shown)
    if as_json:
        print_json({"file": str(calibration), **known})
        return
    console = Console(highlight=False)
    console.print(Text(known["statement"]), "\n")
    facts = table("", "")
    facts.show_header = False
    facts.columns[1].justify, facts.columns[1].no_wrap = "left", False
    facts.columns[1].overflow = "fold"
    for name, value in known.items():
        if name not in ("statement", "thresholds") and value not in (None, {}):
            facts.add_row(name.replace("_", " "), Text(_worded(value)))
    console.print(facts)
    alphas = sorted({*ALPHAS, shown.alpha})
    console.print("\nThresholds by alpha:")
    thresholds = table("", *(f"{alpha:g}" for alpha in alphas))
    for group, row in known["thresholds"].items():
        thresholds.add_row(Text(group or f"all {shown.subject.units}"), *map(_cell, row.values()))
    console.print(thresholds)


def facts_of(calibration: Calibration) -> dict[str, Any]:
    """Return the facts of a calibration, as names and plain values.

    `thresholds` are by group ("" for all) and alpha: a number, "keep_all", "keep_none", or None if
    delta is impossible at that alpha.
    """
    c = calibration
    alphas = sorted({*ALPHAS, c.alpha})
    at = {alpha: _at(c, alpha) for alpha in alphas}
    snippets = {
        "relevant_snippets": c.n_relevant,
        "missed_snippets": c.n_missed,
        "effective_snippets": round(c.effective_n, 1),
        "design_effect": round(c.design_effect, 2),
    }
    return {
        "statement": c.statement,
        "subject": c.subject.name,
        "guarantee": c.guarantee,
        "alpha": c.alpha,
        "delta": c.delta,
        "by_group": c.by_group,
        "count_missed": c.count_missed,
        "scorer": c.scorer,
        c.subject.units: c.n_queries,
        **(snippets if c.subject is SNIPPETS else c.details),
        "retrieval": c.retrieval,
        "labels": c.labels,
        "created": c.created,
        "library": c.library,
        "sha256": c.checksum,
        "thresholds": {
            group or "": {f"{alpha:g}": _threshold(at[alpha], group) for alpha in alphas}
            for group in sorted(c.n_units, key=str)
        },
    }


def _at(calibration: Calibration, alpha: float) -> Calibration | None:
    try:
        return calibration.at(alpha)
    except ValueError:  # too few queries for delta at this alpha
        return None


def _threshold(calibration: Calibration | None, group: str | None) -> float | str | None:
    if calibration is None:
        return None
    return calibration.subject.threshold_name(calibration.threshold(group))


def _cell(threshold: float | str | None) -> str:
    if threshold is None:
        return "–"
    return threshold.removeprefix("keep_") if isinstance(threshold, str) else score(threshold)


def _worded(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        items = {key: item for key, item in value.items() if item is not None}
        return ", ".join(f"{key}: {_inside(item)}" for key, item in items.items())
    if isinstance(value, list):
        return ", ".join(map(_inside, value))
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _inside(value: object) -> str:
    """Return the words for what is part of another value, in brackets where it has parts."""
    return f"({_worded(value)})" if isinstance(value, (dict, list)) else _worded(value)
