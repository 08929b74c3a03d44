"""What an LLM does with claims: divide an answer into them, annotate them, merge them.

As in Feng et al. 2025 (arXiv 2506.20978, section 3.1). What cannot be read is no claim, no verdict
and no text, and its reason is told: "unanswered", "refused", "cut off" or "unreadable".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from conformal_retrievers.cache import Cache
from conformal_retrievers.judged import Snippet, as_snippets
from conformal_retrievers.llm import (
    LLM,
    Prompt,
    Reply,
    Request,
    Unanswered,
    Usage,
    aask,
    ask,
    parse_json,
)

Verdict = Literal["supported", "unsupported", "contradicted", "irrelevant"]


def reply_fields(answer: Reply | Unanswered) -> tuple[Mapping[str, Any], str | None]:
    """Return the fields of a reply in JSON, or none and the reason why there are none."""
    if isinstance(answer, Unanswered):
        return {}, "unanswered"
    if answer.finish != "stop":
        return {}, {"length": "cut off", "refusal": "refused"}[answer.finish]
    fields = parse_json(answer.text)
    return (fields, None) if fields is not None else ({}, "unreadable")


def reply_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an object with exactly these fields."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def check_fields(prompt: Prompt, *fields: str) -> None:
    """Raise ValueError unless a prompt has exactly these fields."""
    if prompt.fields != set(fields):
        raise ValueError(
            f"the prompt has the fields {sorted(prompt.fields)}; write "
            f"{', '.join(f'${name}' for name in fields)} into its user's part, and no other"
        )


# --- dividing -------------------------------------------------------------------------------------


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
    answer has no claims and is not sent. Raises ValueError for a prompt with other fields.
    """
    requests = _decompose_requests(query, answer, prompt)
    return _decomposition(ask(llm, requests, cache=cache))


async def adecompose(
    llm: LLM, query: str, answer: str, *, prompt: Prompt | None = None, cache: Cache | None = None
) -> Decomposition:
    """Return what `decompose` returns, without blocking the event loop."""
    requests = _decompose_requests(query, answer, prompt)
    return _decomposition(await aask(llm, requests, cache=cache))


def _decompose_requests(query: str, answer: str, prompt: Prompt | None) -> list[Request]:
    prompt = prompt or Prompt.load("decompose")
    check_fields(prompt, "query", "answer")
    schema = reply_schema({"claims": {"type": "array", "items": {"type": "string"}}})
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


# --- annotating -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Annotations:
    """An LLM's verdict on each claim of an answer, None with its reason where there is none."""

    verdicts: tuple[Verdict | None, ...]
    reasons: tuple[str | None, ...]
    usage: Usage

    @property
    def factual(self) -> tuple[bool | None, ...]:
        """Whether each claim is supported; None, and never False, where there is no verdict."""
        return tuple(None if v is None else v == "supported" for v in self.verdicts)


def annotate(
    llm: LLM,
    query: str,
    claims: Iterable[str],
    *,
    reference: str,
    documents: Iterable[Snippet | str] = (),
    prompt: Prompt | None = None,
    concurrency: int = 8,
    cache: Cache | None = None,
) -> Annotations:
    """Ask an LLM of each claim whether a reference answer and documents support it.

    The reply is {"reason", "verdict"}, and the verdict "supported", "unsupported", "contradicted"
    or "irrelevant"; anything else is none. `prompt` has the fields $query, $reference, $documents
    and $claim; it is prompts/annotate.txt by default. Raises ValueError for one with other fields.
    """
    prompt = prompt or Prompt.load("annotate")
    check_fields(prompt, "query", "reference", "documents", "claim")
    words = get_args(Verdict)
    schema = reply_schema(
        {"reason": {"type": "string"}, "verdict": {"type": "string", "enum": list(words)}}
    )
    texts = [document.text for document in as_snippets(documents)]
    given = {"query": query, "reference": reference, "documents": texts}
    requests = [prompt.request({**given, "claim": claim}, schema=schema) for claim in claims]
    answers = ask(llm, requests, concurrency=concurrency, cache=cache)
    verdicts: list[Verdict | None] = []
    reasons = []
    for answer in answers:
        fields, reason = reply_fields(answer)
        said = str(fields.get("verdict")).strip().lower()
        verdict = next((word for word in words if word == said), None)
        verdicts.append(verdict)
        reasons.append(None if verdict else reason or "unreadable")
    return Annotations(tuple(verdicts), tuple(reasons), Usage.of(answers))


# --- merging --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Merged:
    """A text that an LLM made of claims: outside the guarantee, which is about the claims.

    Where it made none, `text` is the claims one after the other, and `reason` says why.
    """

    text: str
    claims: tuple[str, ...]
    reason: str | None
    usage: Usage

    @property
    def guaranteed(self) -> bool:
        """Whether the text is the claims themselves, and nothing that an LLM made of them."""
        return self.text == joined(self.claims)


def joined(claims: Iterable[str]) -> str:
    """Return claims as sentences, one after the other."""
    ends = (".", "!", "?", "…", ":", ";")
    return " ".join(claim if claim.endswith(ends) else f"{claim}." for claim in claims)


def merge(
    llm: LLM,
    query: str,
    claims: Iterable[str],
    *,
    prompt: Prompt | None = None,
    cache: Cache | None = None,
) -> Merged:
    """Ask an LLM to make one text of claims; no claims make an empty one and are not sent.

    `prompt` has the fields $query and $claims, a list; it is prompts/merge.txt by default. Raises
    ValueError for a prompt with other fields.
    """
    claims = tuple(claims)
    requests = _merge_requests(query, claims, prompt)
    return _merged(claims, ask(llm, requests, cache=cache))


async def amerge(
    llm: LLM,
    query: str,
    claims: Iterable[str],
    *,
    prompt: Prompt | None = None,
    cache: Cache | None = None,
) -> Merged:
    """Return what `merge` returns, without blocking the event loop."""
    claims = tuple(claims)
    requests = _merge_requests(query, claims, prompt)
    return _merged(claims, await aask(llm, requests, cache=cache))


def _merge_requests(query: str, claims: Sequence[str], prompt: Prompt | None) -> list[Request]:
    prompt = prompt or Prompt.load("merge")
    check_fields(prompt, "query", "claims")
    schema = reply_schema({"text": {"type": "string"}})
    values = {"query": query, "claims": list(claims)}
    return [prompt.request(values, schema=schema)] if claims else []


def _merged(claims: tuple[str, ...], answers: Sequence[Reply | Unanswered]) -> Merged:
    usage = Usage.of(answers)
    if not answers:
        return Merged("", claims, None, usage)
    fields, reason = reply_fields(answers[0])
    text = fields.get("text")
    if not isinstance(text, str) or not text.strip():
        return Merged(joined(claims), claims, reason or "unreadable", usage)
    return Merged(text.strip(), claims, None, usage)
