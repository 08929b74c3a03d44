"""`conformal-retrievers calibrate`: judged queries and a scorer become a calibration file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.cli import options
from conformal_retrievers.cli.inputs import judged_queries, scored
from conformal_retrievers.cli.scorers import scorer_named
from conformal_retrievers.cli.show import facts_of
from conformal_retrievers.cli.terminal import bad_data_in_one_line, print_json, say
from conformal_retrievers.scoring.scorer import relative_to_query


def calibrate(
    judged: options.Judged,
    alpha: options.Alpha,
    scorer: options.Scorer,
    out: options.Out = Path("calibration.json"),
    run: options.Run = None,
    k: options.Depth = None,
    better: options.Better = None,
    retriever: options.Retriever = "retriever",
    model: options.Model = None,
    name: options.ModelName = None,
    corpus: options.Corpus = None,
    guarantee: options.Guarantee = "query-recall",
    delta: options.Delta = None,
    by_group: options.ByGroup = False,
    count_missed: Annotated[
        bool,
        options.flag("--count-missed", "Count relevant snippets that are missed as dropped."),
    ] = False,
    on_unscorable: Annotated[
        Literal["raise", "keep"],
        options.option(
            "raise|keep",
            "If a relevant snippet has no score: stop, or count it as kept.",
        ),
    ] = "raise",
    hold_out: Annotated[
        float,
        options.option(
            "RATE", "Leave out each query with this probability, for evaluate.", min=0, max=0.99
        ),
    ] = 0.0,
    as_json: options.Json = False,
) -> None:
    """Calibrate a filter on judged queries, and save the calibration."""
    options.check_out(out, judged, corpus)
    if scorer == "retrieval" and better is None:
        raise typer.BadParameter("the scorer retrieval needs --better higher or --better lower")
    if scorer == "embedding" and model is None:
        raise typer.BadParameter("the scorer embedding needs a model; give it with --model MODEL")
    names = {
        "retrieval": f"retrieval({retriever}, {better})",
        "bm25": "bm25s(",
        "embedding": f"cosine({name or model})",
    }
    with bad_data_in_one_line():
        chosen = scorer_named(names[scorer], model=model, corpus=corpus, judged=judged)
        rng = np.random.default_rng(0)
        queries = (q for q in judged_queries(judged, run, k) if rng.random() >= hold_out)
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
                f"{calibrated.n_without_id} queries have no id; give each query an id, so that "
                "evaluate can leave out those of the calibration (--hold-out)"
            )
    save(calibrated, out, as_json)


def save(calibration: Calibration, out: Path, as_json: bool) -> None:
    """Save a calibration, and print its statement, or its facts as JSON."""
    with bad_data_in_one_line():
        calibration.save(out)
    if as_json:
        print_json({"file": str(out), **facts_of(calibration)})
    else:
        say(f"{calibration.statement}\n\nSaved as {out}")
