"""What a filter did, as an event, and the log of events: JSON lines that several processes append.

Both frameworks' callbacks carry the event of `event_of`, and their handlers hand it to an
`Observer`, which counts m1 and m2 for each calibration, says it to `logging`, and appends it to a
`FilterLog`. An event holds no text of snippets; a query enters a log as its hash unless asked
otherwise.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import json
import logging
import math
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any, Literal, TypeGuard

import numpy as np

from conformal_retrievers.extras import require
from conformal_retrievers.filtering import Filtered
from conformal_retrievers.monitor import Counts

EVENT = "conformal_filter"  # the name of the event and of the run that it belongs to
CLAIMS_EVENT = "conformal_claims"  # that of claims/events.py
VERSION = 1
FIELDS = {  # what a reader of either event can rely on
    EVENT: {"calibration", "k", "kept", "scores", "m1", "m2"},
    CLAIMS_EVENT: {"calibration", "k", "kept", "relevance"},
}

LOCK_SECONDS = 1.0  # how long a log waits for others that write or read it
HELD_SECONDS = 0.01  # and an observer, once it lost an event: others write within less

Queries = Literal["hashed", "text", "none"]
logger = logging.getLogger("conformal_retrievers")


def event_of(filtered: Filtered, *, query: str | None = None) -> dict[str, Any]:
    """Return what a filter decided about one query, as plain JSON values.

    `scores` are in the retriever's order, None where a snippet could not be scored and "inf" where
    the scorer dropped it; `threshold` is "keep_all" where everything is kept.
    """
    calibration = filtered.calibration
    return {
        "event": EVENT,
        "version": VERSION,
        "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "calibration": calibration.checksum,
        "scorer": calibration.scorer,
        "guarantee": calibration.guarantee,
        "alpha": calibration.alpha,
        "group": filtered.group,
        "query": query,
        "k": len(filtered.scores),
        "kept": filtered.kept.tolist(),
        "unscorable": filtered.unscorable.tolist(),
        "threshold": plain_number(filtered.threshold, "keep_all"),
        "scores": [plain_number(score, "inf") for score in filtered.scores.tolist()],
        "m1": filtered.m1,
        "m2": filtered.m2,
        "explore": filtered.explore,
    }


def note_on_span(filtered: Filtered) -> None:
    """Write what was decided onto OpenTelemetry's current span, see `set_on_span`.

    Where OpenTelemetry was never loaded there is no span, and nothing is loaded for it.
    """
    set_on_span(
        EVENT,
        lambda: {
            "conformal.calibration": filtered.calibration.checksum,
            "conformal.guarantee": filtered.calibration.guarantee,
            "conformal.alpha": filtered.calibration.alpha,
            "conformal.threshold": filtered.threshold,
            "conformal.k": len(filtered.scores),
            "conformal.kept": len(filtered.kept),
            "conformal.unscorable": len(filtered.unscorable),
            "conformal.m1": filtered.m1,
            "conformal.m2": filtered.m2,
        },
    )


def set_on_span(event: str, attributes: Callable[[], Mapping[str, str | bool | float]]) -> None:
    """Write attributes onto OpenTelemetry's current span, if there is one, and into an event on it.

    A span keeps 128 attributes, the newest: an instrumentor that writes some for each node when the
    span ends leaves none of these, but the event keeps its own.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None and (span := trace.get_current_span()).is_recording():
        written = attributes()
        span.set_attributes(written)
        span.add_event(event, written)


def scores_of(event: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the scores (n,) of an event as floats, NaN where a snippet could not be scored."""
    return np.array([math.nan if s is None else float(s) for s in event["scores"]], np.float64)


def plain_number(value: float, infinite: str = "inf") -> float | str | None:
    """Return what JSON can hold: None for NaN, and words for what is infinite."""
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else infinite if value > 0 else "-inf"


# --- the log --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FilterLog:
    """An append-only file of events, one JSON object a line, that processes and threads may share.

    A file that would grow beyond `max_bytes` is renamed to <name>.1, the older ones to <name>.2 and
    so on, and of these the `backups` newest stay. `queries` says what is kept of a query: the start
    of its SHA-256 ("hashed"), its text, or nothing. Raises ValueError for other values and for a
    name that ends in .gz, and ModuleNotFoundError without the extra `log`.
    """

    path: Path
    max_bytes: int = field(default=50_000_000, kw_only=True)
    backups: int = field(default=5, kw_only=True)
    queries: Queries = field(default="hashed", kw_only=True)

    def __post_init__(self) -> None:
        require("log", "filelock")
        # Absolute, as it shall stay one file where the process changes its folder.
        object.__setattr__(self, "path", Path(self.path).absolute())
        if self.path.suffix == ".gz":
            raise ValueError(
                f"path is {str(self.path)!r}, but events are appended as plain text; give a name "
                "without .gz, and compress what was renamed, which can be read so"
            )
        if self.queries not in ("hashed", "text", "none"):
            raise ValueError(f"queries is {self.queries!r}; give 'hashed', 'text' or 'none'")
        for name, least in (("max_bytes", 1), ("backups", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)!r}; give {least} or more")

    def append(self, event: Mapping[str, Any], *, wait: float = LOCK_SECONDS) -> None:
        """Append one event, whole, whoever else does so.

        Raises OSError where the file cannot be written, or others hold its lock for `wait` seconds.
        """
        row = {**event, "query": self._query(event.get("query"))}
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
        # What is no text, a lone surrogate, becomes \\udxxx, which JSON reads as the same again.
        line = text.encode("utf-8", "backslashreplace") + b"\n"
        with _lock(self.path, wait):
            size = self.path.stat().st_size if self.path.exists() else 0
            if size and size + len(line) > self.max_bytes:
                self._rotate()
            elif size and not _ends_a_line(self.path):
                line = b"\n" + line  # whoever wrote the last one was stopped in it
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                written = os.write(file, line)
                while written < len(line):
                    written += os.write(file, line[written:])
            finally:
                os.close(file)

    def _query(self, query: str | None) -> str | None:
        if query is None or self.queries == "none":
            return None
        if self.queries == "text":
            return query
        return hashlib.sha256(query.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def _rotate(self) -> None:
        names = [self.path, *(self._numbered(i) for i in range(1, self.backups + 1))]
        if not self.backups:
            self.path.unlink()
        for older, newer in reversed(list(zip(names[1:], names[:-1], strict=True))):
            if newer.exists():
                os.replace(newer, older)

    def _numbered(self, i: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{i}")


def read_log(path: str | Path, *, event: str = EVENT) -> Iterator[dict[str, Any]]:
    """Yield the events of a log, oldest first, those of renamed older files (<name>.1, …) too.

    It is the log as it is when the first event is asked for, whoever writes on. A log may hold
    events of both kinds: `event` says which are yielded, "conformal_filter" or "conformal_claims".
    Lines that are no JSON, as a process that is killed leaves them, are skipped and counted in a
    UserWarning. Raises ValueError for another `event`, for a log of such lines only, and, naming
    the file, line and field, for what is no event of a version that is known, or has a value that
    no event has; OSError where the log cannot be read, FileNotFoundError where there is none.
    """
    if event not in FIELDS:
        raise ValueError(f"event is {event!r}; give one of {', '.join(map(repr, FIELDS))}")
    path = Path(path)
    good, bad = 0, []
    with ExitStack() as stack:
        with _lock(path) if os.access(f"{path}.lock", os.W_OK) else nullcontext():
            files = [(file, *_open(file, stack)) for file in _files(path)]
        for file, opened, size in files:
            for number, line in _lines(file, opened, size):
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):  # UnicodeDecodeError, too; lists without end
                    bad.append(f"{file}, line {number}")
                    continue
                found = _checked(row, f"{file}, line {number}")
                good += 1
                if found["event"] == event:
                    yield found
    if bad and not good:
        raise ValueError(f"{bad[0]} is no JSON, nor is any other line; give a filter log")
    if bad:
        many = (
            f"{len(bad)} lines are no JSON and were"
            if len(bad) > 1
            else "a line is no JSON and was"
        )
        warnings.warn(f"{many} skipped: {'; '.join(bad[:5])}", UserWarning, stacklevel=2)


def _lock(path: Path, wait: float = LOCK_SECONDS) -> AbstractContextManager[object]:
    """Return the lock of a log; whoever enters it gets an OSError if others hold it too long."""
    require("log", "filelock")
    from filelock import FileLock

    return FileLock(f"{path}.lock", timeout=wait, poll_interval=0.002)


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _files(path: Path) -> list[Path]:
    older = sorted(
        (int(p.suffix[1:]), p)
        for p in path.parent.glob(f"{glob.escape(path.name)}.*")
        if p.suffix[1:].isdigit() and p.stem == path.name
    )
    return [*(p for _, p in reversed(older)), path]


def _open(file: Path, stack: ExitStack) -> tuple[IO[bytes], float]:
    """Return an open file, which stays the same if it is renamed, and its size, uncompressed."""
    if file.suffix == ".gz":
        return stack.enter_context(gzip.open(file)), math.inf  # type: ignore[arg-type]
    opened = stack.enter_context(file.open("rb"))
    return opened, os.fstat(opened.fileno()).st_size


def _lines(file: Path, opened: IO[bytes], size: float) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of an open file that are not blank, with their numbers, up to a size."""
    read = 0
    try:
        for number, line in enumerate(opened, start=1):
            read += len(line)
            if read > size:
                return
            if line.strip():
                yield number, line
    except (EOFError, gzip.BadGzipFile) as error:  # the last is an OSError
        raise ValueError(f"{file} is no complete compressed text: {error}") from None


def _checked(event: Any, where: str) -> dict[str, Any]:
    if not is_event(event):
        raise ValueError(f"{where}: its field 'event' is not {EVENT!r}; give a filter log")
    if event.get("version") != VERSION:
        raise ValueError(
            f"{where} has version {event.get('version')!r}, but this library reads version "
            f"{VERSION}; upgrade conformal-retrievers"
        )
    missing = sorted(FIELDS[event["event"]] - set(event))
    if missing:
        raise ValueError(f"{where}: its field {missing[0]!r} is missing; remove the line")
    for name, (fits, what) in VALUES.items():
        if name in event and not fits(event[name]):
            raise ValueError(
                f"{where}: its field {name!r} is {event[name]!r:.80}; give {what}, or remove the "
                "line"
            )
    return event


def is_event(row: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a row of JSON says that it is an event, of a filter of either kind."""
    kind = row.get("event") if isinstance(row, dict) else None
    return isinstance(kind, str) and kind in FIELDS


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_text_or_null(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _are_scores(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_score, value))


def _is_score(value: object) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return value is None or isinstance(value, float) or value in ("inf", "-inf")


SCORES = 'a list of numbers, null, "inf" or "-inf"'
VALUES: Mapping[str, tuple[Callable[[object], bool], str]] = {  # what readers of events rely on
    "calibration": (_is_text, "the checksum of a calibration"),
    "query": (_is_text_or_null, "a text, or null"),
    "group": (_is_text_or_null, "a text, or null"),
    "k": (_is_count, "a number of snippets"),
    "kept": (_are_counts, "a list of positions"),
    "scores": (_are_scores, SCORES),
    "relevance": (_are_scores, SCORES),
}


# --- what a handler does with events --------------------------------------------------------------


class Observer:
    """Takes in events: counts them by calibration, says them to `logging`, and writes the log.

    Raises TypeError for a log that is no `FilterLog`, such as a path.

    It may be shared by threads, which write the log in turn. Nothing that goes wrong with the log
    gets in the way of retrieval: it is said once to `logging`, as an error, and when the log can be
    written again, how many events were lost, which `lost` says meanwhile. Where another process
    holds the log's lock, an event waits for it a second at most; once one was lost, a hundredth of
    that, until one is written.
    """

    def __init__(self, log: FilterLog | None = None) -> None:
        if log is not None and not isinstance(log, FilterLog):
            path = str(log) if isinstance(log, (str, os.PathLike)) else "filter.jsonl"
            raise TypeError(f"log is {log!r:.80}; give FilterLog({path!r})")
        self.log = log
        self._counts: dict[str, Counts] = {}
        self._lock = threading.Lock()
        self._turn = threading.RLock()  # not Lock: what `logging` is told in it may lead here again
        self.lost = 0

    @property
    def counts(self) -> Mapping[str, Counts]:
        """What was counted so far, by the checksum of the calibration: m1, m2 and more."""
        with self._lock:
            return dict(self._counts)

    def observe(self, event: Mapping[str, Any]) -> None:
        """Take in one event of `event_of`, or of that of claims/events.py.

        Of an answer's claims, m1 counts whether any is kept, and m2 the share that is.
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
        things = "claims" if of_claims else "snippets"
        with self._lock:
            total = self._counts.get(event["calibration"], Counts()) + one
            self._counts[event["calibration"]] = total
        logger.info(
            "kept %d of %d %s (m1 %.3f, m2 %.3f over %d queries)",
            one.kept,
            one.snippets,
            things,
            total.m1,
            total.m2,
            total.queries,
        )
        if one.unscorable:
            logger.warning("%d of %d %s could not be scored", one.unscorable, one.snippets, things)
        if event.get("undivided") is not None:
            logger.warning("an answer could not be divided into claims: %s", event["undivided"])
        if self.log is not None:
            self._append(self.log, event)

    def _append(self, log: FilterLog, event: Mapping[str, Any]) -> None:
        # In turn, since the log's own lock is polled for: of many threads some would wait in vain.
        with self._turn:
            try:
                log.append(event, wait=HELD_SECONDS if self.lost else LOCK_SECONDS)
            except Exception:  # retrieval goes on, whatever is the matter with the log
                self.lost += 1
                if self.lost == 1:
                    logger.exception(
                        "the filter log %s cannot be written; events are lost", log.path
                    )
            else:
                if self.lost:
                    logger.error(
                        "the filter log %s is written again; events lost: %d", log.path, self.lost
                    )
                self.lost = 0
