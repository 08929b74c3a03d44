"""`conformal-retrievers report`: a diagnosis as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformal_retrievers.cli import options
from conformal_retrievers.cli.inputs import load_calibration, new_queries
from conformal_retrievers.cli.terminal import bad_data_in_one_line, print_json, queries


def report(
    calibration: options.CalibrationFile,
    judged: options.Judged,
    reference: options.Reference = None,
    out: Annotated[
        Path, typer.Option(help="The HTML file to write.", dir_okay=False, metavar="FILE")
    ] = Path("report.html"),
    run: options.Run = None,
    k: options.Depth = None,
    model: options.Model = None,
    corpus: options.Corpus = None,
    as_json: options.Json = False,
) -> None:
    """Write the result of diagnose into one HTML file with figures, which needs no network.

    Exits with 1, once it is written, if there is a reason not to rely on the guarantee.
    """
    options.check_out(out, calibration, judged, reference, corpus)
    with bad_data_in_one_line():
        from conformal_retrievers.evaluation.report import write

        tested = load_calibration(calibration)
        new = new_queries(
            tested, judged, reference=reference, run=run, k=k, model=model, corpus=corpus
        )
        found = write(
            out,
            tested,
            new.queries,
            reference=new.reference,
            sources={"calibration": calibration.name, "judged queries": judged.name},
        )
    if as_json:
        facts = {"verdict": found.verdict, "fails": found.fails, "findings": found.findings}
        print_json({"file": str(out), "left_out": new.left_out, **facts})
    else:
        if new.left_out:
            typer.echo(f"Left out: {queries(new.left_out)} of the calibration.")
        typer.echo(f"{found.summary}\nSaved as {out}")
    if found.fails:
        raise typer.Exit(1)
