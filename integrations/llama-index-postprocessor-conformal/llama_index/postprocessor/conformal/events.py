"""The filter in LlamaIndex's instrumentation: two events that always come in pairs.

`ReRankStartEvent` before, `ConformalFilterEvent` after, also where the scorer fails; the older
callback manager sees one RERANKING event. What was decided is in the event's `decision`, that of
`conformal_retrievers.monitoring.events`: plain JSON, without any snippet's text. The current
OpenTelemetry span carries it as conformal.* attributes, and in a span event of its own, which many
nodes do not crowd out. Without a listener, nothing is built.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.callbacks.base_handler import BaseCallbackHandler as LegacyHandler
from llama_index.core.instrumentation import (  # type: ignore[attr-defined]
    Dispatcher,
    get_dispatcher,
)
from llama_index.core.instrumentation.event_handlers import BaseEventHandler, NullEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.schema import NodeWithScore, QueryBundle
from pydantic import PrivateAttr

from conformal_retrievers import (
    ConformalFilter,
    Filtered,
    FilterLog,
    Refused,
)
from conformal_retrievers.monitoring import events
from conformal_retrievers.monitoring.log import Observer
from llama_index.postprocessor.conformal.claims_events import ConformalClaimsEvent

dispatcher = get_dispatcher(__name__)
logger = logging.getLogger("conformal_retrievers")


class ConformalFilterEvent(ReRankEndEvent):
    """What the filter kept, and how it decided; `decision` is None where it failed."""

    decision: dict[str, Any] | None

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex knows the class by."""
        return "ConformalFilterEvent"


class ConformalEventHandler(BaseEventHandler):
    """Counts m1 and m2 of each calibration, says what is filtered to `logging`, and logs it.

    Add it where it shall listen: `get_dispatcher().add_event_handler(handler)`. The logger is
    "conformal_retrievers"; `log` is a file that several processes may share.
    """

    _observer: Observer = PrivateAttr()

    def __init__(self, log: FilterLog | None = None) -> None:
        super().__init__()
        self._observer = Observer(log)

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex knows the class by."""
        return "ConformalEventHandler"

    @property
    def observer(self) -> Observer:
        """What the handler has counted, and where it logs."""
        return self._observer

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        """Take in an event of either filter; others are none of its business."""
        of_a_filter = (ConformalFilterEvent, ConformalClaimsEvent)
        if isinstance(event, of_a_filter) and event.decision is not None:
            self._observer.observe(event.decision)


class Outcome:
    """What a filter decided, for the events that follow."""

    filtered: Filtered | None = None
    nodes: list[NodeWithScore]

    def __init__(self) -> None:
        self.nodes = []


@contextmanager
def rerank_events(
    query: QueryBundle,
    nodes: list[NodeWithScore],
    conformal_filter: ConformalFilter,
    callbacks: CallbackManager,
) -> Iterator[Outcome]:
    """Emit both events and the older one around a filter's call, which fills in the `Outcome`."""
    outcome, scorer = Outcome(), conformal_filter.scorer.name
    listened, legacy = _has_listener(), bool(callbacks.handlers)
    started = ""
    if legacy:
        with _not_in_the_way():
            callbacks = copy(callbacks)  # of the same kind, with the same trace
            callbacks.set_handlers([_Guarded(handler) for handler in callbacks.handlers])
            payload: dict[str, Any] = {
                EventPayload.NODES: list(nodes),  # the handlers' own, whatever they do with it
                EventPayload.MODEL_NAME: scorer,
                EventPayload.QUERY_STR: query.query_str,
                EventPayload.TOP_K: len(nodes),
            }
            started = callbacks.on_event_start(CBEventType.RERANKING, payload=payload)
    if listened:
        dispatcher.event(
            ReRankStartEvent(query=query, nodes=nodes, top_n=len(nodes), model_name=scorer)
        )
    try:
        yield outcome
    except Refused as error:
        if error.of(conformal_filter.calibration):
            outcome.filtered = error.filtered  # it is told as if nothing were raised
        raise
    finally:
        filtered = outcome.filtered
        if filtered is not None:
            events.annotate_span(filtered)
        if listened:
            decision = (
                None if filtered is None else events.event_of(filtered, query=query.query_str)
            )
            dispatcher.event(ConformalFilterEvent(nodes=outcome.nodes, decision=decision))
        if started:
            with _not_in_the_way():
                after: dict[str, Any] = {EventPayload.NODES: list(outcome.nodes)}
                callbacks.on_event_end(CBEventType.RERANKING, payload=after, event_id=started)


class _Guarded(LegacyHandler):
    """A handler of one event, in the way neither of the filter nor of the other handlers.

    One that fails at the start is not told of the end; the others are, and the manager, which would
    stop at the first that fails, keeps its stack of events.
    """

    def __init__(self, handler: LegacyHandler) -> None:
        super().__init__(list(handler.event_starts_to_ignore), list(handler.event_ends_to_ignore))
        self._handler = handler
        self._failed = False

    def on_event_start(
        self,
        event_type: CBEventType,
        payload: dict[str, Any] | None = None,
        event_id: str = "",
        parent_id: str = "",
        **kwargs: Any,
    ) -> str:
        self._failed = True
        with _not_in_the_way():
            self._handler.on_event_start(
                event_type, payload, event_id=event_id, parent_id=parent_id, **kwargs
            )
            self._failed = False
        return event_id

    def on_event_end(
        self,
        event_type: CBEventType,
        payload: dict[str, Any] | None = None,
        event_id: str = "",
        **kwargs: Any,
    ) -> None:
        if not self._failed:
            with _not_in_the_way():
                self._handler.on_event_end(event_type, payload, event_id=event_id, **kwargs)

    def start_trace(self, trace_id: str | None = None) -> None:
        self._handler.start_trace(trace_id)

    def end_trace(
        self, trace_id: str | None = None, trace_map: dict[str, list[str]] | None = None
    ) -> None:
        self._handler.end_trace(trace_id, trace_map)


@contextmanager
def _not_in_the_way() -> Iterator[None]:
    """Say it to `logging` where a handler fails; the dispatcher passes over its own in silence."""
    try:
        yield
    except Exception:
        logger.exception("a callback handler failed; filtering goes on")


def _has_listener() -> bool:
    place: Dispatcher | None = dispatcher
    while place is not None:
        if not all(isinstance(handler, NullEventHandler) for handler in place.event_handlers):
            return True  # the root's own handler listens to nothing
        place = place.parent if place.propagate else None
    return False
