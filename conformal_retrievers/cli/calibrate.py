"""`conformal-retrievers calibrate`: judged queries and a scorer become a calibration file."""

import sys
import warnings
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from conformal_retrievers.calibration.calibrating import calibrate as calibrated
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import ReversedScores
from conformal_retrievers.cli import options
from conformal_retrievers.cli.inputs import judged_queries, scorer_named
from conformal_retrievers.cli.show import facts_of
from conformal_retrievers.cli.terminal import OptionNeeded, print_json, say


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
        bool, options.flag("--count-missed", "Count relevant snippets that are missed as dropped.")
    ] = False,
    on_unscorable: Annotated[
        Literal["raise", "keep"],
        options.option("raise|keep", "If a relevant snippet has no score: stop, or keep it."),
    ] = "raise",
    hold_out: Annotated[
        float,
        options.option(
            "RATE", "Leave out each query with this probability, for evaluate.", min=0, max=0.99
        ),
    ] = 0.0,
    force: Annotated[
        bool, options.flag("--force", "Save even if the scores look reversed.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Calibrate a filter on judged queries, and save the calibration."""
    options.check_out(out, judged, corpus)
    if scorer == "retrieval" and better is None:
        reason = "the scorer retrieval needs --better higher, or --better lower for distances"
        raise OptionNeeded(reason, "--better higher")
    if name is not None and scorer != "embedding":
        raise typer.BadParameter(f"the scorer {scorer} has no model; leave --name out")
    names = {
        "retrieval": f"retrieval({retriever}, {better})",
        "bm25": "bm25s(",
        "embedding": f"cosine({name or model or 'MODEL'})",
    }
    if scorer not in names:
        hint = f"for an embedding model: --scorer embedding --model {scorer}"
        raise typer.BadParameter(f"{scorer!r} is not one of {', '.join(names)}; {hint}")
    if model and not name and model[0] not in "./~" and Path(model).is_dir():  # as `warn_if_path`
        warnings.warn(f"the scorer is named by the folder {model!r}; give --name", stacklevel=1)
    chosen = scorer_named(names[scorer], model=model, corpus=corpus, judged=judged)
    rng = np.random.default_rng(0)
    queries = [q for q in judged_queries(judged, run, k) if rng.random() >= hold_out]
    if hold_out and any(query.id is None for query in queries):
        raise ValueError("--hold-out needs an id for each query; give those without id one")
    with warnings.catch_warnings():
        if scorer == "retrieval" and not force:
            warnings.simplefilter("error", ReversedScores)
        calibration = calibrated(
            queries,
            chosen,
            alpha=alpha,
            guarantee=guarantee,
            delta=delta,
            by_group=by_group,
            count_missed=count_missed,
            on_unscorable=on_unscorable,
            retrieval=None if run is None else {"run": Path(run).name},
            labels={"source": judged.name},
            progress=sys.stderr.isatty(),
        )
    if n := calibration.n_without_id:
        warnings.warn(f"{n} queries have no id; evaluate cannot leave them out", stacklevel=1)
    save(calibration, out, as_json)


def save(calibration: Calibration, out: Path, as_json: bool) -> None:
    """Save a calibration, and print its statement, or its facts as JSON."""
    calibration.save(out)
    if as_json:
        print_json({"file": str(out), **facts_of(calibration)})
    else:
        say(f"{calibration.statement}\n\nSaved as {out}")
