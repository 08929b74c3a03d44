"""An LLM's rating as a score: 1 − rating, from 0 to 1 = relevant, that it says in JSON.

A_LLM of Chakraborty et al. 2025, "Principled Context Engineering for RAG" (arXiv 2511.17908,
section 3.3). What is not rated (no reply, a refusal, an answer that cannot be read) is NaN,
unscorable; never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.llm.ask import (
    LLM,
    Asked,
    Prompt,
    Reply,
    Request,
    Unanswered,
    aask,
    ask,
    check_cache,
    check_count,
    check_llm,
)
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import check_fields, short_hash
from conformal_retrievers.llm.reply import object_schema, reply_fields
from conformal_retrievers.scoring.ratings import (
    Rated,
    Ratings,
    RatingScorer,
    ratings_of,
    texts_to_rate,
)

_RATING = {"reason": {"type": "string"}, "rating": {"type": "number"}}


@dataclass(frozen=True)
class LLMScorer(RatingScorer):
    """Scores by 1 − the rating that an LLM gives.

    `prompt` has the fields $query and $snippet; with `snippets_per_call` above 1, several snippets
    are rated in one call, the prompt has $query and $snippets, a list of {"id", "text"}, and a
    score may depend on the snippets beside it (`relative_to_query`). At most `concurrency` calls
    run at a time, of however many queries that are scored at once (see `ask`); `cache` keeps the
    replies that rate all they were asked about, so that the others are asked again. `max_tokens`
    bounds a reply; one that is cut off is no rating. `on_ratings` is called with the `Ratings` of
    each query, for whoever counts them.

    A blank snippet is not sent, and equal texts of a query are sent once. Raises ValueError for a
    prompt with other fields, and for numbers that are not whole or below 1; TypeError for a `cache`
    that is no Cache, such as its path.
    """

    llm: LLM
    prompt: Prompt | None = None
    snippets_per_call: int = field(default=1, kw_only=True)
    concurrency: int = field(default=8, kw_only=True)
    max_tokens: int | None = field(default=None, kw_only=True)
    cache: Cache | None = field(default=None, kw_only=True)
    on_ratings: Callable[[Ratings], None] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_llm(self.llm)
        check_cache(self.cache)
        for name in ("snippets_per_call", "concurrency", "max_tokens"):
            if (given := getattr(self, name)) is not None or name != "max_tokens":
                object.__setattr__(self, name, check_count(given, name))
        if self.prompt is None:
            prompt = Prompt.load("ratings" if self.relative_to_query else "rating")
            object.__setattr__(self, "prompt", prompt)
        check_fields(self._prompt, "query", "snippets" if self.relative_to_query else "snippet")

    @property
    def name(self) -> str:
        """Model, prompt and form of the reply by their hashes, and what else changes a rating."""
        parts = [self.llm.name, f"prompt={self._prompt.hash}", f"schema={short_hash(self._schema)}"]
        if self.relative_to_query:
            parts.append(f"snippets_per_call={self.snippets_per_call}")
        if self.max_tokens is not None:
            parts.append(f"max_tokens={self.max_tokens}")
        return f"rating({', '.join(parts)})"

    @property
    def relative_to_query(self) -> bool:
        """Whether a score may depend on the query's other snippets: rated in one call, it may."""
        return self.snippets_per_call > 1

    def rate(self, query: str, snippets: Sequence[Snippet | str]) -> Ratings:
        """Return the rating of each snippet, with the reasons where there is none."""
        snippets = as_snippets(snippets)
        groups = self._groups(snippets)
        return self._ratings(snippets, groups, self._put(ask, query, groups))

    async def arate(self, query: str, snippets: Sequence[Snippet | str]) -> Ratings:
        """Return what `rate` returns, without blocking the event loop."""
        snippets = as_snippets(snippets)
        groups = self._groups(snippets)
        return self._ratings(snippets, groups, await self._put(aask, query, groups))

    @property
    def _prompt(self) -> Prompt:
        assert self.prompt is not None
        return self.prompt

    @property
    def _schema(self) -> dict[str, Any]:
        if not self.relative_to_query:
            return object_schema(_RATING)
        one = object_schema({"id": {"type": "integer"}, **_RATING})
        return object_schema({"ratings": {"type": "array", "items": one}})

    def _groups(self, snippets: Sequence[Snippet]) -> list[list[str]]:
        texts, n = texts_to_rate(snippets), self.snippets_per_call
        return [texts[start : start + n] for start in range(0, len(texts), n)]

    def _put(self, ask: Callable[..., Asked], query: str, groups: list[list[str]]) -> Asked:
        """Ask of each group of texts, by `ask` or `aask`."""
        return ask(
            self.llm,
            [self._request(query, group) for group in groups],
            is_answer=self._rates_all(groups),
            concurrency=self.concurrency,
            cache=self.cache,
        )

    def _request(self, query: str, group: list[str]) -> Request:
        values: dict[str, object] = {"query": query}
        if self.relative_to_query:
            values["snippets"] = [{"id": i, "text": text} for i, text in enumerate(group, start=1)]
        else:
            values["snippet"] = group[0]
        return self._prompt.request(values, schema=self._schema, max_tokens=self.max_tokens)

    def _ratings(
        self,
        snippets: Sequence[Snippet],
        groups: list[list[str]],
        answers: Sequence[Reply | Unanswered],
    ) -> Ratings:
        rated: dict[str, Rated] = {}
        for group, answer in zip(groups, answers, strict=True):
            rated.update(zip(group, self._rated(group, answer), strict=True))
        return ratings_of(snippets, rated, answers, self.on_ratings)

    def _rated(self, group: list[str], answer: Reply | Unanswered) -> list[Rated]:
        return _ratings_of(answer, len(group)) if self.relative_to_query else [_rating_of(answer)]

    def _rates_all(self, groups: list[list[str]]) -> Callable[[int, Reply], bool]:
        def rates_all(place: int, reply: Reply) -> bool:
            return all(reason is None for _, reason in self._rated(groups[place], reply))

        return rates_all


def _rating_of(answer: Reply | Unanswered) -> Rated:
    fields, reason = reply_fields(answer)
    return _rating(fields) if reason is None else (math.nan, reason)


def _ratings_of(answer: Reply | Unanswered, n: int) -> list[Rated]:
    """Return the ratings of the snippets 1 to n; none where the reply speaks of any other."""
    fields, reason = reply_fields(answer)
    entries = fields.get("ratings")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return [(math.nan, reason or "unreadable")] * n
    by_id: dict[str, list[Rated]] = {str(i): [] for i in range(1, n + 1)}
    for entry in entries:
        if str(entry.get("id")) not in by_id:  # counted from 0, perhaps: then all are another's
            return [(math.nan, "unreadable")] * n
        by_id[str(entry["id"])].append(_rating(entry))
    return [
        found[0] if len(found) == 1 else (math.nan, "rated twice" if found else "not rated")
        for found in by_id.values()
    ]


def _rating(fields: Mapping[str, Any]) -> Rated:
    rating = fields.get("rating")
    if isinstance(rating, bool) or not isinstance(rating, (int, float)):
        return math.nan, "unreadable"
    return (float(rating), None) if 0 <= rating <= 1 else (math.nan, "out of range")
