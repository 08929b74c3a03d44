"""What a calibration guarantees, in words: one template for all subjects.

Line 1 is the guarantee, line 2 the threshold. The assumptions follow, then the numbers behind them.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from conformal_retrievers.calibration import answered
from conformal_retrievers.calibration.guarantees import Units
from conformal_retrievers.calibration.labelled import judged_by
from conformal_retrievers.calibration.record import Choice
from conformal_retrievers.calibration.speech import false_speech, sources_of
from conformal_retrievers.calibration.subjects import ANSWERS, QUERIES, RETRIEVED
from conformal_retrievers.calibration.thresholds import Thresholds
from conformal_retrievers.data.text import visible
from conformal_retrievers.scoring.learned.score import weights_in
from conformal_retrievers.theory.intervals import percent
from conformal_retrievers.theory.ranks import exact_alpha

WHY_NONE_KEPT = "relevant {} that have no score, or score −inf, suffice to reach the target"


def statement(calibration: Thresholds) -> str:
    """Return the guarantee, the threshold, the assumptions and the numbers, a line each."""
    c = calibration
    score = " ".join([*_choice(c), *_top_k(c)])
    lines = [
        _guarantee(c),
        _thresholds(c),
        *([f"Score: {score}"] if score else []),
        *_gate(c),
        f"Assumptions: {_assumptions(c)}",
        f"Basis: {' '.join(_basis(c))}",
        f"Not covered: {_not_covered(c)}.",
    ]
    return "\n".join(lines)


def _guarantee(c: Thresholds) -> str:
    which, that = "that were retrieved", "that was retrieved"
    if c.count_missed:
        which = that = c.subject.known
    share = percent(float(str(c.details.get("share", 1.0))), exact=True)
    claims = f"at least {share} of an answer's kept claims"
    if share == "100 %":
        claims = "all kept claims of an answer"
    target = percent(1 - exact_alpha(c.alpha), exact=True)
    named = {"target": target, "which": which, "that": that, "claims": claims, **answered.terms(c)}
    text = c.subject.guarantees[c.guarantee].format(**named)
    if c.delta is not None:
        confident = percent(1 - exact_alpha(c.delta), exact=True)
        text += f". This holds for at least {confident} of calibrations like this one"
    if c.out_of_reach:
        at = "at this depth" if c.k is None else f"at K = {c.k}"
        if c.subject == ANSWERS:
            return f"Out of reach: no threshold {text}."
        if c.units().reach <= 1 - c.alpha and not _dropped_by_scorer(c.units()):
            at += ", so retrieve deeper"
        return f"Out of reach {at}: no threshold {text}."
    if c.by_group:
        text = f"within each group that has a threshold, {text}"
    return f"{text[0].upper()}{text[1:]}."


def _thresholds(c: Thresholds) -> str:
    finite = {g: f"{c.threshold(g):.6g}" for g in c.n_units if math.isfinite(c.threshold(g))}
    if not c.by_group:
        threshold = finite.get(None)
        rule = c.subject.rule.format(threshold=threshold, scorer=c.scorer)
        return f"Threshold: {rule if threshold else _no_rule(c, None)}."
    groups = []
    for group, n in c.n_units.items():
        stated = (
            f"{finite[group]} ({_count(n, *_unit(c))})" if group in finite else _no_rule(c, group)
        )
        groups.append(f"{group}: {stated}")
    rule = c.subject.rule.format(threshold="that of their group", scorer=c.scorer)
    return (
        f"Thresholds: {rule}. By group: {'; '.join(groups)}. In any other group, "
        f"{_effect(c, math.inf)}."
    )


def _gate(c: Thresholds) -> Iterator[str]:
    """Yield what is known of unanswerable queries, and of a gate in front."""
    if c.subject == QUERIES:
        yield false_speech(c)
    elif c.gate is not None:
        made = c.gate.choice
        chose = (
            f" {_count(made.n_fit, 'query', 'queries')} for its score calibrate nothing."
            if made
            else ""
        )
        yield (
            f"Gate: in front of the filter. {_guarantee(c.gate)} What it silences counts as "
            f"dropped, so the guarantee is about gate and filter together.{chose}"
        )
        yield false_speech(c.gate)


def _choice(c: Thresholds) -> Iterator[str]:
    """Yield the sentences on how the score was chosen or fitted."""
    if (made := c.choice) is None:
        return
    score = (c.scorer_provenance or {}).get("score")
    if not isinstance(score, dict) or not (prior := score.get("prior")):
        yield f"{made.chosen} by default: it does not depend on the query's other {c.subject.name}."
        return
    none = made.n_fit == 0
    if c.subject == QUERIES:
        none = made.n_fit < 20
        begins = "60 judged queries that are answerable, and 30 that are not"
        if made.n_fit:
            n = _count(made.n_fit, "query that does", "queries that do")
            begins += f". The scale of its numbers is that of {n} not calibrate"
    else:
        begins = (
            f"20 judged queries with a relevant retrieved {c.subject.item}, where more than the "
            f"{c.n_needed} for {'each' if c.by_group else 'the'} threshold are left"
        )
    if none:
        yield (
            f"learned from other collections (prior {prior}), and fitted to no query of this one."
        )
        if c.subject != ANSWERS:
            yield f"That begins at {begins}."
        return
    yield (
        f"learned from other collections (prior {prior}), and fitted to "
        f"{_count(made.n_fit, 'judged query', 'judged queries')} that do not calibrate"
        f"{_counts(score)}."
    )
    if made.costs:
        yield from _kept(c, made)
    if c.keeps_everything:
        yield f"The queries that calibrate give no finite threshold, so {_effect(c, math.inf)}."


def _counts(score: Mapping[str, Any]) -> str:
    """Return how much more one source counts than another, if the score reads several."""
    if "query_scorers" in score:
        return ""
    ordered = sorted(weights_in(score).items(), key=lambda pair: -pair[1])
    if len(ordered) < 2 or ordered[0][1] <= 0:
        return ""
    (most, more), *others = ordered
    counts = (
        f"{more / less:.1f} times as much as {name}"
        if less > 0.05 * more
        else f"and {name} does not"
        for name, less in others
    )
    return f": {most} counts {', '.join(counts)}"


def _kept(c: Thresholds, made: Choice) -> Iterator[str]:
    """Yield what the score keeps on the queries of the fit, what a top k, and what scorers add."""
    items, own = c.subject.name, made.costs["learned"]
    others = [f"the {name} {cost:.1f}" for name, cost in made.costs.items() if name != "learned"]
    than = f", and {', '.join(others)}" if others else ""
    yield (
        f"On these {made.n_fit}, by cross-validation, it keeps {own:.1f} {items} per query at "
        f"{percent(1 - exact_alpha(made.alpha or c.alpha), exact=True)} of the relevant ones{than}."
    )
    if made.best != "learned":
        yield (
            f"The {made.best} keeps fewer there, by more than the noise: this filter may cost "
            "context. Compare both with try_splits on more judged queries."
        )
    for name, added in made.adds.items():
        yield f"Without {name} it keeps {added.without:.1f} there, with it {added.with_it:.1f}."


def _top_k(c: Thresholds) -> Iterator[str]:
    """Yield what a threshold on the rank is."""
    score = (c.scorer_provenance or {}).get("score", c.scorer_provenance)
    if isinstance(score, dict) and score.get("kind") == "rank":
        t = math.inf if c.by_group else c.threshold()
        k = f", k = {math.floor(t) + 1}" if math.isfinite(t) else ""
        yield f"The filter is a calibrated top k of {score.get('retriever')!r}{k}."


def _no_rule(c: Thresholds, group: str | None) -> str:
    threshold = c.threshold(group)
    none = f"none, so {_effect(c, threshold)}"
    if threshold > 0:
        return f"{none}: {why_none(c, group)}"
    if c.subject.name == "claims":
        return none
    why = WHY_NONE_KEPT.format(c.subject.name)
    if c.subject == ANSWERS:
        why = "enough questions need none. Check that the chain reads its snippets"
    return f"{none} unless it has no score: {why}"


def _effect(c: Thresholds, infinite: float) -> str:
    keeps_all = c.subject.threshold_name(infinite) == "keep_all"
    unless = ", unless the gate is silent" if c.gate else ""
    return c.subject.keep_all + unless if keeps_all else c.subject.keep_none


def why_none(c: Thresholds, group: str | None) -> str:
    """Return why the threshold of a group is infinite."""
    units, n = c.units(group), c.n_units[group]
    reached = units.reach > 1 - c.alpha
    if n < c.n_needed and (reached or not c.count_missed):
        needed = _count(c.n_needed, *_unit(c))
        return f"at least {needed} are needed, and {n} calibrate: {c.n_needed - n} too few"
    if c.subject == ANSWERS:
        return answered.why_none(c, group)
    if c.subject not in RETRIEVED:
        return "no finite threshold gives this guarantee"
    found = len(units.queries.scores)
    missed = int(np.nansum(units.queries.missed)) * c.count_missed
    if dropped := _dropped_by_scorer(units):
        cause = f"the scorer gives {dropped} of {found} relevant {c.subject.name} a score of inf"
        remedy = "Make the scorer drop fewer"
        if c.gate is not None:
            cause = f"the gate silences {dropped} of {found} relevant {c.subject.name}"
            remedy = "Calibrate the gate with a smaller alpha"
    else:
        cause = f"the retriever returns {found} of {found + missed} known relevant {c.subject.name}"
        remedy = f"Retrieve deeper ({'a larger K' if c.k is None else f'K above {c.k}'})"
    if reached:
        return f"{cause}: too few for so few judged queries. {remedy}, judge more, or raise alpha"
    most = percent(round(units.reach, 3), exact=True)
    mean = "" if c.guarantee == "snippet" else "averaged over queries, "
    return f"{cause}; {mean}keeping everything reaches {most}. {remedy}, or raise alpha"


def _dropped_by_scorer(units: Units) -> int:
    return int(np.count_nonzero(units.queries.scores == math.inf))


def _assumptions(c: Thresholds) -> str:
    if c.guarantee == "snippet":
        text = (
            f"New relevant {c.subject.name} are exchangeable with those of the calibration: "
            f"{c.subject.same}. Those that come in queries are not: if queries with many relevant "
            "ones are easier, other queries keep less. 'query-recall' assumes less."
        )
    else:
        text = (
            f"New {c.subject.new} are exchangeable with the {c.subject.judged}: {c.subject.same}."
        )
    what = "average" if c.guarantee == "query-recall" else "probability"
    calibrations = " and calibrations like this one" if c.delta is None else ""
    text += f" The {what} is over new {c.subject.units}{calibrations}."
    if c.count_missed and c.delta is None and not c.out_of_reach:
        text += " A calibration that keeps everything counts as reaching the target."
    if failed := c.details.get("n_unscorable"):
        text += f" Scoring fails as often for new claims as for these ({failed} failed)."
    return text


def _basis(c: Thresholds) -> list[str]:
    level = f"alpha = {c.alpha!r}" + ("" if c.delta is None else f", delta = {c.delta!r}")
    if c.subject in RETRIEVED:
        return [f"guarantee = {c.guarantee!r}, {level}.", *_snippets(c)]
    units = _count(c.n_queries, *_unit(c))
    if c.subject == ANSWERS:
        return [f"{level}. {units}.", *answered.basis(c)]
    if c.subject.name == "claims":
        return [f"{level}. {units}.", *_claims(c)]
    if c.subject == QUERIES:
        without = _count(c.n_without_relevant, "query", "queries")
        left_out = f" Not used: {without} for which nothing relevant was retrieved."
        left_out = left_out if c.n_without_relevant else ""
        return [f"{level}. {units}.{left_out}", *judged_by(c.labels or {}, "snippets")]
    return [f"{level}. {units}; {_count(c.n_without_relevant, 'consistent answer')} not used."]


def _snippets(c: Thresholds) -> list[str]:
    relevant = _count(c.n_relevant, f"relevant {c.subject.item}")
    queries = _count(c.n_queries, "query", "queries")
    worth = _count(round(c.effective_n), f"independent {c.subject.item}")
    sentences = [f"{relevant} of {queries}, worth {worth} (design effect {c.design_effect:.1f})."]
    unscorable = int(np.count_nonzero(c.queries.scores == -math.inf))
    if unscorable:
        sentences.append(f"{unscorable} of them have no score, or −inf, and count as kept.")
    left_out = len(c.queries) - c.n_queries + c.n_without_relevant
    if left_out:
        without = _count(left_out, "query", "queries")
        known = "known" if c.count_missed else "retrieved"
        no_relevant = f"no relevant {c.subject.item}"
        sentences.append(f"Not used: {without} for which {no_relevant} was {known}.")
    if c.split:
        sentences.append(f"Documents are cut by {c.split}.")
    sentences += judged_by(c.labels or {}, c.subject.name)
    return sentences


def _claims(c: Thresholds) -> list[str]:
    sentences = []
    if without := c.details.get("n_without_claims"):
        n = int(str(without))
        answers = _count(n, "answer without claims was", "answers without claims were")
        sentences.append(f"{answers} not used.")
    unannotated = c.details.get("unannotated")
    if isinstance(unannotated, list) and unannotated:
        named = ", ".join(visible(str(name)) for name in unannotated[:5])
        more = ", …" if len(unannotated) > 5 else ""
        n, which = len(unannotated), "with an unannotated claim"
        answers = _count(n, f"answer {which} was", f"answers {which} were")
        sentences.append(
            f"{answers} not used ({named}{more}): the guarantee is about answers like those that "
            "could be annotated."
        )
    return sentences


def _not_covered(c: Thresholds) -> str:
    if c.count_missed:
        return f"relevant {c.subject.name} that were not judged"
    if c.subject == ANSWERS:
        return answered.not_covered(c)
    if c.subject == QUERIES:
        return "unanswerable queries of other kinds" if sources_of(c) else c.subject.not_covered
    if np.isnan(c.queries.missed).any():
        return c.subject.not_covered
    return f"{c.subject.not_covered}, here {c.n_missed} of {c.n_relevant + c.n_missed} known ones"


def _count(n: int, one: str, many: str | None = None) -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def _unit(c: Thresholds) -> tuple[str, str]:
    if c.guarantee == "snippet":
        return f"relevant {c.subject.item}", f"relevant {c.subject.name}"
    return c.subject.judged_unit, c.subject.judged
