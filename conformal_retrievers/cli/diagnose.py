"""`conformal-retrievers diagnose`: does the guarantee hold, and if not, why?"""

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from conformal_retrievers.calibration.subjects import FILTERED, RETRIEVED
from conformal_retrievers.cli import inputs, options
from conformal_retrievers.cli.gate import evaluated_gate
from conformal_retrievers.cli.terminal import print_json, say, worded
from conformal_retrievers.data.files import write_whole
from conformal_retrievers.evaluation import diagnose as diagnosed
from conformal_retrievers.evaluation.diagnosis import Diagnosis
from conformal_retrievers.evaluation.dropped import dropped


def diagnose(
    calibration: options.CalibrationFile,
    judged: options.OptionalJudged = None,
    log: Annotated[list[Path] | None, options.option("--log", "FILE", dir_okay=False)] = None,
    out: Annotated[Path | None, options.option("--out of diagnose", "FILE", dir_okay=False)] = None,
    run: options.Run = None,
    k: options.Depth = None,
    min_score: options.MinScore = None,
    model: options.NeededModel = None,
    corpus: options.NeededCorpus = None,
    unanswerable: options.Unanswerable = None,
    as_json: options.Json = False,
) -> None:
    """Check whether a guarantee holds for some queries, and why not.

    Exits with 1 if there is a reason not to rely on it, or if it drops nothing. Leaves out queries
    with an id of the calibration. If all queries of the calibration are given, they are the
    reference. Without a relevant snippet, as in a log, compares the scores only.
    """
    if (judged is None) == (not log):
        raise typer.BadParameter("give either judged queries, or a filter log with --log FILE")
    if log and any((run, k, min_score, model, corpus, unanswerable)):
        needed = "--run, --k, --min-score, --model, --corpus, --unanswerable"
        raise typer.BadParameter(f"give judged queries in place of --log for {needed}")
    sources = inputs.Sources(judged or Path(), unanswerable, run, k, min_score)
    if out is not None:
        read = (calibration, judged, *(log or ()), corpus, *sources.files.values())
        options.check_out(out, *read)
        if out.suffix not in (".html", ".htm"):
            raise typer.BadParameter(worded("no page", out=out), param_hint="--out")
    tested = inputs.load_calibration(calibration, None, *(FILTERED if log else RETRIEVED))
    options.check_holds_gate(tested, calibration, unanswerable)
    if log:
        new = inputs.logged_queries(log, tested)
    else:
        new = inputs.new_queries(tested, sources, model, corpus)
    diagnosis = diagnosed(tested, new.queries, reference=new.reference)
    gate = None
    if tested.gate and judged and (out or unanswerable):
        gate = evaluated_gate(tested.gate, sources, model, corpus)
    if out is not None:
        from conformal_retrievers.evaluation.report import html

        logs = ", ".join(map(str, log or ()))
        source = {"judged queries": judged.name} if judged else {"filter log": logs}
        named = {"calibration": calibration.name, **source}
        page = html(diagnosis, new.queries, named, gate and gate.evaluation, new.judged)
        write_whole(out, page.encode(), what="report")
    if as_json:
        numbers = {f.name: getattr(diagnosis, f.name) for f in fields(diagnosis)}
        del numbers["calibration"]
        counted = {"left_out": new.left_out, "repeated": new.log.repeated if new.log else 0}
        lead = {"verdict": diagnosis.paragraph, "equal_recall": diagnosis.evaluation.equal_recall}
        of_gate = {"gate": gate._asdict()} if gate else {}
        failed = {"failed_retrievers": new.log.failed} if new.log else {}
        savings = new.log and new.log.savings
        in_shadow = {"shadow": savings._asdict()} if savings else {}
        lost = {"dropped": dropped(tested, new.queries, new.judged)} if diagnosis.judged else {}
        print_json({**counted, **failed, **in_shadow, **lead, **numbers, **lost, **of_gate})
    else:
        _say(diagnosis, new)
        if gate is not None:
            say("\nThe gate in front:\n")
            gate.say()
        if out is not None:
            say(f"\nSaved as {out}")
    nothing_dropped = tested.keeps_all_of(diagnosis.evaluation.by_group)
    if diagnosis.fails or nothing_dropped or (gate and gate.fails):
        raise typer.Exit(1)


def _say(found: Diagnosis, new: inputs.New) -> None:
    if new.log and new.log.savings:
        say(f"{new.log.savings}\n")
    measured, tested = found.evaluation, found.calibration
    say(f"Queries: {measured.n_queries:,}, with {measured.n_snippets:,} {tested.subject.item}s.")
    others = new.log.of_others if new.log else 0
    say(f"Left out, as part of this calibration: {new.left_out - others:,}.")
    if others:
        say(f"Left out, as filtered by another calibration: {others:,}.")
    if new.log and new.log.repeated:
        say(f"Repeated, and counted once, as filtered last: {new.log.repeated:,}.")
    for name, n in new.log.failed.items() if new.log else ():
        say(f"The retriever {name!r} failed in {n:,} events. What was retrieved then is kept.")
    say(f"\n{found}")
