"""What the commands read: calibrations, judged queries of any format, filter logs."""

import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import typer
from pydantic import JsonValue

from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.gates.false_answers import questions_in
from conformal_retrievers.calibration.gates.gate import gate_for
from conformal_retrievers.calibration.scorer import scorer_for
from conformal_retrievers.calibration.subjects import Subject
from conformal_retrievers.cli.scorers import Models
from conformal_retrievers.cli.terminal import worded
from conformal_retrievers.data.beir import run_name
from conformal_retrievers.data.judged import check_retrieved
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.data.readers.reading import read, takes_runs
from conformal_retrievers.data.sentences import splitter
from conformal_retrievers.data.sentences.evidence import by_sentence
from conformal_retrievers.evaluation.measures import warn_if_retrieved_otherwise
from conformal_retrievers.labels.record import read_labels
from conformal_retrievers.monitoring.log import read_log
from conformal_retrievers.monitoring.logged import Logged, logged
from conformal_retrievers.scoring import score_queries
from conformal_retrievers.scoring.scorer import fitted_on, query_digest


def load_calibration(path: Path, alpha: float | None, *about: Subject) -> Calibration:
    """Read a calibration, at another alpha if one is given; ValueError for another subject."""
    if ".jsonl" in path.suffixes:
        raise ValueError(f"{path} is not a calibration; give its file, before any others")
    calibration = Calibration.load(path)
    checks.check_subject(calibration, *about)
    return calibration if alpha is None else calibration.at(alpha)


def judged_queries(
    path: Path, run: list[str] | None, k: int | None, min_score: float | None = None
) -> Iterable[JudgedQuery]:
    """Return the judged queries of what `read` recognises, as in the runs if some are given.

    Raises ValueError for one of relevant ids that is not retrieved yet; errors name the options.
    """
    of_runs = takes_runs(path)
    if of_runs and not run:
        text = f"{path} is read as a BEIR folder or qrels, which need a run; give --run FILE"
        raise typer.BadParameter(f"{text}, or a file of judged queries")
    if (run or k is not None) and not of_runs:
        raise typer.BadParameter(f"{path}: --run and --k are for BEIR folders and TREC qrels")
    try:
        queries = read(path, named_runs(path, run) if run else None, k=k, min_score=min_score)
    except ValueError as error:
        text = str(error).replace("min_score", "--min-score")
        raise ValueError(text.replace("read(qrels, run)", "QRELS --run FILE")) from None
    if not queries:
        raise ValueError(worded("no queries", path=path))
    check_retrieved(queries)
    return queries


def labels_of(path: Path, synthetic: bool) -> dict[str, JsonValue]:
    """Return the record of who judged, or the name of the file; and that questions are an LLM's."""
    labels = read_labels(path) or {"source": path.name}
    return labels | {"questions": "synthetic"} if synthetic else labels


def named_runs(folder: Path, given: list[str]) -> list[str] | dict[str, str]:
    """Return runs by name if one is given as NAME=FILE; others have the name of their file.

    A file that exists is taken as it is, also with "=" in its path.
    """
    named = named_files(given, "--run", folder)
    return given if list(named.values()) == given else named


def named_files(given: Iterable[str], option: str, folder: Path = Path()) -> dict[str, str]:
    """Return files by name, which is that of the file unless one is given as NAME=FILE."""
    named: dict[str, str] = {}
    for path in given:
        name, equals, file = path.partition("=")
        if not equals or Path(path).exists() or (folder / path).exists() or "/" in name:
            name, file = run_name(path), path
        if not name or not file:
            raise typer.BadParameter(f"{path!r}; give NAME=FILE, or FILE", param_hint=option)
        if name in named:
            raise typer.BadParameter(worded("same name", name=name), param_hint=option)
        named[name] = file
    return named


class Sources(NamedTuple):
    """Where queries come from, as the options of a command say."""

    judged: Path
    unanswerable: list[str] | None
    run: list[str] | None
    k: int | None
    min_score: float | None

    @property
    def files(self) -> dict[str, Path]:
        """The files of unanswerable queries, by the name of their source."""
        named = named_files(self.unanswerable or [], "--unanswerable")
        for file in named.values():
            if not Path(file).is_file():
                raise typer.BadParameter(worded("no file", file=file), param_hint="--unanswerable")
        return {name: Path(file) for name, file in named.items()}


def at_depth_of(calibration: Calibration, given: Sources) -> Sources:
    """Return sources of which each run is read to its depth as calibrated, unless k is given."""
    if given.k is not None or not given.run or calibration.k is None:
        return given
    runs = (calibration.retrieval or {}).get("runs")
    n_runs = len(runs if isinstance(runs, list) else given.run)
    return given._replace(k=max(1, calibration.k // n_runs))


def held_out(judged: Iterable[JudgedQuery], share: float) -> list[JudgedQuery]:
    """Return all but a share of the queries, the same questions in each command and source."""
    return [query for query in judged if int(query_digest(query.query)[:8], 16) >= share * 16**8]


class New(NamedTuple):
    """Scored queries that a calibration was not made from, and how many others were left out."""

    queries: Sequence[ScoredQuery]
    left_out: int
    reference: Sequence[ScoredQuery] | None = None  # those that it was made from, if all were given
    judged: Sequence[JudgedQuery] = ()  # the queries with their texts
    log: Logged | None = None  # if they are of a log


def new_queries(
    calibration: Calibration, sources: Sources, model: str | None, corpus: Path | None
) -> New:
    """Score judged queries with the scorer of a calibration, and set apart its own queries.

    These are known by id and, where the score was learned, by text.

    Raises ValueError if no query is new.
    """
    judged, _, run, k, min_score = at_depth_of(calibration, sources)
    scorers = Models(model, corpus, judged).needed(calibration)
    gate = gate_for(calibration, None, scorers)
    scorer = scorer_for(calibration, scorers, calibration.gate)
    given = cut_as(calibration, judged_queries(judged, run, k, min_score))
    used = fitted_on(scorer)
    if gate is not None:
        used |= asked_of(gate.calibration, given)
    queries = [
        query
        for query in given
        if query.id in calibration.ids
        or (
            not (calibration.chosen_on(query) or calibration.asked(query))
            and query_digest(query.query) not in used
        )
    ]
    warn_if_retrieved_otherwise(queries, calibration)
    scored = score_queries(scorer, queries, gate=gate, progress=sys.stderr.isatty())
    new = [query for query in scored if query.id not in calibration.ids]
    own = [query for query in scored if query.id in calibration.ids]
    left_out = len(given) - len(new)
    if left_out and not new:
        raise ValueError(worded("none new", judged=judged, n=left_out))
    return New(new, left_out, own if 0 < len(own) == len(calibration.ids) else None, queries)


def asked_of(gate: Calibration, judged: Iterable[JudgedQuery]) -> set[str]:
    """Return the digests of the questions that a gate was calibrated on, or its score chosen."""
    calibrated = questions_in(gate)
    return {
        digest
        for query in judged
        if (digest := query_digest(query.query)) in calibrated
        or gate.chosen_on(query)
        or query.id in gate.used_ids
    }


def cut_as(calibration: Calibration, judged: Iterable[JudgedQuery]) -> list[JudgedQuery]:
    """Return judged queries as sentences if the calibration is about these, as it cuts them."""
    if calibration.split is None:
        return list(judged)
    if calibration.split.startswith("sentences("):
        ours = splitter("sentences")
        checks.check_split(calibration.split, ours.name, "this version")
        return by_sentence(judged, ours)
    queries = list(judged)
    if any(query.split != calibration.split for query in queries):
        raise ValueError(worded("function split", split=calibration.split))
    return queries


def logged_queries(paths: Sequence[Path], calibration: Calibration) -> New:
    """Read the queries of logs that were filtered with a calibration, at any alpha.

    A repeated query counts once, as it was filtered last, and one of the calibration does not, if
    the log has queries or their hashes and the score was learned. Warns of another depth. Raises
    ValueError if there is no event.
    """
    new = logged(chain.from_iterable(map(read_log, dict.fromkeys(paths))), calibration)
    if not len(new.queries):
        name = "other events" if new.left_out else "no events"
        facts = {"n": new.left_out, "checksum": calibration.checksum[:12]}
        raise ValueError(worded(name, logs=", ".join(map(str, paths)), **facts))
    if calibration.split is None:  # the depth counts what was retrieved
        checks.warn_if_deeper(int(new.queries.sizes.max()), calibration.k)
        checks.warn_if_shallow(int(np.median(new.queries.sizes)), calibration.fewest or 0)
    return New(new.queries, new.left_out, log=new)
