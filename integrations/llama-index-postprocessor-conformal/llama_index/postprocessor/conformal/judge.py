"""Judged queries as a LlamaIndex retriever sees them."""

from __future__ import annotations

from collections.abc import Iterable

from llama_index.core.base.base_retriever import BaseRetriever

from conformal_retrievers import JudgedQuery, scoring
from llama_index.postprocessor.conformal.nodes import to_snippets


def judge_retriever(
    retriever: BaseRetriever, judged: Iterable[JudgedQuery], *, name: str | None = None
) -> list[JudgedQuery]:
    """Retrieve for each judged query, and carry its judgements over to what was retrieved.

    Calibrate on the result, with the very retriever that will be filtered: what it returns is what
    the guarantee is about. A node is known by its id, or by its text where the judged snippet has
    no id or the node's was not judged for the query, as where the store gives ids of its own;
    unknown ones count as irrelevant, and known relevant ones that are not returned are counted in
    `missed`.

    The calibration records the retriever, as `name` or by its class, store and embedding model, and
    its `similarity_top_k`, so that the filter can warn of a deeper one. Raises TypeError for
    anything but a retriever and judged queries: an engine or a tool may filter already, and
    calibrated on its own survivors, a filter loses more every time.
    """
    if not isinstance(retriever, BaseRetriever):
        raise TypeError(
            f"retriever is a {type(retriever).__name__}; give a retriever, such as "
            "index.as_retriever(similarity_top_k=20), the one that the engine or tool asks"
        )
    queries = scoring.judged_queries(judged)
    found = [to_snippets(retriever.retrieve(query.query)) for query in queries]
    # A node that stands for several is returned as those, so that there may be more than asked for.
    asked = getattr(retriever, "similarity_top_k", None)
    k = None if asked is None else max([asked, *map(len, found)])
    name = name or _name(retriever)
    return [
        query.retrieved_as(snippets, retriever=name, k=k)
        for query, snippets in zip(queries, found, strict=True)
    ]


def _name(retriever: BaseRetriever) -> str:
    store = getattr(retriever, "_vector_store", None)
    model = getattr(getattr(retriever, "_embed_model", None), "model_name", None)
    parts = ", ".join(part for part in (store and type(store).__name__, model) if part)
    return f"{type(retriever).__name__}({parts})"
