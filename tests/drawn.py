"""Simulated scored queries with one relevant snippet among ten, and calibrations on scores."""

import numpy as np

from conformal_retrievers import Calibration, ScoredQuery


def calibrated(given, alpha=0.1, scorer="lookup", **options):
    """Calibrate on scored queries, or on scores of the one relevant snippet that a query has."""
    queries = [q if hasattr(q, "scores") else ScoredQuery([q], [True], missed=0) for q in given]
    return Calibration.from_scores(queries, alpha=alpha, scorer=scorer, **options)


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
