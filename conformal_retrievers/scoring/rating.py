"""An LLM's judgement as a score: 1 − its rating, or 1 − the probability that it answers YES.

A rating is a number from 0 to 1 = relevant, in a JSON reply: A_LLM of Chakraborty et al. 2025
(arXiv 2511.17908, section 3.3). The probability of YES is P(YES) / (P(YES) + P(NO)) of the first
token of a reply. A snippet without a readable rating is unscorable (NaN), never irrelevant.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from conformal_retrievers.data.checks import check_count, check_type
from conformal_retrievers.data.files import short_hash
from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.llm.ask import LLM, aask, ask, check_llm
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt, Request, check_fields
from conformal_retrievers.llm.reply import Reply, Unanswered, Usage, object_schema, reply_fields
from conformal_retrievers.scoring.scorer import Scores
from conformal_retrievers.scoring.wording import say

By = Literal["rating", "probability-of-yes"]
Answer = Reply | Unanswered
Rated = tuple[float, str | None]  # a rating, or NaN and the reason


RATING = object_schema({"reason": {"type": "string"}, "rating": {"type": "number"}})


@dataclass(frozen=True, eq=False)
class Ratings:
    """The ratings (n,) of a query's snippets, from 0 to 1, or NaN with a reason.

    A reason is "blank", "unanswered", "refused", "cut off", "unreadable", "out of range", "neither
    yes nor no" or "no log-probabilities"; None with a rating.

    >>> Ratings(np.array([0.8, np.nan]), (None, "blank"), Usage()).unscorable
    Counter({'blank': 1})
    """

    ratings: Scores
    reasons: tuple[str | None, ...]
    usage: Usage  # requests and tokens

    @property
    def unscorable(self) -> Mapping[str, int]:
        """The number of snippets without a rating, by reason."""
        return Counter(reason for reason in self.reasons if reason is not None)


@dataclass(frozen=True)
class Rater:
    """What asks an LLM for ratings: the fields and checks of `LLMScorer` and `LLMVerdict`."""

    llm: LLM
    prompt: Prompt | None = None
    by: By = field(default="rating", kw_only=True)
    top_logprobs: int = field(default=20, kw_only=True)
    concurrency: int = field(default=8, kw_only=True)
    cache: Cache | None = field(default=None, kw_only=True)
    prompts: ClassVar[Mapping[By, str]]
    asks_about: ClassVar[str]  # the other field of the prompt

    def __post_init__(self) -> None:
        check_llm(self.llm)
        check_count(self.concurrency, "concurrency")
        check_count(self.top_logprobs, "top_logprobs")
        check_type(Cache | None, "Cache(path), or None", cache=self.cache)
        if self.by not in get_args(By):
            raise ValueError(f"by is {self.by!r}; give 'rating' or 'probability-of-yes'")
        check_fields(self._prompt, "query", self.asks_about)

    @property
    def _by_yes(self) -> bool:
        return self.by == "probability-of-yes"

    @cached_property
    def _prompt(self) -> Prompt:
        return self.prompt or Prompt.load(self.prompts[self.by])

    @property
    def _asked(self) -> str:
        """Model, prompt and form of the reply by their hashes, and what else changes a rating."""
        asked = f"{self.llm.name}, prompt={self._prompt.hash}"
        return asked if self._by_yes else f"{asked}, schema={short_hash(RATING)}"

    @property
    def _options(self) -> dict[str, Any]:
        def is_answer(place: int, reply: Reply) -> bool:
            return self._read(reply)[1] is None

        return {"is_answer": is_answer, "concurrency": self.concurrency, "cache": self.cache}

    def _request(self, query: str, about: object) -> Request:
        values = {"query": query, self.asks_about: about}
        if self._by_yes:
            return self._prompt.request(values, top_logprobs=self.top_logprobs, max_tokens=1)
        return self._prompt.request(values, schema=RATING)

    def _read(self, answer: Answer) -> Rated:
        return probability_of_yes(answer) if self._by_yes else rating_of(answer)

    def _ratings_of(self, answers: Sequence[Answer]) -> list[Rated]:
        if self._by_yes:
            check_first_tokens(self.llm, answers)
        return [*map(self._read, answers)]


@dataclass(frozen=True)
class LLMScorer(Rater):
    """Scores by 1 − an LLM's rating, or by 1 − the probability that it answers YES.

    A blank snippet is not sent, and equal texts of a query are sent once. Raises ValueError if the
    prompt has other fields, or no reply has the log-probabilities that are read.

    >>> from conformal_retrievers.llm import LLM, Reply
    >>> llm = LLM(lambda request: Reply('{"reason": "…", "rating": 0.75}'), "toy")
    >>> LLMScorer(llm).score("Does bread rise?", ["Yeast makes it rise.", " "])
    array([0.25,  nan])

    Parameters
    ----------
    llm
        The model: `openai_llm(…)`, or `as_llm(…)` of a framework package.
    prompt
        Has the fields $query and $snippet.
    by
        "rating" reads a number from a JSON reply. "probability-of-yes" reads the first token's
        log-probabilities; the server has to return them, and the model has to answer at once.
    top_logprobs
        The number of alternatives of the first token. If only YES or only NO is among them, the
        other one's probability is taken as the largest that it can have.
    concurrency, cache
        As for `ask`. Replies that cannot be read are asked for again.
    """

    prompts: ClassVar[Mapping[By, str]] = {"rating": "rating", "probability-of-yes": "yes_no"}
    asks_about: ClassVar[str] = "snippet"

    @property
    def name(self) -> str:
        """Model, prompt and form of the reply by their hashes, and what else changes a rating."""
        if self._by_yes:
            return f"p_yes({self._asked}, top={self.top_logprobs})"
        return f"rating({self._asked})"

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Return 1 − rating of each snippet, (n,)."""
        return self.score_with_reasons(query, snippets)[0]

    async def ascore(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Asynchronous twin of `score`."""
        return 1 - (await self.arate(query, snippets)).ratings

    def score_with_reasons(
        self, query: str, snippets: Sequence[Snippet | str]
    ) -> tuple[Scores, tuple[str | None, ...]]:
        """Return the scores, and why a snippet has none, or None."""
        rated = self.rate(query, snippets)
        return 1 - rated.ratings, rated.reasons

    def rate(self, query: str, snippets: Sequence[Snippet | str]) -> Ratings:
        """Return the rating of each snippet, and the reason if it has none."""
        snippets = as_snippets(snippets)
        answers = ask(self.llm, self._requests(query, snippets), **self._options)
        return self._ratings(snippets, answers)

    async def arate(self, query: str, snippets: Sequence[Snippet | str]) -> Ratings:
        """Asynchronous twin of `rate`."""
        snippets = as_snippets(snippets)
        answers = await aask(self.llm, self._requests(query, snippets), **self._options)
        return self._ratings(snippets, answers)

    def _requests(self, query: str, snippets: Sequence[Snippet]) -> list[Request]:
        return [self._request(query, text) for text in _texts(snippets)]

    def _ratings(self, snippets: Sequence[Snippet], answers: Sequence[Answer]) -> Ratings:
        rated = dict(zip(_texts(snippets), self._ratings_of(answers), strict=True))
        each = [rated.get(snippet.text, (math.nan, "blank")) for snippet in snippets]
        ratings = np.array([rating for rating, _ in each], dtype=np.float64)
        return Ratings(ratings, tuple(reason for _, reason in each), Usage.of(answers))


def _texts(snippets: Sequence[Snippet]) -> list[str]:
    """Return the texts to rate, each once."""
    return list(dict.fromkeys(s.text for s in snippets if s.text.strip()))


def rating_of(answer: Answer) -> Rated:
    """Return the rating in a reply, or NaN and the reason.

    >>> rating_of(Reply('{"reason": "…", "rating": 0.75}'))
    (0.75, None)
    """
    fields, reason = reply_fields(answer)
    if reason is not None:
        return math.nan, reason
    rating: Any = fields.get("rating")
    if not isinstance(rating, bool):
        with suppress(TypeError, ValueError):  # small models put numbers in quotes
            return (float(rating), None) if 0 <= float(rating) <= 1 else (math.nan, "out of range")
    return math.nan, "unreadable"


def check_first_tokens(llm: LLM, answers: Sequence[Answer]) -> None:
    """Raise ValueError if there are replies, and none has the log-probabilities of its first token.

    >>> check_first_tokens(LLM(print, "toy"), [Reply("YES")])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: 'toy' replies without log-probabilities; ...
    """
    replies = [a for a in answers if isinstance(a, Reply) and a.finish != "refusal"]
    if replies and not any(reply.first_token for reply in replies):
        raise ValueError(say("no log-probabilities", name=llm.name))


def probability_of_yes(answer: Answer) -> Rated:
    """Return P(YES) / (P(YES) + P(NO)) of a reply's first token, or NaN and the reason.

    >>> probability_of_yes(Reply("YES", first_token={"YES": math.log(0.6), "No": math.log(0.2)}))[0]
    0.75
    """
    if isinstance(answer, Unanswered):
        return math.nan, "unanswered"
    if answer.finish in ("refusal", "unknown"):  # "length" is normal: the request asks one token
        return math.nan, "refused" if answer.finish == "refusal" else "unreadable"
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
