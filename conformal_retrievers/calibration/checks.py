"""What may enter a calibration or a filter: every check is made here, once."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.calibration.subjects import Subject
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.theory.intervals import auc


class CalibrationMismatch(ValueError):
    """A calibration was made with another scorer, or is about another subject."""


def check_subject(found: Subject, expected: Subject) -> None:
    """Raise `CalibrationMismatch` unless a calibration is about what a filter filters."""
    if found != expected:
        raise CalibrationMismatch(
            f"calibration is about {found.name}, but this filter needs one about {expected.name}. "
            f"Make it with {expected.made_by}"
        )


def check_same_scorer(name: str, *, calibrated: str) -> None:
    """Raise `CalibrationMismatch` unless the scorer is the one that was calibrated with."""
    if name == calibrated:
        return
    same = ""
    if calibrated.startswith("cosine(") and name.startswith("cosine("):
        # The frameworks and a folder call one model differently; only the user knows.
        same = f". If both are the same model, pass name={calibrated!r} to embedding_scorer"
    raise CalibrationMismatch(
        f"calibrated with scorer {calibrated!r}, but this filter scores with {name!r}. Use the "
        f"scorer of the calibration, or calibrate again with this one{same}"
    )


def check_name(scorer: object) -> None:
    """Raise ValueError unless the scorer's name is printable text."""
    if not isinstance(scorer, str) or not scorer.isprintable():
        raise ValueError(f"scorer is {scorer!r}; give the scorer's name, as printable text")


def check_flags(**flags: object) -> None:
    """Raise TypeError for an argument that is neither True nor False."""
    for name, value in flags.items():
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{name} is {value!r}; give True or False")


def check_on_unscorable(on_unscorable: object, subject: Subject) -> None:
    """Raise ValueError unless it is "raise" or what filters of the subject do."""
    if on_unscorable not in ("raise", subject.unscorable):
        raise ValueError(
            f"on_unscorable is {on_unscorable!r}; give 'raise' or {subject.unscorable!r}"
        )


def check_unique_ids(ids: Iterable[str | None], unit: str = "query") -> None:
    """Raise ValueError for an id that occurs twice; None is not an id."""
    times = Counter(id for id in ids if id is not None)
    twice = next((id for id, count in times.items() if count > 1), None)
    if twice is not None:
        raise ValueError(
            f"{unit} id {twice!r} occurs {times[twice]} times. Remove the repetitions, or give "
            f"each {unit} its own id"
        )


def check_new(ids: Iterable[str | None], calibrated: frozenset[str], subject: Subject) -> None:
    """Raise ValueError for a unit that the calibration was made from, by its id."""
    for id in ids:
        if id in calibrated:
            raise ValueError(
                f"{subject.unit} id {id!r} was used to calibrate, so it cannot be used to "
                f"evaluate. Give {subject.units} that are new to the calibration"
            )


def check_scored(scored: Sequence[ScoredQuery], subject: Subject) -> None:
    """Raise ValueError for no queries, a repeated id, a relevant NaN, or nothing relevant."""
    if not scored:
        raise ValueError(f"there are no {subject.judged}; at least one is needed to calibrate")
    check_unique_ids((query.id for query in scored), subject.unit)
    # Irrelevant scores do not enter: they may be anything. +inf is a score no threshold keeps.
    relevant = _relevant(scored)
    if np.isnan(relevant).any():
        _raise_unscorable(scored)
    if not len(relevant):
        raise ValueError(
            f"none of the {len(scored)} {subject.judged} has a relevant retrieved snippet. Judge "
            "more queries, or retrieve deeper"
        )


def check_one_score(
    queries: Sequence[ScoredQuery], guarantee: str, count_missed: bool, subject: Subject
) -> None:
    """Raise ValueError unless each unit has exactly one score, as claims and flags have."""
    if guarantee != "all":
        raise ValueError(f"guarantee is {guarantee!r}; give 'all' for {subject.name}")
    if count_missed or any(len(query.scores) != 1 or query.missed for query in queries):
        raise ValueError(
            f"a calibration of {subject.name} has one score for each {subject.unit}; remove other "
            "scores, missed and count_missed"
        )


def check_others(
    queries: Sequence[ScoredQuery], other_ids: Sequence[str], n_others: int, subject: Subject
) -> None:
    """Raise ValueError for an id that occurs twice, or for more `other_ids` than other queries."""
    check_unique_ids([*(query.id for query in queries), *other_ids], subject.unit)
    if len(other_ids) > n_others:
        raise ValueError(
            f"other_ids has {len(other_ids)} ids, but n_without_relevant is {n_others}; give at "
            "most one for each"
        )


def check_some_scorable(scored: Sequence[ScoredQuery], scorer: str) -> None:
    """Raise ValueError if there are several relevant snippets and all of them score NaN."""
    relevant = _relevant(scored)
    if len(relevant) > 1 and np.isnan(relevant).all():
        raise ValueError(
            f"all {len(relevant)} relevant snippets have no score from {scorer!r} (nan). Give the "
            "scorer what it needs (RetrievalScorer reads Snippet.retrieval_score, in LangChain "
            'metadata["relevance_score"]), or use another scorer'
        )


def _relevant(scored: Sequence[ScoredQuery]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.concatenate([np.empty(0), *(query.scores[query.relevant] for query in scored)])


def _raise_unscorable(scored: Sequence[ScoredQuery]) -> None:
    lost = int(np.isnan(_relevant(scored)).sum())
    for number, query in enumerate(scored):
        for i in np.flatnonzero(query.relevant & np.isnan(query.scores)).tolist():
            where = query.name if query.id is not None else f"query number {number + 1}"
            why = f" ({query.unscorable[i]})" if i in query.unscorable else ""
            raise ValueError(
                f"{where}: scores[{i}] is nan, so its relevant snippet has no score{why}; "
                f"{lost} of {len(_relevant(scored))} relevant snippets have none. Fix the scorer "
                "and retry, or calibrate with on_unscorable='keep' (--on-unscorable keep)"
            )


class Grouped(Protocol):
    """What has an id and a group: a query or an answer."""

    @property
    def id(self) -> str | None:
        """The id, if there is one."""

    @property
    def group(self) -> str | None:
        """The group, if there is one."""


def check_groups(
    units: Sequence[Grouped],
    by_group: bool,
    merge_groups: Mapping[str, str] | None,
    subject: Subject,
) -> None:
    """Raise ValueError or TypeError for a missing group, or a mapping that does not fit groups."""
    for number, unit in enumerate(units if by_group else (), start=1):
        if unit.group is None:
            which = f"number {number}" if unit.id is None else repr(unit.id)
            raise ValueError(
                f"{subject.unit} {which}: group is None, but by_group is True. Name the group of "
                f"every {subject.unit}"
            )
    if merge_groups is not None and not by_group:
        raise ValueError("merge_groups is given without by_group=True; give both or neither")
    _check_mapping(merge_groups)


def check_merged_exist(
    merge_groups: Mapping[str, str] | None, groups: Iterable[str | None]
) -> None:
    """Raise ValueError for a merged group that no unit has."""
    _check_mapping(merge_groups)
    known = set(groups)
    unknown = sorted(set(merge_groups or ()) - known)
    if unknown:
        raise ValueError(
            f"merge_groups names {unknown[0]!r}, which is not among the groups: "
            f"{', '.join(map(repr, sorted(map(str, known))))}"
        )


def _check_mapping(merge_groups: object) -> None:
    if merge_groups is None:
        return
    if not isinstance(merge_groups, Mapping):
        raise TypeError(f"merge_groups is {merge_groups!r:.60}; give a mapping of group names")
    for one, other in merge_groups.items():
        if not isinstance(one, str) or not isinstance(other, str):
            raise TypeError(f"merge_groups maps {one!r} to {other!r}; map names to names")
        if merge_groups.get(other, other) != other:
            raise ValueError(
                f"merge_groups maps {one!r} to {other!r}, and {other!r} to {merge_groups[other]!r}."
                " Map each group to its final name"
            )


def warn_if_reversed(scored: Sequence[ScoredQuery]) -> None:
    """Warn if relevant snippets score higher than irrelevant ones, pooled over queries."""
    irrelevant = np.concatenate([query.scores[~query.relevant] for query in scored])
    area = auc(_relevant(scored), irrelevant)
    if area < 0.5:
        warnings.warn(
            f"relevant snippets score higher than irrelevant ones (AUC {area:.2f}, below 0.5). A "
            "score is lower for more relevant snippets: give a distance, or negate a similarity",
            UserWarning,
            stacklevel=3,
        )


def with_retrieval(
    judged: Sequence[JudgedQuery], retrieval: Mapping[str, JsonValue] | None
) -> Mapping[str, JsonValue] | None:
    """Return the retrieval facts, completed with the judged queries' retriever and k.

    Raises ValueError if these differ between queries, or from what is given.
    """
    found: dict[str, JsonValue] = dict(retrieval or {})
    for name in ("retriever", "k"):
        known = {value for query in judged if (value := getattr(query, name)) is not None}
        if found.get(name) is not None:
            known.add(found[name])
        if len(known) > 1:
            raise ValueError(
                f"judged queries differ in {name}: {', '.join(sorted(map(repr, known)))}. A "
                "calibration is about one retriever at one depth: calibrate for each"
            )
        if known:
            found[name] = known.pop()
    return found or None


def json_copy(name: str, value: Mapping[str, JsonValue] | None) -> dict[str, JsonValue] | None:
    """Return a copy of JSON data that shares nothing, as the file will give it back."""
    if value is None:
        return None
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        copy: dict[str, JsonValue] = json.loads(text.encode("utf-8"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} is {value!r:.80}, which is not JSON: {error}") from None
    return copy
