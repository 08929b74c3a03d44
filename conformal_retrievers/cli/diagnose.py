"""`conformal-retrievers diagnose`: can a calibration's promise be trusted here, and if not, why?"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from conformal_retrievers.cli.inputs import (
    LoggedQueries,
    NewQueries,
    calibration_of_snippets,
    depth_of,
    is_filter_log,
    judged_queries,
    reference_queries,
    scored,
)
from conformal_retrievers.cli.options import (
    Corpus,
    Depth,
    Json,
    Model,
    OptionalJudged,
    Reference,
    Run,
)
from conformal_retrievers.cli.scorers import scorer_named
from conformal_retrievers.cli.terminal import (
    bad_data_in_one_line,
    print_json,
    score,
    table,
    tracked,
)
from conformal_retrievers.evaluation import diagnose as diagnostics
from conformal_retrievers.evaluation.diagnose import Diagnosis
from conformal_retrievers.filtering import ConformalFilter

MARKS = {"problem": "[bold red]✗[/]", "notice": "[yellow]![/]", "fine": "[green]✓[/]"}


Log = Annotated[
    Path | None,
    typer.Option(
        help="Instead of judged queries: a filter log, as the frameworks' handlers write it.",
        exists=True,
        dir_okay=False,
        metavar="FILE",
    ),
]


OptionalCalibration = Annotated[
    Path | None,
    typer.Argument(help="A calibration file.", exists=True, metavar="CALIBRATION"),
]
NamedCalibration = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        help="The calibration file, where it is not the first argument.",
        exists=True,
        dir_okay=False,
        metavar="FILE",
    ),
]


def diagnose(
    calibration: OptionalCalibration = None,
    judged: OptionalJudged = None,
    log: Log = None,
    reference: Reference = None,
    run: Run = None,
    k: Depth = None,
    model: Model = None,
    corpus: Corpus = None,
    named: NamedCalibration = None,
    as_json: Json = False,
) -> None:
    """Say whether a calibration's promise can be trusted for some queries, and if not, why.

    Exits with 1 if there is a reason not to rely on it. Queries that the calibration was made from
    are left out, and counted. Where no snippet is judged relevant, queries count as not judged, as
    those of a log do.
    """
    if named is not None:
        if judged is not None:
            raise typer.BadParameter("give the calibration once: first, or with --calibration FILE")
        calibration, judged = named, calibration
    if calibration is None:
        raise typer.BadParameter("give a calibration file, first or with --calibration FILE")
    if calibration.is_dir():
        raise typer.BadParameter(f"{calibration} is a folder; give a calibration file first")
    if is_filter_log(calibration):
        raise typer.BadParameter(
            f"{calibration} is a filter log: give it with --log, and the calibration first"
        )
    if judged is not None and judged.is_file() and is_filter_log(judged):
        raise typer.BadParameter(f"{judged} is a filter log, no judged queries: give it with --log")
    if (judged is None) == (log is None):
        raise typer.BadParameter("give judged queries, or a filter log with --log FILE")
    if log is not None and reference is not None:
        raise typer.BadParameter(
            "--reference takes judged queries, not a log: its snippets are scored"
        )
    with bad_data_in_one_line():
        tested = calibration_of_snippets(calibration)
        new: NewQueries | LoggedQueries
        if judged is None:
            new = LoggedQueries(Path(str(log)), tested)
            found = diagnostics.diagnose(tested, new)
        else:
            scorer = scorer_named(tested.scorer, model=model, corpus=corpus, judged=judged)
            ConformalFilter(scorer, tested)  # refuses another scorer
            k = depth_of(tested, run, k)
            new = NewQueries(judged_queries(judged, run, k), tested)
            own = reference_queries(reference, run, k, tested)
            found = diagnostics.diagnose(
                tested,
                scored(scorer, tracked(new, "Scoring")),
                reference=None if own is None else scored(scorer, tracked(own, "Scoring those")),
            )
    if as_json:
        told = {"left_out": new.left_out}
        if isinstance(new, LoggedQueries):
            told["repeated"] = new.repeated
        print_json({**told, **_as_fields(found)})
    else:
        _print(Console(highlight=False), found, new)
    if found.fails:
        raise typer.Exit(1)


def _as_fields(found: Diagnosis) -> dict[str, Any]:
    """Return the verdict, the findings and all numbers, but not the calibration itself."""
    numbers = {f.name: getattr(found, f.name) for f in fields(found) if f.name != "calibration"}
    return {"verdict": found.verdict, "findings": found.findings, **numbers}


def _print(console: Console, found: Diagnosis, new: NewQueries | LoggedQueries) -> None:
    queries = "query" if found.n_queries == 1 else "queries"
    console.print(f"{found.n_queries:,} {queries}, {found.n_snippets:,} snippets.")
    if new.left_out:
        queries = "query" if new.left_out == 1 else "queries"
        console.print(f"Left out: {new.left_out:,} {queries} {new.why}.")
    if isinstance(new, LoggedQueries) and new.repeated:
        times = "time" if new.repeated == 1 else "times"
        console.print(f"Left out: {new.repeated:,} {times} that a query came again.")
    console.print()
    opening = found.verdict  # repeats the findings that matter, which are listed below
    for finding in found.findings:
        opening = opening.replace(finding.sentence, "")
    console.print(Text(opening.strip(), style="bold"), "\n")
    for finding in found.findings:
        name, sentence = Text(finding.name, style="bold"), Text(finding.sentence)
        console.print(MARKS[finding.severity], name)
        console.print(Padding(sentence, (0, 0, 0, 2)))
    sweep = table("alpha", "score ≤", "m1", "expected", "m2", "expected", "removed", "covered")
    for point in found.sweep:
        sweep.add_row(
            f"{point.alpha:g}",
            "–" if point.threshold is None else score(point.threshold),
            f"{100 * point.m1:.1f}",
            _band(point.m1_band),
            f"{100 * point.m2:.1f}",
            _band(point.m2_band),
            f"{100 * point.removal:.1f}",
            "–" if point.coverage is None else f"{100 * point.coverage.estimate:.1f}",
            style="bold" if point.alpha == found.calibration.alpha else "",
        )
    if all(point.m2_band is None for point in found.sweep):
        del sweep.columns[5]
    console.print("\nOver alpha, in %; expected is where exchangeable queries lie")
    console.print(sweep)
    if found.m2_band is None and isinstance(new, NewQueries):
        console.print("What m2 is expected to be takes the queries calibrated on: --reference.")


def _band(band: tuple[float, float] | None) -> str:
    return "–" if band is None else f"{100 * band[0]:.1f} – {100 * band[1]:.1f}"
