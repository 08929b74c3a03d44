"""What a calibration promises, in words: of what, over what, assuming what, from how much."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from conformal_retrievers import conformal

if TYPE_CHECKING:
    from conformal_retrievers.calibration import Calibration

PROMISES = {
    "query-recall": (
        "of the relevant snippets {which} a new query, an expected share of at least {target} is "
        "kept, so that one picked at random is kept with probability at least {target}"
    ),
    "snippet": "a new relevant snippet {that} is kept with probability at least {target}",
    "all": (
        "with probability at least {target}, none of the relevant snippets {which} a new query is "
        "dropped"
    ),
    "any": (
        "with probability at least {target}, one or more of the relevant snippets {which} a new "
        "query are kept, if there are any"
    ),
}


def statement(calibration: Calibration) -> str:
    """Return the promise of a calibration as one paragraph."""
    parts = (_promise, _groups, _rule, _assumption, _basis)
    return " ".join(sentence for part in parts if (sentence := part(calibration)))


def _promise(c: Calibration) -> str:
    promise = PROMISES[c.guarantee].format(
        target=repr(float(1 - conformal.exact_alpha(c.alpha))),
        which="of" if c.count_missed else "that are retrieved for",
        that="of any query" if c.count_missed else "that is retrieved",
    )
    if c.delta is None:
        named = f"(guarantee {c.guarantee!r}, alpha = {c.alpha:g})"
    else:
        named = f"(guarantee {c.guarantee!r}, alpha = {c.alpha:g}, delta = {c.delta:g})"
        promise = (
            f"of all calibrations like this one, at least {1 - c.delta:.6g} keep what follows: "
            f"{promise}"
        )
    if c.by_group:
        # Where missed snippets count, keeping everything does not make the promise true.
        which = " that has a threshold below" if c.count_missed else ""
        promise = f"in each group of queries{which}, {promise}"
    elif c.count_missed and math.isinf(c.threshold()):
        promise = f"this is out of reach, and is not promised: that {promise}"
    return f"{promise[0].upper()}{promise[1:]} {named}."


def _groups(c: Calibration) -> str:
    if not c.by_group:
        return ""
    finite = [g for g in c.n_units if math.isfinite(c.threshold(g))]
    rest = {g: n for g, n in c.n_units.items() if g not in finite}
    sentences = []
    if finite:
        named = ", ".join(f"{g} ({c.n_units[g]}, score ≤ {c.threshold(g):.6g})" for g in finite)
        sentences.append(f"The groups, with their number of {_unit(c)} and what is kept: {named}.")
    sentences += [
        f"Everything is kept in {g} ({n}): {_why_everything(c, g)}." for g, n in rest.items()
    ]
    sentences.append("In a group that is not named here, everything is kept.")
    return " ".join(sentences)


def _rule(c: Calibration) -> str:
    if c.by_group:
        return f"Scores are those of {c.scorer!r}."
    if math.isfinite(c.threshold()):
        return f"Kept is what {c.scorer!r} scores at most {c.threshold():.6g}."
    return f"Everything is kept: {_why_everything(c, None)}."


def _why_everything(c: Calibration, group: str | None) -> str:
    n, queries = c.n_units[group], c.units(group).queries
    found, missed = sum(len(q.scores) for q in queries), sum(q.missed for q in queries)
    if n < c.n_needed:
        return (
            f"{n} {_unit(c, n)} too few for any threshold to promise this, which takes at least "
            f"{c.n_needed}, that is {c.n_needed - n} more"
        )
    dropped = sum(int((q.scores == math.inf).sum()) for q in queries)
    if dropped:
        return (
            f"no threshold reaches this, because the scorer itself drops {dropped} of {found} "
            "relevant snippets (score inf); let it drop fewer, or raise alpha"
        )
    if c.count_missed and missed and not c.weighted:
        return (
            "no threshold reaches this at this depth K, because the retriever misses too many "
            f"relevant snippets: recall@K is {found / (found + missed):.3f} ({found} of "
            f"{found + missed}); raise K or alpha"
        )
    return "no threshold below the highest score reaches this with these weights"


def _count(n: int, one: str, many: str | None = None) -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def _unit(c: Calibration, n: int | None = None) -> str:
    one, many = (
        ("relevant snippet", "relevant snippets")
        if c.guarantee == "snippet"
        else ("judged query", "judged queries")
    )
    return many if n is None else f"{one} is" if n == 1 else f"{many} are"


def _assumption(c: Calibration) -> str:
    same = (
        "the same kind of question, the same retriever, depth, chunking and scorer, and the same "
        "meaning of relevant"
    )
    over = (
        "The probability is over calibration and new query together."
        if c.delta is None
        else "The probability is over the new query, and the share over calibrations like this one."
    )
    if c.weighted:
        same += (
            ", but for what the weights make good: the likelihood ratio of new to judged queries, "
            f"worth {c.effective_queries:.0f} queries of equal weight, where no new query weighs "
            f"more than {c.max_weight or max(query.weight for query in c.queries):g}"
        )
    if c.lowest_propensity < 1:
        same += (
            f". Judgements were sampled with probabilities down to {c.lowest_propensity:g} and "
            "count by their inverse"
        )
    if c.guarantee != "snippet":
        return (
            f"This assumes new queries exchangeable with those of the calibration: {same}. {over}"
        )
    return (
        "This assumes new relevant snippets exchangeable with those of the calibration, which "
        "snippets that come in queries are not: where queries with many relevant snippets are the "
        "easy ones, the other queries keep a smaller share, however large the calibration; "
        f"'query-recall' assumes less. It also takes {same}. {over}"
    )


def _basis(c: Calibration) -> str:
    sentences = [
        f"It rests on {_count(c.n_relevant, 'relevant snippet')} of "
        f"{_count(c.n_queries, 'query', 'queries')}, worth "
        f"{_count(round(c.effective_n), 'independent snippet')} (design effect "
        f"{c.design_effect:.1f})."
    ]
    left_out = len(c.queries) - c.n_queries + c.n_without_relevant
    if left_out:
        sentences.append(
            f"{left_out} more had no relevant snippet {'' if c.count_missed else 'retrieved '}and "
            "did not enter."
        )
    if not c.count_missed:
        sentences.append("Nothing is promised about relevant snippets that the retriever misses")
        if c.n_missed:
            sentences[-1] += f": here {c.n_missed} of the {c.n_relevant + c.n_missed} known ones"
        sentences[-1] += "."
    return " ".join(sentences)
