"""The filter as a run of its own in LangChain's callbacks, with one custom event in it.

Run and event have the same name, "conformal_filter" for snippets. The event's data is that of
`conformal_retrievers.monitoring.event_of`, plain JSON without any snippet's text, and a copy of it
is the output of the run. A filter that raises because nothing is kept, or because a snippet cannot
be scored, raises after its run has ended with the decision. Without a handler there is no run: for
20 documents it would take twice as long as all else.
"""

import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from langchain_core.callbacks import (
    BaseCallbackHandler,
    Callbacks,
    adispatch_custom_event,
    dispatch_custom_event,
)
from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.runnables.config import ensure_config, get_callback_manager_for_config

from conformal_retrievers.filtering import RetrievalFilter
from conformal_retrievers.monitoring import CLAIMS_EVENT, EVENT, FilterLog, Observer
from conformal_retrievers.monitoring.events import annotate_span, event_of
from conformal_retrievers.results import Filtered, Refused
from langchain_conformal.documents import RetrievedDocuments, as_documents, kept_documents
from langchain_conformal.wording import say

Output = TypeVar("Output")


@dataclass
class FilterRun(Generic[Output]):
    """Runs one decision of a filter, with an event; both have the same name.

    `call` and `acall` decide, and `then` makes the output of it. What the filter with this
    calibration raises is raised after the run.
    """

    name: str
    calibration: object
    call: Callable[[], Any]
    acall: Callable[[], Awaitable[Any]]
    to_event: Callable[[Any], dict[str, Any]]
    then: Callable[[Any], Output]
    inputs: dict[str, Any]
    config: RunnableConfig
    decided: Any = None
    refused: Refused | None = None

    def decide(self) -> Output:
        """Return what is made of what `call` decides."""

        def run(_: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
            with self._refusals():
                self.decided = self.call()
            event = self.to_event(self.decided)
            dispatch_custom_event(self.name, deepcopy(event), config=config)
            return event

        if not self._has_handlers():
            return self.then(self.call())
        RunnableLambda(run, name=self.name).invoke(self.inputs, self.config)
        return self._result()

    async def adecide(self) -> Output:
        """Return what is made of what `acall` decides."""

        async def run(_: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
            with self._refusals():
                self.decided = await self.acall()
            event = self.to_event(self.decided)
            await adispatch_custom_event(self.name, deepcopy(event), config=config)
            return event

        if not self._has_handlers():
            return self.then(await self.acall())
        await RunnableLambda(run, name=self.name).ainvoke(self.inputs, self.config)
        return self._result()

    def _has_handlers(self) -> bool:
        return bool(get_callback_manager_for_config(self.config).handlers)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            if not error.of(self.calibration):  # raised by another filter, such as in the scorer
                raise
            self.decided, self.refused = error.filtered, error

    def _result(self) -> Output:
        if self.refused is not None:
            raise self.refused
        return self.then(self.decided)


def filter_run(
    conformal_filter: RetrievalFilter[Any],
    query: str,
    found: Iterable[Document],
    callbacks: Callbacks,
    metadata_prefix: str | None,
) -> FilterRun[list[Document]]:
    """Return the run that filters a query's documents.

    Parameters
    ----------
    conformal_filter, query, found
        The filter, the query and its documents.
    callbacks
        Those of the run above. None means the run that is current in this context.
    metadata_prefix
        As in `kept_documents`.
    """
    documents = as_documents(found)
    fields = (documents[0].metadata or {}).keys() if documents else ()
    if f"{metadata_prefix}p_value" in fields and f"{metadata_prefix}kept" not in fields:
        warnings.warn(say("filtered", prefix=metadata_prefix), stacklevel=1)
    given = RetrievedDocuments(documents)

    async def acall() -> Filtered:
        return annotate_span(await conformal_filter.acall(query, given))

    return FilterRun(
        EVENT,
        conformal_filter.calibration,
        lambda: annotate_span(conformal_filter(query, given)),
        acall,
        lambda filtered: event_of(filtered, query=query, failed=given.failed),
        lambda filtered: kept_documents(documents, filtered, metadata_prefix),
        {"query": query, "k": len(documents)},
        ensure_config({"callbacks": callbacks}),
    )


class ConformalCallbackHandler(BaseCallbackHandler):
    """Counts m1 and m2 for each calibration, reports each decision to `logging`, and logs it.

    Pass it as LangChain's callbacks, sync or async: `config={"callbacks": [handler]}`. The logger
    is "conformal_retrievers"; `log` is a file that several processes may share.
    """

    def __init__(self, log: FilterLog | None = None) -> None:
        self.observer = Observer(log)

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """Observe an event of either filter, and ignore others."""
        if name in (EVENT, CLAIMS_EVENT):
            self.observer.observe(data)
