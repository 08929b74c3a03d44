"""The arguments and options of the commands, and the checks of their values."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from conformal_retrievers.calibration import guarantees
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.data.wording import sentences_of
from conformal_retrievers.theory.ranks import exact_alpha
from conformal_retrievers.theory.tolerance import check_delta

HELPS = sentences_of(__package__)


def option(help: str, metavar: str, **more: Any) -> Any:
    """Return the declaration of an option with a value, and with a help of `wording.txt`."""
    return typer.Option(metavar=metavar, help=HELPS[help], **more)


def file(help: str) -> Any:
    """Return the declaration of an option that is a file to read."""
    return option(help, "FILE", exists=True, dir_okay=False)


def flag(name: str) -> Any:
    """Return the declaration of an option without a value."""
    return typer.Option(name, help=HELPS[name])


def path(name: str, **more: Any) -> Any:
    """Return the declaration of an argument that is a path."""
    return typer.Argument(metavar=name, help=HELPS[name], exists=True, **more)


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


CalibrationFile = Annotated[Path, path("CALIBRATION", dir_okay=False)]
Judged = Annotated[Path, path("JUDGED")]
Retrieved = Annotated[Path, path("RETRIEVED")]
OptionalJudged = Annotated[Path | None, path("JUDGED")]
Answers = Annotated[Path, path("ANSWERS", dir_okay=False)]
Alpha = Annotated[float, option("--alpha", "RATE", parser=passes(exact_alpha))]
_OF_ANOTHER = option("--alpha of another", "RATE", parser=passes(exact_alpha))
OtherAlpha = Annotated[float | None, _OF_ANOTHER]
Delta = Annotated[float | None, option("--delta", "SHARE", parser=passes(check_delta))]
Guarantee = Annotated[guarantees.Guarantee, option("--guarantee", "NAME")]
ByGroup = Annotated[bool, flag("--by-group")]
Synthetic = Annotated[bool, flag("--synthetic")]
Out = Annotated[Path, option("--out", "FILE", dir_okay=False)]
Run = Annotated[list[str] | None, option("--run", "[NAME=]FILE")]
Depth = Annotated[int | None, option("--k", "NUMBER", min=1)]
MinScore = Annotated[float | None, option("--min-score", "NUMBER")]
Unanswerable = Annotated[list[str] | None, option("--unanswerable", "[NAME=]FILE")]
HoldOut = Annotated[float, option("--hold-out", "RATE", min=0, max=0.99)]
NeededModel = Annotated[str | None, option("--model", "MODEL")]
Corpus = Annotated[Path | None, option("--corpus", "FILE", exists=True)]
NeededCorpus = Annotated[Path | None, option("--corpus of evaluate", "FILE", exists=True)]
Split = Annotated[Literal["sentences"] | None, option("--split", "sentences")]
Json = Annotated[bool, flag("--json")]


def check_not_read(out: Path, *given: Path | None) -> None:
    """Exit with 2 if the file to write is one that is read."""
    for path in given:
        if isinstance(path, Path) and out.exists() and out.samefile(path):
            text = f"{out} is an input of this command; give another file"
            raise typer.BadParameter(text, param_hint="--out")


def check_out(out: Path, *given: Path | None) -> None:
    """Exit with 2 if the file to write is one that is read, or one that no command wrote."""
    check_not_read(out, *given)
    if out.is_file():
        with out.open("rb") as file:
            start = file.read(300)
        if start and not re.search(rb'"conformal[-_]retrievers', start):
            text = f"{out} exists, and no command wrote it; give another file, or remove this one"
            raise typer.BadParameter(text)


def check_holds_gate(calibration: Calibration, path: Path, unanswerable: list[str] | None) -> None:
    """Exit with 2 if there are unanswerable queries for a calibration without a gate."""
    if calibration.gate is None and unanswerable:
        raise typer.BadParameter(HELPS["no gate"].format(path=path), param_hint="--unanswerable")
