"""Replies: what an LLM answered and what it cost, and how its JSON is read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

from pydantic import ValidationError, create_model

from conformal_retrievers.data.files import explain, without_repetition

Finish = Literal["stop", "length", "refusal", "unknown"]
LONGEST = 100_000  # characters: an event loop stands still while a reply is read


@dataclass(frozen=True)
class Reply:
    """What came back from an LLM: the text, why it ended, and what it cost.

    Only a reply with the finish "stop" is an answer: "length" is cut off, "refusal" is declined by
    the model or its server, "unknown" is any other end. A field of another type raises TypeError.
    """

    text: str
    finish: Finish = "stop"
    first_token: dict[str, float] | None = None  # log-probabilities of its alternatives
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached: bool = False  # came from the cache and cost nothing

    def __post_init__(self) -> None:
        try:
            _FIELDS.model_validate(vars(self), strict=True)
        except ValidationError as error:
            raise TypeError(f"Reply: {explain(error)}") from None


_TYPES: Any = {name: (kind, ...) for name, kind in get_type_hints(Reply).items()}
_FIELDS = create_model("_FIELDS", **_TYPES)


class Unanswered(Exception):
    """A request has no reply after the client's own retries; the reason is the message."""


@dataclass(frozen=True)
class Usage:
    """Numbers of requests, and of the tokens of those that the server answered, by its count."""

    requests: int = 0
    cached: int = 0  # requests that the cache answered
    unanswered: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @classmethod
    def of(cls, answers: Sequence[Reply | Unanswered]) -> Usage:
        """Return the usage of these answers of `ask`."""
        replies = [answer for answer in answers if isinstance(answer, Reply)]
        paid = [reply for reply in replies if not reply.cached]
        prompt, completion = (r.prompt_tokens for r in paid), (r.completion_tokens for r in paid)
        cached, unanswered = len(replies) - len(paid), len(answers) - len(replies)
        return cls(len(answers), cached, unanswered, sum(prompt), sum(completion))

    def __add__(self, other: Usage) -> Usage:
        both = zip(vars(self).values(), vars(other).values(), strict=True)
        return Usage(*(a + b for a, b in both))


# The reasons why a reply is not an answer.
NO_ANSWER = {"length": "cut off", "refusal": "refused", "unknown": "unreadable"}


def reply_fields(answer: Reply | Unanswered) -> tuple[Mapping[str, Any], str | None]:
    """Return the JSON fields of a reply, or none and the reason, such as "unanswered"."""
    if isinstance(answer, Unanswered):
        return {}, "unanswered"
    if answer.finish != "stop":
        return {}, NO_ANSWER[answer.finish]
    fields = parse_json(answer.text)
    return (fields, None) if fields is not None else ({}, "unreadable")


def failure_of(answer: Reply | Unanswered) -> str:
    """Return why an answer cannot be used, with its start; control characters are escaped."""
    if isinstance(answer, Unanswered):
        return f"unanswered: {repr(str(answer))[1:-1]:.200}"
    return f"{NO_ANSWER.get(answer.finish, 'unreadable')}: {answer.text!r:.200}"


def without_thoughts(text: str) -> str:
    """Return what a reasoning model says after its thoughts; nothing if these do not end.

    >>> without_thoughts("<think>Paris or London?</think>London"), without_thoughts("<think>Paris")
    ('London', '')
    >>> without_thoughts("Paris or </think>London? <think>London</think>London has <think>, too.")
    'London has <think>, too.'
    """
    text = text.rpartition("</think>")[2]
    return "" if text.lstrip().startswith("<think>") else text


def parse_json(text: str) -> dict[str, Any] | None:
    """Return the one JSON object of a reply, bare, fenced or between words; None if in doubt.

    A reply is in doubt if it has a brace outside the object (a second object or a piece of a broken
    one), a repeated name, or more than 100,000 characters without its thoughts.

    >>> parse_json('Sure: {"rating": 0.5}')
    {'rating': 0.5}
    """
    text = without_thoughts(text)
    start = text.find("{")
    if start < 0 or len(text) > LONGEST or "<think>" in text:  # a thought without an end
        return None
    try:
        value, end = _DECODER.raw_decode(text, start)
        json.dumps(value, ensure_ascii=False).encode()  # half a character cannot be used as text
    except (ValueError, RecursionError):
        return None
    outside = text[:start] + text[end:]
    return value if isinstance(value, dict) and not re.search(r"[{}]", outside) else None


_DECODER = json.JSONDecoder(object_pairs_hook=without_repetition)


def object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an object with exactly these fields."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


# The reasoning comes first, so that the verdict can follow from it.
YES_OR_NO = {"type": "string", "enum": ["yes", "no"]}
VERDICT = object_schema({"reasoning": {"type": "string"}, "verdict": YES_OR_NO})


def verdict_of(answer: Reply | Unanswered) -> bool | str:
    """Return whether a reply says yes, or why it has no verdict; that never counts as a no."""
    fields, _ = reply_fields(answer)
    verdict = str(fields.get("verdict")).strip().lower()
    return verdict == "yes" if verdict in ("yes", "no") else failure_of(answer)
