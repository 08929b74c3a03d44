"""Dividing an answer into its claims with an LLM (arXiv 2506.20978, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from conformal_retrievers.claims.texts import check_text
from conformal_retrievers.llm.ask import LLM, aask, ask
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt, Request, check_fields
from conformal_retrievers.llm.reply import Reply, Unanswered, Usage, object_schema, reply_fields


@dataclass(frozen=True)
class Decomposition:
    """The claims of an answer, in its order; none, and the `reason`, where it was not divided."""

    claims: tuple[str, ...]
    reason: str | None = None
    usage: Usage = field(default_factory=Usage)


def decompose(
    llm: LLM, query: str, answer: str, *, prompt: Prompt | None = None, cache: Cache | None = None
) -> Decomposition:
    """Ask an LLM to divide an answer into claims that are true or false by themselves.

    `prompt` has the fields $query and $answer; it is prompts/decompose.txt by default. A blank
    answer has no claims and is not sent. Raises ValueError for a prompt with other fields, and
    TypeError for a query or an answer that is no text.
    """
    requests = _decompose_requests(query, answer, prompt)
    return _decomposition(ask(llm, requests, is_answer=_is_divided, cache=cache))


async def adecompose(
    llm: LLM, query: str, answer: str, *, prompt: Prompt | None = None, cache: Cache | None = None
) -> Decomposition:
    """Return what `decompose` returns, without blocking the event loop."""
    requests = _decompose_requests(query, answer, prompt)
    return _decomposition(await aask(llm, requests, is_answer=_is_divided, cache=cache))


def _decompose_requests(query: str, answer: str, prompt: Prompt | None) -> list[Request]:
    check_text("query", query, "the question's text")
    check_text("answer", answer, "the answer's text")
    prompt = prompt or Prompt.load("decompose")
    check_fields(prompt, "query", "answer")
    schema = object_schema({"claims": {"type": "array", "items": {"type": "string"}}})
    return (
        [prompt.request({"query": query, "answer": answer}, schema=schema)]
        if answer.strip()
        else []
    )


def _decomposition(answers: Sequence[Reply | Unanswered]) -> Decomposition:
    usage = Usage.of(answers)
    if not answers:
        return Decomposition((), None, usage)
    fields, reason = reply_fields(answers[0])
    claims = fields.get("claims")
    if not isinstance(claims, list) or not all(isinstance(claim, str) for claim in claims):
        return Decomposition((), reason or "unreadable", usage)
    return Decomposition(tuple(claim.strip() for claim in claims if claim.strip()), None, usage)


def _is_divided(place: int, reply: Reply) -> bool:
    return _decomposition([reply]).reason is None
