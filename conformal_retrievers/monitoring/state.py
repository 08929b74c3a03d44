"""The state of a monitor: what its file has, and the bets."""

import bisect
import hashlib
import math
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from conformal_retrievers.monitoring.status import CHECKED, Counts, Total

STAKES = (0.05, 0.1, 0.2, 0.4, 0.8)  # λ as shares of the largest bet, 1/u
JUMPS = 0.01  # how often the bet on the ranks changes sides
DIRECTIONS = (-1.0, 0.0, 1.0)
Capitals = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=3, max_length=3)]
Stakes = Annotated[list[float], Field(min_length=len(STAKES), max_length=len(STAKES))]


@dataclass
class State:
    """The state of a monitor, and the fields of its file."""

    __pydantic_config__ = CHECKED

    calibration: str  # the checksum
    level: Annotated[float, Field(gt=0, lt=1)]
    seed: int
    live: list[float] = field(default_factory=list)  # the lowest scores seen, in their order
    judged: list[str] = field(default_factory=list)  # ids of judged queries
    capitals: Capitals = field(default_factory=lambda: [1 / 3] * 3)
    log_drift: float = 0.0
    most_log_drift: Total = 0.0
    log_stakes: Stakes = field(default_factory=lambda: [0.0] * len(STAKES))
    most_log_harm: Total = 0.0
    counts: Counts = field(default_factory=Counts)

    def bet_on_loss(self, lost: float, u: float) -> None:
        """Take the share that a judged query loses, and bet that the loss is above u."""
        logs = [
            log + math.log1p(stake / u * (lost - u))
            for log, stake in zip(self.log_stakes, STAKES, strict=True)
        ]
        self.log_stakes = logs
        most = max(logs)
        mixed = most + math.log(sum(math.exp(log - most) for log in logs) / len(logs))
        self.most_log_harm = max(self.most_log_harm, mixed)

    def bet_on_rank(self, lowest: float, ordered: list[float]) -> None:
        """Take a lowest score, bet against its rank among `ordered`, and insert it there."""
        self.live.append(lowest)
        n = len(ordered)
        below = bisect.bisect_left(ordered, lowest)
        equal = bisect.bisect_right(ordered, lowest) - below
        ordered.insert(below, lowest)
        u = _uniform(self.seed, len(self.live))
        p = (n - below - equal + u * (1 + equal)) / (n + 1)
        total = sum(self.capitals)
        capitals = [
            ((1 - JUMPS) * capital + JUMPS * total / 3) * (1 + direction * (p - 0.5))
            for capital, direction in zip(self.capitals, DIRECTIONS, strict=True)
        ]
        grown = sum(capitals)
        self.capitals = [capital / grown for capital in capitals]
        self.log_drift += math.log(grown)
        self.most_log_drift = max(self.most_log_drift, self.log_drift)


def _uniform(seed: int, t: int) -> float:
    """Return the t-th number of a stream of uniform numbers that is the same in every run."""
    digest = hashlib.sha256(f"{seed}:{t}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2.0**53
