"""The filters in LlamaIndex's instrumentation: pairs of events, before and after each decision.

Snippets: `ReRankStartEvent` and `ConformalFilterEvent`, and one RERANKING event of the deprecated
callback manager. Claims: `ConformalClaimsStartEvent` and `ConformalClaimsEvent`. The second event
of a pair has the `decision` as plain JSON without any text, None if the filter failed (`event_of`
of `conformal_retrievers.monitoring`, `claims_event_of` of `conformal_retrievers.claims`).
OpenTelemetry's current span has it as conformal.* attributes. Without a listener none is built.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload
from llama_index.core.instrumentation import Dispatcher, get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.event_handlers import BaseEventHandler, NullEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.schema import NodeWithScore, QueryBundle
from pydantic import Field

from conformal_retrievers.claims import AnswerFilter, annotate_claims_span, claims_event_of
from conformal_retrievers.filtering import RetrievalFilter
from conformal_retrievers.monitoring import FilterLog, Observer, annotate_span, event_of
from conformal_retrievers.results import Refused
from llama_index.postprocessor.conformal.nodes import Named, RetrievedNodes

dispatcher = get_dispatcher(__name__)
logger = logging.getLogger("conformal_retrievers")


class ConformalFilterEvent(Named, ReRankEndEvent):
    """The nodes that the filter kept, and its decision; `decision` is None if it failed."""

    decision: dict[str, Any] | None


class ConformalClaimsStartEvent(Named, BaseEvent):
    """An answer to a query is about to be divided into claims and filtered by a scorer."""

    query: str
    scorer: str


class ConformalClaimsEvent(Named, BaseEvent):
    """The filter's decision about an answer's claims; `decision` is None if it failed."""

    decision: dict[str, Any] | None


class ConformalEventHandler(BaseEventHandler):
    """Counts m1 and m2 for each calibration, reports each decision to `logging`, and logs it.

    Add it to a dispatcher: `get_dispatcher().add_event_handler(handler)`. The logger is
    "conformal_retrievers"; `log` is a file that several processes may share.
    """

    observer: Observer = Field(default_factory=Observer, exclude=True)  # the counts and the log

    def __init__(self, log: FilterLog | None = None) -> None:
        super().__init__()
        self.observer = Observer(log)

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        """Observe an event of either filter, and ignore others."""
        of_a_filter = (ConformalFilterEvent, ConformalClaimsEvent)
        if isinstance(event, of_a_filter) and event.decision is not None:
            self.observer.observe(event.decision)


@dataclass
class Outcome:
    """What a filter decided, for the events after it."""

    filtered: Any = None  # a Filtered or a FilteredAnswer
    nodes: list[NodeWithScore] = field(default_factory=list)


@contextmanager
def rerank_events(
    query: QueryBundle,
    retrieved: RetrievedNodes,
    conformal_filter: RetrievalFilter[Any],
    kept: Callable[[list[NodeWithScore], Any], list[NodeWithScore]],
    callbacks: CallbackManager,
) -> Iterator[Outcome]:
    """Emit the events of a filter of snippets around a block that sets `Outcome.filtered`.

    Parameters
    ----------
    query, retrieved, conformal_filter
        The query, its nodes and the filter.
    kept
        Returns what the filter keeps of the nodes, from its decision.
    callbacks
        The deprecated callback manager, which gets a RERANKING event if it has a handler.
    """
    outcome, nodes, scorer = Outcome(), [*retrieved.given], conformal_filter.scorer.name
    listened, started = _has_listener(), None
    if callbacks.handlers:
        payload = {
            EventPayload.NODES: list(nodes),  # a copy, because handlers may change it
            EventPayload.MODEL_NAME: scorer,
            EventPayload.QUERY_STR: query.query_str,
            EventPayload.TOP_K: len(nodes),
        }
        started = _notify(callbacks.on_event_start, payload)
    if listened:
        about: Any = {"query": query, "nodes": nodes, "top_n": len(nodes), "model_name": scorer}
        dispatcher.event(ReRankStartEvent(**about))
    try:
        yield outcome
        outcome.nodes = kept(nodes, outcome.filtered)
    except Refused as error:
        if error.of(conformal_filter.calibration):  # not of another filter, as in the scorer
            outcome.filtered = error.filtered
        raise
    finally:
        decision = None
        if outcome.filtered is not None:
            annotate_span(outcome.filtered)
            if listened:
                text, failed = query.query_str, retrieved.failed
                decision = event_of(outcome.filtered, query=text, failed=failed)
        if listened:
            dispatcher.event(ConformalFilterEvent(nodes=outcome.nodes, decision=decision))
        if started:
            after = {EventPayload.NODES: list(outcome.nodes)}
            _notify(callbacks.on_event_end, after, event_id=started)


@contextmanager
def claims_events(query: str, answer_filter: AnswerFilter) -> Iterator[Outcome]:
    """Emit the events of a filter of claims around a block that fills in the `Outcome`."""
    outcome, scorer = Outcome(), answer_filter.filter.scorer.name
    dispatcher.event(ConformalClaimsStartEvent(query=query, scorer=scorer))
    try:
        yield outcome
    finally:
        decision = None
        if outcome.filtered is not None:
            decision = claims_event_of(outcome.filtered, query=query)
            annotate_claims_span(outcome.filtered)
        dispatcher.event(ConformalClaimsEvent(decision=decision))


def _notify(call: Callable[..., Any], payload: Mapping[Any, Any], **arguments: Any) -> Any:
    """Call the deprecated callback manager; log the error if one of its handlers fails."""
    try:
        return call(CBEventType.RERANKING, payload=payload, **arguments)
    except Exception:
        logger.exception("a callback handler failed; filtering goes on")
        return None


def _has_listener() -> bool:
    place: Dispatcher | None = dispatcher
    while place is not None:
        if {*map(type, place.event_handlers)} - {NullEventHandler}:  # which is the root's own
            return True
        place = place.parent if place.propagate else None
    return False
