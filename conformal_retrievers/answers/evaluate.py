"""Filters by what a chain answers: does the answer change, and what is saved?

Each way to cut the context is paired with the others by question, and intervals are those of the
bootstrap over questions. "all snippets" is asked twice: what it changes, the chain changes itself.
"""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from conformal_retrievers.answers.asked import CHARACTERS, Answer, Asked, AskOptions, name_of
from conformal_retrievers.answers.same import f1, same_text
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.evaluation.bootstrap import Estimate, n_to_tell, resampled, spans
from conformal_retrievers.evaluation.verdict import UNVERIFIED
from conformal_retrievers.filtering import RetrievalFilter
from conformal_retrievers.sentence_filter import FilteredSentences
from conformal_retrievers.theory.intervals import check_level

WHOLE = "all snippets"
RESAMPLES = 2000
SHOWN = ("unchanged", "right", "f1")  # in %
WIDTH = 20  # characters of a name in the table
LABELS = {"unchanged": "answers unchanged, %", "right": "right answers, %"}
MARKS = {"whole": ("#595959", "X"), "filter": ("#0072b2", "o"), "top k": ("#00785a", "s")}
Contexts = Sequence[Sequence[Snippet]]  # of each question


@dataclass(frozen=True, eq=False)
class Way:
    """A way to cut the context, and what it gives for each question, (n,) each.

    The measures are the snippets, tokens and seconds, whether the answer is unchanged and, where
    there are references, right, exact, and its F1. Seconds are 0 where the cache has the answer.
    """

    name: str
    kind: Literal["whole", "filter", "top k"]
    measures: Mapping[str, NDArray[np.float64]] = field(repr=False)
    estimates: Mapping[str, Estimate]  # their means, with intervals


class Gap(NamedTuple):
    """The difference of a measure between two ways, paired by question."""

    difference: Estimate
    needed: float  # questions that show such a difference with probability 0.8; NaN for none


@dataclass(frozen=True, eq=False)
class AnswerEvaluation:
    """What a chain answers from the context that each way leaves, on n questions."""

    ways: tuple[Way, ...]
    n_questions: int
    same: str  # the name of what compares answers
    level: float  # of the intervals
    held_out_verified: bool  # whether ids prove that no filter was calibrated on a question
    failed: Mapping[str, str]  # questions that were left out, and why

    def __getitem__(self, name: str) -> Way:
        """Return a way by its name; raise KeyError, naming those that there are."""
        for way in self.ways:
            if way.name == name:
                return way
        raise KeyError(f"{name!r} is not among {[way.name for way in self.ways]}")

    def compare(self, one: str, other: str, measure: str) -> Gap:
        """Return a measure of one way minus that of another."""
        paired = self[one].measures[measure] - self[other].measures[measure]
        needed = n_to_tell(_drawn(paired), len(paired), float(paired.mean()))
        return Gap(_estimate(paired, self.level), needed)

    def draw(self, axes: Any) -> None:
        """Draw the ways into matplotlib's axes, as `plot_answers` does into a figure."""
        measure = "right" if "right" in self.ways[0].measures else "unchanged"
        for way in self.ways:
            share, x = way.estimates[measure], way.estimates["tokens"].estimate
            color, mark = MARKS[way.kind]
            axes.vlines(x, 100 * share.low, 100 * share.high, color=color, alpha=0.5)
            axes.plot(x, 100 * share.estimate, mark, color=color)
            above = way.kind == "filter"  # a filter and its top k have about the same tokens
            axes.annotate(
                way.name.replace("$", r"\$"),
                (x, 100 * (share.high if above else share.low)),
                xytext=(-4, 3 if above else -11),
                textcoords="offset points",
                fontsize=8.5,
                color=color,
            )
        widest = max(way.estimates["tokens"].estimate for way in self.ways)
        axes.set(xlabel="tokens of context", ylabel=LABELS[measure], xlim=(0, 1.25 * widest))
        low, high = axes.get_ylim()
        axes.set_ylim(max(0, low - 5), min(102, high + 5))

    def __str__(self) -> str:
        """Write the ways as a table, a line each, and their differences to the whole context."""
        known = [name for name in SHOWN if name in self.ways[0].measures]
        names = {way.name: _shortened(way.name) for way in self.ways}
        width = max(map(len, names.values()))
        heads = "".join(f"  {name + ', %':<14}" for name in known)
        lines = [f"{'':<{width}}  snippets  tokens{heads}".rstrip()]
        for way in self.ways:
            snippets, tokens = (way.estimates[name].estimate for name in ("snippets", "tokens"))
            shares = "".join(f"  {_percent(way.estimates[name]):<14}" for name in known)
            row = f"{names[way.name]:<{width}}  {snippets:8.1f}  {tokens:6.0f}{shares}"
            lines.append(row.rstrip())
        lines += ["", f"{self.n_questions} questions, compared by {_shortened(self.same, 50)}."]
        measure = "right" if "right" in known else "unchanged"
        for way in self.ways[1:]:
            gap, needed = self.compare(way.name, WHOLE, measure)
            shown = gap.low > 0 or gap.high < 0 or math.isnan(needed)
            told = "" if shown else f"; {needed:,.0f} questions would tell"
            lines.append(f"{names[way.name]} − {WHOLE}, {measure}: {_percent(gap, '+')}{told}.")
        if self.failed:
            lines.append(f"Left out, because a call failed: {len(self.failed)}.")
        if not self.held_out_verified:
            lines.append(UNVERIFIED)
        return "\n".join(lines)


def evaluate_answers(
    filters: Mapping[str, RetrievalFilter[Any]],
    queries: Iterable[JudgedQuery],
    answer: Answer,
    *,
    level: float = 0.95,
    **options: Unpack[AskOptions],
) -> AnswerEvaluation:
    """Measure what a chain answers from all snippets, from what filters keep, and from a top k.

    For each filter there is the top k, in the retriever's order, that has about as many snippets.

    Parameters
    ----------
    filters
        Filters by name, of snippets or of sentences, by relevance or by answers.
    queries
        Retrieved queries that no filter was calibrated on; their judgements are not read.
    level
        The share of resamples that intervals span.
    answer, options
        As in `scan_answers`. `same` says what is unchanged, and what is right where there are
        references.

    Raises
    ------
    TypeError, ValueError
        As `scan_answers`, for a query that a filter was calibrated on, by its id, and for a filter
        with the name of another way.
    """
    check_level(level)
    _check_filters(filters)
    asked = Asked(queries, answer, **options)
    ids = [query.id for query in asked.queries]
    verified = [filter.calibration.held_out(ids) for filter in filters.values()]
    for name, filter in filters.items():
        calibrated = filter.calibration.details.get("chain", asked.chain)
        if calibrated != asked.chain:
            warnings.warn(
                f"filters[{name!r}] is calibrated on the answers of {calibrated}, and asked is "
                f"{asked.chain}: its guarantee is about the former. If they are the same, give "
                "chain=",
                stacklevel=2,
            )
    ways = _contexts(filters, asked.queries)
    whole = [query.snippets for query in asked.queries]
    asked.announce(
        [len(snippet.text) for snippet in context]
        for contexts in (whole, *ways.values())
        for context in contexts
    )
    place = {query.query: i for i, query in enumerate(asked.queries)}

    def measured(query: JudgedQuery) -> list[dict[str, float]]:
        first = asked(query.query, query.snippets, first=True)
        known: dict[tuple[str, ...], dict[str, float]] = {}
        rows = []
        for contexts in ways.values():
            context = contexts[place[query.query]]
            key = tuple(snippet.text for snippet in context)
            if key not in known:  # equal contexts are asked about once
                known[key] = _measures(asked, query.query, context, first)
            rows.append(known[key])
        return rows

    rows, failed = asked.of_each(measured)
    made = []
    for j, name in enumerate(ways):
        measures = {key: np.array([row[j][key] for row in rows]) for key in rows[0][j]}
        estimates = {key: _estimate(values, level) for key, values in measures.items()}
        kind: Any = "whole" if name == WHOLE else "filter" if name in filters else "top k"
        made.append(Way(name, kind, measures, estimates))
    same = name_of("same", asked.unchanged)
    return AnswerEvaluation(tuple(made), len(rows), same, level, all(verified), failed)


def _check_filters(filters: Any) -> None:
    if not isinstance(filters, Mapping):
        raise TypeError(f"filters is a {type(filters).__name__}; give filters by name, a dict")
    for name, filter in filters.items():
        if not isinstance(name, str) or re.fullmatch(rf"top \d+|{WHOLE}", name):
            raise ValueError(f"filters has the name {name!r}; give another text, as a filter's own")
        if not isinstance(filter, RetrievalFilter):
            raise TypeError(
                f"filters[{name!r}] is {filter!r:.60}; give a filter: ConformalFilter.of(…)"
            )


def _contexts(
    filters: Mapping[str, RetrievalFilter[Any]], queries: Sequence[JudgedQuery]
) -> dict[str, Contexts]:
    """Return the snippets that each way leaves of each query, by its name."""
    ways: dict[str, Contexts] = {WHOLE: [query.snippets for query in queries]}
    for name, filter in filters.items():
        decided = [filter(query.query, query.snippets, query.group) for query in queries]
        ways[name] = [*map(_kept, decided, queries)]
        k = round(float(np.mean([len(kept) for kept in ways[name]])))
        ways[f"top {k}"] = [query.snippets[:k] for query in queries]
    return ways


def _kept(decided: Any, query: JudgedQuery) -> list[Snippet]:
    if isinstance(decided, FilteredSentences):
        return [Snippet(p.text, query.snippets[p.document].id) for p in decided.passages]
    return [query.snippets[i] for i in decided.kept]


def _measures(
    asked: Asked, question: str, context: Sequence[Snippet], first: str
) -> dict[str, float]:
    """Return what a chain's answer from a context is worth, and what it takes."""
    start = time.perf_counter()
    text = asked(question, context)
    measures = {
        "snippets": float(len(context)),
        "tokens": sum(len(snippet.text) for snippet in context) / CHARACTERS,
        "seconds": time.perf_counter() - start,
        "unchanged": float(asked.agrees(asked.unchanged, question, text, (first,))),
    }
    if asked.expected is not None:
        references = asked.expected[question]
        measures["right"] = float(asked.agrees(asked.right, question, text, references))
        measures["exact"] = float(asked.agrees(same_text, question, text, references))
        measures["f1"] = max(f1(text, reference) for reference in references)
    return measures


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


def _shortened(text: str, width: int = WIDTH) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
