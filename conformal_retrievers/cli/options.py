"""The arguments and options of the commands, and the checks of their values."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from conformal_retrievers.calibration import guarantees
from conformal_retrievers.theory.ranks import exact_alpha
from conformal_retrievers.theory.tolerance import check_delta


def option(metavar: str, help: str, **more: Any) -> Any:
    """Return the declaration of an option with a value."""
    return typer.Option(metavar=metavar, help=help, **more)


def flag(name: str, help: str) -> Any:
    """Return the declaration of an option without a value."""
    return typer.Option(name, help=help)


def path(metavar: str, help: str, **more: Any) -> Any:
    """Return the declaration of an argument that is a path."""
    return typer.Argument(metavar=metavar, help=help, exists=True, **more)


def passes(check: Callable[[float], object]) -> Callable[[str], float]:
    """Return a parser that exits with 2 for no number, and where a check raises ValueError."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not a number; give one such as 0.1") from None
        try:
            check(number)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        return number

    return parse


_ALPHA = "The risk, in (0, 1): the guarantee holds at 1 - RATE."
_JUDGED = path(
    "JUDGED", "Judged queries: a file of JSON lines (.jsonl, .jsonl.gz), or a BEIR folder."
)

CalibrationFile = Annotated[
    Path, path("CALIBRATION", "A file that calibrate wrote.", dir_okay=False)
]
Judged = Annotated[Path, _JUDGED]
OptionalJudged = Annotated[Path | None, _JUDGED]
Answers = Annotated[
    Path,
    path(
        "ANSWERS",
        'Annotated answers: {"id", "group", "claims": [{"relevance", "factual"}]} a line.',
        dir_okay=False,
    ),
]
Alpha = Annotated[float, option("RATE", _ALPHA, parser=passes(exact_alpha))]
OtherAlpha = Annotated[
    float | None,
    option("RATE", f"{_ALPHA} Default: that of the file.", parser=passes(exact_alpha)),
]
Delta = Annotated[
    float | None,
    option(
        "SHARE",
        "Hold for all but this share of calibrations. Default: hold on average.",
        parser=passes(check_delta),
    ),
]
Guarantee = Annotated[
    guarantees.Guarantee,
    option("NAME", "What is guaranteed: query-recall, snippet, all or any."),
]
ByGroup = Annotated[bool, flag("--by-group", "Give the guarantee within each group.")]
Out = Annotated[Path, option("FILE", "The file to write.", dir_okay=False)]
Run = Annotated[str | None, option("FILE", "For a BEIR folder: the run file of the retriever.")]
Depth = Annotated[
    int | None, option("K", "For a BEIR folder: the number of snippets per query.", min=1)
]
Scorer = Annotated[
    str,
    option("NAME", "What scores a snippet: retrieval (the retriever itself), bm25 or embedding."),
]
Better = Annotated[
    Literal["higher", "lower"] | None,
    option("higher|lower", "For retrieval: which scores are better (lower: distances)."),
]
Retriever = Annotated[str, option("NAME", "For retrieval: the name of the retriever.")]
Model = Annotated[
    str | None, option("MODEL", "For embedding: a sentence-transformers model, a path or a name.")
]
ModelName = Annotated[
    str | None,
    option("NAME", "For embedding: the name in the chain to filter. Default: that of --model."),
]
Corpus = Annotated[
    Path | None,
    option("FILE", "For bm25: the retrievable texts, as in a BEIR corpus.jsonl.", exists=True),
]
Json = Annotated[bool, flag("--json", "Print JSON.")]


def check_out(out: Path, *given: Path | None) -> None:
    """Exit with 2 if the file to write is one of those that are read."""
    for path in given:
        if path is not None and out.exists() and out.samefile(path):
            raise typer.BadParameter(
                f"{out} is an input of this command; give another file", param_hint="--out"
            )
