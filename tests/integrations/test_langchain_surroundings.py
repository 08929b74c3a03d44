"""The filter inside what LangChain users put around it: the real chains, agents and tracers."""

import asyncio

import pytest
from frameworks import Reversed, compressing, filter_at, ids_of
from langchain.agents import create_agent
from langchain_classic.retrievers import EnsembleRetriever
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import create_retriever_tool
from lookup import LookupScorer
from monitoring.test_events import Raising

from langchain_conformal import ConformalCompressor, ConformalRetriever

pytestmark = pytest.mark.slow

SCORES = {"near": 0.1, "far": 0.9, "middle": 0.4}
KEPT = ["near", "middle"]


class Fixed(BaseRetriever):
    found: list[Document] = [Document(text, id=text) for text in SCORES]  # noqa: RUF012

    def _get_relevant_documents(self, query, *, run_manager):
        return self.found


class Seen(BaseCallbackHandler):
    """Keeps the custom events, and of each run its name, by id, and its parent's id."""

    def __init__(self):
        self.events, self.runs, self.parents = [], {}, {}

    def on_custom_event(self, name, data, *, run_id, **kwargs):
        self.events.append((name, data["kept"], self.runs[run_id]))

    def _start(self, serialized, given, *, run_id, parent_run_id=None, **kwargs):
        self.runs[run_id] = kwargs.get("name") or serialized["name"]  # a tool's is in there
        self.parents[run_id] = parent_run_id

    on_chain_start = on_retriever_start = on_tool_start = _start

    def parents_of(self, name):
        """Return the names of the runs above each run of a name, the nearest first."""
        found = []
        for run in [run for run, its in self.runs.items() if its == name]:
            above, run = [], self.parents[run]
            while run is not None:
                above.append(self.runs[run])
                run = self.parents[run]
            found.append(above)
        return found


CONFORMAL_FILTER = filter_at(LookupScorer({**SCORES, "other": 0.2}))


COMPRESSOR = ConformalCompressor(filter=CONFORMAL_FILTER)
RETRIEVER = ConformalRetriever(retriever=Fixed(), filter=CONFORMAL_FILTER)
COMPRESSION = compressing(Fixed(), COMPRESSOR)
PIPELINE = compressing(Fixed(), COMPRESSOR, Reversed(), Reversed())  # which have no query


CALLS = ["invoke", "ainvoke", "batch", "abatch"]


def called(runnable, call, given, config):
    """Call a runnable in one of four ways, and return what it returns for the one input."""
    result = getattr(runnable, call)([given] if "batch" in call else given, config)
    if call.startswith("a"):
        result = asyncio.run(result)
    return result[0] if "batch" in call else result


# --- chains ---------------------------------------------------------------------------------------


OTHER = Fixed(found=[Document("other", id="other")])
ENSEMBLE = EnsembleRetriever(retrievers=[RETRIEVER, OTHER])


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("chain", "kept", "above"),
    [
        (COMPRESSION, KEPT, ["ContextualCompressionRetriever"]),
        (PIPELINE, KEPT, ["ContextualCompressionRetriever"]),
        (ENSEMBLE, [*KEPT, "other"], ["ConformalRetriever", "EnsembleRetriever"]),
    ],
    ids=["compression", "pipeline", "ensemble"],
)
def test_a_chain_gets_what_is_kept_and_its_handlers_the_decision(chain, kept, above, call):
    seen = Seen()
    for config in ({"callbacks": [seen]}, None):
        assert sorted(ids_of(called(chain, call, "q", config))) == sorted(kept)
    assert seen.events == [("conformal_filter", [0, 2], "conformal_filter")]
    assert seen.parents_of("conformal_filter") == [above]


# --- agents ---------------------------------------------------------------------------------------


class Scripted(FakeMessagesListChatModel):
    def bind_tools(self, tools, **kwargs):
        return self.bind(tools=tools)


@pytest.fixture
def agent():
    both = {"response_format": "content_and_artifact"}
    tool = create_retriever_tool(RETRIEVER, "lookup", "Looks up.", **both)
    asks = AIMessage("", tool_calls=[{"name": "lookup", "args": {"query": "q"}, "id": "1"}])
    return create_agent(Scripted(responses=[asks, AIMessage("done")]), [tool])


@pytest.mark.parametrize("call", CALLS)
def test_as_a_tool_of_an_agent(agent, call):
    asked, seen = {"messages": [("user", "What is near?")]}, Seen()
    result = called(agent, call, asked, {"callbacks": [seen]})
    (answered,) = [m for m in result["messages"] if isinstance(m, ToolMessage)]
    assert answered.content == "near\n\nmiddle"
    assert [d.metadata["conformal_score"] for d in answered.artifact] == [0.1, 0.4]
    assert seen.events == [("conformal_filter", [0, 2], "conformal_filter")]
    (above,) = seen.parents_of("conformal_filter")
    assert above[:2] == ["ConformalRetriever", "lookup"]


@pytest.mark.parametrize("call", CALLS)
def test_a_handler_that_raises_breaks_none_of_them(agent, call):
    config = {"callbacks": [Raising()]}
    for chain in (COMPRESSION, RETRIEVER):
        assert ids_of(called(chain, call, "q", config)) == KEPT
    result = called(agent, call, {"messages": [("user", "What is near?")]}, config)
    assert result["messages"][-1].content == "done"


# --- tracers --------------------------------------------------------------------------------------


async def test_openinference_sees_the_filter_as_a_child_of_its_retriever(langchain_spans):
    RETRIEVER.invoke("q")
    await RETRIEVER.ainvoke("q")
    spans = {span.context.span_id: span for span in langchain_spans()}
    filters = [span for span in spans.values() if span.name == "conformal_filter"]
    assert len(filters) == 2
    for span in filters:
        assert spans[span.parent.span_id].name == "ConformalRetriever"
        output = span.attributes["output.value"]
        assert all(f'"{key}": ' in output for key in ("k", "kept", "threshold", "m1", "m2"))
    COMPRESSOR.compress_documents(Fixed().found, "q")  # no callbacks are passed at all
    assert [span.name for span in langchain_spans()[len(spans) :]] == ["conformal_filter"]
