"""The conformal quantile of single scores, which the thresholds of units are compared with."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from conformal_retrievers.theory.ranks import conformal_rank


def conformal_quantile(scores: ArrayLike, alpha: float) -> float:
    """Return the k(n, α)-th smallest of n exchangeable scores, or +inf if k(n, α) > n.

    A new exchangeable score is at most this with probability ≥ 1 − α and, without ties, at most
    1 − α + 1/(n + 1).

    >>> conformal_quantile([0.5, 0.1, 0.7, 0.2, 0.4], alpha=0.4)  # k = ⌈6 · 0.6⌉ = 4
    0.5
    """
    v = np.asarray(scores, dtype=np.float64)
    k = conformal_rank(len(v), alpha)
    return math.inf if k > len(v) else float(np.partition(v, k - 1)[k - 1])
