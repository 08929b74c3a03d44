"""The filter: what is kept and counted, errors, and one filter for many threads and tasks."""

import asyncio
import copy
import math
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from lookup import LookupScorer

from conformal_retrievers import Calibration, ConformalFilter, NothingKept, ScoredQuery, Snippet
from conformal_retrievers.data.snippets import Retrieved, column
from conformal_retrievers.results import Refused, Unscorable

SCORES = {
    "best": 0.1,
    "at the threshold": 0.4,
    "just above": math.nextafter(0.4, 1),
    "far": 0.9,
    "unscorable": math.nan,
}


def calibration_at(alpha=0.4, **options):
    """Of scores .1 to .5, one a query: the threshold is .4 at alpha = .4, and +inf at .1."""
    scored = [ScoredQuery([score], [True]) for score in (0.1, 0.2, 0.3, 0.4, 0.5)]
    return Calibration.from_scores(scored, alpha=alpha, scorer="lookup", **options)


def filter_of(scores=SCORES, *, alpha=0.4, **options):
    return ConformalFilter(LookupScorer(scores), calibration_at(alpha), **options)


class Recorder:
    """Scores every snippet 0.3 and remembers what it was asked."""

    name = "lookup"

    def __init__(self):
        self.asked = []

    def score(self, query, snippets):
        self.asked.append((query, [snippet.text for snippet in snippets]))
        return [0.3] * len(snippets)


class AsyncRecorder(Recorder):
    async def ascore(self, query, snippets):
        await asyncio.sleep(0)
        self.asked.append(("async", query))
        return [0.3] * len(snippets)


def test_a_filter_by_hand():
    filtered = filter_of()("q", ["far", "best", "just above", "at the threshold"])
    assert filtered.threshold == 0.4
    assert filtered.kept.tolist() == [1, 3]
    assert filtered.dropped.tolist() == [0, 2]
    assert filtered.scores.tolist() == [0.9, 0.1, math.nextafter(0.4, 1), 0.4]
    assert (filtered.m1, filtered.m2) == (1.0, 0.5)
    # 0, 5, 1 and 2 of the five calibration scores are not below; the new one counts as one more.
    assert filtered.p_values.tolist() == [1 / 6, 6 / 6, 2 / 6, 3 / 6]


def test_an_unscorable_snippet_is_kept_and_counted():
    filtered = filter_of()("q", ["far", "unscorable", "best"])
    assert filtered.kept.tolist() == [1, 2]
    assert filtered.unscorable.tolist() == [1]
    assert np.isnan([filtered.scores[1], filtered.p_values[1]]).all()
    assert filtered.m2 == 2 / 3
    strict = filter_of(on_unscorable="raise")
    with pytest.raises(ValueError, match=r"'lookup' .*\[1, 2\]"):
        strict("q", ["far", "unscorable", "unscorable"])
    assert strict("q", ["far", "best"]).kept.tolist() == [1]


def test_deciding_from_scores_equals_calling():
    called = filter_of()("q", list(SCORES), group="g")
    decided = filter_of().decide(list(SCORES.values()), group="g")
    assert summary(decided) == summary(called)
    assert decided.group == called.group == "g"
    for scores in ([[0.1, 0.2]], 0.1):
        with pytest.raises(ValueError, match="scores has shape"):
            filter_of().decide(scores)


@pytest.mark.parametrize("on_empty", ["allow", "keep_best", "raise"])
async def test_no_snippets_in_no_snippets_out_and_no_call_of_the_scorer(on_empty):
    scorer = AsyncRecorder()
    conformal_filter = ConformalFilter(scorer, calibration_at(), on_empty=on_empty)
    called, awaited = conformal_filter("q", []), await conformal_filter.acall("q", [])
    for filtered in (called, awaited, conformal_filter.decide([])):
        assert summary(filtered) == ([], b"", 0.0, 0.0)
    assert scorer.asked == []


# keep_best adds the first of equally good ones
@pytest.mark.parametrize(("on_empty", "kept"), [("allow", []), ("keep_best", [1])])
def test_if_nothing_passes_the_best_is_kept_on_request(on_empty, kept):
    filtered = filter_of(on_empty=on_empty).decide([0.8, 0.7, 0.7])
    assert filtered.kept.tolist() == kept
    assert filtered.dropped.tolist() == [i for i in range(3) if i not in kept]
    assert (filtered.m1, filtered.m2) == (0.0, 0.0)  # before the best is added


@pytest.mark.parametrize("on_empty", ["keep_best", "raise"])
def test_the_best_is_not_added_if_something_passes(on_empty):
    for first in ("best", "unscorable"):
        assert filter_of(on_empty=on_empty)("q", [first, "far"]).kept.tolist() == [0]


@pytest.mark.parametrize(
    ("scores", "refusal", "told"),
    [([0.9, 0.7], NothingKept, ([], 0.0, 0.0)), ([0.9, np.nan], Unscorable, ([1], 1.0, 0.5))],
)
def test_an_error_carries_the_decision_even_through_pickle(scores, refusal, told):
    with pytest.raises(refusal) as caught:
        filter_of(on_empty="raise", on_unscorable="raise").decide(scores)
    assert isinstance(caught.value, Refused)
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert type(error) is refusal
        assert error.args == caught.value.args
        filtered = error.filtered
        assert filtered.threshold == 0.4
        assert (filtered.kept.tolist(), filtered.m1, filtered.m2) == told


@pytest.mark.parametrize(("name", "value"), [("on_empty", "keep"), ("on_unscorable", "drop")])
def test_an_unknown_option_is_an_error(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r}"):
        filter_of(**{name: value})


async def test_a_scorer_without_ascore_runs_beside_the_event_loop():
    class Slow(Recorder):
        def score(self, query, snippets):
            self.thread = threading.get_ident()
            assert loop_went_on.wait(timeout=10)  # blocks until the loop has done something else
            return super().score(query, snippets)

    loop_went_on = threading.Event()
    scorer = Slow()
    task = asyncio.create_task(ConformalFilter(scorer, calibration_at()).acall("q", ["a"]))
    await asyncio.sleep(0.01)
    loop_went_on.set()
    assert (await task).kept.tolist() == [0]
    assert scorer.asked == [("q", ["a"])]
    assert scorer.thread != threading.get_ident()


async def test_inputs_are_not_changed():
    snippets = [Snippet(text, id=text, embedding=np.array([1.0, 2.0])) for text in SCORES]
    before = copy.deepcopy(snippets)
    filter_of()("q", snippets)
    await filter_of().acall("q", snippets)
    assert snippets == before
    assert [s.embedding.tolist() for s in snippets] == [[1.0, 2.0]] * len(SCORES)


def many_queries(rng, n):
    """Scores by text, and n queries over those texts of 0 to 20 snippets each."""
    scores = {f"text {i}": score for i, score in enumerate([math.nan, *rng.normal(0.4, 0.3, 299)])}
    return scores, [rng.choice(list(scores), size=i % 21).tolist() for i in range(n)]


def summary(filtered):
    return filtered.kept.tolist(), filtered.p_values.tobytes(), filtered.m1, filtered.m2


def test_32_threads_on_one_filter_give_the_serial_result(rng):
    scores, queries = many_queries(rng, 640)
    serial = [summary(filter_of(scores, on_empty="keep_best")("q", texts)) for texts in queries]
    shared = filter_of(scores, on_empty="keep_best")  # nothing is derived yet: all of them race
    together = threading.Barrier(32)

    def work(part):
        together.wait(timeout=30)
        return [summary(shared("q", texts)) for texts in queries[part::32]]

    with ThreadPoolExecutor(32) as pool:
        parts = list(pool.map(work, range(32)))
    assert [parts[i % 32][i // 32] for i in range(len(queries))] == serial


async def test_in_shadow_a_filter_decides_as_ever_and_raises_nothing_that_options_say():
    options = {"on_empty": "raise", "on_unscorable": "raise"}
    for texts in (["far", "best"], ["far"], ["far", "unscorable"], []):
        usual, shadow = filter_of(), filter_of(shadow=True, **options)
        called = shadow("q", texts)
        for decided in (called, await shadow.acall("q", texts), shadow.at(0.4)("q", texts)):
            assert summary(decided) == summary(usual("q", texts))
            assert decided.shadow is True
            assert decided.characters.tolist() == [len(text) for text in texts]
        assert summary(shadow.decide(called.scores)) == summary(called)
        assert not usual("q", texts).shadow
    with pytest.raises(TypeError, match="group_of is 'group'; give a function"):
        filter_of(group_of="group")
    with pytest.raises(TypeError, match="shadow is 'false'; give True or False"):
        filter_of(shadow="false")


def test_filters_and_decisions_can_be_pickled():
    conformal_filter = filter_of(on_empty="keep_best", on_unscorable="raise")
    for _ in range(2):  # before and after anything was derived
        again = pickle.loads(pickle.dumps(conformal_filter))
        assert (again.on_empty, again.on_unscorable) == ("keep_best", "raise")
        filtered = conformal_filter("q", ["far", "best"])
        assert summary(again("q", ["far", "best"])) == summary(filtered)
    assert summary(pickle.loads(pickle.dumps(filtered))) == summary(filtered)


TWICE = [Snippet("best", id) for id in "121"]
TO_DEPTH_2 = ConformalFilter(Recorder(), calibration_at(retrieval={"k": 2}))


@pytest.mark.parametrize(
    ("keep", "usual", "unusual", "told"),
    [
        (TO_DEPTH_2, (["a", "b"], ["a"]), ["a"] * 3, "k = 2"),
        (
            filter_of(),
            (["best", "unscorable"], []),
            ["unscorable"] * 3,
            "'lookup' could not score any snippet",
        ),
        (filter_of(), [["best", "best"], TWICE[:2]], TWICE, "an id occurs twice"),
    ],
)
async def test_what_is_unlike_the_calibration_is_kept_and_warned_of(keep, usual, unusual, told):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")  # as Python shows them: each text and place once
        for texts in usual:
            assert len(keep("q", texts).kept) == len(texts)
        assert not said
        for _ in range(2):
            assert len(keep("q", unusual).kept) == 3
            assert len((await keep.acall("q", unusual)).kept) == 3
    (once,) = said
    assert told in str(once.message)


def test_what_is_made_of_one_query_waits_for_no_other():
    started, go = threading.Event(), threading.Event()

    class Waiting(Retrieved):
        @column
        def texts(self):
            started.set(), go.wait(60 * len(self))
            return (*super().texts, "one more")

    with ThreadPoolExecutor() as threads:
        threads.submit(lambda: Waiting(["a"]).texts)
        assert started.wait(60)
        assert threads.submit(lambda: Waiting([]).texts).result(30) == ("one more",)
        go.set()
    assert Waiting.texts.make  # of the class, as tools read it that show what it has


def test_an_unknown_group_keeps_everything_and_is_warned_of_once():
    queries = [ScoredQuery([i / 20], [True], group="a") for i in range(20)]
    queries += [ScoredQuery([0.5], [True], group="few")]
    calibration = Calibration.from_scores(queries, alpha=0.1, by_group=True, scorer="lookup")
    conformal = ConformalFilter(LookupScorer({}), calibration)
    for group in ("a", "few"):
        assert len(conformal.decide([9.0], group=group).kept) == (group != "a")
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")  # as Python shows them: each text and place once
        for group in ("b", None, "made up"):
            assert len(conformal.decide([9.0], group=group).kept) == 1
            assert len(conformal.at(0.2).decide([9.0], group=group).kept) == 1
    texts = [str(one.message).partition(" among 'a', 'few', so")[0] for one in shown]
    assert texts == ["a query has a group that is not", "a query has no group"]


async def test_a_query_is_checked_and_gives_its_group():
    queries = [ScoredQuery([a], [True], group=g) for a, g in ((0.2, "short"), (0.8, "long"))]
    calibration = Calibration.from_scores(queries, alpha=0.5, scorer="lookup", by_group=True)
    keep = ConformalFilter(
        LookupScorer({"a": 0.1}), calibration, group_of=lambda q: "long" if len(q) > 3 else "short"
    )
    assert [keep(query, ["a"]).group for query in ("q", "longer")] == ["short", "long"]
    assert keep("longer", ["a"], "short").group == "short"
    assert (await keep.acall("longer", ["a"])).group == "long"
    with pytest.raises(TypeError, match="query is None"):
        keep(None, ["a"])


async def test_of_a_blank_query_nothing_can_be_scored_so_all_is_kept():
    keep = ConformalFilter(LookupScorer({"a": 9.0, "b": 9.0}), calibration_at())
    with pytest.warns(UserWarning, match="could not score any snippet of a query, so all are kept"):
        decided = [keep("\n", ["a", "b"]), await keep.acall("", ["a", "b"])]
    assert [one.kept.tolist() for one in decided] == [[0, 1], [0, 1]]


def test_a_filter_without_a_finite_threshold_logs_a_warning(caplog):
    few = Calibration.from_scores([ScoredQuery([0.2], [True])], alpha=0.1, scorer="lookup")
    ConformalFilter(LookupScorer({}), few)
    [message] = caplog.messages
    assert "at least 9 judged queries are needed" in message
    assert len(message) < 100
    caplog.clear()
    ConformalFilter(LookupScorer({}), few.at(0.5))
    queries = [ScoredQuery([0.2], [True], group=g) for g in "aab"]
    one_group = Calibration.from_scores(queries, alpha=0.4, scorer="lookup", by_group=True)
    assert [math.isinf(one_group.threshold(g)) for g in "ab"] == [False, True]
    ConformalFilter(LookupScorer({}), one_group)
    assert not caplog.messages
