"""What may enter a calibration: every check is made here, once, and names what is wrong."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from conformal_retrievers.judged import ScoredQuery

if TYPE_CHECKING:
    from pydantic import JsonValue


def check_name(scorer: object) -> None:
    """Raise ValueError unless the scorer's name is printable text."""
    if not isinstance(scorer, str) or not scorer.isprintable():
        raise ValueError(f"scorer is {scorer!r}; give the scorer's name, printable text")


def check_scored(scored: Sequence[ScoredQuery]) -> None:
    """Raise ValueError for a repeated id, an unscorable relevant snippet, or nothing relevant."""
    ids = Counter(query.id for query in scored if query.id is not None)
    twice = next((id for id, times in ids.items() if times > 1), None)
    if twice is not None:
        raise ValueError(
            f"query id {twice!r} occurs {ids[twice]} times; a query enters a calibration once, so "
            "remove the repetitions"
        )
    # Irrelevant scores do not enter: they may be anything. +inf is what no threshold keeps.
    relevant = np.concatenate([np.empty(0), *(query.scores[query.relevant] for query in scored)])
    if np.isnan(relevant).any():
        _name_unscorable(scored)
    if not len(relevant):
        raise ValueError(
            f"none of the {len(scored)} judged queries has a relevant retrieved snippet; judge "
            "queries until some have, or retrieve deeper"
        )


def _name_unscorable(scored: Sequence[ScoredQuery]) -> None:
    for number, query in enumerate(scored):
        for i in np.flatnonzero(query.relevant & np.isnan(query.scores)).tolist():
            where = query.name if query.id is not None else f"query number {number + 1}"
            raise ValueError(
                f"{where}: scores[{i}] is nan, so its relevant snippet could not be scored; score "
                "it again, or leave the query out"
            )


def check_groups(
    queries: Sequence[ScoredQuery], by_group: bool, merge_groups: Mapping[str, str] | None
) -> None:
    """Raise ValueError for a query without a group, or a merged group that no query has."""
    if merge_groups is not None and not by_group:
        raise ValueError("merge_groups is given without by_group=True; give both or neither")
    if not by_group:
        return
    nameless = next((query for query in queries if query.group is None), None)
    if nameless is not None:
        raise ValueError(
            f"{nameless.name}: group is None, but the calibration is by group; name the group of "
            "every query"
        )
    known = {query.group for query in queries}
    unknown = sorted(set(merge_groups or {}) - known)
    if unknown:
        raise ValueError(
            f"merge_groups names {unknown[0]!r}, a group of no judged query with a known relevant "
            f"snippet; the groups are {', '.join(map(repr, sorted(map(str, known))))}"
        )


def warn_if_reversed(scored: list[ScoredQuery]) -> None:
    """Warn where relevant snippets score higher than irrelevant ones, pooled over queries."""
    relevant = np.concatenate([query.scores[query.relevant] for query in scored])
    irrelevant = np.sort(np.concatenate([query.scores[~query.relevant] for query in scored]))
    irrelevant = irrelevant[~np.isnan(irrelevant)]
    if len(irrelevant) == 0:
        return
    above = len(irrelevant) - np.searchsorted(irrelevant, relevant, side="right")
    ties = len(irrelevant) - above - np.searchsorted(irrelevant, relevant, side="left")
    auc = float(np.mean(above + ties / 2) / len(irrelevant))
    if auc < 0.5:
        warnings.warn(
            f"relevant snippets score higher than irrelevant ones (AUC {auc:.2f}, below 0.5), but "
            "a score is a nonconformity, lower = more relevant: give a distance, or negate a "
            "similarity",
            UserWarning,
            stacklevel=3,
        )


def json_copy(name: str, provenance: Mapping[str, JsonValue] | None) -> dict[str, JsonValue] | None:
    """Return a copy that nobody else holds, as the file will give it back."""
    if provenance is None:
        return None
    try:
        text = json.dumps(provenance, allow_nan=False, ensure_ascii=False)
        copy: dict[str, JsonValue] = json.loads(text.encode("utf-8"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is {provenance!r:.80}, which JSON cannot hold: {error}") from None
    return copy
