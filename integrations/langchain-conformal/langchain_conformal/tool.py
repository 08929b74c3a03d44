"""A search tool for agents: asked again for a question, it returns what a smaller alpha adds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeAlias

from langchain_core.callbacks import Callbacks
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool

from conformal_retrievers.data.copies import folded
from conformal_retrievers.extras import absent
from conformal_retrievers.results import Filtered, check_more, tool_description, tool_text
from langchain_conformal.events import FilterRun
from langchain_conformal.retriever import ConformalRetriever

Answer: TypeAlias = tuple[str, dict[str, Any]]  # content and artifact


class _Kept(list[Document]):
    more: Sequence[Document] = ()


class _WithMore(ConformalRetriever):
    """Returns what is kept, with what `more_alpha` adds as its attribute `more`."""

    more_alpha: float

    def _run(self, query: str, found: list[Document], callbacks: Callbacks) -> FilterRun[Any]:
        run = super()._run(query, found, callbacks)

        def then(filtered: Filtered) -> _Kept:
            kept = _Kept(run.then(filtered))
            kept.more = run.then(filtered.beyond(self.more_alpha))
            return kept

        return replace(run, then=then)


def search_tool(
    filtered: ConformalRetriever,
    *,
    more_alpha: float = 0.05,
    name: str = "search",
    description: str = "Search the documents.",
) -> BaseTool:
    """Return a tool with which an agent searches, and asks for more where that is not enough.

    The first call for a question returns what the filter keeps. The next one returns the documents
    that the filter would keep at `more_alpha` besides: nothing is retrieved or scored again. A call
    that has nothing to return says so. The guarantee of the filter is about the first call, and
    that of `more_alpha` about both calls together, whether the agent makes the second or not.
    About the questions for which it does, nothing is guaranteed: it has chosen them by results.

    The tool has no state: LangGraph gives it the `messages` of the run, and its results are in
    their artifacts, as "question", "documents" and, for the next call, "more". Those before the
    last `HumanMessage` do not count. Tools of two filters need two names. Calls that one message
    makes for one question return the same. It needs langgraph, which `create_agent` of langchain
    (1.0.3 or newer) brings, and a state with `messages`.

    >>> agent = create_agent(model, [search_tool(filtered)])  # doctest: +SKIP

    Parameters
    ----------
    filtered
        The retriever with its filter, calibrated on questions as the agent asks them; for a tenant,
        one whose retriever has the tenant's filter.
    more_alpha
        The risk of both calls together, smaller than that of the filter.
    name, description
        The tool's name, and the first sentence of its description for the model.

    Raises
    ------
    TypeError
        For anything but a `ConformalRetriever`.
    ValueError
        For a `more_alpha` that is not smaller than the filter's alpha, or not greater than that of
        a gate in the calibration.
    """
    if absent("langgraph"):  # an agent needs it, and a filter does not
        raise ModuleNotFoundError("langgraph is not installed. Type: pip install langgraph")
    from langgraph.prebuilt import InjectedState

    if not isinstance(filtered, ConformalRetriever):
        raise TypeError(f"filtered is a {type(filtered).__name__}; give a ConformalRetriever")
    check_more(filtered._filter().calibration, more_alpha)
    fields = {field: getattr(filtered, field) for field in ConformalRetriever.model_fields}
    both = _WithMore(**fields, more_alpha=more_alpha)
    # A state may have None, but for a default of None Python 3.10 hides the annotation.
    of_run = Annotated[Any, InjectedState("messages")]

    def earlier(question: str, messages: Sequence[BaseMessage] | None) -> list[Document] | None:
        """Return what the last result for the question has left, None before the first."""
        asked = folded(question)
        for message in reversed(messages or ()):
            if isinstance(message, HumanMessage):  # the model may not see what came before it
                break
            if isinstance(message, ToolMessage) and message.name == name:
                match message.artifact:  # of another tool, it may be anything
                    case {"question": str(known), "more": [*more]} if folded(known) == asked:
                        return [*map(Document.model_validate, more)]  # in a checkpoint, dicts
        return None

    def answer(question: str, kept: list[Document]) -> Answer:
        more = [*kept.more] if isinstance(kept, _Kept) else []
        again = not isinstance(kept, _Kept)
        text = tool_text([document.page_content for document in kept], bool(more), again)
        return text, {"question": question, "documents": [*kept], "more": more}

    def search(question: str, config: RunnableConfig, messages: of_run = ()) -> Answer:
        more = earlier(question, messages)
        return answer(question, both.invoke(question, config) if more is None else more)

    async def asearch(question: str, config: RunnableConfig, messages: of_run = ()) -> Answer:
        more = earlier(question, messages)
        return answer(question, await both.ainvoke(question, config) if more is None else more)

    return StructuredTool.from_function(
        search, asearch, name, tool_description(description), response_format="content_and_artifact"
    )
