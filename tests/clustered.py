"""Queries of a retriever whose easy queries have more relevant snippets, with exact coverages.

Query q has a difficulty b_q ~ N(0, 1/2), each of its relevant snippets the score b_q + N(0, 1/2).
The easier it is (low b_q), the more relevant snippets it has: from 1 to 50, 5 on average. The
coverage of a threshold is an integral over difficulty and size, so tests need no test sample. A
score of a snippet of a random query is N(0, 1).
"""

import math
from functools import cache

import numpy as np
from scipy.stats import norm

from benchmarks.quantile import conformal_quantile

FALSE_ALARM = 1e-4  # of each seeded statistical test
SD = math.sqrt(0.5)
SIZES = np.arange(1, 51)


def difficulties_and_sizes(rng, n_queries):
    difficulty = rng.normal(0, SD, n_queries)
    log_size = 1.0 - 1.1 * difficulty / SD + rng.normal(0, 0.3, n_queries)
    return difficulty, np.clip(np.round(np.exp(log_size)), 1, 50).astype(int)


def drawn_thresholds(rng, trials, n_queries, alpha):
    """Return the thresholds (trials,) of many calibrations, for each guarantee."""
    found = {name: np.empty(trials) for name in ("snippet", "all", "any")}
    for trial in range(trials):
        difficulty, sizes = difficulties_and_sizes(rng, n_queries)
        scores = rng.normal(np.repeat(difficulty, sizes), SD)
        starts = np.cumsum(sizes) - sizes
        found["snippet"][trial] = conformal_quantile(scores, alpha)
        found["all"][trial] = conformal_quantile(np.maximum.reduceat(scores, starts), alpha)
        found["any"][trial] = conformal_quantile(np.minimum.reduceat(scores, starts), alpha)
    return found


def coverage(guarantee, threshold):
    """Return what thresholds (...,) cover of a new query; +inf covers everything."""
    t = np.asarray(threshold, dtype=np.float64)
    weights, size_chances = _law()
    kept = norm.cdf(t[..., None] / SD - _grid())[..., None]  # of one snippet
    by_size = {
        "query-recall": lambda: kept * np.ones(len(SIZES)),
        "all": lambda: kept**SIZES,
        "any": lambda: 1 - (1 - kept) ** SIZES,
    }[guarantee]()
    return np.where(np.isposinf(t), 1.0, (size_chances * by_size).sum(axis=-1) @ weights)


def _grid():
    """Difficulties in units of their standard deviation."""
    return np.linspace(-8, 8, 161)


@cache
def _law():
    """The weights (161,) of the difficulties, and the chance (161, 50) of each size given them."""
    z = _grid()
    below = norm.cdf((np.append(np.log(SIZES[:-1] + 0.5), np.inf) - (1.0 - 1.1 * z)[:, None]) / 0.3)
    weights = norm.pdf(z)
    return weights / weights.sum(), np.diff(below, axis=1, prepend=0.0)
