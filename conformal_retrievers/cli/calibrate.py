"""`conformal-retrievers calibrate`: judged queries and a scorer become a calibration file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.guarantees import check_guarantee
from conformal_retrievers.calibration.subjects import OnUnscorable
from conformal_retrievers.cli.inputs import judged_queries, scored
from conformal_retrievers.cli.options import (
    Alpha,
    Corpus,
    Delta,
    Depth,
    GuaranteeOption,
    Json,
    Judged,
    Model,
    Run,
    check_out,
    checked_alpha,
)
from conformal_retrievers.cli.scorers import bm25_scorer, embedding_scorer, retrieval_scorer
from conformal_retrievers.cli.show import facts_of
from conformal_retrievers.cli.terminal import bad_data_in_one_line, print_json, tracked
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.scoring import Scorer
from conformal_retrievers.scoring.scorer import relative_to_query


def calibrate(
    judged: Judged,
    alpha: Alpha,
    scorer: Annotated[
        Literal["retrieval", "bm25", "embedding"],
        typer.Option(
            help="What snippets are scored by: retrieval (the retriever's own numbers), bm25 or "
            "embedding.",
            metavar="NAME",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Where the calibration goes.", dir_okay=False, metavar="FILE")
    ] = Path("calibration.json"),
    run: Run = None,
    k: Depth = None,
    better: Annotated[
        Literal["higher", "lower"] | None,
        typer.Option(
            help="For retrieval: which numbers are better, higher (similarities) or lower "
            "(distances).",
            metavar="WHICH",
        ),
    ] = None,
    retriever: Annotated[
        str, typer.Option(help="For retrieval: what gave the numbers.", metavar="NAME")
    ] = "retriever",
    model: Model = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="For embedding: what the model is called in the chain that will be filtered, such "
            "as all-MiniLM-L6-v2; by default as in --model.",
            metavar="NAME",
        ),
    ] = None,
    corpus: Corpus = None,
    guarantee: GuaranteeOption = "query-recall",
    delta: Delta = None,
    by_group: Annotated[
        bool,
        typer.Option("--by-group", help="Promise it within each group of queries.", metavar=""),
    ] = False,
    count_missed: Annotated[
        bool,
        typer.Option(
            "--count-missed",
            help="Relevant snippets not retrieved count as dropped.",
            metavar="",
        ),
    ] = False,
    on_unscorable: Annotated[
        OnUnscorable,
        typer.Option(
            help="What to do where a relevant snippet cannot be scored: raise (stop), or keep "
            "(count it as kept, as the filter keeps it).",
            metavar="raise|keep",
        ),
    ] = "raise",
    hold_out: Annotated[
        float,
        typer.Option(
            help="Leave each query out with this probability: evaluate finds those left out.",
            metavar="RATE",
        ),
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Which queries are left out.", metavar="NUMBER")] = 0,
    as_json: Json = False,
) -> None:
    """Calibrate a filter on judged queries, and save what it promises."""
    checked_alpha(alpha)
    check_out(out, judged, corpus, run=run)
    if not 0 <= hold_out < 1:
        raise typer.BadParameter(
            f"{hold_out:g} leaves nothing to calibrate on; give a rate of 0 or more, below 1"
            if hold_out == 1
            else f"{hold_out:g} is no probability; give a rate of 0 or more, below 1",
            param_hint="--hold-out",
        )
    try:
        check_guarantee(guarantee, delta)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with bad_data_in_one_line():
        rng = np.random.default_rng(seed)
        queries = (
            query
            for query in judged_queries(judged, run, k)
            if _told_by_id(query, hold_out) and rng.random() >= hold_out
        )
        makers: dict[str, Callable[[], Scorer]] = {
            "retrieval": lambda: retrieval_scorer(retriever, better),
            "bm25": lambda: bm25_scorer(corpus, judged),
            "embedding": lambda: embedding_scorer(model, name and f"cosine({name})"),
        }
        chosen = makers[scorer]()
        calibrated = Calibration.from_scores(
            scored(chosen, tracked(queries, "Scoring")),
            alpha=alpha,
            guarantee=guarantee,
            delta=delta,
            by_group=by_group,
            count_missed=count_missed,
            on_unscorable=on_unscorable,
            scorer=chosen.name,
            relative_to_query=relative_to_query(chosen),
            retrieval=None if run is None else {"run": Path(run).name, "k": k},
            labels={"source": judged.name},
        )
        calibrated.save(out)
    if as_json:
        print_json({"file": str(out), **facts_of(calibrated)})
        return
    Console(highlight=False).print(Text(calibrated.statement), f"\nSaved as {out}", sep="\n")


def _told_by_id(query: JudgedQuery, hold_out: float) -> bool:
    if hold_out and query.id is None:
        raise ValueError(
            f"query {query.query[:60]!r} has no id, by which evaluate finds those left out; give "
            'every query an "id", or leave --hold-out away and evaluate on another file'
        )
    return True
