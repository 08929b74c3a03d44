"""A LangChain chain and retriever, for calibration on the chain's answers."""

import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.globals import get_llm_cache
from langchain_core.messages import BaseMessage
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import Runnable

from conformal_retrievers import JudgedQuery
from conformal_retrievers.answers.chain import Chain
from conformal_retrievers.data.models import with_fields
from langchain_conformal.documents import HITS, to_snippets
from langchain_conformal.judge import documents_for


def answer_queries(
    retriever: RetrieverLike,
    questions: Iterable[str] | Iterable[JudgedQuery],
    chain: Runnable[dict[str, Any], Any],
    *,
    name: str,
) -> tuple[list[JudgedQuery], Chain[Document]]:
    """Retrieve for each question, and return the queries with the chain that answers them.

    `calibrate_answers(*answer_queries(retriever, questions, chain, name="…"), alpha=0.1)`
    calibrates on its answers, without judged snippets, and `evaluate_answers(filters,
    *answer_queries(…))` compares filters by them.

    Parameters
    ----------
    retriever
        The unfiltered retriever.
    questions
        Different questions; queries that are judged keep their ids and groups alone.
    chain
        The part after the retriever. It takes {"question": the text, "context": the Documents that
        are kept}, also none, and returns a text, a message, or a dict with the key "answer". A
        prompt should have their texts alone: printed whole, Documents show their metadata, to which
        a filter adds scores (not with `metadata_prefix=None`, as they are here).
    name
        What the chain is called in the file, such as its model and the version of its prompt. A
        cache finds its answers by this name.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `judge_retriever`; TypeError for a chain that is no Runnable.

    Warns
    -----
    UserWarning
        If LangChain's cache of replies is set, which hides that a chain contradicts itself.
    """
    if not isinstance(chain, Runnable):
        raise TypeError(f"chain is {chain!r:.60}; give a Runnable, such as prompt | chat")
    if get_llm_cache() is not None:
        text = "LangChain's cache of replies is set, which hides a chain that contradicts itself"
        warnings.warn(f"{text}; set_llm_cache(None), and give cache= instead", stacklevel=2)
    asked = Chain(name, partial(_respond, chain), _cut)
    return asked.with_queries(questions, partial(documents_for, retriever), to_snippets)


def _respond(chain: Runnable[Any, Any], question: str, documents: list[Document]) -> str:
    # As a filter returns them, whose documents have no hits.
    fields = [{k: v for k, v in (d.metadata or {}).items() if k != HITS} for d in documents]
    context = [with_fields(d, metadata=own) for d, own in zip(documents, fields, strict=True)]
    try:
        answer = chain.invoke({"question": question, "context": context})
    except (AttributeError, TypeError) as error:
        given = "the chain is given {'question': the text, 'context': documents}, by invoke"
        raise TypeError(f"{error}; {given}") from error
    if isinstance(answer, Mapping):
        if "answer" not in answer:
            raise ValueError(f"the chain returned the keys {[*answer]}, and not 'answer'")
        answer = answer["answer"]
    return str(answer.text) if isinstance(answer, BaseMessage) else answer


def _cut(document: Document, text: str) -> Document:
    return with_fields(document, page_content=text)
