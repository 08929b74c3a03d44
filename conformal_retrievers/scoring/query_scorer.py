"""What a query scorer is: something with a name that turns a query and its snippets into a number.

A query score is a nonconformity of "what was retrieved answers this query": lower = it looks
answered, NaN = unknown, and nothing else signals that. A query scorer may have the attributes of a
scorer (`scorer.py`), with `ascore_query` for `ascore`, and parts that score snippets or queries.
`concurrency` is how many queries it may score at a time, as one that asks an LLM does.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from conformal_retrievers.data.queries import JudgedQuery, Snippet, as_scores, as_snippets
from conformal_retrievers.data.snippets import Retrieved
from conformal_retrievers.extras import with_bar
from conformal_retrievers.llm.ask import each_in_threads
from conformal_retrievers.scoring.hits import retrievers_of
from conformal_retrievers.scoring.scorer import (
    Named,
    Rebuilt,
    Scorer,
    Scores,
    ascore_snippets,
    check_scorer,
    score_snippets,
    with_parts,
)
from conformal_retrievers.scoring.shared_scores import at_once
from conformal_retrievers.scoring.wording import say


@runtime_checkable
class QueryScorer(Named, Protocol):
    """Anything with a name and a score of a query."""

    def score_query(self, query: str, snippets: Sequence[Snippet]) -> float:
        """Return the score of a query: lower = its snippets look as if they answered it."""


def score_query(scorer: QueryScorer, query: str, snippets: Sequence[Snippet | str]) -> float:
    """Return the score of a query; +inf if nothing was retrieved: then nothing answers it.

    Raises ValueError unless the scorer returns one number.

    >>> from conformal_retrievers.scoring import FunctionScorer
    >>> best = BestScore(FunctionScorer(lambda query, texts: [len(t) for t in texts], "length"))
    >>> score_query(best, "q", ["a", "bcd"]), score_query(best, "q", [])
    (1.0, inf)
    """
    given = as_snippets(snippets)
    return _checked(scorer, scorer.score_query(query, given)) if given else np.inf


async def ascore_query(scorer: QueryScorer, query: str, snippets: Sequence[Snippet | str]) -> float:
    """Return what `score_query` returns; a scorer without `ascore_query` runs in a thread.

    >>> from conformal_retrievers.scoring import FunctionScorer
    >>> best = BestScore(FunctionScorer(lambda query, texts: [len(t) for t in texts], "length"))
    >>> asyncio.run(ascore_query(best, "q", ["a", "bcd"]))
    1.0
    """
    given = as_snippets(snippets)
    if not given:
        return np.inf
    if hasattr(scorer, "ascore_query"):
        return _checked(scorer, await scorer.ascore_query(query, given))
    return _checked(scorer, await asyncio.to_thread(scorer.score_query, query, given))


def query_scores(
    scorer: QueryScorer,
    judged: Sequence[JudgedQuery],
    *,
    title: str = "Scoring",
    progress: bool = False,
) -> Scores:
    """Return the score of each query, (n,); several at a time if the scorer has a `concurrency`.

    >>> from conformal_retrievers.scoring import FunctionScorer
    >>> best = BestScore(FunctionScorer(lambda query, texts: [len(t) for t in texts], "length"))
    >>> query_scores(best, [JudgedQuery("q", ["a", "bcd"], [True, False])])
    array([1.])
    """
    most = max(getattr(part, "concurrency", 1) for part in with_parts(scorer))
    if most == 1:
        each = with_bar(judged, title) if progress else judged
        return np.array([score_query(scorer, q.query, q.retrieved) for q in each], np.float64)
    stopped = Event()

    def score(q: JudgedQuery) -> float:
        return np.nan if stopped.is_set() else score_query(scorer, q.query, q.retrieved)

    shown = title if progress else None
    return np.array(each_in_threads(score, judged, most, stopped, shown), np.float64)


def _checked(scorer: Named, score: object) -> float:
    if type(score) is float:
        return score
    array = as_scores(score, f"score of {scorer.name!r}")  # type: ignore[arg-type]
    if array.shape != ():
        raise ValueError(say("no number", name=scorer.name, shape=array.shape))
    return float(array)


class CombinedQueryScorer(ABC):
    """A query scorer whose score follows from those of its parts, of snippets or of queries."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Scorer | QueryScorer, ...]:
        """The scorers that it combines."""

    @abstractmethod
    def combine(self, query: str, found: Sequence[Any], snippets: Retrieved) -> float:
        """Return the score from what each part returns: scores (n,), or the score of the query."""

    def score_query(self, query: str, snippets: Sequence[Snippet | str]) -> float:
        """Return the combined score of a query."""
        given = as_snippets(snippets)
        return self.combine(query, [_of_part(part, query, given) for part in self.parts], given)

    async def ascore_query(self, query: str, snippets: Sequence[Snippet | str]) -> float:
        """Asynchronous twin of `score_query`; it awaits all parts at once."""
        given = as_snippets(snippets)
        scores = await at_once(*(_aof_part(part, query, given) for part in self.parts))
        return self.combine(query, scores, given)


def _of_part(part: Any, query: str, snippets: Sequence[Snippet]) -> Any:
    score: Any = score_query if hasattr(part, "score_query") else score_snippets
    return score(part, query, snippets)


async def _aof_part(part: Any, query: str, snippets: Sequence[Snippet]) -> Any:
    ascore: Any = ascore_query if hasattr(part, "score_query") else ascore_snippets
    return await ascore(part, query, snippets)


@dataclass(frozen=True)
class BestScore(Rebuilt, CombinedQueryScorer):
    """Scores a query by the lowest finite score of its snippets; NaN if there is none.

    Where the scores are those of a retriever that found nothing and others did, it is +inf.

    >>> from conformal_retrievers.scoring import FunctionScorer
    >>> length = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")
    >>> BestScore(length).score_query("q", ["abc", "abcde", "a"])
    1.0
    """

    scorer: Scorer
    kind: ClassVar[str] = "best"

    def __post_init__(self) -> None:
        check_scorer(self.scorer)

    @property
    def name(self) -> str:
        """The scorer, marked as the best of its scores."""
        return f"best({self.scorer.name})"

    @property
    def parts(self) -> tuple[Scorer]:
        """The scorer inside."""
        return (self.scorer,)

    def combine(self, query: str, found: Sequence[Scores], snippets: Retrieved) -> float:
        """Return the lowest finite score of those of the snippets, (n,)."""
        read, known = retrievers_of(self.scorer), snippets.hits
        if read and known and known.keys().isdisjoint(read):
            return np.inf
        finite = found[0][np.isfinite(found[0])]
        return float(finite.min()) if len(finite) else np.nan
