"""A cache of an LLM's replies in one SQLite file.

Each is stored under a SHA-256 of model and request; the file contains no queries and no snippets.
"""

import hashlib
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeVar

logger = logging.getLogger("conformal_retrievers")

APPLICATION = 0x636F6E66  # "conf": the application id in the header of the SQLite file
VERSION = 2
HEADER = b"SQLite format 3\0"
SECONDS = 0.5  # to wait for another process that writes; an operation waits at most twice
TABLE = "CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID"

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]


@dataclass(frozen=True)
class Cache:
    """Replies that were paid for once, in the file at `path`.

    Threads and processes may share it: it has a write-ahead log, and every operation opens it for
    itself. A killed writer loses at most the values that it was writing. A broken database is
    renamed to `<path>.corrupt-<time>`, and a new one is created. While the file cannot be used
    (locked, on a full disk, deleted with its folder), nothing is found or stored. Both are logged.

    A new `Cache` raises ValueError if the file is no SQLite database, or belongs to another program
    or version, and OSError if it cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = Cache(Path(folder) / "cache.db")
    ...     cache.add_replies("model", {"one request": "yes"})
    ...     cache.replies("model", ["one request", "another"])
    ['yes', None]
    """

    path: Path

    def __init__(self, path: str | Path) -> None:
        object.__setattr__(self, "path", Path(path).absolute())  # whatever folder is entered later
        # Writes to the file: a fault shows before the first reply is paid for.
        with _LOCK, suppress(TimeoutError):  # a lock is not a fault of the path
            self._run(lambda connection: connection.execute(f"PRAGMA user_version = {VERSION}"))

    def replies(self, llm: str, requests: Iterable[str]) -> list[str | None]:
        """Return the stored reply to each request, None where there is none."""
        keys = [_key(llm, request) for request in requests]
        statement = "SELECT value FROM entries WHERE key = ? AND typeof(value) = 'blob'"
        rows = self._attempt(lambda c: [c.execute(statement, (k,)).fetchone() for k in keys])
        replies: list[str | None] = [None] * len(keys)
        for i, row in enumerate(rows or []):
            if row is not None:
                with suppress(ValueError):  # a damaged value is a missing one
                    replies[i] = row[0].decode()
        return replies

    def add_replies(self, llm: str, replies: Mapping[str, str]) -> None:
        """Store the reply to each request."""
        rows = [(_key(llm, request), reply.encode()) for request, reply in replies.items()]

        def insert(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?)", rows)
            connection.execute("COMMIT")

        self._attempt(insert, writes=True)

    # --- the file ---------------------------------------------------------------------------------

    def _attempt(self, operation: Operation[T], writes: bool = False) -> T | None:
        """Return what an operation returns; after a fault, log it once and return None."""
        with _LOCK:
            try:
                result = self._run(operation)
            except (OSError, ValueError) as error:
                if self.path not in _FAULTY:
                    logger.warning("scoring continues without the cache: %s", error)
                _FAULTY.add(self.path)
                return None
            if writes:  # reading may work where writing does not
                _FAULTY.discard(self.path)
            return result

    def _run(self, operation: Operation[T]) -> T:
        try:
            try:
                return self._on_connection(operation)
            except sqlite3.DatabaseError as error:
                if type(error) is not sqlite3.DatabaseError:  # its subclasses are other faults
                    raise
                self._set_aside()
                return self._on_connection(operation)
        except sqlite3.Error as error:  # locked, full, read-only
            kind = TimeoutError if "locked" in str(error) else OSError
            message = f"{self.path}: {error}; give the cache a path that can be written"
            raise kind(message) from None

    def _on_connection(self, operation: Operation[T]) -> T:
        seconds = 0 if self.path in _FAULTY else SECONDS
        connection = sqlite3.connect(self.path, timeout=seconds, isolation_level=None)
        with closing(connection):  # which rolls back what was not committed
            if not _has_table(connection, self.path):
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(TABLE)  # unless another process has created it meanwhile
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
                connection.execute("COMMIT")
            with suppress(sqlite3.OperationalError):  # locked, perhaps by one that does the same
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            return operation(connection)

    def _set_aside(self) -> None:
        with open(self.path, "rb") as file:
            if file.read(len(HEADER)) != HEADER:
                raise ValueError(f"{self.path} is not a cache; give another path")
        aside = f"{self.path}.corrupt-{datetime.now(timezone.utc):%Y%m%dT%H%M%S.%f}"
        os.replace(self.path, aside)
        for suffix in ("-wal", "-shm"):  # SQLite would play an old log into the new file
            with suppress(FileNotFoundError):
                os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")
        logger.warning("%s is a broken database; it was renamed to %s", self.path, aside)


_LOCK = threading.Lock()  # one operation at a time: one thread waits for a fault, or repairs it
_FAULTY: set[Path] = set()  # files that could not be used: nothing waits until one is written

if hasattr(os, "register_at_fork"):  # a fork waits for the operation: it does not have its thread
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )


def _has_table(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file has its table; raise ValueError if it has those of others."""
    # Tables first: a process that creates one sets the application id in the same transaction.
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if tables and (application, version) != (APPLICATION, VERSION):
        what = f"of version {version}" if application == APPLICATION else "of another program"
        raise ValueError(f"{path} is a database {what}; give the cache another path")
    return bool(tables)


def _key(llm: str, request: str) -> bytes:
    return hashlib.sha256(json.dumps((llm, request)).encode()).digest()
