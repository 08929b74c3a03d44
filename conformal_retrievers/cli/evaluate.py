"""`conformal-retrievers evaluate`: measure a calibration on other judged queries."""

import typer

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.subjects import RETRIEVED
from conformal_retrievers.cli import options
from conformal_retrievers.cli.inputs import load_calibration, new_queries
from conformal_retrievers.cli.terminal import print_json, print_table, say
from conformal_retrievers.evaluation import Evaluation
from conformal_retrievers.evaluation import evaluate as measured
from conformal_retrievers.theory.intervals import percent


def evaluate(
    calibration: options.CalibrationFile,
    judged: options.Judged,
    alpha: options.OtherAlpha = None,
    run: options.Run = None,
    k: options.Depth = None,
    model: options.NeededModel = None,
    corpus: options.NeededCorpus = None,
    as_json: options.Json = False,
) -> None:
    """Measure a calibration on judged queries, beside top k; test its guarantee.

    Exits with 1 if coverage is significantly below its target (p < 0.05, one-sided), if the
    calibration guarantees nothing, since missed snippets count and no threshold can keep enough, or
    if half of the snippets have no score. Leaves out queries with an id of the calibration.
    """
    tested = load_calibration(calibration, alpha, *RETRIEVED)
    new = new_queries(tested, judged, run=run, k=k, model=model, corpus=corpus)
    result = measured(tested, new.queries)
    if as_json:
        print_json(
            {
                "left_out": new.left_out,
                "too_shallow": result.too_shallow,
                "equal_recall": result.equal_recall,
                "evaluation": result,
            }
        )
    else:
        say(result)
        if new.left_out:
            say(f"Left out, as part of the calibration: {new.left_out:,}.")
        if result.by_group:
            say("\nBy group, in % with 95 % intervals:\n")
            print_table(
                ["group", "queries", "coverage", "removal", "p"],
                (
                    _row(name, part, tested)
                    for name, part in ({"all": result} | dict(result.by_group)).items()
                ),
            )
    fails = result.verdict is not None and result.verdict.fails
    if fails or result.mostly_unscorable or result.out_of_reach:
        raise typer.Exit(1)


def _row(name: str | None, part: Evaluation, calibration: Calibration) -> list[str]:
    coverage = part.end_to_end if calibration.count_missed else part.coverage
    return [
        "no group" if name is None else name,
        f"{part.n_queries:,}",
        coverage[calibration.guarantee].interval.written(unit=""),
        percent(part.removal.estimate, unit=""),
        "–" if part.verdict is None else f"{part.verdict.p_value:.2g}",
    ]
