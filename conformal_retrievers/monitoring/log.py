"""The filter log: events as JSON lines that many processes append, and what handlers do with it."""

import glob
import gzip
import json
import logging
import os
import re
import stat
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, get_args

from conformal_retrievers.data import files
from conformal_retrievers.monitoring.events import CLAIMS_EVENT, EVENT, check_event, is_silent
from conformal_retrievers.monitoring.status import Counts
from conformal_retrievers.scoring.scorer import query_digest
from conformal_retrievers.theory.intervals import percent

logger = logging.getLogger("conformal_retrievers")

Queries = Literal["hashed", "text", "none"]
LAST = 10**5  # number of a rotated file: what is higher is a date, at least of a month


@dataclass(frozen=True, init=False)
class FilterLog:
    """An append-only file of events, one JSON object a line, that processes and threads may share.

    The file is opened for each event, so that a host may rotate it at any time: once it is renamed,
    the next event begins a new file. It may also be a pipe, such as /dev/stdout, or a FIFO. Many
    writers may leave a few blank lines, which readers skip. `queries` chooses what is stored of a
    query: the start of its SHA-256 ("hashed"), its text ("text") or nothing ("none"). The hash is
    the same whatever a query's case and white space, as in calibrations.
    """

    path: Path
    queries: Queries

    def __init__(self, path: str | Path, *, queries: Queries = "hashed") -> None:
        if queries not in get_args(Queries):
            raise ValueError(f"queries is {queries!r}; give one of {get_args(Queries)}")
        # Absolute, because a process may change its working directory.
        object.__setattr__(self, "path", Path(path).absolute())
        object.__setattr__(self, "queries", queries)

    def append(self, event: Mapping[str, Any]) -> None:
        """Append one event with a single write; raise OSError if that fails."""
        row = {**event, "query": self._query(event.get("query"))}
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
        # A lone surrogate becomes the escape \\udxxx, which JSON reads as the same character.
        line = text.encode("utf-8", "backslashreplace") + b"\n"
        # A FIFO without a reader raises OSError at once, instead of stopping the caller.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
        flags |= getattr(os, "O_BINARY", 0)  # on Windows, where a line would end in two bytes
        file = os.open(self.path, flags, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                os.set_blocking(file, True)
                self._write(file, line)
            elif self._continues_a_line(file, os.lseek(file, 0, os.SEEK_END)):
                self._write(file, b"\n" + line)  # a process was killed while it wrote
            else:
                self._write(file, line)
                if self._continues_a_line(file, os.lseek(file, 0, os.SEEK_CUR) - len(line)):
                    self._write(file, line)  # again: it was killed in the meantime
        finally:
            os.close(file)

    def _write(self, file: int, line: bytes) -> None:
        if os.write(file, line) < len(line):
            raise OSError(f"{self.path}: the disk took only part of an event")

    def _continues_a_line(self, file: int, start: int) -> bool:
        """Return whether what starts at a place of the open file is not on a line of its own."""
        try:
            with self.path.open("rb", buffering=0) as same:
                same.seek(start - 1)  # OSError if the file is empty, as if it cannot be read
                return os.path.sameopenfile(same.fileno(), file) and same.read(1) != b"\n"
        except OSError:
            return False

    def _query(self, query: str | None) -> str | None:
        if query is None or self.queries == "none":
            return None
        return query if self.queries == "text" else query_digest(query)


class Observer:
    """Counts events by calibration, reports them to `logging` and appends them to a log.

    Threads may share an observer. An error of the log does not stop retrieval: the first is logged,
    and so is the next one after an event was written again.
    """

    def __init__(self, log: FilterLog | None = None) -> None:
        if log is not None and not isinstance(log, FilterLog):
            raise TypeError(f"log is {log!r:.80}; give FilterLog(path)")
        self.log = log
        self._counts: dict[str, Counts] = {}
        self._lock = threading.Lock()
        self._log_fails = False

    @property
    def counts(self) -> Mapping[str, Counts]:
        """The counts so far, by the checksum of the calibration."""
        return dict(self._counts)

    def observe(self, event: Mapping[str, Any]) -> None:
        """Count, report and log one event of either kind."""
        k, kept = event["k"], len(event["kept"])
        of_claims = event["event"] == CLAIMS_EVENT
        counts = Counts.of_query(k, kept, len(event["unscorable"]), is_silent(event))
        if not of_claims:  # a snippet that on_empty keeps is in `kept`, but not in m1 and m2
            counts = replace(counts, with_kept=int(event["m1"]), share_kept=event["m2"])
        with self._lock:
            total = self._counts.get(event["calibration"], Counts()) + counts
            self._counts[event["calibration"]] = total
        items = "claims" if of_claims else "sentences" if event.get("split") else "snippets"
        shadow = " (in shadow)" if event.get("shadow") else ""
        text = (
            f"kept %d of %d {items}{shadow}; so far %s of %d queries kept a {items[:-1]}, and a "
            f"query kept %s of its {items} on average%s"
        )
        silent = f"; {total.silent} queries were silenced" if total.silent else ""
        m1, m2 = percent(total.m1), percent(total.m2)
        logger.info(text, kept, k, m1, total.queries, m2, silent)
        if counts.unscorable:
            logger.warning("%d of %d %s could not be scored", counts.unscorable, k, items)
        if failed := event.get("failed_retrievers"):
            logger.warning("filtered without the retrievers that failed: %s", ", ".join(failed))
        if event.get("undivided") is not None:
            logger.warning("an answer could not be divided into claims: %s", event["undivided"])
        if self.log is None:
            return
        try:
            self.log.append(event)
            self._log_fails = False
        except Exception:
            if not self._log_fails:
                logger.exception("cannot write the filter log %s; events are lost", self.log.path)
            self._log_fails = True


def read_log(path: str | Path, *, event: str = EVENT) -> Iterator[dict[str, Any]]:
    """Yield the events of a log, oldest first, including those of its rotated files.

    Rotated files have the names of logrotate, or of Python's handlers: `path` with .1, .2 … (the
    higher, the older) or a date such as -20260131 or .2026-01-31 appended, with or without .gz.
    Warns of others that begin so. All are opened at the start. `event` selects
    "conformal_filter" or "conformal_claims". Lines that are no event, such as one that a killed
    process left incomplete, or what others write to the same stream, are skipped and counted in a
    UserWarning.

    Raises ValueError for another `event`, for a log of lines that are no events and, naming file,
    line and field, for an event of another version, or with a field that is invalid;
    FileNotFoundError if there is no log.
    """
    if event not in (EVENT, CLAIMS_EVENT):
        raise ValueError(f"event is {event!r:.60}; give {EVENT!r} or {CLAIMS_EVENT!r}")
    good, n_bad, first = 0, 0, []
    with ExitStack() as stack:
        for file, opened in [(f, stack.enter_context(_open(f))) for f in _files(Path(path))]:
            for number, line in enumerate(_lines(file, opened), start=1):
                if line.isspace():
                    continue
                where = f"{file}, line {number}"
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
                    row = None
                if (checked := check_event(row, where)) is None:
                    n_bad += 1
                    first += [where] * (n_bad <= 5)  # most lines may be of others
                    continue
                good += 1
                if checked["event"] == event:
                    yield checked
    if first and not good:
        raise ValueError(f"{first[0]} is not an event, nor is any other line; give a filter log")
    if first:
        text = f"skipped {n_bad} of {good + n_bad} lines, which are not events: "
        warnings.warn(text + "; ".join(first), UserWarning, stacklevel=2)


def _files(path: Path) -> list[Path]:
    """Return a log and its rotated files, the oldest first."""
    rotated = []
    pattern = re.compile(re.escape(path.name) + r"[.-](\d[\d_-]*)(\.gz)?")
    name, stem, end = map(glob.escape, (path.name, path.stem, path.suffix))
    begun_so = (f"{name}[.-][0-9]*", f"{stem}[.-][0-9][0-9][0-9][0-9]*{end}*")
    beside = {file for begins in begun_so for file in path.parent.glob(begins)}
    for file in beside:
        if match := pattern.fullmatch(file.name):
            digits = re.sub(r"\D", "", match[1])
            rotated.append((digits if int(digits) > LAST else "", -int(digits), file))
    if unread := sorted(beside - {file for *_, file in rotated}):
        text = f"files such as {unread[0]} are not read ({len(unread)} in all); those of this log"
        warnings.warn(f"{text} need names such as {path.name}.1, unpacked or .gz", stacklevel=3)
    oldest_first = [file for *_, file in sorted(rotated)]
    # There may be none since it was rotated.
    return [*oldest_first, path] if path.exists() or not rotated else oldest_first


def _lines(file: Path, opened: BinaryIO) -> Iterator[bytes]:
    try:
        yield from opened
    except files.DAMAGED as error:
        text = f"{file} is not a complete .gz file: {error}; give it what it lacks, or move it away"
        raise ValueError(text) from None


def _open(file: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(file)) if file.suffix == ".gz" else file.open("rb")
