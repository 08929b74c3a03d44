"""What may enter a calibration: every check is made here, once, and names what is wrong."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.theory.intervals import auc


class Words(NamedTuple):
    """What messages call that of which a calibration has one score, or several, each."""

    unit: str
    judged: str
    judge: str


QUERIES = Words("query", "judged queries", "judge")
ANSWERS = Words("answer", "annotated answers", "annotate")


def check_name(scorer: object) -> None:
    """Raise ValueError unless the scorer's name is printable text."""
    if not isinstance(scorer, str) or not scorer.isprintable():
        raise ValueError(f"scorer is {scorer!r}; give the scorer's name, printable text")


def check_flags(**flags: object) -> None:
    """Raise TypeError, naming it, for a flag that is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{name} is {value!r}; give True or False")


def check_scored(scored: Sequence[ScoredQuery], words: Words = QUERIES) -> None:
    """Raise ValueError for no query, an id twice, an unscorable relevant snippet, none relevant."""
    if not scored:
        raise ValueError(f"there are no {words.judged}; give those to calibrate on")
    ids = Counter(query.id for query in scored if query.id is not None)
    twice = next((id for id, times in ids.items() if times > 1), None)
    if twice is not None:
        raise ValueError(
            f"{words.unit} id {twice!r} occurs {ids[twice]} times; each {words.unit} enters a "
            "calibration once, so remove the repetitions"
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


def check_some_scorable(scored: Sequence[ScoredQuery], scorer: str) -> None:
    """Raise ValueError where there are several relevant snippets, and not one could be scored."""
    relevant = np.concatenate([np.empty(0), *(query.scores[query.relevant] for query in scored)])
    if len(relevant) > 1 and np.isnan(relevant).all():
        raise ValueError(
            f"not one of the {len(relevant)} relevant snippets could be scored by {scorer!r}: all "
            "their scores are nan, so there is nothing to calibrate on; give the scorer what it "
            "scores by (a RetrievalScorer takes Snippet.retrieval_score, which in LangChain is "
            'metadata["relevance_score"]), or calibrate with another scorer'
        )


def with_retrieval(
    judged: Sequence[JudgedQuery], retrieval: Mapping[str, JsonValue] | None
) -> Mapping[str, JsonValue] | None:
    """Return what is told of the retrieval, with the judged queries' retriever and k in it.

    Raises ValueError where those differ between queries, or from what is told.
    """
    found: dict[str, JsonValue] = dict(retrieval or {})
    for name in ("retriever", "k"):
        known = {value for query in judged if (value := getattr(query, name)) is not None}
        if found.get(name) is not None:
            known.add(found[name])
        if len(known) > 1:
            raise ValueError(
                f"judged queries differ in their {name}: {', '.join(sorted(map(repr, known)))}; a "
                "calibration is of one retriever at one depth, so calibrate for each"
            )
        if known:
            found[name] = known.pop()
    return found or None


def _name_unscorable(scored: Sequence[ScoredQuery]) -> None:
    for number, query in enumerate(scored):
        for i in np.flatnonzero(query.relevant & np.isnan(query.scores)).tolist():
            where = query.name if query.id is not None else f"query number {number + 1}"
            why = f" ({query.unscorable[i]})" if i in query.unscorable else ""
            lost = sum(int((q.relevant & np.isnan(q.scores)).sum()) for q in scored)
            raise ValueError(
                f"{where}: scores[{i}] is nan, so its relevant snippet could not be scored{why}; "
                f"so it is with {lost} of {sum(int(q.relevant.sum()) for q in scored)} relevant "
                "snippets. Mend that and score again, or calibrate with on_unscorable='keep' "
                "(--on-unscorable keep), which counts them as kept, as the filter keeps them"
            )


def check_merging(
    merge_groups: object, groups: Iterable[str | None], words: Words = QUERIES
) -> None:
    """Raise TypeError or ValueError unless it maps names of judged groups to those they get."""
    if merge_groups is None:
        return
    if not isinstance(merge_groups, Mapping):
        raise TypeError(
            f"merge_groups is {merge_groups!r:.60}; map names of groups to common names"
        )
    for one, other in merge_groups.items():
        if not isinstance(one, str) or not isinstance(other, str):
            raise TypeError(
                f"merge_groups maps {one!r} to {other!r}; map names of groups to common names"
            )
        if merge_groups.get(other, other) != other:
            raise ValueError(
                f"merge_groups maps {one!r} to {other!r}, and that to {merge_groups[other]!r}; map "
                "each group to its last name"
            )
    known = set(groups)
    unknown = sorted(set(merge_groups) - known)
    if unknown:
        raise ValueError(
            f"merge_groups names {unknown[0]!r}, a group of none of the {words.judged}; the groups "
            f"are {', '.join(map(repr, sorted(map(str, known))))}"
        )


def check_groups(
    queries: Sequence[ScoredQuery], by_group: bool, merged: bool, words: Words = QUERIES
) -> None:
    """Raise ValueError for a query without a group, or groups merged that nothing goes by."""
    if merged and not by_group:
        raise ValueError("merge_groups is given without by_group=True; give both or neither")
    nameless = next((query for query in queries if by_group and query.group is None), None)
    if nameless is not None:
        which = f"one {words.unit}" if nameless.id is None else f"{words.unit} {nameless.id!r}"
        raise ValueError(
            f"{which}: group is None, but the calibration is by group; name the group of every "
            f"{words.unit}"
        )


def warn_if_reversed(scored: list[ScoredQuery]) -> None:
    """Warn where relevant snippets score higher than irrelevant ones, pooled over queries."""
    relevant = np.concatenate([query.scores[query.relevant] for query in scored])
    irrelevant = np.concatenate([query.scores[~query.relevant] for query in scored])
    area = auc(relevant, irrelevant)  # NaN, never below 0.5, without irrelevant snippets
    if area < 0.5:
        warnings.warn(
            f"relevant snippets score higher than irrelevant ones (AUC {area:.2f}, below 0.5), but "
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
