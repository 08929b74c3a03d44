"""What a calibration guarantees, in words: one template for snippets, claims and flags.

Line 1 is the guarantee, line 2 the threshold. The assumptions follow, then the numbers behind them.
"""

from __future__ import annotations

import math
from fractions import Fraction

from conformal_retrievers.calibration.subjects import SNIPPETS
from conformal_retrievers.calibration.thresholds import Thresholds
from conformal_retrievers.theory.ranks import exact_alpha

SNIPPET_GUARANTEES: dict[str, str] = {
    "query-recall": "keeps at least {target} of the relevant snippets {which}, on average over "
    "queries",
    "snippet": "keeps a relevant snippet {that} with probability at least {target}",
    "all": "keeps all relevant snippets {which} for a query, with probability at least {target}",
    "any": "keeps at least one relevant snippet {that} for a query, with probability at least "
    "{target}, if there is any",
}
SAME = {
    "snippets": "the same kind of question, retriever, depth, chunking and scorer, and the same "
    "meaning of relevant",
    "claims": "the same kind of question, retriever, generator, division into claims and scorer, "
    "and the same meaning of factual",
    "flags": "the same kind of question, retriever, model and prompt, and the same meaning of "
    "consistent",
}
WHY_NONE_KEPT = "relevant snippets that have no score, or score −inf, suffice to reach the target"


def statement(calibration: Thresholds) -> str:
    """Return the guarantee, the threshold, the assumptions and the numbers, a line each."""
    c = calibration
    lines = [
        _guarantee(c),
        _thresholds(c),
        f"Assumptions: {_assumptions(c)}",
        f"Basis: {_basis(c)}",
        f"Not covered: {_not_covered(c)}",
    ]
    return "\n".join(lines)


# --- the guarantee --------------------------------------------------------------------------------


def _guarantee(c: Thresholds) -> str:
    text = _guaranteed(c, percent(1 - exact_alpha(c.alpha)))
    if c.delta is not None:
        confident = percent(1 - exact_alpha(c.delta))
        text += f". This holds for at least {confident} of calibrations like this one"
    if c.by_group:
        text = f"within each group that has a threshold, {text}"
    elif c.count_missed and c.threshold() == math.inf:
        return f"Out of reach at this depth: no threshold {text}."
    return f"{text[0].upper()}{text[1:]}."


def _guaranteed(c: Thresholds, target: str) -> str:
    if c.subject.name == "flags":
        return f"flags an inconsistent answer with probability at least {target}"
    if c.subject.name == "claims":
        share = percent(float(str(c.details.get("share", 1.0))))
        which = "all kept claims of an answer"
        if share != "100 %":
            which = f"at least {share} of an answer's kept claims"
        return f"{which} are factual with probability at least {target}"
    return SNIPPET_GUARANTEES[c.guarantee].format(
        target=target,
        which="(retrieved or not)" if c.count_missed else "that were retrieved",
        that="(retrieved or not)" if c.count_missed else "that was retrieved",
    )


def percent(share: float | Fraction) -> str:
    """Return a share in percent, exactly as far as a float can hold it.

    >>> percent(0.9), percent(0.875), percent(1 - Fraction("1e-12"))
    ('90 %', '87.5 %', '99.9999999999 %')
    """
    return f"{float(100 * Fraction(str(share))):.16g} %"


# --- the threshold --------------------------------------------------------------------------------


def _thresholds(c: Thresholds) -> str:
    if not c.by_group:
        threshold = c.threshold()
        rule = _rule(c, f"{threshold:.6g}") if math.isfinite(threshold) else _no_rule(c, None)
        return f"Threshold: {rule}."
    groups = "; ".join(f"{_members(c, g)}: {_of_group(c, g)}" for g in c.n_units)
    rest = _all_or_none(c, c.subject.at_infinity == "keep_all")
    rule = _rule(c, "that of their group")
    return f"Thresholds: {rule}. By group: {groups}. In any other group, {rest}."


def _of_group(c: Thresholds, group: str | None) -> str:
    if not math.isfinite(c.threshold(group)):
        return _no_rule(c, group)
    return f"{c.threshold(group):.6g} ({_count(c.n_units[group], *_unit(c))})"


def _rule(c: Thresholds, threshold: str) -> str:
    if c.subject.name == "claims":
        return f"claims with a relevance > {threshold} are kept (scorer {c.scorer})"
    if c.subject.name == "flags":
        return f"answers with a confidence ≤ {threshold} are flagged (classifier {c.scorer})"
    return f"snippets with a score ≤ {threshold} are kept (scorer {c.scorer})"


def _no_rule(c: Thresholds, group: str | None) -> str:
    above = c.threshold(group) > 0
    effect = _all_or_none(c, above == (c.subject.at_infinity == "keep_all"))
    if above:
        return f"none, so {effect}: {_why_none(c, group)}"
    if c.subject.name == "claims":
        return f"none, so {effect}"
    return f"none, so {effect} unless it has no score: {WHY_NONE_KEPT}"


def _all_or_none(c: Thresholds, everything: bool) -> str:
    if c.subject.name == "flags":
        return "every answer is flagged" if everything else "no answer is flagged"
    if c.subject.name == "claims":
        return "every claim that has a relevance is kept" if everything else "no claim is kept"
    return "every snippet is kept" if everything else "no snippet is kept"


def _why_none(c: Thresholds, group: str | None) -> str:
    units, n = c.units(group), c.n_units[group]
    if n < c.n_needed:
        return (
            f"at least {_count(c.n_needed, *_unit(c))} are needed, {c.n_needed - n} more than "
            "there are"
        )
    if c.subject != SNIPPETS:
        return "no finite threshold gives this guarantee"
    found = sum(len(query.scores) for query in units.queries)
    missed = sum(query.missed for query in units.queries) * c.count_missed
    dropped = sum(int((query.scores == math.inf).sum()) for query in units.queries)
    if dropped:
        cause = f"the scorer gives {dropped} of {found} relevant snippets a score of inf"
        remedy = "Make the scorer drop fewer, or raise alpha"
    else:
        cause = f"the retriever returns {found} of {found + missed} known relevant snippets"
        remedy = "Retrieve deeper, or raise alpha"
    if units.reach <= 1 - c.alpha:
        most = percent(round(units.reach, 3))
        return f"{cause}, so keeping everything reaches {most}. {remedy}"
    return f"{cause}, and there are too few judged queries. Judge more queries, or raise alpha"


def _members(c: Thresholds, group: str | None) -> str:
    """Return the name of a group, and of those that were merged into it."""
    merged = [one for one, other in (c.merge_groups or {}).items() if other == group != one]
    return f"{group} ({', '.join(merged)})" if merged else f"{group}"


# --- assumptions and numbers ----------------------------------------------------------------------


def _assumptions(c: Thresholds) -> str:
    unit, same = c.subject.unit, SAME[c.subject.name]
    new = "inconsistent answers" if c.subject.name == "flags" else c.subject.units
    if c.guarantee == "snippet":
        first = (
            f"New relevant snippets are exchangeable with those of the calibration: {same}. "
            "Snippets that come in queries are not: if queries with many relevant snippets are "
            "easier, the other queries keep a smaller share. 'query-recall' assumes less."
        )
    else:
        first = f"New {new} are exchangeable with the {c.subject.judged}: {same}."
    over = (
        f"The probability is over the calibration and the new {unit} together."
        if c.delta is None
        else f"The probability is over the new {unit}."
    )
    if c.count_missed and c.delta is None:
        over += " A calibration without a finite threshold counts as covering."
    failed = c.details.get("n_unscorable", 0)
    if failed:
        over += f" New claims fail to be scored as often as these, {failed} of which did."
    return f"{first} {over}"


def _basis(c: Thresholds) -> str:
    delta = "" if c.delta is None else f", delta = {c.delta!r}"
    given = f"guarantee = {c.guarantee!r}, " if c.subject == SNIPPETS else ""
    sentences = [f"{given}alpha = {c.alpha!r}{delta}."]
    if c.subject == SNIPPETS:
        sentences += _snippets(c)
    elif c.subject.name == "claims":
        sentences += _claims(c)
    else:
        sentences.append(
            f"{_count(c.n_queries, 'inconsistent answer')}; "
            f"{_count(c.n_without_relevant, 'consistent answer')} not used."
        )
    return " ".join(sentences)


def _snippets(c: Thresholds) -> list[str]:
    sentences = [
        f"{_count(c.n_relevant, 'relevant snippet')} of "
        f"{_count(c.n_queries, 'query', 'queries')}, worth "
        f"{_count(round(c.effective_n), 'independent snippet')} (design effect "
        f"{c.design_effect:.1f})."
    ]
    unscorable = sum(int((query.scores == -math.inf).sum()) for query in c.queries)
    if unscorable:
        sentences.append(f"{unscorable} of them have no score, or −inf, and count as kept.")
    left_out = len(c.queries) - c.n_queries + c.n_without_relevant
    if left_out:
        retrieved = "" if c.count_missed else " retrieved"
        without = _count(left_out, "query", "queries")
        sentences.append(f"{without} without a relevant snippet{retrieved} were not used.")
    labels = c.labels or {}
    if labels.get("source") == "LLM":
        llm = f"the LLM {labels['llm']!r}" if labels.get("llm") else "an LLM"
        audit = labels.get("audit")
        checked = (
            f"a person audited {audit.get('audited')} labels"
            if isinstance(audit, dict)
            else "not audited"
        )
        sentences.append(f"Relevance was labelled by {llm} ({checked}).")
    return sentences


def _claims(c: Thresholds) -> list[str]:
    sentences = [f"{_count(c.n_queries, 'annotated answer')}."]
    if c.details.get("n_without_claims"):
        sentences.append(f"{c.details['n_without_claims']} answers without claims were not used.")
    unannotated = c.details.get("unannotated")
    if isinstance(unannotated, list) and unannotated:
        named = ", ".join(map(str, unannotated[:5])) + (", …" if len(unannotated) > 5 else "")
        sentences.append(
            f"{len(unannotated)} answers with an unannotated claim were not used ({named}): the "
            "guarantee is about answers like those that could be annotated."
        )
    return sentences


def _not_covered(c: Thresholds) -> str:
    if c.subject.name == "claims":
        return (
            "a text that an LLM writes from the kept claims. Answers without a kept claim count as "
            "factual; evaluate_claims reports how many there are."
        )
    if c.subject.name == "flags":
        return "consistent answers, which may be flagged too."
    if c.count_missed:
        return "relevant snippets that were not judged."
    if not c.n_missed:
        return "relevant snippets that the retriever does not return."
    known = c.n_relevant + c.n_missed
    return (
        "relevant snippets that the retriever does not return, here "
        f"{c.n_missed} of {known} known ones."
    )


def _count(n: int, one: str, many: str | None = None) -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def _unit(c: Thresholds) -> tuple[str, str]:
    if c.guarantee == "snippet":
        return "relevant snippet", "relevant snippets"
    return c.subject.judged_unit, c.subject.judged
