"""An LLM that is waited for: permits, deadlines, and an endpoint that is away.

pauses of ¼, ½, 1, 2, … seconds, each at most 60, until `patience` seconds have passed
"""

import asyncio
import contextvars
import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError, Future, wait
from typing import Any

from conformal_retrievers.llm.ask import LLM
from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.reply import Reply
from conformal_retrievers.llm.wire import marks_of, model_name, name_of

FIRST, LONGEST = 0.25, 60.0  # seconds between two tries

# Errors whose cause is the endpoint, not the request: any request would raise them now.
AWAY: set[object] = {429, 502, 503, 504, 529}
AWAY |= {"ConnectError", "ConnectTimeout", "ConnectionRefusedError", "ConnectionResetError"}
AWAY |= {"RemoteProtocolError", "ReadError", "gaierror"}


class Pace:
    """Permits at an even pace: at most `per_minute` in any minute, and one."""

    def __init__(self, per_minute: float) -> None:
        self._apart, self._next, self._lock = 60 / per_minute, 0.0, threading.Lock()

    def permit(self) -> float:
        """Return in how many seconds a request may be sent; the next one may be sent later."""
        with self._lock:
            now = time.monotonic()
            at = max(now, self._next)
            self._next = at + self._apart
        return at - now


class EndpointAway(CancelledError):
    """An endpoint stayed away for longer than it was waited for; `ask` asks no further request."""


def patient(llm: LLM, *, patience: float, permit: Callable[[], float] | None = None) -> LLM:
    """Return the same model, which waits while its endpoint refuses connections or is overloaded.

    Each request that is not answered for such a reason is sent again, after growing pauses. Once
    one has waited for `patience` seconds, it and all others raise `EndpointAway`. `permit` returns
    how many seconds to wait before a request may be sent; what the model's client sends again by
    itself takes no permit: give it `max_retries=0`.
    """
    given_up = threading.Event()

    def complete(request: Request) -> Reply:
        pause, deadline = FIRST, math.inf
        while True:
            if permit is not None:
                time.sleep(permit())
            try:
                return llm.complete(request)
            except Exception as error:
                if not marks_of(error) & AWAY:
                    raise
                now = time.monotonic()
                deadline = min(deadline, now + patience)
                if given_up.is_set() or now + pause > deadline:
                    given_up.set()
                    raise EndpointAway(
                        f"the endpoint of {llm.name} was away for {patience:g} s "
                        f"({type(error).__name__}: {error})"
                    ) from error
            given_up.wait(pause)
            pause = min(2 * pause, LONGEST)

    return LLM(complete, llm.name)


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
