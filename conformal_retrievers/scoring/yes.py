"""The probability of a YES as a score: 1 − P(YES) / (P(YES) + P(NO)), of an answer's first token.

It asks a question whose answer is YES or NO and takes the log-probabilities where the server gives
them: continuous, so with fewer ties than an LLM's rating (`rating.py`). What is not rated (no
reply, a refusal, an answer that is neither) is NaN, unscorable; never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.llm.ask import (
    LLM,
    Asked,
    Prompt,
    Reply,
    Unanswered,
    aask,
    ask,
    check_cache,
    check_count,
    check_llm,
)
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import check_fields
from conformal_retrievers.llm.reply import NO_ANSWER
from conformal_retrievers.scoring.ratings import (
    Rated,
    Ratings,
    RatingScorer,
    ratings_of,
    texts_to_rate,
)


@dataclass(frozen=True)
class YesScorer(RatingScorer):
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
        check_fields(self.prompt, "query", "snippet")

    @property
    def name(self) -> str:
        """Model, prompt by its hash, and number of alternatives."""
        return f"p_yes({self.llm.name}, prompt={self.prompt.hash}, top={self.top_logprobs})"

    def rate(self, query: str, snippets: Sequence[Snippet | str]) -> Ratings:
        """Return P(YES) / (P(YES) + P(NO)) of each snippet, with the reasons where it has none."""
        snippets = as_snippets(snippets)
        return self._ratings(snippets, self._put(ask, query, snippets))

    async def arate(self, query: str, snippets: Sequence[Snippet | str]) -> Ratings:
        """Return what `rate` returns, without blocking the event loop."""
        snippets = as_snippets(snippets)
        return self._ratings(snippets, await self._put(aask, query, snippets))

    def _put(self, ask: Callable[..., Asked], query: str, snippets: Sequence[Snippet]) -> Asked:
        """Ask of each text, by `ask` or `aask`."""
        requests = [
            self.prompt.request(
                {"query": query, "snippet": text}, top_logprobs=self.top_logprobs, max_tokens=1
            )
            for text in texts_to_rate(snippets)
        ]
        return ask(
            self.llm,
            requests,
            is_answer=_has_p_yes,
            concurrency=self.concurrency,
            cache=self.cache,
        )

    def _ratings(
        self, snippets: Sequence[Snippet], answers: Sequence[Reply | Unanswered]
    ) -> Ratings:
        said = [a for a in answers if isinstance(a, Reply) and a.finish != "refusal"]
        if said and not any(reply.first_token for reply in said):
            raise ValueError(
                f"{self.llm.name!r} answers without log-probabilities; have its server give them "
                "(in a framework's model: options=openai_options), or rate with LLMScorer"
            )
        rated = dict(zip(texts_to_rate(snippets), map(_p_yes, answers), strict=True))
        return ratings_of(snippets, rated, answers, self.on_ratings)


def _p_yes(answer: Reply | Unanswered) -> Rated:
    if isinstance(answer, Unanswered):
        return math.nan, "unanswered"
    if answer.finish in ("refusal", "unknown"):  # cut off it always is, after the one token
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
    if not yes + no > 0:  # 0, or NaN: a server's way to say that it does not know
        return math.nan, "no log-probabilities"
    return yes / (yes + no), None


def _has_p_yes(place: int, reply: Reply) -> bool:
    return _p_yes(reply)[1] is None
