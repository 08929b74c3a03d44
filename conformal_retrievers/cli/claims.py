"""`conformal-retrievers claims`: calibrate and evaluate a filter of the claims of answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from conformal_retrievers.calibration.subjects import CLAIMS
from conformal_retrievers.claims import calibrate_claims, evaluate_claims, read_answers
from conformal_retrievers.cli import options
from conformal_retrievers.cli.claims_demo import demo
from conformal_retrievers.cli.inputs import load_calibration
from conformal_retrievers.cli.show import facts_of, show
from conformal_retrievers.cli.terminal import bad_data_in_one_line, print_json
from conformal_retrievers.theory.ranks import exact_share
from conformal_retrievers.theory.tolerance import check_delta

app = typer.Typer(no_args_is_help=True, help="Filter the claims of generated answers.")

AnswersFile = Annotated[
    Path,
    typer.Argument(
        help='Annotated answers, one a line: {"id", "group", "claims": [{"relevance", "factual"}]}',
        exists=True,
        dir_okay=False,
        metavar="ANSWERS",
    ),
]


@app.command()
def calibrate(
    answers: AnswersFile,
    alpha: options.Alpha,
    scorer: Annotated[
        str, typer.Option(help="The name of the scorer of the relevances.", metavar="NAME")
    ],
    out: Annotated[
        Path, typer.Option(help="The calibration file to write.", dir_okay=False, metavar="FILE")
    ] = Path("claims.json"),
    share: Annotated[
        float,
        typer.Option(help="The share of kept claims that must be factual.", metavar="SHARE"),
    ] = 1.0,
    delta: options.Delta = None,
    by_group: options.ByGroup = False,
    on_unscorable: Annotated[
        Literal["raise", "drop"],
        typer.Option(
            help="If a claim that may not be factual has no relevance: raise (stop), or drop "
            "(count it as dropped, because the filter drops it).",
            metavar="raise|drop",
        ),
    ] = "raise",
    as_json: options.Json = False,
) -> None:
    """Calibrate a filter of claims on annotated answers, and save the calibration."""
    options.check_out(out, answers)
    try:
        exact_share(share)
        if delta is not None:
            check_delta(delta)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with bad_data_in_one_line():
        calibration = calibrate_claims(
            read_answers(answers),
            alpha=alpha,
            scorer=scorer,
            by_group=by_group,
            delta=delta,
            share=share,
            on_unscorable=on_unscorable,
            labels={"source": answers.name},
        )
        calibration.save(out)
    if as_json:
        print_json({"file": str(out), **facts_of(calibration)})
    else:
        typer.echo(f"{calibration.statement}\n\nSaved as {out}")


@app.command()
def evaluate(
    calibration: options.CalibrationFile,
    answers: AnswersFile,
    alpha: options.OtherAlpha = None,
    as_json: options.Json = False,
) -> None:
    """Measure factuality and what it costs on annotated answers, and test the guarantee.

    Exits with 1 if factuality is significantly below its target (p < 0.05, one-sided), or if no
    answer keeps any claim. Answers of the calibration are left out by id.
    """
    with bad_data_in_one_line():
        tested = load_calibration(calibration, CLAIMS)
        tested = tested if alpha is None else tested.at(alpha)
        given = read_answers(answers)
        new = [answer for answer in given if answer.id not in tested.ids]
        left_out = len(given) - len(new)
        if left_out and not new:
            raise ValueError(
                f"all {left_out} answers of {answers} are those of the calibration, by id; give "
                "other answers"
            )
        measured = evaluate_claims(tested, new)
    if as_json:
        tests = {"fails": measured.fails, "untested": measured.untested}
        print_json({"left_out": left_out, "evaluation": measured, **tests})
    else:
        typer.echo(measured)
        if left_out:
            typer.echo(f"Left out: {left_out} of the calibration.")
    if measured.fails or measured.untested:
        raise typer.Exit(1)


app.command()(show)
app.command()(demo)
