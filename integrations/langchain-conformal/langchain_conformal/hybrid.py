"""Several LangChain retrievers as one, whose documents have the hits of each."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import Runnable, RunnableConfig
from pydantic import ConfigDict, PrivateAttr

from conformal_retrievers.data.union import Item, OnError, aask, ask, check_retrievers, unite
from langchain_conformal.around import Around, Configurable, check_taken, with_scores
from langchain_conformal.documents import as_documents, scores_of, with_hits


class HybridRetriever(Around):
    """Asks several retrievers at once, and returns what they find in the order of rank fusion.

    A document is recognised by its id, or else by its text. It is a copy whose metadata has
    `conformal_hits`: [rank from 0, score] for each retriever that found it, such as
    {"dense": [0, 0.83], "bm25": [4, None]}, in place of the `relevance_score` of one of them. That
    is for people to read: a filter reads what the copy has beside its fields, so metadata that a
    store has kept from another query change nothing. All retrievers receive the keyword arguments
    of `invoke`, such as `filter=`; one that ignores them is a TypeError.

    >>> HybridRetriever({"dense": store.as_retriever(), "bm25": bm25})  # doctest: +SKIP

    Parameters
    ----------
    retrievers
        The retrievers by name. Keep the names: the calibration has them.
    on_error
        "raise", or "skip": a retriever that fails is left out, and is None in `conformal_hits`;
        the error is logged, and raised if the others find nothing. A score that reads its hits
        keeps all documents of the query.

    Raises
    ------
    TypeError, ValueError
        For retrievers or names that are invalid, and for another `on_error`.
    """

    retrievers: dict[str, RetrieverLike]
    on_error: OnError = "raise"

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    _logged: set[object] = PrivateAttr(default_factory=set)

    def __init__(
        self, retrievers: Mapping[str, RetrieverLike], *, on_error: OnError = "raise", **fields: Any
    ) -> None:
        example = "store.as_retriever(search_kwargs={'k': 20})"
        check_retrievers(retrievers, on_error, Runnable, example)
        super().__init__(**{"retrievers": dict(retrievers), "on_error": on_error, **fields})

    def _get_relevant_documents(
        self, query: str, *, run_manager: Any, configurable: Configurable = None, **kwargs: Any
    ) -> list[Document]:
        def call(retriever: RetrieverLike, config: RunnableConfig) -> list[Document]:
            return as_documents(with_scores(retriever).invoke(query, config, **kwargs))

        asked = self._asked(run_manager, configurable, kwargs)
        calls = {name: partial(call, *each) for name, each in asked.items()}
        return self._united(ask(calls, self.on_error, self._logged))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: Any, configurable: Configurable = None, **kwargs: Any
    ) -> list[Document]:
        async def call(retriever: RetrieverLike, config: RunnableConfig) -> list[Document]:
            return as_documents(await with_scores(retriever).ainvoke(query, config, **kwargs))

        asked = self._asked(run_manager, configurable, kwargs)
        calls = {name: call(*each) for name, each in asked.items()}
        return self._united(await aask(calls, self.on_error, self._logged))

    def _asked(
        self, run_manager: Any, configurable: Configurable, kwargs: Mapping[str, Any]
    ) -> dict[str, tuple[RetrieverLike, RunnableConfig]]:
        """Return each retriever with the configuration that it is asked with."""
        asked = {}
        for name, retriever in self.retrievers.items():
            check_taken(retriever, kwargs, f"the retriever {name!r}")
            callbacks = run_manager.get_child(tag=f"retriever:{name}")
            config = RunnableConfig(callbacks=callbacks, configurable=configurable or {})
            asked[name] = (retriever, config)
        return asked

    def _united(self, found: Mapping[str, list[Document]]) -> list[Document]:
        failed = {name: None for name in self.retrievers if name not in found}
        lists = {
            name: [Item(d.id, d.page_content, s) for d, s in zip(own, scores_of(own), strict=True)]
            for name, own in found.items()
        }
        united = unite(lists)
        hits = [{n: [rank, score] for n, rank, score in own} | failed for own in united.values()]
        return with_hits([found[name][place] for name, place in united], hits)
