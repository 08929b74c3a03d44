"""Alarms over live traffic, valid at any time: for drift of the queries, and for harm.

Drift needs no judgements. The lowest score of each new query is ranked among those of the
calibration and of all queries before it; while queries are exchangeable, the smoothed ranks

    p_t = (#{higher} + U_t (1 + #{equal})) / (n + t),   U_t ~ U(0, 1),

are independent and uniform (Vovk, Gammerman, Shafer 2005). The wealth of a bet against that, a
mixture of Π (1 + ε_s (p_s − ½)) over ε_1 … ε_t in {−1, 0, 1} that change rarely, reaches 1/level
with probability at most level, whenever one looks (Ville; Vovk et al. 2021, arXiv 2102.10439).

Harm needs judgements. Each judged query loses a share x_t of what the guarantee is about, and the
threshold's own loss is at most u except with probability level/2 (`_tolerated`), where u is alpha
or more: what the guarantee allows is no harm. The wealth
Π (1 + λ (x_t − u)), mixed over some λ in (0, 1/u), reaches 2/level with probability at most level/2
if the loss is at most u (Podkopaev and Ramdas 2022, arXiv 2110.06177).

The drift of a filter behind a gate leaves out silent queries, as the calibration does.
"""

from __future__ import annotations

import math
import threading
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.guarantees import in_hashed_order, loss
from conformal_retrievers.calibration.subjects import FILTERED, RETRIEVED
from conformal_retrievers.data.files import Kind, read_value, write_envelope
from conformal_retrievers.data.queries import ScoredQuery, as_scores
from conformal_retrievers.monitoring.state import State
from conformal_retrievers.monitoring.status import Counts, MonitorStatus
from conformal_retrievers.monitoring.wording import say
from conformal_retrievers.theory.ranks import check_probability
from conformal_retrievers.theory.tolerance import betting_lower, binomial_lower, tolerance_rank

KIND = Kind("conformal-retrievers/monitor", 2, saved_by="Monitor.save", what="monitor")


class Monitor:
    """Watches a stream of queries that are filtered with one calibration.

    `observe` takes the scores of each query, and raises the alarm of drift if queries differ from
    those of the calibration. `observe_judged` takes some judged ones, and raises the alarm of harm
    if more is lost than guaranteed. `status` has both.

    `level` in (0, 1) bounds the probability of a false alarm, of drift and of harm each, over the
    whole stream. `seed` decides how equal scores are ranked. Threads may share a monitor; processes
    share a filter log, which one monitor reads. A monitor stores a number for each query. Raises
    ValueError for a calibration without lowest scores.
    """

    def __init__(self, calibration: Calibration, level: float = 0.05, *, seed: int = 0) -> None:
        checks.check_subject(calibration, *FILTERED)
        check_probability("level", level, "the probability of a false alarm")
        checks.check_type((int, np.integer), "an integer", seed=seed)
        if not calibration.lowest_scores:
            raise ValueError(say("no lowest scores"))
        self.calibration = calibration
        self._state = State(calibration.checksum, float(level), int(seed))
        self._ordered = list(calibration.lowest_scores)
        self._lock = threading.RLock()

    def observe(
        self, scores: ArrayLike, group: str | None = None, *, silenced: bool | None = None
    ) -> MonitorStatus:
        """Observe the scores (n,) of all snippets that were retrieved for a new query of a group.

        If the calibration holds a gate, `silenced` is whether it was silent, `Filtered.silenced`.
        Raises ValueError for scores of another shape and a missing or needless `silenced`.
        """
        s = as_scores(scores, "scores")
        if s.ndim != 1:
            raise ValueError(f"scores has shape {s.shape}; give one score for each snippet, (n,)")
        if (silenced is None) == self.calibration.silences:
            which = "a gate; give result.silenced" if silenced is None else "no gate; leave it out"
            raise ValueError(f"silenced is {silenced!r:.80}, but the calibration holds {which}")
        kept = 0 if silenced else int(np.count_nonzero(self.calibration.keep(s, group)))
        unscorable, finite = int(np.count_nonzero(np.isnan(s))), s[np.isfinite(s)]
        with self._lock:
            self._state.counts += Counts.of_query(len(s), kept, unscorable, bool(silenced))
            if len(finite) and not silenced:
                self._state.bet_on_rank(float(finite.min()), self._ordered)
            return self.status

    def observe_judged(self, query: ScoredQuery) -> MonitorStatus:
        """Observe a query whose relevant snippets are all known, in addition to `observe`.

        Choose the queries to judge at random, whatever is kept of them. Raises ValueError if the
        guarantee is "snippet" or by group, for a query of the calibration, or one that was observed
        before, by its id, and for one scored without the gate that the calibration holds; TypeError
        for another object; `CalibrationMismatch` for a calibration on answers.
        """
        checks.check_subject(self.calibration, *RETRIEVED)
        checks.check_type(ScoredQuery, "one of what score_queries returns", query=query)
        checks.check_new([query.id], self.calibration.used_ids, self.calibration.subject)
        checks.check_split(self.calibration.split, query.split, "the query")
        checks.check_silenced(query, self.calibration.silences)
        tolerated = self._tolerated  # raises where harm has no bound
        lost = self._loss(query)
        with self._lock:
            if query.id in self._state.judged:
                raise ValueError(say("judged before", id=query.id))
            if query.id is not None:
                self._state.judged.append(query.id)
            if lost is not None:
                self._state.counts += Counts(judged=1, lost=lost)
                self._state.bet_on_loss(lost, tolerated)
            return self.status

    @property
    def status(self) -> MonitorStatus:
        """The counts and the evidence so far."""
        with self._lock:
            most = (self._state.most_log_drift, self._state.most_log_harm)
            drift, harm = (math.exp(min(log, 700.0)) for log in most)
            return MonitorStatus(self._state.level, self._state.counts, drift, harm)

    @cached_property
    def _tolerated(self) -> float:
        """u, which the loss at the threshold exceeds with probability level/2 at most.

        For "all" and "any", 1 − u is the level/2 quantile of Beta(k, K + 1 − k), exactly. Else u is
        a betting bound on the queries of the calibration, approximate in that they also gave the
        threshold. Where ties, or a small delta, make them lose less than alpha, it is alpha.
        """
        c = self.calibration
        if c.guarantee == "snippet" or c.by_group:
            raise ValueError(say("harm", c=c, groups=" by group" if c.by_group else ""))
        if c.guarantee != "query-recall" and not c.silences and c.threshold() < math.inf:
            n = c.n_units[None]
            k = tolerance_rank(n, c.alpha, c.delta)
            return max(c.alpha, 1 - binomial_lower(k, n, self._state.level / 2))
        # The bets are made in an order that does not depend on which query has which scores.
        order = in_hashed_order(c.queries.ids.tolist(), c.queries.scores)
        losses = [lost for i in order if (lost := self._loss(c.queries[i])) is not None]
        return max(c.alpha, 1 - betting_lower(1 - np.array(losses), self._state.level / 2))

    def _loss(self, query: ScoredQuery) -> float | None:
        c = self.calibration
        keeps = c.keep(query.scores, query.group)
        if c.silences:  # what the gate silences is dropped at every threshold
            keeps &= query.scores != math.inf
        return loss(query, keeps, c.guarantee, count_missed=c.count_missed)

    def save(self, path: str | Path) -> None:
        """Write the state as JSON, whole or not at all; raise OSError if it cannot be written."""
        with self._lock:
            write_envelope(path, asdict(self._state), KIND)

    @classmethod
    def load(cls, path: str | Path, calibration: Calibration) -> Monitor:
        """Return the monitor that was saved.

        Raises ValueError if the file is not a monitor, was changed, or is for another calibration.
        """
        checks.check_subject(calibration, *FILTERED)
        state = read_value(path, KIND, State)
        if state.calibration != calibration.checksum:
            raise ValueError(say("watches another", path=path, state=state, c=calibration))
        monitor = cls(calibration, state.level, seed=state.seed)
        monitor._state = state
        monitor._ordered = sorted([*monitor._ordered, *state.live])
        return monitor
