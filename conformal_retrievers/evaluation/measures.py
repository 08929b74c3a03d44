"""What is counted of each query, and the measures that follow, with the query as the unit.

Every measure is a share Σ part_q / Σ whole_q over queries q. With N_q the relevant retrieved
snippets of a query, C_q those of them that are kept, M_q the relevant ones that the retriever
missed, S_q all its snippets and K_q the kept ones:

    query-recall  Σ C/N / Σ 1         all   Σ 1{C = N} / Σ 1     recall@K   Σ N/(N+M) / Σ 1
    snippet       Σ C / Σ N           any   Σ 1{C > 0} / Σ 1     removal    Σ (S − K) / Σ S
    m1            Σ 1{K > 0} / Σ 1    m2    Σ K/S / Σ 1          precision  Σ C / Σ K

over the queries of which the denominator is above 0. End to end, M_q counts as dropped: N_q + M_q
stands for N_q. Where not one M_q is above 0, as in files that were judged from what was retrieved,
nobody knows what was missed, and recall@K and what counts end to end are nan rather than flattered.
The query is the unit of every interval: Wilson's where a query counts yes or no,
`conformal.cluster_interval` else.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.theory.intervals import (
    Interval,
    cluster_interval,
    effective_n,
    wilson_interval,
)

GUARANTEES: tuple[Guarantee, ...] = ("query-recall", "snippet", "all", "any")
END_TO_END = "end-to-end "
MOSTLY = 0.5  # share of snippets without a score from which on nothing tests the promise

# --- counts ---------------------------------------------------------------------------------------


class Row(NamedTuple):
    """What is kept of one query: numbers, and its group."""

    retrieved: int
    relevant: int
    missed: int
    kept: int
    relevant_kept: int
    passed: int
    unscorable: int
    tokens: float  # nan where there are no texts
    tokens_kept: float
    group: str | None


Column = NDArray[np.float64]


class Counts(NamedTuple):
    """The rows of K queries as columns (K,) of the same names."""

    retrieved: Column
    relevant: Column
    missed: Column
    kept: Column
    relevant_kept: Column
    passed: Column
    unscorable: Column
    tokens: Column
    tokens_kept: Column
    group: NDArray[np.object_]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Counts:
        """Return the rows as columns; raises ValueError where there is none."""
        numbers, groups = array("d"), []
        for row in rows:
            numbers.extend(row[:-1])
            groups.append(row.group)
        if not groups:
            raise ValueError("there is no judged query; give those to measure on")
        table = np.frombuffer(numbers, dtype=np.float64).reshape(len(groups), -1)
        columns = {name: table[:, i] for i, name in enumerate(cls._fields[:-1])}
        return cls(**columns, group=np.array(groups, dtype=object))

    @property
    def by_group(self) -> dict[str | None, Counts]:
        """The rows of each group, those without a group last."""
        places: dict[str | None, list[int]] = {}
        for i, name in enumerate(self.group):
            places.setdefault(name, []).append(i)
        return {
            name: Counts._make(column[places[name]] for column in self)
            for name in sorted(places, key=lambda name: (name is None, name or ""))
        }

    @property
    def coverage_std(self) -> float:
        """The standard deviation across queries of the share of their relevant snippets kept."""
        some = self.relevant > 0
        if np.count_nonzero(some) < 2:
            return math.nan
        return float(np.std(self.relevant_kept[some] / self.relevant[some]))


# --- shares ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """A measured share in [0, 1]: its interval over queries, and how much it rests on.

    `n` is the number of units that it is a share of (queries, or snippets), `effective_n` how many
    independent ones, each a yes or a no, tell as much: fewer than n where snippets of a query share
    its fate, more where the unit is a query and its share varies less than a yes or no. `estimate`
    is nan, and the interval [0, 1], where there are none.
    """

    estimate: float
    low: float
    high: float
    n: float
    effective_n: float

    @property
    def design_effect(self) -> float:
        """How many times more units it takes than of independent ones: n / effective n."""
        return self.n / self.effective_n if self.effective_n else math.nan

    @property
    def interval(self) -> Interval:
        """The estimate with the ends of its interval."""
        return Interval(self.estimate, self.low, self.high)

    def __str__(self) -> str:
        return str(self.interval)


def ratios(c: Counts, *, misses_known: bool) -> dict[str, tuple[Column, Column]]:
    """Return for each measure its parts and wholes, (K,) each: the measure is Σ parts / Σ wholes.

    Unless `misses_known`, there is no query that recall@K and the measures end to end are about.
    """
    known = (c.relevant + c.missed) * misses_known

    def pooled(part: NDArray[Any], whole: NDArray[Any]) -> tuple[Column, Column]:
        some = whole > 0
        return some * part, some * whole

    def mean(value: NDArray[Any], over: Column) -> tuple[Column, Column]:
        return pooled(value, over > 0)

    def coverages(of: Column) -> dict[str, tuple[Column, Column]]:
        return {
            "query-recall": mean(_quotient(c.relevant_kept, of), of),
            "snippet": pooled(c.relevant_kept, of),
            "all": mean(c.relevant_kept == of, of),
            "any": mean(c.relevant_kept > 0, of),
        }

    measures = {
        **coverages(c.relevant),
        **{END_TO_END + name: ratio for name, ratio in coverages(known).items()},
        "recall@K": mean(_quotient(c.relevant, known), known),
        "removal": pooled(c.retrieved - c.kept, c.retrieved),
        "precision": pooled(c.relevant_kept, c.kept),
        "m1": mean(c.passed > 0, np.ones_like(c.retrieved)),
        "m2": mean(_quotient(c.passed, c.retrieved), c.retrieved),
        "unscorable": pooled(c.unscorable, c.retrieved),
    }
    if not np.isnan(c.tokens).any():
        measures["tokens saved"] = pooled(c.tokens - c.tokens_kept, c.tokens)
    return measures


YES_OR_NO = {"all", "any", END_TO_END + "all", END_TO_END + "any", "m1"}


def shares(c: Counts, level: float, *, misses_known: bool) -> dict[str, Share]:
    """Return each measure by name, with its interval at `level`."""
    measures = ratios(c, misses_known=misses_known)
    return {name: _share(name, *ratio, level) for name, ratio in measures.items()}


def _share(name: str, parts: Column, wholes: Column, level: float) -> Share:
    total = float(wholes.sum())
    if total == 0:
        return Share(math.nan, 0.0, 1.0, 0.0, 0.0)
    if name in YES_OR_NO:
        return Share(*wilson_interval(float(parts.sum()) / total, total, level), total, total)
    n = effective_n(parts, wholes)
    return Share(*cluster_interval(parts, wholes, level), total, n)


def _quotient(a: Column, b: Column) -> Column:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)
