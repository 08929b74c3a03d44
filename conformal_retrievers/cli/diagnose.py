"""`conformal-retrievers diagnose`: does the guarantee hold for these queries, and if not, why?"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from conformal_retrievers.cli import options
from conformal_retrievers.cli.inputs import load_calibration, logged_queries, new_queries
from conformal_retrievers.cli.terminal import (
    bad_data_in_one_line,
    percent,
    print_json,
    queries,
    table,
)
from conformal_retrievers.evaluation import Diagnosis
from conformal_retrievers.evaluation import diagnose as diagnosed
from conformal_retrievers.evaluation.sweeps import Band

MARKS = {"problem": "[bold red]✗[/]", "notice": "[yellow]![/]", "fine": "[green]✓[/]"}


def diagnose(
    calibration: options.CalibrationFile,
    judged: options.OptionalJudged = None,
    log: Annotated[
        Path | None,
        typer.Option(
            help="A filter log instead of judged queries.",
            exists=True,
            dir_okay=False,
            metavar="FILE",
        ),
    ] = None,
    reference: options.Reference = None,
    run: options.Run = None,
    k: options.Depth = None,
    model: options.Model = None,
    corpus: options.Corpus = None,
    as_json: options.Json = False,
) -> None:
    """Check whether the guarantee of a calibration holds for some queries, and if not, why.

    Exits with 1 if there is a reason not to rely on it. Queries of the calibration are left out by
    id. Without any relevant snippet, as in a log, the scores are compared but coverage is not
    measured.
    """
    if (judged is None) == (log is None):
        raise typer.BadParameter("give either judged queries, or a filter log with --log FILE")
    if log is not None and reference is not None:
        raise typer.BadParameter("--reference is for judged queries; leave it out with --log")
    with bad_data_in_one_line():
        tested = load_calibration(calibration)
        if log is not None:
            new = logged_queries(log, tested)
        else:
            assert judged is not None
            new = new_queries(
                tested, judged, reference=reference, run=run, k=k, model=model, corpus=corpus
            )
        found = diagnosed(tested, new.queries, reference=new.reference)
    if as_json:
        print_json({"left_out": new.left_out, **_as_fields(found)})
    else:
        _print(Console(highlight=False), found, new.left_out)
        if found.m2_band is None and log is None:
            typer.echo("For the expected range of m2, give --reference.")
    if found.fails:
        raise typer.Exit(1)


def _as_fields(found: Diagnosis) -> dict[str, Any]:
    """Return the verdict, the findings and all numbers, but not the calibration itself."""
    numbers = {f.name: getattr(found, f.name) for f in fields(found) if f.name != "calibration"}
    return {"verdict": found.verdict, **numbers}


def _written(band: Band | None) -> str:
    return "–" if band is None else f"[{percent(band[0])}, {percent(band[1])}]"


def _print(console: Console, found: Diagnosis, left_out: int) -> None:
    console.print(f"{queries(found.n_queries)}, {found.n_snippets:,} snippets.")
    if left_out:
        console.print(f"Left out: {queries(left_out)} of the calibration, or of another one.")
    console.print()
    console.print(Text(found.summary, style="bold"), "\n")
    for finding in found.findings:
        console.print(MARKS[finding.severity], Text(finding.name, style="bold"))
        console.print(Padding(Text(finding.sentence), (0, 0, 0, 2)))
    sweep = table("alpha", "score ≤", "m1", "expected", "m2", "expected", "removal", "coverage")
    for point in found.sweep:
        sweep.add_row(
            f"{point.alpha:g}",
            "–" if point.threshold is None else f"{point.threshold:.4g}",
            percent(point.m1),
            _written(point.m1_band),
            percent(point.m2),
            _written(point.m2_band),
            percent(point.removal),
            "–" if point.coverage is None else percent(point.coverage.estimate),
            style="bold" if point.alpha == found.calibration.alpha else "",
        )
    console.print("\nOver alpha, in %. Expected: the range for exchangeable queries.")
    console.print(sweep)
