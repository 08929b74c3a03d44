"""The log of a filter's events (events.py): JSON lines that several processes append."""

from __future__ import annotations

import glob
import gzip
import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from conformal_retrievers.extras import require
from conformal_retrievers.monitoring.events import EVENT, FIELDS, check_event

LOCK_SECONDS = 1.0  # how long a log waits for others that write or read it

Queries = Literal["hashed", "text", "none"]


@dataclass(frozen=True)
class FilterLog:
    """An append-only file of events, one JSON object a line, that processes and threads may share.

    A file that would grow beyond `max_bytes` is renamed to <name>.1, the older ones to <name>.2 and
    so on, and of these the `backups` newest stay. `queries` says what is kept of a query: the start
    of its SHA-256 ("hashed"), its text, or nothing. Raises ValueError for other values, for a
    folder and for a name that ends in .gz, and ModuleNotFoundError without the extra `log`.
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
        if self.path.is_dir():
            raise ValueError(f"path is {str(self.path)!r}, which is a folder; give a file in it")
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
                found = check_event(row, f"{file}, line {number}")
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
