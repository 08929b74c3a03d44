"""Documents to snippets with hits, and a filter's decision about snippets back to documents."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from types import NoneType
from typing import Any

import numpy as np
from langchain_core.documents import Document
from numpy.typing import NDArray

from conformal_retrievers import (
    ConformalFilter,
    EmbeddingScorer,
    Filtered,
    RetrievalScorer,
    Snippet,
)
from conformal_retrievers.data import Hit, as_scores
from conformal_retrievers.data.hits import (
    RETRIEVER,
    HitColumns,
    Retrieved,
    fusion,
)
from conformal_retrievers.monitoring import json_number
from conformal_retrievers.pruning import Pruned

# The metadata in which documents of several retrievers have their hits: [rank, score] by the name
# of the retriever, None for one that failed.
HITS = "conformal_hits"
NOT_FOUND = (np.inf, None)
Scores = NDArray[np.float64]
_set = object.__setattr__


class Found(list[Document]):
    """Documents as a vector store returns them, best first, with their scores beside them."""

    def __init__(self, pairs: Iterable[tuple[Document, Any]]) -> None:
        found = list(pairs)
        super().__init__(document for document, _ in found)
        self.scores = _numbers([score for _, score in found], "scores of the vector store")


def check_input(given: object, *keys: str) -> None:
    """Raise TypeError unless a runnable's input is a mapping, and ValueError for a missing key."""
    form = f"give {{{', '.join(f'{key!r}: …' for key in keys)}}}"
    if not isinstance(given, Mapping):
        raise TypeError(f"the input is a {type(given).__name__}, {given!r:.60}; {form}")
    for key in keys:
        if key not in given:
            raise ValueError(f"{key!r} is missing from the input; {form}")
    if isinstance(given.get("context"), Mapping):  # its keys would pass for texts
        raise TypeError(f"context is {given['context']!r:.60}; give a list of Documents or texts")


def as_documents(documents: Any) -> list[Document]:
    """Return the documents as a list; raise TypeError for anything but Documents."""
    if isinstance(documents, Found):
        return documents
    listed = list(documents) if isinstance(documents, Iterable) else [documents]
    for i, document in enumerate(listed):
        if not isinstance(document, Document):
            raise TypeError(
                f"documents[{i}] is a {type(document).__name__}; give a list of Documents, then "
                "the query"
            )
    return listed


def to_snippets(documents: Iterable[Document]) -> list[Snippet]:
    """Return a snippet for each document, with its text, id, hits and score of the retriever.

    `document` is metadata["source"], and `position` metadata["start_index"], which LangChain's
    splitters write with `add_start_index=True`. Raises TypeError as `as_documents` does, and
    ValueError as `hits_of` does.
    """
    listed = as_documents(documents)
    places = zip(_sources(listed), _positions(listed), strict=True)
    columns = zip(listed, places, scores_of(listed), hits_of(listed), strict=True)
    return [
        Snippet(one.page_content, one.id, *place, retrieval_score=score, hits=hits)
        for one, place, score, hits in columns
    ]


def _all(key: str, documents: Iterable[Document]) -> list[Any]:
    """Return one field of each document's metadata, which may have been set to None."""
    known = [document.metadata for document in documents]
    return [metadata.get(key) if metadata else None for metadata in known]


def _sources(documents: Sequence[Document]) -> list[str | None]:
    known = _all("source", documents)
    return [source if type(source) is str or source is None else str(source) for source in known]


def _positions(documents: Sequence[Document]) -> list[int | None]:
    # A splitter that did not find the text again writes −1, and some stores return floats.
    known = [one if type(one) in (int, float) else -1 for one in _all("start_index", documents)]
    return [int(start) if start >= 0 and start % 1 == 0 else None for start in known]


def hits_of(documents: Sequence[Document]) -> list[tuple[Hit, ...]]:
    """Return the hits of documents: those in their metadata, or else those of one retriever.

    Raises ValueError for metadata that are not hits.
    """
    known = _all(HITS, documents)
    if not any(known):
        return [(Hit(RETRIEVER, i, score),) for i, score in enumerate(scores_of(documents))]
    _columns(known)  # which checks them
    found = [[*hits.items()] if hits else [] for hits in known]
    return [tuple([Hit(name, *at) for name, at in hits if at is not None]) for hits in found]


def columns_of(documents: Sequence[Document]) -> dict[str, HitColumns]:
    """Return the hits of each retriever among documents, by its name."""
    if any(known := _all(HITS, documents)):
        return _columns(known)
    scores = np.array(_own_scores(documents), dtype=np.float64)  # None becomes NaN
    return {RETRIEVER: HitColumns(np.arange(len(scores), dtype=np.float64), scores)}


def _columns(known: Sequence[Any]) -> dict[str, HitColumns]:
    """Return the hits of each retriever in the metadata of documents, by its name."""
    try:
        of_each = [hits or {} for hits in known]
        columns = {}
        for name in sorted(set[str]().union(*of_each)):
            places = [hits.get(name) for hits in of_each]
            found = zip(*[NOT_FOUND if at is None else at for at in places], strict=True)
            of_ranks, of_scores = found
            valid = {*map(type, of_ranks), *map(type, of_scores)} <= {float, int, NoneType}
            ranks, scores = np.array(of_ranks, np.float64), np.array(of_scores, np.float64)
            if not valid or not ((ranks >= 0) & (ranks == np.floor(ranks))).all():
                raise ValueError("a rank or a score is not a number")
            if ranks.min() < np.inf:  # else it failed
                columns[name] = HitColumns(ranks, scores)
    except (AttributeError, TypeError, ValueError):
        raise ValueError(
            f"metadata {HITS!r} of a document are not as HybridRetriever writes them, which is "
            '{"name of a retriever": [rank from 0, score or None]}; leave them unchanged'
        ) from None
    return columns


def failed_in(documents: Iterable[Document]) -> list[str]:
    """Return the names of the retrievers that failed and were left out."""
    known = [hits.items() for hits in _all(HITS, documents) if hits]
    return sorted({name for hits in known for name, place in hits if place is None})


def scores_of(documents: Sequence[Document]) -> list[float | None]:
    """Return the retriever's score of each document, None where it is unknown.

    It is the store's, or metadata["relevance_score"], where LangChain's rerankers write theirs, or
    else the sum of reciprocal rank fusion.
    """
    numbers = _own_scores(documents)
    numbers = [None if score != score else score for score in numbers]  # NaN differs from itself
    if not isinstance(documents, Found) and any(_all(HITS, documents)):
        sums = [fusion(hits) for hits in hits_of(documents)]
        numbers = [s if n is None else n for n, s in zip(numbers, sums, strict=True)]
    return numbers


def _own_scores(documents: Sequence[Document]) -> list[float | None]:
    """Return the score of the store, or else of a reranker, None or NaN where it is unknown."""
    if isinstance(documents, Found):
        return documents.scores
    scores = _all("relevance_score", documents)
    if not {*map(type, scores)} <= {float, NoneType}:  # `isinstance(…, Real)` takes long
        scores = [score if isinstance(score, Real) else None for score in scores]
    return _numbers(scores, "relevance_score of documents")


def _numbers(values: list[Any], name: str) -> list[float | None]:
    known = {*map(type, values)} <= {float, NoneType}
    return values if known else as_scores(values, name).tolist()


def to_score(conformal_filter: ConformalFilter, documents: Sequence[Document]) -> Sequence[Any]:
    """Return what a filter needs of documents: scores, texts, or columns until it reads more."""
    scorer = conformal_filter.scorer
    if conformal_filter.splitter is not None:
        return to_snippets(documents)
    alone = conformal_filter.gate is None
    if alone and type(scorer) is RetrievalScorer:  # a subclass may need more
        return scores_of(documents)
    if alone and type(scorer) is EmbeddingScorer and not scorer.reuse_embeddings:
        return _texts(documents)
    return Retrieved(  # which a gate reads, too
        columns_of(documents),
        len(documents),
        texts=lambda: _texts(documents),
        documents=lambda: _sources(documents),
        positions=lambda: _positions(documents),
        snippets=lambda: to_snippets(documents),
    )


def _texts(documents: Sequence[Document]) -> list[str]:
    return [document.page_content for document in documents]


def with_fields(document: Document, **others: Any) -> Document:
    """Return a copy of a document, with its id and class, and the fields that are not others."""
    twin = object.__new__(type(document))  # as pydantic copies, in a sixth of the time
    _set(twin, "__dict__", {**document.__dict__, **others})
    _set(twin, "__pydantic_fields_set__", document.__pydantic_fields_set__ | others.keys())
    for own in ("__pydantic_extra__", "__pydantic_private__"):
        fields = getattr(document, own)
        _set(twin, own, None if fields is None else {**fields})
    return twin


def kept_documents(
    documents: Sequence[Document], filtered: Filtered, metadata_prefix: str | None
) -> list[Document]:
    """Return copies of the kept documents, in the retriever's order, with id, class and fields.

    The metadata of a copy gains <prefix>score and <prefix>p_value as plain floats: None for a
    document that could not be scored, "inf" or "-inf" for an infinite score, as JSON has no number
    for them. A prefix of None adds nothing, and removes hits.

    Of sentences, a copy has the passage of the kept ones as its text, their ranges in the text
    before as <prefix>ranges, [[start, end], …], and the lowest score of these with its p-value.

    With a gate, <prefix>gate is its decision and <prefix>gate_p_value its p-value of the query.
    """
    scores, p_values, passages = filtered.scores, filtered.p_values, {}
    if isinstance(filtered, Pruned):
        passages = {passage.document: passage for passage in filtered.passages}
        scores, p_values = _best_of(filtered, len(documents))
    kept, of_scores, of_p_values = [], scores.tolist(), p_values.tolist()
    score, p_value, ranges = (f"{metadata_prefix}{name}" for name in ("score", "p_value", "ranges"))
    of_query: dict[str, Any] = {}
    if filtered.gated is not None:
        of_query[f"{metadata_prefix}gate"] = filtered.gated.decision
        of_query[f"{metadata_prefix}gate_p_value"] = json_number(filtered.gated.p_value)
    for i in passages or filtered.kept.tolist():
        metadata, passage = {**(documents[i].metadata or {})}, passages.get(i)
        if metadata_prefix is None:
            metadata.pop(HITS, None)
        else:
            metadata |= of_query
            metadata[score] = json_number(of_scores[i])
            metadata[p_value] = json_number(of_p_values[i])
            if passage is not None:
                metadata[ranges] = [[*one] for one in passage.ranges]
        text = {} if passage is None else {"page_content": passage.text}
        kept.append(with_fields(documents[i], metadata=metadata, **text))
    return kept


def _best_of(pruned: Pruned, n: int) -> tuple[Scores, Scores]:
    """Return the lowest score of the kept sentences of n documents, (n,), and its p-value, (n,)."""
    best, keeps = np.full(n, np.nan), pruned.keeps
    np.fmin.at(best, pruned.sentences.document_of[keeps], pruned.scores[keeps])
    return best, pruned.calibration.p_values(best, pruned.group)
