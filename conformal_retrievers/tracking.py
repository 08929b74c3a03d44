"""A threshold that follows its own mistakes: long-run coverage for any stream, and no guarantee.

After each judged query the threshold moves against what went wrong,

    τ_{t+1} = τ_t + η_t (lost_t − α),   η_t = step · t^(−0.6),

lost_t what the guarantee is about: the share of the query's relevant snippets that scored above τ_t
for "query-recall", whether one of them did for "all", whether all did for "any". Whatever comes,
drifting or not, the mean of lost_t tends to α as long as scores stay bounded; where queries are
alike, τ_t also settles (Angelopoulos, Barber, Bates 2024, arXiv 2402.01139). That is an average
over a long run: it says nothing of any one query, and needs the judgements of every query, dropped
snippets included. Missed snippets are lost where the calibration counts them, at any threshold:
where they alone are more than α, τ_t rises without end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from conformal_retrievers.calibration import Calibration
from conformal_retrievers.guarantees import Guarantee, loss
from conformal_retrievers.judged import ScoredQuery

DECAY = 0.6  # above ½, so that the threshold settles; below 1, so that it can still follow


@dataclass(frozen=True)
class LongRun:
    """A threshold after `judged` queries, which lost `lost` in all, in the guarantee's sense."""

    threshold: float
    alpha: float
    step: float
    judged: int = 0
    lost: float = 0.0
    guarantee: Guarantee = "query-recall"
    count_missed: bool = False

    @property
    def mean_lost(self) -> float:
        """The mean loss so far, nan of none; it tends to alpha."""
        return self.lost / self.judged if self.judged else math.nan

    def after(self, query: ScoredQuery) -> LongRun:
        """Return the threshold for the query after this one, of which all snippets are judged.

        A query without a relevant snippet changes nothing. Raises ValueError for one that was
        judged in parts: on what is kept alone nothing is ever lost, and the threshold would sink;
        and for one with a weight, for each moves the threshold alike.
        """
        if query.only_kept or query.propensities is not None:
            raise ValueError(
                f"{query.name}: it was judged in parts, and a threshold that follows what was kept "
                "alone sinks without end; give queries of which all snippets were judged"
            )
        if query.weight != 1:
            raise ValueError(
                f"{query.name}: its weight is {query.weight:g}, but all queries move the threshold "
                "alike; give queries as they come, with weight 1"
            )
        keeps = ~(query.scores > self.threshold)  # as a filter does: what has no score is kept
        lost = loss(query, keeps, self.guarantee, count_missed=self.count_missed)
        if lost is None:
            return self
        t = self.judged + 1
        moved = self.threshold + self.step * t**-DECAY * (lost - self.alpha)
        return replace(self, threshold=moved, judged=t, lost=self.lost + lost)


def track(calibration: Calibration, *, step: float | None = None) -> LongRun:
    """Return where to start: at the calibration's threshold.

    Where that is +inf it is the highest finite score of its relevant snippets, and the lowest where
    it is −inf. `step` is on the scale of the scores, by default the standard deviation of the
    calibration's relevant scores. What is lost is what the calibration's guarantee is about, missed
    snippets included where it counts them. Raises ValueError unless `step` is positive, and for a
    calibration whose promise is not one about equal queries ("snippet", weights, groups), or of
    which no relevant snippet has a finite score.
    """
    c = calibration
    if c.guarantee == "snippet" or c.weighted or c.by_group:
        raise ValueError(
            f"the calibration's guarantee is {c.guarantee!r}{' by group' if c.by_group else ''}"
            f"{' with weights' if c.weighted else ''}, but track follows one threshold, query by "
            "query, all alike; calibrate for 'query-recall', 'all' or 'any' without groups and "
            "weights"
        )
    scores = np.concatenate([query.scores for query in calibration.queries])
    scores = scores[np.isfinite(scores)]
    if not len(scores):
        raise ValueError(
            "the calibration has no relevant snippet with a finite score, so that there is nowhere "
            "to start; calibrate with a scorer that scores them"
        )
    if step is None:
        step = float(scores.std()) or 1.0
    if not 0 < step < math.inf:
        raise ValueError(f"step is {step!r}; give a positive number on the scale of the scores")
    threshold = calibration.threshold()
    start = min(max(threshold, float(scores.min())), float(scores.max()))
    return LongRun(start, c.alpha, step, guarantee=c.guarantee, count_missed=c.count_missed)
