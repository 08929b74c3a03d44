"""Asking an LLM: the one seam behind LLM scores, labels, claims and consistency judgements.

A prompt with its fields filled in is a request (`prompt.py`); a reply is what came back. A model is
a plain function from requests to replies, with a name, so that any server, framework or test can
stand behind it. `ask` and `aask` put many requests to a model at once; `ask_verdicts` and
`aask_verdicts` ask what is answered by yes or no.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import operator
import re
import threading
import weakref
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from conformal_retrievers.cache import Cache
from conformal_retrievers.extras import require
from conformal_retrievers.prompt import Prompt, Request, as_data, short_hash

__all__ = [
    "LLM",
    "VERDICT",
    "Prompt",
    "Reply",
    "Request",
    "Unanswered",
    "Usage",
    "Verdicts",
    "aask",
    "aask_verdicts",
    "as_data",
    "ask",
    "ask_verdicts",
    "check_cache",
    "check_count",
    "check_llm",
    "finish_of",
    "first_of",
    "first_token_in",
    "is_whole",
    "name_of",
    "name_with_settings",
    "no_reply",
    "openai_options",
    "parse_json",
    "part_of",
    "reason_in",
    "settings_of",
    "short_hash",
    "tokens_in",
    "unanswered_without_reply",
    "verdict_of",
]

logger = logging.getLogger("conformal_retrievers")

# --- values ---------------------------------------------------------------------------------------


Finish = Literal["stop", "length", "refusal", "unknown"]


@dataclass(frozen=True)
class Reply:
    """What came back: the text, why it ended, and what it cost.

    `finish` is "length" for a reply that was cut off, "refusal" for one that the model or its
    server declined, and "unknown" for one that ended in any other way; none is an answer.
    `first_token` maps the alternatives of the first token to their log-probabilities where they
    were asked for and given. `cached` replies cost nothing.
    """

    text: str
    finish: Finish = "stop"
    first_token: Mapping[str, float] | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached: bool = False


class Unanswered(Exception):
    """No reply came, after the client's own retries: a time-out, a full or failing server."""


@dataclass(frozen=True)
class LLM:
    """A model as a function from a request to a reply, and the name that identifies it.

    `complete` raises `Unanswered` where no reply came, and anything else where asking again could
    not help (a wrong key, an unknown model). `acomplete` is its asynchronous twin; without it,
    `complete` runs in a thread. The name tells all that changes what the model answers: a score
    with another model, even as a fallback, is another score.
    """

    complete: Callable[[Request], Reply]
    name: str
    acomplete: Callable[[Request], Awaitable[Reply]] | None = None


@dataclass(frozen=True)
class Usage:
    """How many requests there were, how many of them the cache answered and nobody did, and the
    tokens of the others' prompts and replies as their server counted them."""

    requests: int = 0
    cached: int = 0
    unanswered: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @classmethod
    def of(cls, answers: Iterable[Reply | Unanswered]) -> Usage:
        """Return what these answers of `ask` took."""
        answers = list(answers)
        replies = [answer for answer in answers if isinstance(answer, Reply)]
        paid = [reply for reply in replies if not reply.cached]
        return cls(
            len(answers),
            len(replies) - len(paid),
            len(answers) - len(replies),
            sum(reply.prompt_tokens for reply in paid),
            sum(reply.completion_tokens for reply in paid),
        )

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.requests + other.requests,
            self.cached + other.cached,
            self.unanswered + other.unanswered,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


# --- asking ---------------------------------------------------------------------------------------


def is_whole(place: int, reply: Reply) -> bool:
    """Return whether a reply has come to its own end: neither cut off nor refused."""
    return reply.finish == "stop"


def ask(
    llm: LLM,
    requests: Sequence[Request],
    *,
    is_answer: Callable[[int, Reply], bool] = is_whole,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
) -> list[Reply | Unanswered]:
    """Return the answer to each request, in their order, at most `concurrency` asked at a time.

    That bounds all calls with this model and bound together, from whatever threads; `aask` has a
    bound of its own in each event loop. A request that nobody answered gives its `Unanswered`; any
    other exception stops the rest and is raised. The cache answers what it knows, and learns each
    reply as it comes, so that what was interrupted goes on where it stopped.

    `is_answer` tells of a request's place and a reply to it whether that can be read; it is told by
    who asks, since only they know what they asked for. Only such replies enter the cache and are
    taken from it, so that what could not be read is asked again.
    """
    check_llm(llm)
    concurrency = check_count(concurrency, "concurrency")
    check_cache(cache)
    answers = _cached(cache, llm, requests, is_answer)
    missing = [i for i, answer in enumerate(answers) if answer is None]

    if not missing:
        return [a for a in answers if a is not None]

    slots = _slots(llm, concurrency)
    stopped = threading.Event()

    with (
        ThreadPoolExecutor(min(concurrency, len(missing))) as pool,
        _bar(missing, progress) as step,
    ):

        def answer(i: int) -> None:
            try:
                with slots:
                    if stopped.is_set():
                        return
                    answers[i] = reply = llm.complete(requests[i])
                if cache is not None and is_answer(i, reply):
                    _remember(cache, llm, requests[i], reply)
            except Unanswered as unanswered:
                answers[i] = unanswered
            except BaseException:
                stopped.set()
                raise
            step()

        # Each in a copy of this context, where frameworks keep the run that calls belong to.
        futures = [pool.submit(contextvars.copy_context().run, answer, i) for i in missing]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
        for future in done:
            future.result()
    return _told([a for a in answers if a is not None], llm)


async def aask(
    llm: LLM,
    requests: Sequence[Request],
    *,
    is_answer: Callable[[int, Reply], bool] = is_whole,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
) -> list[Reply | Unanswered]:
    """Return what `ask` returns, without blocking the event loop.

    Cancelling it, or an exception, cancels what it has asked and waits until that has ended: no
    task is left behind. A model without `acomplete` is not waited for: its calls under way end in
    their threads, and keep their places in the bound until then.
    """
    check_llm(llm)
    concurrency = check_count(concurrency, "concurrency")
    check_cache(cache)
    answers: list[Reply | Unanswered | None] = [None] * len(requests)
    if cache is not None:
        answers = await asyncio.to_thread(_cached, cache, llm, requests, is_answer)
    missing = [i for i, answer in enumerate(answers) if answer is None]
    if not missing:
        return [a for a in answers if a is not None]
    slots = _slots_of_this_loop(llm, concurrency)
    workers = min(concurrency, len(missing))
    todo = iter(missing)

    with _bounded(llm, slots, workers) as complete, _bar(missing, progress) as step:

        async def work() -> None:
            for i in todo:
                try:
                    reply = await complete(requests[i])
                except Unanswered as unanswered:
                    answers[i] = unanswered
                else:
                    answers[i] = reply
                    if cache is not None and is_answer(i, reply):
                        await asyncio.to_thread(_remember, cache, llm, requests[i], reply)
                step()

        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return _told([a for a in answers if a is not None], llm)


# One for each model, bound and event loop, as long as a call holds it, or a thread that outlives
# its call: that is all who could meet.
_SLOTS: weakref.WeakValueDictionary[tuple[int, int], threading.Semaphore] = (
    weakref.WeakValueDictionary()
)
_SLOTS_OF_LOOPS: weakref.WeakValueDictionary[
    tuple[asyncio.AbstractEventLoop, int, int], asyncio.Semaphore
] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()


def _slots(llm: LLM, concurrency: int) -> threading.Semaphore:
    with _LOCK:
        return _SLOTS.setdefault((id(llm), concurrency), threading.Semaphore(concurrency))


def _slots_of_this_loop(llm: LLM, concurrency: int) -> asyncio.Semaphore:
    key = asyncio.get_running_loop(), id(llm), concurrency
    with _LOCK:
        return _SLOTS_OF_LOOPS.setdefault(key, asyncio.Semaphore(concurrency))


def _told(answers: list[Reply | Unanswered], llm: LLM) -> list[Reply | Unanswered]:
    """Say to `logging` what nobody answered, and why: to the filter it is a snippet like others."""
    unanswered = [answer for answer in answers if isinstance(answer, Unanswered)]
    if unanswered:
        logger.warning(
            "%s did not answer %d of %d requests, the last because: %s",
            llm.name,
            len(unanswered),
            len(answers),
            unanswered[-1],
        )
    return answers


@contextmanager
def _bounded(
    llm: LLM, slots: asyncio.Semaphore, workers: int
) -> Iterator[Callable[[Request], Awaitable[Reply]]]:
    """Yield what asks the model when there is a place, by `acomplete` or by `complete` in a thread.

    A thread cannot be stopped: the server is at work for it, so it keeps its place to the end,
    whether or not who asked still waits.
    """
    if (acomplete := llm.acomplete) is not None:

        async def natively(request: Request) -> Reply:
            async with slots:
                return await acomplete(request)

        yield natively
        return
    pool = ThreadPoolExecutor(workers)  # the event loop's own may have fewer threads
    loop = asyncio.get_running_loop()

    async def in_a_thread(request: Request) -> Reply:
        def leave(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits for a place
                loop.call_soon_threadsafe(slots.release)

        context = contextvars.copy_context()
        await slots.acquire()
        call = pool.submit(context.run, lambda: llm.complete(request))  # llm lives as long as that
        call.add_done_callback(leave)
        return await asyncio.wrap_future(call)

    try:
        yield in_a_thread
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def check_llm(llm: object, name: str = "llm") -> None:
    """Raise TypeError, naming it and saying what an LLM is here, for anything that is none."""
    if not isinstance(llm, LLM):
        raise TypeError(
            f"{name} is a {type(llm).__name__}; give an LLM: openai_llm(model, base_url=…), or "
            "as_llm(model) of langchain_conformal or llama_index.postprocessor.conformal"
        )


def check_count(count: object, name: str) -> int:
    """Return a whole number that is at least 1; raise ValueError, naming it, for anything else."""
    try:
        n = 0 if isinstance(count, bool) else operator.index(count)  # type: ignore[arg-type]
    except TypeError:
        n = 0
    if n < 1:
        raise ValueError(f"{name} is {count!r}; give a whole number, at least 1")
    return n


def check_cache(cache: object) -> None:
    """Raise TypeError, saying what to give, for what is neither a Cache nor None."""
    if cache is not None and not isinstance(cache, Cache):
        path = str(cache) if isinstance(cache, str | Path) else "c.db"
        raise TypeError(f"cache is a {type(cache).__name__}; give Cache({path!r})")


@contextmanager
def _bar(missing: list[int], shown: bool) -> Iterator[Callable[[], None]]:
    if not shown:
        yield lambda: None
        return
    require("cli", "rich")
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("Asking", total=len(missing))
        yield lambda: progress.advance(task)


def _cached(
    cache: Cache | None,
    llm: LLM,
    requests: Sequence[Request],
    is_answer: Callable[[int, Reply], bool],
) -> list[Reply | Unanswered | None]:
    if cache is None or not requests:
        return [None] * len(requests)
    known = cache.replies(llm.name, [_as_json(request) for request in requests])
    replies = [None if text is None else Reply(**json.loads(text), cached=True) for text in known]
    return [r if r is not None and is_answer(i, r) else None for i, r in enumerate(replies)]


def _remember(cache: Cache, llm: LLM, request: Request, reply: Reply) -> None:
    fields = {name: value for name, value in vars(reply).items() if name != "cached"}
    cache.add_replies(llm.name, {_as_json(request): json.dumps(fields)})


def _as_json(request: Request) -> str:
    return json.dumps(vars(request), sort_keys=True)


# --- what stands behind an LLM --------------------------------------------------------------------


def no_reply(error: BaseException) -> bool:
    """Return whether an exception says that no reply came, so that a later try may have one.

    That is a time-out, a broken connection, a body that is no JSON, or one of the status 408, 409,
    429 and 500 or more, told by the attributes that the errors of HTTP clients have.
    """
    broken = (TimeoutError, asyncio.TimeoutError, ConnectionError)
    if isinstance(error, (*broken, json.JSONDecodeError, UnicodeDecodeError)):
        return True
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", getattr(response, "status_code", None))
    if isinstance(status, int):
        return status in (408, 409, 429) or status >= 500
    return response is None and "request" in dir(error)  # where httpx has none yet, it raises


@contextmanager
def unanswered_without_reply() -> Iterator[None]:
    """Turn an exception that says that no reply came (`no_reply`) into `Unanswered`."""
    try:
        yield
    except Exception as error:
        if no_reply(error):
            raise Unanswered(f"{type(error).__name__}: {error}") from error
        raise


# Words of OpenAI, Anthropic, Gemini, Bedrock, Cohere, Mistral, Ollama and TGI, by their letters; 1
# and 2 are Gemini's numbers for them.
_ENDED = frozenset(
    {
        *("stop", "stopsequence", "endturn", "eos", "eostoken", "endoftext"),
        *("complete", "completed", "finish", "finished", "done", "1"),
    }
)
_CUT_OFF = frozenset(
    {"length", "maxtokens", "maxoutputtokens", "modellength", "modelcontextwindowexceeded", "2"}
)
_DECLINED = frozenset(
    {
        *("contentfilter", "contentfiltered", "refusal", "safety", "recitation", "blocklist"),
        *("prohibitedcontent", "spii", "guardrailintervened", "errortoxic"),
    }
)


def finish_of(reason: object) -> Finish:
    """Return the `Reply.finish` of a server's own word for why a reply ended.

    A word is a text or a member of an enumeration, in any case. Many servers have none: where it is
    None or empty, the reply is taken for whole. A word that is not known is "unknown", no answer.
    """
    said = str(reason.name if isinstance(reason, Enum) else "" if reason is None else reason)
    word = re.sub(r"[^a-z0-9]", "", said.rpartition(".")[2].lower())  # "FinishReason.MAX_TOKENS"
    if not said or word in _ENDED:
        return "stop"
    if word in _CUT_OFF:
        return "length"
    return "refusal" if word in _DECLINED else "unknown"


def reason_in(told: object) -> object:
    """Return a server's word for why a reply ended, None where what it told (an object or a dict)
    has none: its finish, stop or done reason, or that of its first choice or candidate."""
    firsts = [first_of(told, name) for name in ("choices", "candidates")]
    said = [
        part_of(part, name)
        for part in (*firsts, told)
        for name in ("finish_reason", "finishReason", "stop_reason", "stopReason", "done_reason")
    ]
    said.append(part_of(part_of(told, "incomplete_details"), "reason"))
    return next((reason for reason in said if reason), None)


def first_token_in(logprobs: object) -> dict[str, float] | None:
    """Return the alternatives of the first token with their log-probabilities, as Chat Completions
    tell them (objects or dicts): content[0].top_logprobs; None unless all are well formed."""
    tops = part_of(first_of(logprobs, "content"), "top_logprobs")
    found: dict[str, float] = {}
    for top in tops if isinstance(tops, Sequence) else ():
        token, logprob = part_of(top, "token"), part_of(top, "logprob")
        numeric = isinstance(logprob, int | float) and not isinstance(logprob, bool)
        if not isinstance(token, str) or not numeric:
            return None
        try:
            found[token] = float(logprob)
        except OverflowError:  # a whole number that no float holds
            return None
    return found or None


def tokens_in(count: object) -> int:
    """Return a server's number of tokens, 0 where it is none: not all servers count them."""
    if not isinstance(count, int) or isinstance(count, bool):
        return 0
    return max(0, count)


def first_of(told: object, name: str) -> Any:
    """Return the first of the list that a server told under this name; None without such a list."""
    several = part_of(told, name)
    listed = isinstance(several, Sequence) and not isinstance(several, str | bytes)
    return several[0] if listed and several else None


def part_of(told: object, name: str) -> Any:
    """Return what a server told under this name, in an object or a dict; None without it."""
    return told.get(name) if isinstance(told, Mapping) else getattr(told, name, None)


def openai_options(request: Request) -> dict[str, Any]:
    """Return a request's wishes as fields of OpenAI's Chat Completions, which many servers speak:
    `response_format`, `logprobs` with `top_logprobs`, and `max_tokens`."""
    options: dict[str, Any] = {}
    if request.schema is not None:
        form = {"name": "reply", "strict": True, "schema": dict(request.schema)}
        options["response_format"] = {"type": "json_schema", "json_schema": form}
    if request.top_logprobs:
        options |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    if request.max_tokens is not None:
        options["max_tokens"] = request.max_tokens
    return options


def name_of(
    model: str,
    *,
    temperature: object,
    options: Callable[[Request], Mapping[str, Any]] | None,
    settings: Mapping[str, Any],
) -> str:
    """Return the name of a framework's model with its settings, see `name_with_settings`, and how
    it is asked unless that is with `openai_options`, as `openai_llm` asks.

    Raises ValueError for options of one's own: two of them cannot be told apart.
    """
    if options not in (None, openai_options):
        raise ValueError(
            f"options is {options!r}, and another way to ask may be another score: give a name "
            "that tells it, name='…'"
        )
    named = name_with_settings(model, temperature=temperature, settings=settings)
    return f"{named}, as text" if options is None else named


def name_with_settings(model: str, *, temperature: object, settings: Mapping[str, Any]) -> str:
    """Return the name of a framework's model: with its temperature unless that is 0, and with its
    other `settings` if there are any."""
    warmth = "" if temperature == 0 else f", temperature={temperature}"
    told = f" {json.dumps(settings, sort_keys=True)}" if settings else ""
    return f"{model}{told}{warmth}"


# Fields of frameworks' models that say how it is reached, and keys: they change nothing that it
# answers, and no key belongs into a name.
_REACHED = frozenset(
    {
        *("api_key", "api_base", "base_url", "api_version", "azure_endpoint", "organization"),
        *("openai_api_key", "openai_api_base", "openai_organization", "openai_proxy"),
        *("timeout", "request_timeout", "max_retries", "default_headers", "http_socket_options"),
    }
)

# As little do those that say which model it is, or who listens. `temperature` has its own place in
# the name.
_NO_SETTINGS = _REACHED | {
    *("model", "model_name", "deployment_name", "temperature", "name", "class_name"),
    *("cache", "verbose", "tags", "metadata", "rate_limiter", "profile", "num_workers"),
    *("streaming", "disable_streaming", "stream_usage", "stream_chunk_timeout"),
    *("output_version", "include_response_headers", "use_responses_api", "strict"),
    *("is_function_calling_model", "allow_parallel_tool_calls"),
    *("tokenizer", "tiktoken_model_name", "reuse_client"),
}


def settings_of(model: object, *, without: Container[str] = ()) -> dict[str, Any]:
    """Return the settings of a framework's model that may change its answers, but for defaults.

    They are its pydantic fields that can be told as JSON, sets as sorted lists and pydantic models
    as dicts, and are not known to change nothing; those named in `without` are known so of this
    model. Clients, functions and other objects are not told.
    """
    fields: Mapping[str, Any] = getattr(type(model), "model_fields", {})
    found: dict[str, Any] = {}
    for name, field in fields.items():
        value = getattr(model, name, None)
        if name in _NO_SETTINGS or name in without:
            continue
        if value == field.get_default(call_default_factory=True):
            continue
        if value in (None, {}, [], ""):
            continue
        plain = _plain(value)
        if _is_json(plain):
            found[name] = plain
    return found


def _plain(value: object) -> object:
    """Return a setting with its sets as sorted lists and its pydantic models as dicts."""
    fields: Mapping[str, Any] | None = getattr(type(value), "model_fields", None)
    if fields is not None:
        parts = {name: _plain(getattr(value, name)) for name in fields if name not in _REACHED}
        return {name: p for name, p in parts.items() if p is not None and _is_json(p)}
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=repr)
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        return False
    return True


def parse_json(text: str) -> dict[str, Any] | None:
    """Return the one JSON object of a reply, bare, fenced or between words; None if in doubt.

    In doubt is a reply with a brace outside the object, which may be a second one or a piece of a
    broken one, with a name twice, and with a number that JSON does not know. What a reasoning model
    thinks aloud, up to </think>, is left out.
    """
    text = text.rpartition("</think>")[2]
    if "<think>" in text:
        return None  # it never ended, so that nothing is said yet
    start = text.find("{")
    if start < 0:
        return None
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    outside = text[:start] + text[end:]
    return value if isinstance(value, dict) and not re.search(r"[{}]", outside) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)


# --- verdicts -------------------------------------------------------------------------------------

VERDICT = {  # the schema of a reply that says yes or no, after saying why
    "type": "object",
    "properties": {
        "reasoning": {"type": "string"},
        "verdict": {"type": "string", "enum": ["yes", "no"]},
    },
    "required": ["reasoning", "verdict"],
    "additionalProperties": False,
}


def verdict_of(answer: Reply | Unanswered) -> bool | str:
    """Return whether a reply with the schema `VERDICT` says yes, or why it has no verdict."""
    if isinstance(answer, Unanswered):
        return f"unanswered: {answer}"
    if answer.finish != "stop":
        odd = "ended for an unknown reason"
        return {"length": "cut off", "refusal": "refused", "unknown": odd}[answer.finish]
    said = (parse_json(answer.text) or {}).get("verdict")
    verdict = said.strip().lower() if isinstance(said, str) else None
    if verdict not in ("yes", "no"):
        return f"unreadable: {answer.text!r:.200}"
    return verdict == "yes"


def _has_verdict(place: int, reply: Reply) -> bool:
    return isinstance(verdict_of(reply), bool)


@dataclass(frozen=True)
class Verdicts:
    """Of each request whether the reply says yes, or why it has no verdict; and what they took."""

    said: tuple[bool | str, ...]
    usage: Usage

    @property
    def reasons(self) -> dict[int, str]:
        """Why there is no verdict, by the place of the request."""
        return {i: said for i, said in enumerate(self.said) if isinstance(said, str)}


def ask_verdicts(
    llm: LLM,
    requests: Sequence[Request],
    *,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
) -> Verdicts:
    """Return the verdicts on requests of schema `VERDICT`; equal ones are asked once, as by `ask`.

    A reply that is cut off, refused or not to be read is no verdict, and never a no; the cache does
    not keep it.
    """
    once = _once_each(requests)
    unique = list(once.values())
    answers = ask(
        llm,
        unique,
        is_answer=_has_verdict,
        concurrency=concurrency,
        cache=cache,
        progress=progress,
    )
    return _verdicts(requests, once, answers)


async def aask_verdicts(
    llm: LLM,
    requests: Sequence[Request],
    *,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
) -> Verdicts:
    """Return what `ask_verdicts` returns, without blocking the event loop."""
    once = _once_each(requests)
    unique = list(once.values())
    answers = await aask(
        llm,
        unique,
        is_answer=_has_verdict,
        concurrency=concurrency,
        cache=cache,
        progress=progress,
    )
    return _verdicts(requests, once, answers)


def _once_each(requests: Sequence[Request]) -> dict[str, Request]:
    return {_as_json(request): request for request in requests}


def _verdicts(
    requests: Sequence[Request],
    once: Mapping[str, Request],
    answers: Sequence[Reply | Unanswered],
) -> Verdicts:
    said = dict(zip(once, map(verdict_of, answers), strict=True))
    return Verdicts(tuple(said[_as_json(request)] for request in requests), Usage.of(answers))
