"""`conformal-retrievers plan`: how many judged queries a guarantee needs."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from conformal_retrievers.calibration import planning
from conformal_retrievers.cli import options
from conformal_retrievers.cli.terminal import print_json


def plan(
    alpha: options.Alpha,
    delta: options.Delta = None,
    within: Annotated[
        float | None,
        typer.Option(
            help="The largest distance of realised coverage from 1 - alpha, in 90 % of "
            "calibrations.",
            metavar="DISTANCE",
        ),
    ] = None,
    guarantee: options.Guarantee = "query-recall",
    have: Annotated[
        int | None,
        typer.Option(
            help="The number of judged queries at hand: what can they guarantee?",
            min=1,
            metavar="NUMBER",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print how many judged queries a guarantee needs, or what those at hand can guarantee."""
    try:
        needed = planning.plan(alpha, delta=delta, within=within, guarantee=guarantee)
        smallest = have and planning.smallest_alpha(have, delta=delta, guarantee=guarantee)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        print_json({"plan": needed, "smallest_alpha": smallest})
        return
    console = Console(highlight=False)
    console.print(Text(f"{needed}."))
    if smallest:
        console.print(f"With {have} of them, the smallest possible alpha is {smallest:.4g}.")
