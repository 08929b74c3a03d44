"""The filter as a run of its own in LangChain's callbacks, with one custom event in it.

Run and event have the same name, "conformal_filter" for snippets. The event's data is that of
`conformal_retrievers.monitoring.event_of`, plain JSON without any snippet's text, and a copy of it
is the output of the run. A filter that raises because nothing is kept, or because a snippet cannot
be scored, raises after its run has ended with the decision. Without a handler there is no run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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

from conformal_retrievers import ConformalFilter, Filtered, Snippet
from conformal_retrievers.filtering import Refused
from conformal_retrievers.monitoring import CLAIMS_EVENT, EVENT, FilterLog, Observer, event_of

Decided = TypeVar("Decided")


def filter_in_run(
    conformal_filter: ConformalFilter, query: str, snippets: list[Snippet], callbacks: Callbacks
) -> Filtered:
    """Filter a query's snippets in a run below that of `callbacks`, or of the current run."""
    run = _run_of(conformal_filter, query, snippets, callbacks)
    filtered: Filtered = in_run(lambda: conformal_filter(query, snippets), **run)
    return filtered


async def afilter_in_run(
    conformal_filter: ConformalFilter, query: str, snippets: list[Snippet], callbacks: Callbacks
) -> Filtered:
    """Do what `filter_in_run` does, without blocking the event loop."""
    run = _run_of(conformal_filter, query, snippets, callbacks)
    return await ain_run(lambda: conformal_filter.acall(query, snippets), **run)


def _run_of(
    conformal_filter: ConformalFilter, query: str, snippets: list[Snippet], callbacks: Callbacks
) -> dict[str, Any]:
    return {
        "name": EVENT,
        "calibration": conformal_filter.calibration,
        "to_event": lambda filtered: event_of(filtered, query=query),
        "inputs": {"query": query, "k": len(snippets)},
        "config": ensure_config({"callbacks": callbacks}),
    }


def in_run(
    decide: Callable[[], Decided],
    *,
    name: str,
    calibration: object,
    to_event: Callable[[Decided], dict[str, Any]],
    inputs: dict[str, Any],
    config: RunnableConfig,
) -> Decided:
    """Return what a filter decides, in a run with an event, both of that name.

    If the filter with this calibration refuses, its decision is reported like any other, and the
    error is raised after the run.
    """
    if not get_callback_manager_for_config(config).handlers:
        return decide()
    decided: list[Decided] = []
    refused: list[Refused] = []

    def run(given: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        try:
            filtered = decide()
        except Refused as error:
            if not error.of(calibration):  # raised by another filter, such as one in the scorer
                raise
            refused.append(error)
            filtered = error.filtered
        decided.append(filtered)
        event = to_event(filtered)
        dispatch_custom_event(name, deepcopy(event), config=config)
        return event

    RunnableLambda(run, name=name).invoke(inputs, config)
    if refused:
        raise refused[0]
    return decided[0]


async def ain_run(
    decide: Callable[[], Awaitable[Decided]],
    *,
    name: str,
    calibration: object,
    to_event: Callable[[Decided], dict[str, Any]],
    inputs: dict[str, Any],
    config: RunnableConfig,
) -> Decided:
    """Do what `in_run` does, without blocking the event loop."""
    if not get_async_callback_manager_for_config(config).handlers:
        return await decide()
    decided: list[Decided] = []
    refused: list[Refused] = []

    async def run(given: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        try:
            filtered = await decide()
        except Refused as error:
            if not error.of(calibration):  # raised by another filter, such as one in the scorer
                raise
            refused.append(error)
            filtered = error.filtered
        decided.append(filtered)
        event = to_event(filtered)
        await adispatch_custom_event(name, deepcopy(event), config=config)
        return event

    await RunnableLambda(run, name=name).ainvoke(inputs, config)
    if refused:
        raise refused[0]
    return decided[0]


class ConformalCallbackHandler(BaseCallbackHandler):
    """Counts m1 and m2 for each calibration, reports each decision to `logging`, and logs it.

    Pass it as LangChain's callbacks, sync or async: `config={"callbacks": [handler]}`. The logger
    is "conformal_retrievers"; `log` is a file that several processes may share.
    """

    def __init__(self, log: FilterLog | None = None) -> None:
        self.observer = Observer(log)

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
        """Observe an event of either filter, and ignore others."""
        if name in (EVENT, CLAIMS_EVENT):
            self.observer.observe(data)
