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

A gate in front has both alarms of its own. How many live queries are unanswerable is unknown, so
its query scores are ranked among those of the live queries before, n = 0, not of the calibration:
the alarm is about a change. Its loss is 1 on an answerable query that it is silent on. The filter's
drift leaves out silent queries, as the calibration does.
"""

from __future__ import annotations

import bisect
import copy
import hashlib
import json
import math
import threading
from dataclasses import asdict
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from pydantic import TypeAdapter, ValidationError

from conformal_retrievers.calibration.behind import check_silenced
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import (
    CalibrationMismatch,
    check_new,
    check_split,
    check_subject,
)
from conformal_retrievers.calibration.gate import Gated
from conformal_retrievers.calibration.guarantees import in_hashed_order, loss
from conformal_retrievers.calibration.speech import speaks_below
from conformal_retrievers.calibration.subjects import QUERIES, RETRIEVED
from conformal_retrievers.data.files import Kind, explain, read_envelope, write_envelope
from conformal_retrievers.data.queries import ScoredQuery, as_scores
from conformal_retrievers.monitoring.state import RECENT, STAKES, State
from conformal_retrievers.monitoring.status import Counts, MonitorStatus
from conformal_retrievers.theory.ranks import check_probability
from conformal_retrievers.theory.tolerance import betting_lower

KIND = Kind("conformal-retrievers/monitor", 1, saved_by="Monitor.save", what="monitor")
JUMPS = 0.01  # how often the bet on the ranks changes sides
DIRECTIONS = (-1.0, 0.0, 1.0)


class Monitor:
    """Watches a stream of queries that are filtered with one calibration.

    `level` in (0, 1) bounds the probability of a false alarm, of drift and of harm each, over the
    whole stream. `seed` decides how equal scores are ranked. Threads may share a monitor; processes
    that share a stream each need a monitor of level / processes, whose counts add up. A monitor
    stores one number for each query, and another if the calibration holds a gate, which has alarms
    of its own: `status.gate`. A gate on its own is watched with its own calibration: its query
    scores are its snippets' scores. Raises ValueError for a calibration without lowest scores.
    """

    def __init__(self, calibration: Calibration, level: float = 0.05, *, seed: int = 0) -> None:
        check_subject(calibration, *RETRIEVED, QUERIES)
        check_probability("level", level, "the probability of a false alarm")
        if not isinstance(seed, (int, np.integer)):
            raise TypeError(f"seed is {seed!r:.40}; give an integer")
        self._of_gate = calibration.subject == QUERIES
        self._limited = calibration.details.get("false_speech") is not None
        self._speaks_below = cache(partial(speaks_below, calibration))
        if not (calibration.lowest_scores or self._of_gate):
            raise ValueError(
                "the calibration has no lowest scores; calibrate again with the scores of all "
                "snippets, not only of the relevant ones"
            )
        self.calibration = calibration
        self._state = State(calibration.checksum, float(level), int(seed))
        self._ordered = [] if self._of_gate else list(calibration.lowest_scores)
        self._gate = (
            None if calibration.gate is None else Monitor(calibration.gate, level, seed=seed)
        )
        self._state.gate = self._gate._state if self._gate else None
        self._lock = threading.Lock()

    def observe(
        self,
        scores: ArrayLike,
        group: str | None = None,
        *,
        gated: Gated | None = None,
        silenced: bool | None = None,
    ) -> MonitorStatus:
        """Observe the scores of all snippets that were retrieved for a new query.

        Parameters
        ----------
        scores, group
            The scores (n,) of the snippets, and the query's group.
        gated
            The gate's decision if the calibration holds a gate: `Filtered.gated`.
        silenced
            Whether the gate dropped all snippets: `Filtered.silenced`. None: it does if it is
            silent, as it is not with on_silence="flag".

        Raises
        ------
        ValueError
            For scores of another shape, a missing or needless `gated`, or a `silenced` without a
            silent gate.
        CalibrationMismatch
            For the decision of another gate.
        """
        s = as_scores(scores, "scores")
        if s.ndim != 1 or (self._of_gate and len(s) != 1):
            which = "the score of the query, (1,)" if self._of_gate else "one score a snippet, (n,)"
            raise ValueError(f"scores has shape {s.shape}; give {which}")
        self._check_gated(gated)
        silent = gated is not None and gated.silent
        if silenced and not silent:
            raise ValueError(f"silenced is {silenced!r}, but gated is {gated!r:.60}; give both")
        dropped = silent if silenced is None else silenced
        kept = 0 if dropped else int(np.count_nonzero(self.calibration.keep(s, group)))
        one = Counts.of_query(len(s), kept, int(np.count_nonzero(np.isnan(s))))
        if gated is not None:
            one += Counts.of_gate(gated.decision)
        if self._of_gate:
            undecided = self._limited and not s[0] < self._speaks_below(group)
            one += Counts.of_gate("silent" if not kept else "undecided" if undecided else "speaks")
        finite = s[np.isfinite(s)]
        with self._lock:
            if self._gate is not None and gated is not None:
                self._gate.observe([gated.score], gated.group)
            self._state.counts += one
            if self._of_gate:
                self._state.recent = [*self._state.recent, not kept][-RECENT:]
            if len(finite) and not silent:
                self._bet_on_rank(float(finite.min()))
            return self._status()

    def observe_judged(self, query: ScoredQuery) -> MonitorStatus:
        """Observe a query whose relevant snippets are all known, in addition to `observe`.

        Choose the queries to judge at random, whatever is kept of them. One that is silenced, but
        has its scores instead of +inf, was only flagged, and loses what these lose. Raises
        ValueError if the guarantee is "snippet" or by group, for a query of the calibration, by its
        id, and for one scored without the gate that the calibration holds. A gate by group has no
        alarm of harm.
        """
        check_new([query.id], self.calibration.used_ids, self.calibration.subject)
        check_split(self.calibration.split, query.split, "the query")
        check_silenced(query, self.calibration.gate)
        u, lost = self._tolerated, self._loss(query)
        with self._lock:
            if lost is not None:
                self._state.counts += Counts(judged=1, lost=lost)
                self._bet_on_loss(lost, u)
            if self._gate and query.relevant.any() and not self._gate.calibration.by_group:
                self._gate._observe_silence(bool(query.silenced))
            return self._status()

    def _observe_silence(self, silent: bool) -> None:
        """Observe whether a gate is silent on an answerable query."""
        with self._lock:
            self._state.counts += Counts(judged=1, lost=float(silent))
            self._bet_on_loss(float(silent), self._tolerated)

    def _check_gated(self, gated: Gated | None) -> None:
        gate = self.calibration.gate
        if (gated is None) != (gate is None):
            which = "holds a gate; give result.gated" if gate else "holds no gate; leave it out"
            raise ValueError(f"gated is {gated!r:.60}, but the calibration {which}")
        if gated is not None and gate is not None and gated.calibration.checksum != gate.checksum:
            raise CalibrationMismatch(
                "gated was decided by another gate than the calibration holds; give what the "
                "filter of this calibration returns"
            )

    @property
    def status(self) -> MonitorStatus:
        """The counts and the evidence so far."""
        with self._lock:
            return self._status()

    def _status(self) -> MonitorStatus:
        most = (self._state.most_log_drift, self._state.most_log_harm)
        drift, harm = (math.exp(min(log, 700.0)) for log in most)
        recent = self._state.recent
        return MonitorStatus(
            self._state.level,
            self._state.counts,
            drift,
            harm,
            recent=(sum(recent), len(recent)) if self._of_gate else None,
            gate=self._gate.status if self._gate else None,
        )

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
        order = in_hashed_order(c.queries.ids.tolist())
        losses = [lost for i in order if (lost := self._loss(c.queries[i])) is not None]
        return 1 - betting_lower(1 - np.array(losses), self._state.level / 2)

    def _loss(self, query: ScoredQuery) -> float | None:
        c = self.calibration
        keeps = c.keep(query.scores, query.group)
        if c.gate is not None:  # what it silences is dropped at every threshold
            keeps &= query.scores != math.inf
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
        check_subject(calibration, *RETRIEVED, QUERIES)
        try:
            fields = read_envelope(path, KIND)
            del fields["format"], fields["version"]
            state = TypeAdapter(State).validate_json(json.dumps(fields))
        except ValidationError as error:
            raise ValueError(f"{path}: {explain(error)}") from None
        if state.calibration != calibration.checksum:
            raise ValueError(
                f"{path} watches another calibration ({state.calibration[:12]!r}, not "
                f"{calibration.checksum[:12]!r}); load that one, or start a new Monitor"
            )
        if not state.is_consistent or (state.gate is None) != (calibration.gate is None):
            raise ValueError(
                f"{path}: its counts and its evidence contradict each other; restore the original "
                "file, or start a new Monitor"
            )
        return cls._of(calibration, state)

    def __reduce__(self) -> tuple[Any, ...]:
        with self._lock:  # which cannot be copied
            return Monitor._of, (self.calibration, copy.deepcopy(self._state))

    @classmethod
    def _of(cls, calibration: Calibration, state: State) -> Monitor:
        monitor = cls(calibration, state.level, seed=state.seed)
        monitor._resume(state)
        return monitor

    def _resume(self, state: State) -> None:
        self._state = state
        self._ordered = sorted([*self._ordered, *state.live])
        if self._gate is not None and state.gate is not None:
            self._gate._resume(state.gate)


def _uniform(seed: int, t: int) -> float:
    """Return the t-th number of a stream of uniform numbers that is the same in every run."""
    digest = hashlib.sha256(f"{seed}:{t}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2.0**53
