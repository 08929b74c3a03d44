"""`conformal-retrievers claims`: calibrate and evaluate a filter of the claims of answers."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from conformal_retrievers.calibration.subjects import CLAIMS
from conformal_retrievers.claims import calibrate_claims, evaluate_claims, read_answers
from conformal_retrievers.cli import options
from conformal_retrievers.cli.calibrate import save
from conformal_retrievers.cli.inputs import load_calibration
from conformal_retrievers.cli.terminal import print_json, say
from conformal_retrievers.theory.ranks import exact_share

app = typer.Typer(no_args_is_help=True, help="Filter the claims of generated answers.")


@app.command()
def calibrate(
    answers: options.Answers,
    alpha: options.Alpha,
    scorer: Annotated[str, options.option("--scorer of claims", "NAME")],
    out: options.Out = Path("claims.json"),
    share: Annotated[
        float, options.option("--share", "SHARE", parser=options.passes(exact_share))
    ] = 1.0,
    delta: options.Delta = None,
    by_group: options.ByGroup = False,
    on_unscorable: Annotated[
        Literal["raise", "drop"], options.option("--on-unscorable", "raise|drop")
    ] = "raise",
    as_json: options.Json = False,
) -> None:
    """Calibrate a filter of claims, and save the calibration."""
    options.check_out(out, answers)
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
    save(calibration, out, as_json)


@app.command()
def evaluate(
    calibration: options.CalibrationFile,
    answers: options.Answers,
    alpha: options.OtherAlpha = None,
    as_json: options.Json = False,
) -> None:
    """Measure factuality and what it costs, and test the guarantee.

    Exits with 1 if factuality is significantly below its target (p < 0.05, one-sided), or if no
    answer keeps any claim. Leaves out answers with an id of the calibration.
    """
    tested = load_calibration(calibration, alpha, CLAIMS)
    given = read_answers(answers)
    new = [answer for answer in given if answer.id not in tested.ids]
    left_out = len(given) - len(new)
    if left_out and not new:
        raise ValueError(f"{answers}: all {left_out} answers are of the calibration; give others")
    measured = evaluate_claims(tested, new)
    if as_json:
        tests = {"fails": measured.fails, "untested": measured.untested}
        print_json({"left_out": left_out, "evaluation": measured, **tests})
    else:
        say(measured)
        if left_out:
            say(f"Left out, as part of the calibration: {left_out:,}.")
    if measured.fails or measured.untested:
        raise typer.Exit(1)
