"""The command line for claims: `conformal-retrievers claims calibrate | evaluate | demo`.

Exit codes: 0 fine, 1 the data is bad or a promise fails, 2 the command was not understood.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

from conformal_retrievers.claims import ClaimCalibration, calibrate_claims, evaluate_claims
from conformal_retrievers.conformal import exact_alpha, exact_share
from conformal_retrievers.extras import missing, require

require("cli", "typer")
import typer

app = typer.Typer(no_args_is_help=True, help="Filter the claims of answers.")

AnswersFile = Annotated[
    Path,
    typer.Argument(
        help='Annotated answers, one a line: {"id", "group", "claims": [{"relevance", "factual"}]}',
        exists=True,
        dir_okay=False,
    ),
]


@app.command()
def calibrate(
    answers: AnswersFile,
    alpha: Annotated[float, typer.Option(help="The risk of a claim that is not factual.")],
    scorer: Annotated[str, typer.Option(help="The name of what gave the relevances.")],
    output: Annotated[Path, typer.Option(help="Where the calibration goes.", dir_okay=False)],
    share: Annotated[float, typer.Option(help="The share of kept claims to be factual.")] = 1.0,
    delta: Annotated[
        float | None, typer.Option(help="The share of calibrations that may fall short.")
    ] = None,
    by_group: Annotated[bool, typer.Option(help="Promise it within each group.")] = False,
) -> None:
    """Calibrate on annotated answers, save the calibration and say what it promises."""
    from conformal_retrievers.claims.file import read_answers

    try:
        exact_alpha(alpha)
        exact_share(share)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        calibration = calibrate_claims(
            read_answers(answers), alpha, scorer=scorer, by_group=by_group, delta=delta, share=share
        )
        calibration.save(output)
    except (OSError, ValueError) as error:
        _fail(error)
    typer.echo(calibration.statement)


@app.command()
def evaluate(
    calibration: Annotated[
        Path, typer.Argument(help="A saved calibration.", exists=True, dir_okay=False)
    ],
    answers: AnswersFile,
    alpha: Annotated[float | None, typer.Option(help="Another risk than the saved one.")] = None,
) -> None:
    """Measure factuality and what it costs on annotated answers; exit with 1 if it fails.

    It fails where the 95 % interval of factuality lies below the target as a whole.
    """
    from conformal_retrievers.claims.file import read_answers

    try:
        if alpha is not None:
            exact_alpha(alpha)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--alpha") from None
    try:
        loaded = ClaimCalibration.load(calibration)
        loaded = loaded if alpha is None else loaded.at(alpha)
        measured = evaluate_claims(loaded, read_answers(answers))
    except (OSError, ValueError) as error:
        _fail(error)
    typer.echo(measured)
    if measured.factuality.high < measured.target:
        _fail("factuality is below its target")


@app.command()
def demo(
    base_url: Annotated[str, typer.Option(help="An OpenAI-compatible server.")],
    llm: Annotated[str, typer.Option(help="The name of its model.")],
    model: Annotated[str, typer.Option(help="A sentence-transformers model, a path or a name.")],
    alpha: Annotated[float, typer.Option(help="The risk, for snippets and for claims.")] = 0.2,
    questions: Annotated[int, typer.Option(help="How many questions to ask.", min=15)] = 60,
) -> None:
    """Ask the standard library's docstrings: retrieve, filter, answer, divide, filter again."""
    try:
        exact_alpha(alpha)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--alpha") from None
    for extra, modules in (
        ("llm", ("openai",)),
        ("embedding", ("sentence_transformers",)),
        ("snippets", ("regex",)),
    ):
        message = missing(extra, *modules)
        if message is not None:
            _fail(message)
    from sentence_transformers import SentenceTransformer

    from conformal_retrievers.claims.demo import run
    from conformal_retrievers.llm import Unanswered
    from conformal_retrievers.openai_llm import openai_llm
    from conformal_retrievers.scoring.embedding import EmbeddingScorer

    try:
        encoder = SentenceTransformer(model)
        embedding = EmbeddingScorer(
            lambda texts: encoder.encode(texts, show_progress_bar=False), f"cosine({model})"
        )
        asked = openai_llm(llm, base_url=base_url)
        for part in run(asked, embedding, alpha=alpha, n_questions=questions):
            typer.echo(part)
    except (OSError, ValueError, Unanswered) as error:
        _fail(error)


def _fail(why: object) -> NoReturn:
    typer.echo(f"Error: {why}", err=True)
    raise typer.Exit(1)
