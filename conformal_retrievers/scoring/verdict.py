"""An LLM's verdict as a query score: "can these snippets answer this query?", one call a query.

    by "rating"                1 − the rating, from 0 to 1 = they answer it, of a JSON reply
    by "probability-of-yes"    1 − P(YES) / (P(YES) + P(NO)) of the first token of a reply

It is the autorater of sufficient context (Joren et al. 2025, arXiv 2411.06037) as a number. A reply
that cannot be read is NaN, and so unknown, never an answer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_args

from conformal_retrievers.data.hits import texts_in
from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.llm.ask import LLM, aask, ask, check_count, check_llm
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.prompt import Prompt, Request, check_fields, short_hash
from conformal_retrievers.llm.reply import Reply
from conformal_retrievers.scoring.rating import (
    RATING,
    Answer,
    By,
    check_first_tokens,
    probability_of_yes,
    rating_of,
)


@dataclass(frozen=True)
class LLMVerdict:
    """Scores a query by 1 − an LLM's verdict on whether its snippets answer it.

    Blank snippets are not sent, and equal texts once; without any text, the score is NaN. Snippets
    are numbered in the order of retrieval, which an LLM may not ignore. Ratings are coarse, and a
    threshold never parts queries with equal scores. Raises ValueError if the prompt has other
    fields, or a reply has no log-probabilities to read.

    >>> from conformal_retrievers.llm import LLM, Reply
    >>> llm = LLM(lambda request: Reply('{"reason": "…", "rating": 0.75}'), "toy")
    >>> LLMVerdict(llm).score_query("Does bread rise?", ["Yeast makes it rise.", " "])
    0.25

    Parameters
    ----------
    llm
        The model: `openai_llm(…)`, or `as_llm(…)` of a framework package.
    prompt
        Has the fields $query and $snippets.
    by
        "rating" or "probability-of-yes", as for `LLMScorer`.
    max_tokens
        The bound on the length of a reply by "rating". A reply that is cut off has no rating.
    top_logprobs
        The number of alternatives of the first token.
    concurrency, cache
        As for `ask`; so many queries of a calibration are scored at a time.
    """

    llm: LLM
    prompt: Prompt | None = None
    by: By = field(default="rating", kw_only=True)
    max_tokens: int | None = field(default=None, kw_only=True)
    top_logprobs: int = field(default=20, kw_only=True)
    concurrency: int = field(default=8, kw_only=True)
    cache: Cache | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_llm(self.llm)
        check_count(self.concurrency, "concurrency")
        check_count(self.top_logprobs, "top_logprobs")
        if self.max_tokens is not None:
            check_count(self.max_tokens, "max_tokens")
        if not isinstance(self.cache, Cache | None):
            raise TypeError(f"cache is {self.cache!r:.80}; give Cache(path), or None")
        if self.by not in get_args(By):
            raise ValueError(f"by is {self.by!r}; give 'rating' or 'probability-of-yes'")
        check_fields(self._prompt, "query", "snippets")

    @property
    def name(self) -> str:
        """Model, prompt and form of the reply by their hashes, and what else changes a verdict."""
        asked = f"{self.llm.name}, prompt={self._prompt.hash}"
        if self._by_yes:
            return f"verdict({asked}, p_yes, top={self.top_logprobs})"
        bound = "" if self.max_tokens is None else f", max_tokens={self.max_tokens}"
        return f"verdict({asked}, schema={short_hash(RATING)}{bound})"

    def score_query(self, query: str, snippets: Sequence[Snippet | str]) -> float:
        """Return the score of a query."""
        return self._score(ask(self.llm, self._requests(query, snippets), **self._options))

    async def ascore_query(self, query: str, snippets: Sequence[Snippet | str]) -> float:
        """Asynchronous twin of `score_query`."""
        return self._score(await aask(self.llm, self._requests(query, snippets), **self._options))

    @property
    def _by_yes(self) -> bool:
        return self.by == "probability-of-yes"

    @cached_property
    def _prompt(self) -> Prompt:
        return self.prompt or Prompt.load("answerable_yes_no" if self._by_yes else "answerable")

    @property
    def _options(self) -> dict[str, Any]:
        def is_answer(place: int, reply: Reply) -> bool:
            return not math.isnan(self._rating(reply))

        return {"is_answer": is_answer, "concurrency": self.concurrency, "cache": self.cache}

    def _requests(self, query: str, snippets: Sequence[Snippet | str]) -> list[Request]:
        """Return the request; none if no snippet has a text."""
        texts = [text for text in dict.fromkeys(texts_in(as_snippets(snippets))) if text.strip()]
        numbered = [{"number": i, "text": text} for i, text in enumerate(texts, start=1)]
        form: dict[str, Any] = {"schema": RATING, "max_tokens": self.max_tokens}
        if self._by_yes:
            form = {"top_logprobs": self.top_logprobs, "max_tokens": 1}
        values = {"query": query, "snippets": numbered}
        return [self._prompt.request(values, **form)] if texts else []

    def _score(self, answers: Sequence[Answer]) -> float:
        if self._by_yes:
            check_first_tokens(self.llm, answers)
        return 1 - self._rating(answers[0]) if answers else math.nan

    def _rating(self, answer: Answer) -> float:
        return (probability_of_yes if self._by_yes else rating_of)(answer)[0]
