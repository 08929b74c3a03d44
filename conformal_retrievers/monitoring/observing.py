"""What a handler does with events: counts them, says them to `logging`, and writes the log.

The callbacks of both frameworks hand each event (events.py) to an `Observer`, which counts m1 and
m2 for each calibration.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import Any

from conformal_retrievers.monitoring.events import CLAIMS_EVENT
from conformal_retrievers.monitoring.log import LOCK_SECONDS, FilterLog
from conformal_retrievers.monitoring.monitor import Counts

HELD_SECONDS = 0.01  # waited for a log once an event was lost: others write within less

logger = logging.getLogger("conformal_retrievers")


class Observer:
    """Takes in events: counts them by calibration, says them to `logging`, and writes the log.

    Raises TypeError for a log that is no `FilterLog`, such as a path.

    It may be shared by threads, which write the log in turn. Nothing that goes wrong with the log
    gets in the way of retrieval: it is said once to `logging`, as an error, and when the log can be
    written again, how many events were lost, which `lost` says meanwhile. Where another process
    holds the log's lock, an event waits for it a second at most; once one was lost, a hundredth of
    that, until one is written.
    """

    def __init__(self, log: FilterLog | None = None) -> None:
        if log is not None and not isinstance(log, FilterLog):
            path = str(log) if isinstance(log, (str, os.PathLike)) else "filter.jsonl"
            raise TypeError(f"log is {log!r:.80}; give FilterLog({path!r})")
        self.log = log
        self._counts: dict[str, Counts] = {}
        self._lock = threading.Lock()
        self._turn = threading.RLock()  # not Lock: what `logging` is told in it may lead here again
        self.lost = 0

    @property
    def counts(self) -> Mapping[str, Counts]:
        """What was counted so far, by the checksum of the calibration: m1, m2 and more."""
        with self._lock:
            return dict(self._counts)

    def observe(self, event: Mapping[str, Any]) -> None:
        """Take in one event of `event_of`, or of that of claims/events.py.

        Of an answer's claims, m1 counts whether any is kept, and m2 the share that is.
        """
        k, kept = event["k"], len(event["kept"])
        of_claims = event["event"] == CLAIMS_EVENT
        one = Counts(
            queries=1,
            snippets=k,
            kept=kept,
            unscorable=len(event["unscorable"]),
            with_kept=int(kept > 0 if of_claims else event["m1"]),
            share_kept=kept / max(k, 1) if of_claims else event["m2"],
        )
        things = "claims" if of_claims else "snippets"
        with self._lock:
            total = self._counts.get(event["calibration"], Counts()) + one
            self._counts[event["calibration"]] = total
        logger.info(
            "kept %d of %d %s (m1 %.3f, m2 %.3f over %d queries)",
            one.kept,
            one.snippets,
            things,
            total.m1,
            total.m2,
            total.queries,
        )
        if one.unscorable:
            logger.warning("%d of %d %s could not be scored", one.unscorable, one.snippets, things)
        if event.get("undivided") is not None:
            logger.warning("an answer could not be divided into claims: %s", event["undivided"])
        if self.log is not None:
            self._append(self.log, event)

    def _append(self, log: FilterLog, event: Mapping[str, Any]) -> None:
        # In turn, since the log's own lock is polled for: of many threads some would wait in vain.
        with self._turn:
            try:
                log.append(event, wait=HELD_SECONDS if self.lost else LOCK_SECONDS)
            except Exception:  # retrieval goes on, whatever is the matter with the log
                self.lost += 1
                if self.lost == 1:
                    logger.exception(
                        "the filter log %s cannot be written; events are lost", log.path
                    )
            else:
                if self.lost:
                    logger.error(
                        "the filter log %s is written again; events lost: %d", log.path, self.lost
                    )
                self.lost = 0
