"""Judged and scored queries in Parquet files, a row for each query or, flat, for each snippet.

Columns have the names of the fields of JSON lines: `id`, `query`, `group`, `missed`, `retriever`,
`k`, `split`, `answerable`, `evidence` and `relevant_ids` of the query. What belongs to snippets is
in lists, of a flat file in plain columns: `snippet_id`, `text`, `relevant`, `document`, `position`,
`retrieval_score`, `hits`, and of scored queries `scores`, `tokens`, `document_of` and `unscorable`;
these have `token_unit` and `silenced`, too. Null is what is unknown.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from conformal_retrievers.data import files
from conformal_retrievers.data.checks import all_of
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.hits import Hit, HitColumns
from conformal_retrievers.data.parsed import query_of, snippets_of
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.data.ranges import Evidence
from conformal_retrievers.data.row_groups import (
    FLAG,
    MARK,
    NUMBER,
    TEXT,
    WHOLE,
    Kind,
    Source,
    cast,
    row_groups,
    sizes_of,
)
from conformal_retrievers.extras import require

require("parquet", "pyarrow")
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

T = TypeVar("T")
OF_QUERY = {
    **dict.fromkeys(("id", "query", "group", "retriever", "split", "token_unit"), TEXT),
    **dict.fromkeys(("missed", "k"), WHOLE),
    **dict.fromkeys(("answerable", "silenced"), FLAG),
}
OF_SNIPPETS = {
    **dict.fromkeys(("snippet_id", "text", "document", "unscorable"), TEXT),
    **dict.fromkeys(("position", "document_of"), WHOLE),
    **dict.fromkeys(("retrieval_score", "scores", "tokens"), NUMBER),
    "relevant": MARK,
}
HIT = {"retriever": TEXT, "rank": WHOLE, "score": NUMBER}
EVIDENCE = {"document": TEXT, "start": WHOLE, "end": WHOLE}
JUDGED, SCORED = 1_000, 100_000  # queries in a row group that is written
_LISTS = ("evidence", "relevant_ids")  # of a query
_OF_JUDGED = ("snippet_id", "text", "document", "position", "retrieval_score")


def read_parquet(source: Source) -> ScoredQueries:
    """Read scored queries from a Parquet file, from several, or from a folder of them, as columns.

    The columns `relevant` and `scores` are required. Raises ValueError naming the file and the
    column, and OSError if a file cannot be read.
    """
    return ScoredQueries.joined(_read(source, _scored, ("relevant", "scores")))


def iter_parquet(source: Source) -> Iterator[JudgedQuery]:
    """Yield judged queries from a Parquet file, from several, or from a folder, as they are read.

    The column `query` is required, and `relevant` and `text`, or `relevant_ids`. Raises ValueError
    naming the file and the column, and OSError if a file cannot be read.
    """
    for queries in _read(source, _judged, ("query",)):
        yield from queries


def _read(source: Source, read: Callable[[Any], T], needed: Sequence[str]) -> Iterator[T]:
    groups = row_groups(source, {*OF_QUERY, *_LISTS}, {*OF_SNIPPETS, "hits"}, needed)
    for place, table in groups:
        try:
            yield read(table)
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
        token_unit=_one(given, "token_unit") or "tokens",
        hits=_hit_columns(columns["hits"]) if "hits" in columns else None,
        split=_one(given, "split"),
        document_of=_numbers(columns, "document_of"),
        unscorable={i: reason for i, reason in enumerate(why) if reason is not None},
        silenced=_numbers(given, "silenced"),
    )


def _judged(table: Any) -> list[JudgedQuery]:
    sizes, columns = _of_snippets(table)
    given = {name: values.to_pylist() for name, values in _of_query(table).items()}
    given = {name: given[name] for name in given if name not in ("token_unit", "silenced")}
    for name in _LISTS:
        if name in table.column_names:
            given[name] = table[name].to_pylist()
    marks = _marks(columns.pop("relevant")).tolist() if "relevant" in columns else []
    hits = columns.pop("hits", None)
    found = {name: columns[name].to_pylist() for name in _OF_JUDGED if name in columns}
    found["id"] = found.pop("snippet_id", [None] * len(marks))
    if hits is not None:
        lengths, made = _hits(hits)
        every = map(Hit, *[values.to_pylist() for values in made.values()])
        found["hits"] = [tuple(islice(every, n)) for n in np.maximum(lengths, 0).tolist()]
    for name, values in (("query", given["query"]), ("text", found.setdefault("text", marks))):
        for i in [i for i, value in enumerate(values) if not isinstance(value, str)][:1]:
            raise ValueError(f"{name} {i} is missing; give the text, which judged queries need")
    end, queries = 0, []
    for i, size in enumerate(sizes.tolist()):
        start, end = end, end + size
        values = {name: column[i] for name, column in given.items() if column[i] is not None}
        snippets = snippets_of({name: column[start:end] for name, column in found.items()})
        relevant = tuple([bool(mark) for mark in marks[start:end]])
        if "evidence" in values or "relevant_ids" in values:
            values["evidence"] = [Evidence(**one) for one in values.get("evidence", ())]
            queries.append(JudgedQuery(values.pop("query"), snippets, relevant, **values))
        else:
            queries.append(query_of(values, relevant, snippets))
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
            raise ValueError(
                f"{name} of row {i} has {lengths[i]} entries, but relevant has {sizes[i]}; give "
                "one for each snippet"
            )
        if (absent & (sizes > 0)).any():  # null is null for each snippet
            missing = np.repeat(absent, sizes)
            values = values.take(pa.array(np.cumsum(~missing) - 1, mask=missing))
        kind = OF_SNIPPETS.get(name)
        columns[name] = values if kind is None else cast(values, kind, name)
    return sizes, columns


def _marks(relevant: Any) -> Any:
    if relevant.null_count:
        raise ValueError("relevant has a null; give true or false")
    return relevant.to_numpy()


def _texts(columns: dict[str, Any], name: str) -> Any:
    return columns[name].to_pylist() if name in columns else None


def _numbers(columns: dict[str, Any], name: str) -> Any:
    if name not in columns or 0 < len(columns[name]) == columns[name].null_count:
        return None
    return columns[name].cast(pa.float64()).to_numpy()


def _one(columns: dict[str, Any], name: str) -> str | None:
    found = columns[name].unique().to_pylist() if name in columns else []
    if len(found) > 1:
        raise ValueError(
            f"{name} is {' and '.join(sorted(map(repr, found)))}; give queries that have the same"
        )
    return found[0] if found else None


def _hits(lists: Any) -> tuple[Any, dict[str, Any]]:
    """Return how many hits each snippet has, and the fields of the hits, one after another."""
    lengths, found = sizes_of(lists, "hits")
    if not len(found):
        return lengths, {name: pa.chunked_array([], kind.type) for name, kind in HIT.items()}
    names = [field.name for field in found.type] if pa.types.is_struct(found.type) else []
    if not {"retriever", "rank"} <= {*names} <= {*HIT}:
        raise ValueError(
            f"hits has entries of the type {found.type}; give structs of retriever, rank and score"
        )
    columns = {
        name: cast(pc.struct_field(found, name), kind, f"hits.{name}")
        if name in names
        else pa.chunked_array([pa.nulls(len(found), kind.type)])
        for name, kind in HIT.items()
    }
    if columns["retriever"].null_count or columns["rank"].null_count:
        raise ValueError("hits has a null in retriever or rank; give both of each hit")
    return lengths, columns


def _hit_columns(lists: Any) -> dict[str, HitColumns]:
    lengths, found = _hits(lists)
    place = np.repeat(np.arange(len(lengths)), np.maximum(lengths, 0))
    ranks, scores = (found[name].cast(pa.float64()).to_numpy() for name in ("rank", "score"))
    for i in np.flatnonzero(ranks < 0)[:1].tolist():
        raise ValueError(f"hits.rank is {ranks[i]:g}; give a whole number, 0 for the best")
    made = {}
    for name in sorted(found["retriever"].unique().to_pylist()):
        of = pc.equal(found["retriever"], name).to_numpy()
        if len(np.unique(place[of])) < of.sum():
            raise ValueError(f"hits has the retriever {name!r} twice for a snippet; remove a hit")
        columns = HitColumns(np.full(len(lengths), np.inf), np.full(len(lengths), np.nan))
        columns.ranks[place[of]], columns.scores[place[of]] = ranks[of], scores[of]
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
        tables = (_table_of_scored(scored, start) for start in starts)
    else:
        parts = iter(lambda: all_of(JudgedQuery, islice(every, JUDGED), "queries"), [])
        tables = map(_table_of_judged, chain([next(parts, [])], parts))
    files.write_whole(path, lambda file: _write(file, tables), what="queries")


def _write(file: Any, tables: Iterator[Any]) -> None:
    first = next(tables)
    with pq.ParquetWriter(file, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def _table_of_judged(queries: Sequence[JudgedQuery]) -> Any:
    snippets = [snippet for query in queries for snippet in query.snippets]
    offsets = np.cumsum([0, *[len(query.snippets) for query in queries]])
    columns = {
        name: pa.array([getattr(query, name) for query in queries], kind.type)
        for name, kind in OF_QUERY.items()
        if name not in ("token_unit", "silenced")
    }
    columns["evidence"] = pa.array([query.evidence or None for query in queries], _of(EVIDENCE))
    columns["relevant_ids"] = pa.array(
        [query.relevant_ids or None for query in queries], pa.list_(TEXT.type)
    )
    marks = [mark for query in queries for mark in query.relevant]
    columns["relevant"] = _nested(pa.array(marks, FLAG.type), offsets)
    for name in _OF_JUDGED:
        values = [getattr(snippet, name.removeprefix("snippet_")) for snippet in snippets]
        columns[name] = _nested(pa.array(values, OF_SNIPPETS[name].type), offsets)
    hits = pa.array([snippet.hits or None for snippet in snippets], _of(HIT))
    columns["hits"] = _nested(hits, offsets)
    return pa.table(columns)


def _table_of_scored(every: ScoredQueries, start: int) -> Any:
    bounds = every.offsets[start : start + SCORED + 1]
    queries, of = slice(start, start + len(bounds) - 1), slice(bounds[0], bounds[-1])
    offsets = bounds - bounds[0]
    n = len(bounds) - 1
    columns = {
        "id": pa.array(every.ids[queries], TEXT.type),
        "group": pa.array(every.groups[queries], TEXT.type),
        "split": pa.array([every.split] * n, TEXT.type),
        "token_unit": pa.array([every.token_unit] * n, TEXT.type),
        "missed": pa.array(every.missed[queries], from_pandas=True).cast(WHOLE.type),
        "silenced": pa.array(every.silenced[queries], from_pandas=True).cast(FLAG.type),
        "relevant": _nested(pa.array(every.relevant[of]), offsets),
        "scores": _nested(pa.array(every.scores[of], from_pandas=True), offsets),
    }
    for name in ("tokens", "document_of"):
        if (values := getattr(every, name)) is not None:
            array = pa.array(values[of], from_pandas=True).cast(OF_SNIPPETS[name].type)
            columns[name] = _nested(array, offsets)
    if every.unscorable:
        why = [every.unscorable.get(i) for i in range(bounds[0], bounds[-1])]
        columns["unscorable"] = _nested(pa.array(why, TEXT.type), offsets)
    if every.hits:
        columns["hits"] = _nested(_hit_lists(every.hits, of), offsets)
    return pa.table(columns)


def _hit_lists(hits: Mapping[str, HitColumns], of: slice) -> Any:
    places = [np.flatnonzero(np.isfinite(ranks[of])) for ranks, _ in hits.values()]
    order = np.argsort(np.concatenate(places), kind="stable")
    counts = np.bincount(np.concatenate(places), minlength=of.stop - of.start)
    pairs = list(zip(hits.values(), places, strict=True))
    names = np.repeat(np.array([*hits], dtype=object), [len(place) for place in places])
    ranks = np.concatenate([columns.ranks[of][place] for columns, place in pairs])
    scores = np.concatenate([columns.scores[of][place] for columns, place in pairs])
    found = pa.StructArray.from_arrays(
        [
            pa.array(names[order], TEXT.type),
            pa.array(ranks[order]).cast(WHOLE.type),
            pa.array(scores[order], from_pandas=True),
        ],
        names=[*HIT],
    )
    return _nested(found, np.cumsum([0, *counts]))


def _of(fields: Mapping[str, Kind]) -> Any:
    return pa.list_(pa.struct([(name, kind.type) for name, kind in fields.items()]))


def _nested(values: Any, offsets: Any) -> Any:
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)
