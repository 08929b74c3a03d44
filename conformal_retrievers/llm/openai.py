"""A model behind an OpenAI-compatible server (OpenAI, vLLM, Ollama, llama.cpp, …) as an `LLM`."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from conformal_retrievers.extras import require
from conformal_retrievers.llm.ask import LLM
from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.reply import Reply, Unanswered
from conformal_retrievers.llm.wire import (
    finish_of,
    first_of,
    first_token_in,
    openai_options,
    part_of,
    tokens_in,
)

# Not `client.chat.completions.create`: it knows OpenAI's fields only, checks requests slowly and
# replies not at all.
PATH = "/chat/completions"


def openai_llm(
    model: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    fields: Mapping[str, Any] | None = None,
    timeout: float = 60.0,
    max_retries: int = 3,
    name: str | None = None,
) -> LLM:
    """Return a model of an OpenAI-compatible server, at temperature 0.

    It needs the extra `llm`. The client retries timeouts, broken connections and the status 408,
    409, 429 and 500 and above, with exponential backoff or when `retry-after` says.

    Parameters
    ----------
    model, base_url
        The server's name for the model, and its address, OpenAI's by default.
    api_key
        The key, by default OPENAI_API_KEY of the environment, which only OpenAI receives.
    fields
        Fields added to the body of every request; None removes a field. Reasoning models of OpenAI
        take {"temperature": None}, servers without JSON schemas {"response_format": None}.
    timeout, max_retries
        Seconds for each try, and how often a failed try is repeated.
    name
        The identity of the model; by default `model` with its `fields`. The server is not in it, so
        a calibration holds on another machine. Give a name if two servers give other weights
        (quantised ones, for example) the same model name.

    Returns
    -------
    LLM
        With `complete` and its asynchronous twin `acomplete`.

    Raises
    ------
    openai.OpenAIError
        Here or when the model is asked, if a retry cannot help (a wrong key).
    """
    require("llm", "openai")
    from httpx import Response
    from openai import AsyncOpenAI, OpenAI

    key = "none" if base_url is not None and api_key is None else api_key
    fields = dict(fields or {})
    settings: dict[str, Any] = {"base_url": base_url, "timeout": timeout}
    client = OpenAI(api_key=key, max_retries=max_retries, **settings)
    settings |= {"api_key": client.api_key, "max_retries": max_retries}

    def body(request: Request) -> dict[str, Any]:
        messages = [
            {"role": "system", "content": request.system},
            {"role": "user", "content": request.user},
        ]
        options = {"temperature": 0, **openai_options(request), **fields}
        given = {name: value for name, value in options.items() if value is not None}
        return {"model": model, "messages": messages, **given}

    def complete(request: Request) -> Reply:
        return _reply(client.post(PATH, cast_to=Response, body=body(request)).content)

    async def acomplete(request: Request) -> Reply:
        async_client = await _client_of_this_loop(AsyncOpenAI, settings)
        response = await async_client.post(PATH, cast_to=Response, body=body(request))
        return _reply(response.content)

    parts = f" {json.dumps(fields, sort_keys=True)}" if fields else ""
    # The client is in reference cycles, and their collection may leave its sockets open.
    weakref.finalize(complete, client.close)
    return LLM(complete, name or f"{model}{parts}", acomplete)


# The connections of an asynchronous client belong to an event loop, so each loop has its own client
# for each server. An asynchronous generator holds it: the loop closes that when it ends.
_CLIENTS: dict[tuple[asyncio.AbstractEventLoop, object], tuple[Any, AsyncGenerator[Any]]] = {}


async def _client_of_this_loop(kind: Any, settings: dict[str, Any]) -> Any:
    key = asyncio.get_running_loop(), tuple(settings.values())
    if key not in _CLIENTS:
        for ended in [other for other in list(_CLIENTS) if other[0].is_closed()]:
            _CLIENTS.pop(ended, None)
        generator = _open(kind(**settings))
        _CLIENTS[key] = await anext(generator), generator
    return _CLIENTS[key][0]


async def _open(client: Any) -> AsyncGenerator[Any]:
    async with client:
        yield client


def _reply(content: bytes) -> Reply:
    """Return the reply in a Chat Completion; raise `Unanswered` if it has no text."""
    completion = None
    with suppress(ValueError, RecursionError):
        completion = json.loads(content)
    choice = first_of(completion, "choices")
    message, usage = part_of(choice, "message"), part_of(completion, "usage")
    text, refusal = part_of(message, "content"), part_of(message, "refusal")
    if not isinstance(message, dict) or not isinstance(text, str | None):
        start = content.decode(errors="replace")
        raise Unanswered(f"the server's answer is not a Chat Completion: {start!r:.200}")
    return Reply(
        text or str(refusal or ""),
        "refusal" if refusal else finish_of(part_of(choice, "finish_reason")),
        first_token_in(part_of(choice, "logprobs")),
        tokens_in(part_of(usage, "prompt_tokens")),
        tokens_in(part_of(usage, "completion_tokens")),
    )
