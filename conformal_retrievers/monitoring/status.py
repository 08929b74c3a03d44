"""What a monitor reports: the counts of a stream of queries, and the evidence of its alarms."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import ConfigDict, Field

from conformal_retrievers.theory.intervals import Interval, percent
from conformal_retrievers.theory.tolerance import binomial_interval

CHECKED = ConfigDict(allow_inf_nan=False, extra="forbid", strict=True)  # when a state is loaded
Count = Annotated[int, Field(ge=0, lt=2**53)]
Total = Annotated[float, Field(ge=0, lt=2**53)]
GRID = 2.0**26  # shares are multiples of 1/GRID: sums of 2**27 of them are exact in any order


@dataclass(frozen=True)
class Counts:
    """What a filter did to the queries of a stream.

    Counts of several processes are added, in any order: `sum(counts, Counts())` equals the counts
    of one process that filters all queries, up to 2**27 of them.
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
    gated: Count = 0  # queries that a gate decided about
    silent: Count = 0

    def __post_init__(self) -> None:
        for name in ("share_kept", "lost"):
            object.__setattr__(self, name, round(getattr(self, name) * GRID) / GRID)

    def __repr__(self) -> str:
        """Write the counts that are not 0, and means in place of sums over queries."""
        means = {"m1": self.m1, "m2": self.m2, "loss": self.loss}
        written = [
            *(f"{n}={v}" for n, v in asdict(self).items() if v and n not in ("share_kept", "lost")),
            *(f"{n}={mean:.3f}" for n, mean in means.items() if not math.isnan(mean)),
        ]
        return f"Counts({', '.join(written)})"

    @classmethod
    def of_query(cls, snippets: int, kept: int, unscorable: int) -> Counts:
        """Return the counts of one query."""
        return cls(1, snippets, kept, unscorable, int(kept > 0), kept / max(snippets, 1))

    @classmethod
    def of_gate(cls, silent: bool) -> Counts:
        """Return what a gate's decision about one query adds to its counts."""
        return cls(gated=1, silent=int(silent))

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

    @property
    def silence(self) -> float:
        """The share of the queries that a gate was silent on, nan if none decided."""
        return self.silent / self.gated if self.gated else math.nan

    @property
    def silence_in_words(self) -> str:
        """How many queries a gate was silent on."""
        return f"silent on {self.silent} of {self.gated} queries"

    def __add__(self, other: Counts) -> Counts:
        mine, theirs = asdict(self), asdict(other)
        return Counts(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True)
class MonitorStatus:
    """The state of a monitor; it is true once an alarm was raised, by its gate too.

    The evidence is the largest wealth so far of the bets against exchangeable queries and against a
    loss that chance explains: an e-value, so 1 / evidence is a p-value at any time.
    """

    level: float
    counts: Counts
    drift_evidence: float
    harm_evidence: float
    recent: tuple[int, int] | None = None  # of a gate: how many of the newest queries are silent
    gate: MonitorStatus | None = None

    @property
    def drift(self) -> bool:
        """Whether new queries differ from the calibration's: a false alarm with P ≤ level.

        For a gate, whether they differ from the queries that the monitor saw before.
        """
        return self.drift_evidence >= 1 / self.level

    @property
    def harm(self) -> bool:
        """Whether more is lost than guaranteed: while exchangeable, false with P ≤ level."""
        return self.harm_evidence >= 2 / self.level

    @property
    def silence(self) -> Interval:
        """The share of the newest queries that a gate is silent on, with its 95 % interval."""
        return binomial_interval(*(self.recent or (0, 0)))

    def __bool__(self) -> bool:
        """Whether there was an alarm."""
        return self.drift or self.harm or bool(self.gate)

    def __str__(self) -> str:
        c = self.counts
        if self.recent is None:
            silence = f"{c.silence_in_words}, " if c.gated else ""
            seen = (
                f"{c.queries} queries, {silence}m1 {percent(c.m1)}, m2 {percent(c.m2)}, "
                f"{c.unscorable} snippets without a score. Drift"
            )
            harm, judged = "Harm", f"{c.judged} judged queries lose {percent(c.loss)}"
            judged = judged if c.judged else "no judged queries"
        else:
            lately = f"{self.silence} of the last {self.recent[1]}"
            seen = f"{c.silence_in_words.capitalize()}, {lately}. Change"
            harm = "False silence"
            judged = f"silent on {percent(c.loss)} of {c.judged} judged answerable queries"
            judged = judged if c.judged else "no judged answerable queries"
        own = (
            f"{seen}: {'alarm' if self.drift else 'no alarm'} (evidence {self.drift_evidence:.3g}, "
            f"alarm at {1 / self.level:.3g}). {harm}: {'alarm' if self.harm else 'no alarm'} "
            f"({judged}, evidence {self.harm_evidence:.3g}, alarm at {2 / self.level:.3g})."
        )
        return own if self.gate is None else f"{own}\nGate: {self.gate}"
