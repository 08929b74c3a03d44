"""A framework's model as an LLM, which answers within its own timeout."""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any

from conformal_retrievers.llm.ask import LLM
from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.reply import Reply
from conformal_retrievers.llm.wire import model_name, name_of


def framework_llm(
    model: object,
    calls: tuple[Callable[..., Any], Callable[..., Awaitable[Any]]],
    messages: Callable[[Request], Any],
    reply_of: Callable[[Any], Reply],
    options: Callable[[Request], Mapping[str, Any]] | None,
    name: str | None,
    settings: Mapping[str, Any],
    named: object = None,
) -> LLM:
    """Return a framework's model as an `LLM`, with its own retries and timeout, sync and async.

    `calls` ask it with messages and the `options` of a request, and `reply_of` reads its answer.
    The default name is that of the model, or of what is `named` as it is, with its settings.
    """
    name = name or name_of(
        model_name(named or model),
        temperature=getattr(model, "temperature", 0),
        settings=settings,
        options=options,
    )

    def arguments(request: Request) -> Mapping[str, Any]:
        return options(request) if options else {}

    def complete(request: Request) -> Reply:
        return reply_of(calls[0](messages(request), **arguments(request)))

    async def acomplete(request: Request) -> Reply:
        return reply_of(await calls[1](messages(request), **arguments(request)))

    return in_time(LLM(complete, name, acomplete), model)


def in_time(llm: LLM, model: object) -> LLM:
    """Return the same model, which answers within its `timeout` for each of its own tries.

    The framework's own timeout may begin anew with each byte. One that is no number is no bound.
    What is late raises TimeoutError; a blocking call goes on in a thread of its own.
    """
    names = ("request_timeout", "timeout", "default_request_timeout")
    timeout = next((t for name in names if (t := getattr(model, name, None)) is not None), None)
    if not isinstance(timeout, int | float) or llm.acomplete is None:
        return llm
    retries = getattr(model, "max_retries", None)
    tries = 3 if retries is None else 1 + retries  # as OpenAI's client
    bound = timeout * tries  # of all together: asking again here would multiply the tries
    late = f"no reply was whole after {bound:g} s (timeout {timeout:g} s, tries {tries})"
    answer = llm.acomplete

    def complete(request: Request) -> Reply:
        reply, context = Future[Reply](), contextvars.copy_context()
        threading.Thread(target=work, args=(reply, context, request), daemon=True).start()
        if wait([reply], bound).done:
            return reply.result()
        raise TimeoutError(late)

    def work(reply: Future[Reply], context: contextvars.Context, request: Request) -> None:
        try:
            reply.set_result(context.run(llm.complete, request))
        except BaseException as error:
            reply.set_exception(error)

    async def acomplete(request: Request) -> Reply:
        try:
            return await asyncio.wait_for(answer(request), bound)
        except asyncio.TimeoutError:
            raise TimeoutError(late) from None

    return LLM(complete, llm.name, acomplete)
