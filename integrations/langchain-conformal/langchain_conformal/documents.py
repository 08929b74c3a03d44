"""Documents to snippets, and a filter's decision about snippets back to documents."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from numbers import Real
from typing import Any

from langchain_core.documents import Document

from conformal_retrievers import EmbeddingScorer, Filtered, Scorer, Snippet
from conformal_retrievers.data import as_scores
from conformal_retrievers.monitoring import json_number


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
    listed = list(documents) if isinstance(documents, Iterable) else [documents]
    for i, document in enumerate(listed):
        if not isinstance(document, Document):
            raise TypeError(
                f"documents[{i}] is a {type(document).__name__}; give a list of Documents, then "
                "the query"
            )
    return listed


def to_snippets(documents: Iterable[Document]) -> list[Snippet]:
    """Return a snippet for each document, with its text and id.

    `retrieval_score` is metadata["relevance_score"], where LangChain's rerankers write theirs, and
    `document` is metadata["source"]. Raises TypeError as `as_documents` does.
    """
    snippets = []
    for document in as_documents(documents):
        metadata = document.metadata or {}  # it may have been set to None
        source, score = metadata.get("source"), None
        if isinstance(metadata.get("relevance_score"), Real):
            score = float(as_scores(metadata["relevance_score"], "relevance_score of documents"))
        snippets.append(
            Snippet(
                document.page_content,
                id=document.id,
                document=None if source is None else str(source),
                retrieval_score=score,
            )
        )
    return snippets


def to_score(scorer: Scorer, documents: Sequence[Document]) -> list[Any]:
    """Return what a scorer needs of documents: their texts, if these are enough, or snippets."""
    if type(scorer) is EmbeddingScorer and not scorer.reuse_embeddings:  # a subclass may need more
        return [document.page_content for document in documents]
    return to_snippets(documents)


def kept_documents(
    documents: Sequence[Document], filtered: Filtered, metadata_prefix: str | None
) -> list[Document]:
    """Return copies of the kept documents, in the retriever's order, with id, class and fields.

    The metadata of a copy gains <prefix>score and <prefix>p_value as plain floats: None for a
    document that could not be scored, "inf" or "-inf" for an infinite score, as JSON has no number
    for them. A prefix of None adds nothing.
    """
    kept, scores, p_values = [], filtered.scores.tolist(), filtered.p_values.tolist()
    score, p_value = f"{metadata_prefix}score", f"{metadata_prefix}p_value"
    for i in filtered.kept.tolist():
        twin = copy(documents[i])  # a quarter of the time of `model_copy`
        metadata = {**(twin.metadata or {})}
        if metadata_prefix is not None:
            metadata[score], metadata[p_value] = json_number(scores[i]), json_number(p_values[i])
        twin.__dict__["metadata"] = metadata
        twin.model_fields_set.add("metadata")
        kept.append(twin)
    return kept
