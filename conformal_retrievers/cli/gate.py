"""`conformal-retrievers gate`: answerable and unanswerable queries become a gate's file."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from conformal_retrievers.calibration import calibrate_gate
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.gate import Gate
from conformal_retrievers.cli import inputs, options
from conformal_retrievers.cli.calibrate import retrieval_of, save
from conformal_retrievers.cli.scorers import Models, needed_of
from conformal_retrievers.cli.terminal import print_json, say
from conformal_retrievers.data.evidence import by_sentence
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.data.readers.reading import read
from conformal_retrievers.evaluation import GateEvaluation, evaluate_gate
from conformal_retrievers.scoring.scorer import fitted_on, query_digest
from conformal_retrievers.theory.ranks import exact_alpha


class Queries(NamedTuple):
    """Judged queries, and unanswerable ones by the name of their source."""

    judged: list[JudgedQuery]
    unanswerable: dict[str, list[JudgedQuery]]

    @property
    def all(self) -> list[JudgedQuery]:
        """Both kinds of queries."""
        return [*self.judged, *(query for listed in self.unanswerable.values() for query in listed)]

    def without(self, questions: Iterable[str]) -> "Queries":
        """Return all but some questions, which are given by their digests."""
        gone = {*questions}

        def left(queries: list[JudgedQuery]) -> list[JudgedQuery]:
            return [query for query in queries if query_digest(query.query) not in gone]

        sources = {name: left(queries) for name, queries in self.unanswerable.items()}
        return Queries(left(self.judged), sources)

    def held_out(self, share: float) -> "Queries":
        """Return all but those that are held out, the same questions of each source."""
        sources = {name: inputs.held_out(own, share) for name, own in self.unanswerable.items()}
        return Queries(inputs.held_out(self.judged, share), sources)


def read_queries(given: inputs.Sources) -> Queries:
    """Return the judged queries of a file or folder, and the unanswerable ones by source."""
    sources = {name: read(file) for name, file in given.files.items()}
    queries = [*inputs.judged_queries(given.judged, given.run, given.k, given.min_score)]
    return Queries(queries, sources)


class MeasuredGate(NamedTuple):
    """The evaluation of a gate, and how many queries were left out."""

    evaluation: GateEvaluation
    left_out: int

    @property
    def fails(self) -> bool:
        """Whether the gate is silent on significantly more answerable queries than guaranteed."""
        return self.evaluation.verdict is not None and self.evaluation.verdict.fails

    def print(self, *, as_json: bool) -> None:
        """Print the evaluation; exit with 1 if it fails."""
        if as_json:
            print_json(self._asdict())
        else:
            self.say()
        if self.fails:
            raise typer.Exit(1)

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
    gate = Gate.of(calibration, needed_of(calibration, Models(model, corpus, given.judged)))
    read = read_queries(inputs.at_depth_of(calibration, given))
    queries = Queries(
        inputs.cut_as(calibration, read.judged),
        {name: inputs.cut_as(calibration, listed) for name, listed in read.unanswerable.items()},
    )
    new = queries.without(inputs.asked_of(calibration, queries.all) | fitted_on(gate.scorer))
    inputs.warn_if_retrieved_otherwise(new.all, calibration)
    left_out = len(queries.all) - len(new.all)
    if left_out and not any(any(query.relevant) for query in new.judged):
        raise ValueError(
            f"{given.judged}: no answerable query is new to the gate, and {left_out} are left out; "
            "give other queries, or calibrate with --hold-out 0.5"
        )
    progress = sys.stderr.isatty()
    result = evaluate_gate(gate, new.judged, new.unanswerable, progress=progress)
    return MeasuredGate(result, left_out)


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
    corpus: options.ListedCorpus = None,
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
    given = inputs.Sources(judged, unanswerable, run, k, min_score)
    options.check_out(out, judged, corpus, *given.files.values(), kind=options.GATE, force=force)
    queries = read_queries(given).held_out(hold_out)
    if split is not None:
        cut = {name: by_sentence(listed, split) for name, listed in queries.unanswerable.items()}
        queries = Queries(by_sentence(queries.judged, split), cut)
    made = calibrate_gate(
        queries.judged,
        queries.unanswerable,
        Models(None, corpus, judged).given(),
        alpha=alpha,
        delta=delta,
        by_group=by_group,
        retrieval=retrieval_of(judged, run),
        labels=inputs.labels_of(judged, synthetic),
        progress=sys.stderr.isatty(),
    )
    save(made.calibration, out, as_json)
