"""Replies: what an LLM said and what it cost, and how its JSON is read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

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


NO_ANSWER: Mapping[Finish, str] = {  # why a reply that did not come to its own end is none
    "length": "cut off",
    "refusal": "refused",
    "unknown": "unreadable",
}


def reply_fields(answer: Reply | Unanswered) -> tuple[Mapping[str, Any], str | None]:
    """Return the fields of a reply in JSON, or none and the reason why there are none.

    The reasons are "unanswered", "refused", "cut off" and "unreadable".
    """
    if isinstance(answer, Unanswered):
        return {}, "unanswered"
    if answer.finish != "stop":
        return {}, NO_ANSWER[answer.finish]
    fields = parse_json(answer.text)
    return (fields, None) if fields is not None else ({}, "unreadable")


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


def object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an object with exactly these fields.

    Bounds of a number are left to who reads it: not every server knows them.
    """
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
