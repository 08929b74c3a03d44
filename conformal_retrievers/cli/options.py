"""The arguments and options that several commands have, and the checks of their values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformal_retrievers.calibration import guarantees
from conformal_retrievers.theory.ranks import exact_alpha


def check_alpha(alpha: float | None) -> float | None:
    """Return alpha; exit with 2 unless it is in (0, 1)."""
    if alpha is not None:
        try:
            exact_alpha(alpha)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return alpha


_RATE = "The miscoverage rate, between 0 and 1"
Alpha = Annotated[float, typer.Option(help=f"{_RATE}.", metavar="RATE", callback=check_alpha)]
OtherAlpha = Annotated[
    float | None,
    typer.Option(help=f"{_RATE}. Default: that of the file.", metavar="RATE", callback=check_alpha),
]
Delta = Annotated[
    float | None,
    typer.Option(
        help="The share of calibrations that may miss the guarantee. Without it, the guarantee "
        "holds on average over calibrations.",
        metavar="SHARE",
    ),
]
Guarantee = Annotated[
    guarantees.Guarantee,
    typer.Option(
        help="What 1 - alpha is a probability of: query-recall, snippet, all or any.",
        metavar="NAME",
    ),
]
CalibrationFile = Annotated[
    Path,
    typer.Argument(help="A calibration file.", exists=True, dir_okay=False, metavar="CALIBRATION"),
]
_JUDGED = typer.Argument(
    help="Judged queries: a file of JSON lines (.jsonl, .jsonl.gz), or a BEIR folder.",
    exists=True,
    metavar="JUDGED",
)
Judged = Annotated[Path, _JUDGED]
OptionalJudged = Annotated[Path | None, _JUDGED]
Run = Annotated[
    str | None,
    typer.Option(help="For a BEIR folder: the run file of the retriever.", metavar="FILE"),
]
Depth = Annotated[
    int | None,
    typer.Option(
        "--k", help="For a BEIR folder: read the best K snippets a query.", min=1, metavar="K"
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="For embedding: a sentence-transformers model, a path or a name.",
        metavar="PATH_OR_NAME",
    ),
]
Corpus = Annotated[
    Path | None,
    typer.Option(
        help="For bm25: the texts that can be retrieved, in the format of a BEIR corpus.jsonl. "
        "A snippet is found in it by its exact text: title, a space and text.",
        exists=True,
        metavar="FILE",
    ),
]
Reference = Annotated[
    Path | None,
    typer.Option(
        help="The judged queries of the calibration, which give the expected range of m2. Other "
        "queries in this file are ignored.",
        exists=True,
        metavar="JUDGED",
    ),
]
ByGroup = Annotated[
    bool, typer.Option("--by-group", help="Give the guarantee within each group of queries.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def check_out(out: Path, *given: Path | None) -> None:
    """Exit with 2 if the file to write is one of those that are read."""
    for path in given:
        if path is not None and out.exists() and out.samefile(path):
            raise typer.BadParameter(
                f"{out} is an input of this command; give another file", param_hint="--out"
            )
