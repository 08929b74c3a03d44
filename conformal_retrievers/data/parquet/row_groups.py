"""Parquet files read row group by row group, as tables with a row for each query."""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from conformal_retrievers.data import files
from conformal_retrievers.data.wording import say
from conformal_retrievers.extras import require

require("parquet", "fsspec", "pyarrow")
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fsspec.core import url_to_fs

Source = str | Path | Sequence[str | Path]


class Kind(NamedTuple):
    """What a column may hold, and the type as which it is read and written."""

    type: Any
    fits: tuple[str, ...]  # what pyarrow.types calls the types that may be read
    remedy: str


TEXT = Kind(pa.large_string(), ("string", "large_string", "string_view", "integer"), "give text")
NUMBER = Kind(pa.float64(), ("floating", "integer", "decimal"), "give numbers")
WHOLE = Kind(pa.int64(), NUMBER.fits, "give whole numbers, and null for a missing one")
FLAG = Kind(pa.bool_(), ("boolean",), "give true or false")
MARK = Kind(pa.int64(), ("boolean", "integer"), "give true or false")


def cast(values: Any, kind: Kind, place: str) -> Any:
    """Return an Arrow array as one of a kind; raise ValueError, with its place, if it is none."""
    kind_found = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if not _is_any(kind_found, *kind.fits, "null"):
        raise ValueError(f"{place} has the type {kind_found}; {kind.remedy}")
    try:
        return values.cast(kind.type)
    except pa.ArrowInvalid as error:
        raise ValueError(say("another type", place=place, kind=kind, error=error)) from None


def _is_any(kind: Any, *names: str) -> bool:
    return any(getattr(pa.types, f"is_{name}")(kind) for name in names)


def sizes_of(lists: Any, place: str) -> tuple[np.ndarray[Any, Any], Any]:
    """Return the length of each of some lists, −1 of a null, and their values one after another."""
    if pa.types.is_null(lists.type):
        return np.full(len(lists), -1), pa.chunked_array([pa.nulls(0)])
    if not _is_any(lists.type, "list", "large_list", "fixed_size_list"):
        raise ValueError(f"{place} has the type {lists.type}; give a list for each query")
    lengths = pc.fill_null(pc.list_value_length(lists), -1).to_numpy()
    return lengths.astype(np.intp), pc.list_flatten(lists)


def row_groups(
    source: Source, known: Collection[str], needed: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    """Yield the table of each row group after its place.

    The source is the path or URL of a file, or of a folder with files that end in .parquet, or
    several. Raises ValueError naming the file for one that is not Parquet, and the column too for
    one that is unknown, there twice, or needed and missing; OSError if a file cannot be read.
    """
    for name, path, filesystem in _files(source):
        with (
            _named(name),
            pq.ParquetFile(path, filesystem=filesystem, page_checksum_verification=True) as file,
        ):
            names = file.schema_arrow.names
            given = [column for column in names if not column.startswith("__index_level_")]
            flat = {f.name for f in file.schema_arrow if not pa.types.is_nested(f.type)}
            for wrong, why in (
                ([*flat & {"relevant"}], "no list; give read(pandas.read_parquet(path))"),
                ([c for c in given if c not in known], "unknown; drop it, or correct its name"),
                ([c for c in given if given.count(c) > 1], "there twice; drop one"),
                ([c for c in needed if c not in given], f"missing beside {', '.join(given):.200}"),
            ):
                if wrong:
                    raise ValueError(f"{name}: the column {wrong[0]:.80} is {why}")
            for i in range(file.num_row_groups):
                yield f"{name}, row group {i}", file.read_row_group(i, columns=given)


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and (error.errno or type(error) is not OSError):
            files.cannot_read("Parquet file", name, error)
        raise ValueError(f"{name} is not a complete Parquet file: {error}") from None


def _files(source: Source) -> Iterator[tuple[str, str, Any]]:
    """Yield the name of each file, its path, and the file system that it is in."""
    for path in [source] if isinstance(source, (str, Path)) else source:
        filesystem, root = url_to_fs(str(path))
        if not filesystem.isdir(root):
            yield str(path), root, filesystem
            continue
        inside = sorted(file for file in filesystem.find(root) if file.endswith(".parquet"))
        if not inside:
            raise ValueError(f"{path} has no file that ends in .parquet; give its folder")
        yield from ((file, file, filesystem) for file in inside)
