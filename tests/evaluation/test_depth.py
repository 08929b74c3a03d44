"""Which depth of which retrievers reaches a recall: by hand, and what is not measured on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conformal_retrievers import JudgedQuery, Snippet
from conformal_retrievers.calibration.choosing import split
from conformal_retrievers.data.hits import Hit
from conformal_retrievers.evaluation import depth


def query(name, dense, bm25, missed=0):
    """A query whose two lists hold named snippets; those with a capital letter are relevant."""
    names = dict.fromkeys([*dense, *bm25])
    lists = {"dense": dense, "bm25": bm25}
    snippets = [
        Snippet(
            f"{name} {s}", hits=[Hit(r, list(of).index(s)) for r, of in lists.items() if s in of]
        )
        for s in names
    ]
    return JudgedQuery(name, snippets, [s.isupper() for s in names], id=name, missed=missed)


def by_setting(found):
    return {("+".join(s.retrievers), s.k): s for s in found.settings}


# In each query, dense finds A first and B third; BM25 finds C second, and one more is missed.
def three(n=30, missed=1):
    return [query(f"q{i}", "AxByz", "uCAvw", missed=missed) for i in range(n)]


def test_the_recall_and_the_snippets_of_each_depth_by_hand():
    found = depth(three(), recall=0.7)
    assert (found.n_queries, found.n_judged) == (10, 30)
    assert len(set(found.ids)) == 10
    assert set(found.ids) < {f"q{i}" for i in range(30)}
    assert "ids" in str(found)
    at = by_setting(found)
    # Of the four relevant ones, dense has two from K = 3 on, BM25 two from 3 on, both all three.
    assert at["dense", 5].recall.estimate == at["bm25", 5].recall.estimate == 0.5
    assert at["bm25+dense", 3].recall.estimate == 0.75
    assert at["bm25+dense", 3].found == 5  # A x B and u C A
    assert at["bm25+dense", 5].found == 9
    assert {key: s and s.k for key, s in found.smallest.items()} == {
        ("bm25",): None,
        ("dense",): None,
        ("bm25", "dense"): 3,
    }
    assert at["dense", 5].passed is None
    # In the order of fusion A u C x B v …: 0.75 takes 4 of the ranks, and one of two ties.
    assert 4 <= at["bm25+dense", 5].passed.estimate <= 5
    assert "bm25 + dense: 70 % is reached at K = 3" in str(found)
    assert "bm25: 70 % takes more than K = 5" in str(found)


def test_what_passes_is_the_calibrated_top_k_where_nothing_is_learned():
    found = depth(three(), recall=0.25)
    dense = by_setting(found)["dense", 5]
    assert dense.passed.estimate == pytest.approx(1)  # A, the first
    assert by_setting(depth(three(), recall=0.5))["dense", 5].passed.estimate == pytest.approx(3)
    half = by_setting(depth(three(), recall=0.375))["dense", 5]
    assert half.passed.estimate == pytest.approx(2)  # between the first and the third


def test_at_a_depth_nothing_is_known_of_deeper_hits():
    # At K = 2 the union is A x and u C, with C the last. B is deeper, and would be the second.
    deeper = [query(f"q{i}", "AxByz", "uCAvB", missed=1) for i in range(30)]
    assert by_setting(depth(deeper, recall=0.5))["bm25+dense", 2].passed.estimate == 4


def test_only_the_fit_part_is_measured():
    judged = three(90)
    own = {q.id for q in split(judged).fit}
    assert len(own) == 30
    assert own == {q.id for q in split(judged[::-1]).fit}
    spoiled = [q if q.id in own else replace(q, missed=90) for q in judged]
    assert depth(spoiled, recall=0.7) == depth(judged, recall=0.7)


def drawn(n, seed=0, k=12):
    """Queries with two relevant snippets; dense has them early, BM25 has others there."""
    rng = np.random.default_rng(seed)
    judged = []
    for i in range(n):
        relevant = np.isin(np.arange(k), rng.choice(k, 2, replace=False))
        ranks = [np.argsort(np.argsort(rng.normal(size=k) - s * relevant)) for s in (2.0, 1.5)]
        snippets = [
            Snippet(f"q{i} s{j}", hits=[Hit("bm25", int(a)), Hit("dense", int(b))])
            for j, (b, a) in enumerate(zip(*ranks, strict=True))
        ]
        judged.append(JudgedQuery(f"q{i}", snippets, relevant, id=f"q{i}", missed=0))
    return judged


def test_with_enough_queries_the_filter_has_a_learned_score_and_passes_less_than_each_top_k():
    judged = drawn(240)
    found = depth(judged, recall=0.9)
    assert found.enough
    assert found.learned
    at = by_setting(found)
    both, dense = at["bm25+dense", 12].passed, at["dense", 12].passed
    assert both.high < dense.estimate
    assert both.low <= both.estimate <= both.high
    assert "Too few" not in str(found)
    assert f"Measured on {found.n_queries} of 240" in str(found)


def test_too_few_queries_are_named_first():
    found = depth(drawn(30))
    assert not found.enough
    assert not found.learned
    assert str(found).startswith("Too few queries: 10 of 30")


def test_where_missed_snippets_are_unknown_recall_is_of_what_was_found():
    found = depth(three(missed=None), recall=0.7)
    assert by_setting(found)["dense", 5].recall.estimate == pytest.approx(2 / 3)
    assert by_setting(found)["bm25+dense", 5].recall.estimate == 1
    assert "`missed`" in str(found)
    assert "`missed`" not in str(depth(three()))
    judged = three()
    own = [q.id for q in split(judged).fit]
    some = [replace(q, missed=None) if q.id in own[:4] else q for q in judged]
    found = depth(some, recall=0.7)  # over those that state it
    assert by_setting(found)["dense", 5].recall.estimate == 0.5
    assert found.n_queries == 6


def test_lists_without_hits_or_relevant_snippets_and_an_invalid_recall_are_refused():
    without = JudgedQuery("q", ["a", "b"], [True, False], id="q")
    with pytest.raises(ValueError, match="hits"):
        depth([*three(), without])
    with pytest.raises(ValueError, match="judged"):
        depth(three(2))
    with pytest.raises(ValueError, match="judged"):
        depth([query(f"q{i}", "xy", "z") for i in range(9)])
    with pytest.raises(ValueError, match="recall"):
        depth(three(), recall=90)
