"""An LLM's judgement as a score: 1 − its rating, or 1 − the probability that it answers YES.

A rating is a number from 0 to 1 = relevant, in a JSON reply: A_LLM of Chakraborty et al. 2025,
"Principled Context Engineering for RAG" (arXiv 2511.17908, section 3.3). The probability of YES is
P(YES) / (P(YES) + P(NO)) of the first token of a reply. It is continuous, so it has far fewer ties.
A snippet without a readable rating is unscorable (NaN), never irrelevant.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.llm.ask import LLM, Asked, aask, ask, check_cache, check_count, check_llm
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt, Request, check_fields, short_hash
from conformal_retrievers.llm.reply import (
    NO_ANSWER,
    Reply,
    Unanswered,
    Usage,
    object_schema,
    reply_fields,
)

By = Literal["rating", "probability-of-yes"]
Rated = tuple[float, str | None]  # a rating, or NaN and the reason

_FIELDS = {"reason": {"type": "string"}, "rating": {"type": "number"}}
_ONE = object_schema({"id": {"type": "integer"}, **_FIELDS})
_RATING = object_schema(_FIELDS)
_RATINGS = object_schema({"ratings": {"type": "array", "items": _ONE}})


@dataclass(frozen=True, eq=False)
class Ratings:
    """The ratings (n,) of a query's snippets, from 0 to 1, or NaN with a reason.

    A reason is "blank", "unanswered", "refused", "cut off", "unreadable", "out of range", "not
    rated", "rated twice", "neither yes nor no" or "no log-probabilities".

    >>> Ratings(np.array([0.75, np.nan]), (None, "blank"), Usage()).scores
    array([0.25,  nan])
    """

    ratings: NDArray[np.float64]
    reasons: tuple[str | None, ...]  # why a snippet has no rating; None if it has one
    usage: Usage  # requests and tokens

    @property
    def scores(self) -> NDArray[np.float64]:
        """1 − rating, (n,)."""
        return 1 - self.ratings

    @property
    def unscorable(self) -> Mapping[str, int]:
        """The number of snippets without a rating, by reason."""
        return Counter(reason for reason in self.reasons if reason is not None)


@dataclass(frozen=True)
class LLMScorer:
    """Scores by 1 − an LLM's rating, or by 1 − the probability that it answers YES.

    A blank snippet is not sent, and equal texts of a query are sent once.

    Parameters
    ----------
    llm
        The model: `openai_llm(…)`, or `as_llm(…)` of a framework package.
    prompt
        Has the fields $query and $snippet, or $query and $snippets if several are rated in a call.
        The default is rating.txt, ratings.txt or yes_no.txt of this library.
    by
        "rating" reads a number from a JSON reply. "probability-of-yes" reads the first token's
        log-probabilities; the server has to return them, and the model has to answer at once.
    snippets_per_call
        The number of snippets that one call rates. Above 1, a score may depend on the snippets
        beside it. Only for "rating".
    max_tokens
        The bound on the length of a reply. A reply that is cut off has no rating. Only for
        "rating".
    top_logprobs
        The number of alternatives of the first token. If only YES or only NO is among them, the
        other one's probability is taken as the largest that it can have: that of the least likely
        alternative, or what all of them leave over. Only for "probability-of-yes".
    concurrency
        The number of calls at a time, over all queries that are scored at once.
    cache
        Keeps readable replies. The others are asked for again.

    Raises
    ------
    TypeError
        If `llm` is not an LLM, or `cache` not a Cache.
    ValueError
        If the prompt has other fields, a number is not a whole one of at least 1, or none of a
        query's replies has the log-probabilities that "probability-of-yes" needs.

    Examples
    --------
    >>> from conformal_retrievers.llm import LLM, Reply
    >>> llm = LLM(lambda request: Reply('{"reason": "…", "rating": 0.75}'), "toy")
    >>> LLMScorer(llm).score("Does bread rise?", ["Yeast makes it rise.", " "])
    array([0.25,  nan])
    >>> sure = LLM(lambda request: Reply("YES", first_token={"YES": 0.0}), "sure")
    >>> LLMScorer(sure, by="probability-of-yes").score("Does bread rise?", ["It rises."])
    array([0.])
    """

    llm: LLM
    prompt: Prompt | None = None
    by: By = field(default="rating", kw_only=True)
    snippets_per_call: int = field(default=1, kw_only=True)
    max_tokens: int | None = field(default=None, kw_only=True)
    top_logprobs: int = field(default=20, kw_only=True)
    concurrency: int = field(default=8, kw_only=True)
    cache: Cache | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_llm(self.llm)
        check_cache(self.cache)
        if self.by not in get_args(By):
            raise ValueError(f"by is {self.by!r}; give 'rating' or 'probability-of-yes'")
        for name in ("snippets_per_call", "max_tokens", "top_logprobs", "concurrency"):
            if (count := getattr(self, name)) is not None or name != "max_tokens":
                object.__setattr__(self, name, check_count(count, name))
        if self._by_yes and (self.relative_to_query or self.max_tokens is not None):
            raise ValueError(
                "by is 'probability-of-yes', which reads one token for each snippet; leave out "
                "snippets_per_call and max_tokens"
            )
        if self.prompt is None:
            several = "ratings" if self.relative_to_query else "rating"
            prompt = Prompt.load("yes_no" if self._by_yes else several)
            object.__setattr__(self, "prompt", prompt)
        check_fields(self._prompt, "query", "snippets" if self.relative_to_query else "snippet")

    @property
    def name(self) -> str:
        """Model, prompt and form of the reply by their hashes, and what else changes a rating."""
        parts = [self.llm.name, f"prompt={self._prompt.hash}"]
        if self._by_yes:
            return f"p_yes({', '.join(parts)}, top={self.top_logprobs})"
        parts.append(f"schema={short_hash(self._schema)}")
        if self.relative_to_query:
            parts.append(f"snippets_per_call={self.snippets_per_call}")
        if self.max_tokens is not None:
            parts.append(f"max_tokens={self.max_tokens}")
        return f"rating({', '.join(parts)})"

    @property
    def relative_to_query(self) -> bool:
        """Whether a score may depend on the query's other snippets, rated in the same call."""
        return self.snippets_per_call > 1

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return 1 − rating of each snippet, (n,)."""
        return self.rate(query, snippets).scores

    async def ascore(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Asynchronous twin of `score`."""
        return (await self.arate(query, snippets)).scores

    def score_with_reasons(
        self, query: str, snippets: Sequence[Snippet | str]
    ) -> tuple[NDArray[np.float64], Sequence[str | None]]:
        """Return the scores (n,), and `Ratings.reasons`."""
        ratings = self.rate(query, snippets)
        return ratings.scores, ratings.reasons

    def rate(self, query: str, snippets: Sequence[Snippet | str]) -> Ratings:
        """Return the rating of each snippet, and the reason if it has none."""
        snippets = as_snippets(snippets)
        groups = self._groups(snippets)
        return self._ratings(snippets, groups, self._put(ask, query, groups))

    async def arate(self, query: str, snippets: Sequence[Snippet | str]) -> Ratings:
        """Asynchronous twin of `rate`."""
        snippets = as_snippets(snippets)
        groups = self._groups(snippets)
        return self._ratings(snippets, groups, await self._put(aask, query, groups))

    @property
    def _by_yes(self) -> bool:
        return self.by == "probability-of-yes"

    @property
    def _prompt(self) -> Prompt:
        assert self.prompt is not None
        return self.prompt

    @property
    def _schema(self) -> dict[str, Any]:
        return _RATINGS if self.relative_to_query else _RATING

    def _groups(self, snippets: Sequence[Snippet]) -> list[list[str]]:
        """Return the texts to rate, those of one call together."""
        texts = list(dict.fromkeys(s.text for s in snippets if s.text.strip()))
        n = self.snippets_per_call
        return [texts[start : start + n] for start in range(0, len(texts), n)]

    def _put(self, ask: Callable[..., Asked], query: str, groups: list[list[str]]) -> Asked:
        """Ask about each group of texts, by `ask` or `aask`."""

        def is_answer(place: int, reply: Reply) -> bool:
            return all(reason is None for _, reason in self._read(reply, len(groups[place])))

        options = {"concurrency": self.concurrency, "cache": self.cache}
        requests = [self._request(query, group) for group in groups]
        return ask(self.llm, requests, is_answer=is_answer, **options)

    def _request(self, query: str, group: list[str]) -> Request:
        values: dict[str, object] = {"query": query}
        if self.relative_to_query:
            values["snippets"] = [{"id": i, "text": text} for i, text in enumerate(group, start=1)]
        else:
            values["snippet"] = group[0]
        if self._by_yes:
            return self._prompt.request(values, top_logprobs=self.top_logprobs, max_tokens=1)
        return self._prompt.request(values, schema=self._schema, max_tokens=self.max_tokens)

    def _ratings(
        self,
        snippets: Sequence[Snippet],
        groups: list[list[str]],
        answers: Sequence[Reply | Unanswered],
    ) -> Ratings:
        replies = [a for a in answers if isinstance(a, Reply) and a.finish != "refusal"]
        if self._by_yes and replies and not any(reply.first_token for reply in replies):
            raise ValueError(
                f"{self.llm.name!r} replies without log-probabilities; let its server return them "
                "(for a framework's model: options=openai_options), or use by='rating'"
            )
        rated: dict[str, Rated] = {}
        for group, answer in zip(groups, answers, strict=True):
            rated.update(zip(group, self._read(answer, len(group)), strict=True))
        each = [rated.get(snippet.text, (math.nan, "blank")) for snippet in snippets]
        ratings = np.array([rating for rating, _ in each], dtype=np.float64)
        return Ratings(ratings, tuple(reason for _, reason in each), Usage.of(answers))

    def _read(self, answer: Reply | Unanswered, n: int) -> list[Rated]:
        """Return the ratings of the n snippets of a call."""
        if self._by_yes:
            return [_probability_of_yes(answer)]
        fields, reason = reply_fields(answer)
        if reason is not None:
            return [(math.nan, reason)] * n
        return _ratings_by_id(fields, n) if self.relative_to_query else [_rating(fields)]


def _rating(fields: Mapping[str, Any]) -> Rated:
    rating = fields.get("rating")
    if isinstance(rating, bool) or not isinstance(rating, (int, float)):
        return math.nan, "unreadable"
    return (float(rating), None) if 0 <= rating <= 1 else (math.nan, "out of range")


def _ratings_by_id(fields: Mapping[str, Any], n: int) -> list[Rated]:
    """Return the ratings of the snippets 1 to n; none if the reply has any other id."""
    entries = fields.get("ratings")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return [(math.nan, "unreadable")] * n
    by_id: dict[str, list[Rated]] = {str(i): [] for i in range(1, n + 1)}
    for entry in entries:
        if str(entry.get("id")) not in by_id:  # perhaps counted from 0: every id is in doubt
            return [(math.nan, "unreadable")] * n
        by_id[str(entry["id"])].append(_rating(entry))
    return [
        found[0] if len(found) == 1 else (math.nan, "rated twice" if found else "not rated")
        for found in by_id.values()
    ]


def _probability_of_yes(answer: Reply | Unanswered) -> Rated:
    if isinstance(answer, Unanswered):
        return math.nan, "unanswered"
    if answer.finish in ("refusal", "unknown"):  # "length" is normal: the request asks one token
        return math.nan, NO_ANSWER[answer.finish]
    if not answer.first_token:
        return math.nan, "no log-probabilities"
    # Some servers show a token's space as a letter of its vocabulary.
    words = [token.strip(" \t\r\n▁Ġ").upper() for token in answer.first_token]
    probabilities = [math.exp(min(p, 0.0)) for p in answer.first_token.values()]
    if words[int(np.argmax(probabilities))] not in ("YES", "NO"):
        return math.nan, "neither yes nor no"
    sides = {"YES": 0.0, "NO": 0.0}
    for word, probability in zip(words, probabilities, strict=True):
        if word in sides:
            sides[word] += probability
    not_listed = max(0.0, min(*probabilities, 1 - math.fsum(probabilities)))
    yes, no = sides["YES"] or not_listed, sides["NO"] or not_listed
    if not yes + no > 0:  # 0 or NaN, with which some servers mean that they have none
        return math.nan, "no log-probabilities"
    return yes / (yes + no), None
