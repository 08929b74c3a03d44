"""The options that several commands have, and checks of what is given for them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.data.beir import FILES
from conformal_retrievers.theory.ranks import exact_alpha

Alpha = Annotated[
    float, typer.Option(help="The miscoverage rate, between 0 and 1.", metavar="RATE")
]
Delta = Annotated[
    float | None,
    typer.Option(help="The share of calibrations that may fall short.", metavar="SHARE"),
]
GuaranteeOption = Annotated[
    Guarantee,
    typer.Option(
        help="What 1 - alpha is a probability of: query-recall, snippet, all or any.",
        metavar="NAME",
    ),
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
    typer.Option(help="What a retriever found: a run file, for a BEIR folder.", metavar="FILE"),
]
Depth = Annotated[
    int | None,
    typer.Option(
        "--k", help="How many snippets of each query count, of a run file.", min=1, metavar="K"
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
        help="For bm25: the texts that may be retrieved, as corpus.jsonl of a BEIR folder. A "
        "snippet is found in it by its text: title, a space and text, to the letter.",
        exists=True,
        metavar="FILE",
    ),
]
Reference = Annotated[
    Path | None,
    typer.Option(
        help="The judged queries that were calibrated on (others in it do not count): what m2, and "
        "m1 and m2 over K, are held against.",
        exists=True,
        metavar="JUDGED",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.", metavar="")]


def checked_alpha(alpha: float) -> None:
    """Exit with 2 unless alpha is a rate strictly between 0 and 1."""
    try:
        exact_alpha(alpha)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--alpha") from None


def check_out(out: Path, *given: Path | None, run: str | None = None) -> None:
    """Exit with 2 where the file to write is one that is read: what is given, or in a BEIR folder.

    A link to one of them is one of them.
    """
    if not out.exists():
        return
    for path in given:
        if path is None:
            continue
        inside = [path / name for name in FILES] if path.is_dir() else [path]
        if run is not None:
            inside += [Path(run), path / run, path / f"{run}.gz"]
        read = next((file for file in inside if file.exists() and out.samefile(file)), None)
        if read is not None:
            raise typer.BadParameter(
                f"{out} is {read}, which is read; give another file to write to",
                param_hint="--out",
            )
