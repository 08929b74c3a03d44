"""Judged queries of a parser, whose values have the right types and valid text, in columns.

What such values need not be checked for takes most of the time that reading them takes.
"""

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import chain, islice, repeat
from types import NoneType
from typing import Any

import numpy as np
from pydantic_core import from_json

from conformal_retrievers.data.checks import as_count
from conformal_retrievers.data.hits import Hit
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.data.text import printable

_SETTERS = {one.name: getattr(Snippet, one.name).__set__ for one in fields(Snippet)}


def snippets_of(columns: Mapping[str, Sequence[Any]]) -> tuple[Snippet, ...]:
    """Return snippets made of their fields in columns, which are checked, and among them `text`."""
    made = tuple(map(object.__new__, repeat(Snippet, len(columns["text"]))))
    for name, set_field in _SETTERS.items():
        values = columns[name] if name in columns else repeat(() if name == "hits" else None)
        deque(map(set_field, made, values), maxlen=0)
    return made


_DEFAULTS = {one.name: one.default for one in fields(JudgedQuery)}


def query_of(
    values: Mapping[str, Any], relevant: tuple[bool, ...], snippets: tuple[Snippet, ...]
) -> JudgedQuery:
    """Return a query whose values come from a parser: they have the right types, and valid text."""
    query = object.__new__(JudgedQuery)
    given = {"snippets": snippets, "relevant": relevant, **values}
    for name, default in _DEFAULTS.items():
        object.__setattr__(query, name, given.get(name, default))
    where = query.name
    for named in (query.group, query.retriever, query.split):
        printable(named or "")
    as_count(where, "missed", query.missed, least=0)
    as_count(where, "k", query.k, least=1)
    query.check_together(where)
    return query


def query_of_line(line: bytes) -> JudgedQuery | None:
    """Return a judged query, or None for a line that the model has to read.

    Such are a wrong line, one with evidence or relevant ids, and one with a value of another type
    than its field has, such as a number as an id.
    """
    try:
        fields = from_json(line, allow_inf_nan=False, cache_strings="keys")
        rows = fields.pop("snippets")
        n_keys = 1 + len(fields) + sum(map(len, rows))
        columns = {name: [row.get(name) for row in rows] for name in {"text"}.union(*rows)}
        if "hits" in columns:
            n_keys += _make_hits(columns)
        plain = (
            type(rows) is list
            and all(_TYPES[name].issuperset(map(type, values)) for name, values in columns.items())
            and all(type(value) in _TYPES_OF_QUERY[name] for name, value in fields.items())
            and _finite(columns.get("retrieval_score", ()))
            and _has(line, n_keys)
        )
        if not plain:
            return None
        relevant = tuple(columns.pop("relevant", ()))
        return query_of(fields, relevant, snippets_of(columns))
    except (TypeError, ValueError, LookupError, AttributeError):
        return None


def _make_hits(columns: dict[str, list[Any]]) -> int:
    """Replace hits by tuples of `Hit`, and return how many keys they have.

    Raises ValueError, without a message, for what the model has to read.
    """
    lists = [hits or () for hits in columns["hits"]]
    found = list(chain.from_iterable(lists))
    names, ranks = [hit["retriever"] for hit in found], [hit["rank"] for hit in found]
    scores = [hit.get("score") for hit in found]
    if not (
        {*map(type, names)} <= {str}
        and {*map(type, ranks)} <= {int}
        and _NUMBER.issuperset(map(type, scores))
        and set().union(*found) <= _OF_HIT
        and _finite(scores)
        and {list, NoneType}.issuperset(map(type, columns["hits"]))
    ):
        raise ValueError
    made = map(Hit, names, ranks, scores)
    columns["hits"] = [tuple(islice(made, len(hits))) for hits in lists]
    return sum(map(len, found))


def _finite(numbers: Iterable[float | None]) -> bool:
    return math.isfinite(sum(filter(None, numbers)))


_Types = set[type[Any]]
_TEXT: _Types = {str, NoneType}
_WHOLE: _Types = {int, NoneType}
_NUMBER: _Types = {float, NoneType}
_TYPES: dict[str, _Types] = {
    "text": {str},
    "relevant": {bool},
    "id": _TEXT,
    "document": _TEXT,
    "position": _WHOLE,
    "retrieval_score": _NUMBER,
    "hits": {tuple},
}
_TYPES_OF_QUERY: dict[str, _Types] = {
    **dict.fromkeys(("id", "group", "retriever", "split"), _TEXT),
    **dict.fromkeys(("missed", "k"), _WHOLE),
    "query": {str},
    "answerable": {bool},
}
_OF_HIT = {*Hit._fields}


_KEY = re.compile(rb'"\s*:')


def _has(line: bytes, n_keys: int) -> bool:
    """Return whether JSON with so many different keys has no more: none of them twice.

    A key ends in a quote, white space and a colon. So do few texts, which count as keys.
    """
    here = np.frombuffer(line, np.uint8)
    found = here[1:] == ord(":")
    found &= here[:-1] <= ord('"')
    return int(np.count_nonzero(found)) == n_keys or len(_KEY.findall(line)) == n_keys
