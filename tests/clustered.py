"""Queries of a retriever whose easy queries have more relevant snippets, with exact coverages.

Query q has a difficulty b_q ~ N(0, 1/2), each of its relevant snippets the score b_q + N(0, 1/2).
The easier it is (low b_q), the more relevant snippets it has: from 1 to 50, 5 on average. The
coverage of a threshold is an integral over difficulty and size, so tests need no test sample. A
score of a snippet of a random query is N(0, 1).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy.stats import norm

from benchmarks.quantile import conformal_quantile
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.theory.ranks import Masses, mass_threshold

FALSE_ALARM = 1e-4  # of each seeded statistical test
SD = math.sqrt(0.5)
SIZES = np.arange(1, 51)


def difficulties_and_sizes(rng, n_queries):
    difficulty = rng.normal(0, SD, n_queries)
    log_size = 1.0 - 1.1 * difficulty / SD + rng.normal(0, 0.3, n_queries)
    return difficulty, np.clip(np.round(np.exp(log_size)), 1, 50).astype(int)


def clustered_queries(rng, n_queries):
    """Draw scored queries; each also has three irrelevant snippets, which score higher."""
    return [
        ScoredQuery(
            np.concatenate([rng.normal(b, SD, n), rng.normal(b + 3, 1, 3)]),
            [True] * n + [False] * 3,
        )
        for b, n in zip(*difficulties_and_sizes(rng, n_queries), strict=True)
    ]


def drawn_thresholds(rng, trials, n_queries, alpha, *, missed=0.0, shift=0.0):
    """Return the thresholds (trials,) of many calibrations, for each guarantee.

    Each relevant snippet is missed with probability `missed`, which gives it the score +inf.
    `shift` (n_queries,) makes queries harder.
    """
    found = {name: np.empty(trials) for name in ("query-recall", "snippet", "all", "any")}
    for trial in range(trials):
        difficulty, sizes = difficulties_and_sizes(rng, n_queries)
        scores = rng.normal(np.repeat(difficulty + shift, sizes), SD)
        scores[rng.random(len(scores)) < missed] = math.inf
        starts = np.cumsum(sizes) - sizes
        masses = Masses.of(np.repeat(sizes, sizes))
        found["query-recall"][trial] = mass_threshold(scores, masses, alpha)
        found["snippet"][trial] = conformal_quantile(scores, alpha)
        found["all"][trial] = conformal_quantile(np.maximum.reduceat(scores, starts), alpha)
        found["any"][trial] = conformal_quantile(np.minimum.reduceat(scores, starts), alpha)
    return found


def coverage(guarantee, threshold, *, missed=0.0):
    """Return what thresholds (...,) cover of a new query, with `missed` of its snippets missed.

    A threshold of +inf covers everything, as in the theorems.
    """
    t = np.asarray(threshold, dtype=np.float64)
    weights, size_chances = _law()
    kept = (1 - missed) * norm.cdf(t[..., None] / SD - _grid())[..., None]  # of one snippet
    by_size = {
        "query-recall": lambda: kept * np.ones(len(SIZES)),
        "snippet": lambda: kept * SIZES,
        "all": lambda: kept**SIZES,
        "any": lambda: 1 - (1 - kept) ** SIZES,
    }[guarantee]()
    total = (size_chances * by_size).sum(axis=-1) @ weights
    if guarantee == "snippet":
        total = total / (weights @ (size_chances @ SIZES))
    covered = np.where(np.isposinf(t), 1.0, total)
    return float(covered) if covered.ndim == 0 else covered


def _grid():
    """Difficulties in units of their standard deviation."""
    return np.linspace(-8, 8, 161)


@cache
def _law():
    """The weights (161,) of the difficulties, and the chance (161, 50) of each size given them."""
    z = _grid()
    upper = np.append(np.log(SIZES[:-1] + 0.5), np.inf)
    below = norm.cdf((upper - (1.0 - 1.1 * z)[:, None]) / 0.3)
    weights = norm.pdf(z)
    return weights / weights.sum(), np.diff(below, axis=1, prepend=0.0)
