"""The filter log: events as JSON lines that many processes append, and what handlers do with one.

The callbacks of both frameworks hand each event (events.py) to an `Observer`, which counts m1 and
m2 for each calibration and appends the event to a `FilterLog`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from conformal_retrievers.monitoring.events import CLAIMS_EVENT, EVENT, MODELS, check_event
from conformal_retrievers.monitoring.monitor import Counts

logger = logging.getLogger("conformal_retrievers")

Queries = Literal["hashed", "text", "none"]


@dataclass(frozen=True)
class FilterLog:
    """An append-only file of events, one JSON object a line, that processes and threads may share.

    The file is opened for each event, so that a host may rotate it at any time: once it is renamed,
    the next event begins a new file. `queries` chooses what is stored of a query: the start of its
    SHA-256 ("hashed"), its text ("text") or nothing ("none"). Raises ValueError for other values,
    and for a path that is a folder or ends in .gz.
    """

    path: Path
    queries: Queries = field(default="hashed", kw_only=True)

    def __post_init__(self) -> None:
        # Absolute, because a process may change its working directory.
        object.__setattr__(self, "path", Path(self.path).absolute())
        if self.path.suffix == ".gz":
            raise ValueError(
                f"path is {str(self.path)!r}, but events are appended as plain text; give a name "
                "without .gz"
            )
        if self.path.is_dir():
            raise ValueError(f"path is {str(self.path)!r}, which is a folder; give a file in it")
        if self.queries not in ("hashed", "text", "none"):
            raise ValueError(f"queries is {self.queries!r}; give 'hashed', 'text' or 'none'")

    def append(self, event: Mapping[str, Any]) -> None:
        """Append one event with a single write; raise OSError if that fails."""
        row = {**event, "query": self._query(event.get("query"))}
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
        # A lone surrogate becomes the escape \\udxxx, which JSON reads as the same character.
        line = text.encode("utf-8", "backslashreplace") + b"\n"
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if os.lseek(file, 0, os.SEEK_END):
                os.lseek(file, -1, os.SEEK_END)
                if os.read(file, 1) != b"\n":  # a process was killed while it wrote the last line
                    line = b"\n" + line
            if os.write(file, line) < len(line):
                raise OSError(f"{self.path}: the disk took only part of an event")
        finally:
            os.close(file)

    def _query(self, query: str | None) -> str | None:
        if query is None or self.queries == "none":
            return None
        if self.queries == "text":
            return query
        return hashlib.sha256(query.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class Observer:
    """Counts events by calibration, reports them to `logging` and appends them to a log.

    Threads may share one. An error of the log does not stop retrieval: the first is logged, and so
    is the next one after an event was written again. Raises TypeError unless `log` is a `FilterLog`
    or None.
    """

    def __init__(self, log: FilterLog | None = None) -> None:
        if log is not None and not isinstance(log, FilterLog):
            path = str(log) if isinstance(log, (str, os.PathLike)) else "filter.jsonl"
            raise TypeError(f"log is {log!r:.80}; give FilterLog({path!r})")
        self.log = log
        self._counts: dict[str, Counts] = {}
        self._lock = threading.Lock()
        self._log_fails = False

    @property
    def counts(self) -> Mapping[str, Counts]:
        """The counts so far, by the checksum of the calibration."""
        with self._lock:
            return dict(self._counts)

    def observe(self, event: Mapping[str, Any]) -> None:
        """Count, report and log one event of either kind.

        Of claims, m1 counts whether any claim of an answer is kept, and m2 is the share kept.
        """
        k, kept = event["k"], len(event["kept"])
        of_claims = event["event"] == CLAIMS_EVENT
        one = Counts(
            queries=1,
            snippets=k,
            kept=kept,
            unscorable=len(event["unscorable"]),
            with_kept=int(kept > 0 if of_claims else event["m1"]),
            share_kept=kept / max(k, 1) if of_claims else event["m2"],
        )
        with self._lock:
            total = self._counts.get(event["calibration"], Counts()) + one
            self._counts[event["calibration"]] = total
        items = "claims" if of_claims else "snippets"
        text = "kept %d of %d %s (m1 %.3f, m2 %.3f over %d queries)"
        logger.info(text, kept, k, items, total.m1, total.m2, total.queries)
        if one.unscorable:
            logger.warning("%d of %d %s could not be scored", one.unscorable, k, items)
        if event.get("undivided") is not None:
            logger.warning("an answer could not be divided into claims: %s", event["undivided"])
        if self.log is not None:
            self._append(self.log, event)

    def _append(self, log: FilterLog, event: Mapping[str, Any]) -> None:
        failed = self._log_fails
        try:
            log.append(event)
            self._log_fails = False
        except Exception:
            self._log_fails = True
            if not failed:
                logger.exception("the filter log %s cannot be written; events are lost", log.path)


def read_log(path: str | Path, *, event: str = EVENT) -> Iterator[dict[str, Any]]:
    """Yield the events of a log, oldest first, including those of its rotated files.

    Rotated files have logrotate's names: `path` with .1, .2 … (the higher, the older) or a date
    such as -20260131 appended, with or without .gz. All are opened at the start. A log may hold
    events of both kinds: `event` selects "conformal_filter" or "conformal_claims". Lines that are
    not JSON, such as one that a killed process left incomplete, are skipped and counted in a
    UserWarning.

    Raises ValueError for an unknown `event`, for a log without a valid line, for an incomplete .gz
    file and, naming file, line and field, for JSON that is not an event of a known version;
    FileNotFoundError if there is no log.
    """
    if event not in MODELS:
        raise ValueError(f"event is {event!r}; give one of {', '.join(map(repr, MODELS))}")
    good, bad = 0, []
    with ExitStack() as stack:
        files = [(file, stack.enter_context(_open(file))) for file in _files(Path(path))]
        for file, opened in files:
            for number, line in _lines(file, opened):
                where = f"{file}, line {number}"
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
                    bad.append(where)
                    continue
                found = check_event(row, where)
                good += 1
                if found["event"] == event:
                    yield found
    if bad and not good:
        raise ValueError(f"{bad[0]} is not JSON, and neither is any other line; give a filter log")
    if bad:
        text = f"skipped {len(bad)} lines that are not JSON: {'; '.join(bad[:5])}"
        warnings.warn(text, UserWarning, stacklevel=2)


def _files(path: Path) -> list[Path]:
    """Return a log and its rotated files, the oldest first."""
    rotated = []
    pattern = re.compile(re.escape(path.name) + r"([.-])(\d+)(\.gz)?")
    for file in path.parent.iterdir() if path.parent.is_dir() else ():
        if match := pattern.fullmatch(file.name):
            number = int(match[2])
            rotated.append((-number if match[1] == "." else number, file))
    return [*(file for _, file in sorted(rotated)), path]


def _open(file: Path) -> IO[bytes]:
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")  # type: ignore[return-value]


def _lines(file: Path, opened: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers."""
    try:
        for number, line in enumerate(opened, start=1):
            if line.strip():
                yield number, line
    except (EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{file} is not a complete gzip file: {error}") from None
