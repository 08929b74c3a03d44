"""Events of the filter of answers in both frameworks, and handlers that fail."""

import json
import logging
import math

import pytest
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler
from llama_index.core.base.response.schema import Response
from llama_index.core.query_engine import CustomQueryEngine
from lookup import LookupScorer
from monitoring.test_events import Kept, Seen, finished
from replies import replying

from conformal_retrievers import NothingKept
from conformal_retrievers.claims import (
    AnnotatedAnswer,
    AnswerFilter,
    ClaimFilter,
    calibrate_claims,
    claims_event_of,
)
from conformal_retrievers.llm.reply import Unanswered
from conformal_retrievers.monitoring import Counts, FilterLog, Observer, read_log
from langchain_conformal import ConformalCallbackHandler, answer_filter_runnable
from llama_index.postprocessor.conformal import (
    ClaimFilterQueryEngine,
    ConformalClaimsEvent,
    ConformalClaimsStartEvent,
    ConformalEventHandler,
)

RELEVANCE = {"red": 0.9, "low": 0.1, "lost": math.nan, "endless": math.inf}
GIVEN = {"question": "q", "context": ["d"], "answer": "Some words."}


class Failing:
    """May raise what a filter raises, as a scorer that asks another filter would."""

    name = "lookup"

    def __init__(self, error):
        self.error = error

    def relevance(self, query, claims, documents):
        raise self.error


def answer_filter(*claims, scorer=None, failure=None, alpha=0.4, **options):
    """A filter with the threshold .5 of answers that are divided into these claims."""
    answers = [AnnotatedAnswer([0.5], [False])] * 4
    calibration = calibrate_claims(answers, alpha=alpha, scorer="lookup")
    llm = replying(failure or {"claims": claims or ["red", "low", "lost"]})
    return AnswerFilter(ClaimFilter(scorer or LookupScorer(RELEVANCE), calibration), llm, **options)


# --- the event ------------------------------------------------------------------------------------


def test_events_are_plain_json_without_texts_of_claims():
    filtered = answer_filter("red", "low", "lost", "endless")("q", "Some words.", [])
    event = claims_event_of(filtered, query="q")
    assert json.loads(json.dumps(event, allow_nan=False)) == event
    assert {name: value for name, value in event.items() if name != "time"} == {
        "event": "conformal_claims",
        "version": 1,
        "calibration": filtered.claims.calibration.checksum,
        "scorer": "lookup",
        "alpha": 0.4,
        "share": 1.0,
        "group": None,
        "query": "q",
        "k": 4,
        "kept": [0, 3],
        "unscorable": [2],
        "threshold": 0.5,
        "relevance": [0.9, 0.1, None, "inf"],
        "undivided": None,
        "guaranteed": True,
    }
    assert filtered.details["kept"][1]["relevance"] == "inf"
    nothing = answer_filter("red", alpha=0.1)("q", "Some words.", [])
    assert claims_event_of(nothing)["threshold"] == "keep_none"
    merged = answer_filter(merge_with=replying({"text": "So."}))
    assert claims_event_of(merged("q", "Some words.", []))["guaranteed"] is False


def test_the_events_of_both_filters_are_counted_and_read_from_one_log(log, caplog):
    observer = Observer(log)
    event = claims_event_of(answer_filter()("q", "Some words.", []), query="q")
    with caplog.at_level(logging.INFO):
        observer.observe(event)
        observer.observe(event)
    undivided = answer_filter(failure=Unanswered("busy"))("q", "Some words.", [])
    Observer().observe(claims_event_of(undivided))
    log.append(
        {"event": "conformal_filter", "version": 1, "calibration": "c", "k": 0, "kept": []}
        | {"scores": [], "m1": 0, "m2": 0}
    )
    (counts,) = observer.counts.values()
    assert (counts.queries, counts.snippets, counts.kept, counts.unscorable) == (2, 6, 2, 2)
    assert (counts.m1, counts.m2) == (1, pytest.approx(1 / 3))
    assert "kept 1 of 3 claims; so far 100.0 % of 2 queries kept a claim" in caplog.text
    assert "1 of 3 claims could not be scored" in caplog.text
    assert "could not be divided into claims: unanswered" in caplog.text
    assert [e["kept"] for e in read_log(log.path, event="conformal_claims")] == [[0], [0]]
    assert [e["calibration"] for e in read_log(log.path)] == ["c"]
    assert "q" not in {e["query"] for e in read_log(log.path, event="conformal_claims")}
    log.append({"event": "conformal_claims", "version": 1, "calibration": "c", "k": 0, "kept": []})
    with pytest.raises(ValueError, match="line 4.*relevance"):
        list(read_log(log.path, event="conformal_claims"))


# --- LangChain ------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["invoke", "ainvoke"])
async def test_filtering_is_a_child_run_with_one_event(call):
    seen, collector = Seen(), RunCollectorCallbackHandler()
    runnable = answer_filter_runnable(answer_filter())
    message = getattr(runnable, call)(GIVEN, {"callbacks": [seen, collector]})
    assert (await message if call == "ainvoke" else message).text == "red."
    ((name, data, run_id),) = seen.events
    assert json.loads(json.dumps(data)) == data
    assert (name, data["version"], data["kept"], data["query"]) == ("conformal_claims", 1, [0], "q")
    (outer, outer_id, _), (inner, inner_id, parent) = seen.runs
    assert (outer, inner) == ("conformal_answer_filter", "conformal_claims")
    assert (parent, run_id) == (outer_id, inner_id)
    (run,) = collector.traced_runs
    (child,) = run.child_runs
    assert (child.name, child.inputs) == ("conformal_claims", {"query": "q"})
    assert child.outputs == data


ALL = ((["red", "low"], {}), (["low", "low"], {}), ([], {"failure": Unanswered("busy")}))


def told(handler):
    """What was counted, and the log without what is another at every calibration and time."""
    counts = handler.observer.counts
    rows = list(read_log(handler.observer.log.path, event="conformal_claims"))
    assert {row["calibration"] for row in rows} == set(counts)
    return sum(counts.values(), Counts()), [{**r, "calibration": "", "time": ""} for r in rows]


async def test_both_frameworks_count_and_log_answers_without_a_kept_claim(dispatcher, tmp_path):
    chains = ConformalCallbackHandler(FilterLog(tmp_path / "chains.jsonl"))
    engines = ConformalEventHandler(FilterLog(tmp_path / "engines.jsonl"))
    dispatcher.add_event_handler(engines)
    for claims, options in ALL:
        answers = answer_filter(*claims, **options)
        chain = answer_filter_runnable(answers).with_config(callbacks=[chains])
        engine = ClaimFilterQueryEngine(Fixed(), answers)
        for call, given in (
            (chain.invoke, GIVEN),
            (chain.ainvoke, GIVEN),
            (engine.query, "q"),
            (engine.aquery, "q"),
        ):
            await finished(call(given))
    dispatcher.event_handlers.remove(engines)
    assert told(chains) == told(engines)
    counts, rows = told(chains)
    assert (counts.queries, counts.m1) == (6, pytest.approx(1 / 3))
    assert [row["undivided"] for row in rows] == [None] * 4 + ["unanswered"] * 2


@pytest.mark.parametrize("error", [NothingKept("in the scorer", None), RuntimeError("no model")])
async def test_an_error_inside_the_scorer_is_not_a_decision(dispatcher, error):
    """Nor is it for a filter of answers alone."""
    seen, kept = Seen(), Kept(events=[])
    dispatcher.add_event_handler(kept)
    refusing = answer_filter(scorer=Failing(error))
    runnable = answer_filter_runnable(refusing).with_config(callbacks=[seen])
    engine = ClaimFilterQueryEngine(Fixed(), refusing)
    for call in (
        lambda: refusing("q", "Some words.", ["d"]),
        lambda: refusing.acall("q", "Some words.", ["d"]),
        lambda: runnable.invoke(GIVEN),
        lambda: runnable.ainvoke(GIVEN),
        lambda: engine.query("q"),
        lambda: engine.aquery("q"),
    ):
        with pytest.raises(type(error), match=error.args[0]):
            await finished(call())
    assert seen.events == []
    assert [end.decision for end in of_claims(kept.events)[1::2]] == [None, None]


# --- LlamaIndex -----------------------------------------------------------------------------------


class Fixed(CustomQueryEngine):
    """An engine that always answers the same."""

    def custom_query(self, query_str):
        return Response("Some words.", source_nodes=[])


def engine(**options):
    return ClaimFilterQueryEngine(Fixed(), answer_filter(**options))


def of_claims(events):
    return [e for e in events if isinstance(e, (ConformalClaimsStartEvent, ConformalClaimsEvent))]


async def test_both_events_come_in_pairs_inside_a_span(dispatcher):
    dispatcher.add_event_handler(kept := Kept(events=[]))
    assert str(engine().query("q")) == "red."
    assert str(await engine().aquery("q")) == "red."
    start, end, *awaited = of_claims(kept.events)
    assert start.class_name() == "ConformalClaimsStartEvent"
    assert (start.query, start.scorer) == ("q", "lookup")
    assert end.class_name() == "ConformalClaimsEvent"
    assert json.loads(json.dumps(end.decision)) == end.decision
    assert [end.decision[name] for name in ("version", "kept", "query")] == [1, [0], "q"]
    assert "_filter_claims" in start.span_id
    assert start.span_id == end.span_id
    assert [type(event) for event in awaited] == [type(start), type(end)]
    assert "_afilter_claims" in awaited[0].span_id


async def test_openinference_spans_have_the_decision(llama_index_spans):
    engine().query("q")
    await engine().aquery("q")
    spans = [s for s in llama_index_spans() if "filter_claims" in s.name]
    assert [span.name for span in spans] == [
        "ClaimFilterQueryEngine._filter_claims",
        "ClaimFilterQueryEngine._afilter_claims",
    ]
    for span in spans:
        told = dict(span.attributes)
        names = ("alpha", "share", "threshold", "claims", "kept", "unscorable", "guaranteed")
        assert [told[f"conformal.{name}"] for name in names] == [0.4, 1, 0.5, 3, 1, 1, True]
        assert told["conformal.undivided"] == ""
