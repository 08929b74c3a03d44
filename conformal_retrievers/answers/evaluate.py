"""Filters by what a chain answers: does the answer change, and what is saved?

Each way to cut the context is paired with the others by question. Intervals of shares are those of
`cluster_interval` (Wilson), and of differences and lengths those of the bootstrap over questions.
"all snippets" is asked twice: what it changes, the chain changes itself. A filter that is
calibrated on answers, without groups, has a verdict on its guarantee, as `evaluate` has on others.
"""

import math
import re
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from conformal_retrievers.answers.asked import Answer, Asked, AskOptions, name_of, tokens_of
from conformal_retrievers.answers.same import f1, same_text
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_type
from conformal_retrievers.calibration.subjects import ANSWERS
from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.data.text import aligned, filled, shortened, shown
from conformal_retrievers.evaluation.bootstrap import n_to_tell, resampled, spans
from conformal_retrievers.evaluation.equal_recall import Scale
from conformal_retrievers.evaluation.share import Share
from conformal_retrievers.evaluation.verdict import UNVERIFIED, Verdict, verdict_on
from conformal_retrievers.filtering import RetrievalFilter
from conformal_retrievers.sentence_filter import FilteredSentences
from conformal_retrievers.theory.intervals import Interval, check_level, cluster_interval

WHOLE = "all snippets"
OTHERS = re.compile(rf"top \d+|{WHOLE}")  # the names of ways that are no filters
FILTER = "a filter, such as ConformalFilter.of(calibration), or the .filter of what is in a chain"
UNTESTED = "untested: it is by group, keeps everything, or is about another chain or comparison"
SHOWN = ("unchanged", "right", "f1")  # in %
SHARES = (*SHOWN, "still right", "exact")


class Gap(NamedTuple):
    """The difference of a measure between two ways, paired by question."""

    difference: Interval
    needed: float  # questions that show such a difference with probability 0.8; NaN for none


@dataclass(frozen=True, eq=False)
class AnswerEvaluation:
    """What a chain answers from the context that each way to cut it leaves, on n questions.

    Ways are known by their names: "all snippets", and each filter before its top k, which two that
    keep about as many snippets share. The measures are the snippets, tokens and seconds, whether
    the answer is unchanged and, where there are references, right, exact, and its F1. "still right"
    is right where the first answer from all snippets is, and NaN elsewhere. Seconds are 0 where the
    cache has the answer.
    """

    measures: Mapping[str, Mapping[str, NDArray[np.float64]]] = field(repr=False)  # (n,), by way
    # Their means, with intervals.
    estimates: Mapping[str, Mapping[str, Interval]] = field(repr=False)
    # By filter, on what it guarantees of these answers; None if that is not tested.
    verdicts: Mapping[str, Verdict | None]
    n_questions: int
    same: str  # the name of what compares answers
    level: float  # of the intervals
    held_out_verified: bool  # whether ids prove that no filter was calibrated on a question
    failed: Mapping[str, str]  # questions that were left out, and why

    def compare(self, one: str, other: str, measure: str) -> Gap:
        """Return a measure of one way minus that of another."""
        gaps = self.measures[one][measure] - self.measures[other][measure]
        return _gap(gaps[~np.isnan(gaps)], self.level)

    def draw(self, axes: Any) -> None:
        """Draw the ways into matplotlib's axes; `plot` draws them into a figure.

        Filters are dots, and a top k or the whole context a square, each with its interval: the
        higher and the further left, the better. What is shown is right answers if references are
        known, or else unchanged ones.
        """
        measure = "right" if "right" in self.estimates[WHOLE] else "unchanged"
        for name, way in self.estimates.items():
            share, tokens = way[measure], way["tokens"].estimate
            color, mark, side, end = "#0072b2", "o", "bottom", share.high
            if OTHERS.fullmatch(name):  # below: a filter and its top k have about equal tokens
                color, mark, side, end = "#595959", "s", "top", share.low
            axes.vlines(tokens, 100 * share.low, 100 * share.high, color=color, alpha=0.5)
            axes.plot(tokens, 100 * share.estimate, mark, color=color)
            label = name.replace("$", r"\$")
            axes.text(tokens, 100 * end, label, va=side, color=color, fontsize=8.5)
        axes.set(xlabel="tokens of context", ylabel=f"{measure} answers, %")
        axes.margins(0.25, 0.15)
        axes.set_xlim(left=0)

    _repr_pretty_ = shown

    def __str__(self) -> str:
        """Write the ways as a table, a line each, and their differences to the whole context."""
        known = {key: Scale(key, 0.01, 0) for key in SHOWN if key in self.estimates[WHOLE]}
        rows = []
        for name, way in self.estimates.items():
            shares = (scale.written(way) for scale in known.values())
            snippets, tokens = way["snippets"].estimate, way["tokens"].estimate
            rows.append([name, f"{snippets:.1f}", f"{tokens:.0f}", *shares])
        lines = aligned(["", "snippets", "tokens", *(f"{key}, %" for key in known)], rows)
        lines += ["", f"{self.n_questions} questions, compared by {shortened(self.same, 50)}."]
        measure = "right" if "right" in known else "unchanged"
        for name in [*self.estimates][1:]:
            gap, needed = self.compare(name, WHOLE, measure)
            more = known[measure].written({measure: gap}, "+")
            if gap.low == gap.high == 0:
                more = f"no difference in {self.n_questions} questions"
            elif gap.low <= 0 <= gap.high and not math.isnan(needed):
                more += f"; {needed:,.0f} questions would tell"
            lines.append(filled(f"{name} − {WHOLE}, {measure}: {more}."))
        lines += [filled(f"{name}: {v or UNTESTED}") for name, v in self.verdicts.items()]
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
    check_type(Mapping, "filters by name, a dict", filters=filters)
    asked = Asked(queries, answer, **options)
    for name, filter in filters.items():
        check_type(RetrievalFilter, FILTER, **{f"filters[{name!r}]": filter})
        if OTHERS.fullmatch(name):
            raise ValueError(f"filters has the name {name!r}; give another, as a filter's own")
        if (chain := filter.calibration.details.get("chain", asked.name)) != asked.name:
            text = f"filters[{name!r}] is calibrated on the chain {chain!r}, and asked is "
            warnings.warn(f"{text}{asked.name!r}; give one chain one name", stacklevel=2)
    # A filter may know a question by its id or, if it had none, by its text.
    ids = [*(query.id for query in asked.queries), *(query.query for query in asked.queries)]
    verified = [filter.calibration.held_out(ids) for filter in filters.values()]
    ways = _contexts(filters, asked.queries)
    contexts = [*zip(*ways.values(), strict=True)]  # of each question

    def measured(i: int, first: str) -> list[dict[str, float]]:
        question, references = asked.queries[i].query, asked.references[i]
        was_right = asked.agrees(asked.will_do, question, first, references)
        own = [(tuple((s.id, s.text) for s in c), c) for c in contexts[i]]
        # Each context is asked about once.
        known = {key: _measures(asked, i, c, first, was_right) for key, c in dict(own).items()}
        return [known[snippets] for snippets, _ in own]

    rows, failed = asked.of_each(measured, contexts)
    measures, estimates = {}, {}
    for name, of_way in zip(ways, zip(*rows, strict=True), strict=True):
        measures[name] = {key: np.array([row[key] for row in of_way], float) for key in of_way[0]}
        estimates[name] = {key: _mean(key, values, level) for key, values in measures[name].items()}
    same = name_of("same", asked.same or same_text)
    right = (asked.name, asked.compared_by)
    by = {"unchanged": (asked.name, same), "right": right, "still right": right}
    verdicts = {
        name: _verdict(filter.calibration, measures[name], by, level)
        for name, filter in filters.items()
        if filter.calibration.subject == ANSWERS
    }
    if same != asked.compared_by:
        same = f"{same} (unchanged) and {asked.compared_by} (right)"
    sure = all(verified)
    return AnswerEvaluation(measures, estimates, verdicts, len(rows), same, level, sure, failed)


def _contexts(
    filters: Mapping[str, RetrievalFilter[Any]], queries: Sequence[JudgedQuery]
) -> dict[str, list[Sequence[Snippet]]]:
    """Return the snippets that each way leaves of each query, by its name."""
    ways: dict[str, list[Sequence[Snippet]]] = {WHOLE: [query.snippets for query in queries]}
    for name, filter in filters.items():
        ways[name] = [_kept(filter, query) for query in queries]
        k = round(float(np.mean([len(kept) for kept in ways[name]])))
        ways[f"top {k}"] = [query.snippets[:k] for query in queries]
    return ways


def _kept(filter: RetrievalFilter[Any], query: JudgedQuery) -> list[Snippet]:
    decided = filter(query.query, query.snippets, query.group)
    if isinstance(decided, FilteredSentences):
        return [replace(query.snippets[p.document], text=p.text) for p in decided.passages]
    return [query.snippets[i] for i in decided.kept]


def _measures(
    asked: Asked, i: int, context: Sequence[Snippet], first: str, was_right: bool
) -> dict[str, float]:
    """Return what a chain's answer from a context is worth, and what it takes."""
    question, start = asked.queries[i].query, time.perf_counter()
    text = asked(question, context)
    measures = {
        "snippets": len(context),
        "tokens": tokens_of(context),
        "seconds": time.perf_counter() - start,
        "unchanged": asked.agrees(asked.same or same_text, question, text, (first,)),
    }
    if references := asked.references[i]:
        measures["right"] = asked.agrees(asked.will_do, question, text, references)
        measures["still right"] = measures["right"] if was_right else math.nan
        measures["exact"] = asked.agrees(same_text, question, text, references)
        measures["f1"] = max(f1(text, reference) for reference in references)
    return measures


def _verdict(
    c: Calibration, measures: Mapping[str, Any], by: Mapping[str, tuple[str, str]], level: float
) -> Verdict | None:
    """Return the verdict on a guarantee about answers, of the chain and comparison of a measure.

    Two functions without a name may not be the same.
    """
    right = "right" if c.details.get("count_wrong") else "still right"
    name = right if c.details.get("right") else "unchanged"
    calibrated = (c.details["chain"], c.details["same"])
    if name not in measures or calibrated != by[name] or by[name][1] == "<lambda>":
        return None
    return verdict_on(c, Share.of_units(measures[name][~np.isnan(measures[name])], level))


def _mean(name: str, values: NDArray[np.float64], level: float) -> Interval:
    """Return the mean of a measure (n,) with its interval."""
    values = values[~np.isnan(values)]
    if name in SHARES:  # the bootstrap of a share of 1 has no spread, however few the questions
        return cluster_interval(values, np.ones(len(values)), level)
    return _gap(values, level).difference


def _gap(values: NDArray[np.float64], level: float) -> Gap:
    """Return the mean of values (n,) with its interval, and the questions that tell it from 0."""
    if not len(values):
        return Gap(Interval(math.nan, math.nan, math.nan), math.nan)
    drawn = resampled(values[:, np.newaxis]) / len(values)
    mean = Interval(float(values.mean()), *spans(drawn, level)[0])
    return Gap(mean, n_to_tell(drawn[:, 0], len(values), mean.estimate))
