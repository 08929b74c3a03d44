"""A LangChain chain and retriever, for calibration on the chain's answers."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import Runnable

from conformal_retrievers import JudgedQuery
from conformal_retrievers.answers import Chain, Questions, questions_for
from conformal_retrievers.answers.asked import ADDRESS
from conformal_retrievers.data.models import with_fields
from conformal_retrievers.llm import wire
from conformal_retrievers.llm.prompt import short_hash
from langchain_conformal.documents import to_snippets
from langchain_conformal.judge import documents_for


def answer_queries(
    retriever: RetrieverLike,
    questions: Iterable[str] | Iterable[JudgedQuery],
    chain: Runnable[dict[str, Any], Any],
    *,
    name: str | None = None,
) -> Questions:
    """Retrieve for each question, and return the queries with the chain that answers them.

    `calibrate_answers(*answer_queries(retriever, questions, chain), alpha=0.1)` calibrates on its
    answers, without judged snippets, and `evaluate_answers(filters, *answer_queries(…))` compares
    filters by them.

    Parameters
    ----------
    retriever
        The unfiltered retriever.
    questions
        Different questions; queries that are judged keep their ids and groups alone.
    chain
        The part after the retriever. It takes {"question": the text, "context": the Documents that
        are kept}, and returns a text, a message, or a dict with the key "answer".
    name
        What the chain is called in the file, by default its models and a hash of all that its
        repr states: prompts, settings, functions by name.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `judge_retriever`; TypeError for a chain that is no Runnable, and ValueError for one that
        has no model, and so no name, without `name`.
    """
    if not isinstance(chain, Runnable):
        raise TypeError(f"chain is {chain!r:.60}; give a Runnable, such as prompt | chat")
    asked = Chain(name or _name_of(chain), partial(_respond, chain), _cut)
    return questions_for(questions, partial(documents_for, retriever), to_snippets, asked)


def _name_of(chain: Runnable[Any, Any]) -> str:
    parts = [node.data for node in chain.get_graph().nodes.values()]
    models = [part for part in parts if isinstance(part, BaseLanguageModel)]
    if not models:
        raise ValueError("chain has no model whose name is known; give name=, of model and prompt")
    named = ", ".join(wire.model_name(model) or type(model).__name__ for model in models)
    return f"{named}, chain={short_hash(ADDRESS.sub('', repr(chain)))}"


def _respond(chain: Runnable[Any, Any], question: str, documents: list[Document]) -> str:
    found = chain.invoke({"question": question, "context": documents})
    if isinstance(found, Mapping):
        if "answer" not in found:
            raise ValueError(f"the chain returned the keys {[*found]}, and not 'answer'")
        found = found["answer"]
    return str(found.text) if isinstance(found, BaseMessage) else found


def _cut(document: Document, text: str) -> Document:
    return with_fields(document, page_content=text)
