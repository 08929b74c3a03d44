"""What a filter did, as an event, and the log of events: JSON lines that several processes append.

Both frameworks' callbacks carry the event of `event_of`, and their handlers hand it to an
`Observer`, which counts m1 and m2 for each calibration, says it to `logging`, and appends it to a
`FilterLog`. An event holds no text of snippets; a query enters a log as its hash unless asked
otherwise.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import numpy as np

from conformal_retrievers.extras import require
from conformal_retrievers.filtering import Filtered
from conformal_retrievers.judged import numbered_lines
from conformal_retrievers.monitor import Counts

EVENT = "conformal_filter"  # the name of the event and of the run that it belongs to
VERSION = 1

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
        "threshold": _number(filtered.threshold, "keep_all"),
        "scores": [_number(score, "inf") for score in filtered.scores.tolist()],
        "m1": filtered.m1,
        "m2": filtered.m2,
        "explore": filtered.explore,
    }


def note_on_span(filtered: Filtered) -> None:
    """Write what was decided onto OpenTelemetry's current span, as conformal.* attributes.

    Where OpenTelemetry was never loaded there is no span, and nothing is loaded for it.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return
    span = trace.get_current_span()
    if not span.is_recording():
        return
    span.set_attributes(
        {
            "conformal.calibration": filtered.calibration.checksum,
            "conformal.guarantee": filtered.calibration.guarantee,
            "conformal.alpha": filtered.calibration.alpha,
            "conformal.threshold": filtered.threshold,
            "conformal.k": len(filtered.scores),
            "conformal.kept": len(filtered.kept),
            "conformal.unscorable": len(filtered.unscorable),
            "conformal.m1": filtered.m1,
            "conformal.m2": filtered.m2,
        }
    )


def scores_of(event: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the scores (n,) of an event as floats, NaN where a snippet could not be scored."""
    return np.array([math.nan if s is None else float(s) for s in event["scores"]], np.float64)


def _number(value: float, infinite: str) -> float | str | None:
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else infinite if value > 0 else "-inf"


# --- the log --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FilterLog:
    """An append-only file of events, one JSON object a line, that processes and threads may share.

    A file that would grow beyond `max_bytes` is renamed to <name>.1, the older ones to <name>.2 and
    so on, and of these the `backups` newest stay. `queries` says what is kept of a query: the start
    of its SHA-256 ("hashed"), its text, or nothing. Raises ValueError for other values.
    """

    path: Path
    max_bytes: int = field(default=50_000_000, kw_only=True)
    backups: int = field(default=5, kw_only=True)
    queries: Queries = field(default="hashed", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if self.queries not in ("hashed", "text", "none"):
            raise ValueError(f"queries is {self.queries!r}; give 'hashed', 'text' or 'none'")
        for name, least in (("max_bytes", 1), ("backups", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)!r}; give {least} or more")

    def append(self, event: Mapping[str, Any]) -> None:
        """Append one event, whole, whoever else does so.

        Raises OSError where the file cannot be written.
        """
        require("log", "filelock")
        from filelock import FileLock

        row = {**event, "query": self._query(event.get("query"))}
        line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
        with FileLock(f"{self.path}.lock"):
            size = self.path.stat().st_size if self.path.exists() else 0
            if size and size + len(line) > self.max_bytes:
                self._rotate()
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


def read_log(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a log, oldest first, those of renamed older files (<name>.1, …) too.

    Raises ValueError, naming the file, line and field, for a line that is no event of a version
    that is known, and FileNotFoundError where there is no log.
    """
    path = Path(path)
    older = sorted(
        (int(p.suffix[1:]), p)
        for p in path.parent.glob(f"{path.name}.*")
        if p.suffix[1:].isdigit() and p.stem == path.name
    )
    for file in [*(p for _, p in reversed(older)), path]:
        for number, line in numbered_lines(file):
            yield _checked(line, f"{file}, line {number}")


def _checked(line: str, where: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where} is no JSON ({error}); remove the line") from None
    if not isinstance(event, dict) or event.get("event") != EVENT:
        raise ValueError(f"{where}: its field 'event' is not {EVENT!r}; give a filter log")
    if event.get("version") != VERSION:
        raise ValueError(
            f"{where} has version {event.get('version')!r}, but this library reads version "
            f"{VERSION}; upgrade conformal-retrievers"
        )
    missing = sorted({"calibration", "k", "kept", "scores", "m1", "m2"} - set(event))
    if missing:
        raise ValueError(f"{where}: its field {missing[0]!r} is missing; remove the line")
    return event


# --- what a handler does with events --------------------------------------------------------------


class Observer:
    """Takes in events: counts them by calibration, says them to `logging`, and writes the log.

    It may be shared by threads. Nothing that goes wrong with the log gets in the way of retrieval:
    it is said once to `logging`, as an error.
    """

    def __init__(self, log: FilterLog | None = None) -> None:
        self.log = log
        self._counts: dict[str, Counts] = {}
        self._lock = threading.Lock()
        self._log_failed = False

    @property
    def counts(self) -> Mapping[str, Counts]:
        """What was counted so far, by the checksum of the calibration: m1, m2 and more."""
        with self._lock:
            return dict(self._counts)

    def observe(self, event: Mapping[str, Any]) -> None:
        """Take in one event of `event_of`."""
        one = Counts(
            queries=1,
            snippets=event["k"],
            kept=len(event["kept"]),
            unscorable=len(event["unscorable"]),
            with_kept=int(event["m1"]),
            share_kept=event["m2"],
        )
        with self._lock:
            total = self._counts.get(event["calibration"], Counts()) + one
            self._counts[event["calibration"]] = total
        logger.info(
            "kept %d of %d snippets (m1 %.3f, m2 %.3f over %d queries)",
            one.kept,
            one.snippets,
            total.m1,
            total.m2,
            total.queries,
        )
        if one.unscorable:
            logger.warning("%d of %d snippets could not be scored", one.unscorable, one.snippets)
        if self.log is not None:
            self._append(self.log, event)

    def _append(self, log: FilterLog, event: Mapping[str, Any]) -> None:
        try:
            log.append(event)
        except OSError:
            if not self._log_failed:
                logger.exception("the filter log %s cannot be written; events are lost", log.path)
            self._log_failed = True
