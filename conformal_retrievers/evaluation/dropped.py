"""The queries whose relevant snippets a filter dropped, for people who look at what was lost."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.evaluation import measures


@dataclass(frozen=True)
class Lost:
    """A relevant snippet that was dropped: its id, or its place in the query, and its score."""

    snippet: str
    score: float


@dataclass(frozen=True)
class Dropped:
    """A query that lost relevant snippets which were retrieved."""

    query: str  # its text where it is known, or else its id or its place
    id: str | None
    relevant: int  # that were retrieved
    lost: tuple[Lost, ...]  # the worst score first
    threshold: float
    silenced: bool  # all snippets are dropped, whatever their scores


def dropped(
    calibration: Calibration, scored: Iterable[ScoredQuery], judged: Iterable[JudgedQuery] = ()
) -> list[Dropped]:
    """Return the queries that lost relevant snippets, those that lost most of them first.

    `judged` are the same queries with their texts, found by their ids.
    """
    queries = ScoredQueries.of(scored)
    texts = {query.id: query for query in judged if query.id is not None}
    lost = queries.relevant & ~measures.keeps(queries, calibration)
    relevant = queries.number_in(queries.relevant)
    thresholds = np.broadcast_to(measures.thresholds(queries, calibration), len(queries))
    losers = []
    for q in np.flatnonzero(queries.number_in(lost)).tolist():
        start, end = queries.offsets[q], queries.offsets[q + 1]
        places = np.flatnonzero(lost[start:end])
        scores = queries.scores[start:end]
        worst_first = places[np.argsort(-scores[places], kind="stable")]
        text = texts.get(queries.ids[q])
        names = {i: (text and text.snippets[i].id) or f"snippet {i + 1}" for i in places.tolist()}
        losers.append(
            Dropped(
                text.query if text else queries.ids[q] or f"query {q + 1}",
                queries.ids[q],
                int(relevant[q]),
                tuple(Lost(names[i], float(scores[i])) for i in worst_first),
                float(thresholds[q]),
                bool(queries.silenced[q] == 1),
            )
        )
    return sorted(losers, key=lambda query: (-len(query.lost), query.relevant))
