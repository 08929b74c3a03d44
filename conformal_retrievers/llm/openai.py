"""A model behind an OpenAI-compatible server (OpenAI, vLLM, Ollama, llama.cpp, …) as an `LLM`."""

import asyncio
import json
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any

from conformal_retrievers.extras import require
from conformal_retrievers.llm import wire
from conformal_retrievers.llm.ask import LLM
from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.reply import Reply, Unanswered
from conformal_retrievers.llm.wire import part_of

# Not `client.chat.completions.create`, which knows OpenAI's fields only and checks them slowly.
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
        Seconds for each try until its whole reply is there, and how often a failed try is repeated.
    name
        The identity of the model; by default `model` with its `fields`. The server is not in it, so
        a calibration holds on another machine. Give a name if two servers give other weights
        (quantised ones, for example) the same model name.

    Raises
    ------
    ValueError
        Without a key for OpenAI.
    openai.OpenAIError
        When the model is asked, for a wrong key or an unknown model.
    """
    require("llm", "httpx", "openai")
    from httpx import Response
    from openai import APIConnectionError, OpenAI, OpenAIError

    key = "none" if base_url is not None and api_key is None else api_key
    fields = dict(fields or {})
    try:
        client = OpenAI(base_url=base_url, api_key=key)
    except OpenAIError as error:
        text = "api_key is missing; give it, OPENAI_API_KEY, or the base_url of another server"
        raise ValueError(text) from error
    with client:
        settings = str(client.base_url), client.api_key, timeout, max_retries
        address = client.base_url.copy_with(userinfo=b"", query=None)
    background_loop()  # now, before several threads ask

    def body(request: Request) -> dict[str, Any]:
        system, user = request.system, request.user
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        options = {"temperature": 0, **wire.openai_options(request), **fields}
        given = {name: value for name, value in options.items() if value is not None}
        return {"model": model, "messages": messages, **given}

    async def post(request: Request) -> Reply:
        client = _client(asyncio.get_running_loop(), *settings)
        try:
            response = await client.post(PATH, cast_to=Response, body=body(request))
        except APIConnectionError as error:  # which names no address
            error.args = (f"{error} The server's address is {address}",)
            raise
        return _reply(response.content)

    def submit(request: Request) -> Future[Reply]:
        return asyncio.run_coroutine_threadsafe(post(request), background_loop())

    async def acomplete(request: Request) -> Reply:
        return await asyncio.wrap_future(submit(request))

    name = name or wire.name_of(model, temperature=0, settings=fields)
    return LLM(lambda request: submit(request).result(), name, acomplete)


@cache
def background_loop() -> asyncio.AbstractEventLoop:
    """Return the loop, in a thread of its own, of all that is asked; blocking calls wait for it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="openai_llm", daemon=True).start()
    return loop


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=background_loop.cache_clear)  # a fork lacks it


@lru_cache(64)  # keys may change hourly
def _client(loop: object, base_url: str, key: str, timeout: float, max_retries: int) -> Any:
    """Return the client, with connections of this loop, of all models with these settings."""
    import anyio
    import httpx
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    class Client(DefaultAsyncHttpxClient):
        async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
            try:
                with anyio.fail_after(timeout):  # httpx's own timeouts are for each read
                    return await super().send(request, **options)
            except TimeoutError:
                raise httpx.TimeoutException(f"{timeout} s have passed", request=request) from None

    own = Client(timeout=timeout)
    return AsyncOpenAI(base_url=base_url, api_key=key, max_retries=max_retries, http_client=own)


def _reply(content: bytes) -> Reply:
    """Return the reply in a Chat Completion; raise `Unanswered` if it has no text."""
    completion = None
    with suppress(ValueError, RecursionError):
        completion = json.loads(content)
    choice = wire.first_of(completion, "choices")
    message, usage = part_of(choice, "message"), part_of(completion, "usage")
    text, refusal = part_of(message, "content"), part_of(message, "refusal")
    if not isinstance(message, dict) or not isinstance(text, str | None):
        start = content.decode(errors="replace")
        raise Unanswered(f"the server's answer is not a Chat Completion: {start!r:.200}")
    return Reply(
        text or str(refusal or ""),
        "refusal" if refusal else wire.finish_of(part_of(choice, "finish_reason")),
        wire.first_token_in(part_of(choice, "logprobs")),
        wire.tokens_in(part_of(usage, "prompt_tokens")),
        wire.tokens_in(part_of(usage, "completion_tokens")),
    )
