"""The rules that turn a diagnosis into findings, each a sentence with its evidence.

A problem is a reason not to rely on the guarantee for these queries. Most problems are found by
tests, each with a false alarm in at most a share 1 − level of cases: whether the lowest scores
differ and, with judgements, whether coverage is too low or scores are reversed. A notice explains
m1, m2 or coverage; the constants below say from where on it is given. What is fine is listed too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict

from conformal_retrievers.calibration.statement import WHY_NONE_KEPT
from conformal_retrievers.evaluation.diagnosis import Diagnosis, Finding, Judgements
from conformal_retrievers.evaluation.measures import MOSTLY
from conformal_retrievers.evaluation.verdict import OUT_OF_REACH, UNVERIFIED
from conformal_retrievers.theory.intervals import percent

ALL_OR_NOTHING = 0.95  # m2 / m1 from which on queries are kept nearly whole or not at all
LITTLE_REMOVED = 0.05  # share removed up to which the filter hardly pays
MANY_IRRELEVANT = 0.05  # share of queries that keep irrelevant snippets only
MANY_TIES = 0.01  # share of scores that equal the threshold
WEAK_AUC = 0.6

MEANING = {
    "query-recall": "the mean share of a query's relevant snippets that is kept",
    "snippet": "the share of all relevant snippets that is kept",
    "all": "the share of queries that keep every relevant snippet",
    "any": "the share of queries that keep at least one relevant snippet",
}


def findings(d: Diagnosis) -> tuple[Finding, ...]:
    """Return all findings, the problems first."""
    found: list[Finding] = []
    if d.judgements is not None:
        for judged in (_coverage, _direction, _missing, _irrelevant, _groups):
            found += judged(d, d.judgements)
    for rule in (_scores, _ids, _m1, _removal, _ties, _unscorable):
        found += rule(d)
    return tuple(sorted(found, key=lambda f: ("problem", "notice", "fine").index(f.severity)))


# --- what judgements show -------------------------------------------------------------------------


def _coverage(d: Diagnosis, j: Judgements) -> Iterator[Finding]:
    coverage, by_group = d.coverage, d.calibration.by_group
    if coverage is None or math.isnan(coverage.estimate):
        return
    low = j.p_value <= 1 - d.level and not by_group  # by group each group is tested: `_groups`
    where = " in each group with a finite threshold" if by_group else ""
    chance = ""
    if coverage.estimate < d.target and not by_group:
        explained = "more than" if low else "within what"
        chance = f", {explained} chance explains (p = {j.p_value:.2g})"
    sentence = (
        f"Coverage ({MEANING[d.calibration.guarantee]}) is {coverage} on "
        f"{_counted(j.n_measured, 'judged ')}; the target is "
        f"{percent(d.target)}{where}{chance}."
    )
    evidence = {"coverage": coverage.estimate, "target": d.target, "p_value": j.p_value}
    yield Finding("coverage", "problem" if low else "fine", sentence, evidence)


def _direction(d: Diagnosis, j: Judgements) -> Iterator[Finding]:
    within = j.auc_within
    if math.isnan(j.auc_over):
        return
    evidence = {"auc_within": within.estimate, "high": within.high, "auc_over": j.auc_over}
    auc = f"AUC {within.estimate:.2f} within queries, {j.auc_over:.2f} over all"
    if within.high < 0.5:
        sentence = (
            f"Relevant snippets score higher than irrelevant ones ({auc}). Scores must be lower "
            "for relevant snippets: reverse their sign."
        )
        yield Finding("direction", "problem", sentence, evidence)
    elif min(within.estimate, j.auc_over) < WEAK_AUC:
        sentence = (
            f"The scores hardly separate relevant from irrelevant snippets ({auc}; chance is 0.5), "
            "so the filter can remove little. This does not affect coverage."
        )
        yield Finding("separation", "notice", sentence, evidence)
    else:
        sentence = f"The scores separate relevant from irrelevant snippets ({auc})."
        yield Finding("separation", "fine", sentence, evidence)


def _missing(d: Diagnosis, j: Judgements) -> Iterator[Finding]:
    if math.isnan(j.recall_at_k.estimate):
        sentence = (
            "Recall@K and end-to-end coverage are unknown: every query has 0 missed relevant "
            "snippets, which can also mean that they were not counted."
        )
        yield Finding("recall", "notice", sentence, {})
    elif j.n_missed:
        short = j.end_to_end.high < d.target
        sentence = (
            f"The retriever missed some relevant snippets: recall@K is {j.recall_at_k}. If they "
            f"count as dropped, coverage is {j.end_to_end}."
        )
        if short:
            sentence += " No threshold brings missed snippets back; a deeper retriever might."
        evidence = {"recall_at_k": j.recall_at_k.estimate, "end_to_end": j.end_to_end.estimate}
        yield Finding("missing", "notice" if short else "fine", sentence, evidence)


def _irrelevant(d: Diagnosis, j: Judgements) -> Iterator[Finding]:
    if math.isnan(j.irrelevant_share):
        return
    many = j.only_irrelevant > MANY_IRRELEVANT
    sentence = (
        f"{percent(j.irrelevant_share)} of the kept snippets are irrelevant. "
        f"{percent(j.only_irrelevant)} of the queries keep irrelevant snippets only"
        f"{', which raises m1' if many else ''}."
    )
    evidence = {"irrelevant_share": j.irrelevant_share, "only_irrelevant": j.only_irrelevant}
    yield Finding("irrelevant", "notice" if many else "fine", sentence, evidence)


def _groups(d: Diagnosis, j: Judgements) -> Iterator[Finding]:
    by_group = d.calibration.by_group
    tested = [(row, row.p_value) for row in d.groups if row.p_value is not None]
    for row, p in tested:
        p_value = min(1.0, len(tested) * p)
        if row.coverage is None or p_value > 1 - d.level:
            continue
        sentence = (
            f"In group {row.group!r}, coverage is {row.coverage} on "
            f"{_counted(row.n_measured)}, below {percent(d.target)} (p = {p_value:.2g} for "
            f"{len(tested)} groups)."
        )
        if not by_group:
            sentence += " A calibration by group covers each group."
        evidence = {"coverage": row.coverage.estimate, "target": d.target, "p_value": p_value}
        yield Finding("group", "problem" if by_group else "notice", sentence, evidence)


# --- what the scores show -------------------------------------------------------------------------


def _scores(d: Diagnosis) -> Iterator[Finding]:
    c = d.comparison
    if c is None:
        sentence = (
            "The scores cannot be compared with those of the calibration: one of the two has none."
        )
        yield Finding("scores", "notice", sentence, {})
        return
    names = ("p_value", "distance", "higher", "overlap", "n_reference", "n_new")
    evidence = {name: getattr(c, name) for name in names}
    tested = f"{_counted(c.n_new)} against {c.n_reference}, p = {c.p_value:.2g}"
    if c.p_value > 1 - d.level:
        sentence = "The lowest scores of these queries look like those of the calibration"
        yield Finding("scores", "fine", f"{sentence} ({tested}).", evidence)
        return
    if c.overlap == 0:
        how = "all are outside its range. Check the scorer, its scale and its sign"
    elif abs(c.higher - 0.5) > 0.02:
        direction = "higher" if c.higher > 0.5 else "lower"
        share = 100 * max(c.higher, 1 - c.higher)
        how = f"they are {direction} than a calibration query's with probability {share:.0f} %"
    else:
        how = "they are about as high, but spread differently"
    sentence = (
        "These queries are not exchangeable with the calibration's. Their lowest scores "
        f"differ ({tested}): {how}."
    )
    yield Finding("scores", "problem", sentence, evidence)


def _ids(d: Diagnosis) -> Iterator[Finding]:
    if not d.held_out_verified:
        yield Finding("ids", "notice", UNVERIFIED, {})


def _m1(d: Diagnosis) -> Iterator[Finding]:
    j = d.judgements
    evidence = {"m1": d.m1.estimate, "m2": d.m2.estimate, "target": d.target}
    kept = f"{percent(d.m1.estimate)} of the queries keep a snippet (m1)"
    outside = False
    if d.m1_band is not None:
        low, high = d.m1_band
        evidence |= {"band_low": low, "band_high": high}
        outside = not low <= d.m1.estimate <= high
        kept += f"; the band for exchangeable queries is {percent(low)} to {percent(high)}"
    if j is None:
        meaning = f"m1 is not coverage and need not be {100 * d.target:.6g} %"
    else:
        evidence |= {"relevant_kept": j.relevant_kept, "only_irrelevant": j.only_irrelevant}
        meaning = (
            f"{percent(j.relevant_kept)} keep a relevant snippet, {percent(j.only_irrelevant)} "
            "keep irrelevant ones only"
        )
    yield Finding("m1", "notice" if outside else "fine", f"{kept}. {meaning}.", evidence)


def _removal(d: Diagnosis) -> Iterator[Finding]:
    c = d.calibration
    evidence = {"m1": d.m1.estimate, "m2": d.m2.estimate, "removal": d.removal}
    if not c.by_group and c.threshold() == math.inf:
        evidence = {"n_units": c.n_units[None], "n_needed": c.n_needed}
        few = (
            f"Everything is kept: the calibration has {c.n_units[None]} units and needs "
            f"{c.n_needed} for a finite threshold."
        )
        if c.count_missed:
            yield Finding("threshold", "problem", OUT_OF_REACH, evidence)
        else:
            yield Finding("threshold", "notice", few, evidence)
        return
    if d.keep_all > 0:
        sentence = (
            f"{percent(d.keep_all)} of the queries keep everything: their group is missing, "
            "unknown to the calibration, or too small there."
        )
        yield Finding("threshold", "notice", sentence, {"keep_all": d.keep_all})
    if d.keep_none > 0:
        some = f" in {percent(d.keep_none)} of the queries, by their group" if c.by_group else ""
        sentence = f"Only unscorable snippets are kept{some}: {WHY_NONE_KEPT}."
        yield Finding("threshold", "notice", sentence, {"keep_none": d.keep_none})
    m1, m2 = d.m1.estimate, d.m2.estimate
    scored = 1 - d.scores.unscorable  # the others are kept, which is no fault of the scores
    if scored > 0 and d.removal <= LITTLE_REMOVED * scored:
        sentence = (
            f"The filter removes only {percent(d.removal)} of the snippets. Either the scores "
            "separate relevant from irrelevant too poorly at this alpha, or nearly all snippets "
            "are relevant."
        )
        yield Finding("removal", "notice", sentence, evidence)
    elif m1 < 1 and m2 >= ALL_OR_NOTHING * m1 > 0:
        sentence = (
            f"Queries keep nearly all of their snippets or none: m1 is {percent(m1)} and m2 "
            f"{percent(m2)}. The scores separate queries, not the snippets of a query."
        )
        yield Finding("all-or-nothing", "notice", sentence, evidence)


def _ties(d: Diagnosis) -> Iterator[Finding]:
    s = d.scores
    evidence = {name: value for name, value in asdict(s).items() if name != "unscorable"}
    values = f"The {s.n_scores} scores have {s.distinct} distinct values"
    equal = f"{percent(s.at_threshold)} equal the threshold"
    if s.at_threshold > MANY_TIES:
        sentence = (
            f"{values}; {equal}, as do {percent(s.calibration_ties)} of the calibration's relevant "
            "scores. All of these snippets are kept, more than the guarantee needs; a tie-breaking "
            "score removes more."
        )
        yield Finding("ties", "notice", sentence, evidence)
    elif s.n_scores:
        yield Finding("ties", "fine", f"{values}; {equal}.", evidence)


def _unscorable(d: Diagnosis) -> Iterator[Finding]:
    share = d.scores.unscorable
    if not share > 0:
        return
    most = share >= MOSTLY
    advice = (
        "Coverage therefore tests nothing. Check that the scorer accepts these texts, and that "
        "the retriever passes its scores on."
        if most
        else "They count in m1, but not in its band."
    )
    sentence = f"{percent(share)} of the snippets could not be scored and are kept. {advice}"
    yield Finding("unscorable", "problem" if most else "notice", sentence, {"unscorable": share})


def _counted(n: int, kind: str = "") -> str:
    """Write a number of queries of some kind, such as "1 judged query"."""
    return f"{n:,} {kind}{'query' if n == 1 else 'queries'}"
