"""An LLM's confidence in claims, as their relevance: higher = likelier factual, NaN = not told.

`SelfConfidence` and `Agreement` need no documents. They are the scores of Mohri and Hashimoto 2024
(arXiv 2402.10978, section 5), which Feng et al. 2025 (arXiv 2506.20978) call Conformal-LLM.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.llm.ask import LLM, Prompt, Reply, Request, Unanswered, aask, ask
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import check_fields
from conformal_retrievers.llm.reply import object_schema, reply_fields


@dataclass(frozen=True)
class SelfConfidence:
    """Scores claims by the probability, from 0 to 1, that an LLM gives to each being true.

    All claims of an answer are asked about in one call. `prompt` has the fields $query and $claims,
    a list of {"id", "claim"}; it is prompts/confidence.txt by default. A claim of which the reply
    says nothing, twice something or no number from 0 to 1 cannot be scored. Raises ValueError for a
    prompt with other fields.
    """

    llm: LLM
    prompt: Prompt = field(default_factory=lambda: Prompt.load("confidence"))
    cache: Cache | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_fields(self.prompt, "query", "claims")

    @property
    def name(self) -> str:
        """Model, and prompt by its hash."""
        return f"self_confidence({self.llm.name}, prompt={self.prompt.hash})"

    def relevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet]
    ) -> NDArray[np.float64]:
        """Return the confidence in each claim, (p,)."""
        requests, is_answer = self._requests(query, claims), _tells("confidence", len(claims), 0, 1)
        answers = ask(self.llm, requests, is_answer=is_answer, cache=self.cache)
        return self._read(answers, claims)

    async def arelevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet]
    ) -> NDArray[np.float64]:
        """Return what `relevance` returns, without blocking the event loop."""
        requests, is_answer = self._requests(query, claims), _tells("confidence", len(claims), 0, 1)
        answers = await aask(self.llm, requests, is_answer=is_answer, cache=self.cache)
        return self._read(answers, claims)

    def _requests(self, query: str, claims: Sequence[str]) -> list[Request]:
        values = {"query": query, "claims": _numbered(claims)}
        return [self.prompt.request(values, schema=_schema("confidence"))] if claims else []

    def _read(
        self, answers: list[Reply | Unanswered], claims: Sequence[str]
    ) -> NDArray[np.float64]:
        confidence = [_of_each(answer, "confidence", len(claims), 0, 1) for answer in answers]
        return np.array(confidence[0] if confidence else [], dtype=np.float64)


@dataclass(frozen=True)
class Agreement:
    """Scores claims by how other answers to the query agree: the mean of 1, 0 and −1 over them.

    `alternatives` gives other answers of the generator, drawn anew (at a temperature above 0);
    `drawn` names how, and belongs to the score's name. An LLM tells of each of them which claims it
    supports, contradicts or leaves open, at most `concurrency` calls at a time. `prompt` has the
    fields $query, $text and $claims; it is prompts/agreement.txt by default. The mean is over the
    answers that were told of; a claim of which none was told cannot be scored. Raises ValueError
    for a prompt with other fields. Mohri and Hashimoto's frequency score.
    """

    llm: LLM
    alternatives: Callable[[str], Iterable[str]]
    drawn: str
    prompt: Prompt = field(default_factory=lambda: Prompt.load("agreement"))
    concurrency: int = field(default=8, kw_only=True)
    cache: Cache | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_fields(self.prompt, "query", "text", "claims")

    @property
    def name(self) -> str:
        """Model, prompt by its hash, and how the other answers are drawn."""
        return f"agreement({self.llm.name}, prompt={self.prompt.hash}, drawn={self.drawn})"

    def relevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet]
    ) -> NDArray[np.float64]:
        """Return the mean agreement with each claim, (p,), from −1 to 1."""
        requests = [
            self.prompt.request(
                {"query": query, "text": text, "claims": _numbered(claims)},
                schema=_schema("agreement"),
            )
            for text in self.alternatives(query)
        ]
        answers = ask(
            self.llm,
            requests,
            is_answer=_tells("agreement", len(claims), -1, 1),
            concurrency=self.concurrency,
            cache=self.cache,
        )
        told = np.array([_of_each(a, "agreement", len(claims), -1, 1) for a in answers])
        told = told.reshape(len(answers), len(claims))
        known = ~np.isnan(told)
        return np.where(
            known.any(axis=0),
            np.where(known, told, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1),
            math.nan,
        )


def _numbered(claims: Sequence[str]) -> list[dict[str, object]]:
    return [{"id": i, "claim": claim} for i, claim in enumerate(claims, start=1)]


def _schema(name: str) -> dict[str, Any]:
    one = object_schema({"id": {"type": "integer"}, name: {"type": "number"}})
    return object_schema({"claims": {"type": "array", "items": one}})


def _of_each(answer: Reply | Unanswered, name: str, n: int, low: int, high: int) -> list[float]:
    """Return the numbers of the claims 1 to n; none where the reply speaks of any other."""
    entries = reply_fields(answer)[0].get("claims")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return [math.nan] * n
    by_id: dict[str, list[float]] = {str(i): [] for i in range(1, n + 1)}
    for entry in entries:
        if str(entry.get("id")) not in by_id:  # counted from 0, perhaps: then all are another's
            return [math.nan] * n
        number = entry.get(name)
        readable = isinstance(number, (int, float)) and not isinstance(number, bool)
        told = float(number) if readable and low <= number <= high else math.nan
        by_id[str(entry["id"])].append(told)
    return [told[0] if len(told) == 1 else math.nan for told in by_id.values()]


def _tells(name: str, n: int, low: int, high: int) -> Callable[[int, Reply], bool]:
    """Return whether a reply tells the number of each claim, as `ask` wants to know it."""

    def tells(place: int, reply: Reply) -> bool:
        return not any(map(math.isnan, _of_each(reply, name, n, low, high)))

    return tells
