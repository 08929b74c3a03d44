"""A model behind an OpenAI-compatible server (OpenAI, vLLM, Ollama, llama.cpp, …) as an `LLM`.

It speaks Chat Completions through the `openai` SDK, whose clients retry time-outs, broken
connections and the status 408, 409, 429 and 500 or more, with exponential backoff, or as long as
the server says in `retry-after`.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple

from conformal_retrievers.extras import require
from conformal_retrievers.llm.ask import LLM, Reply, Request, Unanswered
from conformal_retrievers.llm.wire import (
    finish_of,
    first_of,
    first_token_in,
    openai_options,
    part_of,
    tokens_in,
    unanswered_without_reply,
)

require("llm", "openai")
from httpx import Response
from openai import AsyncOpenAI, BadRequestError, OpenAI

# Not by `client.chat.completions.create`, which knows OpenAI's fields only, checks what is sent
# slowly, and what comes back not at all.
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
    """Return a model of the server at `base_url`, OpenAI's own by default, at temperature 0.

    `fields` are added to the body of every request, and None leaves a field out: reasoning models
    of OpenAI take {"temperature": None}. `timeout` is in seconds, for each of the 1 + `max_retries`
    tries. `api_key` is by default the one in the environment (OPENAI_API_KEY), which is sent to
    OpenAI alone: give another server its own, if it asks for one.

    The name is the model's with the fields. It does not tell the server, so that a calibration
    holds on another machine: where two servers give other weights (quantised, say) the same model
    name, give each a `name`. A request that the client gave up on, or whose answer is no Chat
    Completion with a text, is `Unanswered`; log-probabilities that are not well formed are none,
    and tokens that are not counted are 0. What asking again cannot mend (a wrong key, an unknown
    model, a request that the server does not understand) is raised as the SDK raises it. Where a
    server does not know JSON schemas, {"response_format": None} asks for plain text, which is read
    as well.
    """
    if base_url is not None and api_key is None:
        api_key = "none"
    fields = dict(fields or {})
    client = OpenAI(base_url=base_url, api_key=api_key, timeout=timeout, max_retries=max_retries)
    settings = _Settings(base_url, client.api_key, timeout, max_retries)

    def complete(request: Request) -> Reply:
        body = _body(model, fields, request)
        try:
            with unanswered_without_reply():
                return _reply(client.post(PATH, cast_to=Response, body=body))
        except BadRequestError as error:
            return _filtered(error)

    async def acomplete(request: Request) -> Reply:
        async_client = await _client_of_this_loop(settings)
        body = _body(model, fields, request)
        try:
            with unanswered_without_reply():
                return _reply(await async_client.post(PATH, cast_to=Response, body=body))
        except BadRequestError as error:
            return _filtered(error)

    told = f" {json.dumps(fields, sort_keys=True)}" if fields else ""
    # The client is in reference cycles, and collecting those may drop its sockets unclosed.
    weakref.finalize(complete, client.close)
    return LLM(complete, name or f"{model}{told}", acomplete)


class _Settings(NamedTuple):
    """What models that share their connections have in common."""

    base_url: str | None
    api_key: str
    timeout: float
    max_retries: int


# An asynchronous client's connections belong to an event loop, so each loop has its own client. It
# is held by an asynchronous generator: a loop closes those when it ends, and with it the client.
_CLIENTS: dict[
    tuple[asyncio.AbstractEventLoop, _Settings], tuple[AsyncOpenAI, AsyncGenerator[AsyncOpenAI]]
] = {}


async def _client_of_this_loop(settings: _Settings) -> AsyncOpenAI:
    key = asyncio.get_running_loop(), settings
    if key not in _CLIENTS:
        for ended in [other for other in list(_CLIENTS) if other[0].is_closed()]:
            _CLIENTS.pop(ended, None)
        generator = _open(AsyncOpenAI(**settings._asdict()))
        _CLIENTS[key] = await anext(generator), generator
    return _CLIENTS[key][0]


async def _open(client: AsyncOpenAI) -> AsyncGenerator[AsyncOpenAI]:
    async with client:
        yield client


def _body(model: str, fields: Mapping[str, Any], request: Request) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": request.system},
        {"role": "user", "content": request.user},
    ]
    wishes = {"temperature": 0, **openai_options(request), **fields}
    wishes = {name: value for name, value in wishes.items() if value is not None}
    return {"model": model, "messages": messages, **wishes}


def _reply(response: Response) -> Reply:
    """Return the reply of a Chat Completion; the servers that speak it are many, so that nothing in
    it is relied upon. Raises `Unanswered` where it holds no text."""
    try:
        completion = json.loads(response.content)
    except (ValueError, RecursionError) as error:
        raise Unanswered(f"{_no_completion(response)} ({type(error).__name__})") from error
    choice = first_of(completion, "choices")
    message, usage = part_of(choice, "message"), part_of(completion, "usage")
    content, refusal = part_of(message, "content"), part_of(message, "refusal")
    if not isinstance(message, dict) or not isinstance(content, str | None):
        raise Unanswered(_no_completion(response))
    return Reply(
        content or str(refusal or ""),
        "refusal" if refusal else finish_of(part_of(choice, "finish_reason")),
        first_token_in(part_of(choice, "logprobs")),
        tokens_in(part_of(usage, "prompt_tokens")),
        tokens_in(part_of(usage, "completion_tokens")),
    )


def _no_completion(response: Response) -> str:
    return f"the server's answer is no Chat Completion: {response.text!r:.200}"


def _filtered(error: BadRequestError) -> Reply:
    if error.code != "content_filter":  # Azure's filter, which reads the prompt
        raise error
    return Reply(error.message, "refusal")
