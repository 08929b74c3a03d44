"""What a filter of an answer's claims did, as an event: plain JSON, without any claim's text.

Both frameworks' callbacks carry it, and their handlers count and log it as they do the event of the
filter of snippets (`conformal_retrievers.monitoring.events`).
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

EVENT = CLAIMS_EVENT  # the name of the event and of the run that it belongs to


def event_of(filtered: FilteredAnswer, *, query: str | None = None) -> dict[str, Any]:
    """Return what a filter decided about one answer, as plain JSON values.

    `relevance` is in the order of the claims, None where one could not be scored; `kept` and
    `unscorable` are places in it. `threshold` is "keep_none" where no claim is kept whatever its
    relevance, and "keep_all" where each is that has one. `undivided` says why there are no claims,
    if the answer could not be divided, and `guaranteed` whether the text states the kept
    claims and no more, which is so where it states nothing.
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
    """Write what was decided onto OpenTelemetry's current span, as conformal.* attributes.

    An event on the span, "conformal_claims", has the same ones.
    """
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
