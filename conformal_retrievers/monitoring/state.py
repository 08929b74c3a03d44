"""The state of a monitor: what its file has, and whether some stream leads to it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from conformal_retrievers.monitoring.status import CHECKED, Counts, Total

RECENT = 200  # queries of which a gate's rate of silence is shown
STAKES = (0.05, 0.1, 0.2, 0.4, 0.8)  # λ as shares of the largest bet, 1/u

Capitals = Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(min_length=3, max_length=3)]
Recent = Annotated[list[bool], Field(max_length=RECENT)]
LogStakes = Annotated[list[float], Field(min_length=len(STAKES), max_length=len(STAKES))]


@dataclass
class State:
    """The state of a monitor, and the fields of its file."""

    __pydantic_config__ = CHECKED

    calibration: str  # the checksum
    level: Annotated[float, Field(gt=0, lt=1)]
    seed: int
    live: list[float] = field(default_factory=list)  # the lowest scores seen, in their order
    capitals: Capitals = field(default_factory=lambda: [1 / 3] * 3)
    log_drift: float = 0.0
    most_log_drift: Total = 0.0
    log_stakes: LogStakes = field(default_factory=lambda: [0.0] * len(STAKES))
    most_log_harm: Total = 0.0
    counts: Counts = field(default_factory=Counts)
    recent: Recent = field(default_factory=list)  # of a gate: whether it was silent on the newest
    gate: State | None = None

    @property
    def is_consistent(self) -> bool:
        """Whether some stream has these counts and this evidence."""
        c = self.counts
        return (
            max(c.kept, c.unscorable) <= c.snippets
            and (c.unscorable <= c.kept or c.silent > 0)
            and c.silent + c.undecided <= c.gated <= c.queries
            and sum(self.recent) <= c.silent
            and c.share_kept <= c.with_kept <= min(c.kept, c.queries)
            and len(self.live) <= c.queries
            and c.lost <= c.judged
            and self.log_drift <= self.most_log_drift
            and math.isclose(sum(self.capitals), 1)
            and (c.judged > 0 or self.most_log_harm == 0)
            and (self.gate is None or self.gate.is_consistent)
        )
