"""The filter of an answer's claims in LlamaIndex's instrumentation: two events that come in pairs.

`ConformalClaimsStartEvent` before, `ConformalClaimsEvent` after, also where the filter fails. What
was decided is in the latter's `decision`, that of `conformal_retrievers.claims.events`: plain JSON,
without any claim's text. Where OpenTelemetry is at work, the current span carries it as conformal.*
attributes. The older callback manager knows no event of this kind, and is told of none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.events import BaseEvent

from conformal_retrievers import AnswerFilter, FilteredAnswer, Refused, claims

dispatcher = get_dispatcher(__name__)


class ConformalClaimsStartEvent(BaseEvent):
    """An answer to a query is about to be divided into claims and filtered by a scorer."""

    query: str
    scorer: str

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex knows the class by."""
        return "ConformalClaimsStartEvent"


class ConformalClaimsEvent(BaseEvent):
    """How the filter decided about an answer's claims; `decision` is None where it failed."""

    decision: dict[str, Any] | None

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex knows the class by."""
        return "ConformalClaimsEvent"


@contextmanager
def claims_events(query: str, answer_filter: AnswerFilter) -> Iterator[list[FilteredAnswer]]:
    """Emit both events around a filter's call, what it decided is put into the list."""
    decided: list[FilteredAnswer] = []
    scorer = answer_filter.filter.scorer.name
    dispatcher.event(ConformalClaimsStartEvent(query=query, scorer=scorer))
    try:
        yield decided
    except Refused as error:
        if error.of(answer_filter.filter.calibration):
            decided.append(error.filtered)  # it is told as if nothing were raised
        raise
    finally:
        decision = claims.events.event_of(decided[0], query=query) if decided else None
        if decided:
            claims.events.annotate_span(decided[0])
        dispatcher.event(ConformalClaimsEvent(decision=decision))
