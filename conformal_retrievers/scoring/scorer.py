"""What a scorer is: something with a name that turns a query and its snippets into scores.

A score is a nonconformity: lower = more relevant. NaN means that a snippet could not be scored, and
nothing else signals it. The name is the scorer's identity (model, prompt, transformations). A
threshold belongs to one score distribution, so scorers that could score differently need different
names. A scorer may also have these attributes:

    ascore              the asynchronous twin of `score`
    relative_to_query   whether a snippet's score depends on the query's other snippets
    parts               the scorers that it is made of
    fitted_on           the `query_digest` of each query that it was fitted on
    provenance          what it was made from, as JSON; see `registry.py`
    retrievers          the names of the retrievers whose hits `score` reads
    of_columns          what `score` makes of hits, if it reads nothing else
    same_from           from which length on a list's scores mean the same as in a longer one
    score_with_reasons  what `score` returns, and why snippets have no score (n,), or None
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import JsonValue

from conformal_retrievers.data.copies import folded
from conformal_retrievers.data.judged import check_retrieved, queries_to_judge
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery, Snippet, as_scores
from conformal_retrievers.extras import with_bar
from conformal_retrievers.scoring.shared_scores import ascored_once, scored_once
from conformal_retrievers.scoring.wording import say

Scores = NDArray[np.float64]  # (n,), one for each snippet


class Named(Protocol):
    """A scorer of snippets, or of queries (`query_scorer.py`)."""

    @property
    def name(self) -> str:
        """The scorer's identity."""


@runtime_checkable
class Scorer(Named, Protocol):
    """Anything with a name and a score."""

    def score(self, query: str, snippets: Sequence[Snippet]) -> ArrayLike:
        """Return one score for each snippet, (n,): lower = more relevant, NaN = unscorable."""


def check_scorer(scorer: object) -> None:
    """Raise TypeError unless `scorer` has a name and a score, as the object of a class has.

    >>> check_scorer(3)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    TypeError: scorer is 3; give an object with an attribute name and a method ...
    """
    if isinstance(scorer, type) or not isinstance(scorer, Scorer):
        raise TypeError(say("no scorer", scorer=scorer))


def with_parts(scorer: Named) -> Iterator[Any]:
    """Yield a scorer, its parts and their parts.

    >>> from conformal_retrievers.scoring import QueryZScore, RetrievalScorer
    >>> similarity = RetrievalScorer("store", higher_is_better=True)
    >>> [type(part).__name__ for part in with_parts(QueryZScore(similarity))]
    ['QueryZScore', 'RetrievalScorer']
    """
    yield scorer
    for part in getattr(scorer, "parts", ()):
        yield from with_parts(part)


def relative_to_query(scorer: Named) -> bool:
    """Return whether a snippet's score depends on the query's other snippets.

    >>> from conformal_retrievers.scoring import QueryZScore, RetrievalScorer
    >>> similarity = RetrievalScorer("store", higher_is_better=True)
    >>> relative_to_query(similarity), relative_to_query(QueryZScore(similarity))
    (False, True)
    """
    return any(getattr(part, "relative_to_query", False) for part in with_parts(scorer))


def same_from(scorer: Named) -> float:
    """Return from which length on a list's scores mean the same as in a longer one.

    The smallest z-score of n snippets is −√(n − 1), so z-scores do at no length. Ranks and their
    fusion count from the best, and mean the same in any list, even if none stands out: 0.

    >>> from conformal_retrievers.scoring import QueryZScore, RankScorer
    >>> same_from(RankScorer()), same_from(QueryZScore(RankScorer()))
    (0.0, inf)
    """
    if hasattr(scorer, "of_columns") or hasattr(scorer, "same_from"):
        return float(getattr(scorer, "same_from", 0))
    own = np.inf if getattr(scorer, "relative_to_query", False) else 0.0
    return max([own, *map(same_from, getattr(scorer, "parts", ()))])


def provenance_of(scorer: Named) -> Mapping[str, JsonValue] | None:
    """Return a scorer's provenance, or else a mapping of its parts' names to theirs, or None.

    >>> from types import SimpleNamespace
    >>> part = SimpleNamespace(name="inside", provenance={"queries": 40})
    >>> provenance_of(SimpleNamespace(name="outside", parts=[part]))
    {'inside': {'queries': 40}}
    """
    if hasattr(scorer, "provenance"):
        return dict(scorer.provenance)
    return {p.name: p.provenance for p in with_parts(scorer) if hasattr(p, "provenance")} or None


def reference(scorer: Named) -> JsonValue:
    """Return what a provenance has for a part: the part's own if `registry.py` can make it, or else
    its name.

    >>> from conformal_retrievers.scoring import FunctionScorer, RankScorer
    >>> reference(RankScorer("dense")), reference(FunctionScorer(len, "length"))
    ({'kind': 'rank', 'retriever': 'dense'}, {'name': 'length'})
    """
    stored = getattr(scorer, "provenance", {})
    return dict(stored) if {"kind", "format"} & set(stored) else {"name": scorer.name}


class Rebuilt:
    """A dataclass of a scorer that `registry.py` makes again from its kind and its fields."""

    kind: ClassVar[str]

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What `scorer_of` or `query_scorer_of` makes it from."""
        own: Any = self
        values = {field.name: getattr(self, field.name) for field in fields(own) if field.repr}
        return {"kind": self.kind, **{name: _stored(value) for name, value in values.items()}}


def _stored(value: Any) -> JsonValue:
    if isinstance(value, tuple):
        return [*value]
    return reference(value) if hasattr(value, "name") else value


def query_digest(query: str) -> str:
    """Return the start of a SHA-256, the same whatever a query's case, white space and NFC form.

    >>> query_digest("Who wrote it?") == query_digest("who  WROTE it?")
    True
    """
    return hashlib.sha256(folded(query).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def asked_in(digest: str, group: str | None) -> str:
    """Return a question's digest, with the group of its query if it has one.

    >>> asked_in("1f", None), asked_in("1f", "de")
    ('1f', '1f de')
    """
    return digest if group is None else f"{digest} {group}"


def check_not_fitted_on(scorer: Named, judged: Iterable[JudgedQuery]) -> None:
    """Raise ValueError if a scorer was fitted on one of the queries, where it scores too well.

    >>> from types import SimpleNamespace
    >>> scorer = SimpleNamespace(name="s", fitted_on=[query_digest("q")])
    >>> check_not_fitted_on(scorer, [JudgedQuery("q", ["a"], [True])])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: scorer 's' was fitted on query 'q'; ...
    """
    digests = fitted_on(scorer)
    for query in judged if digests else ():
        if query_digest(query.query) in digests:
            raise ValueError(say("fitted on", name=scorer.name, query=query.query[:60]))


def fitted_on(scorer: Named) -> set[str]:
    """Return the digest of each query that a scorer or a part of it was fitted on.

    >>> from types import SimpleNamespace
    >>> part = SimpleNamespace(name="p", fitted_on=[query_digest("q")])
    >>> fitted_on(SimpleNamespace(name="s", parts=[part])) == {query_digest("q")}
    True
    """
    return {digest for p in with_parts(scorer) for digest in getattr(p, "fitted_on", ())}


def score_snippets(scorer: Scorer, query: str, snippets: Sequence[Snippet]) -> Scores:
    """Return the scores (n,) of a query's snippets; without snippets the scorer is not called.

    Raises ValueError unless the scorer returns one number for each snippet.

    >>> from conformal_retrievers.scoring import RetrievalScorer
    >>> snippets = [Snippet("a", retrieval_score=0.9), Snippet("b")]
    >>> score_snippets(RetrievalScorer("store", higher_is_better=True), "q", snippets)
    array([-0.9,  nan])
    """
    if not (n := len(snippets)):
        return np.empty(0)

    def score() -> Scores:
        return as_scores(scorer.score(query, snippets), f"scores of {scorer.name!r}", n)

    if hasattr(scorer, "of_columns"):  # not by its name: one of two may turn the scores round
        return score()
    return scored_once(scorer.name, query, snippets, score)


async def ascore_snippets(scorer: Scorer, query: str, snippets: Sequence[Snippet]) -> Scores:
    """Return what `score_snippets` returns; a scorer without `ascore` runs in a thread.

    One that only reads hits takes microseconds, and runs where it is.

    >>> from conformal_retrievers.scoring import FunctionScorer
    >>> scorer = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")
    >>> asyncio.run(ascore_snippets(scorer, "q", [Snippet("a"), Snippet("bcd")]))
    array([1., 3.])
    """
    if not snippets or hasattr(scorer, "of_columns"):
        return score_snippets(scorer, query, snippets)
    return await ascored_once(scorer.name, query, snippets, lambda: _ask(scorer, query, snippets))


async def _ask(scorer: Scorer, query: str, snippets: Sequence[Snippet]) -> Scores:
    if hasattr(scorer, "ascore"):
        scores = await scorer.ascore(query, snippets)
    else:
        scores = await asyncio.to_thread(scorer.score, query, snippets)
    return as_scores(scores, f"scores of {scorer.name!r}", len(snippets))


def judged_queries(judged: Iterable[JudgedQuery], name: str = "judged") -> list[JudgedQuery]:
    """Return the queries; TypeError for anything but a JudgedQuery, ValueError for a blank text.

    Queries of `JudgedQuery.from_ids` that are not retrieved yet raise ValueError, too. `name` is
    that of the argument in messages.

    >>> judged_queries(["q"])
    Traceback (most recent call last):
    TypeError: judged[0] is 'q'; give JudgedQuery objects
    """
    queries = queries_to_judge(judged, name)
    check_retrieved(queries)
    return queries


def score_queries(
    scorer: Scorer,
    judged: Iterable[JudgedQuery],
    *,
    gate: Any = None,
    count_tokens: Callable[[str], int] = len,
    progress: bool = False,
) -> list[ScoredQuery]:
    """Return each query with the scores of its snippets (n,), with one call of the scorer each.

    >>> from conformal_retrievers.scoring import FunctionScorer
    >>> scorer = FunctionScorer(lambda query, texts: [len(text) for text in texts], "length")
    >>> [scored] = score_queries(scorer, [JudgedQuery("q", ["a", "bcd"], [True, False])])
    >>> scored.scores, scored.relevant
    (array([1., 3.]), array([ True, False]))

    Parameters
    ----------
    scorer, judged
        The scorer, and the queries with their snippets.
    gate
        A gate in front of the filter: the snippets of a query that it silences score +inf.
    count_tokens
        Returns the number of tokens of a text; by default its characters.
    progress
        Whether to show a progress bar on stderr, which needs the extra `cli`.

    Raises
    ------
    ValueError
        For a query that the scorer was fitted on.
    """
    check_scorer(scorer)
    queries = judged_queries(judged)
    check_not_fitted_on(scorer, queries)
    shown = with_bar(queries, "Scoring") if progress else queries
    scored = (_scored(scorer, query, count_tokens) for query in shown)
    if gate is None:
        return [*scored]
    return [*map(_behind, scored, gate.silenced(queries))]


def _behind(scored: ScoredQuery, silenced: bool) -> ScoredQuery:
    if not silenced:
        return replace(scored, silenced=False)
    return replace(scored, silenced=True, scores=np.full(len(scored.scores), np.inf), unscorable={})


def _scored(scorer: Scorer, query: JudgedQuery, count_tokens: Callable[[str], int]) -> ScoredQuery:
    item = "sentence" if query.split else "snippet"
    names = [f"{item} {(s.text[:40] if s.id is None else s.id)!r}" for s in query.snippets]
    if hasattr(scorer, "score_with_reasons"):
        scores, reasons = scorer.score_with_reasons(query.query, query.retrieved)
        names = [f"{name}: {reason}" for name, reason in zip(names, reasons, strict=True)]
    else:
        scores = score_snippets(scorer, query.query, query.retrieved)
    return ScoredQuery(
        scores,
        np.array(query.relevant, dtype=bool),
        id=query.id,
        group=query.group,
        missed=query.missed,
        tokens=np.array([count_tokens(s.text) for s in query.snippets], dtype=float),
        token_unit="characters" if count_tokens is len else "tokens",
        hits=query.hits,
        split=query.split,
        document_of=query.document_of,
        unscorable={i: names[i] for i in np.flatnonzero(np.isnan(scores)).tolist()},
    )
