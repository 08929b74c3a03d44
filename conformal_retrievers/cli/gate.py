"""`conformal-retrievers gate`: answerable and unanswerable queries become a gate's file."""

import sys
from itertools import chain
from pathlib import Path
from typing import Annotated, NamedTuple

from conformal_retrievers.calibration import calibrate_gate
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.gates.gate import Gate
from conformal_retrievers.cli import inputs, options
from conformal_retrievers.cli.calibrate import retrieval_of, save
from conformal_retrievers.cli.scorers import Models
from conformal_retrievers.cli.terminal import say, worded
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.data.readers.reading import read
from conformal_retrievers.data.sentences.evidence import by_sentence
from conformal_retrievers.evaluation import GateEvaluation, evaluate_gate
from conformal_retrievers.scoring.scorer import fitted_on, query_digest
from conformal_retrievers.theory.ranks import exact_alpha


def read_queries(given: inputs.Sources) -> dict[str, list[JudgedQuery]]:
    """Return the judged queries of a file or folder as "", and unanswerable ones by source."""
    judged = inputs.judged_queries(given.judged, given.run, given.k, given.min_score)
    return {"": [*judged], **{name: read(file) for name, file in given.files.items()}}


class MeasuredGate(NamedTuple):
    """The evaluation of a gate, and how many queries were left out."""

    evaluation: GateEvaluation
    left_out: int

    @property
    def fails(self) -> bool:
        """Whether the gate is silent on significantly more answerable queries than guaranteed."""
        return self.evaluation.verdict is not None and self.evaluation.verdict.fails

    def say(self) -> None:
        """Print the evaluation as a text."""
        say(self.evaluation)
        if self.left_out:
            say(f"Left out, as part of the gate's calibration: {self.left_out:,}.")


def evaluated_gate(
    calibration: Calibration, given: inputs.Sources, model: str | None, corpus: Path | None
) -> MeasuredGate:
    """Measure a gate on new queries.

    Runs are read to the depth of the calibration unless a depth is given. Raises ValueError if no
    answerable query is new.
    """
    gate = Gate.of(calibration, Models(model, corpus, given.judged).needed(calibration))
    queries = {
        name: inputs.cut_as(calibration, own)
        for name, own in read_queries(inputs.at_depth_of(calibration, given)).items()
    }
    asked = [*chain.from_iterable(queries.values())]
    gone = inputs.asked_of(calibration, asked) | fitted_on(gate.scorer)
    new = {n: [q for q in own if query_digest(q.query) not in gone] for n, own in queries.items()}
    left_out = len(asked) - sum(map(len, new.values()))
    judged = new.pop("")
    if left_out and not any(any(query.relevant) for query in judged):
        raise ValueError(worded("none new to gate", judged=given.judged, n=left_out))
    for name in [name for name, own in new.items() if queries[name] and not own]:
        raise ValueError(worded("none new of source", name=name, n=len(queries[name])))
    return MeasuredGate(evaluate_gate(gate, judged, new, progress=sys.stderr.isatty()), left_out)


def gate(
    judged: options.Judged,
    alpha: Annotated[
        float, options.option("--alpha of gate", "RATE", parser=options.passes(exact_alpha))
    ],
    unanswerable: options.Unanswerable = None,
    out: options.Out = Path("gate.json"),
    run: options.Run = None,
    k: options.Depth = None,
    min_score: options.MinScore = None,
    corpus: options.Corpus = None,
    split: options.Split = None,
    delta: options.Delta = None,
    by_group: options.ByGroup = False,
    synthetic: options.Synthetic = False,
    hold_out: options.HoldOut = 0.0,
    as_json: options.Json = False,
) -> None:
    """Calibrate a gate, silent where nothing relevant is found.

    Prints what is guaranteed for answerable queries, and how often it is silent on the others.
    """
    given = inputs.Sources(judged, unanswerable, run, k, min_score)
    options.check_out(out, judged, corpus, *given.files.values())
    queries = {name: inputs.held_out(own, hold_out) for name, own in read_queries(given).items()}
    if split is not None:
        queries = {name: by_sentence(own, split) for name, own in queries.items()}
    made = calibrate_gate(
        queries.pop(""),
        queries,
        Models(None, corpus, judged).given(),
        alpha=alpha,
        delta=delta,
        by_group=by_group,
        retrieval=retrieval_of(judged, run),
        labels=inputs.labels_of(judged, synthetic),
        progress=sys.stderr.isatty(),
    )
    save(made.calibration, out, as_json)
