"""Events of the filter of answers: what it decided, as plain JSON without any claim's text.

The frameworks' callbacks carry events and a `FilterLog` stores them, like those of the filter of
snippets (`monitoring/events.py`).
"""

from __future__ import annotations

from typing import Any

from conformal_retrievers.claims.answer_filter import FilteredAnswer
from conformal_retrievers.claims.calibrate import share_of
from conformal_retrievers.monitoring.events import (
    CLAIMS_EVENT,
    build_event,
    json_number,
    set_on_span,
)

EVENT = CLAIMS_EVENT  # the name of the event and of its run


def event_of(filtered: FilteredAnswer, *, query: str | None = None) -> dict[str, Any]:
    """Return what a filter decided about one answer, as plain JSON values.

    `relevance` is in the order of the claims, None for one that could not be scored; `kept` and
    `unscorable` are places in it. `threshold` is "keep_none" for +inf and "keep_all" for −inf.
    `undivided` and `guaranteed` are those of `FilteredAnswer`.
    """
    claims, calibration = filtered.claims, filtered.claims.calibration
    return build_event(
        EVENT,
        claims,
        query,
        {
            "calibration": calibration.checksum,
            "scorer": calibration.scorer,
            "alpha": calibration.alpha,
            "share": float(share_of(calibration)),
        },
        {
            "threshold": calibration.subject.threshold_name(claims.threshold),
            "relevance": [json_number(r) for r in claims.relevance.tolist()],
            "undivided": filtered.undivided,
            "guaranteed": filtered.guaranteed,
        },
    )


def annotate_span(filtered: FilteredAnswer) -> None:
    """Write the decision onto OpenTelemetry's current span: conformal.* attributes and an event."""
    claims, calibration = filtered.claims, filtered.claims.calibration
    set_on_span(
        EVENT,
        lambda: {
            "conformal.calibration": calibration.checksum,
            "conformal.alpha": calibration.alpha,
            "conformal.share": float(share_of(calibration)),
            "conformal.threshold": claims.threshold,
            "conformal.claims": len(claims.claims),
            "conformal.kept": len(claims.kept),
            "conformal.unscorable": len(claims.unscorable),
            "conformal.undivided": filtered.undivided or "",
            "conformal.guaranteed": filtered.guaranteed,
        },
    )
