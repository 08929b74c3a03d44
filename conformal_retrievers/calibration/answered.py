"""What a statement says of answers: which will do, why too few do, how many there were."""

from collections.abc import Iterator

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


def why_none(c: Thresholds) -> str:
    """Return why too many questions fail with all of their snippets."""
    d = _details(c)
    share, alpha = percent(d.n_failing / d.n_questions), f"alpha = {c.alpha:g}"
    if d.right:
        return (
            f"the chain is wrong in {share} of the questions with all their snippets, so that "
            f"{alpha} cannot be had. Raise alpha, or leave count_wrong out"
        )
    return (
        f"the chain contradicts itself on the same snippets in {share} of the questions, so that "
        f"{alpha} cannot be had. Set its temperature to 0, compare answers by llm_same(llm), or "
        "raise alpha"
    )


def basis(c: Thresholds) -> Iterator[str]:
    """Yield the chain, how many questions need all snippets, and which were left out."""
    d = _details(c)
    yield f"The chain is {visible(d.chain)}."
    yield f"{percent(d.n_needing_all / d.n_questions)} of the questions need all their snippets."
    if d.n_failing:
        fails = "is wrong with all snippets" if d.right else "contradicts itself on all snippets"
        left_out = " These are not used." if d.right and not d.count_wrong else ""
        yield f"In {percent(d.n_failing / d.n_questions)} the chain {fails}.{left_out}"
    if d.failed:
        named = ", ".join(visible(text[:60]) for text in d.failed[:3])
        more = ", …" if len(d.failed) > 3 else ""
        questions = "1 question is" if len(d.failed) == 1 else f"{len(d.failed)} questions are"
        yield (
            f"{questions} left out because a call failed ({named}{more}): the guarantee is about "
            "questions like the others."
        )


def _details(c: Thresholds) -> AnswerDetails:
    return AnswerDetails.model_validate(dict(c.details))
