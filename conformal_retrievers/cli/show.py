"""`conformal-retrievers show`: the guarantee of a calibration file, and what it rests on."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.subjects import SNIPPETS
from conformal_retrievers.cli import options
from conformal_retrievers.cli.terminal import bad_data_in_one_line, print_json, table

ALPHAS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4)
HEADS = {
    "snippets": "Snippets with a score at or below the threshold are kept.",
    "claims": "Claims with a relevance above the threshold are kept.",
    "flags": "Answers with a confidence at or below the threshold are flagged.",
}


def show(calibration: options.CalibrationFile, as_json: options.Json = False) -> None:
    """Print the guarantee of a calibration file, its provenance and thresholds for other alphas.

    Reads calibrations of snippets, claims and flags.
    """
    with bad_data_in_one_line():
        shown = Calibration.load(calibration)
    facts = facts_of(shown)
    if as_json:
        print_json({"file": str(calibration), **facts})
        return
    console = Console(highlight=False)
    console.print(Text(shown.statement))
    console.print()
    for name in ("retrieval", "labels", "created", "library", "sha256"):  # not in the statement
        if isinstance(value := facts[name], dict):
            value = ", ".join(f"{key} = {item}" for key, item in value.items())
        if value is not None:
            console.print(Text(f"{name}: {value}"))
    console.print(f"\nThresholds by alpha. {HEADS[shown.subject.name]}")
    thresholds = table("", *next(iter(facts["thresholds"].values())))
    for group, row in facts["thresholds"].items():
        thresholds.add_row(Text(group or f"all {shown.subject.units}"), *map(_cell, row.values()))
    console.print(thresholds)


def facts_of(calibration: Calibration) -> dict[str, Any]:
    """Return the contents of a calibration as names and plain values.

    `thresholds` are by group ("" for all) and alpha: a number, "keep_all", "keep_none", or None for
    an alpha that is impossible with this delta.
    """
    c = calibration
    of_snippets = {
        "relevant_snippets": c.n_relevant,
        "missed_snippets": c.n_missed,
        "effective_snippets": round(c.effective_n, 1),
        "design_effect": round(c.design_effect, 2),
    }
    alphas = sorted({*ALPHAS, c.alpha})
    at = {f"{alpha:g}": _at(c, alpha) for alpha in alphas}
    return {
        "subject": c.subject.name,
        "statement": c.statement,
        "guarantee": c.guarantee,
        "alpha": c.alpha,
        "delta": c.delta,
        "by_group": c.by_group,
        "count_missed": c.count_missed,
        "scorer": c.scorer,
        c.subject.units: c.n_queries,
        **(of_snippets if c.subject == SNIPPETS else c.details),
        "retrieval": c.retrieval,
        "labels": c.labels,
        "created": c.created,
        "library": c.library,
        "sha256": c.checksum,
        "thresholds": {
            group or "": {
                alpha: found and found.subject.threshold_name(found.threshold(group))
                for alpha, found in at.items()
            }
            for group in sorted(c.n_units, key=str)
        },
    }


def _at(calibration: Calibration, alpha: float) -> Calibration | None:
    try:
        return calibration.at(alpha)
    except ValueError:  # too few queries for delta at this alpha
        return None


def _cell(threshold: float | str | None) -> str:
    if threshold is None:
        return "–"
    names = {"keep_all": "all", "keep_none": "none"}
    return names[threshold] if isinstance(threshold, str) else f"{threshold:.4g}"
