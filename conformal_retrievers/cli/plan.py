"""`conformal-retrievers plan`: how many judged queries a promise takes."""

from __future__ import annotations

from typing import Annotated

import typer

from conformal_retrievers import planning
from conformal_retrievers.cli.inputs import Alpha, Delta, GuaranteeOption


def plan(
    alpha: Alpha,
    delta: Delta = None,
    within: Annotated[
        float | None, typer.Option(help="How far realised coverage may be from 1 - alpha.")
    ] = None,
    guarantee: GuaranteeOption = "query-recall",
    design_effect: Annotated[
        float, typer.Option(help="How many times more units it takes because they come clustered.")
    ] = 1.0,
    have: Annotated[
        int | None, typer.Option(help="How many judged queries there are: what can they promise?")
    ] = None,
) -> None:
    """Say how many judged queries a promise takes, or what those at hand can promise."""
    try:
        typer.echo(
            planning.plan(
                alpha, delta=delta, within=within, guarantee=guarantee, design_effect=design_effect
            )
        )
        if have is not None:
            typer.echo(
                planning.promise(
                    have, delta=delta, guarantee=guarantee, design_effect=design_effect
                )
            )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
