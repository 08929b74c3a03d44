"""What a query scorer is: something with a name that turns a query and its snippets into a number.

A query score is a nonconformity of "what was retrieved answers this query": lower = it looks
answered, NaN = unknown, and nothing else signals that. A query scorer may have the attributes of a
scorer (`scorer.py`), with `ascore_query` for `ascore`, and parts that score snippets or queries.
`concurrency` is how many queries it may score at a time, as one that asks an LLM does. The numbers
that follow from scores and hits are in `summary.py`, an LLM's answer in `verdict.py`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from pydantic import JsonValue

from conformal_retrievers.data.queries import JudgedQuery, Snippet, as_scores, as_snippets
from conformal_retrievers.llm.ask import with_bar
from conformal_retrievers.scoring.combine import lexicographic
from conformal_retrievers.scoring.once import at_once
from conformal_retrievers.scoring.scorer import (
    Named,
    Scorer,
    Scores,
    ascore_snippets,
    reference,
    score_snippets,
    with_parts,
)


@runtime_checkable
class QueryScorer(Named, Protocol):
    """Anything with a name and a score of a query."""

    def score_query(self, query: str, snippets: Sequence[Snippet]) -> float:
        """Return the score of a query: lower = its snippets look as if they answered it."""


def check_query_scorer(scorer: object) -> None:
    """Raise TypeError unless `scorer` has a name and a score of a query.

    >>> check_query_scorer(3)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    TypeError: scorer is 3; give an object with a name and score_query(query, snippets), ...
    """
    if not isinstance(scorer, QueryScorer):
        raise TypeError(
            f"scorer is {scorer!r:.80}; give an object with a name and score_query(query, "
            "snippets), such as ScoreSummary(scorer, 'best')"
        )


def score_query(scorer: QueryScorer, query: str, snippets: Sequence[Snippet | str]) -> float:
    """Return the score of a query; +inf if nothing was retrieved: then nothing answers it.

    Raises ValueError unless the scorer returns one number.

    >>> longest = FunctionQueryScorer(lambda query, texts: -max(map(len, texts)), "longest")
    >>> score_query(longest, "q", ["a", "bcd"]), score_query(longest, "q", [])
    (-3.0, inf)
    """
    given = as_snippets(snippets)
    return _checked(scorer, scorer.score_query(query, given)) if given else np.inf


async def ascore_query(scorer: QueryScorer, query: str, snippets: Sequence[Snippet | str]) -> float:
    """Return what `score_query` returns; a scorer without `ascore_query` runs in a thread.

    One that only reads hits takes microseconds, and runs where it is.

    >>> longest = FunctionQueryScorer(lambda query, texts: -max(map(len, texts)), "longest")
    >>> asyncio.run(ascore_query(longest, "q", ["a", "bcd"]))
    -3.0
    """
    given = as_snippets(snippets)
    if not given:
        return np.inf
    if hasattr(scorer, "ascore_query"):
        return _checked(scorer, await scorer.ascore_query(query, given))
    if hasattr(scorer, "of_columns"):
        return _checked(scorer, scorer.score_query(query, given))
    return _checked(scorer, await asyncio.to_thread(scorer.score_query, query, given))


def query_scores(
    scorer: QueryScorer,
    judged: Sequence[JudgedQuery],
    *,
    title: str = "Scoring",
    progress: bool = False,
) -> Scores:
    """Return the score of each query, (n,); several at a time if the scorer has a `concurrency`.

    >>> longest = FunctionQueryScorer(lambda query, texts: -max(map(len, texts)), "longest")
    >>> query_scores(longest, [JudgedQuery("q", ["a", "bcd"], [True, False])])
    array([-3.])
    """
    at_once = max(getattr(part, "concurrency", 1) for part in with_parts(scorer))
    if at_once == 1:
        shown = with_bar(judged, title) if progress else judged
        return np.array([score_query(scorer, q.query, q.snippets) for q in shown], np.float64)
    with ThreadPoolExecutor(at_once) as pool:
        calls = [  # each in a copy of the context, where frameworks keep the run it belongs to
            pool.submit(copy_context().run, score_query, scorer, q.query, q.snippets)
            for q in judged
        ]
        try:
            ended = with_bar(calls, title) if progress else calls
            return np.array([call.result() for call in ended], np.float64)
        finally:
            pool.shutdown(cancel_futures=True)


def _checked(scorer: Named, score: object) -> float:
    if type(score) is float:
        return score
    array = as_scores(score, f"score of {scorer.name!r}")  # type: ignore[arg-type]
    if array.shape != ():
        raise ValueError(
            f"scorer {scorer.name!r} returned shape {array.shape} for a query; it must return one "
            "number"
        )
    return float(array)


class CombinedQueryScorer(ABC):
    """A query scorer whose score follows from those of its parts, of snippets or of queries."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The scorer's identity."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Scorer | QueryScorer, ...]:
        """The scorers that it combines."""

    @abstractmethod
    def combine(self, query: str, found: Sequence[Any], snippets: Sequence[Snippet]) -> float:
        """Return the score from what each part returns: scores (n,), or the score of the query."""

    def score_query(self, query: str, snippets: Sequence[Snippet | str]) -> float:
        """Return the combined score of a query."""
        given = as_snippets(snippets)
        found = [_of_part(part, query, given) for part in self.parts]
        return self.combine(query, found, given)

    async def ascore_query(self, query: str, snippets: Sequence[Snippet | str]) -> float:
        """Asynchronous twin of `score_query`; it awaits all parts at once."""
        given = as_snippets(snippets)
        found = await at_once(*(_aof_part(part, query, given) for part in self.parts))
        return self.combine(query, found, given)


def _of_part(part: Any, query: str, snippets: Sequence[Snippet]) -> Any:
    if hasattr(part, "score_query"):
        return score_query(part, query, snippets)
    return score_snippets(part, query, snippets)


async def _aof_part(part: Any, query: str, snippets: Sequence[Snippet]) -> Any:
    if hasattr(part, "score_query"):
        return await ascore_query(part, query, snippets)
    return await ascore_snippets(part, query, snippets)


@dataclass(frozen=True)
class QueryTieBreak(CombinedQueryScorer):
    """Scores queries by `scorer`, and those with equal scores by `then`, as `TieBreak` does.

    A threshold on coarse scores, such as an LLM's verdicts, is silent on fewer queries than alpha
    allows, because it never parts those with equal scores. NaN of either scorer is NaN.

    >>> coarse = FunctionQueryScorer(lambda query, texts: 1.0, "coarse")
    >>> longest = FunctionQueryScorer(lambda query, texts: -max(map(len, texts)), "longest")
    >>> broken = QueryTieBreak(coarse, then=longest)
    >>> broken.score_query("q", ["abc"]) < broken.score_query("r", ["a"])
    True
    """

    scorer: QueryScorer
    then: QueryScorer = field(kw_only=True)

    def __post_init__(self) -> None:
        check_query_scorer(self.scorer)
        check_query_scorer(self.then)

    @property
    def name(self) -> str:
        """Both names, in order."""
        return f"tiebreak({self.scorer.name}, then={self.then.name})"

    @property
    def parts(self) -> tuple[QueryScorer, QueryScorer]:
        """Both scorers."""
        return (self.scorer, self.then)

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What `query_scorer_of` makes it from."""
        scorer, then = reference(self.scorer), reference(self.then)
        return {"kind": "query tiebreak", "scorer": scorer, "then": then}

    def combine(self, query: str, found: Sequence[float], snippets: Sequence[Snippet]) -> float:
        """Return one number for both scores."""
        first, second = found
        return float(lexicographic([first], [second])[0])


@dataclass(frozen=True)
class FunctionQueryScorer:
    """Scores by a function: `function(query, texts)` returns a number, lower = looks answered.

    It returns NaN if it does not know. `afunction` is its asynchronous twin; without it,
    `ascore_query` runs in a thread.

    >>> def missing_words(query, texts):
    ...     return len(set(query.split()) - set(" ".join(texts).split()))
    >>> FunctionQueryScorer(missing_words, "missing words").score_query("dry bread", ["bread", "b"])
    1.0
    """

    function: Callable[[str, list[str]], ArrayLike]
    name: str
    afunction: Callable[[str, list[str]], Awaitable[ArrayLike]] | None = None

    def score_query(self, query: str, snippets: Sequence[Snippet | str]) -> float:
        """Return the function's score."""
        return _checked(self, self.function(query, [s.text for s in as_snippets(snippets)]))

    async def ascore_query(self, query: str, snippets: Sequence[Snippet | str]) -> float:
        """Asynchronous twin of `score_query`."""
        if self.afunction is None:
            return await asyncio.to_thread(self.score_query, query, snippets)
        return _checked(self, await self.afunction(query, [s.text for s in as_snippets(snippets)]))
