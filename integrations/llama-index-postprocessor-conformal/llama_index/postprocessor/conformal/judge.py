"""Judged queries as a LlamaIndex retriever sees them."""

from __future__ import annotations

from collections.abc import Iterable

from llama_index.core.base.base_retriever import BaseRetriever

from conformal_retrievers import JudgedQuery
from llama_index.postprocessor.conformal.nodes import to_snippets


def judge_retriever(retriever: BaseRetriever, judged: Iterable[JudgedQuery]) -> list[JudgedQuery]:
    """Retrieve for each judged query, and carry its judgements over to what was retrieved.

    Calibrate on the result, with the very retriever that will be filtered: what it returns is what
    the guarantee is about. A node is known by its id, or by its text where the judged snippet has
    no id; unknown ones count as irrelevant, and known relevant ones that are not returned are
    counted in `missed`.
    """
    return [query.retrieved_as(to_snippets(retriever.retrieve(query.query))) for query in judged]
