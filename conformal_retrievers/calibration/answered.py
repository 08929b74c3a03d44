"""What a statement says of answers: which will do, why too few do, how many there were."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from conformal_retrievers.calibration.file_schema import details_of
from conformal_retrievers.calibration.subjects import ANSWERS
from conformal_retrievers.calibration.thresholds import Thresholds
from conformal_retrievers.calibration.wording import say
from conformal_retrievers.data.text import counted, visible


def terms(c: Thresholds) -> dict[str, str]:
    """Return which answers will do, and to which questions; nothing for another subject."""
    if c.subject != ANSWERS:
        return {}
    d = details_of(c)
    return {
        "answer": say("right answer" if d.right else "same answer", same=d.same),
        "whose": say("right from all") if d.right and not d.count_wrong else "",
    }


def why_none(c: Thresholds, group: str | None) -> str:
    """Return why too many questions of a group fail with all of their snippets."""
    d, scores = details_of(c), c.units(group).scores
    failing = np.count_nonzero(scores == math.inf)
    wrong = d.n_wrong * d.count_wrong
    causes = {
        "contradicts": d.n_contradicting > 0,
        "is wrong": wrong > 0,
        "scores inf": failing > d.n_contradicting + wrong,
    }
    names = [name for name, holds in causes.items() if holds]
    facts = {"failing": failing, "n": len(scores), "alpha": c.alpha}
    facts["cause"] = " or ".join(say(f"cause {name}") for name in names)
    facts["remedy"] = ", ".join(say(f"remedy {name}") for name in names)
    more = "give more questions, " if failing <= c.alpha * len(scores) else ""
    return say("fail with all", more=more, **facts)


def basis(c: Thresholds) -> Iterator[str]:
    """Yield the chain, how many questions need all snippets or none, and which were left out."""
    d = details_of(c)
    yield f"The chain is {visible(d.chain)}. {c.n_queries} of {d.n_questions} questions calibrate."
    used = "These count as lost." if d.count_wrong else "These are not used."
    counts = {
        "needing all": d.n_needing_all,
        "needing none": d.n_needing_none,
        "contradicting": d.n_contradicting,
        "wrong": d.n_wrong,
    }
    for name, n in counts.items():
        if n:
            yield say(name, share=f"{n} of {d.n_questions} questions", used=used)
    if d.n_needing_all > c.alpha * c.n_queries:
        yield say("mostly all")
    if d.n_needing_none > d.n_questions / 2:
        yield say("mostly none")
    if d.failed:
        questions = counted(len(d.failed), "question is", "questions are")
        yield say("call failed", questions=questions, names=listed(d.failed, 3))


def not_covered(c: Thresholds) -> str:
    """Return what the guarantee is not about."""
    d = details_of(c)
    if not d.right:
        return say("neither right nor relevant")
    wrong = "" if d.count_wrong else f"{c.subject.says('not_covered')}, and "
    return f"{wrong}whether a snippet is relevant"


def listed(names: Sequence[object], most: int) -> str:
    """Write the first names of a list, and that there are more."""
    named = ", ".join(visible(str(name)) for name in names[:most])
    return f"{named}, …" if len(names) > most else named
