"""What a filter does to judged queries: coverage, removal, precision, m1, m2, with intervals.

The measures and their formulas are in `measures.py`, the test of the promise in `verdict.py`. Both
take the query as the unit.

m1 and m2 (Geissler et al. 2026, arXiv 2605.05244) need no judgements and are no coverage: m1 falls
when relevant snippets are missing from the K retrieved, and rises when irrelevant ones pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.evaluation.measures import (
    END_TO_END,
    GUARANTEES,
    MOSTLY,
    Counts,
    Row,
    Share,
    shares,
)
from conformal_retrievers.evaluation.verdict import (
    NOT_TOLD_APART,
    OUT_OF_REACH,
    Verdict,
    verdict_on,
    worst_of,
)
from conformal_retrievers.filtering import ConformalFilter
from conformal_retrievers.scoring.scorer import check_not_fitted_on
from conformal_retrievers.theory.intervals import check_level

# --- values ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` measured on judged queries; each `Share` with its interval over queries.

    `coverage` holds, for each of the four guarantees, the share of what it is about that is kept,
    of the relevant snippets that were retrieved; in `end_to_end` those that were missed count as
    dropped. `coverage_std` is the standard deviation of query-recall across queries. Where no query
    has a missed one, nobody knows of any: `end_to_end` and `recall_at_k` are nan, unless the
    calibration counts missed ones, which says that the queries tell them. `removal`: share dropped
    of all snippets. `tokens_saved`: the same of their tokens, None where only scores are at hand.
    `recall_at_k`: mean share of a query's known relevant snippets that is retrieved. `m1`: share of
    queries with a snippet that passes. `m2`: mean share of a query's snippets that passes.
    `precision`: share of the kept snippets that is relevant. `unscorable`: share of all snippets
    that could not be scored. `verdict` is None where nothing could be tested. `out_of_reach`:
    missed snippets count, and no threshold keeps the promise, so that there is none. `told_apart`:
    whether ids tell the queries from those that the calibration was made from. `by_group` has an
    evaluation for each group of queries, and is empty where no query has one.
    """

    n_queries: int
    n_relevant: int
    n_missed: int
    n_snippets: int
    coverage: Mapping[Guarantee, Share]
    coverage_std: float
    end_to_end: Mapping[Guarantee, Share]
    removal: Share
    tokens_saved: Share | None
    recall_at_k: Share
    m1: Share
    m2: Share
    precision: Share
    unscorable: Share
    verdict: Verdict | None = None
    out_of_reach: bool = False
    told_apart: bool = True
    by_group: Mapping[str | None, Evaluation] = field(default_factory=dict, repr=False)

    @property
    def misses_known(self) -> bool:
        """Whether the queries say how many relevant snippets the retriever missed."""
        return self.n_missed > 0 or self.recall_at_k.n > 0

    @property
    def mostly_unscorable(self) -> bool:
        """Whether half of the snippets or more could not be scored, so that nothing is tested."""
        return self.unscorable.estimate >= MOSTLY

    @property
    def shares(self) -> dict[str, Share]:
        """All measures by name, in the order of the table."""
        some = {
            **{str(name): share for name, share in self.coverage.items()},
            **{END_TO_END + name: share for name, share in self.end_to_end.items()},
            "recall@K": self.recall_at_k,
            "removal": self.removal,
            "tokens saved": self.tokens_saved,
            "precision": self.precision,
            "m1": self.m1,
            "m2": self.m2,
            "unscorable": self.unscorable,
        }
        return {name: share for name, share in some.items() if share is not None}

    def __str__(self) -> str:
        missed = (
            f"{self.n_missed} relevant ones missed"
            if self.misses_known
            else "unknown how many relevant ones were missed"
        )
        head = (
            f"{self.n_queries} {'query' if self.n_queries == 1 else 'queries'}, {self.n_relevant} "
            f"relevant of {self.n_snippets} retrieved snippets, {missed}"
        )
        rows = [
            f"{name:<24} {share if share.n else '      –'}" for name, share in self.shares.items()
        ]
        said = [str(self.verdict)] if self.verdict else []
        said += [OUT_OF_REACH] * self.out_of_reach + [NOT_TOLD_APART] * (not self.told_apart)
        return "\n".join([head, *rows, *said])


# --- evaluating -----------------------------------------------------------------------------------


def evaluate(
    filter_or_calibration: ConformalFilter | Calibration,
    judged: Iterable[JudgedQuery] | Iterable[ScoredQuery],
    *,
    count_tokens: Callable[[str], int] = len,
    level: float = 0.95,
) -> Evaluation:
    """Measure a filter on judged queries, or a calibration's threshold on scored ones.

    The queries are read once and only numbers are kept of each, so `iter_jsonl(path)` may be larger
    than memory. What the filter adds to an empty result counts as kept, but not in m1 and m2.
    Tokens are those of `count_tokens`: give your model's tokenizer. By default they are characters,
    which are no tokens, but of which a context saves about the same share. Raises
    ValueError where there is no query, an id occurs twice or is one of the calibration's, or the
    filter's scorer was fitted on it; TypeError for
    queries that are not scored, or not judged; and what the filter raises.
    """
    check_level(level)
    calibration = calibration_of(filter_or_calibration)
    row_of = row_by(filter_or_calibration, count_tokens)
    without_id: set[str | None] = set()  # the groups that have a query without one

    def rows() -> Iterator[Row]:
        for query in checked(judged, calibration):
            row = row_of(query)
            yield row
            if query.id is None:
                without_id.add(row.group)

    counts = Counts.of(rows())
    misses_known = calibration.count_missed or bool(counts.missed.any())
    measured = _with_verdicts(evaluation_of(counts, level, misses_known), calibration)
    known = calibration.n_without_id == 0
    return replace(
        measured,
        by_group={
            group: replace(part, told_apart=known and group not in without_id)
            for group, part in measured.by_group.items()
        },
        told_apart=known and not without_id,
        out_of_reach=calibration.out_of_reach,
    )


def measure(
    scored: Iterable[ScoredQuery], kept: Iterable[ArrayLike], *, level: float = 0.95
) -> Evaluation:
    """Measure any choice of snippets: `kept` has one mask (n,) for each query.

    Raises ValueError where there is no query or a mask does not fit its query.
    """
    check_level(level)
    queries, masks = list(scored), [np.asarray(mask, dtype=bool) for mask in kept]
    if [mask.shape for mask in masks] != [query.scores.shape for query in queries]:
        raise ValueError("kept does not fit scored; give one mask a query, one value a snippet")
    rows = (
        _scored_row(query, mask) for query, mask in zip(checked(queries, None), masks, strict=True)
    )
    counts = Counts.of(rows)
    return evaluation_of(counts, level, bool(counts.missed.any()))


# --- one query, one row ---------------------------------------------------------------------------


def calibration_of(given: object) -> Calibration:
    """Return the calibration of a filter, or the one that is given; TypeError for all else."""
    if isinstance(given, Calibration):
        return given
    if isinstance(given, ConformalFilter):
        return given.calibration
    raise TypeError(
        f"filter_or_calibration is {given!r:.60}; give a ConformalFilter, or a Calibration with "
        "scored queries"
    )


def row_by(
    given: ConformalFilter | Calibration, count_tokens: Callable[[str], int]
) -> Callable[[Any], Row]:
    """Return what turns a query, judged for a filter or scored for a calibration, into its row."""
    merged = calibration_of(given).merge_groups or {}

    def group_of(name: str | None) -> str | None:
        return None if name is None else merged.get(name, name)

    if isinstance(given, Calibration):

        def scored_row(query: object) -> Row:
            if not isinstance(query, ScoredQuery):
                raise TypeError(
                    f"a query is {query!r:.60}, but a calibration has no scorer; give scored "
                    "queries, from score_queries(scorer, judged), or a ConformalFilter"
                )
            row = _scored_row(query, given.keep(query.scores, query.group))
            return row._replace(group=group_of(query.group))

        return scored_row

    def judged_row(query: object) -> Row:
        if not isinstance(query, JudgedQuery):
            raise TypeError(
                f"a query is {query!r:.60}; give JudgedQuery objects, as iter_jsonl(path) yields "
                "them, or a Calibration for scored queries"
            )
        check_not_fitted_on(given.scorer, [query])
        filtered = given(query.query, query.snippets, query.group)
        relevant = np.array(query.relevant, dtype=bool)
        tokens = np.array([count_tokens(s.text) for s in query.snippets], dtype=np.float64)
        return Row(
            len(relevant),
            int(np.count_nonzero(relevant)),
            query.missed,
            int(np.count_nonzero(filtered.keeps)),
            int(np.count_nonzero(filtered.keeps & relevant)),
            round(filtered.m2 * len(relevant)),
            int(np.count_nonzero(np.isnan(filtered.scores))),
            float(tokens.sum()),
            float(tokens[filtered.keeps].sum()),
            group_of(filtered.group),
        )

    return judged_row


def _scored_row(query: ScoredQuery, kept: NDArray[np.bool_]) -> Row:
    passed = int(np.count_nonzero(kept))
    return Row(
        len(query.scores),
        int(np.count_nonzero(query.relevant)),
        query.missed,
        passed,
        int(np.count_nonzero(kept & query.relevant)),
        passed,
        int(np.count_nonzero(np.isnan(query.scores))),
        math.nan,
        math.nan,
        query.group,
    )


def checked(queries: Iterable[Any], calibration: Calibration | None) -> Iterator[Any]:
    """Yield the queries; raise ValueError for one that coverage cannot be measured on."""
    calibrated_on = calibration.ids if calibration else frozenset()
    seen: set[str] = set()
    for query in queries:
        if isinstance(query, (JudgedQuery, ScoredQuery)):  # all else is refused by its row
            where = f"query {query.id!r}" if query.id is not None else "a query"
            if query.id in calibrated_on:
                raise ValueError(
                    f"{where} has the id of one that the calibration was made from; evaluate on "
                    "judged queries that it did not look at"
                )
            if query.id in seen:
                raise ValueError(f"{where} occurs twice; a query counts once, so remove one")
            if query.id is not None:
                seen.add(query.id)
        yield query


# --- all queries, and each group ------------------------------------------------------------------


def evaluation_of(
    c: Counts, level: float, misses_known: bool, *, by_group: bool = True
) -> Evaluation:
    """Return the evaluation of some rows, by group too where any has one."""
    share = shares(c, level, misses_known=misses_known)
    groups = c.by_group if by_group else {}
    return Evaluation(
        n_queries=len(c.retrieved),
        n_relevant=int(c.relevant.sum()),
        n_missed=int(c.missed.sum()),
        n_snippets=int(c.retrieved.sum()),
        coverage={name: share[name] for name in GUARANTEES},
        coverage_std=c.coverage_std,
        end_to_end={name: share[END_TO_END + name] for name in GUARANTEES},
        removal=share["removal"],
        tokens_saved=share.get("tokens saved"),
        recall_at_k=share["recall@K"],
        m1=share["m1"],
        m2=share["m2"],
        precision=share["precision"],
        unscorable=share["unscorable"],
        by_group={
            name: evaluation_of(part, level, misses_known, by_group=False)
            for name, part in groups.items()
            if list(groups) != [None]
        },
    )


def _with_verdicts(evaluation: Evaluation, calibration: Calibration) -> Evaluation:
    def verdict(part: Evaluation, group: str | None) -> Verdict | None:
        measured = part.end_to_end if calibration.count_missed else part.coverage
        found = verdict_on(calibration, measured[calibration.guarantee], group)
        return found and replace(found, unscorable=part.unscorable.estimate)

    if not calibration.by_group:
        return replace(evaluation, verdict=verdict(evaluation, None))
    groups = {
        group: replace(part, verdict=verdict(part, group))
        for group, part in evaluation.by_group.items()
    }
    verdicts = [part.verdict for part in groups.values() if part.verdict is not None]
    worst = worst_of(verdicts)
    over_all = worst and replace(worst, unscorable=evaluation.unscorable.estimate)
    return replace(evaluation, by_group=groups, verdict=over_all)
