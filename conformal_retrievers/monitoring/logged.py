"""The queries of a filter log, as scored queries that `diagnose` takes."""

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
from conformal_retrievers.scoring.scorer import query_digest
from conformal_retrievers.theory.intervals import percent


class Savings(NamedTuple):
    """What a filter in shadow would have done to its queries, repeated ones included."""

    queries: int  # with the characters of their snippets
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
        return cls(n, before / 4 / n, (before - kept) / 4 / n, emptied / n)

    def __str__(self) -> str:
        return (
            f"In shadow, over {self.queries:,} queries: the filter would have saved about "
            f"{self.saved:,.0f} of {self.tokens:,.0f} tokens a query, and left "
            f"{percent(self.emptied)} of the queries without any."
        )


class Logged(NamedTuple):
    """The new queries of a log, each once."""

    queries: ScoredQueries
    left_out: int  # events of another calibration, and of queries that the score was chosen on
    repeated: int  # events of a query that came before
    savings: Savings | None = None  # where there are events of a filter in shadow


def logged(events: Iterable[Mapping[str, Any]], calibration: Calibration) -> Logged:
    """Return the queries of events that were filtered with a calibration, at any alpha.

    A repeated query counts once, if the log has queries or their hashes; others are named by the
    number of their event.
    """
    chosen_on = frozenset(calibration.choice.fit_digests if calibration.choice else ())
    new: dict[str, tuple[NDArray[np.float64], str | None, bool | None]] = {}
    left_out = repeated = 0
    shadow: list[Mapping[str, Any]] = []

    @cache
    def checksum_at(alpha: float) -> str | None:
        try:
            return calibration.at(alpha).checksum
        except (TypeError, ValueError):  # no alpha, or too few queries for delta at this one
            return None

    for number, event in enumerate(events, start=1):
        query = event.get("query")
        others = event["calibration"] not in (calibration.checksum, checksum_at(event.get("alpha")))
        if others or (query is not None and not chosen_on.isdisjoint((query, query_digest(query)))):
            left_out += 1
            continue
        if event.get("characters") is not None:
            shadow.append(event)
        scores, id = scores_of(event), visible(query or f"event {number}")
        group = event.get("group")
        silenced = is_silent(event) if calibration.silences else None
        if silenced:  # all is dropped
            scores = np.full(len(scores), np.inf)
        repeated += id in new
        new.setdefault(id, (scores, group and visible(str(group)), silenced))
    offsets = np.cumsum([0, *[len(scores) for scores, _, _ in new.values()]])
    queries = ScoredQueries(
        np.concatenate([np.empty(0), *[scores for scores, _, _ in new.values()]]),
        np.zeros(offsets[-1], dtype=bool),
        offsets,
        ids=new,
        groups=[group for _, group, _ in new.values()],
        split=calibration.split,
        silenced=np.array([silent for _, _, silent in new.values()], dtype=np.float64),  # None: NaN
    )
    return Logged(queries, left_out, repeated, Savings.of(shadow) if shadow else None)
