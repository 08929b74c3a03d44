"""The command line: `conformal-retrievers demo | plan | claims`.

Exit codes: 0 fine, 1 the data is bad or a promise fails, 2 the command was not understood.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NoReturn

from conformal_retrievers import claims_cli, planning
from conformal_retrievers.conformal import exact_alpha
from conformal_retrievers.extras import missing, require
from conformal_retrievers.version import __version__

require("cli", "typer", "rich")
import typer
from rich.console import Console

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(claims_cli.app, name="claims")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Filter retrieved snippets with a guarantee on the relevant ones that are kept."""


@app.command()
def demo(
    alpha: Annotated[
        float, typer.Option(help="The miscoverage rate, between 0 and 1.", metavar="RATE")
    ] = 0.1,
    scorer: Annotated[
        Literal["bm25", "embedding"], typer.Option(help="What snippets are scored by.")
    ] = "bm25",
    model: Annotated[
        str | None,
        typer.Option(help="A sentence-transformers model, a path or a name, for embedding."),
    ] = None,
    folder: Annotated[
        Path,
        typer.Option(
            help="Where calibration.json and coverage.png go.", exists=True, file_okay=False
        ),
    ] = Path(),
) -> None:
    """Calibrate and filter on the docstrings of Python's standard library, in both frameworks."""
    if (scorer == "embedding") != (model is not None):
        raise typer.BadParameter("give --scorer embedding and --model PATH_OR_NAME together")
    try:
        exact_alpha(alpha)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--alpha") from None
    message = missing(
        "demo", "bm25s", "langchain_conformal", "matplotlib", "semantic_text_splitter"
    )
    if message is not None:
        _fail(message)
    from conformal_retrievers.demo import run

    try:
        run(alpha=alpha, embed_model=model, folder=folder, console=Console())
    except (OSError, ValueError) as error:  # a folder without permission, a model that is not there
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    typer.echo(f"Error: {message}", err=True)
    raise typer.Exit(1)


@app.command()
def plan(
    alpha: Annotated[float, typer.Option(help="The miscoverage rate, between 0 and 1.")],
    delta: Annotated[
        float | None, typer.Option(help="The share of calibrations that may fall short.")
    ] = None,
    within: Annotated[
        float | None, typer.Option(help="How far realised coverage may be from 1 - alpha.")
    ] = None,
    guarantee: Annotated[
        Literal["query-recall", "snippet", "all", "any"],
        typer.Option(help="What 1 - alpha is a probability of."),
    ] = "query-recall",
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
