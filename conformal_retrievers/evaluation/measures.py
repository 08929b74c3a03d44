"""The measures of a filter, each a share with its interval, with the query as the unit.

Every measure is a share Σ part_q / Σ whole_q over queries q. With N_q the relevant retrieved
snippets of a query, C_q those of them that are kept, M_q the relevant ones that the retriever
missed, S_q all its snippets and K_q the kept ones:

    query-recall  Σ C/N / Σ 1         all   Σ 1{C = N} / Σ 1     recall@K   Σ N/(N+M) / Σ 1
    snippet       Σ C / Σ N           any   Σ 1{C > 0} / Σ 1     removal    Σ (S − K) / Σ S
    m1            Σ 1{K > 0} / Σ 1    m2    Σ K/S / Σ 1          precision  Σ C / Σ K

over the queries whose denominator is above 0. End to end, missed snippets count as dropped: N + M
stands for N. If no query has a missed snippet, as in files that were judged from what was
retrieved, recall@K and the end-to-end measures are unknown: NaN, not 100 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.evaluation.columns import Column, QueryCounts
from conformal_retrievers.theory.intervals import (
    Interval,
    cluster_interval,
    effective_n,
    wilson_interval,
)

GUARANTEES: tuple[Guarantee, ...] = ("query-recall", "snippet", "all", "any")
END_TO_END = "end-to-end "
YES_OR_NO = {"all", "any", END_TO_END + "all", END_TO_END + "any", "m1"}
MOSTLY = 0.5  # share of unscorable snippets from which on coverage tests nothing


@dataclass(frozen=True)
class Share:
    """A measured share in [0, 1] with its interval; NaN in [0, 1] if there is nothing to measure.

    An `effective_n` below n means that snippets of a query are kept and dropped together; above n,
    that shares of a query vary less than a yes or a no.
    """

    estimate: float
    low: float
    high: float
    n: float  # units that it is a share of: queries, snippets or answers
    effective_n: float  # independent yes-or-no units that carry as much information

    @classmethod
    def of_units(cls, yes: ArrayLike, level: float = 0.95) -> Share:
        """Return the share of independent units (n,) that are true, with Wilson's interval."""
        values = np.asarray(yes, dtype=np.float64)
        n = float(len(values))
        if not n:
            return cls(math.nan, 0.0, 1.0, 0.0, 0.0)
        return cls(*wilson_interval(float(values.mean()), n, level), n, n)

    @classmethod
    def of_clusters(cls, parts: ArrayLike, wholes: ArrayLike, level: float = 0.95) -> Share:
        """Return Σ parts / Σ wholes of queries or answers (K,), with a cluster interval."""
        total = float(np.sum(wholes))
        n = effective_n(parts, wholes) if total else 0.0
        return cls(*cluster_interval(parts, wholes, level), total, n)

    @property
    def interval(self) -> Interval:
        """The estimate with the ends of its interval."""
        return Interval(self.estimate, self.low, self.high)

    def __str__(self) -> str:
        return str(self.interval)


def ratios(c: QueryCounts, *, misses_known: bool) -> dict[str, tuple[Column, Column]]:
    """Return the parts and wholes of each measure, (K,) each: it is Σ parts / Σ wholes.

    Unless `misses_known`, the wholes of recall@K and of the end-to-end measures are 0.
    """
    known = (c.relevant + c.missed) * misses_known
    one = np.ones_like(c.retrieved)

    def coverages(of: Column) -> dict[str, tuple[Column, Column]]:
        some = of > 0
        return {
            "query-recall": (_quotient(c.relevant_kept, of), some * one),
            "snippet": (c.relevant_kept * some, of),
            "all": ((c.relevant_kept == of) * some * one, some * one),
            "any": ((c.relevant_kept > 0) * some * one, some * one),
        }

    measures = {
        **coverages(c.relevant),
        **{END_TO_END + name: ratio for name, ratio in coverages(known).items()},
        "recall@K": (_quotient(c.relevant, known), (known > 0) * one),
        "removal": (c.retrieved - c.kept, c.retrieved),
        "precision": (c.relevant_kept, c.kept),
        "m1": ((c.kept > 0) * one, one),
        "m2": (_quotient(c.kept, c.retrieved), (c.retrieved > 0) * one),
        "unscorable": (c.unscorable, c.retrieved),
    }
    if not np.isnan(c.tokens).any():
        measures["tokens saved"] = (c.tokens - c.tokens_kept, c.tokens)
    return measures


def guaranteed(calibration: Calibration) -> str:
    """Return the name of the measure that a guarantee is about."""
    return (END_TO_END if calibration.count_missed else "") + calibration.guarantee


def shares(c: QueryCounts, level: float, *, misses_known: bool) -> dict[str, Share]:
    """Return each measure by name, with its interval at `level`."""
    return {
        name: Share.of_units(parts[wholes > 0], level)
        if name in YES_OR_NO
        else Share.of_clusters(parts, wholes, level)
        for name, (parts, wholes) in ratios(c, misses_known=misses_known).items()
    }


def _quotient(a: Column, b: Column) -> NDArray[np.float64]:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)
