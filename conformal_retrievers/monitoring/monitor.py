"""Alarms over live traffic, valid at any time: for drift of the queries, and for harm.

Drift needs no judgements. The lowest score of each new query is ranked among those of the
calibration and of all queries before it; while queries are exchangeable, the smoothed ranks

    p_t = (#{higher} + U_t (1 + #{equal})) / (n + t),   U_t ~ U(0, 1),

are independent and uniform (Vovk, Gammerman, Shafer 2005). The wealth of a bet against that, a
mixture of Π (1 + ε_s (p_s − ½)) over ε_1 … ε_t in {−1, 0, 1} that change rarely, reaches 1/level
with probability at most level, whenever one looks (Ville; Vovk et al. 2021, arXiv 2102.10439).

Harm needs judgements. Each judged query loses a share x_t of what the guarantee is about. The
calibration's own loss is at most u except with probability level/2 (a betting bound on its own
queries); u may be a little above alpha. The wealth Π (1 + λ (x_t − u)), mixed over some λ in
(0, 1/u), reaches 2/level with probability at most level/2 if the loss is at most u (Podkopaev and
Ramdas 2022, arXiv 2110.06177).
"""

from __future__ import annotations

import bisect
import copy
import hashlib
import json
import math
import threading
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_new, check_split, check_subject
from conformal_retrievers.calibration.guarantees import in_hashed_order, loss
from conformal_retrievers.calibration.subjects import RETRIEVED, SNIPPETS
from conformal_retrievers.data.files import Kind, explain, read_envelope, write_envelope
from conformal_retrievers.data.queries import ScoredQuery, as_scores
from conformal_retrievers.theory.ranks import check_probability
from conformal_retrievers.theory.tolerance import betting_lower

KIND = Kind("conformal-retrievers/monitor", 1, saved_by="Monitor.save", what="monitor")
JUMPS = 0.01  # how often the bet on the ranks changes sides
DIRECTIONS = (-1.0, 0.0, 1.0)
STAKES = (0.05, 0.1, 0.2, 0.4, 0.8)  # λ as shares of the largest bet, 1/u

CHECKED = ConfigDict(allow_inf_nan=False, extra="forbid", strict=True)  # when a state is loaded
Count = Annotated[int, Field(ge=0, lt=2**53)]
Total = Annotated[float, Field(ge=0)]
Capitals = Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(min_length=3, max_length=3)]
LogStakes = Annotated[list[float], Field(min_length=len(STAKES), max_length=len(STAKES))]


@dataclass(frozen=True)
class Counts:
    """What a filter did to the queries of a stream; counts of several streams can be added."""

    __pydantic_config__ = CHECKED

    queries: Count = 0
    snippets: Count = 0
    kept: Count = 0
    unscorable: Count = 0
    with_kept: Count = 0  # queries with a kept snippet
    share_kept: Total = 0.0  # the sum over queries
    judged: Count = 0
    lost: Total = 0.0  # the sum over judged queries

    @classmethod
    def of_query(cls, snippets: int, kept: int, unscorable: int) -> Counts:
        """Return the counts of one query."""
        return cls(1, snippets, kept, unscorable, int(kept > 0), kept / max(snippets, 1))

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

    def __str__(self) -> str:
        c = self.counts
        return (
            f"{c.queries} queries, m1 {c.m1:.3f}, m2 {c.m2:.3f}, {c.unscorable} snippets without a "
            f"score. Drift: {'alarm' if self.drift else 'no alarm'} (evidence "
            f"{self.drift_evidence:.3g}, alarm at {1 / self.level:.3g}). Harm: "
            f"{'alarm' if self.harm else 'no alarm'} ({c.judged} judged queries lose {c.loss:.3f}, "
            f"evidence {self.harm_evidence:.3g}, alarm at {2 / self.level:.3g})."
        )


@dataclass
class _State:
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

    @property
    def is_consistent(self) -> bool:
        """Whether some stream has these counts and this evidence."""
        c = self.counts
        return (
            c.unscorable <= c.kept <= c.snippets
            and c.share_kept <= c.with_kept <= min(c.kept, c.queries)
            and len(self.live) <= c.queries
            and c.lost <= c.judged
            and self.log_drift <= self.most_log_drift
            and math.isclose(sum(self.capitals), 1)
            and (c.judged > 0 or self.most_log_harm == 0)
        )


class Monitor:
    """Watches a stream of queries that are filtered with one calibration.

    `level` in (0, 1) bounds the probability of a false alarm, of drift and of harm each, over the
    whole stream. `seed` decides how equal scores are ranked. Threads may share a monitor; processes
    that share a stream each need a monitor of level / processes, whose counts add up. A monitor
    stores one number for each query. Raises ValueError for a calibration without lowest scores.
    """

    def __init__(self, calibration: Calibration, level: float = 0.05, *, seed: int = 0) -> None:
        check_subject(calibration, *RETRIEVED)
        check_probability("level", level, "the probability of a false alarm")
        if not isinstance(seed, (int, np.integer)):
            raise TypeError(f"seed is {seed!r:.40}; give an integer")
        if not calibration.lowest_scores:
            raise ValueError(
                "the calibration has no lowest scores; calibrate again with the scores of all "
                "snippets, not only of the relevant ones"
            )
        self.calibration = calibration
        self._state = _State(calibration.checksum, float(level), int(seed))
        self._ordered = list(calibration.lowest_scores)
        self._lock = threading.Lock()

    def observe(self, scores: ArrayLike, group: str | None = None) -> MonitorStatus:
        """Observe the scores (n,) of all snippets that were retrieved for a new query."""
        s = as_scores(scores, "scores")
        if s.ndim != 1:
            raise ValueError(f"scores has shape {s.shape}; give one score for each snippet, (n,)")
        kept = int(np.count_nonzero(self.calibration.keep(s, group)))
        one = Counts.of_query(len(s), kept, int(np.count_nonzero(np.isnan(s))))
        finite = s[np.isfinite(s)]
        with self._lock:
            self._state.counts += one
            if len(finite):
                self._bet_on_rank(float(finite.min()))
            return self._status()

    def observe_judged(self, query: ScoredQuery) -> MonitorStatus:
        """Observe a query whose relevant snippets are all known, in addition to `observe`.

        Choose the queries to judge at random, whatever is kept of them. Raises ValueError if the
        guarantee is "snippet" or by group, and for a query of the calibration, by its id.
        """
        check_new([query.id], self.calibration.used_ids, SNIPPETS)
        check_split(self.calibration.split, query.split, "the query")
        u, lost = self._tolerated, self._loss(query)
        with self._lock:
            if lost is not None:
                self._state.counts += Counts(judged=1, lost=lost)
                self._bet_on_loss(lost, u)
            return self._status()

    @property
    def status(self) -> MonitorStatus:
        """The counts and the evidence so far."""
        with self._lock:
            return self._status()

    def _status(self) -> MonitorStatus:
        most = (self._state.most_log_drift, self._state.most_log_harm)
        drift, harm = (math.exp(min(log, 700.0)) for log in most)
        return MonitorStatus(self._state.level, self._state.counts, drift, harm)

    def _bet_on_loss(self, lost: float, u: float) -> None:
        logs = [
            log + math.log1p(stake / u * (lost - u))
            for log, stake in zip(self._state.log_stakes, STAKES, strict=True)
        ]
        self._state.log_stakes = logs
        most = max(logs)
        mixed = most + math.log(sum(math.exp(log - most) for log in logs) / len(logs))
        self._state.most_log_harm = max(self._state.most_log_harm, mixed)

    def _bet_on_rank(self, lowest: float) -> None:
        p = self._smoothed_rank(lowest)
        capitals = self._state.capitals
        total = sum(capitals)
        capitals = [
            ((1 - JUMPS) * capital + JUMPS * total / 3) * (1 + direction * (p - 0.5))
            for capital, direction in zip(capitals, DIRECTIONS, strict=True)
        ]
        grown = sum(capitals)
        self._state.capitals = [capital / grown for capital in capitals]
        self._state.log_drift += math.log(grown)
        self._state.most_log_drift = max(self._state.most_log_drift, self._state.log_drift)

    def _smoothed_rank(self, lowest: float) -> float:
        n = len(self._ordered)
        below = bisect.bisect_left(self._ordered, lowest)
        equal = bisect.bisect_right(self._ordered, lowest) - below
        self._ordered.insert(below, lowest)
        self._state.live.append(lowest)
        u = _uniform(self._state.seed, len(self._state.live))
        return (n - below - equal + u * (1 + equal)) / (n + 1)

    @cached_property
    def _tolerated(self) -> float:
        """u, which the loss at the threshold exceeds with probability at most level/2."""
        c = self.calibration
        if c.guarantee == "snippet" or c.by_group:
            groups = " by group" if c.by_group else ""
            raise ValueError(
                f"the calibration's guarantee is {c.guarantee!r}{groups}, but harm is measured by "
                "query; calibrate for 'query-recall', 'all' or 'any' without groups"
            )
        # The bets are made in an order that does not depend on the scores.
        order = in_hashed_order([query.id for query in c.queries])
        losses = [lost for i in order if (lost := self._loss(c.queries[i])) is not None]
        return 1 - betting_lower(1 - np.array(losses), self._state.level / 2)

    def _loss(self, query: ScoredQuery) -> float | None:
        c = self.calibration
        keeps = c.keep(query.scores, query.group)
        return loss(query, keeps, c.guarantee, count_missed=c.count_missed)

    def save(self, path: str | Path) -> None:
        """Write the state as JSON, whole or not at all; raise OSError if it cannot be written."""
        with self._lock:
            state = asdict(self._state)
        fields = {"format": KIND.format, "version": KIND.version, **state}
        write_envelope(path, fields, what=KIND.what)

    @classmethod
    def load(cls, path: str | Path, calibration: Calibration) -> Monitor:
        """Return the monitor that was saved.

        Raises ValueError if the file is not a monitor, was changed, or is for another calibration.
        """
        check_subject(calibration, *RETRIEVED)
        try:
            fields = read_envelope(path, KIND)
            del fields["format"], fields["version"]
            state = TypeAdapter(_State).validate_json(json.dumps(fields))
        except ValidationError as error:
            raise ValueError(f"{path}: {explain(error)}") from None
        if state.calibration != calibration.checksum:
            raise ValueError(
                f"{path} watches another calibration ({state.calibration[:12]!r}, not "
                f"{calibration.checksum[:12]!r}); load that one, or start a new Monitor"
            )
        if not state.is_consistent:
            raise ValueError(
                f"{path}: its counts and its evidence contradict each other; restore the original "
                "file, or start a new Monitor"
            )
        return cls._of(calibration, state)

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:  # which cannot be copied
            return Monitor._of, (self.calibration, copy.deepcopy(self._state))

    @classmethod
    def _of(cls, calibration: Calibration, state: _State) -> Monitor:
        monitor = cls(calibration, state.level, seed=state.seed)
        monitor._state = state
        monitor._ordered = sorted([*calibration.lowest_scores, *state.live])
        return monitor


def _uniform(seed: int, t: int) -> float:
    """Return the t-th number of a stream of uniform numbers that is the same in every run."""
    digest = hashlib.sha256(f"{seed}:{t}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2.0**53
