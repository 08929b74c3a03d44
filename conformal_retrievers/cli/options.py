"""The arguments and options of the commands, and the checks of their values."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from conformal_retrievers.calibration import guarantees
from conformal_retrievers.calibration.calibration import Calibration
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


ALPHA = "The risk, in (0, 1): the guarantee holds at 1 - RATE."


_HELP = (
    "Judged queries: JSON lines, a BEIR folder, or a file of another tool, which is recognised "
    "(RAGAS, LangSmith, Phoenix, TREC, a CSV table)."
)
_JUDGED = path("JUDGED", _HELP)

CalibrationFile = Annotated[
    Path, path("CALIBRATION", "A file that calibrate wrote.", dir_okay=False)
]
Judged = Annotated[Path, _JUDGED]
Retrieved = Annotated[Path, path("RETRIEVED", "Retrieved queries, whose judgements are not read.")]
OptionalJudged = Annotated[Path | None, _JUDGED]
Answers = Annotated[
    Path,
    path(
        "ANSWERS",
        'Annotated answers: {"id", "group", "claims": [{"relevance", "factual"}]} a line.',
        dir_okay=False,
    ),
]
Alpha = Annotated[float, option("RATE", ALPHA, parser=passes(exact_alpha))]
OtherAlpha = Annotated[
    float | None,
    option("RATE", f"{ALPHA} Default: that of the file.", parser=passes(exact_alpha)),
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
Synthetic = Annotated[
    bool, flag("--synthetic", "Say in the statement that an LLM wrote the questions.")
]
Out = Annotated[Path, option("FILE", "The file to write.", dir_okay=False)]
Run = Annotated[
    list[str] | None,
    option(
        "[NAME=]FILE",
        "For a BEIR folder or TREC qrels: the run of a retriever. Repeat it to unite several. Hits "
        'have its NAME; without one that of the file, or "retriever" if it is the only run.',
    ),
]
Depth = Annotated[
    int | None,
    option(
        "NUMBER",
        "For a BEIR folder or TREC qrels: the snippets per query of each run. Default: all of "
        "them; for evaluate and diagnose, as many as were calibrated.",
        min=1,
    ),
]
MinScore = Annotated[
    float | None,
    option(
        "NUMBER",
        "For grades: the one from which on a snippet is relevant, where they are not 0, 1.",
    ),
]
Unanswerable = Annotated[
    list[str] | None,
    option(
        "[NAME=]FILE",
        "For a gate: queries that nothing retrieved answers, in JSON lines. Repeat it for several "
        "sources, which have their NAME, or that of their file.",
    ),
]
WithoutAnswers = Annotated[
    bool,
    flag(
        "--without-answers",
        "For a gate and a BEIR folder, with runs deeper than --k: also take the same questions "
        "without their relevant documents, as unanswerable.",
    ),
]
HoldOut = Annotated[
    float,
    option("RATE", "Leave out each query with this probability, for evaluate.", min=0, max=0.99),
]
Scorer = Annotated[
    Literal["rank", "fusion", "bm25"] | None,
    option(
        "NAME",
        "What scores a snippet: rank, fusion (of several ranks) or bm25. Default: learned, and "
        "from 20 queries on fitted to a quarter of them.",
    ),
]
_CORPUS = "For bm25: the retrievable texts, as in a BEIR corpus.jsonl."

ListedCorpus = Annotated[
    Path | None,
    option("FILE", f"{_CORPUS} It is one more scorer, beside the hits.", exists=True),
]
NeededModel = Annotated[
    str | None,
    option(
        "MODEL",
        "The sentence-transformers model of an embedding score, a path or a name. Needed if the "
        "calibration's score has one.",
    ),
]
Corpus = Annotated[
    Path | None,
    option("FILE", f"{_CORPUS} Without --scorer, the learned score reads it, too.", exists=True),
]
NeededCorpus = Annotated[
    Path | None, option("FILE", f"{_CORPUS} Needed if the calibration's score has it.", exists=True)
]
Split = Annotated[
    Literal["sentences"] | None,
    option("sentences", "Cut the snippets into sentences, which evidence in the queries marks."),
]
Json = Annotated[bool, flag("--json", "Print JSON.")]
Force = Annotated[bool, flag("--force", "Replace a file that this command did not write.")]
# What is in the first lines of the files that commands write.
CALIBRATION, CLAIMS, GATE = rb'"subject": "s', rb'"subject": "claims"', rb'"subject": "queries"'
ANSWERS = rb'"subject": "answers"'
REPORT = b'content="conformal_retrievers'


def check_out(
    out: Path, *given: Path | None, kind: bytes = CALIBRATION, force: bool = False
) -> None:
    """Exit with 2 if the file to write is one that is read, or, without force, of another kind."""
    for path in given:
        if isinstance(path, Path) and out.exists() and out.samefile(path):
            raise typer.BadParameter(
                f"{out} is an input of this command; give another file", param_hint="--out"
            )
    if out.is_file() and not force:
        with out.open("rb") as file:
            start = file.read(300)
        if start and kind not in start:
            raise typer.BadParameter(
                f"{out} exists, and is no file that this command writes; give another one, or "
                "replace it with --force"
            )


def check_holds_gate(
    calibration: Calibration, path: Path, unanswerable: list[str] | None, *, without_answers: bool
) -> None:
    """Exit with 2 if there are unanswerable queries for a calibration without a gate."""
    if calibration.gate is None and (unanswerable or without_answers):
        option = "--unanswerable" if unanswerable else "--without-answers"
        raise typer.BadParameter(
            f"{path} holds no gate, and only a gate is measured on unanswerable queries; leave "
            f"{option} out",
            param_hint=option,
        )
