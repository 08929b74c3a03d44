"""Filters by what a chain answers: does the answer change, and what is saved?

Each way to cut the context is paired with the others by question, and intervals are those of the
bootstrap over questions. "all snippets" is asked twice: what it changes, the chain changes itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.answers.asked import Answer, Asked, named_chain
from conformal_retrievers.answers.same import Same, f1, has_answer, name_of, same_text
from conformal_retrievers.answers.scan import CHARACTERS, Expected, references_of
from conformal_retrievers.data.copies import check_copies
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.evaluation.bootstrap import Estimate, n_to_tell, resampled, spans
from conformal_retrievers.filtering import RetrievalFilter
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.pruning import Pruned
from conformal_retrievers.scoring.scorer import judged_queries
from conformal_retrievers.theory.intervals import check_level

WHOLE = "all snippets"
RESAMPLES = 2000
SHARES = ("unchanged", "right", "exact", "f1")  # measures from 0 to 1
Measures = Mapping[str, NDArray[np.float64]]  # of each question, by name


@dataclass(frozen=True, eq=False)
class Way:
    """A way to cut the context, and what it gives for each question, (n,) each."""

    name: str
    measures: Measures = field(repr=False)  # snippets, tokens, seconds, and SHARES that are known
    estimates: Mapping[str, Estimate]  # their means, with intervals

    @property
    def unchanged(self) -> Estimate:
        """The share of questions with the same answer as from all snippets."""
        return self.estimates["unchanged"]


@dataclass(frozen=True, eq=False)
class AnswerEvaluation:
    """What a chain answers from the context that each way leaves, on n questions."""

    ways: tuple[Way, ...]
    n_questions: int
    same: str  # the name of what compares answers
    failed: Mapping[str, str]  # questions that were left out, and why

    def __getitem__(self, name: str) -> Way:
        """Return a way by its name."""
        return next(way for way in self.ways if way.name == name)

    def difference(self, one: str, other: str, measure: str) -> Estimate:
        """Return a measure of one way minus that of another, paired by question."""
        paired = self[one].measures[measure] - self[other].measures[measure]
        return _estimate(paired, 0.95)

    def questions_to_tell(self, one: str, other: str, measure: str) -> float:
        """Return how many questions show a difference like this one with probability 0.8; NaN if
        none is there.
        """
        paired = self[one].measures[measure] - self[other].measures[measure]
        drawn = _drawn(paired)
        return n_to_tell(drawn, len(paired), float(paired.mean()))

    def __str__(self) -> str:
        """Write the ways as a table, a line each, and the differences to the whole context."""
        known = [name for name in SHARES if name != "exact" and name in self.ways[0].measures]
        width = max(len(way.name) for way in self.ways)
        head = f"{'':<{width}}  snippets  tokens" + "".join(
            f"  {name + ', %':<14}" for name in known
        )
        lines = [head.rstrip()]
        for way in self.ways:
            means = {name: way.estimates[name].estimate for name in ("snippets", "tokens")}
            shares = "".join(f"  {_percent(way.estimates[name]):<14}" for name in known)
            row = f"{way.name:<{width}}  {means['snippets']:8.1f}  {means['tokens']:6.0f}{shares}"
            lines.append(row.rstrip())
        lines.append(f"\n{self.n_questions} questions, compared by {self.same}.")
        for way in self.ways[1:]:
            gap = self.difference(way.name, WHOLE, known[-1])
            more = self.questions_to_tell(way.name, WHOLE, known[-1])
            told = "" if math.isnan(more) else f"; {more:,.0f} questions would tell"
            lines.append(f"{way.name} − {WHOLE}, {known[-1]}: {_percent(gap, '+')}{told}.")
        if self.failed:
            lines.append(f"{len(self.failed)} questions are left out, because a call failed.")
        return "\n".join(lines)


def evaluate_answers(
    filters: Mapping[str, RetrievalFilter[Any]],
    queries: Iterable[JudgedQuery],
    answer: Answer,
    *,
    expected: Expected | None = None,
    same: Same | None = None,
    chain: str | None = None,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
    level: float = 0.95,
) -> AnswerEvaluation:
    """Measure what a chain answers from all snippets, from what filters keep, and from a top k.

    For each filter there is the top k, in the retriever's order, that has about as many snippets.

    Parameters
    ----------
    filters
        Filters by name, of snippets or of sentences, by relevance or by answers.
    queries
        Retrieved queries that no filter was calibrated on; their judgements are not read.
    answer, expected, same, chain, concurrency, cache, progress
        As in `scan_answers`. `same` says what is unchanged; with `expected`, what is right, and
        without it `same_text` says what is unchanged.
    level
        The share of resamples that intervals span.

    Raises
    ------
    TypeError, ValueError
        As `scan_answers`, and for a query that a filter was calibrated on, by its id.
    """
    check_level(level)
    given = judged_queries(queries, "queries")
    check_copies(given)
    for name, one in filters.items():
        if not isinstance(one, RetrievalFilter):
            raise TypeError(f"filters[{name!r}] is {one!r:.60}; give a ConformalFilter")
        one.calibration.held_out(query.id for query in given)
    unchanged, right = (same or same_text, same or has_answer)
    references = {} if expected is None else references_of(given, expected)
    ways = _contexts(filters, given)
    asked = Asked(answer, named_chain(chain, answer), cache, concurrency)
    place = {query.query: i for i, query in enumerate(given)}

    def measured(query: JudgedQuery) -> list[dict[str, float]]:
        first = asked(query.query, query.snippets, True)
        known = references.get(query.query, ())
        return [
            of_context(query, contexts[place[query.query]], first, known)
            for contexts in ways.values()
        ]

    def of_context(
        query: JudgedQuery, context: Sequence[Snippet], first: str, known: tuple[str, ...]
    ) -> dict[str, float]:
        start = time.perf_counter()
        found = asked(query.query, context, False)
        of_one = {
            "snippets": float(len(context)),
            "tokens": sum(len(snippet.text) for snippet in context) / CHARACTERS,
            "seconds": time.perf_counter() - start,
            "unchanged": float(unchanged(query.query, found, first)),
        }
        if known:
            of_one["right"] = float(any(right(query.query, found, one) for one in known))
            of_one["exact"] = float(any(same_text(query.query, found, one) for one in known))
            of_one["f1"] = max(f1(found, one) for one in known)
        return of_one

    rows, failed = asked.of_each(measured, given, progress)
    made = []
    for j, name in enumerate(ways):
        measures = {key: np.array([row[j][key] for row in rows]) for key in rows[0][j]}
        estimates = {key: _estimate(values, level) for key, values in measures.items()}
        made.append(Way(name, measures, estimates))
    return AnswerEvaluation(tuple(made), len(rows), name_of(unchanged), failed)


def _contexts(
    filters: Mapping[str, RetrievalFilter[Any]], queries: Sequence[JudgedQuery]
) -> dict[str, list[Sequence[Snippet]]]:
    """Return the snippets that each way leaves of each query, by its name."""
    ways: dict[str, list[Sequence[Snippet]]] = {WHOLE: [query.snippets for query in queries]}
    for name, one in filters.items():
        decided = [one(query.query, query.snippets, query.group) for query in queries]
        ways[name] = [
            [Snippet(passage.text) for passage in of.passages]
            if isinstance(of, Pruned)
            else [query.snippets[i] for i in of.kept]
            for query, of in zip(queries, decided, strict=True)
        ]
        k = round(float(np.mean([len(kept) for kept in ways[name]])))
        ways[f"top {k}"] = [query.snippets[:k] for query in queries]
    return ways


def _drawn(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the means of resampled values, (resamples,)."""
    table = np.stack([values, np.ones(len(values))], axis=1)
    sums = resampled(table, np.random.default_rng(0), RESAMPLES)
    return np.asarray(sums[:, 0] / sums[:, 1])


def _estimate(values: NDArray[np.float64], level: float) -> Estimate:
    ((low, high),) = spans(_drawn(values)[:, np.newaxis], level)
    return Estimate(float(values.mean()), low, high)


def _percent(estimate: Estimate, sign: str = "") -> str:
    middle, low, high = (f"{100 * value:{sign}.0f}" for value in estimate)
    return f"{middle} [{low}, {high}]"
