"""Scorers from their provenance, as a calibration holds it: one file is all that a filter needs.

Query scorers come from theirs too. Only the kinds in `KINDS` are made. A scorer with a model is
none of them: a provenance has its name, and the scorer itself is given. Nothing that a file names
is loaded or run.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from conformal_retrievers.scoring.answerability import BestScore, QueryScorer
from conformal_retrievers.scoring.combine import QueryZScore, TieBreak
from conformal_retrievers.scoring.hits import FusionScorer, RankScorer, RetrievalScorer
from conformal_retrievers.scoring.learned import queries
from conformal_retrievers.scoring.learned import score as learned
from conformal_retrievers.scoring.overlap import OVERLAPS, OverlapScorer
from conformal_retrievers.scoring.scorer import Named, Scorer, with_parts

Provenance = Mapping[str, Any]
Given = Mapping[str, Any]  # scorers by name

KINDS: Mapping[str, Callable[[Provenance, Given], Scorer | QueryScorer]] = {
    "rank": lambda p, given: RankScorer(_text(p["retriever"])),
    "fusion": lambda p, given: FusionScorer(map(_text, p["retrievers"])),
    "retrieval": lambda p, given: RetrievalScorer(
        _text(p["retriever"]), _flag(p["higher_is_better"])
    ),
    "overlap": lambda p, given: OverlapScorer(p["unit"]),
    "zscore": lambda p, given: QueryZScore(_made(p["scorer"], given)),
    "tiebreak": lambda p, given: TieBreak(_made(p["scorer"], given), then=_made(p["then"], given)),
    learned.FORMAT: lambda p, given: learned.LearnedScorer.from_provenance(
        p, [OVERLAPS.get(name) or given[name] for name in p["scorers"]]
    ),
    queries.FORMAT: lambda p, given: queries.LearnedQueryScorer.from_provenance(
        p, [OVERLAPS.get(name) or given[name] for name in [*p["scorers"], *p["query_scorers"]]]
    ),
    "best": lambda p, given: BestScore(_made(p["scorer"], given)),
}


def scorer_of(provenance: Provenance, scorers: Iterable[Named] = ()) -> Scorer:
    """Return the scorer with this `provenance`, which names the `scorers` that it `needs`.

    Raises ValueError for a scorer that is named and not given, and for a provenance of another
    shape.

    >>> scorer_of({"kind": "zscore", "scorer": {"kind": "rank", "retriever": "dense"}}).name
    'zscore(rank(dense))'
    """
    scorer: Scorer = _with(provenance, scorers, "score")
    return scorer


def query_scorer_of(provenance: Provenance, scorers: Iterable[Named] = ()) -> QueryScorer:
    """Return the query scorer with this `provenance`, from the scorers that it `needs`, of
    snippets or of queries. Raises as `scorer_of`.

    >>> hit = {"kind": "retrieval", "retriever": "bm25", "higher_is_better": True}
    >>> query_scorer_of({"kind": "best", "scorer": hit}).name
    'best(retrieval(bm25, higher))'
    """
    scorer: QueryScorer = _with(provenance, scorers, "score_query")
    return scorer


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
        raise ValueError(
            f"the score is made of {', '.join(map(repr, missing))}; give these scorers, with the "
            "models that were calibrated with"
        )
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
    if (kind := _kind(provenance)) not in KINDS:
        raise KeyError(kind)
    if kind in (learned.FORMAT, queries.FORMAT):
        names = [*provenance["scorers"], *provenance.get("query_scorers", [])]
        return [name for name in names if name not in OVERLAPS]
    parts = [provenance[part] for part in ("scorer", "then") if part in provenance]
    parts += provenance.get("scorers", [])
    return [name for part in parts for name in _names(part)]


def _made(provenance: Provenance, given: Given) -> Any:
    if "name" in provenance:
        return given[provenance["name"]]
    return KINDS[_kind(provenance)](provenance, given)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _kind(provenance: Provenance) -> Any:
    return provenance.get("kind", provenance.get("format"))


def _broken(provenance: Provenance) -> ValueError:
    return ValueError(
        f"scorer_provenance has kind {_kind(provenance)!r:.40}, and is not what a scorer of this "
        "version writes; give the scorer that was calibrated with, or calibrate again"
    )
