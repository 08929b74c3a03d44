"""What a statement says of answers: which will do, why too few do, how many there were."""

import math
from collections.abc import Iterator

import numpy as np

from conformal_retrievers.calibration.record import AnswerDetails
from conformal_retrievers.calibration.subjects import ANSWERS
from conformal_retrievers.calibration.thresholds import Thresholds
from conformal_retrievers.data.text import visible
from conformal_retrievers.theory.intervals import percent


def terms(c: Thresholds) -> dict[str, str]:
    """Return which answers will do, and to which questions; nothing for another subject."""
    if c.subject != ANSWERS:
        return {}
    d = _details(c)
    if not d.right:
        return {"answer": f"is the one from all retrieved snippets (by {d.same})", "whose": ""}
    whose = "" if d.count_wrong else ", if it is right from all retrieved ones"
    return {"answer": f"is right (by {d.same})", "whose": whose}


def why_none(c: Thresholds, group: str | None) -> str:
    """Return why too many questions of a group fail with all of their snippets."""
    d, scores = _details(c), c.units(group).scores
    failing = np.count_nonzero(scores == math.inf)
    causes = {
        "the chain contradicts itself on the same snippets": d.n_contradicting > 0,
        "the chain is wrong": d.count_wrong and d.n_wrong > 0,
        "the scorer gives needed snippets a score of inf": failing
        > d.n_contradicting + d.n_wrong * d.count_wrong,
    }
    text = f"with all snippets, {failing} of {len(scores)} questions fail"
    remedy = "set its temperature to 0, compare answers by llm_same(llm), or raise alpha"
    if failing <= c.alpha * len(scores):
        remedy = f"give more questions, or {remedy}"
    cause = " or ".join(name for name, holds in causes.items() if holds)
    return (
        f"{text}, because {cause}, so that alpha = {c.alpha:g} cannot be had. To mend it, {remedy}"
    )


def basis(c: Thresholds) -> Iterator[str]:
    """Yield the chain, how many questions need all snippets, and which were left out."""
    d = _details(c)
    yield f"The chain is {visible(d.chain)}."
    if d.n_needing_all:
        share = percent(d.n_needing_all / d.n_questions)
        yield f"{share} of the questions need all their snippets."
    if d.n_contradicting:
        share = percent(d.n_contradicting / d.n_questions)
        yield f"In {share} the chain contradicts itself, asked twice with all snippets."
    if d.n_wrong:
        used = "These count as lost." if d.count_wrong else "These are not used."
        yield f"In {percent(d.n_wrong / d.n_questions)} it is wrong with all snippets. {used}"
    if d.failed:
        named = ", ".join(visible(text) for text in d.failed[:3])
        more = ", …" if len(d.failed) > 3 else ""
        questions = "1 question is" if len(d.failed) == 1 else f"{len(d.failed)} questions are"
        yield (
            f"{questions} left out because a call failed ({named}{more}): the guarantee is about "
            "questions like the others."
        )


def not_covered(c: Thresholds) -> str:
    """Return what the guarantee is not about."""
    d = _details(c)
    if not d.right:
        return "whether an answer is right, and whether a snippet is relevant"
    return (
        "" if d.count_wrong else f"{c.subject.not_covered}, and "
    ) + "whether a snippet is relevant"


def _details(c: Thresholds) -> AnswerDetails:
    return AnswerDetails.model_validate(dict(c.details))
