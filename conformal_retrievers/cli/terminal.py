"""How the commands print: one line for bad data, tables for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from textwrap import fill
from typing import Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")


def fail(message: str) -> NoReturn:
    """Print an error on one line of standard error, and exit with 1."""
    typer.echo(f"Error: {' '.join(message.split())}", err=True)
    raise typer.Exit(1)


@contextmanager
def bad_data_in_one_line() -> Iterator[None]:
    """Turn an error about data, files or missing packages into one line and exit code 1.

    Warnings become one line each.
    """
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            yield
    except OSError as error:
        path = f": {error.filename}" if error.filename and error.strerror else ""
        fail(f"{error.strerror or error}{path}")
    except (ValueError, ModuleNotFoundError) as error:
        fail(str(error))
    finally:
        for warning in caught:
            if issubclass(warning.category, UserWarning):
                typer.echo(f"Warning: {warning.message}", err=True)


def tracked(items: Iterable[Item], description: str) -> Iterable[Item]:
    """Yield the items, with a progress bar on standard error if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return items
    return track(items, description=description, console=console, transient=True)


def say(text: object = "") -> None:
    """Print a text in lines of at most 80 characters."""
    for line in str(text).split("\n"):
        typer.echo(fill(line, 80, break_long_words=False, break_on_hyphens=False))


def print_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print a table: the first column is for words, the others for numbers."""
    lines = [list(head), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for i, (name, *cells) in enumerate(lines):
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        typer.echo("  ".join([name.ljust(widths[0]), *numbers]).rstrip())
        if i == 0:
            typer.echo("  ".join("─" * width for width in widths))


def print_json(value: object) -> None:
    """Print a value of dataclasses, mappings and numbers as JSON.

    A number that is not finite becomes null, and the key None (queries without a group) "".
    """
    typer.echo(json.dumps(_plain(value), indent=2, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {"" if key is None else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
