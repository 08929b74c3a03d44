"""`conformal-retrievers demo`: the whole way from text to a filter, see `demo.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from conformal_retrievers.cli.options import checked_alpha
from conformal_retrievers.cli.scorers import embedding_scorer
from conformal_retrievers.cli.terminal import bad_data_in_one_line
from conformal_retrievers.extras import require


def demo(
    alpha: Annotated[
        float, typer.Option(help="The miscoverage rate, between 0 and 1.", metavar="RATE")
    ] = 0.1,
    scorer: Annotated[
        Literal["bm25", "embedding"],
        typer.Option(help="What snippets are scored by: bm25 or embedding.", metavar="NAME"),
    ] = "bm25",
    model: Annotated[
        str | None,
        typer.Option(
            help="For embedding: a sentence-transformers model, a path or a name.",
            metavar="PATH_OR_NAME",
        ),
    ] = None,
    folder: Annotated[
        Path,
        typer.Option(
            help="Where calibration.json and coverage.png go.",
            exists=True,
            file_okay=False,
            metavar="FOLDER",
        ),
    ] = Path(),
) -> None:
    """Calibrate and filter on the docstrings of Python's standard library, in both frameworks."""
    if (scorer == "embedding") != (model is not None):
        raise typer.BadParameter("give --scorer embedding and --model PATH_OR_NAME together")
    checked_alpha(alpha)
    with bad_data_in_one_line():  # a folder without permission, a model that is not there
        require("demo", "bm25s", "langchain_conformal", "matplotlib", "regex")
        from conformal_retrievers.cli.snippets_demo import run

        embedding = None if model is None else embedding_scorer(model, f"cosine({model})")
        run(alpha=alpha, embedding=embedding, folder=folder, console=Console())
