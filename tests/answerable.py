"""Queries of one retriever whose best similarity tells whether they are answerable."""

import numpy as np

from conformal_retrievers import JudgedQuery, Snippet
from conformal_retrievers.data.queries import with_hits


def drawn(n, *, best, n_relevant=0, of="q", seed=0):
    """Return queries whose best similarity is around `best`, and the others around 0."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        scores = sorted([*rng.normal(size=9), best + rng.normal()], reverse=True)
        found = [Snippet(f"{of}{i} {s}", retrieval_score=s) for s in scores]
        relevant = [place < n_relevant for place in range(10)]
        made.append(JudgedQuery(f"{of}{i}", with_hits(found), relevant, id=f"{of}{i}"))
    return made
