"""A calibration: thresholds with a statement and a file.

A calibration is a frozen value that is saved, loaded, and asked at any alpha. Its file is in
`record.py` and the words of its statement in `statement.py`. Snippets, claims and flags are
subjects of the same value: `subjects.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.calibration import record
from conformal_retrievers.calibration.checks import (
    check_flags,
    check_merged_exist,
    check_on_unscorable,
    check_scored,
    check_some_scorable,
    json_copy,
    warn_if_reversed,
)
from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.calibration.record import Record
from conformal_retrievers.calibration.statement import statement
from conformal_retrievers.calibration.subjects import SNIPPETS, SUBJECTS, OnUnscorable
from conformal_retrievers.calibration.thresholds import Thresholds
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.theory.ranks import exact_alpha
from conformal_retrievers.theory.tolerance import check_delta


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Thresholds):
    """The relevant scores of judged queries, with everything that follows from them.

    `calibrate` makes calibrations of snippets, `calibrate_claims` of claims and `calibrate_flag` of
    flags. Two calibrations are equal if their files are.
    """

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
            by_group=bool(by_group),
            merge_groups=None if merge_groups is None else dict(merge_groups),
            count_missed=bool(count_missed),
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
        if self.subject == SNIPPETS:
            about, n = repr(self.guarantee), f"queries, {self.n_relevant} relevant snippets"
        else:
            about, n = self.subject.name, self.subject.judged
        return (
            f"Calibration({about}, alpha={self.alpha:g}, scorer={self.scorer!r}, "
            f"{self.n_queries} {n})"
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
    return None if delta is None else float(str(check_delta(delta)))  # at any precision


def relevant_only(query: ScoredQuery) -> ScoredQuery:
    """Return the query with only its relevant snippets, by ascending score."""
    order = np.flatnonzero(query.relevant)
    order = order[np.argsort(query.scores[order])]
    scores, relevant = query.scores[order], query.relevant[order]
    return replace(query, scores=scores, relevant=relevant, tokens=None, unscorable={})
