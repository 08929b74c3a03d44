"""Merging kept claims into one text with an LLM: outside the guarantee, which is about claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from conformal_retrievers.claims.texts import as_claims, check_text
from conformal_retrievers.llm.ask import LLM, aask, ask
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt, Request, check_fields
from conformal_retrievers.llm.reply import Reply, Unanswered, Usage, object_schema, reply_fields


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
        """Whether the text is the claims themselves, and nothing that an LLM made of them.

        It is so, too, where there are no claims: then nothing is stated.
        """
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
    ValueError for a prompt with other fields, and TypeError for a query or claims of another kind.
    """
    claims = as_claims(claims)
    requests = _merge_requests(query, claims, prompt)
    return _merged(claims, ask(llm, requests, is_answer=_is_merged, cache=cache))


async def amerge(
    llm: LLM,
    query: str,
    claims: Iterable[str],
    *,
    prompt: Prompt | None = None,
    cache: Cache | None = None,
) -> Merged:
    """Return what `merge` returns, without blocking the event loop."""
    claims = as_claims(claims)
    requests = _merge_requests(query, claims, prompt)
    return _merged(claims, await aask(llm, requests, is_answer=_is_merged, cache=cache))


def _merge_requests(query: str, claims: Sequence[str], prompt: Prompt | None) -> list[Request]:
    check_text("query", query, "the question's text")
    prompt = prompt or Prompt.load("merge")
    check_fields(prompt, "query", "claims")
    schema = object_schema({"text": {"type": "string"}})
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


def _is_merged(place: int, reply: Reply) -> bool:
    return _merged((), [reply]).reason is None
