"""What a calibration guarantees, in words: one template for all subjects, in `wording.txt`.

Line 1 is the guarantee, line 2 the threshold. The assumptions follow, then the numbers behind them.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from conformal_retrievers.calibration import answered
from conformal_retrievers.calibration.file_schema import Choice, details_of
from conformal_retrievers.calibration.gates.false_answers import false_speech, sources_of
from conformal_retrievers.calibration.guarantees import Units
from conformal_retrievers.calibration.label_provenance import judged_by
from conformal_retrievers.calibration.planning import coverage_of, smallest_alpha
from conformal_retrievers.calibration.subjects import ANSWERS, FILTERED, QUERIES, RETRIEVED
from conformal_retrievers.calibration.thresholds import Thresholds
from conformal_retrievers.calibration.wording import say
from conformal_retrievers.data.text import counted
from conformal_retrievers.theory.intervals import percent
from conformal_retrievers.theory.ranks import exact_alpha


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
    known = c.subject.says("known")
    share = percent(float(str(c.details.get("share", 1.0))), exact=True)
    some = f"at least {share} of an answer's kept claims"
    text = c.subject.says(
        f"guarantee {c.guarantee}",
        target=percent(1 - exact_alpha(c.alpha), exact=True),
        which=known if c.count_missed else "that were retrieved",
        that=known if c.count_missed else "that was retrieved",
        claims="all kept claims of an answer" if share == "100 %" else some,
        **answered.terms(c),
    )
    if c.delta is not None:
        each = " by group" if c.by_group else ""
        confident = percent(1 - exact_alpha(c.delta), exact=True)
        text = say(f"confidence{each}", text=text, confident=confident)
    if c.out_of_reach:
        at = "at this depth" if c.k is None else f"at K = {c.k}"
        if c.subject == ANSWERS:
            return f"Out of reach: no threshold {text}."
        if c.units().ceiling <= 1 - c.alpha and not _dropped_by_scorer(c.units()):
            at += ", so retrieve deeper"
        return f"Out of reach {at}: no threshold {text}."
    if c.by_group:
        text = say("by group", text=text)
    if c.keeps_everything and c.subject in FILTERED:
        n = max(c.n_units.values())
        least = math.ceil(1e4 * smallest_alpha(n, delta=c.delta, guarantee=c.guarantee)) / 1e4
        facts = {"lacking": _units(c, c.n_needed - n), "alpha": c.alpha, "least": least}
        text = say("drops nothing yet" if n < c.n_needed else "drops nothing", text=text, **facts)
    return f"{text[0].upper()}{text[1:]}."


def _thresholds(c: Thresholds) -> str:
    finite = {g: f"{c.threshold(g):.6g}" for g in c.n_units if math.isfinite(c.threshold(g))}
    if not c.by_group:
        threshold = finite.get(None)
        rule = c.subject.says("rule", threshold=threshold, scorer=c.scorer)
        return f"Threshold: {rule if threshold else _no_rule(c, None)}."
    groups = {
        group: f"{finite[group]} ({_units(c, n)})" if group in finite else _no_rule(c, group)
        for group, n in c.n_units.items()
    }
    return say(
        "thresholds",
        rule=c.subject.says("rule", threshold="that of their group", scorer=c.scorer),
        groups="; ".join(f"{group}: {stated}" for group, stated in groups.items()),
        other=_effect(c, math.inf),
    )


def _gate(c: Thresholds) -> Iterator[str]:
    """Yield what is known of unanswerable queries, and of a gate in front."""
    if c.subject == QUERIES:
        yield false_speech(c)
    elif c.gate is not None:
        text = say("gate", guarantee=_guarantee(c.gate))
        if made := c.gate.choice:
            text += f" {say('gate chosen', queries=counted(made.n_fit, 'query'))}"
        yield text
        yield false_speech(c.gate)


def _choice(c: Thresholds) -> Iterator[str]:
    """Yield the sentences on how the score was chosen or fitted."""
    if (made := c.choice) is None:
        return
    score = (c.scorer_provenance or {}).get("score")
    if not isinstance(score, dict) or not (prior := score.get("prior")):
        yield say("by default", chosen=made.chosen, items=c.subject.name)
        return
    if few := made.n_fit < (20 if c.subject == QUERIES else 1):
        yield say("prior alone", prior=prior)
        if c.subject != ANSWERS:
            yield say("begins", begins=_begins(c, made.n_fit))
    else:
        queries = counted(made.n_fit, "judged query that does", "judged queries that do")
        yield say("fitted", prior=prior, queries=queries, counts=_counts(made.contributions))
    if made.costs:
        yield from _kept(c, made)
    if made.passes is not None and made.alpha == c.alpha and not c.keeps_everything:
        some = say("none of some", share=percent(made.none_pass)) if made.none_pass else ""
        about = {"item": c.subject.item, "unit": c.subject.unit}
        yield say("passes", passes=made.passes, none=some, **about)
    if c.keeps_everything and not few:
        yield say("fit left none", effect=_effect(c, math.inf))


def _begins(c: Thresholds, n_fit: int) -> str:
    """Return from how many judged queries on the score is fitted to some."""
    if c.subject != QUERIES:
        each = "each" if c.by_group else "the"
        return say("begins for snippets", item=c.subject.item, needed=c.n_needed, each=each)
    scale = say("scale", queries=counted(n_fit, "query that does", "queries that do"))
    return say("begins for queries") + (scale if n_fit else "")


def _counts(contributions: Mapping[str, float]) -> str:
    """Return how much more one source counts than another, if the score reads several."""
    ordered = sorted(contributions.items(), key=lambda pair: -pair[1])
    if len(ordered) < 2 or ordered[0][1] <= 0:
        return ""
    (most, more), *others = ordered
    times = [
        f"{more / less:.1f} times as much as {name}".removeprefix("1.0 times ")
        for name, less in others
        if less > 0.05 * more
    ]
    little = [
        f"{name} counts {'little' if less > -0.05 * more else 'the other way'}"
        for name, less in others[len(times) :]
    ]
    return f": {most} counts {', '.join([*(times or ['most']), *little])}"


def _kept(c: Thresholds, made: Choice) -> Iterator[str]:
    """Yield what the score keeps on queries of one part, what a top k, and what scorers add."""
    whole, unit = ("of whole documents, ", f" {c.subject.name}") if c.split else ("", "")
    tops = {name: cost for name, cost in made.costs.items() if name != "learned"}
    others = [f"the {name} {cost:.1f}{unit}" for name, cost in tops.items()]
    yield say(
        "costs on fit" if made.on == "fit" else "costs on calibration",
        n=made.n_fit,
        own=made.costs["learned"],
        items=c.subject.name,
        target=percent(1 - exact_alpha(made.alpha or c.alpha), exact=True),
        than=f", and {whole}{', '.join(others)}" if others else "",
    )
    if made.unreached:
        yield say("no top k", names=" or ".join(made.unreached).replace("top k of ", ""))
    if made.best != "learned":
        yield say("top k is better", best=made.best)
    elif made.costs["learned"] > min(tops.values(), default=math.inf):
        yield say("top k is not surely better")
    for name, added in made.adds.items():
        yield say("scorer adds", name=name, added=added)


def _top_k(c: Thresholds) -> Iterator[str]:
    """Yield what a threshold on the rank is."""
    score = (c.scorer_provenance or {}).get("score", c.scorer_provenance)
    if isinstance(score, dict) and score.get("kind") == "rank":
        t = math.inf if c.by_group else c.threshold()
        k = f", k = {math.floor(t) + 1}" if math.isfinite(t) else ""
        yield say("top k", retriever=score.get("retriever"), k=k)


def _no_rule(c: Thresholds, group: str | None) -> str:
    threshold = c.threshold(group)
    none = f"none, so {_effect(c, threshold)}"
    if threshold > 0:
        return f"{none}: {why_none(c, group)}"
    if c.subject.name == "claims":
        return none
    why = why_none_kept(c.subject.name)
    if c.subject == ANSWERS:
        why = say("answers need none")
    return f"{none} unless it has no score: {why}"


def _effect(c: Thresholds, infinite: float) -> str:
    effect = c.subject.threshold_name(infinite)
    unless = ", unless the gate is silent" if c.gate and effect == "keep_all" else ""
    return c.subject.says(str(effect)) + unless


def why_none_kept(items: str) -> str:
    """Return why a threshold is −infinite."""
    return say("reached without", items=items)


def why_none(c: Thresholds, group: str | None) -> str:
    """Return why the threshold of a group is infinite."""
    units, n = c.units(group), c.n_units[group]
    reached = units.ceiling > 1 - c.alpha
    if n < c.n_needed and (reached or not c.count_missed):
        return say("too few", needed=_units(c, c.n_needed), n=n, lacking=c.n_needed - n)
    if c.subject == ANSWERS:
        return answered.why_none(c, group)
    if c.subject not in RETRIEVED:
        return say("no finite threshold")
    remedy = f"Retrieve deeper ({'a larger K' if c.k is None else f'K above {c.k}'})"
    why = "retriever misses"
    dropped, retrieved = _dropped_by_scorer(units), len(units.queries.scores)
    if dropped and c.gate is None:
        why, remedy = "scorer drops", "Make the scorer drop fewer"
    elif dropped:
        why, remedy = "gate silences", "Calibrate the gate with a smaller alpha"
    known = retrieved + int(np.nansum(units.queries.missed)) * c.count_missed
    cause = say(why, dropped=dropped, n=retrieved, known=known, items=c.subject.name)
    if reached:
        return say("too few to reach", cause=cause, remedy=remedy)
    most = percent(round(units.ceiling, 3), exact=True)
    mean = "" if c.guarantee == "snippet" else "averaged over queries, "
    return say("out of reach", cause=cause, mean=mean, most=most, remedy=remedy)


def _dropped_by_scorer(units: Units) -> int:
    return int(np.count_nonzero(units.queries.scores == math.inf))


def _assumptions(c: Thresholds) -> str:
    kind, s = "exchangeable snippets" if c.guarantee == "snippet" else "exchangeable", c.subject
    facts = {"items": s.name, "new": s.new, "judged": s.judged, "same": s.says("same")}
    what = "average" if c.guarantee == "query-recall" else "probability"
    calibrations = " and calibrations like this one" if c.delta is None else ""
    over = say("over", what=what, units=s.units, calibrations=calibrations)
    text = f"{say(kind, **facts)} {over}"
    if c.count_missed and c.delta is None and not c.out_of_reach:
        text += f" {say('reaches by keeping all')}"
    if failed := c.details.get("n_unscorable"):
        text += f" {say('scoring fails', failed=failed)}"
    return text


def _basis(c: Thresholds) -> list[str]:
    level = f"alpha = {c.alpha!r}" + ("" if c.delta is None else f", delta = {c.delta!r}")
    if c.subject in RETRIEVED:
        return [f"guarantee = {c.guarantee!r}, {level}.", *_snippets(c)]
    if c.subject == ANSWERS:
        n_used, *others = answered.basis(c)
        return [f"{level}. {n_used}", *_spread(c), *others]
    units = _units(c, c.n_queries)
    if c.subject.name == "claims":
        return [f"{level}. {units}.", *_claims(c)]
    if c.subject == QUERIES:
        queries = counted(c.n_without_relevant, "query")
        left_out = [say("nothing retrieved", queries=queries)] if c.n_without_relevant else []
        return [f"{level}. {units}.", *left_out, *judged_by(c.labels or {}, "snippets")]
    return [f"{level}. {units}; {counted(c.n_without_relevant, 'consistent answer')} not used."]


def _snippets(c: Thresholds) -> Iterator[str]:
    yield say(
        "worth",
        relevant=counted(c.n_relevant, f"relevant {c.subject.item}"),
        queries=counted(c.n_queries, "query"),
        worth=counted(round(c.effective_n), f"independent {c.subject.item}"),
        effect=c.design_effect,
    )
    if c.guarantee != "snippet":
        yield from _spread(c)
    if unscorable := int(np.count_nonzero(c.queries.scores == -math.inf)):
        yield say("without score", n=unscorable)
    if left_out := len(c.queries) - c.n_queries + c.n_without_relevant:
        queries = counted(left_out, "query")
        known = "known" if c.count_missed else "retrieved"
        yield say("not used", queries=queries, item=c.subject.item, known=known)
    if c.split:
        yield f"Documents are cut by {c.split}."
    yield from judged_by(c.labels or {}, c.subject.name)


def _spread(c: Thresholds) -> Iterator[str]:
    if not (c.delta or c.by_group or c.keeps_everything):
        low = percent(coverage_of(c.n_queries, c.alpha, None, c.guarantee).low)
        yield say("spread", low=low, units=c.subject.units)


def _claims(c: Thresholds) -> Iterator[str]:
    if (n := details_of(c).n_without_claims) > 0:
        yield f"{counted(n, 'answer without claims was', 'answers without claims were')} not used."
    if names := details_of(c).unannotated:
        which = "with an unannotated claim"
        answers = counted(len(names), f"answer {which} was", f"answers {which} were")
        yield say("unannotated", answers=answers, names=answered.listed(names, 5))


def _not_covered(c: Thresholds) -> str:
    not_covered = c.subject.says("not_covered")
    if c.count_missed:
        return say("not judged", items=c.subject.name)
    if c.subject == ANSWERS:
        return answered.not_covered(c)
    if c.subject == QUERIES:
        return say("other unanswerable") if sources_of(c) else not_covered
    if np.isnan(c.queries.missed).any():
        return not_covered
    known = c.n_relevant + c.n_missed
    return say("some missed", not_covered=not_covered, missed=c.n_missed, known=known)


def _units(c: Thresholds, n: int) -> str:
    """Write a number of the units of a guarantee."""
    snippets = c.guarantee == "snippet"
    return counted(n, f"relevant {c.subject.item}" if snippets else c.subject.judged_unit)
