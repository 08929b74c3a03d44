"""Retrievers around others: these stay configurable, and tell the scores of vector stores."""

from functools import cache
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever, RetrieverLike
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import ensure_config
from langchain_core.runnables.configurable import DynamicRunnable, RunnableConfigurableAlternatives
from langchain_core.vectorstores import VectorStoreRetriever

from langchain_conformal.documents import Found


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


def with_scores(retriever: RetrieverLike) -> RetrieverLike:
    """Return a retriever whose documents come as `Found` if a vector store scores them.

    Retries, bindings and configurations stay around it.
    """
    if isinstance(retriever, RunnableBindingBase):
        return retriever.model_copy(update={"bound": with_scores(retriever.bound)})
    if isinstance(retriever, DynamicRunnable):
        fields: dict[str, Any] = {"default": with_scores(retriever.default)}
        if isinstance(retriever, RunnableConfigurableAlternatives):
            fields["alternatives"] = {
                key: with_scores(one) if isinstance(one, Runnable) else one
                for key, one in retriever.alternatives.items()
            }
        return retriever.model_copy(update=fields)
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
        asked = {**self.search_kwargs, **kwargs}
        try:
            if self.search_type == "similarity":
                return Found(self.vectorstore.similarity_search_with_score(query, **asked))
            if self.search_type == "similarity_score_threshold":
                return Found(
                    self.vectorstore.similarity_search_with_relevance_scores(query, **asked)
                )
        except NotImplementedError:  # a store without scores
            pass
        return super()._get_relevant_documents(query, run_manager=run_manager, **kwargs)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        asked = {**self.search_kwargs, **kwargs}
        store = self.vectorstore
        try:
            if self.search_type == "similarity":
                return Found(await store.asimilarity_search_with_score(query, **asked))
            if self.search_type == "similarity_score_threshold":
                return Found(await store.asimilarity_search_with_relevance_scores(query, **asked))
        except NotImplementedError:
            pass
        return await super()._aget_relevant_documents(query, run_manager=run_manager, **kwargs)
