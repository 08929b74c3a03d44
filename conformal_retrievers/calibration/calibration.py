"""A calibration: the scores of judged queries' relevant snippets, and the thresholds they give.

A calibration is a frozen value that is saved, loaded, and asked at any alpha. The guarantees and
what they count are in `guarantees.py`, the theorems in `theory/`, the file in `record.py` and the
words of the statement in `statement.py`. Claims and flags are other subjects of the same value:
`subjects.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import JsonValue

from conformal_retrievers.calibration import record
from conformal_retrievers.calibration.checks import (
    check_flags,
    check_groups,
    check_merged_exist,
    check_name,
    check_on_unscorable,
    check_scored,
    check_some_scorable,
    json_copy,
    warn_if_reversed,
)
from conformal_retrievers.calibration.guarantees import (
    Guarantee,
    Units,
    check_guarantee,
    check_relative,
)
from conformal_retrievers.calibration.record import Record
from conformal_retrievers.calibration.statement import statement
from conformal_retrievers.calibration.subjects import SNIPPETS, SUBJECTS, OnUnscorable, Subject
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.theory.intervals import effective_n
from conformal_retrievers.theory.ranks import exact_alpha
from conformal_retrievers.version import __version__


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """The relevant scores of judged queries, with everything that follows from them.

    `calibrate` makes calibrations of snippets, `calibrate_claims` of claims and `calibrate_flag` of
    flags. Two calibrations are equal if their files are.
    """

    alpha: float
    guarantee: Guarantee
    scorer: str  # the name of what scored
    queries: tuple[ScoredQuery, ...]  # with a known relevant snippet: its relevant scores, sorted
    subject: Subject = SNIPPETS
    delta: float | None = None
    by_group: bool = False
    merge_groups: Mapping[str, str] | None = None
    count_missed: bool = False
    n_without_relevant: int = 0  # how many other queries there were
    other_ids: tuple[str, ...] = ()  # their ids
    lowest_scores: tuple[float, ...] = ()  # of each query, ascending: needs no judgements
    relative_to_query: bool = False
    scorer_provenance: Mapping[str, JsonValue] | None = None
    retrieval: Mapping[str, JsonValue] | None = None
    labels: Mapping[str, JsonValue] | None = None
    details: Mapping[str, JsonValue] = field(default_factory=dict)  # what only its subject has
    library: str = __version__
    created: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds")
    )

    def __post_init__(self) -> None:
        exact_alpha(self.alpha)
        check_guarantee(self.guarantee, self.delta)
        check_relative(self.guarantee, self.relative_to_query, self.scorer)
        check_scored(self.queries, self.subject)
        check_groups(self.queries, self.by_group, self.merge_groups, self.subject)
        if self.delta is not None and not self.by_group:  # a small group keeps everything instead
            self._check_enough(self.delta)

    @classmethod
    def from_scores(
        cls,
        scored_queries: Iterable[ScoredQuery],
        *,
        alpha: float,
        scorer: str,
        guarantee: Guarantee = "query-recall",
        delta: float | None = None,
        by_group: bool = False,
        merge_groups: Mapping[str, str] | None = None,
        count_missed: bool = False,
        on_unscorable: OnUnscorable = "raise",
        relative_to_query: bool = False,
        scorer_provenance: Mapping[str, JsonValue] | None = None,
        retrieval: Mapping[str, JsonValue] | None = None,
        labels: Mapping[str, JsonValue] | None = None,
    ) -> Calibration:
        """Return the calibration of queries whose snippets are already scored.

        Parameters
        ----------
        scored_queries
            A `ScoredQuery` for each judged query, with scores (n,) and judgements (n,).
        alpha
            Miscoverage rate in (0, 1).
        scorer
            The name of the scorer. Filters with a scorer of another name are refused.
        relative_to_query
            Whether the scorer scores a snippet relative to the others of its query.
        scorer_provenance
            What the scorer was made from; written into the file.
        guarantee, delta, by_group, merge_groups, count_missed, on_unscorable, retrieval, labels
            As in `calibrate`.

        Returns
        -------
        Calibration
            With `subject` "snippets".

        Raises
        ------
        ValueError
            For an argument out of range, a repeated id, a relevant score that is NaN, a missing
            group, no relevant snippet, or too few queries for delta.

        Warns
        -----
        UserWarning
            If relevant snippets score higher than irrelevant ones.
        """
        exact_alpha(alpha)
        check_guarantee(guarantee, delta)
        check_name(scorer)
        check_flags(by_group=by_group, count_missed=count_missed)
        check_on_unscorable(on_unscorable, SNIPPETS)
        scored = list(scored_queries)
        check_some_scorable(scored, scorer)
        if on_unscorable == "keep":
            scored = [_with_unscorable_kept(query) for query in scored]
        check_merged_exist(merge_groups, [query.group for query in scored])
        check_scored(scored, SNIPPETS)
        warn_if_reversed(scored)
        known = [query for query in scored if query.relevant.any() or query.missed]
        return cls(
            float(exact_alpha(alpha)),
            guarantee,
            scorer,
            tuple(map(relevant_only, known)),
            delta=_decimal(delta),
            by_group=by_group,
            merge_groups=None if merge_groups is None else dict(merge_groups),
            count_missed=count_missed,
            n_without_relevant=len(scored) - len(known),
            other_ids=tuple(q.id for q in scored if q.id and not (q.relevant.any() or q.missed)),
            lowest_scores=_lowest_scores(scored),
            relative_to_query=bool(relative_to_query),
            scorer_provenance=json_copy("scorer_provenance", scorer_provenance),
            retrieval=json_copy("retrieval", retrieval),
            labels=json_copy("labels", labels),
        )

    def at(self, alpha: float) -> Calibration:
        """Return the same calibration for another alpha, without scoring anything again.

        Raises ValueError unless alpha is in (0, 1) and there are enough queries for delta.
        """
        return replace(self, alpha=float(exact_alpha(alpha)))

    def guaranteeing(self, guarantee: Guarantee, *, delta: float | None = None) -> Calibration:
        """Return the same calibration for another guarantee, without scoring anything again.

        Raises ValueError for an unknown guarantee, or one that is impossible with delta or with
        this scorer.
        """
        return replace(self, guarantee=guarantee, delta=_decimal(delta))

    # --- what is kept -----------------------------------------------------------------------------

    def threshold(self, group: str | None = None) -> float:
        """Return the threshold of a group, ±inf if there is no finite one.

        Snippets and answers to flag are kept at or below it: +inf keeps everything. Claims are kept
        above it: +inf keeps nothing. With `by_group`, an unknown group has the threshold +inf.
        """
        return self._thresholds.get(self._key(group), math.inf)

    def keep(self, scores: ArrayLike, group: str | None = None) -> NDArray[np.bool_]:
        """Return which of the scores (n,) are kept, by the comparison of the subject.

        For snippets these are the scores ≤ threshold, and NaN: an unscorable snippet may be
        relevant, so only keeping it preserves the guarantee.
        """
        return self.subject.keep(np.asarray(scores, dtype=np.float64), self.threshold(group))

    def p_values(self, scores: ArrayLike, group: str | None = None) -> NDArray[np.float64]:
        """Return the conformal p-value of each score (n,); NaN stays NaN.

        p = (1 + Σ_{A_i ≥ score} m_i) / (1 + Σ m_i), where m_i is 1/N_q(i) for "query-recall" and 1
        for the other guarantees. Without delta, a snippet is kept at α iff p > α, and a claim iff
        p ≤ α. (An α that equals a p-value, rounded to a float such as 1/3, may tie.) p is 1 in a
        group that the calibration does not know.
        """
        units = self._units.get(self._key(group))
        if units is None:
            return np.where(np.isnan(scores), np.nan, 1.0)
        return units.p_values(scores)

    def units(self, group: str | None = None) -> Units:
        """Return the units that the threshold of a group is taken from, by default of all queries.

        Raises ValueError for a group that the calibration does not know.
        """
        key = self._key(group)
        if key not in self._units:
            known = ", ".join(map(repr, self._units))
            raise ValueError(f"group is {group!r}; the calibration has {known}")
        return self._units[key]

    def knows(self, group: str | None) -> bool:
        """Return whether a query of this group has a threshold of its own, or one for all."""
        return not self.by_group or self._key(group) in self._units

    @property
    def groups(self) -> tuple[str, ...]:
        """The known groups, by every name that `merge_groups` gives; empty without `by_group`."""
        if not self.by_group:
            return ()
        return tuple(sorted({*map(str, self._units), *(self.merge_groups or {})}))

    # --- what it is worth -------------------------------------------------------------------------

    @property
    def n_queries(self) -> int:
        """K, the number of queries that contribute a score."""
        return sum(len(units.contributing) for units in self._units.values())

    @cached_property
    def ids(self) -> frozenset[str]:
        """The ids of all judged queries, including those that do not contribute."""
        return frozenset([*self.other_ids, *(query.id for query in self.queries if query.id)])

    @property
    def n_without_id(self) -> int:
        """The number of judged queries that have no id."""
        return len(self.queries) + self.n_without_relevant - len(self.ids)

    @property
    def out_of_reach(self) -> bool:
        """Whether missed snippets count and no threshold gives the guarantee.

        By group it is False: the statement names the groups of which it is true.
        """
        return self.count_missed and not self.by_group and self.threshold() == math.inf

    @property
    def k(self) -> int | None:
        """The depth that the retriever was asked for, if `retrieval` states it."""
        k = (self.retrieval or {}).get("k")
        return k if isinstance(k, int) else None

    @property
    def n_relevant(self) -> int:
        """The number n of relevant retrieved snippets."""
        return sum(len(query.scores) for query in self.queries)

    @property
    def n_missed(self) -> int:
        """The number of known relevant snippets that were not retrieved."""
        return sum(query.missed for query in self.queries)

    @property
    def n_units(self) -> Mapping[str | None, int]:
        """The number of units by group: queries, or snippets for "snippet"."""
        return {group: units.n for group, units in self._units.items()}

    @property
    def n_needed(self) -> int:
        """The number of units that a group needs for a finite threshold."""
        return next(iter(self._units.values())).n_needed(self.alpha, self.delta)

    @cached_property
    def effective_n(self) -> float:
        """The number of independent relevant snippets that are worth as much as these."""
        kept = [float(self.keep(q.scores, q.group).sum()) for q in self.queries]
        n = effective_n(kept, [float(len(q.scores)) for q in self.queries])
        return min(n, float(self.n_relevant))

    @property
    def design_effect(self) -> float:
        """How many times more relevant snippets are needed because they come in queries (Kish)."""
        return self.n_relevant / self.effective_n

    @property
    def statement(self) -> str:
        """The guarantee, the threshold, the assumptions and the numbers, a line each."""
        return statement(self)

    # --- the file ---------------------------------------------------------------------------------

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the file's fields: the identity of this calibration."""
        return record.checksum(self._record)

    def save(self, path: str | Path) -> None:
        """Write the calibration as JSON; an old file stays until the new one is complete.

        Raises OSError, naming the path, if it cannot be written.
        """
        record.write(self._record, path)

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a calibration that `save` wrote, bit for bit the same.

        Raises ValueError, naming path, field and remedy, for a file that is broken, newer or
        changed, or whose threshold does not follow from its scores; FileNotFoundError for none.
        """
        return cls._of(record.read(path), str(path))

    def to_json(self) -> str:
        """Return the text that `save` writes."""
        return record.to_text(self._record)

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        """Return the calibration that `to_json` wrote. Raises ValueError as `load` does."""
        return cls._of(record.parse(text, "the text"), "the text")

    @classmethod
    def _of(cls, stored: Record, where: str) -> Calibration:
        try:
            calibration = cls(
                stored.alpha,
                stored.guarantee,
                stored.scorer,
                tuple(relevant_only(row.scored()) for row in stored.queries),
                subject=SUBJECTS[stored.subject],
                **{name: getattr(stored, name) for name in record.SHARED},
                other_ids=tuple(stored.other_ids),
                lowest_scores=tuple(stored.lowest_scores),
            )
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        record.check_derived(where, stored, calibration._record)
        return calibration

    @cached_property
    def _record(self) -> Record:
        thresholds = {
            group or "": self.subject.threshold_name(self.threshold(group))
            for group in self.n_units
        }
        return Record(
            subject=self.subject.name,
            guarantee=self.guarantee,
            alpha=self.alpha,
            scorer=self.scorer,
            threshold=thresholds if self.by_group else thresholds[""],
            n_queries=self.n_queries,
            n_relevant=self.n_relevant,
            design_effect=round(self.design_effect, 3),
            effective_n=round(self.effective_n, 3),
            other_ids=list(self.other_ids),
            lowest_scores=list(self.lowest_scores),
            queries=[record.QueryRow.of(query) for query in self.queries],
            **{name: getattr(self, name) for name in record.SHARED},
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calibration) and self._record == other._record

    def __hash__(self) -> int:
        return hash(self.checksum)

    def __repr__(self) -> str:
        about = "" if self.subject == SNIPPETS else f"{self.subject.name}, "
        return (
            f"Calibration({about}{self.guarantee!r}, alpha={self.alpha:g}, "
            f"scorer={self.scorer!r}, {self.n_queries} {self.subject.units}, "
            f"{self.n_relevant} {self.subject.item}s)"
        )

    # --- derived once, from the scores ------------------------------------------------------------

    @cached_property
    def _units(self) -> Mapping[str | None, Units]:
        members: dict[str | None, list[ScoredQuery]] = {}
        for query in self.queries:
            members.setdefault(self._key(query.group), []).append(query)
        return {
            group: Units(self.guarantee, queries, self.count_missed)
            for group, queries in members.items()
        }

    @cached_property
    def _thresholds(self) -> Mapping[str | None, float]:
        return {g: units.threshold(self.alpha, self.delta) for g, units in self._units.items()}

    def _key(self, group: object) -> str | None:
        if group is not None and not isinstance(group, str):
            raise TypeError(
                f"group is {group!r}; give the name of a group (another alpha is .at({group!r}))"
            )
        if not self.by_group or group is None:
            return None
        return (self.merge_groups or {}).get(group, group)

    def _check_enough(self, delta: float) -> None:
        n, needed = self.n_units[None], self.n_needed
        if n < needed:
            raise ValueError(
                f"delta is {delta:g} with alpha {self.alpha:g}, which needs at least {needed} "
                f"{self.subject.judged}; there are {n}. {self.subject.judge.capitalize()} "
                f"{needed - n} more, or raise alpha or delta"
            )


def _with_unscorable_kept(query: ScoredQuery) -> ScoredQuery:
    """Return the query with −inf for relevant snippets without a score: kept at any threshold."""
    lost = np.isnan(query.scores) & query.relevant
    if not lost.any():
        return query
    return replace(query, scores=np.where(lost, -math.inf, query.scores), unscorable={})


def _lowest_scores(scored: Iterable[ScoredQuery]) -> tuple[float, ...]:
    finite = (query.scores[np.isfinite(query.scores)] for query in scored)
    return tuple(sorted(float(scores.min()) for scores in finite if len(scores)))


def _decimal(delta: float | None) -> float | None:
    return None if delta is None else float(str(delta))  # what was written, at any precision


def relevant_only(query: ScoredQuery) -> ScoredQuery:
    """Return the query with only its relevant snippets, by ascending score."""
    order = np.flatnonzero(query.relevant)
    order = order[np.argsort(query.scores[order])]
    scores, relevant = query.scores[order], query.relevant[order]
    return replace(query, scores=scores, relevant=relevant, unscorable={})
