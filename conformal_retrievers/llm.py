"""Asking an LLM: the one seam behind LLM scores, labels, claims and consistency judgements.

A prompt is a text file, identified by the hash of its content. With its fields filled in it is a
request; a reply is what came back. A model is a plain function from requests to replies, with a
name, so that any server, framework or test can stand behind it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Request:
    """One question: what the system and the user say, and which form the reply shall have.

    `schema` is the JSON schema of the reply, None for free text. `top_logprobs` asks for the
    log-probabilities of so many alternatives of the first token, `max_tokens` bounds the reply.
    """

    system: str
    user: str
    schema: Mapping[str, Any] | None = None
    top_logprobs: int = 0
    max_tokens: int | None = None


@dataclass(frozen=True)
class Reply:
    """What came back: the text, why it ended, and what it cost.

    `finish` is "length" for a reply that was cut off and "refusal" for one that the model or its
    server declined; neither is an answer. `first_token` maps the alternatives of the first token to
    their log-probabilities where they were asked for and given.
    """

    text: str
    finish: Literal["stop", "length", "refusal"] = "stop"
    first_token: Mapping[str, float] | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Unanswered(Exception):
    """No reply came, after the client's own retries: a time-out, a full or failing server."""


@dataclass(frozen=True)
class LLM:
    """A model as a function from a request to a reply, and the name that identifies it.

    `complete` raises `Unanswered` where no reply came, and anything else where asking again could
    not help (a wrong key, an unknown model). `acomplete` is its asynchronous twin; without it,
    `complete` runs in a thread.
    """

    complete: Callable[[Request], Reply]
    name: str
    acomplete: Callable[[Request], Awaitable[Reply]] | None = None
