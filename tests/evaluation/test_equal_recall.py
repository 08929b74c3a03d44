"""Top k, thresholds and the filter at one recall: three queries by hand, and the bootstrap."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from drawn import calibrated

from conformal_retrievers import ScoredQueries, ScoredQuery
from conformal_retrievers.data.hits import HitColumns
from conformal_retrievers.evaluation import baselines
from conformal_retrievers.evaluation import equal_recall as module
from conformal_retrievers.evaluation.baselines import FILTER
from conformal_retrievers.evaluation.equal_recall import equal_recall
from conformal_retrievers.theory.intervals import Interval

NONE = math.inf


def at(threshold):
    """A calibration whose threshold is this number."""
    return calibrated([threshold], 0.5)


def hits(ranks, scores=None):
    ranks = np.array(ranks, float)
    none = np.full(len(ranks), np.nan)
    return HitColumns(ranks, none if scores is None else np.array(scores, float))


# By rank: relevant first and third of four; second of two; first of three, and one is missed.
QUERIES = [
    ScoredQuery([0.1, 0.9, 0.4, 0.8], [True, False, True, False], missed=0, tokens=[1, 2, 3, 4]),
    ScoredQuery([0.9, 0.2], [False, True], missed=0, tokens=[5, 6]),
    ScoredQuery([0.1, 0.8, 0.3], [True, False, False], missed=1, tokens=[7, 8, 9]),
]


def of(queries, threshold):
    """The table of queries at a threshold, its rows by name without the numbers in them."""
    found = equal_recall(at(threshold), ScoredQueries.of(queries))
    assert found is not None
    return found, {re.sub(r"[0-9.]", "", row.name): row for row in found.rows}


def values(row):
    return [estimate.estimate for estimate in row.measured.values()]


def ranked(queries, retriever="retriever"):
    return [
        replace(q, hits={retriever: hits(range(len(q.scores)), scores=-np.arange(len(q.scores)))})
        for q in queries
    ]


def test_the_recall_of_several_retrievers_says_which_relevant_snippets_it_is_of():
    two = [replace(q, hits=dict.fromkeys("ab", hits(range(len(q.scores))))) for q in QUERIES]
    found, _ = of(two, 0.5)
    note = "known to all retrievers together"
    assert any(note in line for line in found.notes)
    assert not any(note in line for line in of(ranked(QUERIES), 0.5)[0].notes)


def test_top_k_of_three_queries_at_the_recall_of_the_filter():
    # At 0.5 the filter keeps snippets 0 and 2, snippet 1, and snippets 0 and 2.
    found, rows = of(ranked(QUERIES), 0.5)
    recall = (1 + 1 + 1 / 2) / 3
    assert values(rows[FILTER]) == pytest.approx([recall, 5 / 3, (1 + 3 + 6 + 7 + 9) / 3])
    top = rows["top  of retriever"]  # top 3 keeps as many relevant ones: 2, 1 and 1
    assert top.setting == 3
    assert values(top) == pytest.approx([recall, 8 / 3, (6 + 11 + 24) / 3])
    assert [d.estimate for d in top.more.values()] == pytest.approx([0, 1, 5])
    assert (found.end_to_end, found.ranked, found.n_queries) == (True, True, 3)
    # A threshold on the retriever's scores, which are −rank in each query, is the same here.
    assert values(rows["threshold on retriever"]) == pytest.approx(values(top))
    assert rows["threshold on retriever"].setting == -2


def test_the_filter_and_the_best_top_k_are_compared_in_words():
    found, rows = of(ranked(QUERIES), 0.5)
    assert found.comparison.startswith(
        "At 83.3 % end-to-end recall, the filter passes 1.67 snippets per query, and the best top "
        "k, of retriever, 2.67: a difference of +1.00 [–], which 3 queries with something "
        "relevant are too few to test; "
    )
    assert all(math.isnan(row.measured["recall"].low) for row in rows.values())
    # Two rankings that find the relevant snippet at 1 and at 3 of four, while the filter passes it
    # alone: the better one stands beside it, and the difference is the same in all resamples.
    query = ScoredQuery([0.1, 0.9, 0.9, 0.9], [True, False, False, False], missed=0)
    two = {"late": hits([2, 0, 1, 3]), "early": hits([1, 0, 2, 3])}
    clear, _ = of([replace(query, hits=two)] * 10, 0.5)
    assert "of early, 2.00: a difference of +1.00 [+1.00, +1.00], which is significant." in str(
        " ".join(clear.comparison.split())
    )
    worse, _ = of([replace(query, scores=[0.1] * 4, hits={"r": hits(range(4))})] * 10, 0.5)
    assert "-3.00], which is significant: the filter passes more." in worse.comparison
    estimates = [{"snippets": Interval(n, 5, 9)} for n in (10.46, 18.04, 7.58)]  # as 18.0 − 10.5
    row = replace(clear.filter, measured={**clear.filter.measured, **estimates[0]})
    top = replace(clear.best_top_k, measured={**row.measured, **estimates[1]}, more=estimates[2])
    printed = replace(clear, rows=(top, row)).comparison
    assert "the filter passes 10.5 snippets" in printed
    assert "18.0: a difference of +7.5 [+5.0, +9.0]" in printed
    same, _ = of([replace(query, hits={"r": hits(range(4))})] * 10, 0.5)
    assert "+0.00 [+0.00, +0.00], which is not significant." in same.comparison
    # The filter passes 1 of 25 queries and 3 of 15, and top 2 has its recall: differences of 1 and
    # −1, of mean 0.25 and variance 1 − 0.25². With n queries it is 2.80 standard errors for
    # n = 2.80² (1 / 0.25² − 1) = 118, give or take the noise of 1,000 resamples.
    more = replace(query, scores=[0.1, 0.1, 0.1, 0.9])
    mixed = [replace(q, hits={"r": hits([1, 0, 2, 3])}) for q in [query] * 25 + [more] * 15]
    told, _ = of(mixed, 0.5)
    assert told.best_top_k.needed == pytest.approx(118, rel=0.15)
    assert "not significant. About 130 queries are needed to prove one of this" in told.comparison
    level, _ = of([*mixed[:1]] * 1001 + [*mixed[-1:]] * 1000, 0.5)
    assert level.best_top_k.needed > 1e5  # a number that is of no use
    assert "to prove" not in level.comparison
    even, _ = of([*mixed[:15], *mixed[25:]], 0.5)
    assert "a difference of +0.00 [-0.3" in even.comparison
    assert even.comparison.endswith("which is not significant.")
    assert math.isnan(even.best_top_k.needed)
    cannot, _ = of([replace(query, hits={"r": hits([NONE, 0, 1, 2])})] * 9, 0.5)
    assert cannot.best_top_k is None
    assert "No top k reaches this recall" in cannot.comparison


def test_between_two_k_the_recall_is_that_of_a_mixture():
    # At 0.15 it keeps snippet 0 of the first and the last: recall 1/3, that of k = 1.
    _, rows = of(ranked(QUERIES), 0.15)
    assert rows["top  of retriever"].setting == pytest.approx(1)
    # At 0.25 it keeps snippet 1 of the second too: 2/3, that of k = 2, with one snippet each.
    _, rows = of(ranked(QUERIES), 0.25)
    assert values(rows[FILTER])[:2] == pytest.approx([2 / 3, 1])
    assert rows["top  of retriever"].setting == pytest.approx(2)
    # One query fewer: k = 1 has recall 1/2 of (1/2, 1/2), k = 3 has 3/4; the filter keeps 0.6.
    two = ranked([QUERIES[0], QUERIES[2], QUERIES[1]])
    last = replace(two[2], scores=[0.2, 0.2], relevant=[True, True], missed=3)
    _, rows = of([two[0], two[1], last], 0.25)
    # Filter: 1/2, 1/2, 2/5. k = 1: 1/2, 1/2, 1/5; k = 2: 1/2, 1/2, 2/5.
    assert rows["top  of retriever"].setting == pytest.approx(2)
    half = replace(last, scores=[0.2, 0.9])
    _, rows = of([two[0], replace(two[1], scores=[0.9] * 3), half], 0.25)
    # Filter: 1/2, 0, 1/5, which is the recall 7/12 of the way from k = 0 to k = 1 (12/10).
    top = rows["top  of retriever"]
    assert top.setting == pytest.approx(7 / 12)
    assert values(top)[:2] == pytest.approx([7 / 30, 7 / 12])


def test_a_fusion_of_two_retrievers_has_its_own_order():
    query = ScoredQuery([0.1, 0.9, 0.9], [True, False, False], missed=0)
    # 0 is second in both, 1 first in one only, 2 first in the other only: 2/62 > 1/61.
    two = {"dense": hits([1, 0, NONE]), "bm25": hits([1, NONE, 0])}
    _, rows = of([replace(query, hits=two)] * 3, 0.5)
    assert rows["top  of the fusion"].setting == 1
    assert rows["top  of dense"].setting == rows["top  of bm"].setting == 2
    assert not [name for name in rows if name.startswith("threshold")]  # ranks only
    _, rows = of(ranked([query] * 3), 0.5)
    assert "top  of the fusion" not in rows
    # What no retriever found is in no top k, though the filter may keep it.
    some = {"dense": hits([0, NONE]), "bm25": hits([0, NONE])}
    both = ScoredQuery([0.1, 0.1], [True, True], missed=0, hits=some)
    assert values(of([both] * 3, 0.5)[1]["all of the fusion"]) == [0.5, 1]


def test_a_retriever_that_cannot_reach_the_recall_is_marked_with_all_that_it_finds():
    query = ScoredQuery([0.1, 0.2], [True, True], missed=0)
    two = {"dense": hits([0, NONE], [0.9, math.nan]), "bm25": hits([1, 0], [3, 4])}
    found, rows = of([replace(query, hits=two)] * 2, 0.5)
    dense = rows["all of dense"]
    assert (dense.equal, values(dense)) == (False, [0.5, 1])
    assert rows["threshold on dense"].equal is False
    assert rows["top  of bm"].equal
    assert "all of dense *" in str(found)
    assert dense.setting is None


def test_lower_scores_of_a_retriever_are_better_where_its_ranks_say_so():
    query = ScoredQuery([0.1, 0.9], [True, False], missed=0)
    for scores in ([1.0, 2.0], [2.0, 1.0]):
        _, rows = of([replace(query, hits={"a": hits([0, 1], scores)})] * 2, 0.5)
        assert values(rows["threshold on a"]) == [1, 1]
        assert rows["threshold on a"].setting == scores[0]
    endless = replace(query, hits={"a": hits([0, 1], [math.inf, math.inf])})
    assert "threshold on a" not in of([endless] * 2, 0.5)[1]  # which its scores cannot set


def test_where_missed_snippets_are_unknown_the_table_says_so():
    unknown = [replace(query, missed=None) for query in ranked(QUERIES)]
    found, rows = of(unknown, 0.5)
    assert values(rows[FILTER])[0] == 1
    assert not found.end_to_end
    assert "`missed`" in str(found)
    assert "end-to-end" not in str(found)
    some, rows = of([*unknown[:2], ranked(QUERIES)[2]], 0.5)  # over the one that states it
    assert values(rows[FILTER])[:2] == pytest.approx([0.5, 5 / 3])
    assert some.end_to_end


def test_without_hits_the_order_of_the_list_stands_in_and_is_named():
    found, rows = of(QUERIES, 0.5)
    assert rows["top  of the list"].setting == 3
    assert not found.ranked
    assert "no hits" in str(found)
    assert "top  of the list" in of([*ranked(QUERIES[:2]), QUERIES[2]], 0.5)[1]
    found_nothing = ScoredQuery([], [], missed=1, tokens=[])
    assert "top  of retriever" in of([*ranked(QUERIES), found_nothing], 0.5)[1]


def test_nothing_relevant_and_uncounted_tokens_have_no_numbers():
    assert equal_recall(at(0.5), ScoredQueries.of([ScoredQuery([0.1], [False])])) is None
    found, rows = of([replace(query, tokens=None) for query in QUERIES], 0.5)
    assert list(rows[FILTER].measured) == ["recall", "snippets"]
    assert "tokens" not in str(found)


def test_tokens_are_named_by_what_was_counted():
    assert "tokens" in str(of(QUERIES, 0.5)[0])
    counted = [replace(query, token_unit="characters") for query in QUERIES]
    assert "characters" in str(of(counted, 0.5)[0])
    with pytest.raises(ValueError, match="token_unit"):
        of([counted[0], *QUERIES[1:]], 0.5)
    long = [replace(query, tokens=1000 * query.tokens) for query in counted]
    assert "1,000 characters" in str(of(long, 0.5)[0])


def test_a_snippet_without_a_score_is_below_every_threshold():
    scores = np.array([math.nan, 0.2, 0.1, 0.3])
    way = baselines.threshold_on(scores, np.array([False, True, True, False]), "threshold")
    assert way.place.tolist() == [0, 2, 1, 3]


# --- intervals ------------------------------------------------------------------------------------


def drawn(rng, n, k=10):
    """Queries with one relevant snippet, at a uniform rank, which the filter finds too."""
    found = []
    for _ in range(n):
        relevant = np.arange(k) == rng.integers(k)
        found.append(ScoredQuery(np.where(relevant, rng.random(), 2.0), relevant, missed=0))
    return ranked(found)


def test_intervals_are_those_of_means_and_are_paired():
    found, rows = of(drawn(np.random.default_rng(3), 400), 0.6)
    ours, top = rows[FILTER], rows["top  of retriever"]
    recall = ours.measured["recall"]
    sd = math.sqrt(recall.estimate * (1 - recall.estimate) / 400)
    assert recall.high - recall.low == pytest.approx(2 * 1.96 * sd, rel=0.15)
    assert top.measured["recall"] == pytest.approx(recall)  # chosen anew in each resample
    assert top.more["recall"] == pytest.approx((0, 0, 0), abs=1e-9)
    assert top.more["snippets"].low > 4  # about 6 − 0.6
    assert ours.more["snippets"] == (0, 0, 0)
    again, _ = of(drawn(np.random.default_rng(3), 400), 0.6)
    assert repr(again) == repr(found)  # there may be NaN
    one, _ = of(drawn(np.random.default_rng(3), 1), 2.0)
    assert "nan" not in str(one)


def test_of_very_many_queries_some_are_drawn_and_the_table_says_so(monkeypatch):
    monkeypatch.setattr(module, "MOST", 400)
    found, rows = of(drawn(np.random.default_rng(3), 2000), 0.6)
    assert (found.n_queries, found.drawn_from) == (400, 2000)
    assert "400 of the 2,000 queries" in str(found)
    recall = rows[FILTER].measured["recall"]
    assert abs(recall.estimate - 0.6) < 0.11  # 4.5 standard deviations of uniform scores
    assert "drawn" not in str(of(drawn(np.random.default_rng(3), 400), 0.6)[0])


def test_recall_of_few_among_many_queries_is_not_tested():
    nothing = [ScoredQuery([0.1], [False], missed=0, tokens=[1])] * 78
    found, _ = of([*QUERIES, *nothing], 0.5)
    assert "3 queries with something relevant are too few to test" in " ".join(str(found).split())
    assert "Recall is over 3 of the 81 queries" in str(found)
    _, rows = of([*QUERIES * 3, QUERIES[0], *nothing], 0.5)  # one resample has none of the ten
    assert all(row.more["recall"].low <= 0 < row.measured["recall"].low for row in rows.values())


def test_differences_are_of_the_same_resamples():
    rng = np.random.default_rng(5)
    first_two = np.arange(6) < 2  # which the filter keeps, and so does top 2, at the same recall
    queries = [
        ScoredQuery(np.where(first_two, 0.1, 0.9), rng.random(6) < 0.5, missed=0, tokens=t)
        for t in rng.integers(1, 1000, (80, 6))
    ]
    top = of(ranked(queries), 0.5)[1]["top  of retriever"]
    assert top.setting == pytest.approx(2)
    assert top.measured["tokens"].high - top.measured["tokens"].low > 50
    assert top.more["tokens"] == pytest.approx((0, 0, 0), abs=1e-6)


def test_many_ranks_and_scores_are_thinned_without_a_change():
    queries = drawn(np.random.default_rng(4), 40, k=1000)
    whole = of(queries, 0.6)[1]["top  of retriever"]
    shares = [int(np.flatnonzero(q.relevant)[0]) for q in queries]
    wanted = of(queries, 0.6)[1][FILTER].measured["recall"].estimate
    exact = float(np.quantile(shares, wanted, method="inverted_cdf")) + 1
    assert whole.setting == pytest.approx(exact, rel=0.05)


def test_the_table_fits_into_80_columns_whatever_a_retriever_is_called():
    name = "a retriever with a name that is much longer than a table has room for"
    queries = [replace(q, tokens=1234567 * q.tokens) for q in ranked(QUERIES, name)]
    lines = str(of(queries, 0.5)[0]).splitlines()
    assert max(map(len, lines)) == 80
    assert "…" in "".join(lines)
    # The mark of a retriever that cannot reach the recall is not cut off.
    first = [replace(q, hits={name: hits([0, *[NONE] * (len(q.scores) - 1)])}) for q in queries]
    (row,) = [line for line in str(of(first, 0.5)[0]).splitlines() if line.startswith("all of")]
    assert "… *" in row


def test_queries_for_which_nothing_was_retrieved_have_a_table():
    found, _ = of([ScoredQuery([], [], missed=2)], 0.5)
    assert "No top k reaches this recall" in " ".join(str(found).split())
