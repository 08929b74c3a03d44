"""What goes into the commands: judged queries (a file, or a BEIR folder), a log, a calibration."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import typer

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_subject
from conformal_retrievers.calibration.subjects import SNIPPETS
from conformal_retrievers.data.beir import read_beir
from conformal_retrievers.data.jsonl import iter_jsonl
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.filtering import Filtered
from conformal_retrievers.monitoring.events import is_event, scores_of
from conformal_retrievers.monitoring.log import read_log
from conformal_retrievers.scoring import Scorer, score_queries


def judged_queries(path: Path, run: str | None, k: int | None) -> Iterable[JudgedQuery]:
    """Return the judged queries of a file, as a stream, or those of a BEIR folder and a run.

    Exits with 2 where a folder comes without a run, or a file with one.
    """
    if path.is_dir():
        if run is None:
            raise typer.BadParameter(
                f"{path} is a folder; say with --run FILE what a retriever found in it"
            )
        return _some(path, read_beir(path, run, k=k))
    if run is not None or k is not None:
        raise typer.BadParameter(
            f"{path} is a file, which holds what was retrieved; --run and --k are for BEIR folders"
        )
    return _some(path, iter_jsonl(path))


def _some(path: Path, queries: Iterable[JudgedQuery]) -> Iterator[JudgedQuery]:
    none = True
    for query in queries:
        none = False
        yield query
    if none:
        raise ValueError(f"{path} holds no query; give a file with a judged query on each line")


def depth_of(calibration: Calibration, run: str | None, k: int | None) -> int | None:
    """Return how many snippets of a run count: what is asked for, or what was calibrated with."""
    return calibration.k if k is None and run is not None else k


def calibration_of_snippets(path: Path) -> Calibration:
    """Read a calibration of snippets. Raises ValueError for one of another subject."""
    calibration = Calibration.load(path)
    check_subject(calibration.subject, SNIPPETS)
    return calibration


class NewQueries:
    """The queries that a calibration was not made from, read once, and how many it was."""

    why = "that the calibration was made from"

    def __init__(self, judged: Iterable[JudgedQuery], calibration: Calibration) -> None:
        self.judged = judged
        self.known = calibration.ids
        self.left_out = 0

    def __iter__(self) -> Iterator[JudgedQuery]:
        some = False
        for query in self.judged:
            if query.id in self.known:
                self.left_out += 1
                continue
            some = True
            yield query
        if self.left_out and not some:
            raise ValueError(
                f"all {self.left_out} queries are those that the calibration was made from, by id; "
                "evaluate on others, or calibrate with --hold-out 0.5 and evaluate on the rest"
            )


def reference_queries(
    path: Path | None, run: str | None, k: int | None, calibration: Calibration
) -> list[JudgedQuery] | None:
    """Return those queries of a file that the calibration was made from, None without a file.

    All of them where the calibration knows no id. Raises ValueError where it knows none of these.
    """
    if path is None:
        return None
    known, given = calibration.ids, list(judged_queries(path, run if path.is_dir() else None, k))
    own = [query for query in given if query.id in known] if known else given
    if not own:
        raise ValueError(
            f"{path}: the calibration was made from none of its {len(given)} queries, by id; give "
            "as --reference the file that it was made from"
        )
    return own


class LoggedQueries:
    """What a filter decided with a calibration, from its log, and how often with another one.

    A query that is filtered again, as by an agent that retries, is not another one: the first time
    counts, and how many came again is counted. Of a log without queries nobody can tell.
    """

    why = "filtered with another calibration"

    def __init__(self, path: Path, calibration: Calibration) -> None:
        self.path = path
        self.calibration = calibration
        self._checksums: dict[float, str | None] = {calibration.alpha: calibration.checksum}
        self.left_out = self.repeated = 0

    def __iter__(self) -> Iterator[Filtered]:
        some = False
        seen: set[str] = set()
        for event in read_log(self.path):
            if event["calibration"] != self._checksum_at(event.get("alpha")):
                self.left_out += 1
                continue
            some = True
            if (query := event.get("query")) is not None:
                if query in seen:
                    self.repeated += 1
                    continue
                seen.add(query)
            scores, group = scores_of(event), event.get("group")
            keeps = self.calibration.keep(scores, group)
            yield Filtered(scores, keeps, self.calibration, group)
        if not some and not self.left_out:
            raise ValueError(f"{self.path} holds no query that was filtered; filter some first")
        if not some:
            queries = "query" if self.left_out == 1 else "queries"
            raise ValueError(
                f"{self.path}: none of its {self.left_out} {queries} was filtered with this "
                "calibration; give the one whose checksum is in the log's field 'calibration'"
            )

    def _checksum_at(self, alpha: object) -> str | None:
        """Return what the calibration is called at the alpha of an event, which may be its own.

        None where it cannot be had at this alpha: the event is another calibration's.
        """
        if not isinstance(alpha, float) or not 0 < alpha < 1:
            return self.calibration.checksum
        if alpha not in self._checksums:
            try:
                self._checksums[alpha] = self.calibration.at(alpha).checksum
            except ValueError:  # too few queries for delta at this alpha
                self._checksums[alpha] = None
        return self._checksums[alpha]


def is_filter_log(path: Path) -> bool:
    """Return whether a file's first line is an event of a filter, by whatever name it is given.

    A pipe is none: what is read from it is gone.
    """
    if not path.is_file():
        return False
    try:
        with path.open(encoding="utf-8") as file:
            first = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):  # whoever reads it says what is the matter
        return False
    return is_event(first)


def scored(scorer: Scorer, queries: Iterable[JudgedQuery]) -> Iterator[ScoredQuery]:
    """Yield the queries scored, one by one, so that no text is held any longer."""
    for query in queries:
        yield from score_queries(scorer, [query])
