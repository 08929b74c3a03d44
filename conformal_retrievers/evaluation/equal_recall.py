"""What reaches the model at the same end-to-end recall: of top k, a fixed threshold, the filter.

A setting s (a k, or a threshold) passes the share R_q(s) of a query's relevant snippets, and S_q(s)
snippets in all. With R and S their means over queries, s* is chosen for the recall of the filter:

    R(s*) = R(filter),    snippets = S(s*)

Two neighbouring settings are mixed, such that (1 − λ) R(s) + λ R(s') = R(filter). That is
hindsight: s* is chosen on the very queries that are measured. Intervals and differences are of the
paired bootstrap over queries, which chooses s* anew in each resample.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.text import aligned, filled, shown
from conformal_retrievers.evaluation.baselines import FILTER, FUSION, TOP_K, Way, with_a_setting
from conformal_retrievers.evaluation.bootstrap import FEWEST, n_to_tell, resampled, spans
from conformal_retrievers.evaluation.measures import keeps, known_hits
from conformal_retrievers.evaluation.wording import say
from conformal_retrievers.theory.intervals import Interval

Array = NDArray[np.float64]
RESAMPLES = 1000
MOST = 10_000  # queries that are resampled: more take minutes, and show no more
MEASURES = ("recall", "snippets", "tokens")
EQUAL = 1e-12  # recalls that differ by less are equal: they are sums in another order
MANY = 100_000  # queries that a difference needs: from here on, the number is of no use


class Scale(NamedTuple):
    """How the numbers of a measure are written, the same in all rows."""

    measure: str
    unit: float
    digits: int

    @classmethod
    def of(cls, measure: str, estimates: Iterable[Interval]) -> "Scale":
        """Return the scale that shows three digits of the largest estimate, or percent."""
        if measure == "recall":
            return cls(measure, 0.01, 1)
        largest = max((of_row.estimate for of_row in estimates), default=0)
        unit = 1000 if largest >= 1000 else 1
        return cls(measure, unit, 2 if largest < 10 * unit else 1 if largest < 100 * unit else 0)

    def parts(self, estimates: Mapping[str, Interval], sign: str = "") -> tuple[str, str]:
        """Write a number and its interval, with its sign if `sign` is "+"."""
        estimate, low, high = (
            f"{value / self.unit:{sign},.{self.digits}f}" for value in estimates[self.measure]
        )
        return estimate, "[–]" if "nan" in low else f"[{low}, {high}]"

    def shown(self, estimates: Mapping[str, Interval]) -> float:
        """Return a number as precisely as it is written."""
        return self.unit * round(estimates[self.measure].estimate / self.unit, self.digits)

    def written(self, estimates: Mapping[str, Interval], sign: str = "") -> str:
        """Write a number with its interval."""
        return " ".join(self.parts(estimates, sign))


@dataclass(frozen=True)
class Row:
    """What a way to choose snippets passes on per query, and how much more than the filter.

    `measured` and `more`, which is the difference on the same queries, have "recall", "snippets",
    and "tokens" if they were counted.
    """

    rule: str  # "top k", "threshold" or "the filter"
    source: str  # what the rule goes by, such as the name of a retriever
    measured: Mapping[str, Interval]
    more: Mapping[str, Interval]
    # The k or threshold that was chosen in hindsight; None for none, NaN for one in some splits.
    setting: float | None
    equal: bool  # whether its recall is that of the filter
    needed: float  # queries that show such a difference in snippets with probability 0.8, or NaN

    @property
    def name(self) -> str:
        """The rule with its source, and the k of a top k, or "all" where no k has the recall."""
        if self.rule != TOP_K:
            return self.rule if self.rule == FILTER else f"{self.rule} on {self.source}"
        top = "all" if self.setting is None else f"top {self.setting:.1f}".replace("nan", "k")
        return f"{top} of {self.source}"


@dataclass(frozen=True)
class EqualRecall:
    """Ways to choose snippets at the recall of a filter, and the filter."""

    rows: tuple[Row, ...]
    n_queries: int  # that are measured here
    n_relevant: int  # of which something relevant is known: recall is over these
    drawn_from: int  # as many, or how many more they were drawn from at random
    end_to_end: bool  # whether missed snippets count: they do if they are known of some query
    ranked: bool  # whether the retrievers' ranks are known; else top k is that of the list
    token_unit: str  # what tokens are here
    level: float
    items: str = "snippets"  # or sentences, of which a top k of documents passes all

    @property
    def filter(self) -> Row:
        """The row of the filter."""
        return next(row for row in self.rows if row.rule == FILTER)

    @property
    def scales(self) -> list[Scale]:
        """How the numbers of each measure are written."""
        return [Scale.of(m, [row.measured[m] for row in self.rows]) for m in self.filter.measured]

    @property
    def notes(self) -> list[str]:
        """What a reader of the table must know, in sentences."""
        holds = {
            "hindsight": True,
            "drawn": self.n_queries < self.drawn_from,
            "missed unknown": not self.end_to_end,
            "recall of some": self.n_relevant < self.n_queries,
            "known to all": any(row.source == FUSION for row in self.rows),
            "no hits": not self.ranked,
            "whole documents": self.items == "sentences",
            "lower recall": not all(row.equal for row in self.rows),
        }
        n, drawn_from, level = self.n_queries, self.drawn_from, 100 * self.level
        facts = {"n": n, "drawn_from": drawn_from, "level": level, "items": self.items}
        facts |= {"n_relevant": self.n_relevant}
        return [say(name, **facts) for name, needed in holds.items() if needed]

    @property
    def recall_is(self) -> str:
        """Which recall is compared."""
        return "end-to-end recall" if self.end_to_end else "recall of what was retrieved"

    @property
    def best_top_k(self) -> Row | None:
        """The top k that passes the fewest snippets at the recall of the filter; None for none."""
        tops = (row for row in self.rows if row.equal and row.rule == TOP_K)
        return min(tops, key=lambda row: row.measured["snippets"].estimate, default=None)

    @property
    def comparison(self) -> str:
        """The filter and the best top k in words, and whether they differ."""
        best, ours = self.best_top_k, self.filter.measured
        at, (_, *scales) = self.at_recall, self.scales
        passed = [scale.parts(ours)[0] for scale in scales]
        units = [self.head(scale) for scale in scales]
        if best is None:
            every = " and ".join(map(" ".join, zip(passed, units, strict=True)))
            return say("no top k", at=at, passed=every)
        leads = [say("in unit", unit=u, passed=p) for u, p in zip(units, passed, strict=True)]
        leads[0] = say("best top k", at=at, passed=f"{passed[0]} {units[0]}", of=best.source)
        return " ".join(
            say(
                "difference",
                lead=lead,
                passed=scale.parts(best.measured)[0],
                more=scale.written(self.more(best), "+"),
                tested=self._tested(best, scale.measure),
            )
            for lead, scale in zip(leads, scales, strict=True)
        )

    def more(self, row: Row) -> dict[str, Interval]:
        """Return how much more a row passes than the filter, as the printed numbers differ."""
        return {
            s.measure: row.more[s.measure]._replace(
                estimate=s.shown(row.measured) - s.shown(self.filter.measured)
            )
            for s in self.scales[1:]
        }

    @property
    def at_recall(self) -> str:
        """The recall of the filter, as a sentence begins."""
        recall = self.scales[0].parts(self.filter.measured)[0]
        return say("at recall", recall=recall, recall_is=self.recall_is)

    def _tested(self, row: Row, measure: str) -> str:
        """Return whether a row differs from the filter in a measure."""
        _, low, high = row.more[measure]
        if math.isnan(low):
            return say("too few to test", n=self.n_relevant, fewest=FEWEST)
        if low > EQUAL or high < -EQUAL:
            return "is significant" + (": the filter passes more" if high < -EQUAL else "")
        takes = measure == "snippets" and row.needed < MANY
        return f"is not significant{'. ' + say('takes', n=row.needed) if takes else ''}"

    _repr_pretty_ = shown

    def __str__(self) -> str:
        """Write the table in lines of at most 80 characters."""
        scales = self.scales
        lines = aligned(
            ["", *map(self.head, scales)],
            [[marked(row), *(s.written(row.measured) for s in scales)] for row in self.rows],
        )
        title = f"What reaches the model, per query, at the same {self.recall_is}:"
        notes = filled(self.comparison), "", *map(filled, self.notes)
        return "\n".join([title, "", *lines, "", *notes])

    def head(self, scale: Scale) -> str:
        """Return the head of a measure's column."""
        if scale.measure == "recall":
            return "recall, %"
        unit = self.token_unit if scale.measure == "tokens" else self.items
        return f"1,000 {unit}" if scale.unit == 1000 else unit


def marked(row: Row) -> str:
    """Return the name of a row, with * if it cannot have the recall of the filter."""
    return row.name if row.equal else f"{row.name} *"


def equal_recall(
    calibration: Calibration, queries: ScoredQueries, level: float = 0.95
) -> EqualRecall | None:
    """Compare a filter with other ways to choose at its recall; None if nothing is relevant.

    The queries are others than those of the calibration. Of more than 10,000, as many are drawn.
    """
    drawn_from = len(queries)
    if drawn_from > MOST:
        drawn = np.random.default_rng(0).choice(drawn_from, MOST, replace=False)
        queries = queries.select(np.sort(drawn))
    known, end_to_end = known_relevant(queries)
    if not known.any():
        return None
    the_filter = Way.fixed(FILTER, keeps(queries, calibration))
    ours, _, _ = at_recall(the_filter, queries, known, None)
    n_relevant = int(np.count_nonzero(known))
    some = ~np.isnan(ours[:, 0])  # resamples with something relevant
    rows = []
    for way in (*with_a_setting(queries), the_filter):
        theirs, setting, equal = at_recall(way, queries, known, ours[:, 0])
        more = (theirs - ours)[some]
        rows.append(
            Row(
                rule=way.rule,
                source=way.source,
                measured=estimates(theirs[some], level, n_relevant),
                more=estimates(more, level, n_relevant),
                setting=setting if equal else None,
                equal=equal or way.rule == FILTER,
                needed=n_to_tell(more[1:, 1], len(known), more[0, 1]),
            )
        )
    return EqualRecall(
        rows=tuple(rows),
        n_queries=len(known),
        n_relevant=n_relevant,
        drawn_from=drawn_from,
        end_to_end=end_to_end,
        ranked=bool(known_hits(queries)),
        token_unit=queries.token_unit,
        level=level,
        items=calibration.subject.name,
    )


def known_relevant(queries: ScoredQueries) -> tuple[Array, bool]:
    """Return the relevant snippets of each query, (n,), and whether missed ones are among them.

    If missed ones are known of some queries, recall is over these, and the others have 0.
    """
    retrieved = queries.number_in(queries.relevant).astype(np.float64)
    stated = ~np.isnan(queries.missed)
    if stated.any():
        return np.where(stated, retrieved + np.nan_to_num(queries.missed), 0), True
    return retrieved, False


def at_recall(
    way: Way, queries: ScoredQueries, known: Array, target: Array | None
) -> tuple[Array, float, bool]:
    """Return the measures (1 + resamples, measures), the setting, and whether recall is equal.

    The first row is of the queries themselves. The target (1 + resamples,) is the recall to reach.
    """
    counts = (known > 0)[queries.query_of]
    values = [queries.relevant * counts / np.maximum(known, 1)[queries.query_of]]
    values.append(np.ones(len(queries.scores)))
    if queries.tokens is not None and not np.isnan(queries.tokens).any():
        values.append(queries.tokens)
    n = len(way.settings)
    passed = [_passed(queries, of_snippet, way.place, n) for of_snippet in values]
    table = np.concatenate([(known > 0)[:, None], np.ones((len(known), 1)), *passed], axis=1)
    # The same resamples for each way.
    sums = np.concatenate([table.sum(axis=0)[None], resampled(table, RESAMPLES)])
    n_known, n_all, shares, *costs = np.split(sums, [1, 2, *range(2 + n, sums.shape[1], n)], axis=1)
    with np.errstate(invalid="ignore"):  # 0 / 0 is nan: a resample without a relevant snippet
        recall, costs = shares / n_known, [cost / n_all for cost in costs]
    if n == 1 or target is None:
        return np.concatenate([recall, *costs], axis=1), math.nan, False
    mix = _mixing(recall, target)
    settings = np.broadcast_to(way.settings, recall.shape)
    reached = bool(recall[0, -1] >= target[0] - EQUAL)
    return np.stack([mix(m) for m in (recall, *costs)], axis=1), float(mix(settings)[0]), reached


def _passed(queries: ScoredQueries, values: Array, place: NDArray[np.intp], n: int) -> Array:
    """Return the sums (queries, n) of the values (S,) that pass of each query at each setting."""
    inside = place < n
    cells = queries.query_of[inside] * n + place[inside]
    sums = np.bincount(cells, values[inside], len(queries.sizes) * n)
    return np.asarray(sums, dtype=np.float64).reshape(-1, n).cumsum(axis=1)


def _mixing(recall: Array, target: Array) -> Callable[[Array], Array]:
    """Return what mixes values (r, G) of two neighbouring settings, (r,).

    Of each resample it mixes so that recall (r, G) is the target (r,), or takes the last setting.
    """
    rows, last = np.arange(len(recall)), recall.shape[1] - 1
    upper = np.minimum((recall < target[:, None] - EQUAL).sum(axis=1), last)
    lower = np.maximum(upper - 1, 0)
    step = recall[rows, upper] - recall[rows, lower]
    needed = np.minimum(target - recall[rows, lower], step)
    all_of_it = (recall[rows, upper] < target - EQUAL).astype(np.float64)
    share = np.divide(needed, step, out=all_of_it, where=step > 0)
    return lambda values: (1 - share) * values[rows, lower] + share * values[rows, upper]


def estimates(drawn: Array, level: float, n: int = FEWEST) -> dict[str, Interval]:
    """Return each measure with its interval from `at_recall`, (1 + resamples, measures).

    The ends are NaN for a number n of queries below 10.
    """
    ends = spans(drawn[1:], level)
    return {
        name: Interval(float(estimate), *(interval if n >= FEWEST else (math.nan, math.nan)))
        for name, estimate, interval in zip(MEASURES, drawn[0], ends, strict=False)
    }
