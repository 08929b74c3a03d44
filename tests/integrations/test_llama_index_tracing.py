"""What tracing sees of the postprocessor inside real query engines, and what it costs otherwise."""

from __future__ import annotations

import pytest
from frameworks import K, MiniLMEmbedding, halves, index_retriever, vector_index
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.llms import MockLLM

from conformal_retrievers import ConformalFilter, calibrate
from llama_index.postprocessor.conformal import (
    ConformalPostprocessor,
    embedding_scorer,
    judge_retriever,
)

pytestmark = pytest.mark.slow

QUESTION = halves()[1][0].query


@pytest.fixture(scope="module")
def postprocessor() -> ConformalPostprocessor:
    scorer = embedding_scorer(MiniLMEmbedding())
    judged = judge_retriever(index_retriever(), halves()[0])
    return ConformalPostprocessor(
        filter=ConformalFilter(scorer, calibrate(judged, scorer, alpha=0.2))
    )


def engine_of(postprocessor, k=K):
    return vector_index().as_query_engine(
        llm=MockLLM(), similarity_top_k=k, node_postprocessors=[postprocessor]
    )


async def asked(engine, call):
    return engine.query(QUESTION) if call == "query" else await engine.aquery(QUESTION)


@pytest.fixture
def finished_spans(llama_index_instrumentor, tracing):
    exporter, provider = tracing
    llama_index_instrumentor.instrument(tracer_provider=provider)
    return exporter.get_finished_spans


@pytest.mark.parametrize("call", ["query", "aquery"])
async def test_the_filter_is_a_span_below_the_querys(call, postprocessor, finished_spans, caplog):
    response = await asked(engine_of(postprocessor), call)
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


def test_a_handler_that_raises_breaks_nothing(postprocessor, handled):
    found = index_retriever().retrieve(QUESTION)
    kept = postprocessor.postprocess_nodes(found, query_str=QUESTION)
    handled(BrokenEvents())
    assert postprocessor.postprocess_nodes(found, query_str=QUESTION) == kept


@pytest.mark.filterwarnings("ignore:more snippets than k")
@pytest.mark.parametrize("call", ["query", "aquery"])
async def test_with_many_nodes_the_span_has_the_decision_in_its_event(
    call, postprocessor, finished_spans
):
    engine = engine_of(postprocessor, k=60)
    response = await asked(engine, call)
    (ours,) = [s for s in finished_spans() if s.name.startswith("ConformalPostprocessor")]
    assert ours.dropped_attributes > 0
    assert not any(key.startswith("conformal.") for key in ours.attributes)
    (found,) = [event for event in ours.events if event.name == "conformal_filter"]
    kept = len(response.source_nodes)
    assert (found.attributes["conformal.k"], found.attributes["conformal.kept"]) == (60, kept)
    assert found.attributes["conformal.m2"] == kept / 60
    assert found.attributes["conformal.alpha"] == 0.2
