"""What a filter did, as an event: plain JSON, which frameworks' callbacks carry and a log keeps.

An event holds no text of snippets. `Observer` (observing.py) counts events, and `FilterLog`
(filter_log.py) writes them down. Those of answers' claims are made in claims/events.py.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.filtering import Filtered

EVENT = "conformal_filter"  # the name of the event and of the run that it belongs to
CLAIMS_EVENT = "conformal_claims"  # that of claims/events.py
VERSION = 1
FIELDS = {  # what a reader of either event can rely on
    EVENT: {"calibration", "k", "kept", "scores", "m1", "m2"},
    CLAIMS_EVENT: {"calibration", "k", "kept", "relevance"},
}


def event_of(filtered: Filtered, *, query: str | None = None) -> dict[str, Any]:
    """Return what a filter decided about one query, as plain JSON values.

    `scores` are in the retriever's order, None where a snippet could not be scored and "inf" where
    the scorer dropped it; `threshold` is "keep_all" where everything is kept.
    """
    calibration = filtered.calibration
    return {
        "event": EVENT,
        "version": VERSION,
        "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "calibration": calibration.checksum,
        "scorer": calibration.scorer,
        "guarantee": calibration.guarantee,
        "alpha": calibration.alpha,
        "group": filtered.group,
        "query": query,
        "k": len(filtered.scores),
        "kept": filtered.kept.tolist(),
        "unscorable": filtered.unscorable.tolist(),
        "threshold": json_number(filtered.threshold, "keep_all"),
        "scores": [json_number(score, "inf") for score in filtered.scores.tolist()],
        "m1": filtered.m1,
        "m2": filtered.m2,
    }


def annotate_span(filtered: Filtered) -> None:
    """Write what was decided onto OpenTelemetry's current span, see `set_on_span`.

    Where OpenTelemetry was never loaded there is no span, and nothing is loaded for it.
    """
    set_on_span(
        EVENT,
        lambda: {
            "conformal.calibration": filtered.calibration.checksum,
            "conformal.guarantee": filtered.calibration.guarantee,
            "conformal.alpha": filtered.calibration.alpha,
            "conformal.threshold": filtered.threshold,
            "conformal.k": len(filtered.scores),
            "conformal.kept": len(filtered.kept),
            "conformal.unscorable": len(filtered.unscorable),
            "conformal.m1": filtered.m1,
            "conformal.m2": filtered.m2,
        },
    )


def set_on_span(event: str, attributes: Callable[[], Mapping[str, str | bool | float]]) -> None:
    """Write attributes onto OpenTelemetry's current span, if there is one, and into an event on it.

    A span keeps 128 attributes, the newest: an instrumentor that writes some for each node when the
    span ends leaves none of these, but the event keeps its own.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None and (span := trace.get_current_span()).is_recording():
        written = attributes()
        span.set_attributes(written)
        span.add_event(event, written)


def scores_of(event: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the scores (n,) of an event as floats, NaN where a snippet could not be scored."""
    return np.array([math.nan if s is None else float(s) for s in event["scores"]], np.float64)


def json_number(value: float, infinite: str = "inf") -> float | str | None:
    """Return what JSON can hold: None for NaN, and words for what is infinite."""
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else infinite if value > 0 else "-inf"


# --- reading --------------------------------------------------------------------------------------


def is_event(row: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a row of JSON says that it is an event, of a filter of either kind."""
    kind = row.get("event") if isinstance(row, dict) else None
    return isinstance(kind, str) and kind in FIELDS


def check_event(event: object, where: str) -> dict[str, Any]:
    """Return an event that is one of a version that is known; raise ValueError for anything else,
    naming where it stands and the field."""
    if not is_event(event):
        raise ValueError(f"{where}: its field 'event' is not {EVENT!r}; give a filter log")
    if event.get("version") != VERSION:
        raise ValueError(
            f"{where} has version {event.get('version')!r}, but this library reads version "
            f"{VERSION}; upgrade conformal-retrievers"
        )
    missing = sorted(FIELDS[event["event"]] - set(event))
    if missing:
        raise ValueError(f"{where}: its field {missing[0]!r} is missing; remove the line")
    for name, (fits, what) in VALUES.items():
        if name in event and not fits(event[name]):
            raise ValueError(
                f"{where}: its field {name!r} is {event[name]!r:.80}; give {what}, or remove the "
                "line"
            )
    return event


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_text_or_null(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _are_scores(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_score, value))


def _is_score(value: object) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return value is None or isinstance(value, float) or value in ("inf", "-inf")


SCORES = 'a list of numbers, null, "inf" or "-inf"'
VALUES: Mapping[str, tuple[Callable[[object], bool], str]] = {  # what readers of events rely on
    "calibration": (_is_text, "the checksum of a calibration"),
    "query": (_is_text_or_null, "a text, or null"),
    "group": (_is_text_or_null, "a text, or null"),
    "k": (_is_count, "a number of snippets"),
    "kept": (_are_counts, "a list of positions"),
    "scores": (_are_scores, SCORES),
    "relevance": (_are_scores, SCORES),
}
