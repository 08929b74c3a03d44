"""Whether a target can be reached end to end: what the retriever misses, no filter brings back."""

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.evaluation.measures import (
    END_TO_END,
    counts,
    documents,
    known_hits,
    share,
)
from conformal_retrievers.evaluation.share import Share
from conformal_retrievers.theory.intervals import percent
from conformal_retrievers.theory.ranks import exact_alpha


def depths(queries: ScoredQueries) -> NDArray[np.float64]:
    """Return the depth at which the retriever, or the first of several, finds each snippet, (S,).

    It is 1 for the best. Without hits it is the place in the list.
    """
    if hits := known_hits(queries):
        ranks = np.stack([found.ranks for found in hits.values()])
        return np.asarray(ranks.min(axis=0) + 1)
    return np.asarray(documents(queries) + 1.0, dtype=np.float64)


def too_shallow(calibration: Calibration, queries: ScoredQueries, level: float) -> str | None:
    """Return why no filter keeps the target share of all relevant snippets, or None.

    It names a depth that would do if the lists are deep enough to know one. None as well where the
    missed snippets are unknown.
    """
    target = float(1 - exact_alpha(calibration.alpha))
    found_at = depths(queries)
    deepest = int(found_at[np.isfinite(found_at)].max(initial=0))
    n = max(1, len(known_hits(queries)))
    k = (calibration.k or 0) // n  # of each retriever
    k = min(k or deepest, deepest)

    def reached(depth: int) -> Share:
        found = counts(queries, found_at <= depth)
        return share(found, END_TO_END + calibration.guarantee, level)

    at_k = reached(k)
    if not at_k.n or at_k.estimate >= target or not deepest:
        return None
    deeper = next((d for d in range(k + 1, deepest + 1) if reached(d).estimate >= target), None)
    found = calibration.subject.worded(FOUND[calibration.guarantee]).format(at_k)
    than = f" than {_depth(deepest, n)}" if deepest > k else ""
    remedy = f"{_depth(deeper, n)} would do" if deeper else f"Retrieve deeper{than}"
    return (
        f"At {_depth(k, n)}, the retriever finds {found}, so no filter reaches "
        f"{percent(target, exact=True)} end to end. {remedy}, or raise alpha."
    )


def _depth(k: int, n: int) -> str:
    """Name a depth as calibrations do, by the snippets of all n retrievers together."""
    return f"K = {k}" if n == 1 else f"K = {n * k} ({k} of each retriever)"


FOUND = {
    "query-recall": "{} of a query's relevant snippets on average",
    "snippet": "{} of the relevant snippets",
    "all": "all relevant snippets of {} of the queries",
    "any": "a relevant snippet of {} of the queries",
}
