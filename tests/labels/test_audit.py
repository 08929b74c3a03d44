"""The rates of an audit by hand, and an audit that finds nothing."""

import numpy as np
import pytest

from conformal_retrievers.labels.judging.audit import AuditReport


def report(labelled, audited, weights, queries=None):
    places = np.zeros(len(labelled), int) if queries is None else queries
    return AuditReport(np.array(labelled), np.array(audited), places, np.array(weights, float))


def test_rates_by_hand():
    """One label is right; of four others two are audited, of which one is wrong: 1, 2 and 2."""
    found = report([True, False, False], [True, True, False], [1, 2, 2])
    assert found.agreement.estimate == pytest.approx(3 / 5)
    assert found.precision.estimate == 1
    assert found.miss_rate.estimate == pytest.approx(2 / 3)
    assert found.remaining_miss_rate.estimate == pytest.approx(1 / 3)
    assert found.labels["audit"]["of"] == 5


def test_what_is_audited_whole_leaves_nothing():
    found = report([True, False, False], [True, True, False], [1, 1, 1])
    assert found.remaining_miss_rate == (0, 0, 0)


def test_a_small_audit_that_finds_no_miss_does_not_say_that_there_is_none():
    """In 60 queries with a relevant snippet and 20 others, one of these is audited each.

    The share of misses among them may be 1 − 0.025^(1/60), so 68 of the 1,140 that nobody saw.
    """
    labelled, n = np.array([True, False] * 60), 60
    weights, queries = np.where(labelled, 1.0, 20.0), np.repeat(np.arange(n), 2)
    found = report(labelled, labelled, weights, queries)
    estimate, low, high = found.remaining_miss_rate
    missed = (1 - 0.025 ** (1 / n)) * 19 * n
    assert (estimate, low) == (0, 0)
    assert high == pytest.approx(missed / (missed + n))
    assert found.miss_rate.high == pytest.approx(missed / (missed + n * 19 / 20))
    assert found.labels["audit"]["remaining_miss_rate"] == [0, 0, high]


def test_a_rate_of_nothing_is_unknown():
    assert report([False], [False], [1]).labels["audit"]["miss_rate"] == [None, 0.0, 1.0]
