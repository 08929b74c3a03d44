"""Queries of a retriever whose easy queries have more relevant snippets, with exact coverages.

Query q has a difficulty b_q ~ N(0, 1/2), a relevant snippet of it the score b_q + N(0, 1/2), and
the easier it is (low b_q) the more relevant snippets it has, from 1 to 50, 5 in the mean. What a
threshold covers of a new query is an integral over difficulty and size, so that no test needs a
test sample. A score of a snippet of a random query is N(0, 1).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy.stats import norm

from conformal_retrievers import ScoredQuery

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


def missing(rng, queries, share):
    """Take each relevant snippet away with a probability, as a retriever does that misses it."""
    result = []
    for query in queries:
        stays = ~query.relevant | (rng.random(len(query.scores)) >= share)
        missed = int((~stays).sum())
        result.append(ScoredQuery(query.scores[stays], query.relevant[stays], missed=missed))
    return result


def coverage(guarantee, threshold, *, missed=0.0):
    """What a threshold covers of a new query of which each relevant snippet is missed so often.

    A threshold of +inf covers everything, as in the theorems.
    """
    if math.isinf(threshold):
        return 1.0
    weights, size_chances = _law()
    kept = (1 - missed) * norm.cdf(threshold / SD - _grid())[:, None]  # of one relevant snippet
    by_size = {
        "query-recall": kept * np.ones(len(SIZES)),
        "snippet": kept * SIZES,
        "all": kept**SIZES,
        "any": 1 - (1 - kept) ** SIZES,
    }[guarantee]
    total = float(weights @ (size_chances * by_size).sum(axis=1))
    return total / float(weights @ (size_chances @ SIZES)) if guarantee == "snippet" else total


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
