"""Asking an LLM questions with the answer yes or no: relevance, support, consistency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conformal_retrievers.llm.ask import LLM, aask, ask
from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.reply import Reply, Unanswered, Usage, object_schema, reply_fields

# The reasoning comes first, so that the verdict can follow from it.
VERDICT = object_schema(
    {"reasoning": {"type": "string"}, "verdict": {"type": "string", "enum": ["yes", "no"]}}
)


def verdict_of(answer: Reply | Unanswered) -> bool | str:
    """Return whether a reply with the schema `VERDICT` says yes, or why it has no verdict.

    An unanswered, refused, cut off or unreadable reply has no verdict; it never counts as a no.
    """
    fields, reason = reply_fields(answer)
    verdict = fields.get("verdict")
    word = verdict.strip().lower() if isinstance(verdict, str) else ""
    if word in ("yes", "no"):
        return word == "yes"
    if isinstance(answer, Unanswered):
        return f"unanswered: {answer}"
    if answer.finish == "stop":
        return f"unreadable: {answer.text!r:.200}"
    return reason or "unreadable"


@dataclass(frozen=True)
class Verdicts:
    """The verdict on each request, and the usage of the different ones among them."""

    values: tuple[bool | str, ...]  # whether the reply says yes, or why it has no verdict
    usage: Usage

    @property
    def reasons(self) -> dict[int, str]:
        """Why there is no verdict, by the place of the request."""
        return {i: value for i, value in enumerate(self.values) if isinstance(value, str)}


def ask_verdicts(llm: LLM, requests: Sequence[Request], **options: Any) -> Verdicts:
    """Return the verdicts on requests with the schema `VERDICT`; equal requests are asked once.

    The options are those of `ask`. The cache stores only replies with a verdict.
    """
    different = _different(requests)
    return _verdicts(requests, ask(llm, different, is_answer=_has_verdict, **options))


async def aask_verdicts(llm: LLM, requests: Sequence[Request], **options: Any) -> Verdicts:
    """Return what `ask_verdicts` returns, without blocking the event loop."""
    different = _different(requests)
    return _verdicts(requests, await aask(llm, different, is_answer=_has_verdict, **options))


def _different(requests: Sequence[Request]) -> list[Request]:
    return list({request.as_json(): request for request in requests}.values())


def _has_verdict(place: int, reply: Reply) -> bool:
    return isinstance(verdict_of(reply), bool)


def _verdicts(requests: Sequence[Request], answers: Sequence[Reply | Unanswered]) -> Verdicts:
    keys = [request.as_json() for request in requests]
    values = dict(zip(dict.fromkeys(keys), map(verdict_of, answers), strict=True))
    return Verdicts(tuple(values[key] for key in keys), Usage.of(answers))
