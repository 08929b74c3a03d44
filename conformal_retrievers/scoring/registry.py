"""Scorers from their provenance, as a calibration holds it: one file is all that a filter needs.

Query scorers come from theirs too. Only the kinds in `KINDS` are made. A scorer with a model is
none of them: a provenance has its name, and the scorer itself is given. Nothing that a file names
is loaded or run.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from conformal_retrievers.scoring.combine import QueryZScore
from conformal_retrievers.scoring.hits import FusionScorer, RankScorer, RetrievalScorer
from conformal_retrievers.scoring.learned import queries
from conformal_retrievers.scoring.learned import score as learned
from conformal_retrievers.scoring.query_scorer import BestScore, QueryScorer
from conformal_retrievers.scoring.scorer import Named, Scorer, with_parts
from conformal_retrievers.scoring.wording import say

Provenance = Mapping[str, Any]
Given = Mapping[str, Any]  # scorers by name

MADE = (RankScorer, FusionScorer, RetrievalScorer, QueryZScore, BestScore)
KINDS: Mapping[str, Any] = {scorer.kind: scorer for scorer in MADE}
LEARNED: Mapping[str, Any] = {
    learned.FORMAT: learned.LearnedScorer,
    queries.FORMAT: queries.LearnedQueryScorer,
}


def scorer_of(provenance: Provenance, scorers: Iterable[Named] = ()) -> Scorer:
    """Return the scorer with this `provenance`, which names the `scorers` that it `needs`.

    Raises ValueError for a scorer that is named and not given, and for a provenance of another
    shape.

    >>> scorer_of({"kind": "zscore", "scorer": {"kind": "rank", "retriever": "dense"}}).name
    'zscore(rank(dense))'
    """
    return cast(Scorer, _with(provenance, scorers, "score"))


def query_scorer_of(provenance: Provenance, scorers: Iterable[Named] = ()) -> QueryScorer:
    """Return the query scorer with this `provenance`, from the scorers that it `needs`, of
    snippets or of queries. Raises as `scorer_of`.

    >>> hit = {"kind": "retrieval", "retriever": "bm25", "higher_is_better": True}
    >>> query_scorer_of({"kind": "best", "scorer": hit}).name
    'best(retrieval(bm25, higher))'
    """
    return cast(QueryScorer, _with(provenance, scorers, "score_query"))


def needs(provenance: Provenance) -> list[str]:
    """Return the names of the scorers that `scorer_of` or `query_scorer_of` must be given.

    Raises ValueError for a provenance of another shape.

    >>> needs({"kind": "zscore", "scorer": {"name": "cosine(e)"}})
    ['cosine(e)']
    """
    try:
        return [*dict.fromkeys(_names(provenance))]
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise _broken(provenance) from error


def _with(provenance: Provenance, scorers: Iterable[Named], method: str) -> Any:
    given = {part.name: part for scorer in scorers for part in with_parts(scorer)}
    missing = [name for name in needs(provenance) if name not in given]
    if missing:
        raise ValueError(say("no parts", names=", ".join(map(repr, missing))))
    try:
        made = _made(provenance, given)
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise _broken(provenance) from error
    if not hasattr(made, method):
        raise _broken(provenance)
    return made


def _names(provenance: Provenance) -> list[str]:
    if "name" in provenance:
        return [provenance["name"]]
    if _kind(provenance) in LEARNED:
        return _read(provenance)
    KINDS[_kind(provenance)]  # raises KeyError for another
    parts = [value for value in provenance.values() if isinstance(value, Mapping)]
    return [name for part in parts for name in _names(part)]


def _made(provenance: Provenance, given: Given) -> Any:
    if "name" in provenance:
        return given[provenance["name"]]
    if learns := LEARNED.get(_kind(provenance)):
        return learns.from_provenance(provenance, [given[name] for name in _read(provenance)])
    arguments = {
        name: _made(value, given) if isinstance(value, Mapping) else value
        for name, value in provenance.items()
        if name != "kind"
    }
    made = KINDS[_kind(provenance)](**arguments)
    if {*made.provenance} != {*provenance}:
        raise TypeError(arguments)
    return made


def _read(provenance: Provenance) -> list[str]:
    """Return the names of the scorers that a learned score reads."""
    return [*provenance["scorers"], *provenance.get("query_scorers", [])]


def _kind(provenance: Provenance) -> Any:
    return provenance.get("kind", provenance.get("format"))


def _broken(provenance: Provenance) -> ValueError:
    return ValueError(say("broken provenance", kind=_kind(provenance)))
