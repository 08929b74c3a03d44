"""`conformal-retrievers gate`: answerable and unanswerable queries become a gate's file."""

import sys
from pathlib import Path
from typing import Annotated

from conformal_retrievers.calibration import calibrate_gate
from conformal_retrievers.cli import options
from conformal_retrievers.cli.calibrate import retrieval_of, save
from conformal_retrievers.cli.inputs import Sources, labels_of
from conformal_retrievers.cli.scorers import Models
from conformal_retrievers.cli.terminal import OptionNeeded
from conformal_retrievers.cli.unanswerable import Queries, read_queries
from conformal_retrievers.data.evidence import by_sentence
from conformal_retrievers.theory.ranks import exact_alpha


def gate(
    judged: options.Judged,
    alpha: Annotated[
        float,
        options.option(
            "RATE",
            "False silence, in (0, 1): the gate is silent on an answerable query with at most "
            "this probability.",
            parser=options.passes(exact_alpha),
        ),
    ],
    unanswerable: options.Unanswerable = None,
    without_answers: options.WithoutAnswers = False,
    out: options.Out = Path("gate.json"),
    run: options.Run = None,
    k: options.Depth = None,
    min_score: options.MinScore = None,
    corpus: options.GateCorpus = None,
    split: options.Split = None,
    delta: options.Delta = None,
    by_group: options.ByGroup = False,
    synthetic: options.Synthetic = False,
    hold_out: options.HoldOut = 0.0,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Calibrate a gate, silent where nothing relevant is found.

    Prints what is guaranteed for answerable queries, and how often it is silent on the others.
    """
    given = Sources(judged, unanswerable, without_answers, run, k, min_score)
    options.check_out(out, judged, corpus, *given.files.values(), kind=options.GATE, force=force)
    queries = read_queries(given).held_out(hold_out)
    if split is not None:
        cut = {name: by_sentence(of, split) for name, of in queries.unanswerable.items()}
        queries = Queries(by_sentence(queries.judged, split), cut)
    made = calibrate_gate(
        queries.judged,
        queries.unanswerable,
        Models(None, corpus, judged).given(),
        alpha=alpha,
        delta=delta,
        by_group=by_group,
        retrieval=retrieval_of(judged, run),
        labels=labels_of(judged, synthetic),
        progress=sys.stderr.isatty(),
    )
    save(made.calibration, out, as_json)
