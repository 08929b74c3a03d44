"""Queries as Arrow tables with a row for each of them, as Parquet files have them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.hits import HitColumns
from conformal_retrievers.data.jsonl import TYPES
from conformal_retrievers.data.parquet.row_groups import FLAG, MARK, NUMBER, TEXT, WHOLE, Kind
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.data.retrieval import Described, Hybrid, Retriever
from conformal_retrievers.extras import require

require("parquet", "pyarrow")
import pyarrow as pa

SCORED_ONLY = {"token_unit": TEXT, "silenced": FLAG}
KINDS = {str: TEXT, str | None: TEXT, Retriever | None: TEXT, int | None: WHOLE, bool: FLAG}
OF_QUERY = {n: KINDS[kind] for n, kind in TYPES.items() if kind in KINDS} | SCORED_ONLY
OF_SNIPPETS = {
    **dict.fromkeys(("snippet_id", "text", "document", "unscorable"), TEXT),
    **dict.fromkeys(("position", "document_of"), WHOLE),
    **dict.fromkeys(("retrieval_score", "scores", "tokens"), NUMBER),
    "relevant": MARK,
}


def _of(fields: Mapping[str, Kind]) -> Any:
    return pa.list_(pa.struct([(name, kind.type) for name, kind in fields.items()]))


HIT = {"retriever": TEXT, "rank": WHOLE, "score": NUMBER}
EVIDENCE = {"document": TEXT, "start": WHOLE, "end": WHOLE, "text": TEXT}
LISTS = {"evidence": _of(EVIDENCE), "relevant_ids": pa.list_(TEXT.type)}  # of a judged query
OF_JUDGED = ("snippet_id", "text", "document", "position", "retrieval_score")


def table_of_judged(queries: Sequence[JudgedQuery]) -> Any:
    """Return the table of judged queries."""
    snippets = [snippet for query in queries for snippet in query.snippets]
    offsets = np.cumsum([0, *[len(query.snippets) for query in queries]])
    columns = {
        name: pa.array([_stored(getattr(query, name)) for query in queries], kind.type)
        for name, kind in OF_QUERY.items()
        if name not in SCORED_ONLY
    }
    evidence = [[piece._asdict() for piece in query.evidence] or None for query in queries]
    columns["evidence"] = pa.array(evidence, LISTS["evidence"])
    ids = [query.relevant_ids or None for query in queries]
    columns["relevant_ids"] = pa.array(ids, LISTS["relevant_ids"])
    marks = [mark for query in queries for mark in query.relevant]
    columns["relevant"] = _nested(pa.array(marks, FLAG.type), offsets)
    for name in OF_JUDGED:
        values = [getattr(snippet, name.removeprefix("snippet_")) for snippet in snippets]
        columns[name] = _nested(pa.array(values, OF_SNIPPETS[name].type), offsets)
    hits = pa.array([snippet.hits or None for snippet in snippets], _of(HIT))
    columns["hits"] = _nested(hits, offsets)
    return pa.table(columns)


def table_of_scored(every: ScoredQueries, start: int, end: int) -> Any:
    """Return the table of some scored queries."""
    bounds = every.offsets[start : end + 1]
    queries, own = slice(start, start + len(bounds) - 1), slice(bounds[0], bounds[-1])
    offsets = bounds - bounds[0]
    n = len(bounds) - 1
    texts: dict[str, Any] = {"id": every.ids[queries], "group": every.groups[queries]}
    texts |= {"split": [every.split] * n, "token_unit": [every.token_unit] * n}
    columns = {name: pa.array(values, TEXT.type) for name, values in texts.items()}
    for name in ("missed", "silenced"):
        values = getattr(every, name)[queries]
        columns[name] = pa.array(values, from_pandas=True).cast(OF_QUERY[name].type)
    columns["relevant"] = _nested(pa.array(every.relevant[own]), offsets)
    for name in ("scores", "tokens", "document_of"):
        if (values := getattr(every, name)) is not None:
            array = pa.array(values[own], from_pandas=True).cast(OF_SNIPPETS[name].type)
            columns[name] = _nested(array, offsets)
    if every.unscorable:
        why = [every.unscorable.get(i) for i in range(bounds[0], bounds[-1])]
        columns["unscorable"] = _nested(pa.array(why, TEXT.type), offsets)
    if every.hits:
        columns["hits"] = _nested(_hit_lists(every.hits, own), offsets)
    return pa.table(columns)


def _hit_lists(hits: Mapping[str, HitColumns], of: slice) -> Any:
    places = [np.flatnonzero(np.isfinite(ranks[of])) for ranks, _ in hits.values()]
    order = np.argsort(np.concatenate(places), kind="stable")
    counts = np.bincount(np.concatenate(places), minlength=of.stop - of.start)
    pairs = list(zip(hits.values(), places, strict=True))
    names = np.repeat(np.array([*hits], dtype=object), [len(place) for place in places])
    ranks = np.concatenate([columns.ranks[of][place] for columns, place in pairs])
    scores = np.concatenate([columns.scores[of][place] for columns, place in pairs])
    structs = pa.StructArray.from_arrays(
        [
            pa.array(names[order], TEXT.type),
            pa.array(ranks[order]).cast(WHOLE.type),
            pa.array(scores[order], from_pandas=True),
        ],
        names=[*HIT],
    )
    return _nested(structs, np.cumsum([0, *counts]))


def _stored(value: Any) -> Any:
    return value.model_dump_json() if isinstance(value, Described | Hybrid) else value


def _nested(values: Any, offsets: Any) -> Any:
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values)
