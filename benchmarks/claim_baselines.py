"""Two scores of claims that need no documents, to compare `ClaimRelevance` with.

`SelfConfidence` and `Agreement` are the scores of Mohri and Hashimoto 2024 (arXiv 2402.10978,
section 5), which Feng et al. 2025 (arXiv 2506.20978) call Conformal-LLM. Both return a relevance:
higher = more likely factual, NaN = unscorable. They are claim scorers, which `calibrate_claims` and
`ClaimFilter` accept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.llm.ask import LLM, ask
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt, Request
from conformal_retrievers.llm.reply import Reply, Unanswered, object_schema, reply_fields

PROMPTS = Path(__file__).parent / "prompts"


@dataclass(frozen=True)
class SelfConfidence:
    """Scores claims by the probability, from 0 to 1, that an LLM gives to each being true.

    One request asks about all claims of an answer.
    """

    llm: LLM
    cache: Cache | None = None

    @property
    def name(self) -> str:
        return f"self_confidence({self.llm.name}, prompt={_prompt('confidence').hash})"

    def relevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet]
    ) -> NDArray[np.float64]:
        """Return the confidence in each claim, (p,)."""
        if not claims:
            return np.empty(0)
        values = {"query": query, "claims": _numbered(claims)}
        requests = [_prompt("confidence").request(values, schema=_schema("confidence"))]
        return _ask(self.llm, requests, "confidence", len(claims), (0, 1), self.cache)[0]


@dataclass(frozen=True)
class Agreement:
    """Scores claims by how other answers to the query agree: the mean of 1, 0 and −1 over them.

    `alternatives` returns other answers of the generator, sampled at a temperature above 0. `drawn`
    describes how, and is a part of the name. For each of them, an LLM says which claims it supports
    (1), contradicts (−1) or leaves open (0). Unreadable replies are left out of the mean.
    """

    llm: LLM
    alternatives: Callable[[str], Iterable[str]]
    drawn: str
    cache: Cache | None = None

    @property
    def name(self) -> str:
        prompt = _prompt("agreement").hash
        return f"agreement({self.llm.name}, prompt={prompt}, drawn={self.drawn})"

    def relevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet]
    ) -> NDArray[np.float64]:
        """Return the mean agreement with each claim, (p,), from −1 to 1."""
        prompt, schema = _prompt("agreement"), _schema("agreement")
        values = {"query": query, "claims": _numbered(claims)}
        requests = [
            prompt.request({**values, "text": text}, schema=schema)
            for text in self.alternatives(query)
        ]
        found = _ask(self.llm, requests, "agreement", len(claims), (-1, 1), self.cache)
        known = ~np.isnan(found)
        total = np.where(known, found, 0).sum(axis=0)
        return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), math.nan)


def _prompt(name: str) -> Prompt:
    return Prompt.parse((PROMPTS / f"{name}.txt").read_text(encoding="utf-8"))


def _numbered(claims: Sequence[str]) -> list[dict[str, object]]:
    return [{"id": i, "claim": claim} for i, claim in enumerate(claims, start=1)]


def _schema(field: str) -> dict[str, object]:
    one = object_schema({"id": {"type": "integer"}, field: {"type": "number"}})
    return object_schema({"claims": {"type": "array", "items": one}})


def _ask(
    llm: LLM,
    requests: Sequence[Request],
    field: str,
    n: int,
    bounds: tuple[int, int],
    cache: Cache | None,
) -> NDArray[np.float64]:
    """Return one row of n numbers for each request, NaN where a reply has none within bounds."""

    def is_answer(place: int, reply: Reply) -> bool:
        return not any(map(math.isnan, _numbers(reply, field, n, bounds)))

    answers = ask(llm, requests, is_answer=is_answer, cache=cache)
    rows = [_numbers(answer, field, n, bounds) for answer in answers]
    return np.array(rows, dtype=np.float64).reshape(len(answers), n)


def _numbers(
    answer: Reply | Unanswered, field: str, n: int, bounds: tuple[int, int]
) -> list[float]:
    """Return the numbers of the claims 1 to n; all NaN if the reply has an entry for any other."""
    entries = reply_fields(answer)[0].get("claims")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return [math.nan] * n
    by_id: dict[str, list[float]] = {str(i): [] for i in range(1, n + 1)}
    for entry in entries:
        if str(entry.get("id")) not in by_id:  # perhaps counted from 0: every id is in doubt
            return [math.nan] * n
        number = entry.get(field)
        readable = isinstance(number, (int, float)) and not isinstance(number, bool)
        within = readable and bounds[0] <= number <= bounds[1]
        by_id[str(entry["id"])].append(float(number) if within else math.nan)
    return [found[0] if len(found) == 1 else math.nan for found in by_id.values()]
