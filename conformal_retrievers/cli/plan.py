"""`conformal-retrievers plan`: what judged queries give, and how many a guarantee needs."""

from typing import Annotated

import typer

from conformal_retrievers.calibration import planning
from conformal_retrievers.cli import options
from conformal_retrievers.cli.terminal import print_json, say


def plan(
    alpha: options.Alpha,
    have: Annotated[int | None, options.option("--have", "NUMBER", min=1, max=10**6)] = None,
    delta: options.Delta = None,
    guarantee: options.Guarantee = "query-recall",
    as_json: options.Json = False,
) -> None:
    """Print what judged queries give, and how many are needed.

    Prints what delta costs, too.
    """
    try:
        planned = planning.plan(alpha, have, delta=delta, guarantee=guarantee)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"--{str(error).split()[0]}") from None
    if as_json:
        print_json(planned)
    else:
        say(planned)
