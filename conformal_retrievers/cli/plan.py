"""`conformal-retrievers plan`: how many judged queries a guarantee needs."""

from typing import Annotated

import typer

from conformal_retrievers.calibration import planning
from conformal_retrievers.cli import options
from conformal_retrievers.cli.terminal import print_json, say


def plan(
    alpha: options.Alpha,
    delta: options.Delta = None,
    within: Annotated[
        float | None,
        options.option(
            "DISTANCE", "How far coverage may be from 1 - alpha in 90 % of calibrations."
        ),
    ] = None,
    guarantee: options.Guarantee = "query-recall",
    have: Annotated[
        int | None,
        options.option(
            "NUMBER", "The number of judged queries you have: what can they guarantee?", min=1
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print how many judged queries a guarantee needs."""
    try:
        needed = planning.plan(alpha, delta=delta, within=within, guarantee=guarantee)
        smallest = have and planning.smallest_alpha(have, delta=delta, guarantee=guarantee)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"--{str(error).split()[0]}") from None
    if as_json:
        print_json({"plan": needed, "smallest_alpha": smallest})
        return
    say(f"{needed}.")
    if smallest:
        say(f"With {have} of them, the smallest possible alpha is {smallest:.4g}.")
