"""The filter of an answer's claims as a LangChain Runnable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from typing_extensions import NotRequired, TypedDict  # pydantic wants this one below Python 3.12

from conformal_retrievers import AnswerFilter, FilteredAnswer, Snippet, claims
from langchain_conformal.documents import to_snippets
from langchain_conformal.events import ain_run, in_run


class AnswerInput(TypedDict):
    """What `answer_filter_runnable` takes: `context` is what the answer was written from."""

    question: str
    context: list[Document] | list[str] | Document | str
    answer: str | BaseMessage
    group: NotRequired[str]


def answer_filter_runnable(answer_filter: AnswerFilter) -> Runnable[AnswerInput, AIMessage]:
    """Return a Runnable from {"question", "context", "answer"} to the filtered answer.

    It goes behind the model of a chain. The message's text is what is kept;
    response_metadata["conformal_claims"] holds the kept and the removed claims with their
    relevances and p-values, as plain values (`FilteredAnswer.details`). `StrOutputParser()` behind
    it leaves the text. Before it stands `RunnablePassthrough.assign(answer=prompt | chat)`, since
    `prompt | chat` alone loses question and context. Raises TypeError for a filter of another kind
    and for an input that is no mapping, and ValueError for one without one of the three. An answer
    can be filtered only once it is complete: nothing streams. Where there are handlers, filtering
    is a run of its own, "conformal_claims", with one custom event in it: that of
    `conformal_retrievers.claims.events`, which is also the run's output.
    """

    if not isinstance(answer_filter, AnswerFilter):
        raise TypeError(
            f"answer_filter is a {type(answer_filter).__name__}; give an AnswerFilter: "
            "AnswerFilter(claim_filter, as_llm(chat))"
        )

    def filter_answer(given: AnswerInput, config: RunnableConfig) -> AIMessage:
        question, text, documents, group = _read(given)
        filtered = in_run(
            claims.events.EVENT,
            lambda: answer_filter(question, text, documents, group),
            lambda filtered: claims.events.event_of(filtered, query=question),
            calibration=answer_filter.filter.calibration,
            inputs={"query": question},
            config=config,
        )
        return _message(filtered)

    async def afilter_answer(given: AnswerInput, config: RunnableConfig) -> AIMessage:
        question, text, documents, group = _read(given)
        filtered = await ain_run(
            claims.events.EVENT,
            lambda: answer_filter.acall(question, text, documents, group),
            lambda filtered: claims.events.event_of(filtered, query=question),
            calibration=answer_filter.filter.calibration,
            inputs={"query": question},
            config=config,
        )
        return _message(filtered)

    runnable = RunnableLambda(filter_answer, afunc=afilter_answer, name="conformal_answer_filter")
    return runnable.with_types(input_type=AnswerInput)


def _read(given: AnswerInput) -> tuple[str, str, list[Snippet | str], str | None]:
    if not isinstance(given, Mapping):
        raise TypeError(
            f"the input is of type {type(given).__name__}; give {{'question', 'context', 'answer'}}"
            ": to a mapping with the first two, RunnablePassthrough.assign(answer=prompt | chat) "
            "adds the third"
        )
    missing = [name for name in ("question", "context", "answer") if name not in given]
    if missing:
        raise ValueError(
            f"the input has no {missing[0]!r}, only {sorted(given)}; give 'question', 'context' "
            "(what the answer was written from) and 'answer'"
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
