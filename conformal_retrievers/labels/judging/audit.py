"""How good the given marks were, from those of a person who saw a sample of the unmarked snippets.

A snippet in the sample stands for weight = N/n snippets, of which n were drawn from N, so sums of
weights estimate numbers of snippets without bias (Horvitz and Thompson 1952, JASA 47). A
calibration guarantees coverage of the snippets that are *labelled* relevant.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from conformal_retrievers.theory.intervals import Interval, cluster_interval
from conformal_retrievers.theory.tolerance import binomial_interval


@dataclass(frozen=True, eq=False)
class AuditReport:
    """Arrays (n,) of audited snippets, and rates of all labelled ones by `cluster_interval`."""

    labelled: NDArray[np.bool_]  # by the labeler: relevant
    audited: NDArray[np.bool_]  # by the person: relevant
    queries: NDArray[np.int64]  # places of the snippets' queries
    weights: NDArray[np.float64]  # numbers of snippets that the audited ones stand for

    @property
    def agreement(self) -> Interval:
        """The share of snippets on which labeler and person agree."""
        return self._rate(self.labelled == self.audited, np.ones(len(self.labelled), bool))

    @property
    def precision(self) -> Interval:
        """The share of the snippets labelled relevant that are relevant."""
        return self._rate(self.audited, self.labelled)

    @property
    def miss_rate(self) -> Interval:
        """The share μ of the relevant snippets that are labelled irrelevant.

        The interval has the ends of `cluster_interval`, or of Clopper and Pearson's for the audited
        irrelevant labels where these are further away, because a few of them may have no miss by
        chance.
        """
        return self._missed(~self.labelled, self.weights)

    @property
    def remaining_miss_rate(self) -> Interval:
        """The share of the relevant snippets that stay labelled irrelevant: they were not audited.

        The audited ones get the person's label. The interval is made as that of `miss_rate`.
        """
        part = ~self.labelled & (self.weights > 1)
        return self._missed(part, self.weights - 1) if part.any() else Interval(0.0, 0.0, 0.0)

    def _missed(self, part: NDArray[np.bool_], weights: NDArray[np.float64]) -> Interval:
        """Return the share of the relevant snippets in a part of the irrelevant labels."""
        rest = weights * part
        missed, relevant = rest * self.audited, self.weights * self.audited
        known = (relevant - missed).sum()
        n_missed, n_relevant = (np.bincount(self.queries, w) for w in (missed, relevant))
        ends = cluster_interval(n_missed, n_relevant)
        misses = binomial_interval(int((part & self.audited).sum()), int(part.sum()))
        low, high = (end * rest.sum() / (end * rest.sum() + known or 1) for end in misses[1:])
        return Interval(ends.estimate, min(ends.low, low), max(ends.high, high))

    @property
    def labels(self) -> dict[str, JsonValue]:
        """The audit for `calibrate(labels=)`, with rates as [estimate, low, high]."""
        audit: dict[str, JsonValue] = {"audited": len(self.labelled)}
        audit["of"] = round(self.weights.sum())
        for name in ("agreement", "precision", "miss_rate", "remaining_miss_rate"):
            audit[name] = [None if math.isnan(end) else end for end in getattr(self, name)]
        return {"audit": audit}

    def _rate(self, part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> Interval:
        parts = np.bincount(self.queries, self.weights * (part & whole))
        return cluster_interval(parts, np.bincount(self.queries, self.weights * whole))
