"""`conformal-retrievers answers`: questions and a model's answers become a calibration file."""

from pathlib import Path
from typing import Annotated

from conformal_retrievers.answers import calibrate_answers, llm_same, plain_chain
from conformal_retrievers.cli import options
from conformal_retrievers.cli.calibrate import save
from conformal_retrievers.cli.inputs import judged_queries
from conformal_retrievers.data.readers.records import records_of
from conformal_retrievers.llm import Cache, openai_llm


def answers(
    retrieved: options.Retrieved,
    alpha: options.Alpha,
    llm: Annotated[str, options.option("--llm", "MODEL")],
    base_url: Annotated[str | None, options.option("--base-url", "URL")] = None,
    expected: Annotated[Path | None, options.file("--expected")] = None,
    by_llm: Annotated[bool, options.flag("--by-llm")] = False,
    out: options.Out = Path("answers.json"),
    cache: Annotated[Path, options.option("--cache", "FILE")] = Path("answers.db"),
    run: options.Run = None,
    k: options.Depth = None,
    delta: options.Delta = None,
    by_group: options.ByGroup = False,
    as_json: options.Json = False,
) -> None:
    """Calibrate a filter on a model's answers to questions.

    Asks for the answer to each question from all its snippets, then from ever fewer.
    """
    options.check_out(out, retrieved, expected)
    model, replies = openai_llm(llm, base_url=base_url), Cache(cache)
    calibration = calibrate_answers(
        judged_queries(retrieved, run, k),
        plain_chain(model),
        alpha=alpha,
        delta=delta,
        by_group=by_group,
        expected=None if expected is None else references_in(expected),
        same=llm_same(model) if by_llm else None,
        cache=replies,
        progress=True,  # says how many calls it takes, also where no terminal shows the bar
    )
    save(calibration, out, as_json)


def references_in(path: Path) -> dict[str, list[str]]:
    """Return the reference answers of a file, by question; ValueError for one that repeats."""
    references = dict[str, list[str]]()
    for record in records_of(path):
        question = record.text("query")
        if question in references:
            raise record.fault("query", "give each question once, with a list of its answers")
        several = None if isinstance(record.get("answer"), str) else record.texts("answer")
        references[question] = several or [record.text("answer")]
    return references
