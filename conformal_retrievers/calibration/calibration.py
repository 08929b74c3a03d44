"""A calibration: the scores of judged queries' relevant snippets, and the thresholds they give.

`calibrate` scores judged queries; the result is a frozen value that is saved, loaded, and asked at
any alpha and for any guarantee. Which guarantees there are and what they count is in
`guarantees.py`, the theorems are in `conformal.py` and `tolerance.py`, the file format is in
`calibration_file.py` and the sentences of the statement in `statement.py`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import JsonValue

from conformal_retrievers.calibration.checks import (
    QUERIES,
    Words,
    check_flags,
    check_groups,
    check_merging,
    check_name,
    check_scored,
    check_some_scorable,
    json_copy,
    warn_if_reversed,
    with_retrieval,
)
from conformal_retrievers.calibration.guarantees import (
    Guarantee,
    Units,
    check_guarantee,
    check_relative,
)
from conformal_retrievers.calibration.statement import statement
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.scoring.scorer import (
    Scorer,
    check_not_fitted_on,
    check_scorer,
    judged_queries,
    provenance_of,
    relative_to_query,
    score_queries,
)
from conformal_retrievers.theory import intervals, ranks
from conformal_retrievers.version import __version__

if TYPE_CHECKING:
    from conformal_retrievers.calibration.record import CalibrationRecord


OnUnscorable = Literal["raise", "keep"]


def calibrate(
    judged: Iterable[JudgedQuery],
    scorer: Scorer,
    *,
    alpha: float,
    guarantee: Guarantee = "query-recall",
    delta: float | None = None,
    by_group: bool = False,
    merge_groups: Mapping[str, str] | None = None,
    count_missed: bool = False,
    on_unscorable: OnUnscorable = "raise",
    retrieval: Mapping[str, JsonValue] | None = None,
    labels: Mapping[str, JsonValue] | None = None,
    progress: bool = False,
) -> Calibration:
    """Score judged queries and return the calibration that their relevant snippets give.

    `alpha` and `guarantee` say what is promised; `delta`, that it holds for all calibrations but a
    share delta, not on average over them; `by_group`, that it holds within each group of queries,
    some of them merged by `merge_groups` (from the name of a group to a common name);
    `count_missed`, that relevant snippets that were not retrieved count as dropped. A relevant
    snippet that cannot be scored raises ValueError, or with `on_unscorable="keep"` counts as kept
    at every threshold, as the filter keeps it.
    `retrieval` ("retriever", "k", chunking) and `labels` (source, prompt) are written into the file
    for its reader, as are the scorer's own provenance and the judged queries' retriever and k.
    Raises ValueError as `Calibration.from_scores` does, for a query that the scorer was fitted on,
    and where judged queries were retrieved by different retrievers or at different depths. Warns
    where the threshold would not drop a single snippet of the judged queries.
    """
    ranks.exact_alpha(alpha)  # before the scorer is paid for
    check_scorer(scorer)
    check_guarantee(guarantee, delta)
    check_relative(guarantee, relative_to_query(scorer), scorer.name)
    judged = judged_queries(judged)
    check_not_fitted_on(scorer, judged)
    retrieval = with_retrieval(judged, retrieval)
    scored = score_queries(scorer, judged, progress=progress)
    calibration = Calibration.from_scores(
        scored,
        alpha=alpha,
        guarantee=guarantee,
        delta=delta,
        by_group=by_group,
        merge_groups=merge_groups,
        count_missed=count_missed,
        on_unscorable=on_unscorable,
        scorer=scorer.name,
        relative_to_query=relative_to_query(scorer),
        scorer_provenance=provenance_of(scorer),
        retrieval=retrieval,
        labels=labels,
    )
    _warn_if_nothing_drops(calibration, scored)
    return calibration


def _warn_if_nothing_drops(calibration: Calibration, scored: list[ScoredQuery]) -> None:
    """Warn where no score of the queries is above a threshold; of +inf the statement speaks."""
    with_threshold = [q for q in scored if calibration.threshold(q.group) < math.inf]
    irrelevant = [q.scores[~q.relevant] for q in with_threshold]
    if np.isnan(np.concatenate([np.empty(0), *irrelevant])).all():
        return  # there is nothing that should have been dropped
    if all(calibration.keep(q.scores, q.group).all() for q in with_threshold):
        warnings.warn(
            f"this calibration would not drop a single snippet of its own queries: no score of "
            f"{calibration.scorer!r} is above the threshold at alpha = {calibration.alpha:g}; a "
            "larger alpha, or a scorer that tells relevant snippets better, drops some",
            UserWarning,
            stacklevel=3,
        )


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """Relevant scores of judged queries, with all that follows from them; made by `calibrate`.

    `queries` hold, of each judged query with a known relevant snippet, the sorted scores of its
    relevant retrieved snippets alone; `n_without_relevant` counts the other queries, whose ids are
    `other_ids`. `lowest_scores` hold, ascending, the lowest score of each judged query that has
    one, relevant or not, which new queries can be held against without judgements. `words` are
    those of its errors. Two calibrations are equal if their files are.
    """

    alpha: float
    guarantee: Guarantee
    scorer: str
    queries: tuple[ScoredQuery, ...]
    delta: float | None = None
    by_group: bool = False
    merge_groups: Mapping[str, str] | None = None
    count_missed: bool = False
    n_without_relevant: int = 0
    other_ids: tuple[str, ...] = field(default=(), repr=False)
    lowest_scores: tuple[float, ...] = field(default=(), repr=False)
    relative_to_query: bool = False
    scorer_provenance: Mapping[str, JsonValue] | None = None
    retrieval: Mapping[str, JsonValue] | None = None
    labels: Mapping[str, JsonValue] | None = None
    library: str = __version__
    created: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds")
    )
    words: Words = QUERIES

    def __post_init__(self) -> None:
        ranks.exact_alpha(self.alpha)
        check_guarantee(self.guarantee, self.delta)
        check_relative(self.guarantee, self.relative_to_query, self.scorer)
        check_scored(self.queries, self.words)
        check_groups(self.queries, self.by_group, self.merge_groups is not None, self.words)
        if self.delta is not None:
            self._check_feasible(self.delta)

    @classmethod
    def from_scores(
        cls,
        scored_queries: Iterable[ScoredQuery],
        *,
        alpha: float,
        guarantee: Guarantee = "query-recall",
        delta: float | None = None,
        by_group: bool = False,
        merge_groups: Mapping[str, str] | None = None,
        count_missed: bool = False,
        on_unscorable: OnUnscorable = "raise",
        scorer: str,
        relative_to_query: bool = False,
        scorer_provenance: Mapping[str, JsonValue] | None = None,
        retrieval: Mapping[str, JsonValue] | None = None,
        labels: Mapping[str, JsonValue] | None = None,
    ) -> Calibration:
        """Return the calibration of queries whose snippets are scored already.

        `scorer` is the name of the scorer that scored them, `relative_to_query` says whether it
        scores a snippet by the others of its query too, and `scorer_provenance` what it was made
        from; the other arguments are those of `calibrate`. Raises ValueError, naming query and
        field, where alpha or delta is not in (0, 1), the guarantee is unknown or cannot be had with
        delta or such a scorer, a relevant score is NaN, an id occurs twice, a group is missing,
        no query has a relevant snippet, or there are too few for delta. Warns where relevant
        snippets score higher than irrelevant ones.
        """
        ranks.exact_alpha(alpha)
        check_guarantee(guarantee, delta)
        check_name(scorer)
        check_flags(by_group=by_group, count_missed=count_missed)
        given = list(scored_queries)
        check_some_scorable(given, scorer)
        scored = [_with_unscorable_kept(query, on_unscorable) for query in given]
        check_merging(merge_groups, [query.group for query in scored])
        check_scored(scored)
        warn_if_reversed(scored)
        known = [query for query in scored if query.relevant.any() or query.missed]
        return cls(
            float(ranks.exact_alpha(alpha)),
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

    def at(
        self,
        alpha: float,
        *,
        guarantee: Guarantee | None = None,
        delta: float | Literal["same"] | None = "same",
    ) -> Calibration:
        """Return the same calibration for another alpha, guarantee or delta: nothing is scored.

        A guarantee that cannot be had with the calibration's delta takes `delta=None`.
        """
        return replace(
            self,
            alpha=float(ranks.exact_alpha(alpha)),
            guarantee=self.guarantee if guarantee is None else guarantee,
            delta=self.delta if isinstance(delta, str) else _decimal(delta),
        )

    # --- what is kept -----------------------------------------------------------------------------

    def threshold(self, group: str | None = None) -> float:
        """Return the largest score that is kept: +inf where everything is, −inf where nothing is
        that has a score.

        With `by_group` this is the threshold of the query's group, and +inf for a group that the
        calibration does not know; without, every group has the same.
        """
        return self._thresholds.get(self._key(group), math.inf)

    def keep(self, scores: ArrayLike, group: str | None = None) -> NDArray[np.bool_]:
        """Return which of the scores (n,) are kept: those ≤ threshold, and NaN, the unscorable.

        An unscorable snippet may be relevant, so only keeping it preserves the guarantee.
        """
        s = np.asarray(scores, dtype=np.float64)
        return (s <= self.threshold(group)) | np.isnan(s)

    def p_values(self, scores: ArrayLike, group: str | None = None) -> NDArray[np.float64]:
        """Return the conformal p-value of each score (n,): without delta, kept at α iff p > α.

        (An α that is itself a p-value, rounded to a float such as 1/3, may tie.)

        p = (1 + Σ_{A_i ≥ score} m_i) / (1 + Σ m_i): m_i is 1/N_q(i) for "query-recall" and 1 for
        the other guarantees. p is 1 in a group that the calibration does not know. NaN stays NaN.
        """
        units = self._units.get(self._key(group))
        if units is None:
            return np.where(np.isnan(scores), np.nan, 1.0)
        return units.p_values(scores)

    def units(self, group: str | None = None) -> Units:
        """Return the units that the threshold of a group is taken from, of all queries by default.

        Raises ValueError for a group that the calibration does not know.
        """
        key = self._key(group)
        if key not in self._units:
            known = ", ".join(map(repr, self._units))
            raise ValueError(f"group is {group!r}, which no judged query has; there are {known}")
        return self._units[key]

    # --- what it is worth -------------------------------------------------------------------------

    @property
    def n_queries(self) -> int:
        """K, the number of queries that enter: with a relevant snippet that counts."""
        return sum(len(units.entering) for units in self._units.values())

    @cached_property
    def ids(self) -> frozenset[str]:
        """The ids of all judged queries that it was made from, also those that did not enter."""
        return frozenset([*self.other_ids, *(query.id for query in self.queries if query.id)])

    @property
    def without_id(self) -> int:
        """How many of the judged queries that it was made from cannot be told by an id."""
        return len(self.queries) + self.n_without_relevant - len(self.ids)

    @property
    def out_of_reach(self) -> bool:
        """Whether missed snippets count and no threshold keeps the promise, so that there is none.

        By group it is False: the statement names the groups of which it is true.
        """
        return self.count_missed and not self.by_group and self.threshold() == math.inf

    @property
    def k(self) -> int | None:
        """The depth that the retriever was asked for, where `retrieval` tells it."""
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
        """What the rank is counted in, by group: queries, or snippets for "snippet"."""
        return {group: units.n for group, units in self._units.items()}

    @property
    def n_needed(self) -> int:
        """How many units it takes, in each group, for a threshold that drops anything."""
        return next(iter(self._units.values())).n_needed(self.alpha, self.delta)

    @cached_property
    def effective_n(self) -> float:
        """How many independent relevant snippets are worth as much as these, at the threshold."""
        kept = [self.keep(q.scores, q.group).sum() for q in self.queries]
        n = intervals.effective_n(kept, [len(q.scores) for q in self.queries])
        return min(n, float(self.n_relevant))

    @property
    def design_effect(self) -> float:
        """How many times more relevant snippets it takes because they come in queries (Kish)."""
        return self.n_relevant / self.effective_n

    @property
    def statement(self) -> str:
        """One paragraph: what is promised, over what, assuming what, from how many queries."""
        return statement(self)

    # --- the file ---------------------------------------------------------------------------------

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the file's fields: the identity of this calibration."""
        return self._record.sha256

    def save(self, path: str | Path) -> None:
        """Write the calibration as JSON; an old file stays until the new one is complete.

        Raises OSError, naming the path, where it cannot be written.
        """
        from conformal_retrievers.calibration.record import write

        write(self._record, path)

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a calibration that `save` wrote, bit for bit the same.

        Raises ValueError, naming path, field and remedy, where the file is broken, newer or
        changed, or where its threshold does not follow from its scores; FileNotFoundError where
        there is none.
        """
        from conformal_retrievers.calibration.record import read_text

        return cls._parse(read_text(path), str(path))

    def to_json(self) -> str:
        """Return the text that `save` writes."""
        from conformal_retrievers.calibration.record import text_of

        return text_of(self._record)

    @classmethod
    def from_json(cls, text: str) -> Calibration:
        """Return the calibration whose `to_json` the text is.

        Raises ValueError as `load` does; white space and the order of fields do not matter.
        """
        return cls._parse(text, "the text")

    @classmethod
    def _parse(cls, text: str, where: str) -> Calibration:
        from conformal_retrievers.calibration.record import calibration_of, check_derived, parse

        record = parse(text, where)
        try:
            calibration = calibration_of(record)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        exact = ("threshold", "n_queries", "n_relevant")
        sums = ("design_effect", "effective_n")  # which another machine may round otherwise
        check_derived(where, record, calibration._record, exact=exact, sums=sums)
        return calibration

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calibration) and self._record == other._record

    def __repr__(self) -> str:
        return (
            f"Calibration({self.guarantee!r}, alpha={self.alpha:g}, scorer={self.scorer!r}, "
            f"{self.n_queries} queries, {self.n_relevant} relevant snippets)"
        )

    def __hash__(self) -> int:
        return hash(self.checksum)

    @cached_property
    def _record(self) -> CalibrationRecord:
        from conformal_retrievers.calibration.record import record_of

        return record_of(self)

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

    def _check_feasible(self, delta: float) -> None:
        if self.by_group:
            return  # a group that is too small keeps everything, as in every calibration by group
        n, needed = self.n_units[None], self.n_needed
        if n < needed:
            raise ValueError(
                f"delta is {delta:g} with alpha {self.alpha:g}, which {n} {self.words.judged} "
                f"cannot promise: it takes at least {needed}; {self.words.judge} "
                f"{needed - n} more, or raise alpha or delta"
            )


def _with_unscorable_kept(query: ScoredQuery, on_unscorable: OnUnscorable) -> ScoredQuery:
    """Return the query with −inf for what could not be scored: kept whatever the threshold."""
    if on_unscorable not in get_args(OnUnscorable):
        raise ValueError(f"on_unscorable is {on_unscorable!r}; give 'raise' or 'keep'")
    lost = np.isnan(query.scores) & query.relevant
    if on_unscorable == "raise" or not lost.any():
        return query
    return replace(query, scores=np.where(lost, -math.inf, query.scores), unscorable={})


def _lowest_scores(scored: Sequence[ScoredQuery]) -> tuple[float, ...]:
    finite = (query.scores[np.isfinite(query.scores)] for query in scored)
    return tuple(sorted(float(scores.min()) for scores in finite if len(scores)))


def _decimal(delta: float | None) -> float | None:
    return None if delta is None else float(str(delta))  # what was written, whatever its precision


def relevant_only(query: ScoredQuery) -> ScoredQuery:
    """Return the query with its relevant snippets alone, by ascending score."""
    order = np.flatnonzero(query.relevant)
    order = order[np.argsort(query.scores[order])]
    return replace(
        query,
        scores=query.scores[order],
        relevant=query.relevant[order],
        unscorable={},
    )
