"""What the commands read: calibrations, judged queries (a file or a BEIR folder), filter logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import typer

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_subject
from conformal_retrievers.calibration.subjects import SNIPPETS, Subject
from conformal_retrievers.cli.scorers import scorer_named
from conformal_retrievers.cli.terminal import tracked
from conformal_retrievers.data.beir import read_beir
from conformal_retrievers.data.jsonl import iter_jsonl
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.filtering import ConformalFilter
from conformal_retrievers.monitoring.events import scores_of
from conformal_retrievers.monitoring.log import read_log
from conformal_retrievers.scoring import Scorer, score_queries


def load_calibration(
    path: Path, alpha: float | None = None, about: Subject = SNIPPETS
) -> Calibration:
    """Read a calibration, at another alpha if one is given; ValueError for another subject."""
    calibration = Calibration.load(path)
    check_subject(calibration, about)
    return calibration if alpha is None else calibration.at(alpha)


def judged_queries(path: Path, run: str | None, k: int | None) -> Iterable[JudgedQuery]:
    """Return the judged queries of a file, or those of a BEIR folder and a run.

    Exits with 2 for a folder without a run, or a file with one.
    """
    if path.is_dir():
        if run is None:
            raise typer.BadParameter(f"{path} is a folder; give its run file with --run FILE")
        return read_beir(path, run, k=k)
    if run is not None or k is not None:
        raise typer.BadParameter(f"{path} is a file; --run and --k are for BEIR folders")
    return iter_jsonl(path)


def scored(scorer: Scorer, queries: Iterable[JudgedQuery]) -> Iterator[ScoredQuery]:
    """Yield the queries with their scores, one by one, so that no text stays in memory."""
    for query in tracked(queries, "Scoring"):
        yield from score_queries(scorer, [query])


class New(NamedTuple):
    """Scored queries that a calibration was not made from, and how many others were left out."""

    queries: list[ScoredQuery]
    left_out: int
    reference: list[ScoredQuery] | None = None  # those that it was made from


def new_queries(
    calibration: Calibration,
    judged: Path,
    *,
    reference: Path | None = None,
    run: str | None,
    k: int | None,
    model: str | None,
    corpus: Path | None,
) -> New:
    """Score judged queries with the scorer of a calibration, and leave out its own queries by id.

    A BEIR run is read to the depth of the calibration unless `k` is given. Raises ValueError if no
    query is new, or none of `reference` is the calibration's.
    """
    scorer = scorer_named(calibration.scorer, model=model, corpus=corpus, judged=judged)
    ConformalFilter(scorer, calibration)  # refuses another scorer
    if k is None and run is not None:
        k = calibration.k
    given = list(scored(scorer, judged_queries(judged, run, k)))
    new = [query for query in given if query.id not in calibration.ids]
    if given and not new:
        raise ValueError(
            f"{judged}: all {len(given)} queries belong to the calibration; give other queries, or "
            "calibrate with --hold-out 0.5"
        )
    own = None
    if reference is not None:
        theirs = scored(scorer, judged_queries(reference, run if reference.is_dir() else None, k))
        own = [query for query in theirs if query.id in calibration.ids]
        if not own:
            raise ValueError(
                f"reference {reference} has no query of the calibration; give the file that it was "
                "made from"
            )
    return New(new, len(given) - len(new), own)


def logged_queries(path: Path, calibration: Calibration) -> New:
    """Read the queries of a log that were filtered with a calibration, at any alpha.

    A repeated query counts once. Raises ValueError if there is none.
    """
    new: dict[str, ScoredQuery] = {}
    n_events = left_out = 0

    @cache
    def checksum_at(alpha: float) -> str | None:
        try:
            return calibration.at(alpha).checksum
        except (TypeError, ValueError):  # no alpha, or too few queries for delta at this one
            return None

    for n_events, event in enumerate(read_log(path), start=1):
        if event["calibration"] not in (calibration.checksum, checksum_at(event.get("alpha"))):
            left_out += 1
            continue
        scores, id = scores_of(event), event.get("query") or f"event {n_events}"
        none = np.zeros(len(scores), dtype=bool)
        new.setdefault(id, ScoredQuery(scores, none, id=id, group=event.get("group")))
    if not new:
        raise ValueError(
            f"{path} has {n_events} events, none of this calibration; give a log of its filter"
        )
    return New(list(new.values()), left_out)
