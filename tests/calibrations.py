"""Judged queries and calibrations for tests: by hand, and as Hypothesis strategies."""

import math
from fractions import Fraction
from typing import get_args

import numpy as np
import pytest
from hypothesis import strategies as st

from conformal_retrievers.calibration import Calibration, Guarantee
from conformal_retrievers.data.queries import ScoredQuery

GUARANTEES = get_args(Guarantee)
OF_QUERIES = ("query-recall", "all", "any")
every_guarantee = pytest.mark.parametrize("guarantee", GUARANTEES)
every_guarantee_of_queries = pytest.mark.parametrize("guarantee", OF_QUERIES)


def relevant(*scores, **options):
    """Return a query whose snippets are all relevant."""
    return ScoredQuery(scores, [True] * len(scores), **options)


def three_queries():
    """Three queries with (.1, .3), (.2) and (.4, .9) relevant, one that misses all, one without."""
    return [
        ScoredQuery([0.3, 0.8, 0.1], [True, False, True], id="a", missed=2),
        ScoredQuery([0.2, 0.7], [True, False], id="b", group="g", missed=0),
        ScoredQuery([0.95, 0.4, 0.9], [False, True, True], id="c", missed=1),
        ScoredQuery([0.6, 1.5], [False, False], id="d", missed=4),
        ScoredQuery([0.7, 1.2], [False, False], id="e", missed=0),
    ]


def calibration_of(queries=None, alpha=0.4, guarantee="query-recall", scorer="lookup", **options):
    """Return the calibration of scored queries, by default of the three."""
    queries = three_queries() if queries is None else queries
    options |= {"alpha": alpha, "guarantee": guarantee, "scorer": scorer}
    return Calibration.from_scores(queries, **options)


# Hundredths and thousandths, so that (n + 1)(1 − alpha) is often a whole number.
alphas = st.one_of(
    st.integers(1, 99).map(lambda i: Fraction(i, 100)),
    st.integers(1, 999).map(lambda i: Fraction(i, 1000)),
)


@st.composite
def judged(draw, *, ties=True, missed=False, groups=False, most=9):
    """Queries with relevant scores only, two or more of which have a retrieved one."""
    sizes = draw(st.lists(st.integers(0 if missed else 1, 5), min_size=2, max_size=most))
    sizes[:2] = [max(1, size) for size in sizes[:2]]
    n = sum(sizes)
    values = st.integers(0, 5) if ties else st.integers(-(10**6), 10**6)
    flat = draw(st.lists(values, min_size=n, max_size=n, unique=not ties))
    return [
        relevant(
            *sorted(flat[end - size : end]),
            missed=draw(st.integers(0, 3)) if missed else 0,
            group=draw(st.sampled_from("gh")) if groups else None,
            id=f"{place}",
        )
        for place, (size, end) in enumerate(zip(sizes, np.cumsum(sizes).tolist(), strict=True))
    ]


def counted(query, count_missed):
    """Return the relevant scores of a query, +inf for those that were missed."""
    return [*query.scores.tolist(), *[math.inf] * (query.n_missed * count_missed)]


def covered(query, guarantee, threshold, count_missed=False):
    """Return what the guarantee is an expectation of, for one query: a fraction, or 0 or 1."""
    kept = [score <= threshold for score in counted(query, count_missed)]
    if guarantee == "query-recall":
        return Fraction(sum(kept), len(kept))
    return Fraction((all if guarantee == "all" else any)(kept))
