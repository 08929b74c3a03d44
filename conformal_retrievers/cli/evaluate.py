"""`conformal-retrievers evaluate`: measure a calibration on other judged queries."""

import typer

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.subjects import QUERIES, RETRIEVED
from conformal_retrievers.cli import options
from conformal_retrievers.cli.gate import evaluated_gate
from conformal_retrievers.cli.inputs import Sources, load_calibration, new_queries
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
    min_score: options.MinScore = None,
    model: options.NeededModel = None,
    corpus: options.NeededCorpus = None,
    unanswerable: options.Unanswerable = None,
    as_json: options.Json = False,
) -> None:
    """Test a guarantee on judged queries, and compare with top k.

    Of a gate, measures how often it is silent on answerable and on unanswerable queries.

    Exits with 1 if coverage is significantly below its target (p < 0.05, one-sided), if there is
    nothing to test, since the calibration drops nothing or no snippet is relevant, or if half of
    the snippets have no score. Leaves out queries with an id of the calibration.
    """
    tested = load_calibration(calibration, alpha, *RETRIEVED, QUERIES)
    sources = Sources(judged, unanswerable, run, k, min_score)
    if tested.subject == QUERIES:
        of_gate = evaluated_gate(tested, sources, model, corpus)
        if as_json:
            print_json(of_gate._asdict())
        else:
            of_gate.say()
        raise typer.Exit(of_gate.fails)
    options.check_holds_gate(tested, calibration, unanswerable)
    new = new_queries(tested, sources, model, corpus)
    result = measured(tested, new.queries)
    gate = None
    if tested.gate is not None and unanswerable:
        gate = evaluated_gate(tested.gate, sources, model, corpus)
    if as_json:
        lead = {"left_out": new.left_out, "too_shallow": result.too_shallow}
        more = {"evaluation": result} | ({"gate": gate._asdict()} if gate else {})
        print_json({**lead, "equal_recall": result.equal_recall, **more})
    else:
        say(result)
        if new.left_out:
            say(f"Left out, as part of the calibration: {new.left_out:,}.")
        if result.by_group:
            say("\nBy group, in % with 95 % intervals:\n")
            parts = {"all": result, **result.by_group}
            rows = (_row(name, part, tested) for name, part in parts.items())
            print_table(["group", "queries", "coverage", "removal", "p"], rows)
        if gate is not None:
            say("\nThe gate in front:\n")
            gate.say()
    fails = (result.verdict is not None and result.verdict.fails) or (gate and gate.fails)
    if fails or result.mostly_unscorable or result.verdict is None:
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
