"""The theorems, exactly and for every data set: no simulation, no tolerance.

They are about n + 1 exchangeable units. Leave out each unit in turn: summed over the units, the
thresholds of the others lose at most a share α. The sums are fractions; the data have ties. A
missed snippet has the score +inf, which a threshold of +inf keeps.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from calibrations import (
    GUARANTEES,
    alphas,
    calibration_of,
    counted,
    covered,
    every_guarantee,
    every_guarantee_of_queries,
    judged,
    relevant,
)
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers.calibration.guarantees import Units
from conformal_retrievers.data.columns import ScoredQueries


def threshold_of(queries, alpha, guarantee, count_missed=False):
    return Units(guarantee, ScoredQueries.of(queries), count_missed).threshold(float(alpha), None)


def shares_left_out(queries, alpha, guarantee, count_missed=False):
    """Return the share covered of each contributing query, at the threshold of the others."""
    return [
        covered(
            query,
            guarantee,
            threshold_of(queries[:i] + queries[i + 1 :], alpha, guarantee, count_missed),
            count_missed,
        )
        for i, query in enumerate(queries)
        if counted(query, count_missed)
    ]


@every_guarantee_of_queries
@pytest.mark.parametrize("count_missed", [False, True])
@given(queries=st.one_of(judged(missed=True), judged()), alpha=alphas)
def test_leaving_out_each_query_loses_at_most_alpha_of_them(
    guarantee, count_missed, queries, alpha
):
    shares = shares_left_out(queries, alpha, guarantee, count_missed)
    assert sum(1 - share for share in shares) <= alpha * len(shares)


@pytest.mark.parametrize("guarantee", ["all", "any"])
@given(queries=judged(ties=False), alpha=alphas)
def test_without_ties_exactly_the_rank_of_queries_is_covered(guarantee, queries, alpha):
    assert sum(shares_left_out(queries, alpha, guarantee)) == math.ceil(len(queries) * (1 - alpha))


@given(queries=st.one_of(judged(), judged(ties=False), judged(missed=True)), alpha=alphas)
def test_leaving_out_each_snippet_keeps_at_least_the_rank_of_them(queries, alpha):
    kept = 0
    for i, query in enumerate(queries):
        others = queries[:i] + queries[i + 1 :]
        for j, score in enumerate(query.scores):
            rest = relevant(*np.delete(query.scores, j), missed=query.missed)
            kept += score <= threshold_of([*others, rest], alpha, "snippet", True)
        if query.missed:
            fewer = replace(query, missed=query.missed - 1)
            threshold = threshold_of([*others, fewer], alpha, "snippet", True)
            kept += query.missed * (threshold == math.inf)
    scores = [score for query in queries for score in counted(query, True)]
    assert kept >= math.ceil(len(scores) * (1 - alpha))
    if len(set(scores)) == len(scores):
        assert kept == math.ceil(len(scores) * (1 - alpha))


AT = [*np.arange(-1, 7, 0.5).tolist(), math.inf, -math.inf]
RUN_TIME_GROUPS = (None, "g", "h", "unseen")


@st.composite
def calibrations(draw, guarantee):
    """A calibration without delta, of any grouping, with missed snippets that count or not."""
    by_group = draw(st.booleans())
    queries = draw(judged(missed=True, groups=by_group))
    return calibration_of(
        queries, float(draw(alphas)), guarantee, by_group=by_group, count_missed=draw(st.booleans())
    )


@every_guarantee
@given(data=st.data())
def test_a_score_is_kept_exactly_if_its_p_value_is_above_alpha(guarantee, data):
    calibration = data.draw(calibrations(guarantee))
    for group in RUN_TIME_GROUPS:
        above = calibration.p_values(AT, group) > calibration.alpha
        assert calibration.keep(AT, group).tolist() == above.tolist()


@every_guarantee
@given(data=st.data(), other=alphas)
def test_another_alpha_and_guarantee_are_those_of_calibrating_again(guarantee, data, other):
    first = data.draw(calibrations(guarantee))
    for name in GUARANTEES:
        again = first.at(float(other)).guaranteeing(name)
        fresh = calibration_of(
            first.queries,
            float(other),
            name,
            by_group=first.by_group,
            count_missed=first.count_missed,
        )
        for group in RUN_TIME_GROUPS:
            assert again.threshold(group) == fresh.threshold(group)
            assert again.p_values(AT, group).tolist() == fresh.p_values(AT, group).tolist()
        assert (again.alpha, again.guarantee) == (fresh.alpha, fresh.guarantee)
    assert first.at(first.alpha) == first
