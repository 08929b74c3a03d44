"""The command line for claims: `conformal-retrievers claims calibrate | evaluate | demo`.

Exit codes: 0 fine, 1 the data is bad or a promise fails, 2 the command was not understood.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.subjects import OnUnscorable
from conformal_retrievers.claims import (
    AnnotatedAnswer,
    calibrate_claims,
    evaluate_claims,
)
from conformal_retrievers.cli.options import Delta, Json, check_out, checked_alpha
from conformal_retrievers.cli.scorers import embedding_scorer
from conformal_retrievers.cli.show import facts_of
from conformal_retrievers.cli.terminal import bad_data_in_one_line, fail, print_json
from conformal_retrievers.extras import missing, require
from conformal_retrievers.theory.ranks import exact_share
from conformal_retrievers.theory.tolerance import check_delta

require("cli", "typer")
import typer

app = typer.Typer(no_args_is_help=True, help="Filter the claims of answers.")

AnswersFile = Annotated[
    Path,
    typer.Argument(
        help='Annotated answers, one a line: {"id", "group", "claims": [{"relevance", "factual"}]}',
        exists=True,
        dir_okay=False,
        metavar="ANSWERS",
    ),
]


@app.command()
def calibrate(
    answers: AnswersFile,
    alpha: Annotated[
        float, typer.Option(help="The risk of a claim that is not factual.", metavar="RATE")
    ],
    scorer: Annotated[
        str, typer.Option(help="The name of what gave the relevances.", metavar="NAME")
    ],
    out: Annotated[
        Path, typer.Option(help="Where the calibration goes.", dir_okay=False, metavar="FILE")
    ] = Path("claims.json"),
    share: Annotated[
        float, typer.Option(help="The share of kept claims to be factual.", metavar="SHARE")
    ] = 1.0,
    delta: Delta = None,
    by_group: Annotated[
        bool, typer.Option("--by-group", help="Promise it within each group of queries.")
    ] = False,
    on_unscorable: Annotated[
        OnUnscorable,
        typer.Option(help="What to do with a claim that has no relevance and is not factual."),
    ] = "raise",
    as_json: Json = False,
) -> None:
    """Calibrate on annotated answers, save the calibration and say what it promises."""
    from conformal_retrievers.claims.file import read_answers

    check_out(out, answers)
    checked_alpha(alpha)
    try:
        exact_share(share)
        if delta is not None:
            check_delta(delta)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with bad_data_in_one_line():
        calibration = calibrate_claims(
            read_answers(answers),
            alpha=alpha,
            scorer=scorer,
            by_group=by_group,
            delta=delta,
            share=share,
            on_unscorable=on_unscorable,
            labels={"source": answers.name},
        )
        calibration.save(out)
    if as_json:
        print_json({"file": str(out), **facts_of(calibration)})
        return
    typer.echo(f"{calibration.statement}\n\nSaved as {out}")


@app.command()
def evaluate(
    calibration: Annotated[
        Path,
        typer.Argument(
            help="A saved calibration.", exists=True, dir_okay=False, metavar="CALIBRATION"
        ),
    ],
    answers: AnswersFile,
    alpha: Annotated[
        float | None, typer.Option(help="Another risk than the saved one.", metavar="RATE")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure factuality and what it costs on annotated answers, and test the promise.

    Exits with 1 if factuality is significantly below the target: p < 0.05, one-sided, for the share
    of factual answers if the promise just holds (beta-binomial, over calibration and new answers);
    or if nothing is kept of any answer, which tests nothing. Answers that the calibration was made
    from are left out, by id, and counted.
    """
    from conformal_retrievers.claims.file import read_answers

    if alpha is not None:
        checked_alpha(alpha)
    with bad_data_in_one_line():
        loaded = Calibration.load(calibration)
        loaded = loaded if alpha is None else loaded.at(alpha)
        new, own = _new_answers(loaded, read_answers(answers))
        measured = evaluate_claims(loaded, new)
    if as_json:
        said = {
            "fails": measured.fails,
            "untested": measured.untested,
            "unknown_groups": measured.unknown_groups,
        }
        print_json({"calibrated_on": own, "evaluation": measured, **said})
    else:
        typer.echo(measured)
        if own:
            were = "answer that the calibration was made from was"
            if own > 1:
                were = "answers that the calibration was made from were"
            typer.echo(f"{own} {were} left out.")
    if measured.fails or measured.untested:
        raise typer.Exit(1)


def _new_answers(
    calibration: Calibration, answers: list[AnnotatedAnswer]
) -> tuple[list[AnnotatedAnswer], int]:
    """Return the answers that a calibration was not made from, and how many others there are."""
    ids = calibration.ids
    new = [answer for answer in answers if answer.id not in ids]
    if answers and not new:
        raise ValueError(
            f"all {len(answers)} answers are those that the calibration was made from, by id; "
            "evaluate on others"
        )
    return new, len(answers) - len(new)


@app.command()
def demo(
    base_url: Annotated[str, typer.Option(help="An OpenAI-compatible server.")],
    llm: Annotated[str, typer.Option(help="The name of its model.")],
    model: Annotated[str, typer.Option(help="A sentence-transformers model, a path or a name.")],
    alpha: Annotated[float, typer.Option(help="The risk, for snippets and for claims.")] = 0.2,
    questions: Annotated[int, typer.Option(help="How many questions to ask.", min=15)] = 60,
) -> None:
    """Ask the standard library's docstrings: retrieve, filter, answer, divide, filter again."""
    checked_alpha(alpha)
    for extra, modules in (
        ("llm", ("openai",)),
        ("embedding", ("sentence_transformers",)),
        ("snippets", ("regex",)),
    ):
        message = missing(extra, *modules)
        if message is not None:
            fail(message)
    from openai import OpenAIError

    from conformal_retrievers.cli.claims_demo import run
    from conformal_retrievers.llm.openai import openai_llm
    from conformal_retrievers.llm.reply import Unanswered

    with bad_data_in_one_line():
        embedding = embedding_scorer(model, f"cosine({model})")
        asked = openai_llm(llm, base_url=base_url)
        try:
            for part in run(asked, embedding, alpha=alpha, n_questions=questions):
                typer.echo(part)
        except Unanswered as error:
            fail(
                f"{base_url} does not answer: {str(error).rstrip('.')}; start there a server that "
                "speaks as OpenAI's does, or give with --base-url the URL of one that runs"
            )
        except OpenAIError as error:  # what asking again does not mend, as the server says it
            fail(
                f"{base_url} refuses to answer: {error}; give with --base-url the URL that "
                "/chat/completions follows (it often ends in /v1), and with --llm the name of a "
                "model that is served there"
            )
