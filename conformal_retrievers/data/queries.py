"""Queries whose relevant snippets are known.

A `JudgedQuery` is a query with the snippets that a retriever returned and a judgement for each. A
`ScoredQuery` has a score for each snippet instead of its text. Both keep the snippets of a query
together, because the query is the exchangeable unit. Snippets are what a retriever returned, or the
sentences of it if a query has a `split`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.data.checks import (
    as_count,
    as_flag,
    as_judgement,
    check_hits,
    check_names,
    check_texts,
    query_name,
)
from conformal_retrievers.data.hits import RETRIEVER, Hit, HitColumns, Retrieved, hit_columns
from conformal_retrievers.data.ranges import Evidence, as_evidence
from conformal_retrievers.data.recognition import places_of


@dataclass(frozen=True)
class Snippet:
    """A retrieved piece of text, which stands for a LangChain Document or a LlamaIndex Node."""

    text: str
    id: str | None = None
    document: str | None = None  # the document that it was cut from
    position: int | None = None  # its first character in the document
    retrieval_score: float | None = None  # the retriever's own, on the retriever's own scale
    hits: tuple[Hit, ...] = ()  # of each retriever that found it; () if that is unknown
    embedding: Sequence[float] | NDArray[np.floating[Any]] | None = field(
        default=None, compare=False, repr=False
    )  # (d,)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"text is {self.text!r:.60}; give a str, such as document.page_content")


def as_snippets(
    snippets: Iterable[Snippet | str], name: str = "snippets"
) -> tuple[Snippet, ...] | Retrieved[Snippet]:
    """Return the snippets as a tuple, or as they were retrieved; a plain string becomes one."""
    if isinstance(snippets, Retrieved) or (
        type(snippets) is tuple and {*map(type, snippets)} <= {Snippet}
    ):
        return snippets
    if isinstance(snippets, (str, Snippet)):
        raise TypeError(f"{name} is one {type(snippets).__name__}; give a list of snippets")
    return tuple([s if isinstance(s, Snippet) else Snippet(s) for s in snippets])


def with_hits(snippets: Iterable[Snippet | str], retriever: str = RETRIEVER) -> list[Snippet]:
    """Return snippets in the order in which one retriever returned them, each with its hit.

    >>> with_hits(["a", "b"])[1].hits
    (Hit(retriever='retriever', rank=1, score=None),)
    """
    return [
        replace(snippet, hits=(Hit(retriever, rank, snippet.retrieval_score),))
        for rank, snippet in enumerate(as_snippets(snippets))
    ]


def retrieved_in(sentence: Snippet) -> tuple[str | None, str]:
    """Return what names the retrieved document of a sentence, see `Sentences.snippets`.

    >>> retrieved_in(Snippet("Ann did.", id="chunk 3:10", document="page", position=510))
    ('page', 'chunk 3')
    """
    return sentence.document, (sentence.id or "").rpartition(":")[0]


@dataclass(frozen=True, init=False)
class JudgedQuery:
    """A query, its retrieved snippets in the retriever's order, and whether each is relevant.

    Its parameters are its fields. Raises ValueError or TypeError, naming the field, if snippets and
    judgements differ in number, an id occurs twice, a judgement is not true or false, there are
    more than k snippets (or documents, of sentences), evidence is not a range, or a query that is
    not answerable has relevant snippets, missed ones or evidence.
    """

    query: str
    snippets: tuple[Snippet, ...]
    relevant: tuple[bool, ...]
    id: str | None = None
    group: str | None = None  # a property of the query that is known at run time
    missed: int | None = None  # known relevant snippets that were not retrieved; None if unknown
    retriever: str | None = None  # what returned the snippets; judge_retriever fills it in
    k: int | None = None  # how many snippets it was asked for
    evidence: tuple[Evidence, ...] = ()  # where documents answer the query
    split: str | None = None  # what cut the snippets into sentences; None: they are whole
    answerable: bool = True  # False: nothing in the corpus answers it

    def __init__(
        self,
        query: str,
        snippets: Iterable[Snippet | str],
        relevant: Iterable[bool],
        *,
        id: str | None = None,
        group: str | None = None,
        missed: int | None = None,
        retriever: str | None = None,
        k: int | None = None,
        evidence: Iterable[tuple[str, int, int]] = (),
        split: str | None = None,
        answerable: bool = True,
    ) -> None:
        if not isinstance(query, str):
            raise TypeError(f"query is {query!r}; give the text of the query as a str")
        where = query_name(id, query)
        check_texts(where, query=query, id=id)
        check_names(where, group=group, retriever=retriever, split=split)
        fields = {
            "query": query,
            "snippets": tuple(as_snippets(snippets)),
            "relevant": tuple(as_judgement(where, i, r) for i, r in enumerate(relevant)),
            "id": id,
            "group": group,
            "missed": as_count(where, "missed", missed, least=0),
            "retriever": retriever,
            "k": as_count(where, "k", k, least=1),
            "evidence": tuple([as_evidence(where, one) for one in evidence]),
            "split": split,
            "answerable": as_flag(where, "answerable", answerable),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        if not self.answerable and (any(self.relevant) or self.missed or self.evidence):
            raise ValueError(
                f"{where}: answerable is False, but it has relevant snippets, missed ones or "
                "evidence; give these only for a query that the corpus answers"
            )
        for i, s in enumerate(self.snippets):
            check_texts(f"{where}: snippets[{i}]", text=s.text, id=s.id, document=s.document)
        check_hits(where, [s.hits for s in self.snippets])
        for retriever in {hit.retriever for s in self.snippets for hit in s.hits}:
            check_names(where, retriever=retriever)
        n = len(self.snippets)
        if n != len(self.relevant):
            raise ValueError(
                f"{where}: {n} snippets but {len(self.relevant)} judgements in relevant; give one "
                "for each snippet"
            )
        n = n if self.document_of is None else len(set(self.document_of.tolist()))
        if self.k is not None and n > self.k:
            items = "documents" if split else "snippets"
            raise ValueError(
                f"{where}: k is {self.k}, but there are {n} {items}; give the number of {items} "
                "that the retriever was asked for"
            )
        ids = [s.id for s in self.snippets if s.id is not None]
        if len(set(ids)) < len(ids):
            twice = next(id for i, id in enumerate(ids) if id in ids[:i])
            raise ValueError(
                f"{where}: id {twice!r} occurs twice in snippets; give each snippet its own id"
            )

    @property
    def name(self) -> str:
        """The query's name in messages."""
        return query_name(self.id, self.query)

    @property
    def hits(self) -> dict[str, HitColumns]:
        """The hits of each retriever, by its name; empty if they are unknown."""
        return hit_columns([snippet.hits for snippet in self.snippets])

    @property
    def document_of(self) -> NDArray[np.intp] | None:
        """The number of the document of each sentence (n,); None for whole snippets."""
        if self.split is None:
            return None
        numbers: dict[tuple[str | None, str], int] = {}
        keys = map(retrieved_in, self.snippets)
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.intp)

    def retrieved_as(
        self,
        snippets: Iterable[Snippet | str],
        *,
        retriever: str | None = None,
        k: int | None = None,
    ) -> JudgedQuery:
        """Return the same query and judgements with the snippets that a retriever returned for it.

        A snippet is recognised by its id. It is recognised by its text if either side has no id or
        the id was not judged for this query, because some stores assign ids of their own. Snippets
        of equal text count as different ones. Snippets without a judgement count as irrelevant, and
        relevant ones that were not returned add to `missed`. `k` is how many were asked for.
        Evidence stays as it is, and a snippet recognised by its text gets the id that it names.
        Raises ValueError for a query whose snippets are sentences.
        """
        if self.split:
            raise ValueError(
                f"{self.name}: split is {self.split!r}, so its snippets are sentences, which a "
                "retriever does not return; give the query with the documents, and evidence"
            )
        retrieved = tuple(as_snippets(snippets))
        relevant = [s for s, r in zip(self.snippets, self.relevant, strict=True) if r]
        found = places_of(
            [(s.id, s.text) for s in retrieved],
            [(s.id, s.text) for s in relevant],
            {s.id for s in self.snippets},
        )
        not_returned = len(relevant) - len({j for j in found if j is not None})
        return replace(
            self,
            snippets=self._with_ids_of_evidence(retrieved, relevant, found),
            relevant=tuple(j is not None for j in found),
            missed=(self.missed or 0) + not_returned,
            retriever=retriever,
            k=k,
        )

    def _with_ids_of_evidence(
        self, retrieved: Sequence[Snippet], relevant: Sequence[Snippet], found: Sequence[int | None]
    ) -> tuple[Snippet, ...]:
        named = {one.document for one in self.evidence} - {s.id for s in retrieved}
        ids = [None if j is None else relevant[j].id for j in found]
        return tuple(
            replace(s, id=id) if id in named and id not in ids[:i] else s
            for i, (s, id) in enumerate(zip(retrieved, ids, strict=True))
        )


@dataclass(frozen=True, eq=False)
class ScoredQuery:
    """The scores of one query's snippets: nonconformity, lower = more relevant.

    Raises ValueError or TypeError, naming the field, if scores and judgements differ in number or a
    value is out of range.
    """

    scores: NDArray[np.float64]  # (n,); NaN for a snippet that could not be scored
    relevant: NDArray[np.bool_]  # (n,)
    id: str | None = field(default=None, kw_only=True)
    group: str | None = field(default=None, kw_only=True)
    missed: int | None = field(default=None, kw_only=True)  # None if unknown
    tokens: NDArray[np.float64] | None = field(default=None, kw_only=True, repr=False)  # (n,)
    token_unit: str = field(default="tokens", kw_only=True)  # what `tokens` counts
    # What each retriever knows of the snippets, (n,) each, by its name; empty if unknown.
    hits: Mapping[str, HitColumns] = field(default_factory=dict, kw_only=True, repr=False)
    # What cut the snippets into sentences, and the number of each one's document, (n,).
    split: str | None = field(default=None, kw_only=True)
    document_of: NDArray[np.intp] | None = field(default=None, kw_only=True, repr=False)
    # Why a snippet has no score, where that is known, by its place.
    unscorable: Mapping[int, str] = field(default_factory=dict, kw_only=True, repr=False)
    silenced: bool | None = field(default=None, kw_only=True)  # by a gate; None without one

    def __post_init__(self) -> None:
        where = self.name
        scores = as_scores(self.scores, f"{where}: scores") + 0.0  # −0 equals 0 in every way
        relevant = np.array(self.relevant)
        if relevant.dtype != np.bool_ or isinstance(self.relevant, np.ma.MaskedArray):
            relevant = np.array([as_judgement(where, *r) for r in enumerate(self.relevant)], bool)
        if scores.shape != (len(relevant),):
            raise ValueError(
                f"{where}: scores has shape {scores.shape}, but relevant has {len(relevant)} "
                "judgements; give one score and one judgement for each snippet"
            )
        check_texts(where, id=self.id)
        check_names(where, group=self.group, split=self.split)
        for name, array in (("scores", scores), ("relevant", relevant)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "missed", as_count(where, "missed", self.missed, least=0))
        if self.tokens is not None:
            tokens = np.array(as_scores(self.tokens, f"{where}: tokens"))
            if tokens.shape != scores.shape or not ((tokens >= 0) & np.isfinite(tokens)).all():
                raise ValueError(
                    f"{where}: tokens is {self.tokens!r:.60}; give a finite number, 0 or more, for "
                    "each snippet"
                )
            object.__setattr__(self, "tokens", tokens)

    @property
    def n_missed(self) -> int:
        """How many relevant snippets are known to be missed: 0 if `missed` is unknown."""
        return self.missed or 0

    @property
    def name(self) -> str:
        """The query's name in messages."""
        return "a query" if self.id is None else f"query {self.id!r}"


def as_scores(scores: ArrayLike | Sequence[float | None], name: str) -> NDArray[np.float64]:
    """Return scores as floats, NaN for None and where an array is masked.

    Raises ValueError, with their name, for scores that are not numbers.
    """
    if type(scores) is np.ndarray and scores.dtype == np.float64:
        return scores
    return as_numbers(scores, name).astype(np.float64)


def as_numbers(values: Any, name: str) -> NDArray[Any]:
    """Return numbers as an array of their type, or of floats if there is None or a masked one.

    Raises ValueError, with their name, for values that are not numbers.
    """
    try:
        masked = np.ma.MaskedArray in map(type, values if isinstance(values, list) else [values])
        array = np.ma.array(values) if masked else np.asarray(values)
        objects = array.flat if array.dtype == object else ()
        if array.dtype.kind not in "biufO" or any(isinstance(x, (str, bytes)) for x in objects):
            raise TypeError("they are text, dates or complex numbers")
        if not masked and array.dtype != object:
            return array
        return np.ma.filled(array.astype(np.float64), np.nan)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # of a tensor's gradient
        raise ValueError(
            f"{name} are not numbers ({error}); give floats, NaN for a missing one"
        ) from error
