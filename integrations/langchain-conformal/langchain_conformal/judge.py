"""Judged queries as a LangChain retriever sees them."""

from __future__ import annotations

from collections.abc import Iterable

from langchain_core.retrievers import RetrieverLike

from conformal_retrievers import JudgedQuery
from langchain_conformal.documents import to_snippets


def judge_retriever(
    retriever: RetrieverLike, judged: Iterable[JudgedQuery], *, max_concurrency: int | None = None
) -> list[JudgedQuery]:
    """Retrieve for each judged query, and carry its judgements over to what was retrieved.

    Calibrate on the result, with the very retriever that will be filtered: what it returns is what
    the guarantee is about. A document is known by its id, or by its text where it or the judged
    snippet has no id; unknown ones count as irrelevant, and known relevant ones that are not
    returned are counted in `missed`. At most `max_concurrency` queries run at a time.
    """
    queries = list(judged)
    retrieved = retriever.batch(
        [query.query for query in queries], config={"max_concurrency": max_concurrency}
    )
    return [
        query.retrieved_as(to_snippets(documents))
        for query, documents in zip(queries, retrieved, strict=True)
    ]
