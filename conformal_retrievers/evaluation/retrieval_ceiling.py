"""Whether a target can be reached end to end: what the retriever misses, no filter brings back."""

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.wording import wording
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.evaluation import measures
from conformal_retrievers.evaluation.share import Share
from conformal_retrievers.theory.intervals import percent
from conformal_retrievers.theory.ranks import exact_alpha

say = wording(__package__)


def depths(queries: ScoredQueries) -> NDArray[np.float64]:
    """Return the depth at which the retriever, or the first of several, finds each snippet, (S,).

    It is 1 for the best. Without hits it is the place in the list.
    """
    if hits := measures.known_hits(queries):
        ranks = np.stack([of_one.ranks for of_one in hits.values()])
        return np.asarray(ranks.min(axis=0) + 1)
    return np.asarray(measures.documents(queries) + 1.0, dtype=np.float64)


def too_shallow(calibration: Calibration, queries: ScoredQueries, level: float) -> str | None:
    """Return why no filter keeps the target share of all relevant snippets, or None.

    It names a depth that would do if the lists are deep enough to know one. None as well where the
    missed snippets are unknown.
    """
    target = float(1 - exact_alpha(calibration.alpha))
    found_at = depths(queries)
    deepest = int(found_at[np.isfinite(found_at)].max(initial=0))
    n = max(1, len(measures.known_hits(queries)))
    k = (calibration.k or 0) // n  # of each retriever
    k = min(k or deepest, deepest)

    def reached(depth: int) -> Share:
        counts = measures.counts(queries, found_at <= depth)
        return measures.share(counts, measures.END_TO_END + calibration.guarantee, level)

    at_k = reached(k)
    if not at_k.n or at_k.estimate >= target or not deepest:
        return None
    deeper = next((d for d in range(k + 1, deepest + 1) if reached(d).estimate >= target), None)
    than = f" than {_depth(deepest, n)}" if deepest > k else ""
    return say(
        "too shallow",
        at_k=_depth(k, n),
        share=calibration.subject.worded(say(f"finds {calibration.guarantee}", share=at_k)),
        target=percent(target, exact=True),
        remedy=f"{_depth(deeper, n)} would do" if deeper else f"Retrieve deeper{than}",
    )


def _depth(k: int, n: int) -> str:
    """Name a depth as calibrations do, by the snippets of all n retrievers together."""
    return f"K = {k}" if n == 1 else f"K = {n * k} ({k} of each retriever)"
