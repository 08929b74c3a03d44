"""Unanswerable queries: nothing but the texts tells that the relevant snippets were taken out."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformal_retrievers.data import Evidence, JudgedQuery, Snippet, by_sentence, without_relevant
from conformal_retrievers.data.hits import Hit, fuse, fusion
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.data.retrieval import Hybrid, Retrieval
from conformal_retrievers.data.unanswerable import without_answers


def hybrid(a, b):
    return Hybrid({"a": Retrieval("BM25()", a), "b": Retrieval("FAISS(m, similarity)", b)})


def texts(query):
    return [snippet.text for snippet in query.snippets]


def one_list(relevant, *, scores="98765", k=5, **fields):
    """A query whose snippets a, b, c … one retriever found, with these scores."""
    snippets = [Snippet(chr(97 + i), retrieval_score=float(s)) for i, s in enumerate(scores)]
    marks = [s.text in relevant for s in snippets]
    return JudgedQuery("q", with_hits(snippets), marks, k=k, retriever="mine", **fields)


def united(lists, relevant, **fields):
    """A query as a HybridRetriever returns it from lists of texts; each score is 100 − rank."""
    found = {name: [(t, 100.0 - i) for i, t in enumerate(ts)] for name, ts in lists.items()}
    snippets = [
        Snippet(text, id=text, retrieval_score=fusion([hits])[0], hits=hits)
        for text, hits in fuse(found).items()
    ]
    return JudgedQuery("q", snippets, [s.text in relevant for s in snippets], **fields)


def test_ranks_have_no_gap_and_scores_stay():
    query = one_list("bd", id="7", group="g", missed=2)
    made = without_relevant(query, 3)
    hits = [(Hit("retriever", rank, score),) for rank, score in enumerate([9.0, 7.0, 5.0])]
    assert [s.hits for s in made.snippets] == hits
    assert (texts(made), made.relevant) == (["a", "c", "e"], (False, False, False))
    assert [s.retrieval_score for s in made.snippets] == [9.0, 7.0, 5.0]
    assert (made.id, made.group, made.missed, made.answerable) == ("7", "g", 0, False)
    assert (made.retriever, made.k) == ("mine", 3)
    assert query == one_list("bd", id="7", group="g", missed=2)


def test_a_query_without_hits_keeps_its_order_and_evidence_goes():
    query = JudgedQuery("q", [*"abcd"], [True, False, False, True], evidence=[("a", 0, 1)])
    made = without_relevant(query, 2)
    assert (texts(made), made.k, made.evidence) == (["b", "c"], 2, ())
    assert all(snippet.hits == () for snippet in made.snippets)


def test_snippets_with_the_very_text_of_a_relevant_one_go_too():
    snippets = [Snippet(t, id=str(i)) for i, t in enumerate(["x", "y", "x", " ", "z", " "])]
    query = JudgedQuery("q", with_hits(snippets), [False, False, True, True, False, False])
    made = without_relevant(query, 3)
    # A text without words, such as that of an image, says nothing about identity.
    assert [s.id for s in made.snippets] == ["1", "4", "5"]
    assert [s.hits[0].rank for s in made.snippets] == [0, 1, 2]


def test_depths_count_of_a_retriever_that_found_nothing():
    found = united({"a": ["x", "y", "z"]}, "y", retriever=hybrid(3, 3), k=6)
    assert without_relevant(found, 2).k == 4


@given(
    lists=st.lists(st.permutations("abcdefghijkl"), min_size=1, max_size=3),
    relevant=st.sets(st.sampled_from("abcdefghijkl"), max_size=4),
    k=st.integers(1, 8),
)
def test_a_query_looks_as_if_the_relevant_ones_had_never_been_there(lists, relevant, k):
    named = {name: found[: 4 + k] for name, found in zip("bac", lists, strict=False)}

    def asked(depth):
        return Hybrid({name: Retrieval("BM25()", depth) for name in named})

    made = without_relevant(united(named, relevant, retriever=asked(4 + k)), k)
    rest = {n: [t for t in found if t not in relevant][:k] for n, found in named.items()}
    assert {len(found) for found in rest.values()} == {k}
    expected = fuse({name: [(t, None) for t in found] for name, found in rest.items()})
    assert texts(made) == [*expected]
    assert [[h[:2] for h in s.hits] for s in made.snippets] == [
        [h[:2] for h in hits] for hits in expected.values()
    ]
    assert [s.retrieval_score for s in made.snippets] == fusion(expected.values())
    assert (made.retriever, made.k) == (asked(k), k * len(named))


@pytest.mark.parametrize("names", ["ab", "cab", "dbca"])
def test_the_order_of_ties_and_hits_does_not_tell_that_something_was_removed(names):
    """200 queries of 60 documents, one of which is taken out of lists of which few share one."""
    rng = np.random.default_rng(1)
    judged, whole, deep, real = [], [], [], []
    for i in range(200):
        ranked = {name: [*map(str, rng.permutation(60))] for name in names}
        gone = ranked[names[0]][int(rng.integers(5))]
        rest = {name: [text for text in found if text != gone] for name, found in ranked.items()}
        judged.append(JudgedQuery(f"q{i}", [gone], [True]))
        for queries, lists, k in ((whole, ranked, 5), (deep, ranked, 6), (real, rest, 5)):
            queries.append(united({name: found[:k] for name, found in lists.items()}, {gone}))
    for made, expected in zip(without_answers(judged, whole, lambda _: deep), real, strict=True):
        ranks = [[hit[:2] for hit in snippet.hits] for snippet in made.snippets]
        assert texts(made) == texts(expected)
        assert ranks == [[hit[:2] for hit in snippet.hits] for snippet in expected.snippets]


def test_a_query_alone_shows_the_order_of_its_ties_and_hits():
    # No snippet has the hits of all three: c before b by x and y, b before a by the hits of w.
    lists = {"c": ["x", "s", "t", "r"], "b": ["y", "w", "u", "v"], "a": ["z", "w", "p", "q"]}
    assert texts(without_relevant(united(lists, "w"), 2)) == [*"xyzsup"]


def test_documents_with_a_relevant_sentence_go_whole():
    documents = [
        Snippet("It rains. Ann did.", id="1"),
        Snippet("Bob did not.", id="2"),
        Snippet("Eve says: maybe. Ann did.", id="3"),
        Snippet("Nobody knows. It is late.", id="4"),
    ]
    marks, evidence = [True, False, False, False], [Evidence("1", 10, 18)]
    query = JudgedQuery("Who?", with_hits(documents), marks, k=4, evidence=evidence)
    (cut,) = by_sentence([query], "sentences")
    made = without_relevant(cut, 2)
    # 3 has the very sentence.
    assert texts(made) == ["Bob did not.", "Nobody knows.", "It is late."]
    assert [s.hits[0].rank for s in made.snippets] == [0, 1, 1]
    assert (made.k, made.split, made.document_of.tolist()) == (2, cut.split, [0, 1, 1])


def test_only_a_list_that_gets_shorter_gives_a_warning():
    without_relevant(one_list("bd"), 3)  # a warning is an error
    without_relevant(one_list(""), 9)  # no longer than this before
    for query, k in ((one_list("bd"), 4), (one_list("b"), 9)):
        with pytest.warns(UserWarning, match="fewer snippets"):
            made = without_relevant(query, k)
        assert (len(made.snippets), made.k) == (5 - sum(query.relevant), k)
    with pytest.warns(UserWarning, match="fewer snippets"):
        without_relevant(united({"a": "xyz", "b": "xuv"}, "x"), 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # which shows one for each place
        assert [without_relevant(one_list("a"), 5) for _ in range(3)]
    assert [one.filename for one in caught] == [__file__]


@pytest.mark.parametrize("k", [0, -1, 2.5, None, "3", True, {"a": 2}])
def test_an_invalid_depth_and_anything_but_a_judged_query_is_refused(k):
    with pytest.raises(ValueError, match="k is"):
        without_relevant(united({"a": "xyz", "b": "xuv"}, "x"), k)
    with pytest.raises(TypeError, match="query is 'a'.*JudgedQuery"):
        without_relevant("a", 3)


# --- through a retriever --------------------------------------------------------------------------

CORPUS = ["a", "b", "a", "c", "d", "e", "f", "g"]


def retrieve(judged, k):
    snippets = [Snippet(text, id=str(i)) for i, text in enumerate(CORPUS)]
    return judged.retrieved_as(with_hits(snippets[:k]), retriever="mine", k=k)


def made_of(judged, k):
    asked = []

    def deeper(more):
        asked.append(more)
        return [retrieve(query, k + more) for query in judged]

    return without_answers(judged, [retrieve(query, k) for query in judged], deeper), asked


def test_lists_are_as_long_as_retrieved():
    judged = [JudgedQuery("q", ["b", "d"], [True, True]), JudgedQuery("r", ["z"], [True])]
    (one, other), asked = made_of(judged, 4)
    assert texts(one) == ["a", "a", "c", "e"]
    assert texts(other) == ["a", "b", "a", "c"]  # nothing is relevant in what is retrieved
    fields = {(q.k, q.retriever, q.answerable, q.missed) for q in (one, other)}
    assert fields == {(4, "mine", False, 0)}
    assert asked == [2]  # as many as are relevant


def test_a_text_that_was_judged_relevant_under_another_id_goes_too():
    known = [Snippet("a", id) for id in ("elsewhere", "0", "2")]
    (made,), asked = made_of([JudgedQuery("q", known, [True, False, False])], 3)
    assert (texts(made), asked) == (["b", "c", "d"], [1, 2])  # once more, because it was short


def test_short_lists_are_counted_and_asking_deeper_ends():
    with pytest.warns(UserWarning, match="1 of 2 queries"):
        made, asked = made_of([JudgedQuery(text, [text], [True]) for text in "az"], 8)
    assert [texts(query) for query in made] == [[*"bcdefg"], CORPUS]
    assert asked == [1, 2]
    assert {query.k for query in made} == {8}


def test_k_grows_if_lists_have_less_in_common_than_before():
    judged = [JudgedQuery("q", [*"xy"], [True, True])]
    before, deep = {"a": "xy", "b": "yx"}, {"a": "xyzu", "b": "yxvw"}
    (made,) = without_answers(judged, [united(before, "xy", k=2)], lambda _: [united(deep, "xy")])
    assert (texts(made), made.k) == ([*"zvuw"], 4)
    (made,) = without_answers(judged, [united(before, "xy")], lambda _: [united(deep, "xy")])
    assert made.k is None


def test_relevant_snippets_without_a_text_are_refused():
    with pytest.raises(ValueError, match="missed"):
        made_of([JudgedQuery("q", ["a"], [True], missed=1)], 2)
    assert made_of([], 2) == ([], [1])


def test_where_nothing_shows_the_order_of_the_retrievers_equal_ranks_go_by_name():
    given = [("answer", "a", 0), ("first", "a", 1), ("second", "b", 5)]
    snippets = [Snippet(text, hits=(Hit(name, rank),)) for text, name, rank in given]
    with pytest.warns(UserWarning, match="fewer"):
        made = without_relevant(JudgedQuery("q", snippets, [True, False, False]), 2)
    assert texts(made) == ["first", "second"]
    assert [s.hits for s in made.snippets] == [(Hit("a", 0),), (Hit("b", 0),)]
