"""LangChain's decision models as scorers: 1 − the probability that a snippet answers the query.

A decision model (`langchain_core.decisions`, from langchain-core 1.8 on) answers typed questions
about a state. Here the question is a prompt's system part and the state its user's part, and the
answer, a `Noul`, the probability of yes, is the rating. Each snippet is a request of its own:
questions about a state that holds several would let a score depend on the snippets beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeGuard

from langchain_core import __version__
from pydantic import ValidationError

from conformal_retrievers import Cache, LLMScorer, llm
from conformal_retrievers.llm import wire as servers
from langchain_conformal.naming import told_name

if TYPE_CHECKING:
    from langchain_core.decisions import BaseDecisionModel, ClassifierRequest, ClassifierResponse


def is_decision_model(model: object) -> TypeGuard[BaseDecisionModel]:
    """Return whether it is LangChain's BaseDecisionModel."""
    decisions = sys.modules.get("langchain_core.decisions")  # whose module has made one, if any
    return decisions is not None and isinstance(model, decisions.BaseDecisionModel)


def decision_scorer(
    model: BaseDecisionModel,
    *,
    prompt: llm.Prompt | None = None,
    name: str | None = None,
    concurrency: int = 8,
    cache: Cache | None = None,
) -> LLMScorer:
    """Return the scorer 1 − noul of a LangChain decision model, see `LLMScorer`.

    The noul, LangChain's word, is the probability that the answer to `prompt` is yes: its system
    part is the question, by default whether the snippet contains or supports information that
    answers the query. Each snippet is a request, at most `concurrency` of them at a time. A
    probability that is missing, or that the model's package cannot read, leaves its snippet
    unscorable.

    The model's name is the one that it tells, with its settings as in `as_llm`, or `name`.

    Raises TypeError for anything but a decision model, such as one with fallbacks, and so for
    anything below langchain-core 1.8; ValueError where the model tells no name and none is given;
    and what `LLMScorer` raises.
    """
    if not is_decision_model(model):
        raise TypeError(
            f"model is a {type(model).__name__}; give the decision model itself: settings and "
            "retries go into it, and a fallback is another model, thus another score (decision "
            "models came with langchain-core 1.8, for Python 3.11 and newer; this is "
            f"{__version__})"
        )
    from langchain_core.decisions import Noul  # here: older releases have no such module

    def asked(request: llm.Request) -> ClassifierRequest:
        return {"state": request.user, "questions": {_ID: Noul(instructions=request.system)}}

    def complete(request: llm.Request) -> llm.Reply:
        with _unanswered_without_response():
            return _reply(model.invoke(asked(request)))

    async def acomplete(request: llm.Request) -> llm.Reply:
        with _unanswered_without_response():
            return _reply(await model.ainvoke(asked(request)))

    return LLMScorer(
        llm.LLM(complete, name or _name_of(model), acomplete),
        prompt or llm.Prompt.load("decision"),
        concurrency=concurrency,
        cache=cache,
    )


def _name_of(model: BaseDecisionModel) -> str:
    named = servers.name_of(
        told_name(model, "decision_scorer(model, name='…')"),
        temperature=getattr(model, "temperature", 0),
        settings=servers.settings_of(model),
    )
    return f"{named}, as decision"


_ID = "relevant"  # of the question, and so of its answer


@contextmanager
def _unanswered_without_response() -> Iterator[None]:
    """Turn into `Unanswered` that no response came, or one that its type refuses."""
    try:
        with servers.unanswered_without_reply():
            yield
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]  # texts are not for logs
        place = ".".join(map(str, first["loc"]))
        raise llm.Unanswered(f"{error.title}: {place}: {first['msg']}") from error


def _reply(response: ClassifierResponse) -> llm.Reply:
    answer = response.nouls.get(_ID)
    return llm.Reply(
        "" if answer is None else json.dumps({"rating": answer.noul}),
        prompt_tokens=servers.tokens_in(servers.part_of(response.usage, "input_tokens")),
        completion_tokens=servers.tokens_in(servers.part_of(response.usage, "output_tokens")),
    )
