"""The LlamaIndex postprocessor in each engine: what it keeps, and what follows where nothing is.

The index and its embeddings are real, and the LLM is asked over HTTP, so that what reaches it is
seen. In each engine the filter is one whose threshold no snippet reaches, with each `on_empty`.
"""

import pytest
from frameworks import (
    K,
    MiniLMEmbedding,
    filter_at,
    halves,
    ids_of,
    index_retriever,
    snippets,
    vector_index,
)
from llama_index.core.agent import FunctionAgent
from llama_index.core.llms import MockLLM
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.query_engine import RouterQueryEngine
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import QueryEngineTool, RetrieverTool

from conformal_retrievers import NothingKept, calibrate
from llama_index.postprocessor.conformal import (
    ConformalPostprocessor,
    embedding_scorer,
    judge_retriever,
)

pytestmark = pytest.mark.slow

ANSWER = "An answer of several words."
QUESTION = halves()[1][0].query


@pytest.fixture
def llm(llm_server, models):
    llm_server.reply = lambda body: ANSWER
    return models()[1]


def postprocessor(on_empty="allow", threshold=0.0) -> ConformalPostprocessor:
    """Return one that keeps what is as near as `threshold`: by default, nothing that is here."""
    scorer = embedding_scorer(MiniLMEmbedding())
    return ConformalPostprocessor(filter=filter_at(scorer, threshold, on_empty=on_empty))


@pytest.fixture(scope="module")
def calibrated() -> ConformalPostprocessor:
    scorer = embedding_scorer(MiniLMEmbedding())
    calibration = calibrate(judge_retriever(index_retriever(), halves()[0]), scorer, alpha=0.2)
    return ConformalPostprocessor.from_calibration(calibration, scorer=scorer)


# --- each engine: from postprocessor, LLM and question to the answer and the nodes it is from -----


def query_engine(postprocessor, llm, k=K, **options):
    return vector_index().as_query_engine(
        llm=llm, similarity_top_k=k, node_postprocessors=[postprocessor], **options
    )


def chat_engine(mode, postprocessor, llm):
    return vector_index().as_chat_engine(
        chat_mode=mode,
        llm=llm,
        similarity_top_k=K,
        node_postprocessors=[postprocessor],
        memory=ChatMemoryBuffer.from_defaults(llm=llm),  # the default's database is never closed
    )


def router(postprocessor, llm):
    tools = [QueryEngineTool.from_defaults(query_engine(postprocessor, llm), description="Python")]
    selector = AlwaysFirst.from_defaults(llm=llm)
    return RouterQueryEngine.from_defaults(tools, llm=llm, selector=selector)


def asking(make, call, **options):
    """Return a function that asks an engine, and returns the answer and the nodes it is from."""

    async def ask(postprocessor, llm, question):
        response = getattr(make(postprocessor=postprocessor, llm=llm, **options), call)(question)
        response = await response if call.startswith("a") else response
        if "stream" not in call and "streaming" not in options:
            return str(response), response.source_nodes
        if call.startswith("a"):
            tokens = [token async for token in response.async_response_gen()]
        else:
            tokens = [*response.response_gen]
        return "".join(tokens), response.source_nodes

    return ask


class AlwaysFirst(LLMSingleSelector):
    """Selects without asking."""

    def _select(self, choices, query):
        from llama_index.core.base.base_selector import SelectorResult, SingleSelection

        return SelectorResult(selections=[SingleSelection(index=0, reason="the only one")])


CHATS = ("chat", "achat", "stream_chat", "astream_chat")
ENGINES = {
    "query": asking(query_engine, "query"),
    "aquery": asking(query_engine, "aquery"),
    "streaming": asking(query_engine, "query", streaming=True),
    "streaming, async": asking(query_engine, "aquery", streaming=True),
    **{
        f"{mode}, {call}": asking(chat_engine, call, mode=mode)
        for mode in ("context", "condense_plus_context")
        for call in CHATS
    },
    "router": asking(router, "query"),
}
each_engine = pytest.mark.parametrize("ask", ENGINES.values(), ids=ENGINES)


def prompt_of(body) -> str:
    return "\n".join(str(message["content"]) for message in body["messages"])


@each_engine
async def test_an_engine_answers_from_the_kept_nodes_only(ask, calibrated, llm, llm_server):
    found = index_retriever().retrieve(QUESTION)
    expected = calibrated.postprocess_nodes(found, query_str=QUESTION)
    assert 0 < len(expected) < K
    answer, nodes = await ask(calibrated, llm, QUESTION)
    assert (answer, ids_of(nodes)) == (ANSWER, ids_of(expected))
    (body,) = llm_server.bodies
    assert [n.node_id for n in found if n.text in prompt_of(body)] == ids_of(expected)


@each_engine
async def test_on_empty_decides_what_an_engine_answers_from(ask, llm, llm_server):
    assert await ask(postprocessor("allow"), llm, QUESTION) == ("Empty Response", [])
    with pytest.raises(NothingKept):
        await ask(postprocessor("raise"), llm, QUESTION)
    assert llm_server.bodies == []
    best = index_retriever().retrieve(QUESTION)[0]  # the index goes by the same model
    answer, nodes = await ask(postprocessor("keep_best"), llm, QUESTION)
    assert (answer, ids_of(nodes)) == (ANSWER, [best.node_id])
    (body,) = llm_server.bodies
    assert best.text in prompt_of(body)


# --- tools, agents, workflows ---------------------------------------------------------------------


def retriever_tool(postprocessor) -> RetrieverTool:
    return RetrieverTool.from_defaults(
        index_retriever(), node_postprocessors=[postprocessor], name="docs", description="Python"
    )


async def test_a_retriever_tool_returns_the_kept_nodes(calibrated):
    tool = retriever_tool(calibrated)
    by_an_agent = tool.call(input=QUESTION)  # which has another query
    for output, asked in (
        (tool.call(QUESTION), f"{QUESTION}\n"),
        (await tool.acall(QUESTION), f"{QUESTION}\n"),
        (by_an_agent, f"\ninput is {QUESTION}\n"),
    ):
        expected = calibrated.postprocess_nodes(index_retriever().retrieve(asked), query_str=asked)
        assert ids_of(output.raw_output) == ids_of(expected)
        assert output.content == "".join(f"{node.text}\n\n" for node in expected)


@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")
@pytest.mark.parametrize("on_empty", ["allow", "keep_best", "raise"])
async def test_an_agent_gets_the_result_of_its_tool(on_empty, llm, llm_server):
    asked = {"name": "docs", "arguments": '{"input": "What is str.partition?"}'}
    call = {"id": "call-1", "type": "function", "function": asked}

    def reply(body):
        return {"tool_calls": [call]} if body["messages"][-1]["role"] == "user" else ANSWER

    llm_server.reply = reply
    agent = FunctionAgent(tools=[retriever_tool(postprocessor(on_empty))], llm=llm)
    assert str(await agent.run(QUESTION)) == ANSWER
    said = llm_server.bodies[-1]["messages"][-1]
    assert said["role"] == "tool"
    if on_empty == "allow":
        assert said["content"] == ""
    elif on_empty == "keep_best":
        assert said["content"].strip() in {s.text.strip() for s in snippets()}
    else:
        assert "none of 8 snippets is kept" in said["content"]  # the agent tells the LLM of it


# --- traces ---------------------------------------------------------------------------------------


async def asked(postprocessor, call, k=K):
    engine = query_engine(postprocessor, MockLLM(), k)
    return engine.query(QUESTION) if call == "query" else await engine.aquery(QUESTION)


@pytest.mark.parametrize("call", ["query", "aquery"])
async def test_the_filter_is_a_span_below_the_querys(call, calibrated, llama_index_spans, caplog):
    response = await asked(calibrated, call)
    spans = {span.name: span for span in llama_index_spans()}
    ours = f"ConformalPostprocessor._{'a' * (call == 'aquery')}postprocess_nodes"
    kinds = {name: span.attributes["openinference.span.kind"] for name, span in spans.items()}
    assert [name for name, kind in kinds.items() if kind == "RERANKER"] == [ours]
    assert spans[ours].parent.span_id == spans[f"RetrieverQueryEngine._{call}"].context.span_id
    found = spans[ours].attributes
    kept = len(response.source_nodes)
    assert 0 < kept < K
    assert (found["conformal.k"], found["conformal.kept"]) == (K, kept)
    assert found["conformal.alpha"] == 0.2
    assert found["conformal.threshold"] == calibrated.filter.calibration.threshold()
    assert found["conformal.calibration"] == calibrated.filter.calibration.checksum
    assert (found["conformal.m1"], found["conformal.m2"]) == (1.0, kept / K)
    assert f"reranker.output_documents.{kept - 1}.document.id" in found
    assert f"reranker.output_documents.{kept}.document.id" not in found
    others = [span for name, span in spans.items() if name != ours]
    assert not any(key.startswith("conformal.") for span in others for key in span.attributes)
    assert "nhandled event" not in caplog.text  # OpenInference says so of classes it does not know


@pytest.mark.filterwarnings("ignore:more snippets than k")
@pytest.mark.parametrize("call", ["query", "aquery"])
async def test_with_many_nodes_the_span_has_the_decision_in_its_event(
    call, calibrated, llama_index_spans
):
    response = await asked(calibrated, call, k=60)
    (ours,) = [s for s in llama_index_spans() if s.name.startswith("ConformalPostprocessor")]
    assert ours.dropped_attributes > 0
    assert not any(key.startswith("conformal.") for key in ours.attributes)
    (found,) = [event for event in ours.events if event.name == "conformal_filter"]
    kept = len(response.source_nodes)
    assert (found.attributes["conformal.k"], found.attributes["conformal.kept"]) == (60, kept)
    assert found.attributes["conformal.m2"] == kept / 60
    assert found.attributes["conformal.alpha"] == 0.2
