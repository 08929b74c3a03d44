"""Asking an LLM what is answered by yes or no: labels, support of sentences, consistency.

A reply that is cut off, refused or not to be read is no verdict, and never a no.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conformal_retrievers.llm.ask import LLM, Asked, Reply, Request, Unanswered, Usage, aask, ask
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.reply import object_schema, parse_json

# The reasoning comes first, so that the verdict can follow from it.
VERDICT = object_schema(
    {"reasoning": {"type": "string"}, "verdict": {"type": "string", "enum": ["yes", "no"]}}
)


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

    A reply without a verdict is not kept by the cache, so that it is asked for again.
    """
    return _verdicts(requests, _put(ask, llm, requests, concurrency, cache, progress))


async def aask_verdicts(
    llm: LLM,
    requests: Sequence[Request],
    *,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
) -> Verdicts:
    """Return what `ask_verdicts` returns, without blocking the event loop."""
    return _verdicts(requests, await _put(aask, llm, requests, concurrency, cache, progress))


def _put(
    ask: Callable[..., Asked],
    llm: LLM,
    requests: Sequence[Request],
    concurrency: int,
    cache: Cache | None,
    progress: bool,
) -> Asked:
    """Put each different request to the model once, by `ask` or `aask`."""
    return ask(
        llm,
        list({request.as_json(): request for request in requests}.values()),
        is_answer=_has_verdict,
        concurrency=concurrency,
        cache=cache,
        progress=progress,
    )


def _has_verdict(place: int, reply: Reply) -> bool:
    return isinstance(verdict_of(reply), bool)


def _verdicts(requests: Sequence[Request], answers: Sequence[Reply | Unanswered]) -> Verdicts:
    """Return the verdict on each request, from the answers to the different ones among them."""
    keys = [request.as_json() for request in requests]
    said = dict(zip(dict.fromkeys(keys), map(verdict_of, answers), strict=True))
    return Verdicts(tuple(said[key] for key in keys), Usage.of(answers))
