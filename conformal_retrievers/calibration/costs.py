"""What a score costs on judged queries, and how sure that is.

The cost at an alpha is the share of the text, in characters, that is kept at the threshold that n
calibration units would give: the lowest at which at most α − (1 − α)/n is lost.

Scores are compared on the same resampled queries (paired bootstrap), each at its own threshold. One
threshold is noisy, so the comparison takes the geometric mean of the costs around it, see
`Aim.around`: more relevant snippets are near larger alphas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.scoring.scorer import Scores
from conformal_retrievers.theory.tolerance import binomial_lower, tolerance_rank

Values = NDArray[np.float64]
LEAST = 1e-3  # cost: below, none is better than another
GRID = 500  # thresholds that are tried, at most
RESAMPLES = 200


@dataclass(frozen=True)
class Aim:
    """What the thresholds are to reach: 1 − alpha of the guarantee."""

    guarantee: Guarantee
    alpha: float
    count_missed: bool = False
    delta: float | None = None
    n: int = 0  # the units that will calibrate: queries, or relevant snippets for "snippet"

    @property
    def allowed(self) -> float:
        """The share of the units that a finite threshold loses at most; below 0, there is none."""
        alpha, n = self.alpha, max(1, self.n)
        if self.delta is None:
            return alpha - (1 - alpha) / n
        return 1 - tolerance_rank(n, alpha, self.delta) / n

    def around(self, lost: float) -> list[Aim]:
        """Return the aims to compare at: half, once, two and four times the alpha.

        What is `lost` at any threshold is no part of an alpha that is halved or doubled.

        >>> [round(aim.alpha, 2) for aim in Aim("query-recall", 0.2).around(0.1)]
        [0.15, 0.2, 0.3, 0.5]
        """
        more, most = max(0.0, self.alpha - lost), (1 + self.alpha) / 2
        alphas = [min(lost + more * times, most) for times in (1 / 2, 2, 4)]
        return [replace(self, alpha=alpha) for alpha in (alphas[0], self.alpha, *alphas[1:])]


class Curve(NamedTuple):
    """What K queries lose and keep at g ascending thresholds."""

    thresholds: Values  # (g,)
    lost: Values  # (K, g), the loss of the guarantee
    kept: Values  # (K, g), the characters


@dataclass(frozen=True, eq=False)
class FitPart:
    """Judged queries and the lengths of their snippets."""

    queries: Sequence[JudgedQuery]

    @cached_property
    def relevant(self) -> list[NDArray[np.bool_]]:
        """Whether each query's snippets are relevant, (n,) each."""
        return [np.array(query.relevant, dtype=bool) for query in self.queries]

    @cached_property
    def lengths(self) -> list[Values]:
        """The characters of each query's snippets, (n,) each."""
        of_all = ([len(s.text) for s in query.snippets] for query in self.queries)
        return [np.array(of_query, dtype=np.float64) for of_query in of_all]

    @cached_property
    def retrieved(self) -> Values:
        """The characters of all snippets of each query, (K,)."""
        return np.array([lengths.sum() for lengths in self.lengths])

    def curve(self, scores: Sequence[Scores], aim: Aim) -> Curve:
        """Return what is lost and kept at each threshold, of scores (n,) of each query."""
        known = [np.where(np.isnan(s), -np.inf, s) for s in scores]  # NaN is kept
        of_relevant = [np.sort(s[r]) for s, r in zip(known, self.relevant, strict=True)]
        grid = np.unique(np.concatenate([*of_relevant, [np.inf]]))
        if len(grid) > GRID:
            grid = grid[np.linspace(0, len(grid) - 1, GRID).round().astype(int)]
        lost, kept = [], []
        for s, r, long, query in zip(known, of_relevant, self.lengths, self.queries, strict=True):
            order = np.argsort(s)
            sums = np.concatenate([[0.0], np.cumsum(long[order])])
            kept.append(sums[np.searchsorted(s[order], grid, side="right")])
            n = max(1, len(r) + (query.missed or 0) * aim.count_missed)
            share = np.searchsorted(r, grid, side="right") / n
            lost.append({"all": share < 1, "any": share == 0}.get(aim.guarantee, 1 - share))
        return Curve(grid, np.array(lost, dtype=np.float64), np.array(kept))

    def weights(self, aim: Aim) -> Values:
        """Return what each query counts, (K,): 0 without a known relevant snippet."""
        n = np.array([r.sum() for r in self.relevant], dtype=np.float64)
        if aim.count_missed:
            n += [query.missed or 0 for query in self.queries]
        return n if aim.guarantee == "snippet" else (n > 0).astype(np.float64)

    def share_to_lose(self, aim: Aim) -> float | None:
        """Return which share of a query's retrieved relevant snippets the aim may lose, if any.

        If missed ones count as lost, less of those that were retrieved may be.
        """
        if not aim.count_missed:
            return aim.alpha
        counted = self.weights(aim) > 0
        pairs = zip(self.relevant, self.queries, strict=True)
        found = np.array([r.sum() / max(1, r.sum() + (q.missed or 0)) for r, q in pairs])
        share = found[counted].mean() if counted.any() else 0.0
        return float(1 - (1 - aim.alpha) / share) if share > 1 - aim.alpha else None

    def cost(self, curve: Curve, aim: Aim, times: Values) -> Values:
        """Return the cost (r,) on queries that are drawn so many `times`, (r, K)."""
        weights = times * self.weights(aim)
        lost = weights @ curve.lost / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
        within = lost <= aim.allowed + 1e-12
        within[:, -1] = True  # at +inf, all is kept
        first = np.argmax(within, axis=1)
        kept = (times @ curve.kept)[np.arange(len(times)), first]
        return np.asarray(kept / np.maximum(times @ self.retrieved, 1e-300))

    def sure(self, scores: Sequence[Scores], aim: Aim) -> bool:
        """Return whether few enough relevant snippets score +inf, 99 % sure, if any snippet does.

        Otherwise the calibration part may have more of them, and then keeps everything.
        """
        if not any((s == np.inf).any() for s in scores):
            return True
        weights = self.weights(aim)
        finite = self.curve([np.where(s == np.inf, s, 0.0) for s in scores], aim)
        kept = int(weights @ (1 - finite.lost[:, 0]) + 1e-9) if len(finite.thresholds) > 1 else 0
        return binomial_lower(kept, int(weights.sum()), 0.01) >= 1 - aim.allowed

    def compared(self, scores: Sequence[Sequence[Scores]], aim: Aim) -> tuple[Values, Values]:
        """Return the costs of c candidates at the aim, and logarithms to compare, (c, 1 + r) each.

        The first column is that of all queries, the others of r resamples.
        """
        n = len(self.queries)
        drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
        times = np.vstack([np.ones(n), drawn])
        costs, logs = [], []
        weights = self.weights(aim)
        for of_candidate in scores:
            curve = self.curve(of_candidate, aim)
            lost = float(weights @ curve.lost[:, -1] / max(1.0, weights.sum()))  # all is kept there
            aims = aim.around(lost)
            sure = [self.sure(of_candidate, one) for one in aims]
            around = [
                self.cost(curve, one, times) if finite else np.ones(len(times))
                for one, finite in zip(aims, sure, strict=True)
            ]
            costs.append(around[1])
            logs.append(np.mean([np.log(np.maximum(cost, LEAST)) for cost in around], axis=0))
        return np.array(costs), np.array(logs)
