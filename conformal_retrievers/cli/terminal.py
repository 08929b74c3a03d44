"""How the commands print: one line for an error, tables for people, JSON for programs."""

import dataclasses
import json
import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import typer
from typer.core import TyperGroup

from conformal_retrievers.data.text import aligned, filled, visible_lines
from conformal_retrievers.data.wording import wording

worded = wording(__package__)


class Commands(TyperGroup):
    """Commands that turn an error about data, files or packages into one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **others: Any) -> Any:
        """Run a command; exit with 3 after an error."""
        try:
            with _said_at_the_end():
                return super().main(args, *more, **others)
        except OSError as error:
            path = f": {error.filename}" if error.filename and error.strerror else ""
            _fail(f"{error.strerror or error}{path}")
        except (ValueError, ModuleNotFoundError) as error:
            _fail(str(error))


@contextmanager
def _said_at_the_end() -> Iterator[None]:
    """Print warnings once, not for each query, below the results and above an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            users = (w.message for w in caught if issubclass(w.category, UserWarning))
            for message in dict.fromkeys(map(_one_line, users)):
                say(f"Warning: {message}", err=True)


def _fail(message: str) -> NoReturn:
    _print(f"Error: {_one_line(message)}", err=True)
    sys.exit(3)


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _print(text: str, *, err: bool = False) -> None:
    """Print lines; everything that the commands print goes through here."""
    typer.echo(visible_lines(text), err=err)


def say(text: object = "", *, err: bool = False) -> None:
    """Print a text in lines of at most 80 characters."""
    _print(filled(str(text)), err=err)


def print_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print a table: the first column is for words, the others for numbers."""
    _print("\n".join(aligned([*head], [[*row] for row in rows], width=sys.maxsize)))


def print_json(value: object) -> None:
    """Print a value of dataclasses, mappings, arrays and numbers as JSON.

    A number that is not finite becomes null, and the key None (queries without a group) "".
    """
    _print(json.dumps(_plain(value), indent=2, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        return {name: _plain(getattr(value, name)) for name in names if name[0] != "_"}
    if isinstance(value, Mapping):
        return {"" if key is None else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
