"""A search tool for agents: asked again for a question, it returns what a smaller alpha adds."""

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import MetadataMode, NodeWithScore
from llama_index.core.tools import FunctionTool, ToolOutput
from llama_index.core.workflow import Context

from conformal_retrievers.data.copies import folded
from conformal_retrievers.results import Filtered, check_more, tool_description, tool_text
from llama_index.postprocessor.conformal.base import ConformalPostprocessor


class _Kept(list[NodeWithScore]):
    more: Sequence[NodeWithScore] = ()


class _WithMore(ConformalPostprocessor):
    """Returns what is kept, with what `more_alpha` adds as its attribute `more`."""

    more_alpha: float

    def _kept(self, nodes: list[NodeWithScore], filtered: Filtered) -> list[NodeWithScore]:
        kept = _Kept(super()._kept(nodes, filtered))
        kept.more = super()._kept(nodes, filtered.beyond(self.more_alpha))
        return kept


def search_tool(
    retriever: BaseRetriever,
    postprocessor: ConformalPostprocessor,
    *,
    more_alpha: float = 0.05,
    name: str = "search",
    description: str = "Search the documents.",
) -> FunctionTool:
    """Return a tool with which an agent searches, and asks for more where that is not enough.

    The first call for a question returns what the filter keeps. The next one returns the nodes that
    the filter would keep at `more_alpha` besides: nothing is retrieved or scored again. A call that
    has nothing to return says so. The guarantee of the filter is about the first call, and that of
    `more_alpha` about both calls together, whether the agent makes the second or not. About the
    questions for which it does, nothing is guaranteed: it has chosen them by results.

    The tool has no state. What a second call returns is in the store of the run's `Context`, under
    "conformal_<name>": agents and workflows that share a context share it, and tools of two filters
    need two names. With each message of an agent's user, each question begins anew (with the same
    one again, unless the agent asks other questions before it than the last time). Calls at
    once for one question return the same. The output's `raw_output` has the nodes.

    >>> agent = FunctionAgent(tools=[search_tool(retriever, conformal)], llm=llm)  # doctest: +SKIP

    Parameters
    ----------
    retriever, postprocessor
        The retriever and its filter, calibrated on questions as the agent asks them.
    more_alpha
        The risk of both calls together, smaller than that of the filter.
    name, description
        The tool's name, and the first sentence of its description for the model.

    Raises
    ------
    TypeError
        For anything but a retriever and a `ConformalPostprocessor`.
    ValueError
        For a `more_alpha` that is not smaller than the filter's alpha, or not greater than that of
        a gate in the calibration.
    """
    if not isinstance(retriever, BaseRetriever):
        raise TypeError(f"retriever is a {type(retriever).__name__}; give a retriever")
    if not isinstance(postprocessor, ConformalPostprocessor):
        raise TypeError(f"postprocessor is {postprocessor!r:.40}; give a ConformalPostprocessor")
    check_more(postprocessor.filter.calibration, more_alpha)
    both = _WithMore(filter=postprocessor.filter, gate=postprocessor.gate, more_alpha=more_alpha)
    both.callback_manager = postprocessor.callback_manager
    place = f"conformal_{name}"

    async def search(ctx: Context, question: str) -> ToolOutput:
        asked, turn = folded(question), str(await ctx.store.get("user_msg_str", default=""))
        step = await ctx.store.get("num_iterations", default=0)  # of the agent, from 1 in each run
        earlier = (await ctx.store.get(place, default={})).get(turn, {})
        at, known = earlier.get(asked, (step + 1, ()))
        if not (again := at < max(step, 1)):
            nodes = await retriever.aretrieve(question)
            kept: Any = await both.apostprocess_nodes(nodes, query_str=question)
            more = [[node.node, node.score] for node in kept.more]  # what a context can store
        else:
            kept, more = [NodeWithScore(node=node, score=score) for node, score in known], []
        async with ctx.store.edit_state() as state:
            # Only of this turn: an agent's memory may have lost what it saw in another.
            of_turn = state.get(place, {}).get(turn, {}).items()
            of_run = {other: kept for other, kept in of_turn if kept[0] <= step}
            state[place] = {turn: {**of_run, asked: [step, more]}}
        texts = [node.node.get_content(MetadataMode.LLM) for node in kept]
        text = tool_text(texts, bool(more), again)
        return ToolOutput(name, text, raw_input={"question": question}, raw_output=[*kept])

    return FunctionTool.from_defaults(
        async_fn=search,
        name=name,
        description=tool_description(description),
        callback=lambda output: output,
    )
