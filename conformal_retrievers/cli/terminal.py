"""How the commands speak: one line for bad data, tables for people, JSON for machines."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from conformal_retrievers.evaluation.measures import Share

Item = TypeVar("Item")


class Command(TyperCommand):
    """A command whose --help is listed without a type."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return --help, a flag."""
        return _without_type(super().get_help_option(ctx))


class Group(TyperGroup):
    """A group of commands whose --help is listed without a type."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return --help, a flag."""
        return _without_type(super().get_help_option(ctx))


def _without_type(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option


def fail(message: str) -> NoReturn:
    """Say on one line of standard error what is wrong, and exit with 1."""
    typer.echo(f"Error: {' '.join(message.split())}", err=True)
    raise typer.Exit(1)


@contextmanager
def bad_data_in_one_line() -> Iterator[None]:
    """Turn what bad data, a missing file or a missing extra raises into one line and exit code 1.

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


def tracked(items: Iterable[Item], description: str, *, total: int | None = None) -> Iterable[Item]:
    """Yield the items, with a progress bar on standard error if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from items
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield from progress.track(items, description=description)


# --- tables ---------------------------------------------------------------------------------------


def table(*heads: str) -> Table:
    """Return an empty table: the first column of words, the others of numbers."""
    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for i, head in enumerate(heads):
        shown.add_column(head, justify="right" if i else "left", no_wrap=bool(i))
    return shown


def percent(share: float, digits: int = 1) -> str:
    """Return a share in per cent, and a dash for nan."""
    return "–" if math.isnan(share) else f"{100 * share:.{digits}f} %"


def between(share: Share) -> str:
    """Return the interval of a share in per cent."""
    return f"{100 * share.low:.1f} – {100 * share.high:.1f}"


def score(threshold: float) -> str:
    """Return a threshold, or that everything is kept, or only what has no score (−inf)."""
    if math.isinf(threshold):
        return "keep all" if threshold > 0 else "keep unscored"
    return f"{threshold:.5g}"


# --- JSON -----------------------------------------------------------------------------------------


def print_json(value: object) -> None:
    """Print a value of dataclasses, mappings and numbers as JSON.

    What is not finite is null. The key None, as of queries without a group, is "", or "()" beside a
    group of that name.
    """
    typer.echo(json.dumps(_plain(value), indent=2, ensure_ascii=False))


def _name_apart(named: Mapping[Any, Any]) -> str:
    """Return what stands for no name: nothing, or parentheses around it where that is a name."""
    name = ""
    while name in named:
        name = f"({name})"
    return name


def _plain(value: Any) -> Any:
    if isinstance(value, Share):
        return _plain(dataclasses.asdict(value) | {"design_effect": value.design_effect})
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name)) for field in fields}
    if isinstance(value, Mapping):
        unnamed = _name_apart(value)
        return {unnamed if key is None else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
