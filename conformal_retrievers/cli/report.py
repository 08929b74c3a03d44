"""`conformal-retrievers report`: a diagnosis as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformal_retrievers.cli.inputs import (
    NewQueries,
    calibration_of_snippets,
    depth_of,
    judged_queries,
    reference_queries,
    scored,
)
from conformal_retrievers.cli.options import (
    Corpus,
    Depth,
    Json,
    Judged,
    Model,
    Reference,
    Run,
    check_out,
)
from conformal_retrievers.cli.scorers import scorer_named
from conformal_retrievers.cli.show import CalibrationFile
from conformal_retrievers.cli.terminal import bad_data_in_one_line, print_json, tracked
from conformal_retrievers.evaluation.findings import counted_queries, summary
from conformal_retrievers.evaluation.verdict import NOT_TOLD_APART
from conformal_retrievers.filtering import ConformalFilter


def report(
    calibration: CalibrationFile,
    judged: Judged,
    reference: Reference = None,
    out: Annotated[
        Path, typer.Option(help="Where the report goes.", dir_okay=False, metavar="FILE")
    ] = Path("report.html"),
    run: Run = None,
    k: Depth = None,
    model: Model = None,
    corpus: Corpus = None,
    as_json: Json = False,
) -> None:
    """Write what diagnose finds into one HTML file with pictures, which needs no network.

    Exits with 1, once it is written, if there is a reason not to rely on the promise. Queries that
    the calibration was made from are left out, and counted.
    """
    check_out(out, calibration, judged, reference, corpus, run=run)
    with bad_data_in_one_line():
        from conformal_retrievers.evaluation.report import write

        tested = calibration_of_snippets(calibration)
        scorer = scorer_named(tested.scorer, model=model, corpus=corpus, judged=judged)
        ConformalFilter(scorer, tested)  # refuses another scorer
        k = depth_of(tested, run, k)
        new = NewQueries(judged_queries(judged, run, k), tested)
        own = reference_queries(reference, run, k, tested)
        found = write(
            out,
            tested,
            scored(scorer, tracked(new, "Scoring")),
            reference=None if own is None else scored(scorer, tracked(own, "Scoring those")),
            sources={"calibration": calibration.name, "judged queries": judged.name},
        )
    if as_json:
        said = {"verdict": found.verdict, "fails": found.fails, "findings": found.findings}
        print_json({"file": str(out), "left_out": new.left_out, **said})
    else:
        if new.left_out:
            typer.echo(f"Left out: {counted_queries(new.left_out)} {new.why}.")
        typer.echo(summary(found))
        if not found.told_apart:
            typer.echo(NOT_TOLD_APART)
        typer.echo(f"Saved as {out}")
    if found.fails:
        raise typer.Exit(1)
