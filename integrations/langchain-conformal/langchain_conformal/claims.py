"""The filter of an answer's claims as a LangChain Runnable."""

from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from typing_extensions import NotRequired, TypedDict  # pydantic requires these below Python 3.12

from conformal_retrievers.calibration.checks import check_type
from conformal_retrievers.claims import AnswerFilter, FilteredAnswer, claims_event_of
from conformal_retrievers.monitoring import CLAIMS_EVENT
from langchain_conformal.documents import check_input
from langchain_conformal.events import FilterRun


class AnswerInput(TypedDict):
    """The input of `answer_filter_runnable`: `context` is what the answer was written from."""

    question: str
    context: list[Document] | list[str]
    answer: str | BaseMessage
    group: NotRequired[str]


def answer_filter_runnable(answer_filter: AnswerFilter) -> Runnable[Any, AIMessage]:
    """Return a Runnable from {"question", "context", "answer"} to the filtered answer.

    Put it after the model of a chain, and `RunnablePassthrough.assign(answer=prompt | chat)` before
    it, since `prompt | chat` alone loses question and context. The message's text is what is kept;
    response_metadata["conformal_claims"] has the kept and the removed claims with their relevances
    and p-values as plain values (`FilteredAnswer.details`). Nothing streams, because only a
    complete answer can be filtered. With handlers, filtering is a run of its own,
    "conformal_claims", with one custom event, which is also its output.

    Raises TypeError for another kind of filter. The Runnable raises ValueError for an input without
    a key, and TypeError for a context that is no list, such as one joined text, by which claims
    have other relevances than by the documents that were calibrated with.
    """
    needed = "an AnswerFilter: AnswerFilter(claim_filter, as_llm(chat))"
    check_type(AnswerFilter, needed, answer_filter=answer_filter)

    def run_of(given: AnswerInput, config: RunnableConfig) -> FilterRun[AIMessage]:
        arguments = _arguments(given)
        return FilterRun(
            CLAIMS_EVENT,
            answer_filter.filter.calibration,
            lambda: answer_filter(*arguments),
            lambda: answer_filter.acall(*arguments),
            lambda filtered: claims_event_of(filtered, query=given["question"]),
            _message,
            {"query": given["question"]},
            config,
        )

    def filter_answer(given: AnswerInput, config: RunnableConfig) -> AIMessage:
        return run_of(given, config).decide()

    async def afilter_answer(given: AnswerInput, config: RunnableConfig) -> AIMessage:
        return await run_of(given, config).adecide()

    runnable = RunnableLambda(filter_answer, afunc=afilter_answer, name="conformal_answer_filter")
    return runnable.with_types(input_type=AnswerInput)


def _arguments(given: AnswerInput) -> tuple[str, str, Any, str | None]:
    check_input(given, "question", "context", "answer")
    answer, context = given["answer"], given["context"]
    text = str(answer.text) if isinstance(answer, BaseMessage) else answer
    return given["question"], text, context, given.get("group")


def _message(filtered: FilteredAnswer) -> AIMessage:
    return AIMessage(filtered.text, response_metadata={"conformal_claims": filtered.details})
