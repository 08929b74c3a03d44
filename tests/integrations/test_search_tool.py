"""The search tool in agents: a second call returns what a smaller alpha adds, and nothing twice."""

import asyncio
import itertools
import json

import pytest
from frameworks import COMPONENTS, query_gate, texts_of
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_tool_call
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import StructuredTool, create_retriever_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from llama_index.core.agent.workflow import FunctionAgent, ToolCallResult
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.workflow import Context
from lookup import LookupScorer, QueryFunction

import langchain_conformal
import llama_index.postprocessor.conformal as llama_index_conformal
from conformal_retrievers import Calibration, JudgedQuery, ScoredQuery, calibrate, calibrate_gate
from langchain_conformal import ConformalCallbackHandler, ConformalCompressor, ConformalRetriever
from llama_index.postprocessor.conformal import ConformalPostprocessor

# FunctionAgent's own: it lists the fields of a model
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")
TEXTS = ["near", "far", "middle", "close"]
SCORES = {"near": 0.1, "close": 0.4, "middle": 1.5, "far": 9.0}
FAR = ["far", "middle"]
RESULTS = {"Q": TEXTS, "Who?": TEXTS, "Where?": FAR, "none": ["far", "far"], "silent": TEXTS}


COMPRESSOR, _, POSTPROCESSOR = COMPONENTS


class Counting(LookupScorer):
    calls = itertools.count()

    def score(self, query, snippets):
        next(Counting.calls)
        return super().score(query, snippets)


def calibration():
    """Its threshold is 1 at alpha 0.2, and 2 at 0.05."""
    queries = [ScoredQuery([1.0 if i < 34 else 2.0], [True]) for i in range(40)]
    return Calibration.from_scores(queries, alpha=0.2, scorer="lookup")


SILENT = query_gate(lambda query: float(query == "silent"))


# Each has what a framework does with a list of calls of the tool: their texts and what they return.


def parted(options):
    return {key: options.pop(key) for key in ("gate", "on_empty", "shadow") if key in options}


def documents_of(query):
    return COMPRESSOR.given(RESULTS[query])


def langchain_tool(**options):
    given = {"retriever": RunnableLambda(documents_of), "scorer": Counting(SCORES)}
    filtered = ConformalRetriever.from_calibration(calibration(), **given, **parted(options))
    return langchain_conformal.search_tool(filtered, **options)


def reply(body):
    """Call the tool with the questions of the user's last message, one after the other."""
    messages = body["messages"]
    last = max(i for i, message in enumerate(messages) if message["role"] == "user")
    asked = json.loads(messages[last]["content"])
    done = sum(message["role"] == "tool" for message in messages[last:])
    if done == len(asked):
        return "done"
    tool = body["tools"][0]["function"]
    (field,) = tool["parameters"]["properties"]
    function = {"name": tool["name"], "arguments": json.dumps({field: asked[done]})}
    return {"tool_calls": [{"id": f"{len(messages)}", "type": "function", "function": function}]}


@pytest.fixture
def llms(models, llm_server):
    """A model of each framework that calls the tool with the questions that it is given."""
    llm_server.reply = reply
    return models()


def calls_of(questions, key):
    return [
        {"name": "search", "args": {"question": question}, "id": f"{key}-{i}"}
        for i, question in enumerate(questions)
    ]


def tool_node(tools, **options):
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode(tools, **options))
    graph.add_edge(START, "tools")
    return graph.compile()


def agent_of(llms, **options):
    return create_agent(llms[0], [langchain_tool(**options)])


def said(questions):
    return {"messages": [("user", json.dumps(questions))]}


async def in_create_agent(questions, llms, **options):
    found = await agent_of(llms, **options).ainvoke(said(questions))
    assert results(found) == results(agent_of(llms, **options).invoke(said(questions)))
    return results(found)


def results(found):
    return [
        (m.text, texts_of(map(Document.model_validate, m.artifact["documents"])))
        for m in found["messages"]
        if m.type == "tool"
    ]


async def in_langgraph(questions, llms, **options):
    app, messages = tool_node([langchain_tool(**options)]), []
    for i, question in enumerate(questions):
        asks = AIMessage("", tool_calls=calls_of([question], i))
        messages = (await app.ainvoke({"messages": [*messages, asks]}))["messages"]
    return results({"messages": messages})


def nodes_of(query):
    texts = RESULTS[query.query_str]
    return [NodeWithScore(node=TextNode(text=text, id_=text), score=0.5) for text in texts]


OF_TEXTS = POSTPROCESSOR.retriever(nodes_of)


def postprocessor(**options):
    return POSTPROCESSOR.opened((), calibration(), scorer=Counting(SCORES), **options)


def llama_index_tool(**options):
    return llama_index_conformal.search_tool(OF_TEXTS, postprocessor(**parted(options)), **options)


async def in_function_agent(questions, llms, **options):
    agent = FunctionAgent(tools=[llama_index_tool(**options)], llm=llms[1])
    return await asked_of(agent, questions)


async def asked_of(agent, questions, ctx=None):
    handler = agent.run(user_msg=json.dumps(questions), ctx=ctx)
    found = []
    async for event in handler.stream_events():
        if isinstance(event, ToolCallResult):
            output = event.tool_output
            found.append((output.content, texts_of(output.raw_output)))
    await handler
    return found


EVERYWHERE = pytest.mark.parametrize("asked", [in_create_agent, in_langgraph, in_function_agent])


@EVERYWHERE
async def test_a_second_call_for_a_question_returns_only_what_the_smaller_alpha_adds(asked, llms):
    before = next(Counting.calls)
    found = await asked(["Who?", " WHO?", "Who?"], llms)
    times = next(Counting.calls) - before - 1
    assert [kept for _, kept in found] == [["near", "close"], ["middle"], []]
    assert [text for text, _ in found] == ["near\n\nclose", "middle", NO_MORE]
    assert times == (2 if asked is in_create_agent else 1)  # once in each run


@EVERYWHERE
async def test_another_question_starts_anew(asked, llms):
    found = await asked(["Who?", "Where?", "Who?"], llms)
    assert [kept for _, kept in found] == [["near", "close"], [], ["middle"]]


LIKELY = "Nothing likely was found. Search again with the same question for less likely ones."
NOTHING, NO_MORE = "Nothing relevant was found.", "Nothing more was found for this question."


@EVERYWHERE
@pytest.mark.parametrize(
    ("question", "options", "texts"),
    [
        ("Where?", {}, [LIKELY, "middle"]),
        ("none", {}, [NOTHING, NO_MORE]),
        ("silent", {"gate": SILENT}, [NOTHING, NO_MORE]),
        ("Where?", {"on_empty": "keep_best"}, ["middle", NO_MORE]),
        ("Where?", {"shadow": True}, ["far\n\nmiddle", NO_MORE]),
    ],
    ids=["nothing likely", "nothing", "silent", "keep best", "shadow"],
)
async def test_a_call_that_has_nothing_to_return_says_so(asked, question, options, texts, llms):
    assert [text for text, _ in await asked([question, question], llms, **options)] == texts


ODD = [[Document("near")], "near", 7, {"more": []}, {"question": "Who?"}]
ODD += [{"question": None, "more": []}, {"question": "Who?", "more": None}]


@pytest.mark.parametrize("artifact", ODD, ids=repr)
def test_what_another_tool_of_the_name_returned_earlier_is_not_read(artifact):
    earlier = ToolMessage("near", tool_call_id="0", name="search", artifact=artifact)
    assert in_one_message(["Who?"], [earlier]) == ["near\n\nclose"]


def test_calls_at_once_return_the_same_and_the_next_one_only_what_the_smaller_alpha_adds():
    messages = []
    assert in_one_message(["Who?", "Who?"], messages) == ["near\n\nclose"] * 2
    assert in_one_message(["Who?", "Who?"], messages) == ["middle"] * 2
    assert in_one_message(["Who?"], messages) == [NO_MORE]


async def test_calls_at_once_of_a_context_return_the_same_and_the_next_one_only_what_is_added(llms):
    ctx = Context(FunctionAgent(tools=[tool := llama_index_tool()], llm=llms[1]))

    async def texts(n):
        found = await asyncio.gather(*(tool.acall(ctx=ctx, question="Who?") for _ in range(n)))
        return [output.content for output in found]

    assert await texts(2) == ["near\n\nclose"] * 2
    assert await texts(1) == ["middle"]
    for step, question in ((2, "Q"), *[(1, "Where?")] * 2, (3, "Q")):  # the second begins a run
        await ctx.store.set("num_iterations", step)
        assert (await tool.acall(ctx=ctx, question=question)).content in ("near\n\nclose", LIKELY)


def in_one_message(questions, messages):
    """Return the texts of calls that one message has, which go on after the `messages`."""
    asks = AIMessage("", tool_calls=calls_of(questions, len(messages)))
    messages[:] = tool_node([langchain_tool()]).invoke({"messages": [*messages, asks]})["messages"]
    return [message.text for message in messages[-len(questions) :]]


async def test_each_message_of_the_user_begins_anew(llms):
    agent = create_agent(llms[0], [langchain_tool()], checkpointer=InMemorySaver())

    def asked(thread):
        config = {"configurable": {"thread_id": thread}}
        return [kept for _, kept in results(agent.invoke(said(["Who?"]), config))]

    assert asked("one") == [["near", "close"]]
    assert asked("two") == [["near", "close"]]
    assert asked("one") == [["near", "close"]] * 2  # whatever the model still sees of the first


@pytest.mark.filterwarnings("ignore:Skipping serialization")
async def test_contexts_do_not_share_what_was_searched_and_one_can_be_stored(llms):
    agent = FunctionAgent(tools=[tool := llama_index_tool()], llm=llms[1])
    ctx = Context(agent)

    async def asked(ctx, *others):
        return [kept for _, kept in await asked_of(agent, ["Who?", *others], ctx)]

    for each in (ctx, ctx, Context(agent)):
        assert await asked(each) == [["near", "close"]]
    stored = Context.from_dict(agent, json.loads(json.dumps(ctx.to_dict())))
    for each in (ctx, stored):  # as a run that goes on
        assert (await tool.acall(ctx=each, question="Who?")).content == "middle"
    for others in ([], ["Where?"], []):  # a message of the user each time, at first the same
        assert (await asked(ctx, *others))[0] == ["near", "close"]


@pytest.mark.parametrize("made", [langchain_tool, llama_index_tool])
def test_the_description_says_when_to_ask_again(made):
    tool = made(name="docs", description="Search Python's documentation.")
    tool = getattr(tool, "metadata", None) or tool
    assert tool.name == "docs"
    assert tool.description == (
        "Search Python's documentation. Give the user's question as it is. If the results do not "
        "answer it, call this again with the same question, which returns further, less likely "
        "results."
    )
    fields = tool.tool_call_schema if hasattr(tool, "tool_call_schema") else tool.fn_schema
    assert [*fields.model_json_schema()["properties"]] == ["question"]


@pytest.mark.parametrize("made", [langchain_tool, llama_index_tool])
@pytest.mark.parametrize("alpha", [0.2, 0.3, 0, -1])
def test_a_second_call_that_would_add_nothing_is_refused(made, alpha):
    with pytest.raises(ValueError, match=f"more_alpha is {alpha}; give a number between 0 and"):
        made(more_alpha=alpha)


def test_a_second_alpha_that_a_gate_leaves_nothing_of_is_refused_before_the_first_search():
    judged = [JudgedQuery(f"{i / 30}", ["near", "far"], [True, False]) for i in range(30)]
    gate = calibrate_gate(judged, scorer=QueryFunction(lambda q, _: float(q), "query"), alpha=0.05)
    keep = calibrate(judged, LookupScorer(SCORES), alpha=0.2, gate=gate)
    keep = ConformalPostprocessor.from_calibration(keep, scorer=[LookupScorer(SCORES), gate.scorer])
    with pytest.raises(ValueError, match="alpha is 0.05 behind a gate"):
        llama_index_conformal.search_tool(OF_TEXTS, keep)


def test_anything_but_a_filter_is_refused():
    keep = postprocessor()
    with pytest.raises(TypeError, match="filtered is a RunnableLambda; give a ConformalRetriever"):
        langchain_conformal.search_tool(RunnableLambda(str))
    with pytest.raises(TypeError, match="retriever is a ConformalPostprocessor; give a retriever"):
        llama_index_conformal.search_tool(keep, keep)
    with pytest.raises(TypeError, match="postprocessor is .*; give a ConformalPostproc"):
        llama_index_conformal.search_tool(OF_TEXTS, OF_TEXTS)


async def test_the_event_of_a_search_is_that_of_the_filter(llms):
    seen = ConformalCallbackHandler()
    agent_of(llms).invoke(said(["Who?", "Who?"]), {"callbacks": [seen]})
    [counts] = seen.observer.counts.values()
    assert counts.queries == 1


async def test_a_middleware_filters_what_one_tool_returns_as_its_artifact_and_nothing_else(llms):
    compressor = ConformalCompressor.from_calibration(calibration(), scorer=LookupScorer(SCORES))
    retriever, kind = RunnableLambda(documents_of), "content_and_artifact"
    docs = create_retriever_tool(retriever, "search", "Search.", response_format=kind)

    @wrap_tool_call
    def keep(request, handler):
        message = handler(request)
        if request.tool_call["name"] != docs.name or message.status == "error":
            return message
        kept = compressor.compress_documents(message.artifact, request.tool_call["args"]["query"])
        text = "\n\n".join(texts_of(kept)) or NOTHING
        return message.model_copy(update={"content": text, "artifact": kept})

    agent = create_agent(llms[0], [docs], middleware=[keep])
    found = agent.invoke(said(["Who?", 5, "none"]))["messages"]
    texts = [message.text for message in found if message.type == "tool"]
    assert texts[::2] == ["near\n\nclose", NOTHING]
    assert "Input should be a valid string" in texts[1]

    clock = StructuredTool.from_function(lambda: "noon", name="clock", description="Tell the time.")
    app = tool_node([docs, clock], wrap_tool_call=keep.wrap_tool_call)
    calls = [{"name": name, "args": {"wrong": "none"}, "id": name} for name in ("search", "clock")]
    found = app.invoke({"messages": [AIMessage("", tool_calls=calls)]})["messages"]
    assert "Please fix the error" in found[1].text
    assert found[2].text == "noon"
