"""What both frameworks' handlers see of a filter, and that none of them gets in its way."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
from contextlib import nullcontext
from pathlib import Path

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.callbacks.base import global_stack_trace
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.rerank import ReRankStartEvent
from llama_index.core.schema import NodeWithScore, TextNode
from lookup import LookupScorer

from conformal_retrievers import (
    Calibration,
    ConformalFilter,
    FilterLog,
    NothingKept,
    ScoredQuery,
    Unscorable,
    read_log,
)
from langchain_conformal import (
    ConformalCallbackHandler,
    ConformalCompressor,
    ConformalRetriever,
)
from llama_index.postprocessor.conformal import (
    ConformalEventHandler,
    ConformalFilterEvent,
    ConformalPostprocessor,
)

SCORES = {"near": 0.1, "middle": 0.4, "far": 0.9}


def lookup_filter(**options):
    queries = [ScoredQuery([0.5], [True])] * 20
    calibration = Calibration.from_scores(queries, alpha=0.1, scorer="lookup")
    return ConformalFilter(LookupScorer({**SCORES, "blank": math.nan}), calibration, **options)


class Failing(LookupScorer):
    def score(self, query, snippets):
        raise RuntimeError("no model")


class Asking(LookupScorer):
    """Asks another filter, which refuses."""

    def score(self, query, snippets):
        return lookup_filter(on_empty="raise")(query, FAR).scores


class Refusing(LookupScorer):
    """Raises what a filter raises."""

    def score(self, query, snippets):
        raise NothingKept("nothing in the scorer", None)


INNER = pytest.mark.parametrize("scorer", [Asking({}), Refusing({})], ids=["asks", "refuses"])


def filter_with(scorer):
    return ConformalFilter(scorer, lookup_filter().calibration, on_empty="raise")


# --- LangChain ------------------------------------------------------------------------------------


def documents():
    return [Document(text, id=text) for text in SCORES]


class Fixed(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        return documents()


class Seen(BaseCallbackHandler):
    """Keeps the custom events, and the names of the runs."""

    def __init__(self):
        self.events, self.runs = [], []

    def on_custom_event(self, name, data, *, run_id, **kwargs):
        self.events.append((name, data, run_id))

    def on_chain_start(self, serialized, inputs, *, run_id, parent_run_id=None, **kwargs):
        self.runs.append((kwargs.get("name"), run_id, parent_run_id))

    def on_retriever_start(self, serialized, query, *, run_id, parent_run_id=None, **kwargs):
        self.runs.append(("retriever", run_id, parent_run_id))


@pytest.fixture
def compressor():
    return ConformalCompressor(filter=lookup_filter())


def kept(documents):
    return [document.id for document in documents]


def test_a_compressor_called_alone_with_handlers_is_a_run_with_one_event(compressor):
    seen = Seen()
    assert kept(compressor.compress_documents(documents(), "q", callbacks=[seen])) == [
        "near",
        "middle",
    ]
    ((name, data, run_id),) = seen.events
    assert name == "conformal_filter"
    assert json.loads(json.dumps(data)) == data
    assert (data["version"], data["k"], data["kept"], data["query"]) == (1, 3, [0, 1], "q")
    assert seen.runs == [("conformal_filter", run_id, None)]


async def test_asynchronously_it_is_the_same(compressor):
    seen = Seen()
    found = await compressor.acompress_documents(documents(), "q", callbacks=[seen])
    assert kept(found) == ["near", "middle"]
    ((name, data, run_id),) = seen.events
    assert (name, data["kept"]) == ("conformal_filter", [0, 1])
    assert seen.runs == [("conformal_filter", run_id, None)]


def test_without_callbacks_there_is_none_and_nothing_fails(compressor):
    assert kept(compressor.compress_documents(documents(), "q")) == ["near", "middle"]
    assert compressor.compress_documents([], "q", callbacks=[Seen()]) == []


def test_the_output_of_the_run_is_the_event(compressor):
    collector = RunCollectorCallbackHandler()
    compressor.compress_documents(documents(), "q", callbacks=[collector])
    (run,) = collector.traced_runs
    assert (run.name, run.inputs) == ("conformal_filter", {"query": "q", "k": 3})
    assert {"k", "kept", "threshold", "m1", "m2", "unscorable"} <= set(run.outputs)
    assert run.outputs["kept"] == [0, 1]


def test_in_a_chain_the_run_is_a_child_of_the_one_that_it_is_in(compressor):
    seen = Seen()
    chain = RunnableLambda(lambda query: compressor.compress_documents(documents(), query))
    chain.invoke("q", config={"callbacks": [seen]})
    (outer, outer_id, _), (inner, _, parent) = seen.runs
    assert (outer, inner, parent) == ("RunnableLambda", "conformal_filter", outer_id)
    assert len(seen.events) == 1


@pytest.mark.parametrize("call", ["invoke", "ainvoke", "batch", "abatch"])
def test_in_a_retriever_the_run_is_a_child_of_the_retrievers(call):
    seen = Seen()
    retriever = ConformalRetriever(retriever=Fixed(), filter=lookup_filter())
    config = {"callbacks": [seen]}
    given = ["q", "r"] if "batch" in call else "q"
    found = getattr(retriever, call)(given, config=config)
    found = asyncio.run(_finish(found)) if call.startswith("a") else found
    assert kept(found[0] if "batch" in call else found) == ["near", "middle"]
    filters = [parent for name, _, parent in seen.runs if name == "conformal_filter"]
    tops = [run for name, run, parent in seen.runs if name == "retriever" and parent is None]
    assert sorted(filters, key=str) == sorted(tops, key=str)
    assert len(seen.events) == len(filters) == (2 if "batch" in call else 1)


async def _finish(awaitable):
    return await awaitable


async def test_streamed_events_hold_the_filters(compressor):
    runnable = compressor.as_runnable()
    events = [
        event
        async for event in runnable.astream_events(
            {"query": "q", "documents": documents()}, version="v2"
        )
    ]
    (custom,) = [event for event in events if event["event"] == "on_custom_event"]
    assert (custom["name"], custom["data"]["kept"]) == ("conformal_filter", [0, 1])
    assert {"conformal_compressor", "conformal_filter"} <= {event["name"] for event in events}


class Raising(BaseCallbackHandler):
    def on_custom_event(self, name, data, **kwargs):
        raise RuntimeError("a broken handler")

    def on_chain_start(self, serialized, inputs, **kwargs):
        raise RuntimeError("a broken handler")

    on_chain_end = on_chain_start


class RaisingAsync(AsyncCallbackHandler):
    async def on_custom_event(self, name, data, **kwargs):
        raise RuntimeError("a broken handler")


@pytest.mark.parametrize("handler", [Raising(), RaisingAsync()], ids=["sync", "async"])
async def test_a_handler_that_raises_never_breaks_retrieval(compressor, handler, caplog):
    with caplog.at_level(logging.ERROR):
        found = await compressor.acompress_documents(documents(), "q", callbacks=[handler])
        assert kept(found) == ["near", "middle"]
        found = await asyncio.to_thread(
            compressor.compress_documents, documents(), "q", callbacks=[handler]
        )
    assert kept(found) == ["near", "middle"]


def test_a_filter_that_fails_ends_its_run_with_the_error():
    collector = RunCollectorCallbackHandler()
    queries = [ScoredQuery([0.5], [True])] * 20
    calibration = Calibration.from_scores(queries, alpha=0.1, scorer="lookup")
    compressor = ConformalCompressor(filter=ConformalFilter(Failing({}), calibration))
    with pytest.raises(RuntimeError, match="no model"):
        compressor.compress_documents(documents(), "q", callbacks=[collector])
    (run,) = collector.traced_runs
    assert "no model" in run.error


class Editing(BaseCallbackHandler):
    """Writes over what it is told."""

    def on_custom_event(self, name, data, **kwargs):
        data["kept"].append("edited")
        data["query"] = "edited"


async def test_a_handler_that_edits_an_event_leaves_the_runs_output_as_it_was(compressor):
    collector = RunCollectorCallbackHandler()
    callbacks = [Editing(), collector]
    compressor.compress_documents(documents(), "q", callbacks=callbacks)
    await compressor.acompress_documents(documents(), "q", callbacks=callbacks)
    outputs = [run.outputs for run in collector.traced_runs]
    assert [(told["kept"], told["query"]) for told in outputs] == [([0, 1], "q")] * 2


def test_the_handler_of_langchain_counts_and_logs(compressor, tmp_path):
    handler = ConformalCallbackHandler(FilterLog(tmp_path / "log.jsonl"))
    for _ in range(3):
        compressor.compress_documents(documents(), "q", callbacks=[handler])
    chain = RunnableLambda(lambda x: x)
    chain.invoke("other", config={"callbacks": [handler]})
    (counts,) = handler.observer.counts.values()
    assert (counts.queries, counts.m1, counts.m2) == (3, 1.0, pytest.approx(2 / 3))
    assert [event["kept"] for event in read_log(tmp_path / "log.jsonl")] == [[0, 1]] * 3


FAR = ("far", "far")  # the texts of a query of which nothing passes
BLANK = ("far", "blank")  # and of one of which one cannot be scored


def told(handler):
    """What was counted, and what each row of the log says that `on_empty` must not change."""
    ((checksum, counts),) = handler.observer.counts.items()
    rows = list(read_log(handler.observer.log.path))
    assert {row["calibration"] for row in rows} == {checksum}
    return (
        (counts.queries, counts.snippets, counts.m1, counts.m2),
        [(row["query"], row["k"], row["scores"], row["m1"], row["m2"]) for row in rows],
        [row["kept"] for row in rows],
    )


async def test_langchain_counts_and_logs_queries_of_which_nothing_is_kept(tmp_path):
    async def of(on_empty):
        handler = ConformalCallbackHandler(FilterLog(tmp_path / f"{on_empty}.jsonl"))
        collector = RunCollectorCallbackHandler()
        compressor = ConformalCompressor(filter=lookup_filter(on_empty=on_empty))
        config = {"callbacks": [handler, collector]}
        for texts in (SCORES, FAR):
            found = [Document(text, id=text) for text in texts]
            retriever = ConformalRetriever(
                retriever=RunnableLambda(lambda q, found=found: found), filter=compressor.filter
            )
            for call in (
                lambda found=found: compressor.compress_documents(found, "q", **config),
                lambda found=found: compressor.acompress_documents(found, "q", **config),
                lambda retriever=retriever: retriever.invoke("q", config),
                lambda retriever=retriever: retriever.ainvoke("q", config),
            ):
                if on_empty == "raise" and texts is FAR:
                    with pytest.raises(NothingKept, match="none of 2 snippets is kept"):
                        await _given(call())
                else:
                    await _given(call())
        alone = [run for run in collector.traced_runs if run.name == "conformal_filter"]
        assert [run.error for run in alone] == [None] * 4
        return *told(handler), [run.outputs["kept"] for run in alone]

    allowed, best, raised = [await of(each) for each in ("allow", "keep_best", "raise")]
    assert raised == allowed
    assert raised[:2] == best[:2]
    assert raised[0] == (8, 20, 0.5, pytest.approx(1 / 3))
    assert (raised[2][-1], best[2][-1], raised[3][-1]) == ([], [0], [])


async def test_langchain_counts_and_logs_queries_whose_snippets_cannot_all_be_scored(tmp_path):
    async def of(on_unscorable):
        handler = ConformalCallbackHandler(FilterLog(tmp_path / f"{on_unscorable}.jsonl"))
        collector = RunCollectorCallbackHandler()
        compressor = ConformalCompressor(filter=lookup_filter(on_unscorable=on_unscorable))
        found = [Document(text, id=text) for text in BLANK]
        for call in (compressor.compress_documents, compressor.acompress_documents):
            with _unscorable(raised=on_unscorable == "raise"):
                documents = await _given(call(found, "q", callbacks=[handler, collector]))
                assert kept(documents) == ["blank"]
        runs = [(run.error, run.outputs["unscorable"]) for run in collector.traced_runs]
        return *told(handler), runs

    passed, raised = [await of(each) for each in ("keep", "raise")]
    assert raised == passed
    assert (raised[0], raised[2:]) == ((2, 4, 1.0, 0.5), ([[1]] * 2, [(None, [1])] * 2))


def _unscorable(*, raised):
    said = r"snippets \[1\] could not be scored by 'lookup'"
    return pytest.raises(Unscorable, match=said) if raised else nullcontext()


async def _given(found):
    return await found if inspect.isawaitable(found) else found


@pytest.mark.parametrize("handler", [ConformalCallbackHandler, ConformalEventHandler])
def test_a_path_in_the_place_of_a_log_is_refused_with_the_log_to_give(handler):
    for path in ("calls.jsonl", Path("calls.jsonl")):
        with pytest.raises(TypeError, match=r"calls\.jsonl.*; give FilterLog\('calls\.jsonl'\)"):
            handler(path)
    with pytest.raises(TypeError, match=r"log is 3; give FilterLog\('filter\.jsonl'\)"):
        handler(3)


# --- LlamaIndex -----------------------------------------------------------------------------------


def nodes():
    return [NodeWithScore(node=TextNode(text=text, id_=text), score=0.5) for text in SCORES]


class Kept(BaseEventHandler):
    events: list

    def handle(self, event, **kwargs):
        self.events.append(event)


@pytest.fixture
def listened():
    dispatcher, handler = get_dispatcher(), Kept(events=[])
    before = list(dispatcher.event_handlers)
    dispatcher.add_event_handler(handler)
    yield handler.events
    dispatcher.event_handlers = before


@pytest.fixture
def postprocessor():
    return ConformalPostprocessor(filter=lookup_filter())


async def test_both_events_come_in_pairs(postprocessor, listened):
    postprocessor.postprocess_nodes(nodes(), query_str="q")
    await postprocessor.apostprocess_nodes(nodes(), query_str="q")
    postprocessor.postprocess_nodes([], query_str="q")
    pairs = list(zip(listened[::2], listened[1::2], strict=True))
    for start, end in pairs:
        assert isinstance(start, ReRankStartEvent)
        assert isinstance(end, ConformalFilterEvent)
        assert (start.query.query_str, start.model_name) == ("q", "lookup")
    assert [[node.node.node_id for node in end.nodes] for _, end in pairs] == [
        ["near", "middle"],
        ["near", "middle"],
        [],
    ]
    decision = pairs[0][1].decision
    assert json.loads(json.dumps(decision)) == decision
    assert (decision["kept"], decision["k"], decision["query"]) == ([0, 1], 3, "q")
    assert pairs[0][1].class_name() == "ConformalFilterEvent"


def test_where_the_filter_fails_the_second_event_comes_all_the_same(listened):
    queries = [ScoredQuery([0.5], [True])] * 20
    calibration = Calibration.from_scores(queries, alpha=0.1, scorer="lookup")
    postprocessor = ConformalPostprocessor(filter=ConformalFilter(Failing({}), calibration))
    with pytest.raises(RuntimeError, match="no model"):
        postprocessor.postprocess_nodes(nodes(), query_str="q")
    start, end = (e for e in listened if "Span" not in e.class_name())
    assert isinstance(start, ReRankStartEvent)
    assert (end.nodes, end.decision) == ([], None)


def test_the_older_callback_manager_sees_a_reranking(postprocessor):
    debug = LlamaDebugHandler(print_trace_on_end=False)
    postprocessor.callback_manager = CallbackManager([debug])
    postprocessor.postprocess_nodes(nodes(), query_str="q")
    ((start, end),) = debug.get_event_pairs(CBEventType.RERANKING)
    assert start.payload["query_str"] == "q"
    assert len(start.payload["nodes"]) == 3
    assert [node.node.node_id for node in end.payload["nodes"]] == ["near", "middle"]


def test_an_event_handler_that_raises_never_breaks_retrieval(postprocessor, caplog):
    class Broken(BaseEventHandler):
        def handle(self, event, **kwargs):
            raise RuntimeError("a broken handler")

    class BrokenDebug(LlamaDebugHandler):
        def on_event_start(self, *args, **kwargs):
            raise RuntimeError("a broken handler")

    dispatcher = get_dispatcher()
    before = list(dispatcher.event_handlers)
    dispatcher.add_event_handler(Broken())
    postprocessor.callback_manager = CallbackManager([BrokenDebug(print_trace_on_end=False)])
    try:
        found = postprocessor.postprocess_nodes(nodes(), query_str="q")
    finally:
        dispatcher.event_handlers = before
    assert [node.node.node_id for node in found] == ["near", "middle"]
    assert "a callback handler failed; filtering goes on" in caplog.text


def test_the_handler_of_llama_index_counts_and_logs(postprocessor, tmp_path):
    handler = ConformalEventHandler(FilterLog(tmp_path / "log.jsonl"))
    dispatcher = get_dispatcher()
    before = list(dispatcher.event_handlers)
    dispatcher.add_event_handler(handler)
    try:
        for _ in range(3):
            postprocessor.postprocess_nodes(nodes(), query_str="q")
    finally:
        dispatcher.event_handlers = before
    (counts,) = handler.observer.counts.values()
    assert (counts.queries, counts.m1, counts.m2) == (3, 1.0, pytest.approx(2 / 3))
    assert [event["kept"] for event in read_log(tmp_path / "log.jsonl")] == [[0, 1]] * 3


@pytest.mark.parametrize("fails", ["on_event_start", "on_event_end"])
def test_a_legacy_handler_that_raises_leaves_the_others_their_pairs_and_the_stack(
    postprocessor, fails
):
    class Broken(LlamaDebugHandler):
        pass

    def broken(self, event_type, *args, event_id="", **kwargs):
        if event_type == CBEventType.RERANKING:
            raise RuntimeError("a broken handler")
        return event_id

    setattr(Broken, fails, broken)
    before, after = [LlamaDebugHandler(print_trace_on_end=False) for _ in range(2)]
    callbacks = CallbackManager([before, Broken(print_trace_on_end=False), after])
    postprocessor.callback_manager = callbacks
    stack = list(global_stack_trace.get())
    with callbacks.as_trace("query"), callbacks.event(CBEventType.QUERY) as query:
        postprocessor.postprocess_nodes(nodes(), query_str="q")
        postprocessor.postprocess_nodes(nodes(), query_str="q")
        assert global_stack_trace.get()[-1] == query._event_id
        children = callbacks.trace_map[query._event_id]
    assert global_stack_trace.get() == stack
    for debug in (before, after):
        pairs = debug.get_event_pairs(CBEventType.RERANKING)
        assert [len(pair) for pair in pairs] == [2, 2]
        assert [start.id_ for start, _ in pairs] == children


async def test_llama_index_counts_and_logs_queries_of_which_nothing_is_kept(tmp_path):
    dispatcher = get_dispatcher()
    before = list(dispatcher.event_handlers)

    async def of(on_empty):
        handler = ConformalEventHandler(FilterLog(tmp_path / f"{on_empty}.jsonl"))
        dispatcher.add_event_handler(handler)
        debug = LlamaDebugHandler(print_trace_on_end=False)
        postprocessor = ConformalPostprocessor(filter=lookup_filter(on_empty=on_empty))
        postprocessor.callback_manager = CallbackManager([debug])
        for texts in (SCORES, FAR):
            found = [NodeWithScore(node=TextNode(text=text)) for text in texts]
            for call in (postprocessor.postprocess_nodes, postprocessor.apostprocess_nodes):
                if on_empty == "raise" and texts is FAR:
                    with pytest.raises(NothingKept, match="none of 2 snippets is kept"):
                        await _given(call(found, query_str="q"))
                else:
                    await _given(call(found, query_str="q"))
        dispatcher.event_handlers = before.copy()
        ends = [end.payload["nodes"] for _, end in debug.get_event_pairs(CBEventType.RERANKING)]
        return *told(handler), [len(kept) for kept in ends]

    try:
        allowed, best, raised = [await of(each) for each in ("allow", "keep_best", "raise")]
    finally:
        dispatcher.event_handlers = before
    assert raised == allowed
    assert raised[:2] == best[:2]
    assert raised[0] == (4, 10, 0.5, pytest.approx(1 / 3))
    assert (raised[2][-1], best[2][-1], raised[3][-1]) == ([], [0], 0)


async def test_llama_index_counts_and_logs_queries_whose_snippets_cannot_all_be_scored(
    tmp_path, listened
):
    async def of(on_unscorable):
        handler = ConformalEventHandler(FilterLog(tmp_path / f"{on_unscorable}.jsonl"))
        get_dispatcher().add_event_handler(handler)
        postprocessor = ConformalPostprocessor(filter=lookup_filter(on_unscorable=on_unscorable))
        found = [NodeWithScore(node=TextNode(text=text)) for text in BLANK]
        for call in (postprocessor.postprocess_nodes, postprocessor.apostprocess_nodes):
            with _unscorable(raised=on_unscorable == "raise"):
                (node,) = await _given(call(found, query_str="q"))
                assert node.text == "blank"
        get_dispatcher().event_handlers.pop()
        return told(handler)

    passed, raised = [await of(each) for each in ("keep", "raise")]
    assert raised == passed
    assert (raised[0], raised[2]) == ((2, 4, 1.0, 0.5), [[1]] * 2)


@INNER
async def test_what_is_refused_within_the_scorer_is_no_decision_of_langchain(scorer):
    seen = Seen()
    compressor = ConformalCompressor(filter=filter_with(scorer))
    for call in (compressor.compress_documents, compressor.acompress_documents):
        with pytest.raises(NothingKept):
            await _given(call(documents(), "q", callbacks=[seen]))
    assert seen.events == []
    assert [name for name, _, _ in seen.runs] == ["conformal_filter"] * 2


@INNER
async def test_what_is_refused_within_the_scorer_is_no_decision_of_llama_index(scorer, listened):
    handler = ConformalEventHandler()
    get_dispatcher().add_event_handler(handler)
    postprocessor = ConformalPostprocessor(filter=filter_with(scorer))
    for call in (postprocessor.postprocess_nodes, postprocessor.apostprocess_nodes):
        with pytest.raises(NothingKept):
            await _given(call(nodes(), query_str="q"))
    assert not handler.observer.counts
    ends = [event for event in listened if isinstance(event, ConformalFilterEvent)]
    assert [event.decision for event in ends] == [None, None]


class Emptying(LlamaDebugHandler):
    """Empties the list of nodes that it is told of."""

    def on_event_start(self, event_type, payload=None, **kwargs):
        payload["nodes"].clear()
        return ""

    def on_event_end(self, event_type, payload=None, **kwargs):
        payload["nodes"].clear()


async def test_a_legacy_handler_that_edits_what_it_is_told_changes_nothing(postprocessor):
    postprocessor.callback_manager = CallbackManager([Emptying(print_trace_on_end=False)])
    given = nodes()
    for call in (postprocessor.postprocess_nodes, postprocessor.apostprocess_nodes):
        found = await _given(call(given, query_str="q"))
        assert [node.node.node_id for node in found] == ["near", "middle"]
    assert len(given) == 3


async def test_openinferences_spans_carry_what_was_decided(postprocessor, llama_index_instrumentor):
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    llama_index_instrumentor.instrument(tracer_provider=provider)
    postprocessor.postprocess_nodes(nodes(), query_str="q")
    await postprocessor.apostprocess_nodes(nodes(), query_str="q")
    spans = exporter.get_finished_spans()
    assert [span.name.split(".")[1] for span in spans] == [
        "_postprocess_nodes",
        "_apostprocess_nodes",
    ]
    for span in spans:
        told = dict(span.attributes)
        assert (told["conformal.k"], told["conformal.kept"], told["conformal.m2"]) == (3, 2, 2 / 3)
        assert told["reranker.model_name"] == "lookup"
        assert told["reranker.output_documents.1.document.id"] == "middle"


def test_both_handlers_write_the_same_log(compressor, postprocessor, tmp_path):
    logs = [FilterLog(tmp_path / name) for name in ("one.jsonl", "other.jsonl")]
    compressor.compress_documents(documents(), "q", callbacks=[ConformalCallbackHandler(logs[0])])
    dispatcher = get_dispatcher()
    before = list(dispatcher.event_handlers)
    dispatcher.add_event_handler(ConformalEventHandler(logs[1]))
    try:
        postprocessor.postprocess_nodes(nodes(), query_str="q")
    finally:
        dispatcher.event_handlers = before
    rows = [next(read_log(log.path)) for log in logs]
    for row in rows:
        row.pop("time")
        row.pop("calibration")  # calibrated apart, at different times
    assert rows[0] == rows[1]
