"""Documents to snippets with hits, and a filter's decision about snippets back to documents."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from numbers import Real
from types import NoneType
from typing import Any
from uuid import uuid4

import numpy as np
from langchain_core.documents import Document
from numpy.typing import NDArray

from conformal_retrievers import Filtered, Snippet
from conformal_retrievers.data import Hit, as_scores
from conformal_retrievers.data.hits import RETRIEVER, HitColumns, fusion, listed
from conformal_retrievers.data.models import with_fields
from conformal_retrievers.data.sentences.cutting import Passage
from conformal_retrievers.data.snippets import Retrieved, as_document, as_position, column
from conformal_retrievers.monitoring import json_number
from conformal_retrievers.sentence_filter import FilteredSentences
from langchain_conformal.wording import say

# The metadata that shows the hits of a document to people: [rank, score] by the retriever's name,
# None for one that failed. What is read is the same, with the call that found the document, under
# a name that pydantic takes for no field, as it does a cached property's: copies of a document have
# it, while stores and files do not.
HITS, _HITS = "conformal_hits", "_conformal_hits"
NOT_FOUND = (np.inf, np.nan)  # rank and score
RERANKER = "reranker"  # the name in hits of what orders the documents of several retrievers anew
Scores = NDArray[np.float64]


class Found(list[Document]):
    """Documents as a vector store returns them, best first, with their scores beside them."""

    def __init__(self, pairs: Iterable[tuple[Document, Any]]) -> None:
        scored = list(pairs)
        super().__init__(document for document, _ in scored)
        self.scores = _numbers([score for _, score in scored], "scores of the vector store")


def check_input(given: object, *keys: str) -> None:
    """Raise TypeError unless a runnable's input is a mapping, and ValueError for a missing key."""
    form = f"give {{{', '.join(f'{key!r}: …' for key in keys)}}}"
    if not isinstance(given, Mapping):
        raise TypeError(f"the input is a {type(given).__name__}, {given!r:.60}; {form}")
    for key in keys:
        if key not in given:
            raise ValueError(f"{key!r} is missing from the input; {form}")
    # Letters, or the keys of a mapping, would pass for texts, and a joined text has other scores.
    if not isinstance(given.get("context", ()), list | tuple):
        raise TypeError(f"context is {given['context']!r:.60}; give a list of Documents or texts")


def as_documents(documents: Any) -> list[Document]:
    """Return the documents as a list; raise TypeError for anything but Documents."""
    if isinstance(documents, Found):
        return documents
    listed = list(documents) if isinstance(documents, Iterable) else [documents]
    # `isinstance` of each takes longer.
    for i, document in enumerate(() if {*map(type, listed)} <= {Document} else listed):
        if not isinstance(document, Document):
            raise TypeError(say("no documents", i=i, kind=type(document)))
    return listed


def to_snippets(documents: Iterable[Document]) -> list[Snippet]:
    """Return a snippet for each document, with its text, id, hits and score of the retriever.

    `document` is metadata["source"], and `position` metadata["start_index"], which LangChain's
    splitters write with `add_start_index=True`. Raises TypeError as `as_documents` does.
    """
    listed = as_documents(documents)
    places = zip(_sources(listed), _positions(listed), strict=True)
    columns = zip(listed, places, scores_of(listed), hits_of(listed), strict=True)
    return [
        Snippet(document.page_content, document.id, *place, retrieval_score=score, hits=hits)
        for document, place, score, hits in columns
    ]


def with_hits(documents: Sequence[Document], hits: Sequence[Any]) -> list[Document]:
    """Return a copy of each document of a call with its hits, [rank, score] by retriever."""
    twins, call = [], uuid4().hex
    for document, own in zip(documents, hits, strict=True):
        metadata = {**(document.metadata or {}), HITS: own}
        metadata.pop("relevance_score", None)  # of one retriever: its hit has it
        twins.append(with_fields(document, metadata=metadata))
        vars(twins[-1])[_HITS] = (call, own)
    return twins


def _all(key: str, documents: Iterable[Document]) -> list[Any]:
    """Return one field of each document's metadata, which may have been set to None."""
    return [(document.metadata or {}).get(key) for document in documents]


def _sources(documents: Sequence[Document]) -> list[str | None]:
    return [*map(as_document, _all("source", documents))]


def _positions(documents: Sequence[Document]) -> list[int | None]:
    return [as_position(start) for start in _all("start_index", documents)]


def hits_of(documents: Sequence[Document]) -> list[tuple[Hit, ...]]:
    """Return the hits of documents: of a `HybridRetriever`, or else those of one retriever."""
    known = _known(documents)
    if not any(known):
        return [(Hit(RETRIEVER, i, score),) for i, score in enumerate(scores_of(documents))]
    pairs = [(hits or {}).items() for hits in known]
    return [tuple([_hit(name, *at) for name, at in own if at is not None]) for own in pairs]


def _hit(name: str, rank: float, score: float | None) -> Hit:
    return Hit(name, int(rank), None if score is None or math.isnan(score) else float(score))


def _known(documents: Sequence[Document]) -> list[Any]:
    """Return the hits of documents, with those of a reranker behind the retrievers.

    It is known by a relevance_score of each, in descending order: `HybridRetriever` writes none.
    """
    known = _of_hybrid(documents)
    scores = _all("relevance_score", documents) if any(known) else []
    if not scores or not all(isinstance(s, Real) and s == s for s in scores):
        return known
    if any(a < b for a, b in pairwise(scores)) or any(
        hits is None or RERANKER in hits for hits in known
    ):
        return known
    return [{**hits, RERANKER: [*at]} for hits, at in zip(known, enumerate(scores), strict=True)]


def _of_hybrid(documents: Iterable[Document]) -> list[Any]:
    """Return the hits that a call of a `HybridRetriever` found; None for documents from elsewhere.

    Objects that a store has kept may have those of earlier calls: what most have in common counts.
    """
    known = [document.__dict__.get(_HITS) for document in documents]
    if not any(known):
        return known
    most = Counter([hits and hits[0] for hits in known]).most_common(1)[0][0]
    return [hits[1] if hits and hits[0] == most else None for hits in known]


def _failed(known: Iterable[Any]) -> list[str]:
    hits: dict[str, Any] = next(filter(None, known), {})  # all of a call name what failed
    return sorted(name for name, place in hits.items() if place is None)


def scores_of(documents: Sequence[Document]) -> list[float | None]:
    """Return the retriever's score of each document, None where it is unknown.

    It is the store's, or metadata["relevance_score"], where LangChain's rerankers write theirs, or
    else the sum of reciprocal rank fusion.
    """
    numbers = [None if score != score else score for score in _own_scores(documents)]  # NaN
    if not isinstance(documents, Found) and any(_of_hybrid(documents)):
        sums = fusion(hits_of(documents))
        numbers = [s if n is None else n for n, s in zip(numbers, sums, strict=True)]
    return numbers


def _own_scores(documents: Sequence[Document]) -> list[float | None]:
    """Return the score of the store, or else of a reranker, None or NaN where it is unknown."""
    if isinstance(documents, Found):
        return documents.scores
    scores = _all("relevance_score", documents)
    if {*map(type, scores)} <= {float, NoneType}:  # `isinstance(…, Real)` takes long
        return scores
    known = [score if isinstance(score, Real) else None for score in scores]
    return _numbers(known, "relevance_score of documents")


def _numbers(values: list[Any], name: str) -> list[float | None]:
    return values if {*map(type, values)} <= {float, NoneType} else as_scores(values, name).tolist()


class RetrievedDocuments(Retrieved):
    """Documents in columns."""

    given: Sequence[Document]

    @column
    def of_hybrid(self) -> list[Any]:
        """The hits that a call of a `HybridRetriever` found, None for each from elsewhere."""
        return _of_hybrid(self.given)

    @column
    def failed(self) -> Sequence[str]:
        """The retrievers that failed and were left out."""
        return _failed(self.of_hybrid)

    @column
    def ranks(self) -> list[tuple[int, NDArray[np.float64]]]:
        """As of any snippets; none of documents whose order is all that is known."""
        return super().ranks if any(self.of_hybrid) else []

    @column
    def snippets(self) -> tuple[Snippet, ...]:
        """A snippet for each."""
        return tuple(to_snippets(self.given))

    @column
    def hits(self) -> Mapping[str, HitColumns]:
        """The hits of each retriever, by its name."""
        if not any(known := _known(self.given)):
            return listed(_own_scores(self.given))
        by_document: list[dict[str, Any]] = [hits or {} for hits in known]
        columns = {}
        for name in sorted(set[str]().union(*by_document) - {*_failed(known)}):
            of_each = zip(*[hits.get(name) or NOT_FOUND for hits in by_document], strict=True)
            columns[name] = HitColumns._make(np.array(values, np.float64) for values in of_each)
        return columns

    @column
    def texts(self) -> tuple[str, ...]:
        """The texts."""
        return tuple([document.page_content for document in self.given])

    @column
    def documents(self) -> Sequence[str | None]:
        """Their sources."""
        return _sources(self.given)

    @column
    def positions(self) -> Sequence[int | None]:
        """Where they start in these."""
        return _positions(self.given)


def kept_documents(
    documents: Sequence[Document], filtered: Filtered, metadata_prefix: str | None
) -> list[Document]:
    """Return copies of the kept documents, in the retriever's order, with id, class and fields.

    The metadata of a copy gains <prefix>score and <prefix>p_value as plain floats: None for a
    document that could not be scored, "inf" or "-inf" for an infinite score, as JSON has no number
    for them. A prefix of None adds nothing, and removes hits.

    Of sentences, a copy has the passage of the kept ones as its text, their ranges in the text
    before as <prefix>ranges, [[start, end], …], and the lowest score of these with its p-value.

    With a gate, <prefix>gate_p_value is its p-value of the query.

    In shadow, all documents are kept with their text, and <prefix>kept is whether one would be.
    """
    places, scores = filtered.kept.tolist(), filtered.scores
    passages: tuple[Passage, ...] = ()
    if isinstance(filtered, FilteredSentences):
        passages, scores = filtered.passages, _best_of(filtered, len(documents))
        places = [passage.document for passage in passages]
    keeps = {*places}
    if filtered.shadow:
        places, passages = [*range(len(documents))], ()
    kept = [documents[i] for i in places]
    metadata = [{**(document.metadata or {})} for document in kept]
    if metadata_prefix is None:
        for known in metadata:
            known.pop(HITS, None)
    else:
        _add_scores(metadata, filtered, scores[places], metadata_prefix)
        for known, passage in zip(metadata, passages, strict=False):
            known[f"{metadata_prefix}ranges"] = [[*ends] for ends in passage.ranges]
        for i, known in enumerate(metadata if filtered.shadow else ()):
            known[f"{metadata_prefix}kept"] = i in keeps
    texts = [passage.text for passage in passages] or [document.page_content for document in kept]
    columns = zip(kept, metadata, texts, strict=True)
    return [with_fields(d, metadata=m, page_content=text) for d, m, text in columns]


def _add_scores(
    metadata: Sequence[dict[str, Any]], filtered: Filtered, scores: Scores, prefix: str
) -> None:
    """Write the scores (k,) of kept documents, their p-values, and that of a gate."""
    of_query: dict[str, Any] = {}
    if filtered.gated is not None:
        of_query[f"{prefix}gate_p_value"] = json_number(filtered.gated.p_value)
    p_values = filtered.calibration.p_values(scores, filtered.group)
    score, p_value = f"{prefix}score", f"{prefix}p_value"
    for known, s, p in zip(metadata, scores.tolist(), p_values.tolist(), strict=True):
        known |= {**of_query, score: json_number(s), p_value: json_number(p)}


def _best_of(pruned: FilteredSentences, n: int) -> Scores:
    """Return the lowest score of the kept sentences of n documents, of all in shadow, (n,)."""
    best, keeps = np.full(n, np.nan), pruned.keeps | pruned.shadow
    np.fmin.at(best, pruned.sentences.document_of[keeps], pruned.scores[keeps])
    return best
