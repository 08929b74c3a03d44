"""Queries whose relevant snippets are known.

A `JudgedQuery` is a query with the snippets that the retriever returned and a judgement for each. A
`ScoredQuery` is what is left of one once a scorer has turned each snippet into a number. Both keep
the snippets of one query together, because the query is the unit that is exchangeable. `jsonl.py`
and `beir.py` read them from files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_MISSED = 1_000_000  # each is held as a score, +inf, where missed snippets count


@dataclass(frozen=True, init=False)
class Snippet:
    """A piece of text that was retrieved: what a LangChain Document or a LlamaIndex Node becomes.

    `document` and `position` say where it was cut from, `retrieval_score` is the retriever's own
    number on the retriever's own scale, `embedding` (d,) is its vector where one is at hand.
    """

    text: str
    id: str | None = None
    document: str | None = None
    position: int | None = None
    retrieval_score: float | None = None
    embedding: Sequence[float] | NDArray[np.floating[Any]] | None = field(
        default=None, compare=False, repr=False
    )

    def __init__(
        self,
        text: str,
        id: str | None = None,
        document: str | None = None,
        position: int | None = None,
        retrieval_score: float | None = None,
        embedding: Sequence[float] | NDArray[np.floating[Any]] | None = None,
    ) -> None:
        if not isinstance(text, str):
            raise TypeError(f"text is {text!r}; give a snippet's text as a str")
        # Past the frozen class's __setattr__: hundreds are made for each query.
        fields = self.__dict__
        fields["text"] = text
        fields["id"] = id
        fields["document"] = document
        fields["position"] = position
        fields["retrieval_score"] = retrieval_score
        fields["embedding"] = embedding


def as_snippets(snippets: Iterable[Snippet | str]) -> tuple[Snippet, ...]:
    """Return the snippets as a tuple, plain strings made into snippets."""
    if isinstance(snippets, (str, Snippet)):
        raise TypeError(f"snippets is one {type(snippets).__name__}; give a list of snippets")
    return tuple([s if isinstance(s, Snippet) else Snippet(s) for s in snippets])


@dataclass(frozen=True, init=False)
class JudgedQuery:
    """A query, its retrieved snippets in the retriever's order, and whether each is relevant.

    `missed` is the number of known relevant snippets that the retriever did not return, `group` a
    property of the query that is known at run time. `retriever` names what returned the snippets,
    and `k` is the depth it was asked for (the frameworks' `judge_retriever` fills these in). Raises
    ValueError or TypeError, naming the field, where lengths disagree, an id occurs twice, a
    judgement is not true or false or there are more than k snippets.
    """

    query: str
    snippets: tuple[Snippet, ...]
    relevant: tuple[bool, ...]
    id: str | None = None
    group: str | None = None
    missed: int = 0
    retriever: str | None = None
    k: int | None = None

    def __init__(
        self,
        query: str,
        snippets: Iterable[Snippet | str],
        relevant: Iterable[bool],
        *,
        id: str | None = None,
        group: str | None = None,
        missed: int = 0,
        retriever: str | None = None,
        k: int | None = None,
    ) -> None:
        if not isinstance(query, str):
            raise TypeError(f"query is {query!r}; give the query's text as a str")
        where = _name_of(id, query)
        _check_names(where, id=id, group=group, retriever=retriever)
        fields = {
            "query": query,
            "snippets": as_snippets(snippets),
            "relevant": tuple(_judgement(where, i, r) for i, r in enumerate(relevant)),
            "id": id,
            "group": group,
            "missed": _missed(where, missed),
            "retriever": retriever,
            "k": _depth(where, k),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        if len(self.snippets) != len(self.relevant):
            raise ValueError(
                f"{where}: {len(self.snippets)} snippets but {len(self.relevant)} judgements in "
                "relevant; give one for each snippet"
            )
        if self.k is not None and len(self.snippets) > self.k:
            raise ValueError(
                f"{where}: {len(self.snippets)} snippets but k is {self.k}; give the depth that "
                "the retriever was asked for"
            )
        ids = [s.id for s in self.snippets if s.id is not None]
        twice = next((id for i, id in enumerate(ids) if id in ids[:i]), None)
        if twice is not None:
            raise ValueError(
                f"{where}: snippet id {twice!r} occurs twice in snippets; a snippet is judged "
                "once, so remove the repetition or give each its own id"
            )

    @property
    def name(self) -> str:
        """How messages speak of this query."""
        return _name_of(self.id, self.query)

    def retrieved_as(
        self,
        snippets: Iterable[Snippet | str],
        *,
        retriever: str | None = None,
        k: int | None = None,
    ) -> JudgedQuery:
        """Return the same query and judgements with the snippets that a retriever returned for it.

        `retriever` names it, and `k` is the depth it was asked for, where known. A snippet is known
        by its id, or by its text where either side has no id or its id was not judged for this
        query, as where a store gives ids of its own; one that was not judged counts as irrelevant.
        Relevant snippets that were not returned add to `missed`; of several with the same text,
        each snippet returned is another, as far as they go.
        """
        retrieved = as_snippets(snippets)
        relevant = [s for s, r in zip(self.snippets, self.relevant, strict=True) if r]
        found = _found(relevant, retrieved, {s.id for s in self.snippets})
        not_returned = len(relevant) - len({j for j in found if j is not None})
        return JudgedQuery(
            self.query,
            retrieved,
            [j is not None for j in found],
            id=self.id,
            group=self.group,
            missed=self.missed + not_returned,
            retriever=retriever,
            k=k,
        )


@dataclass(frozen=True, eq=False)
class ScoredQuery:
    """The scores of one query's snippets: nonconformity, lower = more relevant.

    `scores` and `relevant` (n,) belong together; NaN is a snippet that could not be scored.
    `unscorable` says of snippets, by their places, why they have no score, where that is known.
    Raises ValueError or TypeError, naming the field, where lengths disagree or a value is out of
    range.
    """

    scores: NDArray[np.float64]
    relevant: NDArray[np.bool_]
    id: str | None = field(default=None, kw_only=True)
    group: str | None = field(default=None, kw_only=True)
    missed: int = field(default=0, kw_only=True)
    unscorable: Mapping[int, str] = field(default_factory=dict, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        where = _name_of(self.id, None)
        scores = np.array(self.scores, dtype=np.float64) + 0.0  # −0 becomes 0, equal things alike
        relevant = np.array(self.relevant)
        if relevant.dtype != np.bool_:
            relevant = np.array(
                [_judgement(where, i, r) for i, r in enumerate(self.relevant)], bool
            )
        if scores.shape != (len(relevant),):
            raise ValueError(
                f"{where}: scores has shape {scores.shape} but relevant has {len(relevant)} "
                "judgements; give one score and one judgement for each snippet"
            )
        _check_names(where, id=self.id, group=self.group)
        object.__setattr__(self, "missed", _missed(where, self.missed))
        scores.setflags(write=False)
        relevant.setflags(write=False)
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "relevant", relevant)

    @property
    def name(self) -> str:
        """How messages speak of this query."""
        return _name_of(self.id, None)


def _name_of(id: str | None, query: str | None) -> str:
    if id is not None:
        return f"query {id!r}"
    return (
        "a query" if query is None else f"query {query[:60] + '…' if len(query) > 60 else query!r}"
    )


def _check_names(where: str, **names: object) -> None:
    for field_name, value in names.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{where}: {field_name} is {value!r}; give a str, or None")


def _judgement(where: str, i: int, value: object) -> bool:
    if isinstance(value, (bool, np.bool_)) or (
        isinstance(value, (int, np.integer)) and value in (0, 1)
    ):
        return bool(value)
    raise ValueError(
        f"{where}: relevant[{i}] is {value!r}; a judgement is true or false (compare graded "
        "judgements with a grade first)"
    )


def _missed(where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise ValueError(
            f"{where}: missed is {value!r}; give the number of relevant snippets that were not "
            "retrieved, 0 or more"
        )
    if value > MOST_MISSED:
        raise ValueError(
            f"{where}: missed is {value}, but nobody knows of more than {MOST_MISSED} relevant "
            "snippets of a query; give the number of those that are judged relevant"
        )
    return int(value)


def _depth(where: str, value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(
            f"{where}: k is {value!r}; give the number of snippets that the retriever was asked "
            "for, 1 or more, or None"
        )
    return int(value)


def _found(
    relevant: Sequence[Snippet], retrieved: Sequence[Snippet], judged: Collection[str | None]
) -> list[int | None]:
    """Return the place in `relevant` of each retrieved snippet, None where it is not there.

    Of several that a snippet may be by its text, it is one that no other is, if there is one.
    """
    may_be = [
        [j for j, known in enumerate(relevant) if _same(known, snippet, judged)]
        for snippet in retrieved
    ]
    found: list[int | None] = [None] * len(retrieved)
    taken: set[int] = set()
    # First those whose id was judged: they can be no other.
    for i in sorted(range(len(retrieved)), key=lambda i: not _by_id(retrieved[i], judged)):
        if may_be[i]:
            place = next((j for j in may_be[i] if j not in taken), may_be[i][0])
            found[i] = place
            taken.add(place)
    return found


def _same(known: Snippet, snippet: Snippet, judged: Collection[str | None]) -> bool:
    if known.id is not None and _by_id(snippet, judged):
        return known.id == snippet.id
    return known.text == snippet.text


def _by_id(snippet: Snippet, judged: Collection[str | None]) -> bool:
    return snippet.id is not None and snippet.id in judged
