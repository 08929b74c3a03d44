"""`conformal-retrievers calibrate`: judged queries and a scorer become a calibration file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.guarantees import check_guarantee
from conformal_retrievers.cli import options
from conformal_retrievers.cli.inputs import judged_queries, scored
from conformal_retrievers.cli.scorers import bm25_scorer, embedding_scorer, retrieval_scorer
from conformal_retrievers.cli.show import facts_of
from conformal_retrievers.cli.terminal import bad_data_in_one_line, print_json
from conformal_retrievers.scoring.scorer import relative_to_query


def calibrate(
    judged: options.Judged,
    alpha: options.Alpha,
    scorer: Annotated[
        Literal["retrieval", "bm25", "embedding"],
        typer.Option(
            help="The score of a snippet: retrieval (the retriever's own), bm25 or embedding.",
            metavar="NAME",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="The calibration file to write.", dir_okay=False, metavar="FILE")
    ] = Path("calibration.json"),
    run: options.Run = None,
    k: options.Depth = None,
    better: Annotated[
        Literal["higher", "lower"] | None,
        typer.Option(
            help="For retrieval: which scores are better, higher (similarities) or lower "
            "(distances).",
            metavar="WHICH",
        ),
    ] = None,
    retriever: Annotated[
        str, typer.Option(help="For retrieval: the name of the retriever.", metavar="NAME")
    ] = "retriever",
    model: options.Model = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="For embedding: the model's name in the chain that will be filtered, such as "
            "all-MiniLM-L6-v2. Default: the value of --model.",
            metavar="NAME",
        ),
    ] = None,
    corpus: options.Corpus = None,
    guarantee: options.Guarantee = "query-recall",
    delta: options.Delta = None,
    by_group: options.ByGroup = False,
    count_missed: Annotated[
        bool,
        typer.Option(
            "--count-missed", help="Count relevant snippets that were not retrieved as dropped."
        ),
    ] = False,
    on_unscorable: Annotated[
        Literal["raise", "keep"],
        typer.Option(
            help="If a relevant snippet cannot be scored: raise (stop), or keep (count it as "
            "kept, because the filter keeps it).",
            metavar="raise|keep",
        ),
    ] = "raise",
    hold_out: Annotated[
        float,
        typer.Option(
            help="Leave out each query with this probability, for evaluate.", metavar="RATE"
        ),
    ] = 0.0,
    as_json: options.Json = False,
) -> None:
    """Calibrate a filter on judged queries, and save the calibration."""
    options.check_out(out, judged, corpus)
    if not 0 <= hold_out < 1:
        raise typer.BadParameter(f"{hold_out:g} is not in [0, 1)", param_hint="--hold-out")
    try:
        check_guarantee(guarantee, delta)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with bad_data_in_one_line():
        rng = np.random.default_rng(0)
        queries = (q for q in judged_queries(judged, run, k) if rng.random() >= hold_out)
        if scorer == "retrieval":
            chosen = retrieval_scorer(retriever, better)
        elif scorer == "bm25":
            chosen = bm25_scorer(corpus, judged)
        else:
            chosen = embedding_scorer(model, name and f"cosine({name})")
        calibrated = Calibration.from_scores(
            scored(chosen, queries),
            alpha=alpha,
            scorer=chosen.name,
            guarantee=guarantee,
            delta=delta,
            by_group=by_group,
            count_missed=count_missed,
            on_unscorable=on_unscorable,
            relative_to_query=relative_to_query(chosen),
            retrieval=None if run is None else {"run": Path(run).name, "k": k},
            labels={"source": judged.name},
        )
        if hold_out and calibrated.n_without_id:
            raise ValueError(
                f"{calibrated.n_without_id} queries have no id, but --hold-out needs one, by which "
                "evaluate leaves out the others; give every query an id"
            )
        calibrated.save(out)
    if as_json:
        print_json({"file": str(out), **facts_of(calibrated)})
    else:
        Console(highlight=False).print(Text(calibrated.statement), f"\nSaved as {out}", sep="\n")
