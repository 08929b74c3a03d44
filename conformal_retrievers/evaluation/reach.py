"""Whether a target can be reached end to end: what the retriever misses, no filter brings back."""

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.evaluation.measures import END_TO_END, Columns, Share, shares
from conformal_retrievers.theory.intervals import percent
from conformal_retrievers.theory.ranks import exact_alpha


def depths(columns: Columns) -> NDArray[np.float64]:
    """Return the depth at which the retriever, or the first of several, finds each snippet, (S,).

    It is 1 for the best. Without hits it is the place in the list.
    """
    if columns.hits:
        ranks = np.stack([found.ranks for found in columns.hits.values()])
        return np.asarray(ranks.min(axis=0) + 1)
    starts = np.cumsum(columns.sizes) - columns.sizes
    return np.arange(len(columns.scores)) - starts[columns.query_of] + 1.0


def out_of_reach(calibration: Calibration, columns: Columns, level: float) -> str | None:
    """Return why no threshold can keep the target share of all relevant snippets, or None.

    It names a depth that would do if the lists are deep enough to know one. None as well where the
    missed snippets are unknown.
    """
    target = float(1 - exact_alpha(calibration.alpha))
    found_at = depths(columns)
    deepest = int(found_at[np.isfinite(found_at)].max(initial=0))
    k = (calibration.k or 0) // max(1, len(columns.hits))  # of each retriever
    k = min(k or deepest, deepest)

    def reached(depth: int) -> Share:
        counts = columns.counts(found_at <= depth)
        return shares(counts, level)[END_TO_END + calibration.guarantee]

    at_k = reached(k)
    if not at_k.n or at_k.estimate >= target or not deepest:
        return None
    deeper = next((d for d in range(k + 1, deepest + 1) if reached(d).estimate >= target), None)
    remedy = f"K = {deeper} would do" if deeper else f"Retrieve deeper than K = {deepest}"
    return (
        f"{percent(target, exact=True)} is out of reach end to end: with everything kept, "
        f"{MEANS[calibration.guarantee]} is {at_k} at K = {k}. {remedy}, or raise alpha."
    )


MEANS = {
    "query-recall": "the mean share of a query's relevant snippets",
    "snippet": "the share of the relevant snippets",
    "all": "the share of queries with all their relevant snippets",
    "any": "the share of queries with a relevant snippet",
}
