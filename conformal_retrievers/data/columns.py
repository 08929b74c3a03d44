"""Scored queries as columns: one value with flat arrays, for as many queries as memory holds.

The snippets of query q are at offsets[q] … offsets[q + 1] − 1 of every flat array:

    scores [.1 .7 .4 | .2 .9]    relevant [1 0 0 | 1 0]    offsets [0 3 5]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.data.checks import (
    MAX_COUNT,
    all_of,
    as_judgement,
    check_names,
    check_texts,
)
from conformal_retrievers.data.hits import HitColumns
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery, as_numbers, as_scores

Column = NDArray[np.float64]
Objects = NDArray[np.object_]


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
    silenced: Column  # (n,), 1 for a query that a gate silences, else 0; NaN without a gate

    def __init__(
        self,
        scores: ArrayLike,
        relevant: ArrayLike,
        offsets: ArrayLike,
        *,
        ids: Iterable[str | None] | None = None,
        groups: Iterable[str | None] | None = None,
        missed: ArrayLike | None = None,
        tokens: ArrayLike | None = None,
        token_unit: str = "tokens",
        hits: Mapping[str, HitColumns] | None = None,
        split: str | None = None,
        document_of: ArrayLike | None = None,
        unscorable: Mapping[int, str] | None = None,
        silenced: ArrayLike | None = None,
    ) -> None:
        places = _offsets(offsets)
        n, size = len(places) - 1, int(places[-1])
        fields: dict[str, Any] = {
            "scores": _column("scores", scores, size) + 0.0,  # −0 equals 0 in every way
            "relevant": _judgements(relevant, size),
            "offsets": places,
            "ids": _texts("ids", ids, n),
            "groups": _texts("groups", groups, n),
            "missed": _counts("missed", missed, n, MAX_COUNT),
            "tokens": None if tokens is None else _column("tokens", tokens, size),
            "silenced": _counts("silenced", silenced, n, 1),
            "document_of": None if document_of is None else np.array(document_of, dtype=np.intp),
        }
        found = fields["tokens"]
        if found is not None and (bad := np.flatnonzero((found < 0) | np.isinf(found))).size:
            raise ValueError(
                f"tokens[{bad[0]}] is {found[bad[0]]:g}; give a finite number, 0 or more"
            )
        for name, array in fields.items():
            if array is not None:
                array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "token_unit", token_unit)
        object.__setattr__(self, "split", split)
        object.__setattr__(self, "unscorable", dict(unscorable or {}))
        columns = {
            name: HitColumns(
                _column(f"hits[{name!r}].ranks", of.ranks, size),
                _column(f"hits[{name!r}].scores", of.scores, size),
            )
            for name, of in (hits or {}).items()
        }
        object.__setattr__(self, "hits", columns)
        for group in {*fields["groups"].tolist()}:
            check_names("scored", group=group)
        check_names("scored", split=split, **{f"hits {name!r}": name for name in columns})

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
                raise TypeError(
                    f"{name}[0] is a JudgedQuery, which has no scores; give score_queries(scorer, "
                    "judged), where scorer is ConformalFilter.of(calibration).scorer"
                )
        given = all_of(ScoredQuery, queries, name)
        sizes = [len(query.scores) for query in given]
        starts = np.cumsum([0, *sizes])
        with_tokens = any(query.tokens is not None for query in given)
        return cls(
            _joined([query.scores for query in given], np.float64),
            _joined([query.relevant for query in given], np.bool_),
            starts,
            ids=[query.id for query in given],
            groups=[query.group for query in given],
            missed=np.array([query.missed for query in given], dtype=np.float64),  # None is NaN
            tokens=_joined(
                [np.full(len(q.scores), math.nan) if q.tokens is None else q.tokens for q in given],
                np.float64,
            )
            if with_tokens
            else None,
            token_unit=_one(
                "token_unit",
                {query.token_unit for query in given if query.tokens is not None} or {"tokens"},
                "count the tokens of all queries alike",
            ),
            hits=_hits(given),
            split=_one(
                "split",
                {query.split for query in given} or {None},
                "cut the snippets of all of them in one way, with by_sentence (None: whole)",
            ),
            document_of=_joined(
                [
                    np.arange(n) if q.document_of is None else q.document_of
                    for q, n in zip(given, sizes, strict=True)
                ],
                np.intp,
            )
            if any(query.document_of is not None for query in given)
            else None,
            unscorable={
                int(start) + i: why
                for start, query in zip(starts[:-1], given, strict=True)
                for i, why in query.unscorable.items()
            },
            silenced=np.array([query.silenced for query in given], dtype=np.float64),
        )

    @cached_property
    def sizes(self) -> NDArray[np.intp]:
        """The number of snippets of each query, (n,)."""
        return np.diff(self.offsets)

    @cached_property
    def query_of(self) -> NDArray[np.intp]:
        """The number of the query of each snippet, (S,)."""
        return np.repeat(np.arange(len(self)), self.sizes)

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
        of = slice(start, end)
        tokens = None if self.tokens is None else self.tokens[of]
        missed, silenced = float(self.missed[q]), float(self.silenced[q])
        return ScoredQuery(
            self.scores[of],
            self.relevant[of],
            id=self.ids[q],
            group=self.groups[q],
            missed=None if math.isnan(missed) else int(missed),
            tokens=None if tokens is None or np.isnan(tokens).any() else tokens,
            token_unit=self.token_unit,
            hits={
                name: HitColumns(ranks[of], scores[of])
                for name, (ranks, scores) in self.hits.items()
                if np.isfinite(ranks[of]).any()
            },
            split=self.split,
            document_of=None if self.document_of is None else self.document_of[of],
            unscorable={
                j - start: self.unscorable[j] for j in range(start, end) if j in self.unscorable
            },
            silenced=None if math.isnan(silenced) else bool(silenced),
        )

    def __repr__(self) -> str:
        return f"ScoredQueries({len(self)} queries, {len(self.scores)} snippets)"


def _offsets(offsets: ArrayLike) -> NDArray[np.intp]:
    found = as_numbers(offsets, "offsets")
    ascending = found.ndim == 1 and len(found) and found.dtype.kind in "iu" and found[0] == 0
    if not ascending or (np.diff(found) < 0).any():
        raise ValueError(
            f"offsets is {found!r:.60}; give whole numbers (n + 1,) that ascend from 0: where the "
            "snippets of each query begin, and their number"
        )
    return found.astype(np.intp)


def _column(name: str, values: ArrayLike, size: int) -> Column:
    found = as_scores(values, name)
    if found.shape != (size,):
        raise ValueError(
            f"{name} has shape {found.shape}, but offsets end at {size}; give a value for each "
            "snippet"
        )
    return _own(found)


def _judgements(relevant: ArrayLike, size: int) -> NDArray[np.bool_]:
    found = np.asarray(relevant)
    if found.shape != (size,):
        raise ValueError(
            f"relevant has shape {found.shape}, but offsets end at {size}; give a judgement for "
            "each snippet"
        )
    if found.dtype == np.bool_:
        return _own(found)
    for i in np.flatnonzero(~np.isin(found, (0, 1)))[:1].tolist():
        as_judgement("scored", i, found[i])
    return found.astype(np.bool_)


def _texts(name: str, values: Iterable[str | None] | None, n: int) -> Objects:
    found = np.full(n, None, dtype=np.object_)
    if values is None:
        return found
    given = list(values)
    if len(given) != n:
        raise ValueError(f"{name} has {len(given)} entries for {n} queries; give one for each")
    for kind in {*map(type, given)} - {str, type(None)}:
        i = next(i for i, value in enumerate(given) if type(value) is kind)
        if not isinstance(given[i], str):
            raise TypeError(f"{name}[{i}] is {given[i]!r:.60}; give each as a str, or None")
    check_texts("scored", **{name: "".join(filter(None, given))})
    found[:] = given
    return found


def _counts(name: str, values: ArrayLike | None, n: int, most: int) -> Column:
    if values is None:
        return np.full(n, math.nan)
    found = as_scores(values, name)
    if found.shape != (n,):
        raise ValueError(f"{name} has shape {found.shape} for {n} queries; give one for each")
    whole = np.isnan(found) | ((found >= 0) & (found <= most) & (found % 1 == 0))
    if not whole.all():
        i = int(np.argmin(whole))
        raise ValueError(
            f"{name}[{i}] is {found[i]:g}; give a whole number from 0 to {most}, or NaN if it is "
            "unknown"
        )
    return _own(found)


def _hits(given: Sequence[ScoredQuery]) -> dict[str, HitColumns]:
    names = sorted({name for query in given for name in query.hits})

    def column(retriever: str, field: int, missing: float) -> Column:
        return _joined(
            [
                q.hits[retriever][field] if retriever in q.hits else np.full(len(q.scores), missing)
                for q in given
            ],
            np.float64,
        )

    return {r: HitColumns(column(r, 0, math.inf), column(r, 1, math.nan)) for r in names}


def _one(name: str, found: set[Any], remedy: str) -> Any:
    if len(found) > 1:
        raise ValueError(f"{name} is {' and '.join(sorted(map(repr, found)))}; {remedy}")
    return next(iter(found))


def _own(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that nobody else can write to."""
    return array.copy() if array.flags.writeable else array


def _joined(arrays: Sequence[NDArray[Any]], kind: type[Any]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype=kind), *arrays]).astype(kind, copy=False)
