"""Evaluations of columns are those of objects, and those of parts together are those of all."""

import math
from functools import partial

import numpy as np
import pytest
from drawn import calibrated
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers import ScoredQueries, ScoredQuery, compare, diagnose, evaluate
from conformal_retrievers.evaluation.evaluate import evaluation_of, query_counts
from conformal_retrievers.evaluation.measures import QueryCounts
from conformal_retrievers.evaluation.per_query_counts import Observed, aucs
from conformal_retrievers.theory.intervals import auc

SCORES = st.sampled_from([-math.inf, 0.1, 0.2, 0.25, 0.5, 0.9, math.inf, math.nan])


@st.composite
def queries_of(draw, gate=False):
    """Draw a query with ties, unscorable snippets, unknown fields, or without any snippet."""
    snippets = draw(st.lists(st.tuples(SCORES, st.booleans()), max_size=6))
    return ScoredQuery(
        [score for score, _ in snippets],
        np.array([relevant for _, relevant in snippets], dtype=bool),
        group=draw(st.sampled_from(["a", "b", None])),
        missed=draw(st.sampled_from([None, 0, 2])),
        tokens=draw(st.sampled_from([None, [3.0] * len(snippets)])),
    )


GIVEN = st.lists(queries_of(), min_size=1, max_size=12)
CALIBRATIONS = [
    calibrated(
        [ScoredQuery([s, s + 1], [True, False], group=g) for s in (0.1, 0.2, 0.25) for g in "ab"],
        *(0.3, "drawn"),
        **options,
    )
    for options in ({}, {"guarantee": "snippet"}, {"by_group": True})
]


def written(found):
    """Return all figures of an evaluation, a diagnosis or differences; NaN is equal to itself."""
    return repr(found), str(found), [str(of) for of in getattr(found, "sweep", ())]


@pytest.mark.slow
@given(GIVEN, st.sampled_from(CALIBRATIONS))
def test_columns_are_measured_as_the_list_of_their_queries(queries, calibration):
    columns = ScoredQueries.of(queries)
    for measured in (evaluate, diagnose, partial(compare, CALIBRATIONS[1])):
        assert written(measured(calibration, columns)) == written(measured(calibration, queries))
        assert written(measured(calibration, [*columns])) == written(measured(calibration, queries))


@given(GIVEN, st.sampled_from(CALIBRATIONS), st.data())
def test_parts_of_queries_give_together_what_all_give(queries, calibration, data):
    ends = sorted(data.draw(st.sets(st.integers(1, len(queries)))) | {len(queries)})
    parts = [queries[i:j] for i, j in zip([0, *ends], ends, strict=False)]
    counts = QueryCounts.merged(query_counts(calibration, part) for part in parts)
    assert repr(evaluation_of(calibration, counts)) == repr(evaluate(calibration, queries))


def test_an_id_in_two_parts_is_refused():
    part = query_counts(CALIBRATIONS[0], [ScoredQuery([0.1], [True], id="q")])
    with pytest.raises(ValueError, match="id 'q'"):
        QueryCounts.merged([part, part])


@given(GIVEN)
def test_the_auc_of_each_query_is_that_of_its_scores(queries):
    columns = ScoredQueries.of(queries)
    expected = [auc(q.scores[q.relevant], q.scores[~q.relevant]) for q in queries]
    np.testing.assert_array_equal(aucs(columns, columns.scores), expected)
    over = auc(columns.scores[columns.relevant], columns.scores[~columns.relevant])
    np.testing.assert_array_equal(Observed.of(CALIBRATIONS[0], columns).auc_over, over)
