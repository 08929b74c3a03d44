"""Documents to snippets, and what a filter decided about snippets back to documents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

from langchain_core.documents import Document

from conformal_retrievers import Filtered, Snippet


def to_snippets(documents: Sequence[Document]) -> list[Snippet]:
    """Return a snippet for each document: its text, its id and the score that found it, if any.

    `retrieval_score` is metadata["relevance_score"], where LangChain's rerankers write theirs, and
    `document` is metadata["source"]. Raises TypeError for anything that is not a Document.
    """
    return [_to_snippet(i, document) for i, document in enumerate(documents)]


def kept_documents(
    documents: Sequence[Document], filtered: Filtered, metadata_prefix: str | None
) -> list[Document]:
    """Return copies of the documents that are kept, in the retriever's order.

    A copy keeps id, class and fields. Its metadata gains <prefix>score and <prefix>p_value, plain
    floats, or None for a document that could not be scored; a prefix of None adds nothing.
    """
    p_values = filtered.p_values
    return [
        documents[i].model_copy(
            update={
                "metadata": {
                    **documents[i].metadata,
                    **_numbers(metadata_prefix, filtered.scores[i], p_values[i]),
                }
            }
        )
        for i in filtered.kept
    ]


def _numbers(prefix: str | None, score: float, p_value: float) -> dict[str, float | None]:
    if prefix is None:
        return {}
    return {
        f"{prefix}{name}": None if math.isnan(value) else float(value)
        for name, value in (("score", score), ("p_value", p_value))
    }


def _to_snippet(i: int, document: Document) -> Snippet:
    if not isinstance(document, Document):
        raise TypeError(
            f"documents[{i}] is a {type(document).__name__}; give langchain_core Documents"
        )
    source, score = document.metadata.get("source"), document.metadata.get("relevance_score")
    return Snippet(
        document.page_content,
        id=document.id,
        document=None if source is None else str(source),
        retrieval_score=float(score) if isinstance(score, Real) else None,
    )
