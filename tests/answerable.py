"""Queries with a score of their own, answerable or not, and scorers that read it."""

import numpy as np

from conformal_retrievers import FunctionScorer, JudgedQuery, Snippet
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.scoring import FunctionQueryScorer

# The first snippet of each query begins with its query score, and each snippet ends with its own.
FIRST = FunctionQueryScorer(lambda query, texts: float(texts[0].split()[0]), "first")
LAST = FunctionScorer(lambda query, texts: [float(t.split()[-1]) for t in texts], "last")


def judged(name, score, relevant=(1.0,), irrelevant=(), **fields):
    """Return a query with a query score, and snippets with scores of their own."""
    texts = [f"{score} {name} {s}" for s in (*relevant, *irrelevant)]
    flags = [True] * len(relevant) + [False] * len(irrelevant)
    return JudgedQuery(name, texts, flags, id=name, **{"retriever": "mine", **fields})


def unanswerable(name, score, **fields):
    return judged(name, score, (), (9.0,), **fields)


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
