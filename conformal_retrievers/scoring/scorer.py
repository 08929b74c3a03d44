"""What a scorer is: something with a name that turns a query and its snippets into scores.

A score is a nonconformity: lower = more relevant. NaN says that a snippet could not be scored, and
nothing else does. The name is the scorer's identity (model, prompt, transformations): a threshold
belongs to one score distribution, so two scorers that could score differently need two names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable
from unicodedata import normalize

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import JsonValue

from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery, Snippet
from conformal_retrievers.extras import require


@runtime_checkable
class Scorer(Protocol):
    """Anything with a name and a score."""

    @property
    def name(self) -> str:
        """The scorer's identity."""

    def score(self, query: str, snippets: Sequence[Snippet]) -> ArrayLike:
        """Return one score for each snippet, (n,): lower = more relevant, NaN = not scorable."""


@runtime_checkable
class AsyncScorer(Scorer, Protocol):
    """A scorer that can also wait for its model without holding a thread."""

    async def ascore(self, query: str, snippets: Sequence[Snippet]) -> ArrayLike:
        """Return what `score` returns."""


@runtime_checkable
class ExplainingScorer(Scorer, Protocol):
    """A scorer that can also say why it could not score a snippet."""

    def score_with_reasons(
        self, query: str, snippets: Sequence[Snippet]
    ) -> tuple[ArrayLike, Sequence[str | None]]:
        """Return what `score` returns, and the reason of each NaN, None for other snippets."""


def check_scorer(scorer: object) -> None:
    """Raise TypeError, saying what a scorer is, for anything that is none."""
    if not isinstance(scorer, Scorer):
        raise TypeError(
            f"scorer is {scorer!r:.80}; give something with a name and score(query, snippets), "
            "such as EmbeddingScorer(embed, name='…')"
        )


def relative_to_query(scorer: Scorer) -> bool:
    """Return whether a snippet's score depends on the query's other snippets.

    A scorer says so with an attribute `relative_to_query`; one that has none scores each alone.
    """
    return bool(getattr(scorer, "relative_to_query", False))


def with_parts(scorer: Scorer) -> Iterator[Scorer]:
    """Yield a scorer and all that it is made of: a scorer names those in an attribute `parts`."""
    yield scorer
    for part in getattr(scorer, "parts", ()):
        yield from with_parts(part)


def goes_by_texts(scorer: Scorer) -> bool:
    """Return whether a score depends on the texts of query and snippet alone.

    A scorer that reads something else of a snippet has an attribute `goes_by_texts` that is False.
    """
    return all(getattr(part, "goes_by_texts", True) for part in with_parts(scorer))


def provenance_of(scorer: Scorer) -> Mapping[str, JsonValue] | None:
    """Return what a scorer was made from, its attribute `provenance`, None where it has none.

    Of a scorer with parts that have one, it is a mapping from their names to theirs.
    """
    found = {p.name: p.provenance for p in with_parts(scorer) if hasattr(p, "provenance")}
    if list(found) == [scorer.name]:
        return dict(found[scorer.name])
    return found or None


def query_digest(query: str) -> str:
    """Return what tells a query again without its text: the start of a SHA-256.

    It is the same for texts that differ alone in case, in white space or in how Unicode composes
    their characters.
    """
    same = " ".join(normalize("NFC", query).casefold().split())
    return hashlib.sha256(same.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def check_not_fitted_on(scorer: Scorer, judged: Iterable[JudgedQuery]) -> None:
    """Raise ValueError, naming the query, if a scorer was fitted on a query to calibrate on.

    A scorer that learned from queries has the attribute `fitted_on`, their `query_digest`s. On them
    it scores better than on new ones, which are then not exchangeable with them.
    """
    none: frozenset[str] = frozenset()
    fitted_on = none.union(*(getattr(part, "fitted_on", none) for part in with_parts(scorer)))
    for query in judged if fitted_on else ():
        if query_digest(query.query) in fitted_on:
            raise ValueError(
                f"scorer {scorer.name!r} was fitted on query {query.query[:60]!r}, on which it "
                "scores better than on new ones; calibrate on other queries than it was fitted on"
            )


def score_snippets(scorer: Scorer, query: str, snippets: Sequence[Snippet]) -> NDArray[np.float64]:
    """Return the scores (n,) of a query's snippets; no snippets, no call of the scorer.

    Raises ValueError, naming the scorer, unless it returns one number for each snippet.
    """
    if not snippets:
        return np.empty(0)
    return _checked(scorer, scorer.score(query, snippets), len(snippets))


def score_with_reasons(
    scorer: Scorer, query: str, snippets: Sequence[Snippet]
) -> tuple[NDArray[np.float64], list[str | None]]:
    """Return what `score_snippets` returns, and why snippets have no score, where that is known."""
    if not isinstance(scorer, ExplainingScorer) or not snippets:
        scores = score_snippets(scorer, query, snippets)
        return scores, [None if s.text.strip() else "blank" for s in snippets]
    given, reasons = scorer.score_with_reasons(query, snippets)
    return _checked(scorer, given, len(snippets)), list(reasons)


async def ascore_snippets(
    scorer: Scorer, query: str, snippets: Sequence[Snippet]
) -> NDArray[np.float64]:
    """Return what `score_snippets` returns; a scorer without `ascore` runs in a thread."""
    if not snippets:
        return np.empty(0)
    if isinstance(scorer, AsyncScorer):
        scores = await scorer.ascore(query, snippets)
    else:
        import asyncio  # loaded where it is used, since it is half of what numpy takes

        scores = await asyncio.to_thread(scorer.score, query, snippets)
    return _checked(scorer, scores, len(snippets))


async def ascore_together(
    scorers: Sequence[Scorer], query: str, snippets: Sequence[Snippet]
) -> list[NDArray[np.float64]]:
    """Return the scores (n,) of each scorer, all awaited at once; if one fails, none goes on."""
    import asyncio

    tasks = [asyncio.ensure_future(ascore_snippets(s, query, snippets)) for s in scorers]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def score_queries(
    scorer: Scorer,
    judged: Iterable[JudgedQuery],
    *,
    progress: bool = False,
) -> list[ScoredQuery]:
    """Score judged queries, one call of the scorer each, with a progress bar if asked for one.

    Raises ValueError where the scorer does not return one number for each snippet, and
    ModuleNotFoundError where a progress bar is asked for without the extra `cli`.
    """
    check_scorer(scorer)
    judged = judged_queries(judged)
    return [_scored(scorer, query) for query in (_track(judged) if progress else judged)]


def _scored(scorer: Scorer, query: JudgedQuery) -> ScoredQuery:
    scores, reasons = score_with_reasons(scorer, query.query, query.snippets)
    return ScoredQuery(
        scores,
        np.array(query.relevant, dtype=bool),
        id=query.id,
        group=query.group,
        missed=query.missed,
        unscorable={
            i: _named(query.snippets[i], reasons[i])
            for i in np.flatnonzero(np.isnan(scores)).tolist()
        },
    )


def _named(snippet: Snippet, reason: str | None) -> str:
    name = repr(snippet.text[:40]) if snippet.id is None else repr(snippet.id)
    return f"snippet {name}: {reason}" if reason else f"snippet {name}"


def judged_queries(judged: Iterable[object]) -> list[JudgedQuery]:
    """Return the queries as a list; raise TypeError for anything among them that is none."""
    queries: list[JudgedQuery] = []
    for i, query in enumerate([judged] if isinstance(judged, str) else judged):
        if not isinstance(query, JudgedQuery):
            raise TypeError(
                f"judged[{i}] is {query!r:.60}; give JudgedQuery(query, snippets, relevant) "
                "objects, as read_jsonl(path) returns them"
            )
        queries.append(query)
    return queries


def _track(judged: list[JudgedQuery]) -> Iterable[JudgedQuery]:
    require("cli", "rich")
    from rich.console import Console
    from rich.progress import track

    return track(judged, description="Scoring", console=Console(stderr=True), transient=True)


def _checked(scorer: Scorer, scores: ArrayLike, n: int) -> NDArray[np.float64]:
    array = np.asarray(scores, dtype=np.float64)
    if array.shape != (n,):
        raise ValueError(
            f"scorer {scorer.name!r} returned an array of shape {array.shape} for {n} snippets; "
            "it must return one number for each"
        )
    return array
