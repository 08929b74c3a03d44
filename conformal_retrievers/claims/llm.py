"""What an LLM does with claims: it divides answers, annotates claims, and merges kept claims.

A reply that cannot be read has a `reason` instead of a value: "unanswered", "refused", "cut off" or
"unreadable". Feng et al. 2025 (arXiv 2506.20978, section 3.1).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from conformal_retrievers.calibration.checks import check_query, check_type
from conformal_retrievers.data.checks import all_of
from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.llm.ask import LLM, aask, ask, ask_and_read
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt, Request, check_fields
from conformal_retrievers.llm.reply import Reply, Unanswered, Usage, object_schema, reply_fields

Answers = Sequence[Reply | Unanswered]


@dataclass(frozen=True)
class Decomposition:
    """The claims of an answer, in its order; none, and the `reason`, if it was not divided."""

    claims: tuple[str, ...]
    reason: str | None = None
    usage: Usage = field(default_factory=Usage)


def decompose(
    llm: LLM, query: str, answer: str, *, prompt: Prompt | None = None, cache: Cache | None = None
) -> Decomposition:
    """Ask an LLM to divide an answer into claims that are true or false by themselves.

    A blank answer has no claims and is not sent. `prompt` has the fields $query and $answer; it is
    prompts/decompose.txt by default. Replies that can be read are taken from `cache` and added to
    it. Raises ValueError for a prompt without its fields, and as `ask`.
    """
    requests = _decompose_requests(query, answer, prompt)
    return _decomposition(ask(llm, requests, is_answer=_is_divided, cache=cache))


async def adecompose(
    llm: LLM, query: str, answer: str, *, prompt: Prompt | None = None, cache: Cache | None = None
) -> Decomposition:
    """As `decompose`, without blocking the event loop."""
    requests = _decompose_requests(query, answer, prompt)
    return _decomposition(await aask(llm, requests, is_answer=_is_divided, cache=cache))


def _decompose_requests(query: str, answer: str, prompt: Prompt | None) -> list[Request]:
    check_query(query)
    check_type(str, "the text of the answer", answer=answer)
    prompt = prompt or Prompt.load("decompose")
    check_fields(prompt, "query", "answer")
    schema = object_schema({"claims": {"type": "array", "items": {"type": "string"}}})
    request = prompt.request({"query": query, "answer": answer}, schema=schema)
    return [request] if answer.strip() else []


def _decomposition(answers: Answers) -> Decomposition:
    fields, reason = reply_fields(answers[0]) if answers else ({"claims": []}, None)
    claims = fields.get("claims")
    if not isinstance(claims, list) or not all(isinstance(claim, str) for claim in claims):
        return Decomposition((), reason or "unreadable", Usage.of(answers))
    texts = tuple(claim.strip() for claim in claims if claim.strip())
    return Decomposition(texts, None, Usage.of(answers))


def _is_divided(place: int, reply: Reply) -> bool:
    return _decomposition([reply]).reason is None


ClaimVerdict = Literal["supported", "unsupported", "contradicted", "irrelevant"]


@dataclass(frozen=True)
class Annotations:
    """An LLM's verdict on each claim of an answer; None, with a reason, if there is none."""

    verdicts: tuple[ClaimVerdict | None, ...]
    reasons: tuple[str | None, ...]
    usage: Usage

    @property
    def factual(self) -> tuple[bool | None, ...]:
        """Whether each claim is supported; None, and never False, without a verdict."""
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
    """Ask an LLM about each claim whether a reference answer or documents support it.

    `reference` is a right answer, and `documents` are texts or snippets that count as true like it.
    `prompt` has the fields $query, $reference, $documents and $claim; a reply is {"reason",
    "verdict"}, with a `ClaimVerdict`. `concurrency` is the largest number of requests at a time;
    `cache` is as in `decompose`. Raises ValueError for a blank reference, and as `decompose`.
    """
    check_query(query)
    if not (reference or "").strip():
        raise ValueError(f"reference is {reference!r:.20}; give the text of a right answer")
    prompt = prompt or Prompt.load("annotate")
    check_fields(prompt, "query", "reference", "documents", "claim")
    verdict = {"type": "string", "enum": list(get_args(ClaimVerdict))}
    schema = object_schema({"reason": {"type": "string"}, "verdict": verdict})
    texts = [document.text for document in as_snippets(documents, "documents")]
    given = {"query": query, "reference": reference, "documents": texts}
    claims = all_of(str, claims, "claims")
    requests = [prompt.request({**given, "claim": c}, schema=schema) for c in claims]
    told, usage = ask_and_read(llm, requests, _verdict_in, concurrency=concurrency, cache=cache)
    verdicts = tuple(None if isinstance(reply, str) else reply[0] for reply in told)
    return Annotations(verdicts, tuple(r if isinstance(r, str) else None for r in told), usage)


def _verdict_in(place: int, answer: Reply | Unanswered) -> tuple[ClaimVerdict] | str:
    fields, reason = reply_fields(answer)
    word = str(fields.get("verdict")).strip().lower()
    known: tuple[ClaimVerdict, ...] = get_args(ClaimVerdict)
    return (known[known.index(word)],) if word in known else reason or "unreadable"


@dataclass(frozen=True)
class Merged:
    """A text that an LLM wrote from claims, or the claims one after the other and the `reason`."""

    text: str
    claims: tuple[str, ...]
    reason: str | None
    usage: Usage

    @property
    def guaranteed(self) -> bool:
        """Whether the text is the claims themselves, which includes no claims and no text."""
        return self.text == joined(self.claims)


def joined(claims: Iterable[str]) -> str:
    """Return claims as sentences, one after the other."""
    ends = (".", "!", "?", "…", ":", ";")
    return " ".join(claim if claim.endswith(ends) else f"{claim}." for claim in claims)


def merge(llm: LLM, query: str, claims: Iterable[str], *, cache: Cache | None = None) -> Merged:
    """Ask an LLM to write one text from claims; without claims it is empty, and nothing is sent.

    The arguments are those of `annotate`, and the prompt is prompts/merge.txt.
    """
    claims, requests = _merge_requests(query, claims)
    return _merged(claims, ask(llm, requests, is_answer=_is_merged, cache=cache))


async def amerge(
    llm: LLM, query: str, claims: Iterable[str], *, cache: Cache | None = None
) -> Merged:
    """As `merge`, without blocking the event loop."""
    claims, requests = _merge_requests(query, claims)
    return _merged(claims, await aask(llm, requests, is_answer=_is_merged, cache=cache))


def _merge_requests(query: str, claims: Iterable[str]) -> tuple[tuple[str, ...], list[Request]]:
    claims = tuple(all_of(str, claims, "claims"))
    schema = object_schema({"text": {"type": "string"}})
    fields = {"query": query, "claims": list(claims)}
    return claims, [Prompt.load("merge").request(fields, schema=schema)] if claims else []


def _merged(claims: tuple[str, ...], answers: Answers) -> Merged:
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
