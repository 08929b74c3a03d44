"""Retrievers around others: these stay configurable, and pass on the scores of vector stores."""

import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias, cast

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever, RetrieverLike
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.base import RunnableBindingBase, RunnableSequence
from langchain_core.runnables.config import ensure_config
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.runnables.fallbacks import RunnableWithFallbacks
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from langchain_conformal.documents import Found
from langchain_conformal.wording import say

Configurable: TypeAlias = dict[str, Any] | None  # of a caller's configuration
logger = logging.getLogger("conformal_retrievers")
# What a store raises that has no scores, or none for some arguments. Other errors are raised.
NO_SCORES = (NotImplementedError, TypeError, ValueError)
_logged: set[object] = set()  # kinds of stores and errors


class Around(BaseRetriever):
    """A retriever that gives what a caller configures to the retrievers in it."""

    def invoke(
        self, input: str, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Return the documents; what is configurable in the retrievers stays configurable."""
        return super().invoke(input, config, **_with_configurable(config, kwargs))

    async def ainvoke(
        self, input: str, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Do what `invoke` does, without blocking the event loop."""
        return await super().ainvoke(input, config, **_with_configurable(config, kwargs))


def _with_configurable(config: RunnableConfig | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with the caller's configuration, which BaseRetriever drops."""
    configurable = ensure_config(config).get("configurable")
    return {**kwargs, "configurable": configurable} if configurable else kwargs


def check_taken(retriever: Any, arguments: Mapping[str, Any], what: str) -> None:
    """Raise TypeError if a retriever would ignore arguments, such as the filter of a tenant."""
    if isinstance(retriever, RunnableBindingBase):
        check_taken(retriever.bound, arguments, what)
    elif isinstance(retriever, DynamicRunnable):
        check_taken(retriever.default, arguments, what)
    elif isinstance(retriever, RunnableWithFallbacks):
        for part in (retriever.runnable, *retriever.fallbacks):
            check_taken(part, arguments, what)
    elif isinstance(retriever, RunnableSequence):  # gives them to its first step
        check_taken(retriever.first, arguments, what)
    elif isinstance(retriever, BaseRetriever) and arguments and not retriever._expects_other_args:
        names = ", ".join(f"{name}=" for name in arguments)
        raise TypeError(say("ignores", what=what, kind=type(retriever), names=names))


def with_scores(retriever: RetrieverLike) -> RetrieverLike:
    """Return a retriever whose documents come as `Found` if a vector store scores them.

    Retries, fallbacks, bindings and configurations stay around it. Of configurable alternatives,
    the default alone has scores.
    """
    if isinstance(retriever, RunnableBindingBase):
        return retriever.model_copy(update={"bound": with_scores(retriever.bound)})
    if isinstance(retriever, DynamicRunnable):
        return retriever.model_copy(update={"default": with_scores(retriever.default)})
    if isinstance(retriever, RunnableWithFallbacks):
        first, *others = map(with_scores, (retriever.runnable, *retriever.fallbacks))
        return retriever.model_copy(update={"runnable": first, "fallbacks": others})
    if isinstance(retriever, VectorStoreRetriever) and (scored := _scored(type(retriever))):
        twin = retriever.model_copy()
        twin.__class__ = scored
        return twin
    return retriever


@cache
def _scored(kind: type[VectorStoreRetriever]) -> type[VectorStoreRetriever] | None:
    """Return the subclass that asks for scores, None for a kind that searches in its own way."""
    for name in ("_get_relevant_documents", "_aget_relevant_documents"):
        if getattr(kind, name) is not getattr(VectorStoreRetriever, name):
            return None
    return type(kind.__name__, (_Scored, kind), {"__module__": kind.__module__})


class _Scored(VectorStoreRetriever):
    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        if search := _search_with_scores(self, ""):
            try:
                return Found(search(query, **{**self.search_kwargs, **kwargs}))
            except NO_SCORES as error:
                _log(self, error)
        return super()._get_relevant_documents(query, run_manager=run_manager, **kwargs)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        if search := _search_with_scores(self, "a"):
            try:
                return Found(await search(query, **{**self.search_kwargs, **kwargs}))
            except NO_SCORES as error:
                _log(self, error)
        return await super()._aget_relevant_documents(query, run_manager=run_manager, **kwargs)


def _search_with_scores(retriever: VectorStoreRetriever, a: str) -> Callable[..., Any] | None:
    """Return the search of a store with scores, None if it has none or may find other documents."""
    store, search = retriever.vectorstore, f"{a}similarity_search"
    if retriever.search_type == "similarity_score_threshold":
        return cast(Callable[..., Any], getattr(store, f"{search}_with_relevance_scores"))
    scored = _place_of(f"{search}_with_score", type(store))
    if retriever.search_type != "similarity" or scored > _place_of(search, type(store)):
        return None
    return cast(Callable[..., Any], getattr(store, f"{search}_with_score"))


def _place_of(method: str, store: type) -> int:
    """Return the place of the class that defines a method in the order of resolution."""
    kinds = store.__mro__
    place = next((i for i, kind in enumerate(kinds) if method in vars(kind)), len(kinds))
    if method.startswith("a") and place < len(kinds) and kinds[place] is VectorStore:
        return _place_of(method[1:], store)  # it calls the synchronous one
    return place


def _log(retriever: VectorStoreRetriever, error: Exception) -> None:
    kind = type(retriever.vectorstore).__name__
    if (kind, type(error)) not in _logged:
        _logged.add((kind, type(error)))
        logger.warning("%s: the search with scores failed, so only ranks count: %r", kind, error)
