"""Filters in operation: events, the log of events, and alarms over live traffic."""

from conformal_retrievers.monitoring.events import (
    CLAIMS_EVENT,
    EVENT,
    annotate_span,
    event_of,
    json_number,
    scores_of,
)
from conformal_retrievers.monitoring.log import FilterLog, Observer, read_log
from conformal_retrievers.monitoring.monitor import Monitor
from conformal_retrievers.monitoring.status import Counts, MonitorStatus

__all__ = [
    "CLAIMS_EVENT",
    "EVENT",
    "Counts",
    "FilterLog",
    "Monitor",
    "MonitorStatus",
    "Observer",
    "annotate_span",
    "event_of",
    "json_number",
    "read_log",
    "scores_of",
]
