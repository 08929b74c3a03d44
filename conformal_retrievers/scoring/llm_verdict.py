"""An LLM's verdict as a query score: "can these snippets answer this query?", one call a query.

    by "rating"                1 − the rating, from 0 to 1 = they answer it, of a JSON reply
    by "probability-of-yes"    1 − P(YES) / (P(YES) + P(NO)) of the first token of a reply

It is the autorater of sufficient context (Joren et al. 2025, arXiv 2411.06037) as a number. A reply
that cannot be read is NaN, and so unknown, never an answer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.llm.ask import aask, ask
from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.scoring.rating import Answer, By, Rater


@dataclass(frozen=True)
class LLMVerdict(Rater):
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
    top_logprobs
        The number of alternatives of the first token.
    concurrency, cache
        As for `ask`; so many queries of a calibration are scored at a time.
    """

    prompts: ClassVar[Mapping[By, str]] = {
        "rating": "answerable",
        "probability-of-yes": "answerable_yes_no",
    }
    asks_about: ClassVar[str] = "snippets"

    @property
    def name(self) -> str:
        """Model, prompt and form of the reply by their hashes, and what else changes a verdict."""
        yes = f", p_yes, top={self.top_logprobs}" if self._by_yes else ""
        return f"verdict({self._asked}{yes})"

    def score_query(self, query: str, snippets: Sequence[Snippet | str]) -> float:
        """Return the score of a query."""
        return self._score(ask(self.llm, self._requests(query, snippets), **self._options))

    async def ascore_query(self, query: str, snippets: Sequence[Snippet | str]) -> float:
        """Asynchronous twin of `score_query`."""
        return self._score(await aask(self.llm, self._requests(query, snippets), **self._options))

    def _requests(self, query: str, snippets: Sequence[Snippet | str]) -> list[Request]:
        """Return the request; none if no snippet has a text."""
        texts = [text for text in dict.fromkeys(as_snippets(snippets).texts) if text.strip()]
        numbered = [{"number": i, "text": text} for i, text in enumerate(texts, start=1)]
        return [self._request(query, numbered)] if texts else []

    def _score(self, answers: Sequence[Answer]) -> float:
        return 1 - self._ratings_of(answers)[0][0] if answers else math.nan
