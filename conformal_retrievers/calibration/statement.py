"""What a calibration promises, in words: of what, over what, assuming what, from how much."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import JsonValue

from conformal_retrievers.lookback.flag_statement import flag_statement, is_flag
from conformal_retrievers.theory import ranks

if TYPE_CHECKING:
    from conformal_retrievers.calibration.calibration import Calibration

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

WHY_NOTHING = (
    "the relevant snippets that could not be scored, or score −inf, are enough to reach this, so "
    "that only such snippets are kept; let the scorer score them, or lower alpha"
)


def statement(calibration: Calibration) -> str:
    """Return the promise of a calibration as one paragraph, of a flag's in words of answers."""
    if is_flag(calibration):
        return flag_statement(calibration)
    parts = (_promise, _groups, _rule, _assumption, _basis)
    return " ".join(sentence for part in parts if (sentence := part(calibration)))


def _promise(c: Calibration) -> str:
    promise = PROMISES[c.guarantee].format(
        target=repr(float(1 - ranks.exact_alpha(c.alpha))),
        which="of" if c.count_missed else "that are retrieved for",
        that="of any query" if c.count_missed else "that is retrieved",
    )
    if c.delta is None:
        named = f"(guarantee {c.guarantee!r}, alpha = {c.alpha!r})"
    else:
        named = f"(guarantee {c.guarantee!r}, alpha = {c.alpha!r}, delta = {c.delta!r})"
        promise = (
            f"of all calibrations like this one, at least {1 - c.delta:.6g} keep what follows: "
            f"{promise}"
        )
    if c.by_group:
        # Where missed snippets count, keeping everything does not make the promise true.
        which = " that has a threshold below" if c.count_missed else ""
        promise = f"in each group of queries{which}, {promise}"
    elif c.count_missed and c.threshold() == math.inf:
        promise = f"this is out of reach, and is not promised: that {promise}"
    return f"{promise[0].upper()}{promise[1:]} {named}."


def _groups(c: Calibration) -> str:
    if not c.by_group:
        return ""
    finite = [g for g in c.n_units if math.isfinite(c.threshold(g))]
    rest = {g: n for g, n in c.n_units.items() if c.threshold(g) == math.inf}
    none = {g: n for g, n in c.n_units.items() if c.threshold(g) == -math.inf}
    sentences = []
    if finite:
        named = ", ".join(
            f"{_members(c, g)} ({c.n_units[g]}, score ≤ {c.threshold(g):.6g})" for g in finite
        )
        sentences.append(f"The groups, with their number of {_unit(c)} and what is kept: {named}.")
    sentences += [
        f"Everything is kept in {_members(c, g)} ({n}): {_why_everything(c, g)}."
        for g, n in rest.items()
    ]
    sentences += [
        f"Nothing that has a score is kept in {_members(c, g)} ({n}): {WHY_NOTHING}."
        for g, n in none.items()
    ]
    sentences.append("In a group that is not named here, everything is kept.")
    return " ".join(sentences)


def _members(c: Calibration, group: str | None) -> str:
    """Name a group, and those that were merged into it."""
    merged = [one for one, other in (c.merge_groups or {}).items() if other == group != one]
    return f"{group} ({', '.join(merged)})" if merged else f"{group}"


def _rule(c: Calibration) -> str:
    if c.by_group:
        return f"Scores are those of {c.scorer!r}."
    if math.isfinite(c.threshold()):
        return f"Kept is what {c.scorer!r} scores at most {c.threshold():.6g}."
    if c.threshold() < 0:
        return f"Nothing that has a score is kept: {WHY_NOTHING}."
    return f"Everything is kept: {_why_everything(c, None)}."


def _why_everything(c: Calibration, group: str | None) -> str:
    units, n = c.units(group), c.n_units[group]
    if n < c.n_needed:
        return (
            f"{n} {_unit(c, n)} too few for any threshold to promise this, which takes at least "
            f"{c.n_needed}, that is {c.n_needed - n} more"
        )
    found = sum(len(query.scores) for query in units.queries)
    missed = sum(query.missed for query in units.queries) * c.count_missed
    dropped = sum(int((query.scores == math.inf).sum()) for query in units.queries)
    if dropped:
        lost = f"the scorer itself drops {dropped} of {found} relevant snippets (score inf)"
        remedy = "let it drop fewer, or raise alpha"
    else:
        lost = (
            f"the retriever misses too many relevant snippets: it returns {found} of all "
            f"{found + missed} known ones ({found / (found + missed):.3f})"
        )
        remedy = "raise K or alpha"
    more = "judge more queries, which leaves less to chance, or raise alpha"
    if units.reach <= 1 - c.alpha:
        return (
            f"no threshold reaches this at this depth K, because {lost}, and keeping all that is "
            f"left would give {units.reach:.3f}; {remedy}"
        )
    return f"no threshold is sure to reach this with so few {_unit(c)}, because {lost}; {more}"


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
    if c.count_missed and c.delta is None:
        over += " A calibration that finds no threshold for this, and says so, counts as kept."
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


def _labels(labels: Mapping[str, JsonValue]) -> list[str]:
    """Return what is to be said of labels that no person gave: what they are, and who checked."""
    if labels.get("source") != "LLM":
        return []
    llm = f"LLM {labels['llm']!r}" if labels.get("llm") else "LLM"
    said = f"Relevant is what {'an' if llm == 'LLM' else 'the'} {llm} called so"
    audit = labels.get("audit")
    if not isinstance(audit, dict):
        return [f"{said}, which nobody audited."]
    return [f"{said}, and a person judged {audit.get('audited')} of its labels again."]


def _basis(c: Calibration) -> str:
    sentences = [
        f"It rests on {_count(c.n_relevant, 'relevant snippet')} of "
        f"{_count(c.n_queries, 'query', 'queries')}, worth "
        f"{_count(round(c.effective_n), 'independent snippet')} (design effect "
        f"{c.design_effect:.1f})."
    ]
    unscorable = sum(int((query.scores == -math.inf).sum()) for query in c.queries)
    if unscorable:
        sentences.append(
            f"{_count(unscorable, 'of them', 'of them')} could not be scored, or score −inf, and "
            "count as kept at every threshold."
        )
    left_out = len(c.queries) - c.n_queries + c.n_without_relevant
    if left_out:
        sentences.append(
            f"{left_out} more had no relevant snippet {'' if c.count_missed else 'retrieved '}and "
            "did not enter."
        )
    sentences += _labels(c.labels or {})
    if not c.count_missed:
        sentences.append("Nothing is promised about relevant snippets that the retriever misses")
        if c.n_missed:
            sentences[-1] += f": here {c.n_missed} of the {c.n_relevant + c.n_missed} known ones"
        sentences[-1] += "."
    return " ".join(sentences)
