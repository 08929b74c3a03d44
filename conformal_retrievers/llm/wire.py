"""The wire formats of LLM servers, and the names of frameworks' models.

A server's errors, its words for why a reply ended, its tokens and log-probabilities become those of
a `Reply`, or `Unanswered`. Servers are many, so nothing in their answers is taken for granted.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.reply import Finish, Unanswered

# --- requests and errors --------------------------------------------------------------------------


def openai_options(request: Request) -> dict[str, Any]:
    """Return the options of a request (schema, log-probabilities, length) for Chat Completions.

    >>> openai_options(Request("Answer YES or NO.", "Is it?", top_logprobs=5, max_tokens=1))
    {'logprobs': True, 'top_logprobs': 5, 'max_tokens': 1}
    """
    options: dict[str, Any] = {}
    if request.schema is not None:
        form = {"name": "reply", "strict": True, "schema": dict(request.schema)}
        options["response_format"] = {"type": "json_schema", "json_schema": form}
    if request.top_logprobs:
        options |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    if request.max_tokens is not None:
        options["max_tokens"] = request.max_tokens
    return options


@contextmanager
def unanswered_without_reply() -> Iterator[None]:
    """Turn an exception after which a later try may succeed into `Unanswered`.

    That is a timeout, a broken connection, a body that is not JSON, or the status 408, 409, 429 or
    500 and above, recognised by the attributes that the errors of HTTP clients have.
    """
    try:
        yield
    except Exception as error:
        if _may_pass(error):
            raise Unanswered(f"{type(error).__name__}: {error}") from error
        raise


def _may_pass(error: Exception) -> bool:
    broken = (TimeoutError, asyncio.TimeoutError, ConnectionError)
    if isinstance(error, (*broken, json.JSONDecodeError, UnicodeDecodeError)):
        return True
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", getattr(response, "status_code", None))
    if isinstance(status, int):
        return status in (408, 409, 429) or status >= 500
    return response is None and "request" in dir(error)  # reading httpx's request may raise


# --- replies --------------------------------------------------------------------------------------

# Words of OpenAI, Anthropic, Gemini, Bedrock, Cohere, Mistral, Ollama and TGI, by their letters; 1
# and 2 are Gemini's numbers.
_STOP = {
    *("stop", "stopsequence", "endturn", "eos", "eostoken", "endoftext", "1"),
    *("complete", "completed", "finish", "finished", "done"),
}
_LENGTH = {
    "length",
    "maxtokens",
    "maxoutputtokens",
    "modellength",
    "modelcontextwindowexceeded",
    "2",
}
_REFUSAL = {
    *("contentfilter", "contentfiltered", "refusal", "safety", "recitation", "blocklist"),
    *("prohibitedcontent", "spii", "guardrailintervened", "errortoxic"),
}


def finish_of(reason: object) -> Finish:
    """Return the `Reply.finish` for a server's own word for why a reply ended.

    The word is a text or a member of an enumeration, in any case. A reply without one is taken as
    whole, since many servers give none; an unknown word becomes "unknown", which is not an answer.

    >>> finish_of("MAX_TOKENS")
    'length'
    """
    text = str(reason.name if isinstance(reason, Enum) else "" if reason is None else reason)
    word = re.sub(r"[^a-z0-9]", "", text.rpartition(".")[2].lower())  # "FinishReason.MAX_TOKENS"
    if not text or word in _STOP:
        return "stop"
    if word in _LENGTH:
        return "length"
    return "refusal" if word in _REFUSAL else "unknown"


def reason_in(answer: object) -> object:
    """Return a server's word for why a reply ended, None if its answer has none.

    It is the finish, stop or done reason of the answer (an object or a dict) or of its first choice
    or candidate.
    """
    firsts = [first_of(answer, name) for name in ("choices", "candidates")]
    reasons = [
        part_of(part, name)
        for part in (*firsts, answer)
        for name in ("finish_reason", "finishReason", "stop_reason", "stopReason", "done_reason")
    ]
    reasons.append(part_of(part_of(answer, "incomplete_details"), "reason"))
    return next((reason for reason in reasons if reason), None)


def first_token_in(logprobs: object) -> dict[str, float] | None:
    """Return the log-probabilities of the first token's alternatives, None unless all are valid.

    They are content[0].top_logprobs in Chat Completions, as objects or dicts.
    """
    tops = part_of(first_of(logprobs, "content"), "top_logprobs")
    found: dict[str, float] = {}
    for top in tops if isinstance(tops, Sequence) else ():
        token, logprob = part_of(top, "token"), part_of(top, "logprob")
        numeric = isinstance(logprob, int | float) and not isinstance(logprob, bool)
        if not isinstance(token, str) or not numeric:
            return None
        try:
            found[token] = float(logprob)
        except OverflowError:  # an integer beyond the range of floats
            return None
    return found or None


def tokens_in(count: object) -> int:
    """Return a server's number of tokens, 0 if it is not a valid one."""
    return max(0, count) if isinstance(count, int) and not isinstance(count, bool) else 0


def first_of(answer: object, name: str) -> Any:
    """Return the first item of the list with this name in a server's answer, None without one."""
    items = part_of(answer, name)
    listed = isinstance(items, Sequence) and not isinstance(items, str | bytes)
    return items[0] if listed and items else None


def part_of(answer: object, name: str) -> Any:
    """Return the part with this name of a server's answer, an object or a dict; None without it."""
    return answer.get(name) if isinstance(answer, Mapping) else getattr(answer, name, None)


# --- names of frameworks' models ------------------------------------------------------------------


def name_of(
    model: str,
    *,
    temperature: object,
    settings: Mapping[str, Any],
    options: Callable[[Request], Mapping[str, Any]] | None = openai_options,
) -> str:
    """Return the name of a framework's model with all that changes its answers.

    A calibration with one model holds for every model of equal name. The name has the temperature
    unless it is 0, the other `settings` if there are any, and whether the model is asked without
    `openai_options`; it has no keys and no address of a server. Raises ValueError for other
    `options`, which have no name.

    >>> name_of("gpt-4o", temperature=0.2, settings={"top_p": 0.1})
    'gpt-4o {"top_p": 0.1}, temperature=0.2'
    """
    if options not in (None, openai_options):
        raise ValueError("name is missing; give one, since options changes how the model is asked")
    parts = f" {json.dumps(settings, sort_keys=True)}" if settings else ""
    warmth = "" if temperature == 0 else f", temperature={temperature}"
    return f"{model}{parts}{warmth}{', as text' if options is None else ''}"


# Fields that state how a model is reached, and keys. They do not change an answer.
_REACHED = frozenset(
    {
        *("api_key", "api_base", "base_url", "api_version", "azure_endpoint", "organization"),
        *("openai_api_key", "openai_api_base", "openai_organization", "openai_proxy"),
        *("timeout", "request_timeout", "max_retries", "default_headers", "http_socket_options"),
    }
)

# Nor do fields that state which model it is, or who listens. `temperature` has its own place.
_NO_SETTINGS = _REACHED | {
    *("model", "model_name", "deployment_name", "temperature", "name", "class_name"),
    *("cache", "verbose", "tags", "metadata", "rate_limiter", "profile", "num_workers"),
    *("streaming", "disable_streaming", "stream_usage", "stream_chunk_timeout"),
    *("output_version", "include_response_headers", "use_responses_api", "strict"),
    *("is_function_calling_model", "allow_parallel_tool_calls"),
    *("tokenizer", "tiktoken_model_name", "reuse_client"),
}


def settings_of(model: object, *, without: Container[str] = ()) -> dict[str, Any]:
    """Return the settings of a framework's model that may change its answers, except defaults.

    They are the pydantic fields that JSON can hold, with sets as sorted lists and pydantic models
    as dicts, except those that are known to change no answer and those in `without`. Clients,
    functions and other objects are left out.
    """
    fields: Mapping[str, Any] = getattr(type(model), "model_fields", {})
    found: dict[str, Any] = {}
    for name, field in fields.items():
        value = getattr(model, name, None)
        if name in _NO_SETTINGS or name in without or value in (None, {}, [], ""):
            continue
        if value != field.get_default(call_default_factory=True) and _is_json(value):
            found[name] = json.loads(json.dumps(value, default=_plain))
    return found


def _plain(value: object) -> object:
    """Return a set as a sorted list and a pydantic model as a dict, for `json.dumps`."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    fields: Mapping[str, Any] | None = getattr(type(value), "model_fields", None)
    if fields is None:
        raise TypeError(f"a {type(value).__name__} is not JSON")  # its repr may be endless
    parts = {name: getattr(value, name) for name in fields if name not in _REACHED}
    return {name: part for name, part in parts.items() if part is not None and _is_json(part)}


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, sort_keys=True, default=_plain)
    except (TypeError, ValueError):
        return False
    return True
