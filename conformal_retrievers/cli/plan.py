"""`conformal-retrievers plan`: how many judged queries a promise takes."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from conformal_retrievers.calibration import planning
from conformal_retrievers.cli.options import Alpha, Delta, GuaranteeOption, Json
from conformal_retrievers.cli.terminal import print_json


def plan(
    alpha: Alpha,
    delta: Delta = None,
    within: Annotated[
        float | None,
        typer.Option(
            help="How far realised coverage may be from 1 - alpha, in 90 % of calibrations.",
            metavar="DISTANCE",
        ),
    ] = None,
    guarantee: GuaranteeOption = "query-recall",
    design_effect: Annotated[
        float,
        typer.Option(
            help="How many times more units it takes because they come clustered.", metavar="NUMBER"
        ),
    ] = 1.0,
    have: Annotated[
        int | None,
        typer.Option(
            help="How many judged queries there are: which alpha is possible?",
            min=1,
            metavar="NUMBER",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say how many judged queries a promise takes, or what those at hand can promise."""
    try:
        needed = planning.plan(
            alpha, delta=delta, within=within, guarantee=guarantee, design_effect=design_effect
        )
        smallest = have and planning.smallest_alpha(
            have, delta=delta, guarantee=guarantee, design_effect=design_effect
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        print_json({"plan": needed, "smallest_alpha": smallest})
        return
    console = Console(highlight=False)
    console.print(Text(f"It takes {needed}."))
    if smallest:
        console.print(Text(f"With {have}, the smallest alpha is {smallest:.6g}."))
