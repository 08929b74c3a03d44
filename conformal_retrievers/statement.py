"""What a calibration promises, in words: of what, over what, assuming what, from how much."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from conformal_retrievers import conformal

if TYPE_CHECKING:
    from conformal_retrievers.calibration import Calibration


def statement(calibration: Calibration) -> str:
    """Return the promise of a calibration as one paragraph."""
    parts = (_promise, _rule, _assumption, _basis)
    return " ".join(part(calibration) for part in parts)


def _promise(calibration: Calibration) -> str:
    target = repr(float(1 - conformal.exact_alpha(calibration.alpha)))
    named = f"(guarantee {calibration.guarantee!r}, alpha = {calibration.alpha:g})"
    if calibration.guarantee == "query-recall":
        return (
            "Of the relevant snippets that are retrieved for a new query, an expected share of at "
            f"least {target} is kept: one picked at random is kept with probability at least "
            f"{target} {named}."
        )
    return (
        f"A new relevant snippet that is retrieved is kept with probability at least {target} "
        f"{named}."
    )


def _rule(calibration: Calibration) -> str:
    threshold = calibration.threshold()
    if math.isfinite(threshold):
        return f"Kept is what {calibration.scorer!r} scores at most {threshold:.6g}."
    unit = "judged queries" if calibration.guarantee == "query-recall" else "relevant snippets"
    needed = conformal.queries_needed(calibration.alpha)
    return (
        f"Everything is kept, because {calibration.n_units} {unit} are too few for any threshold "
        f"to promise this: it takes at least {needed}, that is {needed - calibration.n_units} more."
    )


def _assumption(calibration: Calibration) -> str:
    same = (
        "the same kind of question, the same retriever, depth, chunking and scorer, and the same "
        "meaning of relevant. The probability is over calibration and new query together"
    )
    if calibration.guarantee == "query-recall":
        return f"This assumes new queries exchangeable with those of the calibration: {same}."
    return (
        "This assumes new relevant snippets exchangeable with those of the calibration, which "
        "snippets that come in queries are not: where queries with many relevant snippets are the "
        "easy ones, the other queries keep a smaller share, however large the calibration; "
        f"'query-recall' assumes less. It also takes {same}."
    )


def _basis(calibration: Calibration) -> str:
    sentences = [
        f"It rests on {calibration.n_relevant} relevant snippets of {calibration.n_queries} "
        f"queries, worth {calibration.effective_n:.0f} independent snippets (design effect "
        f"{calibration.design_effect:.1f})."
    ]
    if calibration.n_without_relevant:
        sentences.append(
            f"{calibration.n_without_relevant} more had no relevant snippet retrieved and did not "
            "enter."
        )
    sentences.append("Nothing is promised about relevant snippets that the retriever misses")
    if calibration.n_missed:
        known = calibration.n_relevant + calibration.n_missed
        sentences[-1] += f": for these queries, {calibration.n_missed} of the {known} known ones"
    return " ".join(sentences) + "."
