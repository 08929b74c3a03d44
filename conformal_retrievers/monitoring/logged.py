"""The queries of a filter log, as scored queries that `diagnose` takes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.text import visible
from conformal_retrievers.monitoring.events import is_silent, scores_of
from conformal_retrievers.scoring.scorer import asked_in, query_digest
from conformal_retrievers.theory.intervals import percent


class Savings(NamedTuple):
    """What a filter in shadow would have done to its queries, repeated ones included."""

    queries: int  # with the characters of their snippets
    alphas: str  # of the filters
    tokens: float  # of a query's snippets, on average: four characters each
    saved: float  # how many of these the filter would have saved
    emptied: float  # the share of the queries of which it would have kept nothing

    @classmethod
    def of(cls, events: Sequence[Mapping[str, Any]]) -> Self:
        """Return those of events, at least one, that have `characters`."""
        n = len(events)
        before = sum(sum(event["characters"]) for event in events)
        kept = sum(event["characters"][i] for event in events for i in event["kept"])
        emptied = sum(event["k"] > 0 and not event["kept"] for event in events)
        alphas = ", ".join(sorted({f"{event['alpha']}" for event in events}))
        return cls(n, alphas, before / 4 / n, (before - kept) / 4 / n, emptied / n)

    def __str__(self) -> str:
        return (
            f"In shadow at alpha = {self.alphas}, over {self.queries:,} queries: the filter would "
            f"have saved about {self.saved:,.0f} of {self.tokens:,.0f} tokens a query, and left "
            f"{percent(self.emptied)} of the queries without any."
        )


class Logged(NamedTuple):
    """The new queries of a log, each once, as it was filtered last."""

    queries: ScoredQueries
    left_out: int  # events of another calibration, and of judged queries of a learned score
    of_others: int  # those of another calibration
    repeated: int  # events of a query that came again
    failed: Mapping[str, int]  # events by the name of a retriever that failed
    savings: Savings | None  # where there are events of a filter in shadow


def logged(events: Iterable[Mapping[str, Any]], calibration: Calibration) -> Logged:
    """Return the queries of events that were filtered with a calibration, at any alpha.

    Of a query that is repeated in its group, the last event counts, since a question that is asked
    often would outweigh others, and what changed shows last. If the log has neither queries nor
    their hashes, each is named by the number of its event.
    """
    chosen_on = frozenset(calibration.choice.fit_digests if calibration.choice else ())
    new: dict[tuple[str, str | None], tuple[NDArray[np.float64], bool | None]] = {}
    left_out = of_others = repeated = 0
    failed = Counter[str]()
    shadow: list[Mapping[str, Any]] = []

    @cache
    def checksum_at(alpha: float) -> str | None:
        try:
            return calibration.at(alpha).checksum
        except (TypeError, ValueError):  # no alpha, or too few queries for delta at this one
            return None

    for number, event in enumerate(events, start=1):
        query, group = event.get("query"), event.get("group")
        others = event["calibration"] not in (calibration.checksum, checksum_at(event.get("alpha")))
        asked = {query, query_digest(query)} if query is not None else set()
        known = {asked_in(digest, group) for digest in asked}
        if others or asked & chosen_on or known & calibration.digests:
            left_out += 1
            of_others += others
            continue
        if event.get("characters") is not None:
            shadow.append(event)
        failed.update(event.get("failed_retrievers", ()))
        scores = scores_of(event)
        silenced = is_silent(event) if calibration.silences else None
        if silenced:  # all is dropped
            scores = np.full(len(scores), np.inf)
        key = visible(query or f"event {number}"), group and visible(group)
        repeated += key in new
        new[key] = scores, silenced
    offsets = np.cumsum([0, *[len(scores) for scores, _ in new.values()]])
    queries = ScoredQueries(
        np.concatenate([np.empty(0), *[scores for scores, _ in new.values()]]),
        np.zeros(offsets[-1], dtype=bool),
        offsets,
        ids=[id if group is None else f"{id} ({group})" for id, group in new],
        groups=[group for _, group in new],
        split=calibration.split,
        silenced=np.array([silent for _, silent in new.values()], dtype=np.float64),  # None: NaN
    )
    savings = Savings.of(shadow) if shadow else None
    return Logged(queries, left_out, of_others, repeated, failed, savings)
