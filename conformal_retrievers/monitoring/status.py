"""What a monitor reports: the counts of a stream of queries, and the evidence of its alarms."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

from conformal_retrievers.data.text import shown
from conformal_retrievers.theory.intervals import percent

CHECKED = ConfigDict(allow_inf_nan=False, extra="forbid", strict=True)  # when a state is loaded
Count = Annotated[int, Field(ge=0, lt=2**53)]
Total = Annotated[float, Field(ge=0, lt=2**53)]
GRID = 2.0**26  # shares are multiples of 1/GRID: sums of 2**27 of them are exact in any order


@dataclass(frozen=True)
class Counts:
    """What a filter did to the queries of a stream.

    Counts of several processes are added, in any order: `sum(counts, Counts())` equals the counts
    of one process that filters all queries, up to 2**27 of them.

    >>> sum([Counts(queries=1), Counts(queries=2)], Counts()).queries
    3
    >>> Counts() + {"a checksum": Counts()}
    Traceback (most recent call last):
    TypeError: unsupported operand type(s) for +: 'Counts' and 'dict'
    """

    __pydantic_config__ = CHECKED

    queries: Count = 0
    snippets: Count = 0
    kept: Count = 0
    unscorable: Count = 0
    with_kept: Count = 0  # queries with a kept snippet
    share_kept: Total = 0.0  # the sum over queries
    judged: Count = 0
    lost: Total = 0.0  # the sum over judged queries
    silent: Count = 0  # queries of which all is dropped

    def __post_init__(self) -> None:
        for name in ("share_kept", "lost"):
            object.__setattr__(self, name, round(getattr(self, name) * GRID) / GRID)

    @classmethod
    def of_query(cls, snippets: int, kept: int, unscorable: int, silent: bool = False) -> Counts:
        """Return the counts of one query."""
        shares = (int(kept > 0), kept / max(snippets, 1))
        return cls(1, snippets, kept, unscorable, *shares, silent=int(silent))

    @property
    def m1(self) -> float:
        """The share of queries with a kept snippet, nan without queries."""
        return self.with_kept / self.queries if self.queries else math.nan

    @property
    def m2(self) -> float:
        """The mean share of a query's snippets that is kept, nan without queries."""
        return self.share_kept / self.queries if self.queries else math.nan

    @property
    def loss(self) -> float:
        """The mean loss of the judged queries, nan without any; at most alpha is guaranteed."""
        return self.lost / self.judged if self.judged else math.nan

    def __add__(self, other: Counts) -> Counts:
        if not isinstance(other, Counts):  # such as a handler's counts, which are by calibration
            return NotImplemented
        mine, theirs = asdict(self), asdict(other)
        return Counts(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True)
class MonitorStatus:
    """The state of a monitor; it is true once an alarm was raised.

    The evidence is the largest wealth so far of the bets against exchangeable queries and against a
    loss that chance explains: an e-value, so 1 / evidence is a p-value at any time.
    """

    level: float
    counts: Counts
    drift_evidence: float
    harm_evidence: float

    @property
    def drift(self) -> bool:
        """Whether new queries differ from the calibration's: a false alarm with P ≤ level."""
        return self.drift_evidence >= 1 / self.level

    @property
    def harm(self) -> bool:
        """Whether more is lost than guaranteed: while exchangeable, false with P ≤ level."""
        return self.harm_evidence >= 2 / self.level

    def __bool__(self) -> bool:
        """Whether there was an alarm."""
        return self.drift or self.harm

    _repr_pretty_ = shown

    def __str__(self) -> str:
        c = self.counts
        silent = f", {c.silent} silenced" if c.silent else ""
        judged = f"{c.judged} judged queries lose {percent(c.loss)}"
        return (
            f"{c.queries} queries{silent}, m1 {percent(c.m1)}, m2 {percent(c.m2)}, "
            f"{c.unscorable} snippets without a score. "
            f"Drift: {'alarm' if self.drift else 'no alarm'} (evidence {self.drift_evidence:.3g}, "
            f"alarm at {1 / self.level:.3g}). Harm: {'alarm' if self.harm else 'no alarm'} "
            f"({judged if c.judged else 'no judged queries'}, evidence {self.harm_evidence:.3g}, "
            f"alarm at {2 / self.level:.3g})."
        )
