"""`conformal-retrievers evaluate`: measure a calibration on other judged queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.cli import options
from conformal_retrievers.cli.inputs import load_calibration, new_queries
from conformal_retrievers.cli.terminal import (
    bad_data_in_one_line,
    percent,
    print_json,
    queries,
    table,
)
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.evaluation import Evaluation, fixed_thresholds, top_k
from conformal_retrievers.evaluation import evaluate as measured

PERCENTILES = (10, 30, 50, 70, 90)  # of all scores: the fixed thresholds among the baselines


def evaluate(
    calibration: options.CalibrationFile,
    judged: options.Judged,
    alpha: options.OtherAlpha = None,
    run: options.Run = None,
    k: options.Depth = None,
    model: options.Model = None,
    corpus: options.Corpus = None,
    baselines: Annotated[
        bool,
        typer.Option("--baselines", help="Add the top k for every k, and some fixed thresholds."),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Measure what a calibration keeps of judged queries, and test its guarantee.

    Exits with 1 if coverage is significantly below its target (p < 0.05, one-sided), if the
    guarantee is out of reach, or if half of the snippets have no score. Queries of the calibration
    are left out by id.
    """
    with bad_data_in_one_line():
        tested = load_calibration(calibration)
        tested = tested if alpha is None else tested.at(alpha)
        new = new_queries(tested, judged, run=run, k=k, model=model, corpus=corpus)
        result = measured(tested, new.queries)
        others = _baselines(new.queries) if baselines else {}
    if as_json:
        print_json({"left_out": new.left_out, "evaluation": result, "baselines": others})
    else:
        _print(Console(highlight=False), result, tested, new.left_out, others)
    fails = result.verdict is not None and result.verdict.fails
    if fails or result.mostly_unscorable or result.out_of_reach:
        raise typer.Exit(1)


def _baselines(scored: list[ScoredQuery]) -> dict[str, Evaluation]:
    scores = np.concatenate([query.scores for query in scored])
    some = scores[np.isfinite(scores)]
    thresholds = np.unique(np.percentile(some, PERCENTILES)) if len(some) else some
    return {
        **{f"top {k}": e for k, e in top_k(scored).items()},
        **{f"score ≤ {t:.4g}": e for t, e in fixed_thresholds(scored, thresholds).items()},
    }


def _print(
    console: Console,
    result: Evaluation,
    calibration: Calibration,
    left_out: int,
    others: Mapping[str, Evaluation],
) -> None:
    console.print(Text(str(result)))
    if left_out:
        console.print(f"Left out: {queries(left_out)} of the calibration.")
    for head, parts in ("group", result.by_group), ("filter", others):
        if not parts:
            continue
        shown = table(head, "queries", "coverage, %", "removal, %", "p")
        rows: dict[str | None, Evaluation] = {"all" if head == "group" else "conformal": result}
        for name, part in (rows | dict(parts)).items():
            measured = part.end_to_end if calibration.count_missed else part.coverage
            share = measured[calibration.guarantee]
            shown.add_row(
                Text("no group" if name is None else name),
                f"{part.n_queries:,}",
                share.interval.written(unit=""),
                percent(part.removal.estimate),
                "–" if part.verdict is None else f"{part.verdict.p_value:.2g}",
            )
        console.print(f"\nBy {head}, in % with 95 % intervals:\n")
        console.print(shown)
