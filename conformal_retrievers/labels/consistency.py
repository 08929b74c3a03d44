"""Whether answers are consistent with their context, judged by an LLM.

It is the answer consistency γ_ac that a factuality classifier learns to predict from attention
(Geissler et al. 2026, arXiv 2605.05244, section 3.3). A judge errs, and what is promised of
inconsistent answers is promised of those that it calls so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from conformal_retrievers.llm.ask import LLM
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt, Request
from conformal_retrievers.llm.reply import Usage
from conformal_retrievers.llm.verdicts import VERDICT, Verdicts, aask_verdicts, ask_verdicts


@dataclass(frozen=True)
class Response:
    """An answer to a query, and the texts of the snippets that it was given from.

    Raises TypeError, naming the field, for what is no text.
    """

    query: str
    snippets: tuple[str, ...]
    answer: str

    def __post_init__(self) -> None:
        if isinstance(self.snippets, str):
            raise TypeError(f"snippets is the str {self.snippets!r:.60}; give a tuple of texts")
        object.__setattr__(self, "snippets", tuple(self.snippets))
        parts: dict[str, object] = {"query": self.query, "answer": self.answer}
        parts |= {f"snippets[{i}]": snippet for i, snippet in enumerate(self.snippets)}
        for name, part in parts.items():
            if not isinstance(part, str):
                raise TypeError(f"{name} is {part!r:.60}; give its text as a str")


@dataclass(frozen=True)
class ConsistencyLabels:
    """Whether each answer is consistent, in their order; None where there is no verdict.

    `reasons` says why not, by the answer's place. `labels` says where the labels come from, `usage`
    what the LLM took.
    """

    consistent: tuple[bool | None, ...]
    reasons: Mapping[int, str]
    labels: Mapping[str, JsonValue]
    usage: Usage = field(default_factory=Usage)


def label_consistency(
    responses: Iterable[Response],
    llm: LLM,
    *,
    prompt: Prompt | None = None,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
) -> ConsistencyLabels:
    """Ask an LLM of each answer whether its context says all that it claims.

    `prompt` has the fields $query, $context and $answer; it is prompts/consistency.txt by default.
    A reply that is cut off, refused or not to be read is no verdict, and never a no. At most
    `concurrency` requests are under way; a `cache` asks only for what it does not know. Raises
    ValueError for a prompt with other fields, and what the model raises where asking again could
    not help.
    """
    prompt = prompt or Prompt.load("consistency")
    requests = _requests(responses, prompt)
    verdicts = ask_verdicts(llm, requests, concurrency=concurrency, cache=cache, progress=progress)
    return _labelled(verdicts, llm, prompt)


async def alabel_consistency(
    responses: Iterable[Response],
    llm: LLM,
    *,
    prompt: Prompt | None = None,
    concurrency: int = 8,
    cache: Cache | None = None,
    progress: bool = False,
) -> ConsistencyLabels:
    """Return what `label_consistency` returns, without blocking the event loop."""
    prompt = prompt or Prompt.load("consistency")
    requests = _requests(responses, prompt)
    verdicts = await aask_verdicts(
        llm, requests, concurrency=concurrency, cache=cache, progress=progress
    )
    return _labelled(verdicts, llm, prompt)


def _requests(responses: Iterable[Response], prompt: Prompt) -> list[Request]:
    return [
        prompt.request(
            {"query": one.query, "context": list(one.snippets), "answer": one.answer},
            schema=VERDICT,
        )
        for one in responses
    ]


def _labelled(verdicts: Verdicts, llm: LLM, prompt: Prompt) -> ConsistencyLabels:
    labels: dict[str, JsonValue] = {
        "source": "LLM",
        "llm": llm.name,
        "prompt": prompt.hash,
        "answers": len(verdicts.values),
        "answers_without_verdict": len(verdicts.reasons),
    }
    consistent = tuple(None if isinstance(said, str) else said for said in verdicts.values)
    return ConsistencyLabels(consistent, verdicts.reasons, labels, verdicts.usage)
