"""A journal of marks in one SQLite file: each is on disk before `append` returns.

One process has the file at a time. Its lock ends with the process, however it ends.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from conformal_retrievers.labels.wording import say

TABLES = (
    "CREATE TABLE plan (fields TEXT)",
    "CREATE TABLE events (number INTEGER PRIMARY KEY, question INTEGER, marks TEXT, done INTEGER, "
    "time TEXT)",
)

Mark = bool | None  # None: the person is unsure


class Event(NamedTuple):
    """The marks of a question from now on."""

    question: int  # its place in the file of queries
    marks: tuple[Mark, ...]  # of the snippets that are shown
    done: bool  # the person went on to the next question


class Journal:
    """What is judged, and all events so far.

    A new journal stores `plan`; `self.plan` is the one that was stored first. Raises ValueError if
    the file is another one, OSError if it cannot be written or another process has it.
    """

    def __init__(self, path: Path, plan: Mapping[str, Any]) -> None:
        self.path = path
        with ExitStack() as undo:
            try:
                own: Any = {"isolation_level": None, "check_same_thread": False}
                self._file = sqlite3.connect(path, timeout=0.2, **own)
                undo.callback(self.close)
                self._file.execute("PRAGMA locking_mode = EXCLUSIVE")
                self._file.execute("PRAGMA synchronous = EXTRA")
                self._file.execute("BEGIN EXCLUSIVE")  # the lock stays until the file is closed
                (tables,) = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()
                if not tables:
                    for table in TABLES:
                        self._file.execute(table)
                    self._file.execute("INSERT INTO plan VALUES (?)", [json.dumps(plan)])
                (fields,) = self._file.execute("SELECT fields FROM plan").fetchone()
                self._file.execute("COMMIT")
                self.plan = dict(json.loads(fields))
                undo.pop_all()
            except (sqlite3.Error, TypeError, ValueError, RecursionError) as error:
                if "locked" in str(error):
                    raise BlockingIOError(say("locked", path=path)) from None
                if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
                    raise OSError(say("no journal", path=path, error=error)) from None
                raise ValueError(f"{path} is not a journal of marks") from None

    def append(self, event: Event) -> None:
        """Store an event; raise OSError if that fails, and then it is not stored."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        row = [event.question, json.dumps(event.marks), event.done, now]
        self._store("INSERT INTO events (question, marks, done, time) VALUES (?, ?, ?, ?)", row)

    def replace(self, plan: Mapping[str, Any]) -> None:
        """Store a plan in place of the one so far; raise OSError if that fails."""
        self._store("UPDATE plan SET fields = ?", [json.dumps(plan)])
        self.plan = dict(plan)

    def _store(self, command: str, row: Sequence[Any]) -> None:
        try:
            self._file.execute(command, row)
        except sqlite3.Error as error:
            raise OSError(f"{self.path}: cannot store a mark ({error})") from None

    def __iter__(self) -> Iterator[Event]:
        rows = "SELECT question, marks, done FROM events ORDER BY number"
        try:
            for question, marks, done in self._file.execute(rows):
                yield Event(question, as_marks(json.loads(marks)), bool(done))
        except (sqlite3.Error, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"its events have no marks ({error})") from None

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def as_marks(values: Sequence[Any]) -> tuple[Mark, ...]:
    """Return marks; raise ValueError for a value other than true, false and null."""
    for value in values:
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"marks has {value!r:.60}; give true, false, or null if unsure")
    return tuple(values)
