"""What servers of LLMs understand and tell, each in words of its own, and frameworks carry over.

A server's errors, its word for why a reply ended, its tokens and log-probabilities become those of
a `Reply`, or `Unanswered`. Servers are many, so that nothing in what they tell is relied upon.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.reply import Finish, Unanswered


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
