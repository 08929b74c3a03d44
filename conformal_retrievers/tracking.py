"""A threshold that follows its own mistakes: long-run coverage for any stream, and no guarantee.

After each judged query the threshold moves against what went wrong,

    τ_{t+1} = τ_t + η_t (lost_t − α),   η_t = step · t^(−0.6),

lost_t the share of the query's relevant snippets that scored above τ_t. Whatever comes, drifting or
not, the mean of lost_t tends to α as long as scores stay bounded; where queries are alike, τ_t also
settles (Angelopoulos, Barber, Bates 2024, arXiv 2402.01139). That is an average over a long run: it
says nothing of any one query, and needs the judgements of every query, dropped snippets included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from conformal_retrievers.calibration import Calibration
from conformal_retrievers.judged import ScoredQuery

DECAY = 0.6  # above ½, so that the threshold settles; below 1, so that it can still follow


@dataclass(frozen=True)
class LongRun:
    """A threshold after `judged` queries, of whose relevant snippets a mean share was lost."""

    threshold: float
    alpha: float
    step: float
    judged: int = 0
    lost: float = 0.0

    @property
    def mean_lost(self) -> float:
        """The mean share lost so far, nan of none; it tends to alpha."""
        return self.lost / self.judged if self.judged else math.nan

    def after(self, query: ScoredQuery) -> LongRun:
        """Return the threshold for the query after this one, of which all snippets are judged.

        A query without a relevant snippet changes nothing. Raises ValueError for one that was
        judged in parts: on what is kept alone nothing is ever lost, and the threshold would sink.
        """
        if query.only_kept or query.propensities is not None:
            raise ValueError(
                f"{query.name}: it was judged in parts, and a threshold that follows what was kept "
                "alone sinks without end; give queries of which all snippets were judged"
            )
        relevant = query.scores[query.relevant]
        if not len(relevant):
            return self
        lost = float(np.mean(relevant > self.threshold))
        t = self.judged + 1
        moved = self.threshold + self.step * t**-DECAY * (lost - self.alpha)
        return replace(self, threshold=moved, judged=t, lost=self.lost + lost)


def track(calibration: Calibration, *, step: float | None = None) -> LongRun:
    """Return where to start: the calibration's threshold, or its highest score where that is +inf.

    `step` is on the scale of the scores, by default the standard deviation of the calibration's
    relevant scores. Raises ValueError unless it is positive, and for a calibration by group.
    """
    if calibration.by_group:
        raise ValueError("track follows one threshold; give a calibration without groups")
    scores = np.concatenate([query.scores for query in calibration.queries])
    scores = scores[np.isfinite(scores)]
    if step is None:
        step = float(scores.std()) or 1.0
    if not 0 < step < math.inf:
        raise ValueError(f"step is {step!r}; give a positive number on the scale of the scores")
    threshold = calibration.threshold()
    start = threshold if math.isfinite(threshold) else float(scores.max())
    return LongRun(start, calibration.alpha, step)
