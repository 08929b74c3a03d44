"""The state of a monitor: what its file has, and the bets."""

from __future__ import annotations

import bisect
import hashlib
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Annotated, Any, TypeVar

from pydantic import Field

from conformal_retrievers.monitoring.status import CHECKED, Counts, Total

RECENT = 200  # queries of which a gate's rate of silence is shown
STAKES = (0.05, 0.1, 0.2, 0.4, 0.8)  # λ as shares of the largest bet, 1/u
JUMPS = 0.01  # how often the bet on the ranks changes sides
DIRECTIONS = (-1.0, 0.0, 1.0)

Timed = tuple[float, float]  # seconds since the epoch, and what was observed then
Observed = TypeVar("Observed", bound=float)


@dataclass
class State:
    """The state of a monitor, and the fields of its file."""

    __pydantic_config__ = CHECKED

    calibration: str  # the checksum
    level: Annotated[float, Field(gt=0, lt=1)]
    seed: int
    sources: list[str] = field(default_factory=list, compare=False)  # processes that observed
    live: list[Timed] = field(default_factory=list)  # the lowest scores seen, in their order
    losses: list[Timed] = field(default_factory=list)  # of the judged queries, in their order
    capitals: list[float] = field(default_factory=lambda: [1 / 3] * 3)
    log_drift: float = 0.0
    most_log_drift: Total = 0.0
    log_stakes: list[float] = field(default_factory=lambda: [0.0] * len(STAKES))
    most_log_harm: Total = 0.0
    counts: Counts = field(default_factory=Counts)
    recent: list[tuple[float, bool]] = field(default_factory=list)  # of a gate: its newest silence
    gate: State | None = None

    def copy(self) -> State:
        """Return a copy that stays as it is when this state changes."""
        return replace(
            self,
            sources=[*self.sources],
            live=[*self.live],
            losses=[*self.losses],
            gate=self.gate and self.gate.copy(),
        )

    def as_fields(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        gate = self.gate and self.gate.as_fields()
        return {**vars(self), "counts": asdict(self.counts), "gate": gate}

    def bet_on_loss(self, at: float, lost: float, u: float) -> None:
        """Take the share that a judged query loses, and bet that the loss is above u."""
        self.losses.append((at, lost))
        logs = [
            log + math.log1p(stake / u * (lost - u))
            for log, stake in zip(self.log_stakes, STAKES, strict=True)
        ]
        self.log_stakes = logs
        most = max(logs)
        mixed = most + math.log(sum(math.exp(log - most) for log in logs) / len(logs))
        self.most_log_harm = max(self.most_log_harm, mixed)

    def bet_on_rank(self, at: float, lowest: float, ordered: list[float]) -> None:
        """Take a lowest score, bet against its rank among `ordered`, and insert it there."""
        self.live.append((at, lowest))
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


def check_alike(states: Sequence[State]) -> None:
    """Raise ValueError, naming the field, unless states are of one stream, each of its own part."""
    if not states:
        raise ValueError("monitors is empty; give one or more")
    for name in ("calibration", "level", "seed"):
        values = sorted({getattr(state, name) for state in states})
        if len(values) > 1:
            raise ValueError(
                f"the monitors differ in {name}: {values[0]!r:.14} and {values[1]!r:.14}; give "
                "those of one stream, made alike"
            )
    sources = [source for state in states for source in state.sources]
    if len({*sources}) < len(sources):
        raise ValueError(
            "two of the monitors have the same observations; give each process's monitor once"
        )


def as_time(at: float | None) -> float:
    """Return a time, now if there is none; raise ValueError if it is not finite."""
    if at is not None and not math.isfinite(at):
        raise ValueError(f"at is {at!r}; give seconds since the epoch")
    return time.time() if at is None else float(at)


def after(series: Sequence[tuple[float, object]], at: float) -> float:
    """Return a time, but one just after the newest of a series if that is not before it."""
    return max(at, math.nextafter(series[-1][0], math.inf)) if series else at


def in_order(series: Iterable[list[tuple[float, Observed]]]) -> list[tuple[float, Observed]]:
    """Return what several series have, in the order of time, whatever order they come in.

    What has equal times is permuted by a hash of the time and of nothing observed, so that what is
    exchangeable stays so.
    """
    found = []
    every = sorted(chain.from_iterable(series), key=lambda one: (one[0], repr(one)))
    for at, group in groupby(every, key=itemgetter(0)):
        equal = list(group)
        found += [equal[i] for i in sorted(range(len(equal)), key=partial(_place, at))]
    return found


def _place(at: float, i: int) -> bytes:
    return _digest(f"{at!r}:{i}")


def _uniform(seed: int, t: int) -> float:
    """Return the t-th number of a stream of uniform numbers that is the same in every run."""
    return (int.from_bytes(_digest(f"{seed}:{t}")[:8], "big") >> 11) / 2.0**53


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
