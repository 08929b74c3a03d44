"""The scorer of a calibration: the one that is given, or made again from what the file holds."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import CalibrationMismatch, check_same_scorer
from conformal_retrievers.calibration.wording import say
from conformal_retrievers.llm.ask import LLM
from conformal_retrievers.scoring.llm_verdict import LLMVerdict
from conformal_retrievers.scoring.query_scorer import QueryScorer
from conformal_retrievers.scoring.rating import LLMScorer
from conformal_retrievers.scoring.registry import Provenance, needs, query_scorer_of, scorer_of
from conformal_retrievers.scoring.scorer import Scorer, check_scorer, with_parts


def needed_scorers(calibration: Calibration) -> list[str]:
    """Return the names of the scorers that a filter must be given; none if the calibration holds
    all that its score needs, as one that is made from hits does. A gate in front needs its own.

    >>> from conformal_retrievers.data.queries import ScoredQuery
    >>> needed_scorers(Calibration.from_scores([ScoredQuery([1], [True])], alpha=0.5, scorer="s"))
    ['s']
    """
    stored, gate = _stored(calibration), calibration.gate
    own = [calibration.scorer] if stored is None else needs(stored)
    return [*dict.fromkeys([*own, *(needed_scorers(gate) if gate else ())])]


def scorer_for(
    calibration: Calibration,
    scorers: Scorer | Iterable[Scorer | QueryScorer] = (),
    gate: Calibration | None = None,
) -> Scorer:
    """Return the calibration's scorer, given it or the scorers that it is made of, in any order.

    Scorers that were given to `calibrate` may be given although it needs them not, and those that
    a gate in front needs. Raises `CalibrationMismatch`, naming them, for missing scorers and for
    others.
    """
    of_all = [scorers] if isinstance(scorers, Scorer) else [*scorers]
    given = [scorer for scorer in of_all if not isinstance(scorer, QueryScorer)]
    for scorer in given:
        check_scorer(scorer)
        if scorer.name == calibration.scorer:
            return scorer
    stored, names = _stored(calibration), {scorer.name for scorer in given}
    needed = needs(stored) if stored else [calibration.scorer]
    missing = [name for name in needed if name not in names]
    if len(given) == len(missing) == 1:
        check_same_scorer(given[0].name, calibrated=missing[0])
    _check_none_missing("the calibration", missing, names)
    scorer, choice = scorer_of(stored or {}, given), calibration.choice
    used = {part.name for part in with_parts(scorer)}.union(choice.given if choice else ())
    used |= {*needed_scorers(gate)} if gate else set()
    if extra := sorted(names - used):
        wanted = ", ".join(map(repr, needed_scorers(calibration))) or "no model"
        given_too = ", ".join(map(repr, extra))
        facts = {"wanted": wanted, "extra": given_too, "calibrated": calibration.scorer}
        raise CalibrationMismatch(say("scorer too many", **facts))
    return scorer


def query_scorer_for(
    calibration: Calibration, scorers: Iterable[Scorer | QueryScorer] = ()
) -> QueryScorer:
    """Return the query scorer of a gate's calibration, given the scorers that it is made of.

    Others may be given, as those of the filter behind the gate. Raises `CalibrationMismatch`,
    naming them, for missing scorers.
    """
    given, stored = [*scorers], _stored(calibration)
    for scorer in given:
        if isinstance(scorer, QueryScorer) and scorer.name == calibration.scorer:
            return scorer
    names = {scorer.name for scorer in given} | {
        part.name for scorer in given if isinstance(scorer, Scorer) for part in with_parts(scorer)
    }
    missing = [name for name in needed_scorers(calibration) if name not in names]
    _check_none_missing("the gate", missing, names)
    return query_scorer_of(stored or {}, given)


def _check_none_missing(what: str, missing: Collection[str], given: Collection[str]) -> None:
    if missing:
        facts = {"names": ", ".join(map(repr, missing)), "given": sorted(given)}
        raise CalibrationMismatch(say("scorer missing", what=what, **facts))


def scorers_of(llm: LLM, needed: Collection[str]) -> list[Scorer | QueryScorer]:
    """Return the scorers of an LLM that a filter or its gate needs; its ratings if that is unknown.

    >>> from conformal_retrievers.llm import Reply
    >>> llm = LLM(lambda request: Reply("…"), "toy")
    >>> [type(scorer).__name__ for scorer in scorers_of(llm, [LLMVerdict(llm).name])]
    ['LLMVerdict']
    """
    made: list[Scorer | QueryScorer] = [LLMScorer(llm), LLMVerdict(llm)]
    return [scorer for scorer in made if scorer.name in needed] or made[:1]


def given_scorers(
    needed: Collection[str],
    models: Iterable[Any],
    as_scorer: Callable[[Any], Scorer],
    llm: LLM | None,
) -> list[Scorer | QueryScorer]:
    """Return the scorers of an LLM and of models of a framework, also in lists; None is no one."""
    scorers = [] if llm is None else scorers_of(llm, needed)
    for given in models:
        for model in given if isinstance(given, list) else [given]:
            if model is not None:
                scorers.append(model if isinstance(model, QueryScorer) else as_scorer(model))
    return scorers


def _stored(calibration: Calibration) -> Provenance | None:
    """Return the provenance from which the scorer can be made; None without one."""
    stored: Provenance = calibration.scorer_provenance or {}
    stored = stored.get("score", stored)
    return stored if {"kind", "format"} & set(stored) else None
