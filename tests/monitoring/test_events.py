"""What both frameworks' handlers see of a filter, and that a broken handler does not stop it."""

import inspect
import json
import math
from copy import copy

import pytest
from drawn import calibrated
from frameworks import COMPONENTS, texts_of
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.rerank import ReRankStartEvent
from lookup import LookupScorer

import langchain_conformal
import llama_index.postprocessor.conformal as llama_index_conformal
from conformal_retrievers import ConformalFilter, NothingKept
from conformal_retrievers.monitoring import FilterLog, read_log
from conformal_retrievers.results import Unscorable
from langchain_conformal import ConformalCallbackHandler, ConformalCompressor

CHAIN, _, ENGINE = COMPONENTS
SCORES = {"near": 0.1, "middle": 0.4, "far": 0.9}
OTHERS = {"farther": 1.2, "blank": math.nan}
TEXTS, KEPT = [*SCORES], ["near", "middle"]
FAR = ("far", "farther")  # no snippet of these is kept
BLANK = ("far", "blank")  # one of these cannot be scored


CALIBRATION = calibrated([0.5] * 20)


def lookup_filter(**options):
    return ConformalFilter(LookupScorer(SCORES | OTHERS), CALIBRATION, **options)


class Failing(LookupScorer):
    def score(self, query, snippets):
        raise RuntimeError("no model")


class Asking(LookupScorer):
    """Calls another filter, which refuses."""

    def score(self, query, snippets):
        other = ConformalFilter(LookupScorer(SCORES | OTHERS), copy(CALIBRATION), on_empty="raise")
        return other(query, FAR).scores


async def finished(found):
    return await found if inspect.isawaitable(found) else found


# --- LangChain ------------------------------------------------------------------------------------


class Seen(BaseCallbackHandler):
    """Keeps the custom events, and the names of the runs."""

    def __init__(self):
        self.events, self.runs = [], []

    def on_custom_event(self, name, data, *, run_id, **kwargs):
        self.events.append((name, data, run_id))

    def on_chain_start(self, serialized, inputs, *, run_id, parent_run_id=None, **kwargs):
        self.runs.append((kwargs.get("name"), run_id, parent_run_id))


@pytest.fixture
def compressor():
    return ConformalCompressor(filter=lookup_filter())


@pytest.mark.parametrize("ask", [CHAIN.ask, CHAIN.aask])
async def test_a_compressor_with_handlers_is_a_run_with_one_event(compressor, ask):
    seen, collector = Seen(), RunCollectorCallbackHandler()
    assert texts_of(await finished(ask(compressor, TEXTS, callbacks=[seen, collector]))) == KEPT
    ((name, data, run_id),) = seen.events
    assert name == "conformal_filter"
    assert json.loads(json.dumps(data)) == data
    assert (data["version"], data["k"], data["kept"], data["query"]) == (1, 3, [0, 1], "q")
    assert seen.runs == [("conformal_filter", run_id, None)]
    (run,) = collector.traced_runs
    assert (run.name, run.inputs, run.outputs) == ("conformal_filter", {"query": "q", "k": 3}, data)


def broken(*given, **options):
    raise RuntimeError("a broken handler")


class Raising(BaseCallbackHandler):
    on_custom_event = on_chain_start = on_chain_end = on_retriever_start = broken


class RaisingAsync(AsyncCallbackHandler):
    async def on_custom_event(self, name, data, **kwargs):
        broken()


class Editing(BaseCallbackHandler):
    """Changes the event that it gets."""

    def on_custom_event(self, name, data, **kwargs):
        data["kept"].append("edited")
        data["query"] = "edited"


@pytest.mark.parametrize(
    "handler",
    [Raising(), RaisingAsync(), Editing()],
    ids=["raises", "raises asynchronously", "edits"],
)
async def test_a_handler_that_raises_or_edits_changes_nothing(compressor, handler):
    collector = RunCollectorCallbackHandler()
    for ask in (CHAIN.ask, CHAIN.aask):
        found = await finished(ask(compressor, TEXTS, callbacks=[handler, collector]))
        assert texts_of(found) == KEPT
    outputs = [run.outputs for run in collector.traced_runs]
    assert [(output["kept"], output["query"]) for output in outputs] == [([0, 1], "q")] * 2


@pytest.mark.parametrize(("scorer", "error"), [(Failing, RuntimeError), (Asking, NothingKept)])
async def test_an_error_of_the_scorer_ends_the_run_without_an_event(scorer, error):
    seen, collector = Seen(), RunCollectorCallbackHandler()
    failing = ConformalFilter(scorer({}), CALIBRATION, on_empty="raise")
    compressor = ConformalCompressor(filter=failing)
    for ask in (CHAIN.ask, CHAIN.aask):
        with pytest.raises(error):
            await finished(ask(compressor, TEXTS, callbacks=[seen, collector]))
    assert seen.events == []
    assert [name for name, _, _ in seen.runs] == ["conformal_filter"] * 2
    assert all(error.__name__ in run.error for run in collector.traced_runs)


# --- LlamaIndex -----------------------------------------------------------------------------------


class Kept(BaseEventHandler):
    events: list

    def handle(self, event, **kwargs):
        self.events.append(event)


class Broken(BaseEventHandler):
    handle = broken


@pytest.fixture
def listened(dispatcher):
    handler = Kept(events=[])
    dispatcher.add_event_handler(handler)
    return handler.events


@pytest.fixture
def postprocessor():
    return llama_index_conformal.ConformalPostprocessor(filter=lookup_filter())


@pytest.mark.parametrize("ask", [ENGINE.ask, ENGINE.aask])
async def test_both_events_come_in_pairs(postprocessor, listened, ask):
    await finished(ask(postprocessor, TEXTS))
    await finished(ask(postprocessor, []))
    start, end, _, empty = listened
    assert isinstance(start, ReRankStartEvent)
    assert isinstance(end, llama_index_conformal.ConformalFilterEvent)
    assert (start.query.query_str, start.model_name) == ("q", "lookup")
    assert (texts_of(end.nodes), empty.nodes) == (KEPT, [])
    assert json.loads(json.dumps(end.decision)) == end.decision
    assert [end.decision[name] for name in ("kept", "k", "query")] == [[0, 1], 3, "q"]
    assert end.class_name() == "ConformalFilterEvent"


@pytest.mark.parametrize(("scorer", "error"), [(Failing, RuntimeError), (Asking, NothingKept)])
async def test_after_an_error_of_a_scorer_the_second_event_has_no_decision(scorer, error, listened):
    failing = ConformalFilter(scorer({}), CALIBRATION, on_empty="raise")
    postprocessor = llama_index_conformal.ConformalPostprocessor(filter=failing)
    for ask in (ENGINE.ask, ENGINE.aask):
        with pytest.raises(error):
            await finished(ask(postprocessor, TEXTS))
    ends = [event for event in listened if hasattr(event, "decision")]
    assert [(event.nodes, event.decision) for event in ends] == [([], None)] * 2


class BrokenEnd(LlamaDebugHandler):
    on_event_end = broken


async def test_the_deprecated_callback_manager_sees_a_reranking(postprocessor, monkeypatch):
    # No event handler listens: none is built.
    monkeypatch.setattr("llama_index.postprocessor.conformal.events.event_of", None)
    debug = LlamaDebugHandler(print_trace_on_end=False)
    postprocessor.callback_manager = CallbackManager([debug])
    ENGINE.ask(postprocessor, TEXTS)
    ((start, end),) = debug.get_event_pairs(CBEventType.RERANKING)
    payload = start.payload
    assert (payload["query_str"], payload["top_k"], payload["model_name"]) == ("q", 3, "lookup")
    assert len(payload["nodes"]) == 3
    assert texts_of(end.payload["nodes"]) == KEPT


async def test_handlers_that_raise_change_nothing(postprocessor, dispatcher, caplog):
    dispatcher.add_event_handler(Broken())
    postprocessor.callback_manager = CallbackManager([BrokenEnd(print_trace_on_end=False)])
    given = ENGINE.given(TEXTS)
    for call in (postprocessor.postprocess_nodes, postprocessor.apostprocess_nodes):
        assert texts_of(await finished(call(given, query_str="q"))) == KEPT
    assert len(given) == 3
    assert caplog.text.count("a callback handler failed") == 2


# --- both -----------------------------------------------------------------------------------------


@pytest.fixture(params=[CHAIN, ENGINE], ids=["LangChain", "LlamaIndex"])
def logged(request, tmp_path, dispatcher):
    """A function that filters texts, sync and async, and returns what was counted and logged."""
    of = request.param

    async def run(texts, error=None, **options):
        log = FilterLog(tmp_path / f"{len([*tmp_path.iterdir()])}.jsonl", queries="text")
        if of.package is langchain_conformal:
            handler = ConformalCallbackHandler(log)
        else:
            handler = llama_index_conformal.ConformalEventHandler(log)
            dispatcher.event_handlers = [handler]
        made = of.made(texts, filter=lookup_filter(**options))
        for ask in (of.ask, of.aask):
            if error is None:
                await finished(ask(made, texts, callbacks=[handler]))
            else:
                with pytest.raises(error) as raised:
                    await finished(ask(made, texts, callbacks=[handler]))
                assert raised.value.filtered.calibration is CALIBRATION
        (counts,) = handler.observer.counts.values()
        rows = list(read_log(log.path))
        assert {row.pop("calibration") for row in rows} == {CALIBRATION.checksum}
        assert all(row.pop("time") for row in rows)
        return counts, rows

    return run


async def test_the_handlers_count_and_log_alike(logged):
    counts, rows = await logged(TEXTS)
    assert (counts.queries, counts.m1, counts.m2) == (2, 1.0, pytest.approx(2 / 3))
    assert rows[0] == rows[1]
    assert (rows[0]["query"], rows[0]["kept"], rows[0]["scores"]) == ("q", [0, 1], [0.1, 0.4, 0.9])


async def test_a_query_whose_filter_raises_is_logged_as_if_it_did_not(logged):
    allowed = await logged(FAR, on_empty="allow")
    assert await logged(FAR, NothingKept, on_empty="raise") == allowed
    best, rows = await logged(FAR, on_empty="keep_best")
    assert (allowed[0].queries, allowed[0].m1) == (best.m1 + 2, 0.0)
    assert [row["kept"] for row in (*allowed[1], *rows)] == [[], [], [0], [0]]
    passed = await logged(BLANK, on_unscorable="keep")
    assert await logged(BLANK, Unscorable, on_unscorable="raise") == passed
    assert (passed[0].queries, passed[0].unscorable, passed[0].m2) == (2, 2, 0.5)
    assert [row["kept"] for row in passed[1]] == [[1], [1]]
