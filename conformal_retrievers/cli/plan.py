"""`conformal-retrievers plan`: what judged queries give, and how many a guarantee needs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from conformal_retrievers.calibration import planning
from conformal_retrievers.calibration.pilot import scored_pilot
from conformal_retrievers.cli import options
from conformal_retrievers.cli.inputs import judged_queries
from conformal_retrievers.cli.scorers import Models
from conformal_retrievers.cli.terminal import print_json, say


def plan(
    alpha: options.Alpha,
    have: Annotated[
        int | None,
        options.option(
            "NUMBER", "The judged queries you have. Default: as many as in --pilot.", min=1
        ),
    ] = None,
    pilot: Annotated[
        Path | None,
        options.option(
            "FILE",
            "Judged queries, as for calibrate: how much less do more of them keep?",
            exists=True,
        ),
    ] = None,
    run: options.Run = None,
    k: options.Depth = None,
    min_score: options.MinScore = None,
    model: options.GateModel = None,
    corpus: options.GateCorpus = None,
    delta: options.Delta = None,
    within: Annotated[
        float | None,
        options.option(
            "DISTANCE", "How far coverage may be from 1 - alpha in 90 % of calibrations."
        ),
    ] = None,
    guarantee: options.Guarantee = "query-recall",
    as_json: options.Json = False,
) -> None:
    """Print what judged queries give, and how many are needed.

    Prints what delta costs, too.
    """
    aim: dict[str, Any] = {"delta": delta, "within": within, "guarantee": guarantee}
    try:
        planned = planning.plan(alpha, have, **aim)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"--{str(error).split()[0]}") from None
    if pilot is None:
        given = {"--run": run, "--k": k, "--min-score": min_score}
        for option, value in (given | {"--model": model, "--corpus": corpus}).items():
            if value is not None:
                raise typer.BadParameter(f"there is no --pilot that needs it; leave {option} out")
    else:
        scorers = Models(model, None, corpus, pilot).given()
        judged = judged_queries(pilot, run, k, min_score)
        scored = scored_pilot(judged, alpha, guarantee, delta, scorers)
        planned = planning.plan(alpha, have, pilot=scored, **aim)
    if as_json:
        print_json(planned)
    else:
        say(planned)
