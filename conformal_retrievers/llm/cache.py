"""A cache of scores and of an LLM's replies, in one SQLite file.

A score is kept under its scorer's name and the SHA-256 of query and text, as the eight bytes of
the float, so that it comes back bit for bit; a reply under its model's name and the SHA-256 of the
whole request. Each carries a check sum: a row that rotted on the disk is not known any more. Texts
of queries and snippets are not in the file, replies are.

Threads and processes may use one file at once (write-ahead log), and a writer that is killed loses
at most what it was writing. A file that turns out to be broken is set aside under another name,
with a warning, and a new one begun: a cache can always be filled again. Who still had the old file
open goes on in the new one. A file that its header says belongs to another program, or to another
version of this one, is refused and left as it is.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
import time
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

APPLICATION = 0x636F6E66  # "conf": how SQLite files say whose they are
VERSION = 1
SECONDS = 60.0  # to wait for another process that writes
AT_ONCE = 500  # keys in one statement: older SQLite takes 999

TABLES = """
CREATE TABLE scores (
    scorer BLOB, query BLOB, text BLOB, score BLOB NOT NULL, PRIMARY KEY (scorer, query, text)
) WITHOUT ROWID;
CREATE TABLE replies (
    llm BLOB, request BLOB, reply BLOB NOT NULL, PRIMARY KEY (llm, request)
) WITHOUT ROWID;
"""

T = TypeVar("T")


class Cache:
    """Scores and replies that were paid for once, in the file at `path`, made if there is none.

    It may be shared by threads and inherited by forked processes, and pickled: it is its path.
    Raises ValueError where the file belongs to another program or a newer version of this one. This
    and all methods raise OSError, with the path and what to do, where the file cannot be opened,
    read or written: without permission, on a full disk, or while another program keeps it locked.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._begin()
        self._run(lambda connection: None)

    def scores(self, scorer: str, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the known scores (n,) of a query's texts, NaN where none is known."""
        keys = [_sha256(text) for text in texts]
        found = self._select(
            "text, score FROM scores WHERE scorer=? AND query=? AND text",
            [_sha256(scorer), _sha256(query)],
            keys,
        )
        unknown = np.float64(np.nan).tobytes()
        stored = b"".join(_checked(found.get(key)) or unknown for key in keys)
        return np.frombuffer(stored, "<f8").astype(np.float64)  # a copy, which can be written to

    def add_scores(self, scorer: str, query: str, texts: Sequence[str], scores: ArrayLike) -> None:
        """Keep the scores (n,) of a query's texts; NaN, the unscorable, is not kept."""
        array = np.asarray(scores, dtype="<f8")
        if array.shape != (len(texts),):
            raise ValueError(
                f"scores has shape {array.shape}; give one for each of {len(texts)} texts"
            )
        both = _sha256(scorer), _sha256(query)
        self._insert(
            "scores",
            [
                (*both, _sha256(text), _with_sum(score.tobytes()))
                for text, score in zip(texts, array, strict=True)
                if not np.isnan(score)
            ],
        )

    def replies(self, llm: str, requests: Sequence[str]) -> list[str | None]:
        """Return the known replies to requests, None where none is known."""
        keys = [_sha256(request) for request in requests]
        found = self._select(
            "request, reply FROM replies WHERE llm=? AND request", [_sha256(llm)], keys
        )
        stored = [_checked(found.get(key)) for key in keys]
        return [None if reply is None else reply.decode("utf-8") for reply in stored]

    def add_replies(self, llm: str, replies: Mapping[str, str]) -> None:
        """Keep the reply to each request."""
        name = _sha256(llm)
        rows = [(name, _sha256(r), _with_sum(reply.encode())) for r, reply in replies.items()]
        self._insert("replies", rows)

    def close(self) -> None:
        """Close the file; it is opened again when it is next used."""
        with self._lock:
            self._close()

    def __repr__(self) -> str:
        return f"Cache({str(self.path)!r})"

    def __reduce__(self) -> tuple[type[Cache], tuple[Path]]:
        return Cache, (self.path,)

    # --- statements -------------------------------------------------------------------------------

    def _select(self, what: str, fixed: list[bytes], keys: list[bytes]) -> dict[bytes, Any]:
        def select(connection: sqlite3.Connection) -> dict[bytes, Any]:
            found: dict[bytes, Any] = {}
            for start in range(0, len(keys), AT_ONCE):
                some = keys[start : start + AT_ONCE]
                marks = ",".join("?" * len(some))
                found.update(connection.execute(f"SELECT {what} IN ({marks})", [*fixed, *some]))
            return found

        return self._run(select)

    def _insert(self, table: str, rows: Sequence[tuple[bytes, ...]]) -> None:
        def insert(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                marks = ",".join("?" * len(rows[0]))
                connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", rows)

        if rows:
            self._run(insert)

    # --- the connection ---------------------------------------------------------------------------

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._finalizer: Callable[[], object] | None = None
        self._process = os.getpid()
        self._inode: int | None = None

    def _run(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        if self._process != os.getpid():
            _INHERITED.append(self._connection)  # SQLite forbids using or closing it after a fork
            self._begin()
        with self._lock, _told_with(self.path):
            try:
                return operation(self._open())
            except sqlite3.DatabaseError as error:
                if type(error) is not sqlite3.DatabaseError:  # the subclasses are other troubles
                    raise
                self._set_aside(error)
                return operation(self._open())

    def _open(self) -> sqlite3.Connection:
        # Another process may have set the file aside or deleted it: what went on into it would be
        # lost. (SQLite leaves the log alone when it closes a file that was moved.)
        if self._connection is not None and _inode(self.path) != self._inode:
            self._close()
        if self._connection is None:
            self._inode = _inode(self.path)
            try:
                connection = sqlite3.connect(
                    self.path, timeout=SECONDS, isolation_level=None, check_same_thread=False
                )
                self._connection = connection
                self._finalizer = weakref.finalize(self, _close, connection, os.getpid())
                _prepare(connection, self.path)
            except (sqlite3.OperationalError, ValueError):
                self._close()
                raise
            self._inode = _inode(self.path)
        return self._connection

    def _close(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._connection = self._finalizer = None

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        """Rename the broken file and its log, unless another process has done so."""
        broken = self._inode
        self._close()
        if broken is None or _inode(self.path) != broken:
            return
        time_of_day = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%f")
        for suffix in ("", "-wal", "-shm"):
            try:
                os.replace(f"{self.path}{suffix}", f"{self.path}.corrupt-{time_of_day}{suffix}")
            except FileNotFoundError:
                continue
            except OSError as refused:
                raise OSError(
                    f"{self.path} is broken ({error}) and cannot be renamed ({refused.strerror}); "
                    "remove it, or give the cache a path to write to"
                ) from None
        warnings.warn(
            f"{self.path} is broken ({error}); it is set aside as "
            f"{self.path.name}.corrupt-{time_of_day}, and a new cache begun",
            RuntimeWarning,
            stacklevel=5,
        )


@contextmanager
def _told_with(path: Path) -> Iterator[None]:
    """Turn what keeps SQLite from using the file into an OSError with the path and what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        remedy = "give the cache a path to write to"
        if "locked" in str(error):
            remedy = f"end what has kept it locked for {SECONDS:g} s, or {remedy}"
        elif "full" in str(error):
            remedy = f"make room there, or {remedy}"
        raise OSError(f"{path}: {error}; {remedy}") from None


_INHERITED: list[sqlite3.Connection | None] = []  # kept from being closed


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    _check_owner(connection, path)
    _log_ahead(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    with _transaction(connection):
        if not _check_owner(connection, path):
            for statement in TABLES.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
        # Each time: a file that cannot be written is told now, not after the first reply is paid.
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _check_owner(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the tables are there; raise ValueError where they are not this version's."""
    # Tables first: another process that makes them signs the file in the same transaction.
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application == APPLICATION and version != VERSION:
        raise ValueError(
            f"{path} is a cache of version {version}, this library writes version {VERSION}; give "
            "another path or upgrade conformal-retrievers"
        )
    if application != APPLICATION and tables:
        raise ValueError(f"{path} is another program's database; give the cache a path of its own")
    return bool(tables)


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Switch to the write-ahead log; while another process does so, SQLite does not wait."""
    until = time.monotonic() + SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.execute("COMMIT")


def _close(connection: sqlite3.Connection, process: int) -> None:
    if os.getpid() == process:
        connection.close()


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _with_sum(value: bytes) -> bytes:
    return zlib.crc32(value).to_bytes(4, "big") + value


def _checked(stored: bytes | None) -> bytes | None:
    """Return the value that was stored, None where there is none or it is not what it was."""
    if not isinstance(stored, bytes) or stored[:4] != _with_sum(stored[4:])[:4]:
        return None
    return stored[4:]


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
