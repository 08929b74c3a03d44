"""A measured share with its interval, over independent units or over clusters of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from conformal_retrievers.theory import intervals
from conformal_retrievers.theory.tolerance import binomial_interval


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
        return cls(*intervals.wilson_interval(float(values.mean()), n, level), n, n)

    @classmethod
    def of_counts(cls, yes: ArrayLike, level: float = 0.95) -> Share:
        """Return the share of independent units (n,) that are true, with the exact interval."""
        values = np.asarray(yes, dtype=bool)
        n = len(values)
        return cls(*binomial_interval(int(values.sum()), n, level), n, n)

    @classmethod
    def of_clusters(cls, parts: ArrayLike, wholes: ArrayLike, level: float = 0.95) -> Share:
        """Return Σ parts / Σ wholes of queries or answers (K,), with a cluster interval."""
        interval, n = intervals.clustered(parts, wholes, level)
        return cls(*interval, float(np.sum(wholes)), n)

    @property
    def interval(self) -> intervals.Interval:
        """The estimate with the ends of its interval."""
        return intervals.Interval(self.estimate, self.low, self.high)

    def __str__(self) -> str:
        return str(self.interval)
