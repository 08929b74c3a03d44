"""The scores that set a calibration's thresholds, and everything that follows from them.

The guarantees and what they count are in `guarantees.py`, and the theorems in `theory/`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import JsonValue

from conformal_retrievers.calibration import checks, guarantees, subjects
from conformal_retrievers.calibration.file_schema import Choice
from conformal_retrievers.calibration.gates.in_front import check_behind
from conformal_retrievers.calibration.wording import say
from conformal_retrievers.data.columns import ScoredQueries, places_by_group
from conformal_retrievers.data.queries import JudgedQuery, as_scores
from conformal_retrievers.data.retrieval import Retriever, as_retriever
from conformal_retrievers.scoring.scorer import asked_in, query_digest
from conformal_retrievers.theory.intervals import effective_n
from conformal_retrievers.theory.ranks import exact_alpha
from conformal_retrievers.theory.tolerance import tolerance_rank
from conformal_retrievers.version import __version__


@dataclass(frozen=True, eq=False, repr=False)
class Thresholds:
    """The fields of a `Calibration`, the thresholds that they give, and what those are worth."""

    alpha: float
    guarantee: guarantees.Guarantee
    scorer: str  # the name of what scored
    queries: ScoredQueries  # with a known relevant snippet: their relevant scores, ascending
    subject: subjects.Subject = subjects.SNIPPETS
    delta: float | None = None
    by_group: bool = False
    count_missed: bool = False
    n_without_relevant: int = 0  # how many other queries there were
    other_ids: tuple[str, ...] = ()  # their ids
    lowest_scores: tuple[float, ...] = ()  # of each query, ascending: needs no judgements
    relative_to_query: bool = False
    scorer_provenance: Mapping[str, JsonValue] | None = None
    retrieval: Mapping[str, JsonValue] | None = None
    labels: Mapping[str, JsonValue] | None = None
    details: Mapping[str, JsonValue] = field(default_factory=dict)  # what only its subject has
    gate: Thresholds | None = None  # in front of the filter: what it silences counts as dropped
    library: str = __version__
    created: str = field(
        default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds")
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", float(exact_alpha(self.alpha)))
        object.__setattr__(self, "delta", guarantees.check_guarantee(self.guarantee, self.delta))
        object.__setattr__(self, "guarantee", str.__str__(self.guarantee))  # of an Enum, its value
        object.__setattr__(self, "queries", ScoredQueries.of(self.queries, "queries"))
        name: Any = self.scorer
        if not isinstance(name, str) or not name.isprintable():
            raise ValueError(f"scorer is {name!r:.60}; give the scorer's name, as printable text")
        checks.check_retrieval(self.retrieval, self.subject)
        if self.guarantee == "snippet" and self.relative_to_query:
            raise ValueError(say("relative snippets", scorer=self.scorer))
        checks.check_scored(self.queries, self.subject, self.other_ids)
        checks.check_groups(self.queries, self.by_group, self.subject)
        unknown = np.count_nonzero(np.isnan(self.queries.missed))
        if self.count_missed and unknown:
            raise ValueError(say("missed unknown", unknown=unknown, n=len(self.queries)))
        if self.gate is not None:
            check_behind(self.gate, self.alpha, self.guarantee, self.delta, by_group=self.by_group)
        if self.subject not in subjects.RETRIEVED:
            checks.check_one_score(self.queries, self.guarantee, self.count_missed, self.subject)
        if self.delta is None or self.by_group:  # a group that is too small keeps everything
            return
        n, needed = self.n_units[None], self.n_needed
        if n < needed:
            others = len(self.queries) - n + self.n_without_relevant
            remedy = say("fewer fit") if self.choice and self.choice.n_fit else ""
            facts = {"needed": needed, "n": n, "lacking": needed - n, "others": others}
            raise ValueError(say("too few for delta", c=self, remedy=remedy, **facts))

    def threshold(self, group: str | None = None) -> float:
        """Return the threshold of a group, ±inf if it has no finite one.

        At +inf, the threshold of an unknown group, every snippet is kept and no claim.
        """
        return self._thresholds.get(self._key(group), math.inf)

    def thresholds_of(self, groups: Sequence[str | None]) -> NDArray[np.float64]:
        """Return the threshold of each of some queries, by their groups (n,)."""
        thresholds = {group: self.threshold(group) for group in {*groups}}
        return np.array([thresholds[group] for group in groups], dtype=np.float64)

    def thresholds_at(self, alpha: float) -> Mapping[str | None, float]:
        """Return what `at` this alpha the threshold of each known group is, or that of all."""
        if alpha == self.alpha:
            return self._thresholds
        return {group: units.threshold(alpha, self.delta) for group, units in self._units.items()}

    def threshold_without_one(self, group: str | None = None) -> float:
        """Return what the threshold may fall to if one more unit enters, of one score a unit.

        With one score more, the k-th smallest of n is between the (k − 1)-th and itself.
        """
        units = self._units.get(self._key(group))
        if units is None or self.threshold(group) == math.inf:
            return math.inf  # with one more, the threshold is at least the largest score
        ordered = np.sort(units.scores)
        k = tolerance_rank(units.n, self.alpha, self.delta)
        return float(ordered[k - 2]) if k > 1 else -math.inf

    def keep(self, scores: ArrayLike, group: str | None = None) -> NDArray[np.bool_]:
        """Return which of the scores (n,) are kept, by the comparison of the subject.

        Without a score (NaN), a snippet is kept, because it may be relevant, and a claim is not.
        """
        return self.subject.keep(as_scores(scores, "scores"), self.threshold(group))

    def p_values(self, scores: ArrayLike, group: str | None = None) -> NDArray[np.float64]:
        """Return the conformal p-value of each score (n,), see `theory/ranks.py`; NaN stays NaN.

        Without delta, a snippet is kept at α iff p > α, and a claim iff p ≤ α. In an unknown group
        p is 1.
        """
        scores = as_scores(scores, "scores")
        units = self._units.get(self._key(group))
        return np.where(np.isnan(scores), np.nan, 1.0) if units is None else units.p_values(scores)

    def units(self, group: str | None = None) -> guarantees.Units:
        """Return the units that the threshold of a known group is taken from; by default, all."""
        return self._units[self._key(group)]

    def warn_if_unknown(self, group: str | None, effect: str) -> None:
        """Warn if a query's group has no threshold; Python shows the same text once."""
        if self.by_group and self._key(group) not in self._units:
            known = ", ".join(map(repr, self.n_units))
            which = "no group" if group is None else "a group that is not"
            warnings.warn(f"a query has {which} among {known}, so {effect}", stacklevel=1)

    def by_threshold(self, units: Iterable[Any]) -> dict[str | None, list[Any]]:
        """Return the queries or answers of each threshold, by its group; None if it is for all."""
        members: dict[str | None, list[Any]] = {}
        for unit in units:
            members.setdefault(self._key(unit.group), []).append(unit)
        return members

    def held_out(self, ids: Iterable[str | None]) -> bool:
        """Return whether ids prove that no unit was calibrated on, nor the score chosen on it.

        Raises ValueError for an id that was.
        """
        given = list(ids)
        checks.check_new(given, self.used_ids, self.subject)
        return self.n_without_id == 0 and None not in given

    @property
    def n_queries(self) -> int:
        """K, the number of queries that contribute a score."""
        return sum(int(units.contributes.sum()) for units in self._units.values())

    @cached_property
    def ids(self) -> frozenset[str]:
        """The ids of all judged queries, including those that do not contribute."""
        return frozenset([*self.other_ids, *filter(None, self.queries.ids.tolist())])

    @cached_property
    def used_ids(self) -> frozenset[str]:
        """The ids of all judged queries: of both parts, and of those of a gate in front."""
        gate = self.gate.used_ids if self.gate else frozenset[str]()
        return gate.union(self.ids, self.choice.fit_ids if self.choice else ())

    @cached_property
    def digests(self) -> frozenset[str]:
        """Questions that a single calibrating query of a learned score asks, see `asked_in`."""
        return frozenset(self.choice.digests if self.choice else ())

    def asked(self, query: JudgedQuery) -> bool:
        """Return whether a query that calibrates, and no other of these, asks the same."""
        return asked_in(query_digest(query.query), query.group) in self.digests

    @property
    def n_without_id(self) -> int:
        """The number of judged queries that have no id."""
        n_fit = self.choice.n_fit if self.choice else 0
        own = self.ids.union(self.choice.fit_ids if self.choice else ())
        return len(self.queries) + self.n_without_relevant + n_fit - len(own)

    @cached_property
    def choice(self) -> Choice | None:
        """How the score was chosen, None if the user chose it."""
        return Choice.of(self.scorer_provenance)

    def chosen_on(self, query: JudgedQuery) -> bool:
        """Return whether the score was chosen on a query, by its id or its text."""
        if self.gate is not None and self.gate.chosen_on(query):
            return True
        if self.choice is None:
            return False
        digest = query_digest(query.query)
        return query.id in self.choice.fit_ids or digest in self.choice.fit_digests

    @property
    def silences(self) -> bool:
        """Whether a gate in front silences queries, of which all is dropped."""
        return self.gate is not None

    def possible_alphas(self, alphas: Iterable[float]) -> list[float]:
        """Return some alphas and its own, ascending, without those that delta or gate exclude."""
        least = self.gate.alpha if self.gate else 0.0
        chosen = sorted(alpha for alpha in {*alphas, self.alpha} if alpha > least)
        if self.delta is None or self.by_group:
            return chosen
        needed = partial(guarantees.n_needed, self.guarantee, delta=self.delta)
        return [a for a in chosen if self.units().n >= needed(a)]

    @cached_property
    def keeps_everything(self) -> bool:
        """Whether every threshold is +inf, which keeps every snippet and no claim."""
        return all(self.threshold(group) == math.inf for group in self.n_units)

    def keeps_all_of(self, groups: Iterable[str | None]) -> bool:
        """Return whether the threshold of each group is +inf, or that of queries without one."""
        return all(self.threshold(group) == math.inf for group in groups or {None})

    @property
    def out_of_reach(self) -> bool:
        """Whether keeping everything does not give the guarantee, since missed snippets count, or
        too many answers fail with all snippets; False by group.
        """
        fail = self.subject == subjects.ANSWERS and self.n_queries >= self.n_needed
        return (self.count_missed or fail) and not self.by_group and self.keeps_everything

    @cached_property
    def retriever(self) -> Retriever | None:
        """The retriever, if `retrieval` states it."""
        return as_retriever("retrieval", (self.retrieval or {}).get("retriever"))

    @property
    def k(self) -> int | None:
        """The depth that the retriever was asked for, if `retrieval` states it."""
        k = (self.retrieval or {}).get("k")
        return k if isinstance(k, int) else None

    @cached_property
    def fewest(self) -> int | None:
        """The length of the shortest list but for a share alpha of them, if lengths are known.

        Shorter ones are too few to have their way with the threshold.
        """
        lengths = self.lengths
        return lengths[math.floor(exact_alpha(self.alpha) * len(lengths))] if lengths else None

    @property
    def empty_lists(self) -> tuple[int, int]:
        """Of how many queries the retriever returned nothing, and how many it was asked, if known.

        Both are 0 otherwise.
        """
        empty = (self.retrieval or {}).get("empty", 0)
        if not self.lengths or not isinstance(empty, int):
            return 0, 0
        return empty, empty + len(self.lengths)

    @cached_property
    def lengths(self) -> list[int]:
        """The lengths of the lists that were retrieved, ascending; none if they are unknown."""
        known = (self.retrieval or {}).get("lengths")
        counts = {int(n): int(str(m)) for n, m in known.items()} if isinstance(known, dict) else {}
        return [n for n in sorted(counts) for _ in range(counts[n])]

    def is_short(self, n: int, *, passes: bool = True) -> bool:
        """Return, with a warning, whether a list of n is not like those that were calibrated.

        It is not if it lacks more than a tenth of the fewest, or any, and nothing in it `passes`.
        """
        if self.fewest is None or not 0 < n < (0.9 * self.fewest if passes else self.fewest):
            return False
        warnings.warn(say("short list", c=self), stacklevel=1)  # the same text: shown once
        return True

    @property
    def split(self) -> str | None:
        """What cut the documents into sentences; None if the snippets are whole."""
        if self.subject not in (subjects.SENTENCES, subjects.QUERIES):
            return None
        split = (self.retrieval or {}).get("split")
        return str(split) if split else None

    @property
    def n_relevant(self) -> int:
        """The number n of relevant retrieved snippets or sentences."""
        return len(self.queries.scores)

    @property
    def n_missed(self) -> int:
        """The number of known relevant snippets that were not retrieved."""
        return int(np.nansum(self.queries.missed))

    @property
    def n_units(self) -> Mapping[str | None, int]:
        """The number of units by group: queries, or snippets for "snippet"."""
        return {group: units.n for group, units in self._units.items()}

    @property
    def n_needed(self) -> int:
        """The number of units that a group needs for a finite threshold."""
        return guarantees.n_needed(self.guarantee, self.alpha, self.delta)

    @cached_property
    def effective_n(self) -> float:
        """The number of independent relevant snippets that are worth as much as these."""
        queries = self.queries
        thresholds = np.repeat(self.thresholds_of(queries.groups.tolist()), queries.sizes)
        kept = queries.number_in(self.subject.keep(queries.scores, thresholds))
        return min(effective_n(kept, queries.sizes), float(self.n_relevant))

    @property
    def design_effect(self) -> float:
        """How many times more relevant snippets are needed because they come in queries (Kish)."""
        return self.n_relevant / self.effective_n

    @cached_property
    def _units(self) -> Mapping[str | None, guarantees.Units]:
        queries = self.queries
        if not self.by_group:
            return {None: guarantees.Units(self.guarantee, queries, self.count_missed)}
        return {
            group: guarantees.Units(self.guarantee, queries.select(places), self.count_missed)
            for group, places in places_by_group(queries.groups).items()
        }

    @cached_property
    def _thresholds(self) -> Mapping[str | None, float]:
        return {g: units.threshold(self.alpha, self.delta) for g, units in self._units.items()}

    def _key(self, group: object) -> str | None:
        if group is not None and not isinstance(group, str):
            raise TypeError(say("group of another type", group=group))
        return group if self.by_group else None
