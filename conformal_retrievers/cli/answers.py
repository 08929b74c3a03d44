"""`conformal-retrievers answers`: questions and a model's answers become a calibration file."""

import sys
from pathlib import Path
from typing import Annotated

from conformal_retrievers.answers import calibrate_scans, llm_same, plain_chain, scan_answers
from conformal_retrievers.cli import options
from conformal_retrievers.cli.calibrate import save
from conformal_retrievers.cli.inputs import judged_queries
from conformal_retrievers.data.readers.records import records_of
from conformal_retrievers.llm import Cache, openai_llm


def answers(
    retrieved: options.Judged,
    alpha: options.Alpha,
    llm: Annotated[str, options.option("MODEL", "The server's name for the model that answers.")],
    base_url: Annotated[
        str | None, options.option("URL", "An OpenAI-compatible server. Default: OpenAI.")
    ] = None,
    expected: Annotated[
        Path | None,
        options.option(
            "FILE",
            'Reference answers, {"query", "answer"} a line: the answer is to be right. Default: it '
            "is to be the one from all snippets.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    by_llm: Annotated[
        bool, options.flag("--by-llm", "Let the model compare answers. Default: by their words.")
    ] = False,
    out: options.Out = Path("answers.json"),
    cache: Annotated[
        Path, options.option("FILE", "Keeps the answers, so that none is paid for twice.")
    ] = Path("answers.db"),
    run: options.Run = None,
    k: options.Depth = None,
    delta: options.Delta = None,
    by_group: options.ByGroup = False,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Calibrate a filter on a model's answers, without judged snippets.

    Asks for the answer to each question from all its snippets, then from ever fewer.
    """
    options.check_out(out, retrieved, expected, kind=options.ANSWERS, force=force)
    model, replies = openai_llm(llm, base_url=base_url), Cache(cache)
    records = [] if expected is None else records_of(expected)
    scans = scan_answers(
        judged_queries(retrieved, run, k),
        plain_chain(model),
        expected=None
        if expected is None
        else {
            record.text("query"): [record.text("answer")]
            if isinstance(record.get("answer"), str)
            else record.texts("answer") or []
            for record in records
        },
        same=llm_same(model, cache=replies) if by_llm else None,
        cache=replies,
        progress=sys.stderr.isatty(),
    )
    save(calibrate_scans(scans, alpha=alpha, delta=delta, by_group=by_group), out, as_json)
