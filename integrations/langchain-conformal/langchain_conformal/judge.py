"""Judged queries as a LangChain retriever sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import signature
from typing import Any

from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import merge_configs
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.vectorstores import VectorStoreRetriever

from conformal_retrievers import ConformalFilter, JudgedQuery, scoring
from langchain_conformal.documents import to_snippets
from langchain_conformal.naming import model_name


def judge_retriever(
    retriever: RetrieverLike, judged: Iterable[JudgedQuery], *, max_concurrency: int | None = None
) -> list[JudgedQuery]:
    """Retrieve for each judged query, and carry its judgements over to what was retrieved.

    Calibrate on the result, with the very retriever that will be filtered: what it returns is what
    the guarantee is about. A document is known by its id, or by its text where either side has no
    id or its id was not judged for the query, as where the store gives ids of its own; unknown ones
    count as irrelevant, and known relevant ones that are not returned are counted in `missed`. At
    most `max_concurrency` queries run at a time.

    Each query carries the retriever's name and k, the depth that it is asked for, or none where it
    does not tell that; calibrations record both. Raises TypeError for anything but a retriever and
    judged queries, and ValueError for a retriever that is filtered already: calibrated on its own
    survivors, a filter loses more every time.
    """
    check_retriever(retriever)
    _check_unfiltered(retriever)
    queries = scoring.judged_queries(judged)
    retrieved = retriever.batch(
        [query.query for query in queries], config={"max_concurrency": max_concurrency}
    )
    # One that returns more than it is asked for has the depth that is seen.
    asked = depth_of(retriever)
    k = None if asked is None else max([asked, *map(len, retrieved)])
    return [
        query.retrieved_as(to_snippets(documents), retriever=name_of(retriever), k=k)
        for query, documents in zip(queries, retrieved, strict=True)
    ]


def check_retriever(retriever: object) -> None:
    """Raise TypeError for what is no runnable, such as a vector store."""
    if not isinstance(retriever, Runnable):
        raise TypeError(
            f"retriever is a {type(retriever).__name__}; give a retriever, such as "
            "store.as_retriever(search_kwargs={'k': 20}), or RunnableLambda(function)"
        )


def _check_unfiltered(retriever: RetrieverLike) -> None:
    within, _ = _unbound(retriever)
    compressor = getattr(within, "base_compressor", None)
    for part, inside in (
        (within, "retriever"),
        *((c, "base_retriever") for c in (compressor, *getattr(compressor, "transformers", ()))),
    ):
        if isinstance(getattr(part, "filter", None), ConformalFilter):
            raise ValueError(
                f"retriever is a {type(within).__name__} that filters already, and calibrated on "
                "what it keeps a filter loses more every time; give the retriever inside it, "
                f"filtered.{inside}"
            )


def name_of(retriever: RetrieverLike) -> str:
    """Return the retriever's name; of a vector store's with the store, its model and the search."""
    within, _ = _unbound(retriever)
    if not isinstance(within, VectorStoreRetriever):
        return within.get_name()
    store = within.vectorstore
    model = model_name(store.embeddings) or type(store.embeddings).__name__
    return f"{type(store).__name__}({model}, {within.search_type})"


def depth_of(retriever: RetrieverLike) -> int | None:
    """Return how many documents the retriever is asked for, where it tells."""
    within, bound = _unbound(retriever)
    settings = getattr(within, "search_kwargs", None)
    k = settings.get("k") if isinstance(settings, dict) else getattr(within, "k", None)
    k = bound.get("k", k)
    if k is None and isinstance(within, VectorStoreRetriever):  # then its store's default
        known = signature(within.vectorstore.similarity_search).parameters.get("k")
        k = None if known is None else known.default
    return k if isinstance(k, int) else None


def _unbound(retriever: RetrieverLike) -> tuple[RetrieverLike, Mapping[str, Any]]:
    """Return the retriever inside retries, bindings and configurations, and what is bound to it."""
    within: Any = retriever
    config, bound = RunnableConfig(), dict[str, Any]()
    while isinstance(within, RunnableBindingBase | DynamicRunnable):
        if isinstance(within, RunnableBindingBase):
            config, bound = merge_configs(within.config, config), {**within.kwargs, **bound}
            within = within.bound
        else:
            within, config = within.prepare(config)
    return within, bound
