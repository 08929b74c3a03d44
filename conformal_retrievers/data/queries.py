"""Queries whose relevant snippets are known.

A `JudgedQuery` is a query with the snippets that a retriever returned and a judgement for each. A
`ScoredQuery` has a score for each snippet instead of its text. Both keep the snippets of a query
together, because the query is the exchangeable unit. Snippets are what a retriever returned, or the
sentences of it if a query has a `split`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data import checks
from conformal_retrievers.data.checks import as_numbers, as_scores, query_name
from conformal_retrievers.data.hits import Hit, HitColumns
from conformal_retrievers.data.ranges import Evidence, Quote, as_evidence
from conformal_retrievers.data.recognition import places_of
from conformal_retrievers.data.retrieval import Retriever, as_retriever
from conformal_retrievers.data.snippets import Retrieved, Snippet, as_snippets, source_of, with_hits
from conformal_retrievers.data.wording import say

__all__ = ["Hit", "JudgedQuery", "ScoredQuery", "Snippet", "as_numbers", "as_scores", "as_snippets"]
__all__ += ["source_of", "with_hits"]


@dataclass(frozen=True, init=False)
class JudgedQuery:
    """A query, its retrieved snippets in the retriever's order, and whether each is relevant.

    Its parameters are its fields. `missed` is how many known relevant snippets were not retrieved,
    None if that is unknown. `group` is a property of the query that is known at run time, and `k`
    the number of snippets that the retriever was asked for.

    Raises ValueError or TypeError, naming the field, if snippets and judgements differ in number,
    an id occurs twice, a judgement is not true or false, there are more than k snippets (or
    documents, of sentences), evidence is not a range, relevant ids stand beside snippets, or a
    query that is not answerable has relevant snippets, missed ones or evidence.

    >>> JudgedQuery("Who?", ["Ann did.", "It was."], [True, False], id="q1")
    JudgedQuery('Who?', 2 snippets, 1 relevant, id='q1')
    """

    query: str
    snippets: tuple[Snippet, ...]
    relevant: tuple[bool, ...]
    id: str | None = None
    group: str | None = None
    missed: int | None = None
    retriever: Retriever | None = None  # what returned the snippets; judge_retriever fills it in
    k: int | None = None
    evidence: tuple[Evidence | Quote, ...] = ()  # where documents answer the query
    split: str | None = None  # what cut the snippets into sentences; None: they are whole
    answerable: bool = True  # False: nothing in the corpus answers it
    relevant_ids: tuple[str, ...] = ()  # see `from_ids`; () once it is retrieved
    _shared: ClassVar[Retrieved | None] = None  # by several scorers, see `shared_in`

    def __init__(
        self,
        query: str,
        snippets: Iterable[Snippet | str],
        relevant: Iterable[bool],
        *,
        id: str | None = None,
        group: str | None = None,
        missed: int | None = None,
        retriever: Retriever | None = None,
        k: int | None = None,
        evidence: Iterable[tuple[str, int, int] | tuple[str, str]] = (),
        split: str | None = None,
        answerable: bool = True,
        relevant_ids: Iterable[str] = (),
    ) -> None:
        if not isinstance(query, str):
            raise TypeError(f"query is {query!r:.60}; give the text of the query as a str")
        where = query_name(id, query)
        checks.check_texts(where, query=query, id=id)
        checks.check_names(where, group=group, split=split)
        vars(self).update(
            query=query,
            id=id,
            group=group,
            split=split,
            snippets=tuple(as_snippets(snippets)),
            relevant=checks.as_judgements(where, relevant),
            missed=checks.as_count(where, "missed", missed, least=0),
            retriever=as_retriever(where, retriever),
            k=checks.as_count(where, "k", k, least=1),
            evidence=tuple([as_evidence(where, piece) for piece in evidence]),
            answerable=checks.as_flag(where, "answerable", answerable),
            relevant_ids=checks.as_ids(where, "relevant_ids", relevant_ids),
        )
        checks.check_snippets(where, self.snippets)
        self._check_together(where)

    def _check_together(self, where: str) -> None:
        """Raise ValueError unless the fields agree, each of which has a value that it may have."""
        known = any(self.relevant) or self.missed or self.evidence or self.relevant_ids
        if known and not self.answerable:
            raise ValueError(say("not answerable", where=where))
        if self.relevant_ids and self.snippets:
            raise ValueError(say("ids beside snippets", where=where, n=len(self.snippets)))
        checks.check_hits(where, [s.hits for s in self.snippets])
        n = len(self.snippets)
        if n != len(self.relevant):
            raise ValueError(say("judgement each", where=where, n=n, judged=len(self.relevant)))
        n = n if self.document_of is None else len(set(self.document_of.tolist()))
        if self.k is not None and n > self.k:
            items = "documents" if self.split else "snippets"
            raise ValueError(say("more than k", where=where, k=self.k, n=n, items=items))
        ids = [s.id for s in self.snippets if s.id is not None]
        if len(set(ids)) < len(ids):
            [(twice, _)] = Counter(ids).most_common(1)
            raise ValueError(say("id twice", where=where, id=twice))

    def __repr__(self) -> str:
        n = f"{len(self.snippets)} snippets, {sum(self.relevant)} relevant"
        return f"JudgedQuery({self.query!r:.80}, {n}, id={self.id!r:.80})"

    @classmethod
    def from_ids(
        cls,
        query: str,
        relevant_ids: Iterable[str],
        *,
        id: str | None = None,
        group: str | None = None,
    ) -> JudgedQuery:
        """Return a query whose relevant snippets are known by id, as in qrels, and not their texts.

        It is to be retrieved: `judge_retriever` of both packages and `retrieved_as` recognise the
        snippets, or with `key=` the documents that they were cut from, and count the others in
        `missed`. Nothing else takes it.

        Raises TypeError for ids that are not a list of str, such as a mapping to grades, and
        ValueError for none, or a blank one.
        """
        made = cls(query, (), (), id=id, group=group, relevant_ids=relevant_ids)
        if not made.relevant_ids:
            raise ValueError(say("no relevant ids", query=made))
        return made

    @classmethod
    def from_evidence(
        cls,
        query: str,
        evidence: Iterable[tuple[str, int, int] | tuple[str, str]],
        *,
        id: str | None = None,
        group: str | None = None,
    ) -> JudgedQuery:
        """Return a query with what answers it in documents: characters of them, or a quoted text.

        It is to be retrieved, by `judge_retriever` with key="evidence" or split="sentences". A
        piece of evidence is (document, start, end), as `Evidence` has it, or (document, text),
        which is found in what is retrieved of that document. Raises ValueError for none.

        >>> query = JudgedQuery.from_evidence("Who?", [("page 1", "Ann did."), ("page 2", 10, 13)])
        >>> query.evidence[0].text
        'Ann did.'
        """
        made = cls(query, (), (), id=id, group=group, evidence=evidence)
        if not made.evidence:
            raise ValueError(say("no evidence", query=made))
        return made

    @property
    def name(self) -> str:
        """The query's name in messages."""
        return query_name(self.id, self.query)

    @property
    def retrieved(self) -> Retrieved:
        """The snippets, as scorers read them."""
        return self._shared or Retrieved(self.snippets)

    @property
    def hits(self) -> Mapping[str, HitColumns]:
        """The hits of each retriever, by its name; empty if they are unknown."""
        return self.retrieved.hits

    @property
    def document_of(self) -> NDArray[np.intp] | None:
        """The number of the document of each sentence (n,); None for whole snippets."""
        if self.split is None:
            return None
        numbers: dict[tuple[str | None, str], int] = {}
        keys = map(source_of, self.snippets)
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.intp)

    def retrieved_as(
        self,
        snippets: Iterable[Snippet | str],
        *,
        values: Sequence[str | None] | None = None,
        retriever: Retriever | None = None,
        k: int | None = None,
    ) -> JudgedQuery:
        """Return the query and its judgements with what a retriever returned for it, best first.

        A snippet is recognised by its id. It is recognised by its text if either side has no id or
        the id was not judged for this query, because some stores assign ids of their own. Snippets
        of equal text count as different ones. Snippets without a judgement count as irrelevant, and
        relevant ones that were not returned add to `missed`, which stays unknown if nothing was
        judged. Evidence stays as it is, and a snippet recognised by its text gets its id.

        `values`, one for each, are compared with the relevant ids in place of texts, such as the
        documents that snippets were cut from: several are relevant then, and only a document of
        which none is returned is missed. Of a query with snippets, a judged id still decides.
        `retriever` is its name, and `k` how many it was asked for. Raises ValueError for a query
        whose snippets are sentences.
        """
        if self.split:
            raise ValueError(say("sentences to retrieve", query=self))
        retrieved, by_text = tuple(as_snippets(snippets)), values is None
        named = [s.text for s in retrieved] if values is None else values
        relevant = [s for s, r in zip(self.snippets, self.relevant, strict=True) if r]
        known = [(s.id, s.text if by_text else s.id) for s in relevant]
        known += [(id, None if by_text else id) for id in self.relevant_ids]
        places = places_of(
            [(s.id, value) for s, value in zip(retrieved, named, strict=True)],
            known,
            {s.id for s in self.snippets} | set(self.relevant_ids if by_text else ()),
        )
        ids = [None if j is None or not by_text else known[j][0] for j in places]
        judged = self.snippets or self.relevant_ids or self.evidence or not self.answerable
        known_missed = (self.missed or 0) + len(known) - len({*places} - {None})
        return replace(
            self,
            snippets=self._with_ids_of_evidence(retrieved, ids),
            relevant=tuple(j is not None for j in places),
            missed=None if self.missed is None and not judged else known_missed,
            retriever=retriever,
            k=k,
            relevant_ids=(),
        )

    def _with_ids_of_evidence(
        self, retrieved: Sequence[Snippet], ids: Sequence[str | None]
    ) -> tuple[Snippet, ...]:
        named = {piece.document for piece in self.evidence} - {s.id for s in retrieved}
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
    silenced: bool | None = field(default=None, kw_only=True)  # None where none can be

    def __post_init__(self) -> None:
        where = self.name
        relevant = np.array(self.relevant)
        if relevant.dtype != np.bool_:
            relevant = np.array(checks.as_judgements(where, self.relevant), bool)
        scores = as_scores(self.scores, f"{where}: scores", len(relevant), "judgements")
        scores = scores + 0.0  # −0 equals 0 in every way
        checks.check_texts(where, id=self.id)
        checks.check_names(where, group=self.group, split=self.split)
        for name, array in (("scores", scores), ("relevant", relevant)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "missed", checks.as_count(where, "missed", self.missed, least=0))
        if self.tokens is not None:
            tokens = np.array(as_scores(self.tokens, f"{where}: tokens"))
            if tokens.shape != scores.shape or not ((tokens >= 0) & np.isfinite(tokens)).all():
                raise ValueError(say("wrong tokens", where=where, tokens=self.tokens))
            object.__setattr__(self, "tokens", tokens)

    @property
    def n_missed(self) -> int:
        """How many relevant snippets are known to be missed: 0 if `missed` is unknown."""
        return self.missed or 0

    @property
    def name(self) -> str:
        """The query's name in messages."""
        return "a query" if self.id is None else query_name(self.id, "")
