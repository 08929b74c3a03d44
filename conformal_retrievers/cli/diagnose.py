"""`conformal-retrievers diagnose` and `report`: does the guarantee hold, and if not, why?"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from conformal_retrievers.cli import options
from conformal_retrievers.cli.inputs import load_calibration, logged_queries, new_queries
from conformal_retrievers.cli.terminal import bad_data_in_one_line, print_json, print_table, say
from conformal_retrievers.evaluation import diagnose as diagnosed
from conformal_retrievers.evaluation.diagnosis import SweepPoint
from conformal_retrievers.theory.intervals import percent


def diagnose(
    calibration: options.CalibrationFile,
    judged: options.OptionalJudged = None,
    log: Annotated[
        Path | None,
        options.option(
            "FILE", "A filter log instead of judged queries.", exists=True, dir_okay=False
        ),
    ] = None,
    reference: options.Reference = None,
    run: options.Run = None,
    k: options.Depth = None,
    model: options.Model = None,
    corpus: options.Corpus = None,
    as_json: options.Json = False,
) -> None:
    """Check whether a guarantee holds for some queries, and why not.

    Exits with 1 if there is a reason not to rely on it. Leaves out queries with an id of the
    calibration. Without a relevant snippet, as in a log, compares the scores only.
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
        numbers = {f.name: getattr(found, f.name) for f in fields(found)}
        del numbers["calibration"]
        print_json({"left_out": new.left_out, "verdict": found.verdict, **numbers})
    else:
        measured = found.evaluation
        say(f"Queries: {measured.n_queries:,}, with {measured.n_snippets:,} snippets.")
        say(f"Left out: {new.left_out:,}.\n\n{found}\n\nOver alpha, in %:\n")
        print_table(["alpha", "score ≤", "m1", "m2", "removal", "coverage"], map(_row, found.sweep))
    if found.fails:
        raise typer.Exit(1)


def _row(point: SweepPoint) -> list[str]:
    return [
        f"{point.alpha:g}",
        "–" if point.threshold is None else f"{point.threshold:.4g}",
        *(
            percent(s, unit="")
            for s in (point.m1, point.m2, point.removal, point.coverage.estimate)
        ),
    ]


def report(
    calibration: options.CalibrationFile,
    judged: options.Judged,
    reference: options.Reference = None,
    out: options.Out = Path("report.html"),
    run: options.Run = None,
    k: options.Depth = None,
    model: options.Model = None,
    corpus: options.Corpus = None,
    as_json: options.Json = False,
) -> None:
    """Write the result of diagnose with figures into one HTML file.

    The file needs no network. Exits with 1 after writing if there is a reason not to rely on the
    guarantee.
    """
    options.check_out(out, calibration, judged, reference, corpus)
    with bad_data_in_one_line():
        from conformal_retrievers.evaluation.report import write

        tested = load_calibration(calibration)
        new = new_queries(
            tested, judged, reference=reference, run=run, k=k, model=model, corpus=corpus
        )
        sources = {"calibration": calibration.name, "judged queries": judged.name}
        found = write(out, tested, new.queries, reference=new.reference, sources=sources)
    if as_json:
        facts = {"verdict": found.verdict, "fails": found.fails, "findings": found.findings}
        print_json({"file": str(out), "left_out": new.left_out, **facts})
    else:
        say(f"{found.summary}\nSaved as {out}")
    if found.fails:
        raise typer.Exit(1)
