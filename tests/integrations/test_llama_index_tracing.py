"""What tracing sees of the postprocessor inside real query engines, and what it costs otherwise."""

from __future__ import annotations

import pytest
from frameworks import K, MiniLMEmbedding, halves, vector_index
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.rerank import ReRankStartEvent
from llama_index.core.llms import MockLLM

from conformal_retrievers import ConformalFilter, calibrate
from llama_index.postprocessor.conformal import (
    ConformalFilterEvent,
    ConformalPostprocessor,
    embedding_scorer,
    events,
    judge_retriever,
)

pytestmark = pytest.mark.slow

QUESTION = halves()[1][0].query


@pytest.fixture(scope="module")
def postprocessor() -> ConformalPostprocessor:
    scorer = embedding_scorer(MiniLMEmbedding())
    judged = judge_retriever(vector_index().as_retriever(similarity_top_k=K), halves()[0])
    return ConformalPostprocessor(
        filter=ConformalFilter(scorer, calibrate(judged, scorer, alpha=0.2))
    )


def engine_of(postprocessor, k=K):
    return vector_index().as_query_engine(
        llm=MockLLM(), similarity_top_k=k, node_postprocessors=[postprocessor]
    )


@pytest.fixture
def dispatcher():
    root = get_dispatcher()
    before = list(root.event_handlers), list(root.span_handlers)
    yield root
    root.event_handlers, root.span_handlers = before


@pytest.fixture
def finished_spans(llama_index_instrumentor, tracing):
    exporter, provider = tracing
    llama_index_instrumentor.instrument(tracer_provider=provider)
    return exporter.get_finished_spans


@pytest.mark.parametrize("call", ["query", "aquery"])
async def test_the_filter_is_a_span_below_the_querys(call, postprocessor, finished_spans, caplog):
    engine = engine_of(postprocessor)
    response = engine.query(QUESTION) if call == "query" else await engine.aquery(QUESTION)
    spans = {span.name: span for span in finished_spans()}
    ours = f"ConformalPostprocessor._{'a' * (call == 'aquery')}postprocess_nodes"
    kinds = {name: span.attributes["openinference.span.kind"] for name, span in spans.items()}
    assert [name for name, kind in kinds.items() if kind == "RERANKER"] == [ours]
    assert spans[ours].parent.span_id == spans[f"RetrieverQueryEngine._{call}"].context.span_id
    found = spans[ours].attributes
    kept = len(response.source_nodes)
    assert 0 < kept < K
    assert (found["conformal.k"], found["conformal.kept"]) == (K, kept)
    assert found["conformal.alpha"] == 0.2
    assert found["conformal.threshold"] == postprocessor.filter.calibration.threshold()
    assert found["conformal.calibration"] == postprocessor.filter.calibration.checksum
    assert (found["conformal.m1"], found["conformal.m2"]) == (1.0, kept / K)
    assert f"reranker.output_documents.{kept - 1}.document.id" in found
    assert f"reranker.output_documents.{kept}.document.id" not in found
    others = [span for name, span in spans.items() if name != ours]
    assert not any(key.startswith("conformal.") for span in others for key in span.attributes)
    assert "nhandled event" not in caplog.text  # OpenInference says so of classes it does not know


class BrokenEvents(BaseEventHandler):
    def handle(self, event, **kwargs):
        raise RuntimeError("a broken handler")


def test_without_a_listener_no_event_is_built(postprocessor, dispatcher, monkeypatch):
    built = []
    for name in ("ReRankStartEvent", "ConformalFilterEvent"):
        cls = getattr(events, name)
        monkeypatch.setattr(events, name, lambda cls=cls, **data: built.append(cls) or cls(**data))
    found = vector_index().as_retriever(similarity_top_k=K).retrieve(QUESTION)
    postprocessor.postprocess_nodes(found, query_str=QUESTION)
    assert built == []
    dispatcher.add_event_handler(BrokenEvents())
    postprocessor.postprocess_nodes(found, query_str=QUESTION)
    assert built == [ReRankStartEvent, ConformalFilterEvent]


@pytest.mark.filterwarnings("ignore:more snippets than k")
@pytest.mark.parametrize("call", ["query", "aquery"])
async def test_with_many_nodes_the_span_has_the_decision_in_its_event(
    call, postprocessor, finished_spans
):
    engine = engine_of(postprocessor, k=60)
    response = engine.query(QUESTION) if call == "query" else await engine.aquery(QUESTION)
    (ours,) = [s for s in finished_spans() if s.name.startswith("ConformalPostprocessor")]
    assert ours.dropped_attributes > 0
    assert not any(key.startswith("conformal.") for key in ours.attributes)
    (found,) = [event for event in ours.events if event.name == "conformal_filter"]
    kept = len(response.source_nodes)
    assert (found.attributes["conformal.k"], found.attributes["conformal.kept"]) == (60, kept)
    assert found.attributes["conformal.m2"] == kept / 60
    assert found.attributes["conformal.alpha"] == 0.2
