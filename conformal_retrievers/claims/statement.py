"""What a calibration of claims promises, in words: of what, assuming what, from how much."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from conformal_retrievers.theory.ranks import exact_alpha

if TYPE_CHECKING:
    from conformal_retrievers.claims.calibration import ClaimCalibration


def statement(calibration: ClaimCalibration) -> str:
    """Return the promise of a calibration of claims as one paragraph."""
    parts = (_promise, _rule, _assumption, _basis)
    return " ".join(part(calibration) for part in parts)


def _promise(c: ClaimCalibration) -> str:
    a = c.answers
    target = repr(float(1 - exact_alpha(a.alpha)))
    of = "all" if c.share == 1 else f"at least a share {c.share:g} of the"
    promise = f"with probability at least {target}, {of} claims that are kept of a new answer"
    promise += " are factual"
    named = f"(alpha = {a.alpha:g})"
    if a.delta is not None:
        promise = (
            f"of all calibrations like this one, at least {1 - a.delta:.6g} keep what follows: "
            f"{promise}"
        )
        named = f"(alpha = {a.alpha:g}, delta = {a.delta:g})"
    if a.by_group:
        promise = f"in each group of queries, {promise}"
    return (
        f"{promise[0].upper()}{promise[1:]} {named}. An answer of which nothing is kept counts as "
        "factual: evaluate_claims tells how many those are."
    )


def _rule(c: ClaimCalibration) -> str:
    if c.answers.by_group:
        groups = [f"{group} ({n}: {_kept(c, group)})" for group, n in c.answers.n_units.items()]
        rule = (
            f"The groups, with their number of answers: {'; '.join(groups)}. In a group that is "
            "not named here nothing is kept."
        )
    else:
        rule = f"{_kept(c, None)}."
    return (
        f"{rule[0].upper()}{rule[1:]} Relevance is that of {c.scorer!r}; a claim that cannot be "
        "scored is dropped."
    )


def _kept(c: ClaimCalibration, group: str | None) -> str:
    threshold, n, needed = c.threshold(group), c.answers.n_units[group], c.answers.n_needed
    if threshold == -math.inf:
        return "every claim is kept that has a relevance"
    if threshold < math.inf:
        return f"a claim is kept whose relevance is above {threshold:.6g}"
    if n < needed:
        return f"nothing is kept, because it takes {needed} answers, {needed - n} more than these"
    return "nothing is kept, because no finite threshold promises this"


def _assumption(c: ClaimCalibration) -> str:
    over = (
        "The probability is over calibration and new answer together."
        if c.answers.delta is None
        else "The probability is over the new answer, and the share over calibrations like this "
        "one."
    )
    fails = (
        f" New claims must fail to be scored as often as these, of which {c.n_unscorable} did: one "
        "that fails is not kept, and so makes its answer look factual."
        if c.n_unscorable
        else ""
    )
    return (
        "This assumes new answers exchangeable with the annotated ones: the same kind of question, "
        "the same retriever, generator, division into claims and scorer, and the same meaning of "
        f"factual, as right as the annotations are.{fails} {over} It is about the kept claims "
        "themselves, not about a text that an LLM makes of them."
    )


def _basis(c: ClaimCalibration) -> str:
    sentences = [f"It rests on {c.n_answers} answers."]
    if c.n_without_claims:
        sentences.append(f"{c.n_without_claims} more had no claims and did not enter.")
    if c.unannotated:
        named = ", ".join(c.unannotated[:5]) + (", …" if len(c.unannotated) > 5 else "")
        sentences.append(
            f"{len(c.unannotated)} more had a claim that is not annotated and did not enter "
            f"({named}): the promise is about answers like those that could be annotated."
        )
    return " ".join(sentences)
