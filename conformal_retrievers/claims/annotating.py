"""Annotating claims with an LLM: does a reference answer, or a document, support each of them?

A claim is factual iff its verdict is "supported", as in arXiv 2506.20978, section 3.1; one without
a verdict is neither factual nor not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from conformal_retrievers.claims.texts import as_claims, as_documents, check_text
from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.llm.ask import LLM, aask, ask
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt, Request, check_fields
from conformal_retrievers.llm.reply import Reply, Unanswered, Usage, object_schema, reply_fields

Verdict = Literal["supported", "unsupported", "contradicted", "irrelevant"]


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
    and $claim; it is prompts/annotate.txt by default. At most `concurrency` requests are under way;
    a `cache` asks only for what it does not know. `documents` are texts or snippets that are held
    to be true, like the reference: a claim that either supports is factual. Raises ValueError for a
    blank reference, or a prompt with other fields, and TypeError for a query, a reference, claims
    or documents of another kind.
    """
    requests = _requests(query, claims, reference, documents, prompt)
    return _annotations(
        ask(llm, requests, is_answer=_has_verdict, concurrency=concurrency, cache=cache)
    )


async def aannotate(
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
    """Return what `annotate` returns, without blocking the event loop."""
    requests = _requests(query, claims, reference, documents, prompt)
    return _annotations(
        await aask(llm, requests, is_answer=_has_verdict, concurrency=concurrency, cache=cache)
    )


def _requests(
    query: str,
    claims: Iterable[str],
    reference: str,
    documents: Iterable[Snippet | str],
    prompt: Prompt | None,
) -> list[Request]:
    check_text("query", query, "the question's text")
    check_text("reference", reference, "the text of a right answer, which claims are judged by")
    if not reference.strip():
        raise ValueError(
            f"reference is {reference!r:.20}; give the text of a right answer, which claims are "
            "judged by (such as the documents that hold it)"
        )
    prompt = prompt or Prompt.load("annotate")
    check_fields(prompt, "query", "reference", "documents", "claim")
    verdict = {"type": "string", "enum": list(get_args(Verdict))}
    schema = object_schema({"reason": {"type": "string"}, "verdict": verdict})
    texts = [document.text for document in as_documents(documents)]
    given = {"query": query, "reference": reference, "documents": texts}
    return [prompt.request({**given, "claim": claim}, schema=schema) for claim in as_claims(claims)]


def _annotations(answers: Sequence[Reply | Unanswered]) -> Annotations:
    words: tuple[Verdict, ...] = get_args(Verdict)
    verdicts: list[Verdict | None] = []
    reasons: list[str | None] = []
    for answer in answers:
        fields, reason = reply_fields(answer)
        said = str(fields.get("verdict")).strip().lower()
        verdict = next((word for word in words if word == said), None)
        verdicts.append(verdict)
        reasons.append(None if verdict else reason or "unreadable")
    return Annotations(tuple(verdicts), tuple(reasons), Usage.of(answers))


def _has_verdict(place: int, reply: Reply) -> bool:
    return _annotations([reply]).reasons == (None,)
