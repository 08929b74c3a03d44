"""Simulated scored queries with one relevant snippet among ten."""

from __future__ import annotations

import numpy as np

from conformal_retrievers import ScoredQuery


def draw(rng, n, *, relevant=1.0, separation=4.0, shift=0.0):
    """Draw n queries of 10 snippets, one of them relevant if it is retrieved, its score N(0, 1)."""
    queries = []
    for _ in range(n):
        scores = rng.normal(separation, 1, 10)
        mask = np.zeros(10, bool)
        mask[rng.integers(10)] = rng.random() < relevant
        scores[mask] -= separation
        queries.append(ScoredQuery(scores + shift, mask, missed=int(not mask.any())))
    return queries


def unjudged(queries):
    """Return the queries as a filter log has them: scores, and nothing known to be relevant."""
    return [ScoredQuery(q.scores, np.zeros(len(q.scores), bool), group=q.group) for q in queries]
