"""The filter of an answer's claims as a LangChain Runnable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from typing_extensions import NotRequired, TypedDict  # pydantic requires these below Python 3.12

from conformal_retrievers import Snippet
from conformal_retrievers.claims import AnswerFilter, FilteredAnswer, events
from langchain_conformal.documents import to_snippets
from langchain_conformal.events import ain_run, in_run


class AnswerInput(TypedDict):
    """The input of `answer_filter_runnable`: `context` is what the answer was written from."""

    question: str
    context: list[Document] | list[str] | Document | str
    answer: str | BaseMessage
    group: NotRequired[str]


def answer_filter_runnable(answer_filter: AnswerFilter) -> Runnable[AnswerInput, AIMessage]:
    """Return a Runnable from {"question", "context", "answer"} to the filtered answer.

    Put it after the model of a chain, and `RunnablePassthrough.assign(answer=prompt | chat)` before
    it, since `prompt | chat` alone loses question and context. The message's text is what is kept;
    response_metadata["conformal_claims"] has the kept and the removed claims with their relevances
    and p-values as plain values (`FilteredAnswer.details`). Nothing streams, because only a
    complete answer can be filtered. With handlers, filtering is a run of its own,
    "conformal_claims", with one custom event, which is also its output.

    Raises TypeError for another kind of filter or an input that is not a mapping, and ValueError
    for an input without one of the three keys.
    """
    if not isinstance(answer_filter, AnswerFilter):
        raise TypeError(
            f"answer_filter is a {type(answer_filter).__name__}; give an AnswerFilter: "
            "AnswerFilter(claim_filter, as_llm(chat))"
        )

    def run_of(question: str, config: RunnableConfig) -> dict[str, Any]:
        return {
            "name": events.EVENT,
            "calibration": answer_filter.filter.calibration,
            "to_event": lambda filtered: events.event_of(filtered, query=question),
            "inputs": {"query": question},
            "config": config,
        }

    def filter_answer(given: AnswerInput, config: RunnableConfig) -> AIMessage:
        arguments = _arguments(given)
        run = run_of(given["question"], config)
        return _message(in_run(lambda: answer_filter(*arguments), **run))

    async def afilter_answer(given: AnswerInput, config: RunnableConfig) -> AIMessage:
        arguments = _arguments(given)
        run = run_of(given["question"], config)
        return _message(await ain_run(lambda: answer_filter.acall(*arguments), **run))

    runnable = RunnableLambda(filter_answer, afunc=afilter_answer, name="conformal_answer_filter")
    return runnable.with_types(input_type=AnswerInput)


def _arguments(given: AnswerInput) -> tuple[str, str, list[Snippet | str], str | None]:
    if not isinstance(given, Mapping):
        raise TypeError(
            f"the input is a {type(given).__name__}; give {{'question', 'context', 'answer'}}, as "
            "RunnablePassthrough.assign(answer=prompt | chat) makes of the first two"
        )
    missing = [name for name in ("question", "context", "answer") if name not in given]
    if missing:
        raise ValueError(
            f"{missing[0]!r} is missing from the input, which has {sorted(given)}; give "
            "'question', 'context' (what the answer was written from) and 'answer'"
        )
    answer = given["answer"]
    text = str(answer.text) if isinstance(answer, BaseMessage) else answer
    return given["question"], text, _snippets(given["context"]), given.get("group")


def _snippets(context: object) -> list[Snippet | str]:
    if isinstance(context, (str, Document)):
        context = [context]
    if isinstance(context, Mapping) or not isinstance(context, Iterable):
        raise TypeError(
            f"context is a {type(context).__name__}, {context!r:.60}; give a list of Documents or "
            "texts, or one"
        )
    snippets: list[Snippet | str] = []
    for i, one in enumerate(context):
        if not isinstance(one, (str, Document)):
            raise TypeError(
                f"context[{i}] is a {type(one).__name__}, {one!r:.60}; give a Document or a text"
            )
        snippets += [one] if isinstance(one, str) else to_snippets([one])
    return snippets


def _message(filtered: FilteredAnswer) -> AIMessage:
    return AIMessage(filtered.text, response_metadata={"conformal_claims": filtered.details})
