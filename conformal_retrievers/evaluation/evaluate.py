"""What a calibration's threshold does to judged queries: coverage, removal, m1, m2 and more.

`measures.py` has the formulas, `verdict.py` the test of the guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_subject
from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.calibration.subjects import ANSWERS, RETRIEVED, Subject
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.data.text import filled, labelled, shown
from conformal_retrievers.evaluation import measures
from conformal_retrievers.evaluation import verdict as verdicts
from conformal_retrievers.evaluation.equal_recall import EqualRecall, equal_recall
from conformal_retrievers.evaluation.share import Share
from conformal_retrievers.evaluation.verdict import Verdict
from conformal_retrievers.evaluation.wording import say
from conformal_retrievers.theory.intervals import check_level, percent
from conformal_retrievers.theory.ranks import exact_alpha

ATTRIBUTES = {  # of an evaluation, by the names of the measures, in the order of the table
    "recall@K": "recall_at_k",
    "removal": "removal",
    "text removed": "text_removed",
    "precision": "precision",
    "m1": "m1",
    "m2": "m2",
    "unscorable": "unscorable",
    "silent": "silent",
    "false silence": "false_silence",
}


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` measured; each `Share` has its interval over queries.

    `end_to_end` and `recall_at_k` are over the queries that have `missed`, and NaN if none has.
    """

    n_queries: int
    n_relevant: int  # retrieved
    n_missed: int
    n_snippets: int
    coverage: Mapping[Guarantee, Share]  # of the relevant snippets that were retrieved
    coverage_std: float  # of query-recall across queries
    end_to_end: Mapping[Guarantee, Share]  # of all relevant snippets: missed ones are lost
    removal: Share  # share dropped of all snippets
    text_removed: Share | None  # the same of their texts, None if not counted
    recall_at_k: Share  # mean share of a query's relevant snippets that is retrieved
    m1: Share  # share of queries with a kept snippet
    m2: Share  # mean share of a query's snippets that is kept
    precision: Share  # share of the kept snippets that is relevant
    unscorable: Share  # share of all snippets
    only_irrelevant: float  # share of queries that keep irrelevant snippets only
    silent: Share | None = None  # share of queries that are silenced; None where none can be
    false_silence: Share | None = None  # of those with a relevant snippet
    verdict: Verdict | None = None  # None if nothing could be tested
    out_of_reach: bool = False  # missed snippets count, and no threshold reaches the target
    held_out_verified: bool = True  # ids prove that no query belongs to the calibration
    by_group: Mapping[str | None, Evaluation] = field(default_factory=dict, repr=False)
    _: KW_ONLY
    _level: float = field(repr=False, compare=False)
    _calibration: Calibration = field(repr=False, compare=False)
    _queries: ScoredQueries | None = field(default=None, repr=False, compare=False)

    @cached_property
    def equal_recall(self) -> EqualRecall | None:
        """Top k and others at the recall of the filter; None unless judged, from `evaluate`."""
        return self._of_snippets and equal_recall(*self._of_snippets)

    @cached_property
    def too_shallow(self) -> str | None:
        """Why no filter reaches 1 − alpha end to end, and which K would do; None if one can."""
        return self._of_snippets and too_shallow(*self._of_snippets)

    @property
    def _of_snippets(self) -> tuple[Calibration, ScoredQueries, float] | None:
        return None if self._queries is None else (self._calibration, self._queries, self._level)

    @property
    def subject(self) -> Subject:
        """Whether snippets or sentences were measured."""
        return self._calibration.subject

    @property
    def mostly_unscorable(self) -> bool:
        """Whether half of the snippets or more could not be scored, which tests nothing."""
        return self.unscorable.estimate >= measures.MOSTLY

    @property
    def groups_below(self) -> dict[str, Verdict]:
        """The groups that are covered too little, with p ≤ 1 − level.

        The p-values are corrected for the number of groups that could be tested (Bonferroni).
        """
        by_group = self._calibration.by_group
        tested = {
            name: verdict
            for name, part in self.by_group.items()
            if name is not None and (verdict := _verdict(part, name if by_group else None))
        }
        corrected = {n: replace(v.among(len(tested)), group=n) for n, v in tested.items()}
        return {n: v for n, v in corrected.items() if v.p_value <= 1 - self._level}

    @property
    def shares(self) -> dict[str, Share]:
        """All measures by name, in the order of the table."""
        every: dict[str, Share | None] = {
            **{str(name): share for name, share in self.coverage.items()},
            **{measures.END_TO_END + name: share for name, share in self.end_to_end.items()},
            **{name: getattr(self, attribute) for name, attribute in ATTRIBUTES.items()},
        }
        return {name: share for name, share in every.items() if share is not None}

    _repr_pretty_ = shown

    def __str__(self) -> str:
        """Write the verdict, the ways to choose at equal recall, and the measures."""
        missed = f"{self.n_missed} missed" if self.recall_at_k.n else "number missed unknown"
        head = (
            f"{self.n_queries} {'query' if self.n_queries == 1 else 'queries'}, "
            f"{self.n_snippets} {self.subject.name}, {self.n_relevant} of them relevant ({missed})"
        )
        rows = {
            name: share.interval.written(width=5)
            for name, share in self.shares.items()
            if share.n and self._is_shown(name)
        }
        notes = [str(self.verdict)] if self.verdict else []
        if self.verdict and self.verdict.fails:
            notes.append(f"If `diagnose` finds that the scores look alike, and {verdicts.UNLUCKY}")
        if self.out_of_reach:
            notes.append(self.subject.worded(verdicts.OUT_OF_REACH))
        elif self._calibration.keeps_all_of(self.by_group):
            notes.append(verdicts.NOTHING_TESTED)
        elif self.verdict is None and self.n_relevant:
            notes.append(say("no missed"))
        if self.n_relevant == 0 and self.subject != ANSWERS:
            notes.append(say("none relevant"))
        if not self.held_out_verified:
            notes.append(verdicts.UNVERIFIED)
        below = [
            f"in {name!r} {verdict.coverage} (p = {verdict.p_value:.2g} for {verdict.tests} groups)"
            for name, verdict in self.groups_below.items()
            if not self._calibration.by_group  # whose verdict is about its groups
        ]
        if below:
            notes.append(f"Coverage is below the target {', '.join(below)}. {verdicts.COVER_EACH}")
        if self.too_shallow:
            notes.append(self.too_shallow)
        table = [str(self.equal_recall)] if self.equal_recall else []
        return "\n\n".join([*map(filled, notes), *table, "\n".join([head, *labelled(rows, 24)])])

    def _is_shown(self, name: str) -> bool:
        """Whether a measure is shown: coverage is under the calibration's guarantee only."""
        if name == "unscorable":
            return self.unscorable.estimate > 0
        guarantee = name.removeprefix(measures.END_TO_END)
        return guarantee not in measures.GUARANTEES or guarantee == self._calibration.guarantee


def evaluate(
    calibration: Calibration, judged: measures.Given, *, level: float = 0.95
) -> Evaluation:
    """Measure a calibration's threshold on judged queries that it was not made from.

    Print the result: coverage, removal and their intervals, and whether the guarantee fails.

    The queries are scored by the calibration's scorer. If its file does not hold it, or tokens are
    to be counted, give what `score_queries` returns instead. `level` is the confidence of every
    interval. Raises ValueError for no query, for an id that occurs twice or belongs to the
    calibration, and for a level outside (0, 1); CalibrationMismatch for a scorer that is missing,
    and unless snippets are cut, and queries silenced, as in the calibration. Warns of judged
    queries with another retriever or depth than the calibration's.
    """
    check_subject(calibration, *RETRIEVED)
    queries = measures.checked(judged, calibration, "judged")
    counts = measures.counts(queries, measures.keeps(queries, calibration))
    return evaluation_of(calibration, counts, queries, level=level)


def query_counts(calibration: Calibration, scored: Iterable[ScoredQuery]) -> measures.QueryCounts:
    """Return what `evaluate` takes from some queries: for `evaluation_of` of all parts together.

    Raises as `evaluate`.
    """
    queries = measures.checked(scored, calibration)
    return measures.counts(queries, measures.keeps(queries, calibration))


def evaluation_of(
    calibration: Calibration,
    counts: measures.QueryCounts,
    queries: ScoredQueries | None = None,
    *,
    level: float = 0.95,
) -> Evaluation:
    """Return what `evaluate` does, from the `query_counts` of all queries.

    `QueryCounts.merged` merges those of parts. Without the queries themselves, `equal_recall` and
    `too_shallow` are None. Raises ValueError for an id that belongs to the calibration, and for a
    level outside (0, 1).
    """
    check_level(level)
    whole = _measured(counts, level, calibration)
    members = {} if set(counts.group.tolist()) == {None} else counts.by_group
    parts = {group: _measured(part, level, calibration) for group, part in members.items()}
    if calibration.by_group:
        tests = verdicts.n_tested(calibration, parts)
        parts = {g: replace(p, verdict=_verdict(p, g, tests)) for g, p in parts.items()}
        worst = verdicts.worst_of(part.verdict for part in parts.values())
        verdict = worst and replace(worst, unscorable=whole.unscorable.estimate)
    else:
        verdict = _verdict(whole)
    return replace(
        whole,
        verdict=verdict,
        by_group=parts,
        held_out_verified=calibration.held_out(counts.ids.tolist()),
        out_of_reach=calibration.out_of_reach,
        _queries=queries,
    )


def _measured(c: measures.QueryCounts, level: float, calibration: Calibration) -> Evaluation:
    share = {name: measures.share(c, name, level) for name in measures.measured(c)}
    by_attribute: dict[str, Any] = {a: share.get(name) for name, a in ATTRIBUTES.items()}
    some = c.relevant > 0
    recalls = c.relevant_kept[some] / c.relevant[some]
    return Evaluation(
        n_queries=len(c.retrieved),
        n_relevant=int(c.relevant.sum()),
        n_missed=int(np.nansum(c.missed)),
        n_snippets=int(c.retrieved.sum()),
        coverage={name: share[name] for name in measures.GUARANTEES},
        coverage_std=float(np.std(recalls)) if len(recalls) > 1 else math.nan,
        end_to_end={name: share[measures.END_TO_END + name] for name in measures.GUARANTEES},
        only_irrelevant=float(np.mean((c.kept > 0) & (c.relevant_kept == 0))),
        **by_attribute,
        _level=level,
        _calibration=calibration,
    )


def _verdict(part: Evaluation, group: str | None = None, tests: int = 1) -> Verdict | None:
    calibration = part._calibration
    coverage = part.shares[measures.guaranteed(calibration)]
    verdict = verdicts.verdict_on(calibration, coverage, group, tests=tests)
    return verdict and replace(verdict, unscorable=part.unscorable.estimate)


# --- whether a target can be reached: what the retriever misses, no filter brings back ------------


def too_shallow(calibration: Calibration, queries: ScoredQueries, level: float) -> str | None:
    """Return why no filter keeps the target share of all relevant snippets, or None.

    It names a depth that would do if the lists are deep enough to know one. None as well where the
    missed snippets are unknown.
    """
    target, hits = float(1 - exact_alpha(calibration.alpha)), measures.known_hits(queries)
    places: list[Any] = [of_one.ranks for of_one in hits.values()]
    places = places or [measures.documents(queries)]
    found_at = np.min(places, axis=0) + 1  # (S,), by the first of several retrievers
    deepest = int(found_at[np.isfinite(found_at)].max(initial=0))
    n = len(places)
    k = (calibration.k or 0) // n  # of each retriever
    k = min(k or deepest, deepest)

    def reached(depth: int) -> Share:
        counts = measures.counts(queries, found_at <= depth)
        return measures.share(counts, measures.END_TO_END + calibration.guarantee, level)

    at_k = reached(k)
    if not at_k.n or at_k.estimate >= target or not deepest:
        return None
    deeper = next((d for d in range(k + 1, deepest + 1) if reached(d).estimate >= target), None)
    than = f" than {_depth(deepest, n)}" if deepest > k else ""
    return say(
        "too shallow",
        at_k=_depth(k, n),
        share=calibration.subject.worded(say(f"finds {calibration.guarantee}", share=at_k)),
        target=percent(target, exact=True),
        remedy=f"{_depth(deeper, n)} would do" if deeper else f"Retrieve deeper{than}",
    )


def _depth(k: int, n: int) -> str:
    """Name a depth as calibrations do, by the snippets of all n retrievers together."""
    return f"K = {k}" if n == 1 else f"K = {n * k} ({k} of each retriever)"
