"""The filter as a run of its own in LangChain's callbacks, with one custom event in it.

The run and the event are called "conformal_filter". The event's data, a copy of which is the run's
output, is that of `conformal_retrievers.events`: plain JSON, without any snippet's text.
A filter that is told to raise, where nothing is kept or a snippet cannot be scored, raises behind
the run, which ends as any other with what was decided. Without a handler there is no run, and
nothing is built for it.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.callbacks import (
    BaseCallbackHandler,
    Callbacks,
    adispatch_custom_event,
    dispatch_custom_event,
)
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.runnables.config import (
    ensure_config,
    get_async_callback_manager_for_config,
    get_callback_manager_for_config,
)

from conformal_retrievers import (
    ConformalFilter,
    Filtered,
    FilterLog,
    Refused,
    Snippet,
    events,
    observing,
)

Decided = TypeVar("Decided")


def filter_in_run(
    conformal_filter: ConformalFilter,
    query: str,
    snippets: list[Snippet],
    callbacks: Callbacks,
) -> Filtered:
    """Filter a query's snippets in a run below that of `callbacks`, or of the run one is in."""
    config = ensure_config({"callbacks": callbacks})
    if not get_callback_manager_for_config(config).handlers:
        return conformal_filter(query, snippets)
    decided: list[Filtered | Refused] = []

    def decide(given: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        try:
            filtered = conformal_filter(query, snippets)
            decided.append(filtered)
        except Refused as error:
            if not error.of(conformal_filter.calibration):
                raise
            filtered = error.filtered
            decided.append(error)
        event = events.event_of(filtered, query=query)
        dispatch_custom_event(events.EVENT, deepcopy(event), config=config)
        return event

    RunnableLambda(decide, name=events.EVENT).invoke(_inputs(query, snippets), config)
    return unless_refused(decided.pop())


async def afilter_in_run(
    conformal_filter: ConformalFilter,
    query: str,
    snippets: list[Snippet],
    callbacks: Callbacks,
) -> Filtered:
    """Do what `filter_in_run` does, without blocking the event loop."""
    config = ensure_config({"callbacks": callbacks})
    if not get_async_callback_manager_for_config(config).handlers:
        return await conformal_filter.acall(query, snippets)
    decided: list[Filtered | Refused] = []

    async def decide(given: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        try:
            filtered = await conformal_filter.acall(query, snippets)
            decided.append(filtered)
        except Refused as error:
            if not error.of(conformal_filter.calibration):
                raise
            filtered = error.filtered
            decided.append(error)
        event = events.event_of(filtered, query=query)
        await adispatch_custom_event(events.EVENT, deepcopy(event), config=config)
        return event

    await RunnableLambda(decide, name=events.EVENT).ainvoke(_inputs(query, snippets), config)
    return unless_refused(decided.pop())


def unless_refused(decided: Decided | Refused) -> Decided:
    """Return what was decided, or raise the error that it is."""
    if isinstance(decided, Refused):
        raise decided
    return decided


def _inputs(query: str, snippets: list[Snippet]) -> dict[str, Any]:
    return {"query": query, "k": len(snippets)}


class ConformalCallbackHandler(BaseCallbackHandler):
    """Counts m1 and m2 of each calibration, says what is filtered to `logging`, and logs it.

    Give it where LangChain takes callbacks, sync or async: `config={"callbacks": [handler]}`. The
    logger is "conformal_retrievers"; `log` is a file that several processes may share.
    """

    def __init__(self, log: FilterLog | None = None) -> None:
        self.observer = observing.Observer(log)

    def on_custom_event(
        self,
        name: str,
        data: Any,
        *,
        run_id: UUID,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Take in an event of either filter; others are none of its business."""
        if name in (events.EVENT, events.CLAIMS_EVENT):
            self.observer.observe(data)
