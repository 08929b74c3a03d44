"""`conformal-retrievers show`: what a calibration file promises, and what it rests on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.claims import ClaimCalibration
from conformal_retrievers.cli.claims import facts_of as claim_facts_of
from conformal_retrievers.cli.inputs import is_of_claims
from conformal_retrievers.cli.options import Json
from conformal_retrievers.cli.terminal import (
    bad_data_in_one_line,
    print_json,
    score,
    table,
)
from conformal_retrievers.lookback.flag_statement import is_flag
from conformal_retrievers.monitoring.events import json_number

ALPHAS = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4)

CalibrationFile = Annotated[
    Path,
    typer.Argument(help="A calibration file.", exists=True, dir_okay=False, metavar="CALIBRATION"),
]


def show(calibration: CalibrationFile, as_json: Json = False) -> None:
    """Say what a calibration file promises, and what it rests on."""
    if is_of_claims(calibration):
        _show_claims(calibration, as_json)
        return
    with bad_data_in_one_line():
        shown = Calibration.load(calibration)
    of_flag = is_flag(shown)
    known = flag_facts_of(shown) if of_flag else facts_of(shown)
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
        if name not in ("statement", "thresholds", "promise") and value is not None:
            facts.add_row(name.replace("_", " "), Text(_worded(value)))
    console.print(facts)
    alphas = sorted({*ALPHAS, shown.alpha})
    kept = "Flagged is an answer of confidence" if of_flag else "Kept is what scores"
    console.print(f"\n{kept} at most, for alpha =")
    thresholds = table("", *(f"{alpha:g}" for alpha in alphas))
    for group, row in known["thresholds"].items():
        everything = "all answers" if of_flag else "all queries"
        thresholds.add_row(Text(group or everything), *map(_cell, row.values()))
    console.print(thresholds)


def _show_claims(path: Path, as_json: bool) -> None:
    with bad_data_in_one_line():
        shown = ClaimCalibration.load(path)
    if as_json:
        print_json({"file": str(path), **claim_facts_of(shown)})
    else:
        typer.echo(shown.statement)


def facts_of(calibration: Calibration) -> dict[str, Any]:
    """Return what there is to know of a calibration, as names and plain values.

    `thresholds` are by group ("" for all queries) and alpha: a number, "keep_all", "-inf" where
    nothing that has a score is kept, or None where delta cannot be had.
    """
    c = calibration
    alphas = sorted({*ALPHAS, c.alpha})
    groups = sorted(c.n_units, key=str)
    at = {alpha: _at(c, alpha) for alpha in alphas}
    return {
        "statement": c.statement,
        "guarantee": c.guarantee,
        "alpha": c.alpha,
        "delta": c.delta,
        "by_group": c.by_group,
        "count_missed": c.count_missed,
        "scorer": c.scorer,
        "queries": c.n_queries,
        "relevant_snippets": c.n_relevant,
        "missed_snippets": c.n_missed,
        "effective_snippets": round(c.effective_n, 1),
        "design_effect": round(c.design_effect, 2),
        "retrieval": c.retrieval,
        "labels": c.labels,
        "created": c.created,
        "library": c.library,
        "sha256": c.checksum,
        "thresholds": {
            group or "": {f"{alpha:g}": _threshold(at[alpha], group) for alpha in alphas}
            for group in groups
        },
    }


def flag_facts_of(calibration: Calibration) -> dict[str, Any]:
    """Return what `facts_of` does, of the calibration of a flag and in its words."""
    facts = facts_of(calibration)
    same = ("alpha", "delta", "by_group", "created", "library", "sha256", "thresholds")
    return {
        "statement": facts["statement"],
        "classifier": facts["scorer"],
        "inconsistent_answers": calibration.n_queries,
        "consistent_answers": calibration.n_without_relevant,
        "labels": (calibration.labels or {}).get("judged_by"),
        **{name: facts[name] for name in same},
    }


def _at(calibration: Calibration, alpha: float) -> Calibration | None:
    try:
        return calibration.at(alpha)
    except ValueError:  # too few queries for delta at this alpha
        return None


def _threshold(calibration: Calibration | None, group: str | None) -> float | str | None:
    if calibration is None:
        return None
    threshold = calibration.threshold(group)
    return json_number(threshold, "keep_all")


def _cell(threshold: float | str | None) -> str:
    if threshold is None:
        return "–"
    named = {"keep_all": "all", "-inf": "unscored"}
    return named[threshold] if isinstance(threshold, str) else score(threshold)


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
