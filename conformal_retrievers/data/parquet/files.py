"""Judged and scored queries in Parquet files, a row for each query.

Columns have the names of the fields of JSON lines: `id`, `query`, `group`, `missed`, `retriever`,
`k`, `split`, `answerable`, `evidence` and `relevant_ids` of the query. What belongs to snippets is
in lists: `snippet_id`, `text`, `relevant`, `document`, `position`, `retrieval_score`, `hits`, and
of scored queries `scores`, `tokens`, `document_of` and `unscorable`; these have `token_unit` and
`silenced`, too. Null is what is unknown, and a `retriever` that is no chosen name is JSON.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from conformal_retrievers.data import files
from conformal_retrievers.data.checks import all_of
from conformal_retrievers.data.column_checks import as_judgements
from conformal_retrievers.data.columns import ScoredQueries, the_same
from conformal_retrievers.data.hits import Hit, HitColumns, unknown_hits
from conformal_retrievers.data.parquet.row_groups import Source, cast, row_groups, sizes_of
from conformal_retrievers.data.parquet.tables import (
    EVIDENCE,
    HIT,
    LISTS,
    OF_JUDGED,
    OF_QUERY,
    OF_SNIPPETS,
    SCORED_ONLY,
    table_of_judged,
    table_of_scored,
)
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery, Snippet
from conformal_retrievers.data.wording import say
from conformal_retrievers.extras import require

require("parquet", "pyarrow")
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

T = TypeVar("T")
JUDGED, SCORED = 1_000, 100_000  # queries in a row group that is written


def read_parquet(source: Source) -> ScoredQueries:
    """Read scored queries from a Parquet file, from several, or from a folder of them, as columns.

    The columns `relevant` and `scores` are required. Raises ValueError naming the file and the
    column, and OSError if a file cannot be read.
    """
    return ScoredQueries.joined(
        _at(place, _scored, table) for place, table in _groups(source, ("relevant", "scores"))
    )


def iter_parquet(source: Source) -> Iterator[JudgedQuery]:
    """Yield judged queries from a Parquet file, from several, or from a folder, as they are read.

    The column `query` is required, and `relevant` and `text`, or `relevant_ids`. Raises ValueError
    naming the file and the column, and OSError if a file cannot be read.
    """
    for place, table in _groups(source, ("query",)):
        yield from _at(place, _judged, table)


def iter_rows(source: Source) -> Iterator[JudgedQuery | ValueError]:
    """Yield the judged query of each row, or the error of a malformed one.

    Raises as `iter_parquet` for what concerns all rows: a file, or a column.
    """
    for place, table in _groups(source, ("query",)):
        _at(place, _judged, table[:0])
        try:
            yield from _judged(table)
        except (TypeError, ValueError):
            for i in range(len(table)):
                try:
                    yield from _judged(table[i : i + 1])
                except (TypeError, ValueError) as error:
                    yield ValueError(str(error))


def _groups(source: Source, needed: Sequence[str]) -> Iterator[tuple[str, Any]]:
    return row_groups(source, {*OF_QUERY, *LISTS, *OF_SNIPPETS, "hits"}, needed)


def _at(place: str, read: Callable[[Any], T], table: Any) -> T:
    try:
        return read(table)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from None


def _scored(table: Any) -> ScoredQueries:
    sizes, columns = _of_snippets(table)
    given = _of_query(table)
    why = columns["unscorable"].to_pylist() if "unscorable" in columns else ()
    return ScoredQueries(
        columns["scores"].to_numpy(),
        _marks(columns["relevant"]),
        np.concatenate([[0], np.cumsum(sizes)]),
        ids=_texts(given, "id"),
        groups=_texts(given, "group"),
        missed=_numbers(given, "missed"),
        tokens=_numbers(columns, "tokens"),
        token_unit=_the_same(given, "token_unit") or "tokens",
        hits=_hit_columns(columns["hits"]) if "hits" in columns else None,
        split=_the_same(given, "split"),
        document_of=_numbers(columns, "document_of"),
        unscorable={i: reason for i, reason in enumerate(why) if reason is not None},
        silenced=_numbers(given, "silenced"),
    )


def _judged(table: Any) -> list[JudgedQuery]:
    sizes, columns = _of_snippets(table)
    given = _of_query(table) | {n: table[n] for n in LISTS if n in table.column_names}
    given = {name: given[name].to_pylist() for name in given if name not in SCORED_ONLY}
    marks = _marks(columns.pop("relevant")).tolist() if "relevant" in columns else []
    hits = columns.pop("hits", None)
    of_snippets = {name: columns[name].to_pylist() for name in OF_JUDGED if name in columns}
    of_snippets["id"] = of_snippets.pop("snippet_id", [None] * len(marks))
    of_snippets.setdefault("text", [None] * len(marks))
    if hits is not None:
        lengths, made = _hits(hits)
        every = map(Hit, *[values.to_pylist() for values in made.values()])
        of_snippets["hits"] = [tuple(islice(every, n)) for n in np.maximum(lengths, 0).tolist()]
    for name, values in (("query", given["query"]), ("text", of_snippets["text"])):
        for i in [i for i, value in enumerate(values) if not isinstance(value, str)][:1]:
            raise ValueError(f"{name} {i} is missing; give the text, which judged queries need")
    rows = zip(*of_snippets.values(), strict=True)
    snippets = tuple([Snippet(**dict(zip(of_snippets, row, strict=True))) for row in rows])
    end, queries = 0, []
    for i, size in enumerate(sizes.tolist()):
        start, end = end, end + size
        values = {name: column[i] for name, column in given.items() if column[i] is not None}
        if str(values.get("retriever")).startswith("{"):
            values["retriever"] = json.loads(values["retriever"])
        if "evidence" in values:
            parts = ([part.get(name) for name in EVIDENCE] for part in values["evidence"])
            values["evidence"] = [[v for v in part if v is not None] for part in parts]
        own = snippets[start:end], marks[start:end]
        queries.append(JudgedQuery(values.pop("query"), *own, **values))
    return queries


def _of_query(table: Any) -> dict[str, Any]:
    names = [name for name in OF_QUERY if name in table.column_names]
    return {name: cast(table[name], OF_QUERY[name], name) for name in names}


def _of_snippets(table: Any) -> tuple[Any, dict[str, Any]]:
    """Return how many snippets each query has, and their columns, one after another."""
    columns = {}
    sizes = np.zeros(len(table), dtype=np.intp)
    if "relevant" in table.column_names:
        sizes = np.maximum(sizes_of(table["relevant"], "relevant")[0], 0)
    for name in [name for name in table.column_names if name in {*OF_SNIPPETS, "hits"}]:
        lengths, values = sizes_of(table[name], name)
        absent = lengths < 0
        for i in np.flatnonzero(~absent & (lengths != sizes))[:1].tolist():
            raise ValueError(say("entry each", name=name, i=i, n=lengths[i], size=sizes[i]))
        if (absent & (sizes > 0)).any():  # null is null for each snippet
            missing = np.repeat(absent, sizes)
            values = values.take(pa.array(np.cumsum(~missing) - 1, mask=missing))
        kind = OF_SNIPPETS.get(name)
        columns[name] = values if kind is None else cast(values, kind, name)
    return sizes, columns


def _marks(relevant: Any) -> Any:
    if relevant.null_count:
        raise ValueError("relevant has a null; give true or false")
    return as_judgements(relevant.to_numpy(), len(relevant))


def _texts(columns: dict[str, Any], name: str) -> Any:
    return columns[name].to_pylist() if name in columns else None


def _numbers(columns: dict[str, Any], name: str) -> Any:
    if name not in columns or 0 < len(columns[name]) == columns[name].null_count:
        return None
    return columns[name].to_numpy()


def _the_same(columns: dict[str, Any], name: str) -> Any:
    values = {*columns[name].unique().to_pylist()} if name in columns else set()
    return the_same(name, values or {None}, "give queries that have the same")


def _hits(lists: Any) -> tuple[Any, dict[str, Any]]:
    """Return how many hits each snippet has, and the fields of the hits, one after another."""
    lengths, hits = sizes_of(lists, "hits")
    columns = {name: pa.chunked_array([pa.nulls(len(hits), k.type)]) for name, k in HIT.items()}
    if not len(hits):
        return lengths, columns
    names = [field.name for field in hits.type] if pa.types.is_struct(hits.type) else []
    if not {"retriever", "rank"} <= {*names} <= {*HIT}:
        raise ValueError(say("no hits", kind=hits.type))
    for name in names:
        columns[name] = cast(pc.struct_field(hits, name), HIT[name], f"hits.{name}")
    if columns["retriever"].null_count or columns["rank"].null_count:
        raise ValueError("hits has a null in retriever or rank; give both of each hit")
    return lengths, columns


def _hit_columns(lists: Any) -> dict[str, HitColumns]:
    lengths, fields = _hits(lists)
    place = np.repeat(np.arange(len(lengths)), np.maximum(lengths, 0))
    ranks, scores = (fields[name].cast(pa.float64()).to_numpy() for name in ("rank", "score"))
    for i in np.flatnonzero(ranks < 0)[:1].tolist():
        raise ValueError(f"hits.rank is {ranks[i]:g}; give a whole number, 0 for the best")
    made = {}
    for name in sorted(fields["retriever"].unique().to_pylist()):
        own = pc.equal(fields["retriever"], name).to_numpy()
        if len(np.unique(place[own])) < own.sum():
            raise ValueError(f"hits has the retriever {name!r:.60} twice for a snippet; remove one")
        columns = unknown_hits(len(lengths))
        columns.ranks[place[own]], columns.scores[place[own]] = ranks[own], scores[own]
        made[name] = columns
    return made


def write_parquet(queries: Iterable[JudgedQuery] | Iterable[ScoredQuery], path: str | Path) -> None:
    """Write judged or scored queries to a Parquet file, a row for each; embeddings are left out.

    Raises TypeError for anything else, and OSError if the file cannot be written. An old file then
    stays as it was.
    """
    given: Iterator[Any] = iter(() if isinstance(queries, ScoredQueries) else queries)
    first = next(given, None)
    every = chain([] if first is None else [first], given)
    tables: Iterator[Any]
    if isinstance(queries, ScoredQueries) or isinstance(first, ScoredQuery):
        scored = queries if isinstance(queries, ScoredQueries) else ScoredQueries.of(every)
        starts = range(0, max(len(scored), 1), SCORED)
        tables = (table_of_scored(scored, start, start + SCORED) for start in starts)
    else:
        parts = iter(lambda: all_of(JudgedQuery, islice(every, JUDGED), "queries"), [])
        tables = map(table_of_judged, chain([next(parts, [])], parts))
    files.write_whole(path, lambda file: _write(file, tables), what="queries")


def _write(file: Any, tables: Iterator[Any]) -> None:
    first = next(tables)
    with pq.ParquetWriter(file, first.schema, write_page_checksum=True) as writer:
        for table in chain([first], tables):
            writer.write_table(table)
