"""Scored queries as columns: one value with flat arrays, for as many queries as memory holds.

The snippets of query q are at offsets[q] … offsets[q + 1] − 1 of every flat array:

    scores [.1 .7 .4 | .2 .9]    relevant [1 0 0 | 1 0]    offsets [0 3 5]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypedDict, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Unpack

from conformal_retrievers.data import column_checks
from conformal_retrievers.data.checks import MAX_COUNT, all_of, check_names
from conformal_retrievers.data.column_checks import Column, Objects
from conformal_retrievers.data.hits import HitColumns, unknown_hits
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.data.wording import say

OF_QUERIES: dict[str, type[Any]] = {
    "ids": object,
    "groups": object,
    "missed": float,
    "silenced": float,
}
IN_ONE_WAY = "cut the snippets of all of them in one way, with by_sentence (None: whole)"
OF_SNIPPETS = ("scores", "relevant", "tokens", "document_of")


class Known(TypedDict, total=False):
    """What may be known of scored queries and their snippets, as arrays or lists."""

    ids: Iterable[str | None] | None
    groups: Iterable[str | None] | None
    missed: ArrayLike | None
    tokens: ArrayLike | None
    token_unit: str
    hits: Mapping[str, HitColumns] | None
    split: str | None
    document_of: ArrayLike | None
    unscorable: Mapping[int, str] | None
    silenced: ArrayLike | None


@dataclass(frozen=True, eq=False, repr=False, init=False)
class ScoredQueries(Sequence[ScoredQuery]):
    """The scores of n queries with S snippets in all; as a sequence, a `ScoredQuery` for each.

    >>> queries = ScoredQueries([0.1, 0.7, 0.4, 0.2, 0.9], [1, 0, 0, 1, 0], [0, 3, 5])
    >>> len(queries), queries[1].scores
    (2, array([0.2, 0.9]))

    Its parameters are its fields. Raises ValueError or TypeError, naming the field, if lengths
    differ or a value is out of range.
    """

    scores: NDArray[np.float64]  # (S,); NaN for a snippet that could not be scored
    relevant: NDArray[np.bool_]  # (S,)
    offsets: NDArray[np.intp]  # (n + 1,), from 0 to S
    ids: Objects  # (n,), str or None
    groups: Objects  # (n,), str or None
    missed: Column  # (n,), relevant snippets that were not retrieved; NaN if unknown
    tokens: Column | None  # (S,), NaN where they are unknown
    token_unit: str  # what `tokens` counts
    hits: Mapping[str, HitColumns]  # (S,) of each retriever, by its name; empty if unknown
    split: str | None  # what cut the snippets into sentences
    document_of: NDArray[np.intp] | None  # (S,), the document of each sentence, within its query
    unscorable: Mapping[int, str]  # why a snippet has no score, by its place among all S
    silenced: Column  # (n,), 1 for a query that is silenced, else 0; NaN where none can be

    def __init__(
        self, scores: ArrayLike, relevant: ArrayLike, offsets: ArrayLike, **known: Unpack[Known]
    ) -> None:
        if unknown := known.keys() - Known.__annotations__:
            raise TypeError(f"{min(unknown)} is not a column of scored queries; leave it out")
        given: dict[str, Any] = {**dict.fromkeys(Known.__annotations__), **known}
        places = column_checks.as_offsets(offsets)
        n, size = len(places) - 1, int(places[-1])
        hits = {
            name: HitColumns(
                column_checks.as_column(f"hits[{name!r:.60}].ranks", ranks, size),
                column_checks.as_column(f"hits[{name!r:.60}].scores", of_retriever, size),
            )
            for name, (ranks, of_retriever) in (given["hits"] or {}).items()
        }
        columns: dict[str, Any] = {
            "scores": column_checks.as_column("scores", scores, size),
            "relevant": column_checks.as_judgements(relevant, size),
            "offsets": places,
            "ids": column_checks.as_texts("ids", given["ids"], n),
            "groups": column_checks.as_texts("groups", given["groups"], n),
            "missed": column_checks.as_counts("missed", given["missed"], n, MAX_COUNT),
            "tokens": column_checks.as_tokens(given["tokens"], size),
            "token_unit": given["token_unit"] or "tokens",
            "hits": hits,
            "split": given["split"],
            "document_of": column_checks.as_documents(given["document_of"], size),
            "unscorable": dict(given["unscorable"] or {}),
            "silenced": column_checks.as_counts("silenced", given["silenced"], n, 1),
        }
        for group in {*columns["groups"].tolist()}:
            check_names("scored", group=group)
        named = {f"hits {name!r:.60}": name for name in hits}
        check_names("scored", split=columns["split"], **named)
        self._set(columns)

    @classmethod
    def of(cls, queries: Iterable[ScoredQuery], name: str = "scored") -> ScoredQueries:
        """Return queries as columns; columns are returned as they are. Errors use `name`.

        Raises TypeError for anything else, and ValueError for queries that differ in split, or in
        what their tokens count.
        """
        if isinstance(queries, ScoredQueries):
            return queries
        if not isinstance(queries, ScoredQuery):
            queries = list(queries)
            if queries and isinstance(queries[0], JudgedQuery):
                raise TypeError(say("not scored", name=name))
        given = all_of(ScoredQuery, queries, name)
        return cls(
            offsets=np.cumsum([0, *[len(query.scores) for query in given]]),
            ids=[query.id for query in given],
            groups=[query.group for query in given],
            missed=np.array([query.missed for query in given], dtype=np.float64),  # None is NaN
            silenced=np.array([query.silenced for query in given], dtype=np.float64),
            **_of_snippets(given),
        )

    @classmethod
    def of_units(cls, scores: ArrayLike, units: Sequence[Any]) -> ScoredQueries:
        """Return one relevant score for each unit, such as an answer: it has an id and a group."""
        every = np.ones(len(units), dtype=np.bool_), np.arange(len(units) + 1)
        ids, groups = [unit.id for unit in units], [unit.group for unit in units]
        return cls(scores, *every, ids=ids, groups=groups)

    @classmethod
    def joined(cls, parts: Iterable[ScoredQueries]) -> ScoredQueries:
        """Return the queries of all parts, in their order.

        Raises ValueError for parts that differ in split, or in what their tokens count.
        """
        every = list(parts)
        given = [part for part in every if len(part)] or every[:1]
        if len(given) == 1:
            return given[0]
        columns = _of_snippets(given)
        for name, kind in OF_QUERIES.items():
            columns[name] = _joined([getattr(part, name) for part in given], kind)
        sizes = _joined([part.sizes for part in given], np.intp)
        return cls(offsets=np.cumsum(np.append(0, sizes)), **columns)

    def select(self, queries: ArrayLike) -> ScoredQueries:
        """Return some of the queries, by a mask (n,) or by their places."""
        given = np.asarray(queries)
        places = np.flatnonzero(given) if given.dtype == np.bool_ else given.astype(np.intp)
        offsets = np.concatenate([[0], np.cumsum(self.sizes[places])])
        first = np.repeat(self.offsets[places] - offsets[:-1], self.sizes[places])
        snippets, why = np.arange(offsets[-1]) + first, self.unscorable
        lost = enumerate(snippets.tolist() if why else ())
        return self._with(
            **{name: getattr(self, name)[places] for name in OF_QUERIES},
            **{name: _at(getattr(self, name), snippets) for name in OF_SNIPPETS},
            offsets=offsets,
            hits={name: hits.at(snippets) for name, hits in self.hits.items()},
            unscorable={i: why[j] for i, j in lost if j in why},
        )

    def relevant_only(self) -> ScoredQueries:
        """Return all queries with only their relevant scores, ascending; NaN, kept, is −inf."""
        places = np.flatnonzero(self.relevant)
        scores, offsets = self.scores[places], np.searchsorted(places, self.offsets)
        scores[np.isnan(scores)] = -math.inf
        sizes = np.diff(offsets)
        for size in np.unique(sizes[sizes > 1]).tolist():  # queries of one size as a matrix
            rows = offsets[:-1][sizes == size][:, None] + np.arange(size)
            scores[rows] = np.sort(scores[rows], axis=1)
        return self._with(
            scores=scores,
            relevant=np.ones(len(scores), dtype=np.bool_),
            offsets=offsets,
            tokens=None,
            hits={},
            document_of=None,
            unscorable={},
        )

    def _with(self, **changed: Any) -> ScoredQueries:
        """Return the queries with some columns replaced, which are right."""
        made = object.__new__(ScoredQueries)
        made._set({field.name: getattr(self, field.name) for field in fields(self)} | changed)
        return made

    def _set(self, columns: Mapping[str, Any]) -> None:
        for name, value in columns.items():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
            object.__setattr__(self, name, value)

    @cached_property
    def sizes(self) -> NDArray[np.intp]:
        """The number of snippets of each query, (n,)."""
        return np.diff(self.offsets)

    @cached_property
    def query_of(self) -> NDArray[np.intp]:
        """The number of the query of each snippet, (S,)."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def number_in(self, snippets: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return how many snippets of each query are in a mask (S,): (n,)."""
        number = np.zeros(len(self), dtype=np.intp)
        filled = np.flatnonzero(self.sizes)
        number[filled] = np.add.reduceat(snippets, self.offsets[filled], dtype=np.intp)
        return number

    @cached_property
    def lowest(self) -> Column:
        """The lowest finite score of each query, (n,); +inf for a query without one."""
        lowest = np.full(len(self), math.inf)
        filled = np.flatnonzero(self.sizes)
        finite = np.where(np.isfinite(self.scores), self.scores, math.inf)
        lowest[filled] = np.minimum.reduceat(finite, self.offsets[filled])
        return lowest

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, i: int) -> ScoredQuery: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[ScoredQuery]: ...
    def __getitem__(self, i: int | slice) -> ScoredQuery | Sequence[ScoredQuery]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        q = range(len(self))[i]
        start, end = self.offsets[q : q + 2].tolist()
        own = slice(start, end)
        tokens, hits = _at(self.tokens, own), {name: h.at(own) for name, h in self.hits.items()}
        missed, silenced = float(self.missed[q]), float(self.silenced[q])
        why = self.unscorable
        return ScoredQuery(
            self.scores[own],
            self.relevant[own],
            id=self.ids[q],
            group=self.groups[q],
            missed=None if math.isnan(missed) else int(missed),
            tokens=None if tokens is None or np.isnan(tokens).any() else tokens,
            token_unit=self.token_unit,
            hits={name: h for name, h in hits.items() if np.isfinite(h.ranks).any()},
            split=self.split,
            document_of=_at(self.document_of, own),
            unscorable={j - start: why[j] for j in range(start, end) if j in why},
            silenced=None if math.isnan(silenced) else bool(silenced),
        )

    def __repr__(self) -> str:
        return f"ScoredQueries({len(self)} queries, {len(self.scores)} snippets)"


def _of_snippets(parts: Sequence[Any]) -> dict[str, Any]:
    """Return what parts have of snippets, one after another, and what they have in common."""
    sizes = [len(part.scores) for part in parts]
    starts = np.cumsum([0, *sizes]).tolist()

    def column(name: str, kind: type[Any], unknown: Callable[[int], NDArray[Any]]) -> Any:
        values = [getattr(part, name) for part in parts]
        if all(value is None for value in values):
            return None
        pairs = zip(values, sizes, strict=True)
        return _joined([unknown(n) if value is None else value for value, n in pairs], kind)

    retrievers = sorted({name for part in parts for name in part.hits})

    def hits_of(name: str) -> HitColumns:
        pairs = zip(parts, sizes, strict=True)
        columns = [part.hits.get(name) or unknown_hits(n) for part, n in pairs]
        return HitColumns(*[_joined(c, np.float64) for c in zip(*columns, strict=True)])

    units = {part.token_unit for part in parts if part.tokens is not None} or {"tokens"}
    return {
        "scores": _joined([part.scores for part in parts], np.float64),
        "relevant": _joined([part.relevant for part in parts], np.bool_),
        "tokens": column("tokens", np.float64, lambda n: np.full(n, math.nan)),
        "token_unit": the_same("token_unit", units, "count the tokens of all queries alike"),
        "hits": {name: hits_of(name) for name in retrievers},
        "split": the_same("split", {part.split for part in parts} or {None}, IN_ONE_WAY),
        "document_of": column("document_of", np.intp, np.arange),
        "unscorable": {
            start + i: why
            for start, part in zip(starts, parts, strict=False)
            for i, why in part.unscorable.items()
        },
    }


def places_by_group(groups: Objects) -> dict[str | None, NDArray[np.intp]]:
    """Return the places of the queries of each group, both in the order of first occurrence.

    >>> places = places_by_group(np.array(["b", None] * 20, dtype=object))
    >>> [*places], places[None][:3]
    (['b', None], array([1, 3, 5]))
    """
    numbers: dict[str | None, int] = {}
    given = [numbers.setdefault(group, len(numbers)) for group in groups.tolist()]
    number_of = np.array(given, dtype=np.intp)
    members = np.argsort(number_of, kind="stable")
    ends = np.cumsum(np.bincount(number_of))[:-1]
    return dict(zip(numbers, np.split(members, ends), strict=False))  # of no query: one part


def the_same(name: str, values: set[Any], remedy: str) -> Any:
    """Return the only one of some values; raise ValueError, with their name, if they differ."""
    if len(values) > 1:
        raise ValueError(f"{name} is {' and '.join(sorted(map(repr, values)))}; {remedy}")
    return next(iter(values))


def _joined(arrays: Sequence[NDArray[Any]], kind: type[Any]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype=kind), *arrays]).astype(kind, copy=False)


def _at(column: NDArray[Any] | None, places: Any) -> NDArray[Any] | None:
    return None if column is None else column[places]
