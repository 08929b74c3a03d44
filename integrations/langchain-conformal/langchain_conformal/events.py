"""The filter as a run of its own in LangChain's callbacks, with one custom event in it.

The run and the event are called "conformal_filter". The event's data, a copy of which is the run's
output, is that of `conformal_retrievers.monitoring.events`: plain JSON, without any snippet's text.
A filter that is told to raise, where nothing is kept or a snippet cannot be scored, raises behind
the run, which ends as any other with what was decided. Without a handler there is no run, and
nothing is built for it.
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

from conformal_retrievers import (
    ConformalFilter,
    Filtered,
    FilterLog,
    Refused,
    Snippet,
)
from conformal_retrievers.monitoring import events
from conformal_retrievers.monitoring.log import Observer

Decided = TypeVar("Decided")


def filter_in_run(
    conformal_filter: ConformalFilter,
    query: str,
    snippets: list[Snippet],
    callbacks: Callbacks,
) -> Filtered:
    """Filter a query's snippets in a run below that of `callbacks`, or of the run one is in."""
    return in_run(
        events.EVENT,
        lambda: conformal_filter(query, snippets),
        lambda filtered: events.event_of(filtered, query=query),
        calibration=conformal_filter.calibration,
        inputs={"query": query, "k": len(snippets)},
        config=ensure_config({"callbacks": callbacks}),
    )


async def afilter_in_run(
    conformal_filter: ConformalFilter,
    query: str,
    snippets: list[Snippet],
    callbacks: Callbacks,
) -> Filtered:
    """Do what `filter_in_run` does, without blocking the event loop."""
    return await ain_run(
        events.EVENT,
        lambda: conformal_filter.acall(query, snippets),
        lambda filtered: events.event_of(filtered, query=query),
        calibration=conformal_filter.calibration,
        inputs={"query": query, "k": len(snippets)},
        config=ensure_config({"callbacks": callbacks}),
    )


def in_run(
    name: str,
    decide: Callable[[], Decided],
    event_of: Callable[[Decided], dict[str, Any]],
    *,
    calibration: object,
    inputs: dict[str, Any],
    config: RunnableConfig,
) -> Decided:
    """Return what a filter decides, in a run with an event, both of that name.

    What the filter with this calibration refuses is told as any decision, and raised behind it.
    """
    if not get_callback_manager_for_config(config).handlers:
        return decide()
    decided: list[Decided | Refused] = []

    def run(given: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        try:
            filtered = decide()
            decided.append(filtered)
        except Refused as error:
            filtered = _refused_by(calibration, error)
            decided.append(error)
        event = event_of(filtered)
        dispatch_custom_event(name, deepcopy(event), config=config)
        return event

    RunnableLambda(run, name=name).invoke(inputs, config)
    return _unless_refused(decided.pop())


async def ain_run(
    name: str,
    decide: Callable[[], Awaitable[Decided]],
    event_of: Callable[[Decided], dict[str, Any]],
    *,
    calibration: object,
    inputs: dict[str, Any],
    config: RunnableConfig,
) -> Decided:
    """Do what `in_run` does, without blocking the event loop."""
    if not get_async_callback_manager_for_config(config).handlers:
        return await decide()
    decided: list[Decided | Refused] = []

    async def run(given: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        try:
            filtered = await decide()
            decided.append(filtered)
        except Refused as error:
            filtered = _refused_by(calibration, error)
            decided.append(error)
        event = event_of(filtered)
        await adispatch_custom_event(name, deepcopy(event), config=config)
        return event

    await RunnableLambda(run, name=name).ainvoke(inputs, config)
    return _unless_refused(decided.pop())


def _refused_by(calibration: object, error: Refused) -> Any:
    """Return what was decided; raise the error where another filter raised it, as in a scorer."""
    if not error.of(calibration):
        raise error
    return error.filtered


def _unless_refused(decided: Decided | Refused) -> Decided:
    if isinstance(decided, Refused):
        raise decided
    return decided


class ConformalCallbackHandler(BaseCallbackHandler):
    """Counts m1 and m2 of each calibration, says what is filtered to `logging`, and logs it.

    Give it where LangChain takes callbacks, sync or async: `config={"callbacks": [handler]}`. The
    logger is "conformal_retrievers"; `log` is a file that several processes may share.
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
        """Take in an event of either filter; others are none of its business."""
        if name in (events.EVENT, events.CLAIMS_EVENT):
            self.observer.observe(data)
