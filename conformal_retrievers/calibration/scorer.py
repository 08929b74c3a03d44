"""The scorer of a calibration: the one that is given, or made again from what the file holds."""

from collections.abc import Iterable
from typing import Any

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import CalibrationMismatch, check_same_scorer
from conformal_retrievers.scoring.rebuild import Provenance, needs, scorer_of
from conformal_retrievers.scoring.scorer import Scorer, check_scorer, with_parts


def needed_scorers(calibration: Calibration) -> list[str]:
    """Return the names of the scorers that a filter must be given; none if the calibration holds
    all that its score needs, as one that is made from hits does.

    >>> from conformal_retrievers.data.queries import ScoredQuery
    >>> needed_scorers(Calibration.from_scores([ScoredQuery([1], [True])], alpha=0.5, scorer="s"))
    ['s']
    """
    stored = _stored(calibration)
    return needs(stored) if stored else [calibration.scorer]


def scorer_for(calibration: Calibration, scorers: Scorer | Iterable[Scorer] = ()) -> Scorer:
    """Return the calibration's scorer, given it or the scorers that it is made of, in any order.

    Scorers that it was chosen among may be given although it needs them not. Raises
    `CalibrationMismatch`, naming them, for missing scorers and for others.
    """
    given = [scorers] if isinstance(scorers, Scorer) else [*scorers]
    for scorer in given:
        check_scorer(scorer)
        if scorer.name == calibration.scorer:
            return scorer
    stored, names = _stored(calibration), {scorer.name for scorer in given}
    if missing := [name for name in needed_scorers(calibration) if name not in names]:
        if len(given) == len(missing) == 1:
            check_same_scorer(given[0].name, calibrated=missing[0])
        raise CalibrationMismatch(
            f"the calibration needs {', '.join(map(repr, missing))}, but the scorers given are "
            f"{sorted(names)}. Give the models that were calibrated with, or calibrate again"
        )
    scorer = scorer_of(stored or {}, given)
    used = {part.name for part in with_parts(scorer)} | {*_choice(calibration).get("given", ())}
    if extra := sorted(names - used):
        needs = ", ".join(map(repr, needed_scorers(calibration))) or "no model"
        raise CalibrationMismatch(
            f"the calibration needs {needs}, but {', '.join(map(repr, extra))} is given too; leave "
            f"it out, or calibrate with it (calibrated with {calibration.scorer!r})"
        )
    return scorer


def _stored(calibration: Calibration) -> Provenance | None:
    """Return the provenance from which the scorer can be made; None without one."""
    found: Provenance = calibration.scorer_provenance or {}
    found = found.get("score", found)
    return found if {"kind", "format"} & set(found) else None


def _choice(calibration: Calibration) -> Any:
    return (calibration.scorer_provenance or {}).get("choice") or {}
