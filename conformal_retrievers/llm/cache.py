"""A cache of an LLM's replies in one SQLite file.

Each is stored under a SHA-256 of model and request. The file has no queries and no snippets, but a
reply may quote them.
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
from pathlib import Path
from typing import TypeVar

logger = logging.getLogger("conformal_retrievers")

APPLICATION = 0x636F6E66  # "conf": the application id in the header of the SQLite file
VERSION = 2
SECONDS = 0.5  # to wait for another process that writes; an operation waits at most twice
TABLE = "CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID"

T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]


def lock_of_process() -> threading.Lock:
    """Return a lock that is free in a fork, which has no thread of its parent to release it."""
    lock = threading.Lock()
    if hasattr(os, "register_at_fork"):  # the fork waits until it has the lock
        release = lock.release
        os.register_at_fork(before=lock.acquire, after_in_parent=release, after_in_child=release)
    return lock


@dataclass(frozen=True)
class Cache:
    """Replies of LLMs, in the SQLite file at `path`: a repeated run pays for none twice.

    Threads and processes may share it: it has a write-ahead log, and every operation opens it for
    itself. A killed writer loses at most the values that it was writing. While the file cannot be
    used (locked, broken, on a full disk, deleted with its folder), nothing is found or stored, and
    a warning is logged once.

    A new `Cache` raises ValueError if the file is no SQLite database, a broken one, or one of
    another program or version, and OSError if it cannot be written.

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
            with suppress(TypeError, ValueError):  # there is none, or a damaged one
                replies[i] = row[0].decode("utf-8", "surrogatepass")
        return replies

    def add_replies(self, llm: str, replies: Mapping[str, str]) -> None:
        """Store the reply to each request."""
        encoded = {r: reply.encode("utf-8", "surrogatepass") for r, reply in replies.items()}
        rows = [(_key(llm, request), reply) for request, reply in encoded.items()]

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
        seconds = 0 if self.path in _FAULTY else SECONDS
        try:
            connection = sqlite3.connect(self.path, timeout=seconds, isolation_level=None)
            with closing(connection):  # which rolls back what was not committed
                if not _has_table(connection, self.path):
                    connection.execute("BEGIN IMMEDIATE")
                    connection.execute(TABLE)  # unless another process has created it meanwhile
                    connection.execute(f"PRAGMA application_id = {APPLICATION}")
                    connection.execute(f"PRAGMA user_version = {VERSION}")
                    connection.execute("COMMIT")
                # It may be locked, perhaps by one that does the same.
                with suppress(sqlite3.OperationalError):
                    connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                return operation(connection)
        except sqlite3.Error as error:
            kind: type[Exception] = TimeoutError if "locked" in str(error) else OSError
            if type(error) is sqlite3.DatabaseError:  # no database, or a broken one
                kind = ValueError
            raise kind(f"{self.path}: {error}; give the cache another path") from None


_LOCK = lock_of_process()  # one operation at a time: one thread waits for a fault
_FAULTY: set[Path] = set()  # files that could not be used: nothing waits until one is written


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
