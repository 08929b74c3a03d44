"""Models of LangChain and LlamaIndex as an `LLM`: what the two packages share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from conformal_retrievers.llm.ask import LLM
from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.reply import Reply
from conformal_retrievers.llm.wire import unanswered_without_reply

Answer = TypeVar("Answer")


def framework_llm(
    chat: Callable[[Request, Mapping[str, Any]], Answer],
    achat: Callable[[Request, Mapping[str, Any]], Awaitable[Answer]],
    read: Callable[[Answer], Reply],
    *,
    name: str,
    options: Callable[[Request], Mapping[str, Any]] | None = None,
) -> LLM:
    """Return an `LLM` that asks a framework's model, and is unanswered if no reply comes.

    Parameters
    ----------
    chat, achat
        Ask the model for a request with further arguments, synchronously and asynchronously.
    read
        The reply in what they return.
    name
        The name of the model with everything that changes its answers.
    options
        The further arguments for a request, such as `openai_options`; by default none.
    """

    def arguments(request: Request) -> Mapping[str, Any]:
        return {} if options is None else options(request)

    def complete(request: Request) -> Reply:
        with unanswered_without_reply():
            return read(chat(request, arguments(request)))

    async def acomplete(request: Request) -> Reply:
        with unanswered_without_reply():
            return read(await achat(request, arguments(request)))

    return LLM(complete, name, acomplete)


def model_name(model: object) -> str | None:
    """Return the `model_name` or `model` of a framework's model, None if it is unknown."""
    names = (getattr(model, attribute, None) for attribute in ("model_name", "model"))
    return next((n for n in names if isinstance(n, str) and n not in ("", "unknown")), None)


def required_name(name: str | None, model: object, remedy: str) -> str:
    """Return the name of a model; raise ValueError, naming the scorer to give instead, for None."""
    if name is None:
        raise ValueError(
            f"{type(model).__name__} has no model name, which identifies the scorer; give "
            f"scorer={remedy} instead of the model"
        )
    return name


def scorer_name(kind: str, model: object, function: str) -> str:
    """Return "<kind>(<model name>)", the name of the scorer that `function` makes of a model."""
    remedy = f"{function}(model, name='{kind}(<model name>)')"
    return f"{kind}({required_name(model_name(model), model, remedy)})"
