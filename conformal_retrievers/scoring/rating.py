"""An LLM's judgement as a score: 1 − rating, the rating from 0 to 1 = relevant.

A_LLM of Chakraborty et al. 2025, "Principled Context Engineering for RAG" (arXiv 2511.17908,
section 3.3). `LLMScorer` asks for the rating itself, in JSON. `YesScorer` asks a question whose
answer is YES or NO and takes P(YES) / (P(YES) + P(NO)) from the log-probabilities of the answer's
first token: continuous, so with few ties, where the server gives them.

What is not rated (no reply, a refusal, an answer that cannot be read) is NaN, unscorable; never 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    check_cache,
    check_count,
    check_llm,
)
from conformal_retrievers.prompt import short_hash
from conformal_retrievers.reply import object_schema, parse_json

Answer = Reply | Unanswered
Rated = tuple[float, str | None]  # a rating, or NaN and the reason why there is none


@dataclass(frozen=True, eq=False)
class Ratings:
    """The ratings (n,) of a query's snippets, from 0 to 1, and NaN where there is none.

    `reasons` say of each why it has none, and None of the others: "blank", "unanswered", "refused",
    "cut off", "unreadable", "out of range", "not rated", "rated twice", "neither yes nor no", "no
    log-probabilities". `usage` is what the ratings took.
    """

    ratings: NDArray[np.float64]
    reasons: tuple[str | None, ...]
    usage: Usage

    @property
    def scores(self) -> NDArray[np.float64]:
        """1 − rating (n,)."""
        return 1 - self.ratings

    @property
    def unscorable(self) -> Mapping[str, int]:
        """How many snippets have no rating, by reason."""
        return Counter(reason for reason in self.reasons if reason is not None)


# --- a rating in words ----------------------------------------------------------------------------

_RATING = {"reason": {"type": "string"}, "rating": {"type": "number"}}


@dataclass(frozen=True)
class LLMScorer:
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
        _check_prompt(self._prompt, "snippets" if self.relative_to_query else "snippet")

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

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return 1 − rating of each snippet, (n,)."""
        return self.rate(query, snippets).scores

    def score_with_reasons(
        self, query: str, snippets: Sequence[Snippet | str]
    ) -> tuple[NDArray[np.float64], Sequence[str | None]]:
        """Return what `score` returns, and why a snippet has none, as `Ratings.reasons`."""
        ratings = self.rate(query, snippets)
        return ratings.scores, ratings.reasons

    async def ascore(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return what `score` returns, without blocking the event loop."""
        return (await self.arate(query, snippets)).scores

    def rate(self, query: str, snippets: Sequence[Snippet | str]) -> Ratings:
        """Return the rating of each snippet, with the reasons where there is none."""
        snippets = as_snippets(snippets)
        groups = self._groups(snippets)
        requests = [self._request(query, group) for group in groups]
        answers = ask(
            self.llm,
            requests,
            is_answer=self._rates_all(groups),
            concurrency=self.concurrency,
            cache=self.cache,
        )
        return self._ratings(snippets, groups, answers)

    async def arate(self, query: str, snippets: Sequence[Snippet | str]) -> Ratings:
        """Return what `rate` returns, without blocking the event loop."""
        snippets = as_snippets(snippets)
        groups = self._groups(snippets)
        requests = [self._request(query, group) for group in groups]
        answers = await aask(
            self.llm,
            requests,
            is_answer=self._rates_all(groups),
            concurrency=self.concurrency,
            cache=self.cache,
        )
        return self._ratings(snippets, groups, answers)

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
        texts, n = _texts(snippets), self.snippets_per_call
        return [texts[start : start + n] for start in range(0, len(texts), n)]

    def _request(self, query: str, group: list[str]) -> Request:
        values: dict[str, object] = {"query": query}
        if self.relative_to_query:
            values["snippets"] = [{"id": i, "text": text} for i, text in enumerate(group, start=1)]
        else:
            values["snippet"] = group[0]
        return self._prompt.request(values, schema=self._schema, max_tokens=self.max_tokens)

    def _ratings(
        self, snippets: Sequence[Snippet], groups: list[list[str]], answers: list[Answer]
    ) -> Ratings:
        rated: dict[str, Rated] = {}
        for group, answer in zip(groups, answers, strict=True):
            rated.update(zip(group, self._rated(group, answer), strict=True))
        return _report(snippets, rated, answers, self.on_ratings)

    def _rated(self, group: list[str], answer: Answer) -> list[Rated]:
        return _ratings_of(answer, len(group)) if self.relative_to_query else [_rating_of(answer)]

    def _rates_all(self, groups: list[list[str]]) -> Callable[[int, Reply], bool]:
        def rates_all(place: int, reply: Reply) -> bool:
            return all(reason is None for _, reason in self._rated(groups[place], reply))

        return rates_all


def _rating_of(answer: Answer) -> Rated:
    reply, reason = _reply_of(answer)
    return _rating(parse_json(reply.text)) if reason is None else (math.nan, reason)


def _ratings_of(answer: Answer, n: int) -> list[Rated]:
    """Return the ratings of the snippets 1 to n; none where the reply speaks of any other."""
    reply, reason = _reply_of(answer)
    entries = None if reason is not None else (parse_json(reply.text) or {}).get("ratings")
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


def _rating(fields: Mapping[str, Any] | None) -> Rated:
    rating = (fields or {}).get("rating")
    if isinstance(rating, bool) or not isinstance(rating, (int, float)):
        return math.nan, "unreadable"
    return (float(rating), None) if 0 <= rating <= 1 else (math.nan, "out of range")


# --- the probability of a YES ---------------------------------------------------------------------


@dataclass(frozen=True)
class YesScorer:
    """Scores by 1 − P(YES) / (P(YES) + P(NO)), the probabilities of an answer's first token.

    `prompt` has the fields $query and $snippet and asks for YES or NO; both count in any case, with
    or without a space, and the likeliest token must be one of them, or there is no rating. Where
    only one is among the `top_logprobs` alternatives, the other has at most the probability of the
    least likely of them, and at most what they leave over: that is taken for it. A model that
    thinks aloud before it answers cannot be used so. The other arguments are those of `LLMScorer`.

    An answer that lacks log-probabilities beside others that have them is no rating. Raises
    ValueError for a prompt with other fields, and where none of a query's answers comes with
    log-probabilities, be it a single one: then the server is taken to give none.
    """

    llm: LLM
    prompt: Prompt = field(default_factory=lambda: Prompt.load("yes_no"))
    top_logprobs: int = field(default=20, kw_only=True)
    concurrency: int = field(default=8, kw_only=True)
    cache: Cache | None = field(default=None, kw_only=True)
    on_ratings: Callable[[Ratings], None] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_llm(self.llm)
        check_cache(self.cache)
        for name in ("top_logprobs", "concurrency"):
            object.__setattr__(self, name, check_count(getattr(self, name), name))
        _check_prompt(self.prompt, "snippet")

    @property
    def name(self) -> str:
        """Model, prompt by its hash, and number of alternatives."""
        return f"p_yes({self.llm.name}, prompt={self.prompt.hash}, top={self.top_logprobs})"

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return 1 − P(YES) / (P(YES) + P(NO)) of each snippet, (n,)."""
        return self.rate(query, snippets).scores

    def score_with_reasons(
        self, query: str, snippets: Sequence[Snippet | str]
    ) -> tuple[NDArray[np.float64], Sequence[str | None]]:
        """Return what `score` returns, and why a snippet has none, as `Ratings.reasons`."""
        ratings = self.rate(query, snippets)
        return ratings.scores, ratings.reasons

    async def ascore(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return what `score` returns, without blocking the event loop."""
        return (await self.arate(query, snippets)).scores

    def rate(self, query: str, snippets: Sequence[Snippet | str]) -> Ratings:
        """Return P(YES) / (P(YES) + P(NO)) of each snippet, with the reasons where it has none."""
        snippets = as_snippets(snippets)
        requests = self._requests(query, snippets)
        answers = ask(
            self.llm,
            requests,
            is_answer=_has_p_yes,
            concurrency=self.concurrency,
            cache=self.cache,
        )
        return self._ratings(snippets, answers)

    async def arate(self, query: str, snippets: Sequence[Snippet | str]) -> Ratings:
        """Return what `rate` returns, without blocking the event loop."""
        snippets = as_snippets(snippets)
        requests = self._requests(query, snippets)
        answers = await aask(
            self.llm,
            requests,
            is_answer=_has_p_yes,
            concurrency=self.concurrency,
            cache=self.cache,
        )
        return self._ratings(snippets, answers)

    def _requests(self, query: str, snippets: Sequence[Snippet]) -> list[Request]:
        return [
            self.prompt.request(
                {"query": query, "snippet": text}, top_logprobs=self.top_logprobs, max_tokens=1
            )
            for text in _texts(snippets)
        ]

    def _ratings(self, snippets: Sequence[Snippet], answers: list[Answer]) -> Ratings:
        said = [a for a in answers if isinstance(a, Reply) and a.finish != "refusal"]
        if said and not any(reply.first_token for reply in said):
            raise ValueError(
                f"{self.llm.name!r} answers without log-probabilities; have its server give them "
                "(in a framework's model: options=openai_options), or rate with LLMScorer"
            )
        rated = dict(zip(_texts(snippets), map(_p_yes, answers), strict=True))
        return _report(snippets, rated, answers, self.on_ratings)


def _p_yes(answer: Answer) -> Rated:
    reply, reason = _reply_of(answer, cut_off=True)  # one token is all that is asked for
    if reason is not None:
        return math.nan, reason
    if not reply.first_token:
        return math.nan, "no log-probabilities"
    # Some servers show a token's space as a letter of its vocabulary.
    words = [token.strip(" \t\r\n▁Ġ").upper() for token in reply.first_token]
    probabilities = [math.exp(min(p, 0.0)) for p in reply.first_token.values()]
    if words[int(np.argmax(probabilities))] not in ("YES", "NO"):
        return math.nan, "neither yes nor no"
    sides = {"YES": 0.0, "NO": 0.0}
    for word, probability in zip(words, probabilities, strict=True):
        if word in sides:
            sides[word] += probability
    not_listed = max(0.0, min(*probabilities, 1 - math.fsum(probabilities)))
    yes, no = sides["YES"] or not_listed, sides["NO"] or not_listed
    if not yes + no > 0:  # 0, or NaN: a server's way to say that it does not know
        return math.nan, "no log-probabilities"
    return yes / (yes + no), None


def _has_p_yes(place: int, reply: Reply) -> bool:
    return _p_yes(reply)[1] is None


# --- what both share ------------------------------------------------------------------------------


def _check_prompt(prompt: Prompt, snippet: str) -> None:
    if not isinstance(prompt, Prompt):
        raise TypeError(
            f"prompt is {prompt!r:.60}; give Prompt.parse(text) or Prompt(system, user)"
        )
    if prompt.fields != {"query", snippet}:
        raise ValueError(
            f"the prompt has the fields {sorted(prompt.fields)}; write $query and ${snippet} into "
            "its user's part, and no other"
        )


def _texts(snippets: Iterable[Snippet]) -> list[str]:
    """Return the texts to be rated: each once, and no blank one."""
    return list(dict.fromkeys(s.text for s in snippets if s.text.strip()))


def _reply_of(answer: Answer, *, cut_off: bool = False) -> tuple[Reply, str | None]:
    """Return a reply, and the reason why it is no answer if it is none."""
    if isinstance(answer, Unanswered):
        return Reply(""), "unanswered"
    if answer.finish == "refusal":
        return answer, "refused"
    if answer.finish == "unknown":
        return answer, "unreadable"
    return answer, "cut off" if answer.finish == "length" and not cut_off else None


def _report(
    snippets: Sequence[Snippet],
    rated: Mapping[str, Rated],
    answers: list[Answer],
    on_ratings: Callable[[Ratings], None] | None,
) -> Ratings:
    each = [rated.get(snippet.text, (math.nan, "blank")) for snippet in snippets]
    ratings = np.array([rating for rating, _ in each], dtype=np.float64)
    report = Ratings(ratings, tuple(reason for _, reason in each), Usage.of(answers))
    if on_ratings is not None:
        on_ratings(report)
    return report
