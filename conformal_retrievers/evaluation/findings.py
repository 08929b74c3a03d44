"""The rules that turn a diagnosis into findings, each a sentence with its evidence.

A problem is a reason not to rely on the guarantee for these queries. Most problems are found by
tests, each with a false alarm in at most a share 1 − level of cases: whether the lowest scores
differ and, with judgements, whether coverage is too low or scores are reversed. A notice explains
m1, m2 or coverage; the constants below say from where on it is given. What is fine is listed too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from conformal_retrievers.calibration.statement import WHY_NONE_KEPT
from conformal_retrievers.evaluation.diagnosis import Diagnosis, Finding, Severity
from conformal_retrievers.evaluation.measures import MOSTLY
from conformal_retrievers.evaluation.verdict import OUT_OF_REACH, unverified
from conformal_retrievers.theory.intervals import Interval

ALL_OR_NOTHING = 0.95  # m2 / m1 from which on queries are kept nearly whole or not at all
LITTLE_REMOVED = 0.05  # share removed up to which the filter hardly pays
MANY_IRRELEVANT = 0.05  # share of queries that keep irrelevant snippets only
MANY_TIES = 0.01  # share of scores that equal the threshold
FEW_VALUES = 20  # distinct scores, of at least five times as many
WEAK_AUC = 0.6

MEANING = {
    "query-recall": "the mean share of a query's relevant snippets that is kept",
    "snippet": "the share of all relevant snippets that is kept",
    "all": "the share of queries that keep every relevant snippet",
    "any": "the share of queries that keep at least one relevant snippet",
}


def findings(d: Diagnosis) -> tuple[Finding, ...]:
    """Return all findings, the problems first."""
    found = [finding for rule in RULES for finding in rule(d)]
    return tuple(sorted(found, key=lambda f: ("problem", "notice", "fine").index(f.severity)))


def counted_queries(n: int, kind: str = "") -> str:
    """Write a number of queries of some kind, such as "1 judged query".

    >>> counted_queries(1200, "judged ")
    '1,200 judged queries'
    """
    return f"{n:,} {kind}{'query' if n == 1 else 'queries'}"


def shown(interval: Interval) -> str:
    """Write an interval without the padding of tables."""
    return str(interval).strip()


# --- rules: each looks at one thing ---------------------------------------------------------------


def _coverage(d: Diagnosis) -> Iterator[Finding]:
    judged, coverage = d.judgements, d.coverage
    if judged is None or coverage is None or math.isnan(coverage.estimate):
        return
    target = 1 - d.calibration.alpha
    by_group = d.calibration.by_group  # then each group is tested, see `_groups`
    low = judged.p_value <= 1 - d.level and not by_group
    comparison = ""
    if coverage.estimate < target and not by_group:
        explained = "more than" if low else "within what"
        comparison = f", {explained} chance explains (p = {judged.p_value:.2g})"
    yield Finding(
        "coverage",
        "problem" if low else "fine",
        f"Coverage ({MEANING[d.calibration.guarantee]}) is {shown(coverage)} on "
        f"{counted_queries(judged.n_measured, 'judged ')}; the target is {target:.1%}"
        f"{' in each group with a finite threshold' if by_group else ''}{comparison}.",
        {
            "coverage": coverage.estimate,
            "low": coverage.low,
            "high": coverage.high,
            "target": target,
            "p_value": judged.p_value,
        },
    )


def _scores(d: Diagnosis) -> Iterator[Finding]:
    c = d.comparison
    if c is None:
        reason = (
            "none of these queries has a score"
            if d.calibration.lowest_scores
            else "the calibration holds no lowest scores"
        )
        sentence = f"The scores cannot be compared with those of the calibration: {reason}."
        yield Finding("scores", "notice", sentence, {})
        return
    evidence = {
        "p_value": c.p_value,
        "distance": c.distance,
        "higher": c.higher,
        "overlap": c.overlap,
        "n_reference": c.n_reference,
        "n_new": c.n_new,
    }
    tested = f"{counted_queries(c.n_new)} against {c.n_reference}, p = {c.p_value:.2g}"
    severity: Severity = "fine"
    sentence = f"The lowest scores of these queries look like those of the calibration ({tested})."
    if c.p_value <= 1 - d.level:
        severity = "problem"
        if c.overlap == 0:
            how = "all are outside its range. Check the scorer, its scale and its sign"
        elif abs(c.higher - 0.5) > 0.02:
            direction = "higher" if c.higher > 0.5 else "lower"
            share = max(c.higher, 1 - c.higher)
            how = f"they are {direction} than a calibration query's with probability {share:.0%}"
        else:
            how = "they are about as high, but spread differently"
        sentence = (
            "These queries are not exchangeable with the calibration's. Their lowest scores "
            f"differ ({tested}): {how}."
        )
    yield Finding("scores", severity, sentence, evidence)


def _ids(d: Diagnosis) -> Iterator[Finding]:
    if not d.held_out_verified:
        without = {"calibration_without_id": d.calibration.n_without_id}
        yield Finding("ids", "notice", unverified(), without)


def _m1(d: Diagnosis) -> Iterator[Finding]:
    target = 1 - d.calibration.alpha
    j = d.judgements
    evidence = {"m1": d.m1.estimate, "m2": d.m2.estimate, "target": target}
    kept = f"{d.m1.estimate:.1%} of the queries keep a snippet (m1)"
    outside = False
    if d.m1_band is not None:
        low, high = d.m1_band
        evidence |= {"band_low": low, "band_high": high}
        outside = not low <= d.m1.estimate <= high
        kept += f"; the band for exchangeable queries is [{low:.1%}, {high:.1%}]"
    if j is None:
        meaning = f"m1 is not coverage and need not be {target:.0%}"
    else:
        evidence |= {"relevant_kept": j.relevant_kept, "only_irrelevant": j.only_irrelevant}
        meaning = (
            f"{j.relevant_kept:.1%} keep a relevant snippet, {j.only_irrelevant:.1%} keep "
            "irrelevant ones only"
        )
    yield Finding("m1", "notice" if outside else "fine", f"{kept}. {meaning}.", evidence)


def _missing(d: Diagnosis) -> Iterator[Finding]:
    j = d.judgements
    if j is None:
        return
    if math.isnan(j.recall_at_k.estimate):
        yield Finding(
            "recall",
            "notice",
            "Recall@K and end-to-end coverage are unknown: no query records how many relevant "
            "snippets were not retrieved.",
            {"n_missed": 0},
        )
    elif j.n_missed:
        target = 1 - d.calibration.alpha
        short = j.end_to_end.high < target
        deeper = " No threshold brings missed snippets back; a deeper retriever might."
        yield Finding(
            "missing",
            "notice" if short else "fine",
            f"The retriever missed some relevant snippets: recall@K is {shown(j.recall_at_k)}. If "
            f"they count as dropped, coverage is {shown(j.end_to_end)}.{deeper if short else ''}",
            {
                "recall_at_k": j.recall_at_k.estimate,
                "end_to_end": j.end_to_end.estimate,
                "target": target,
                "n_missed": j.n_missed,
            },
        )


def _irrelevant(d: Diagnosis) -> Iterator[Finding]:
    j = d.judgements
    if j is None or math.isnan(j.irrelevant_share):
        return
    many = j.only_irrelevant > MANY_IRRELEVANT
    yield Finding(
        "irrelevant",
        "notice" if many else "fine",
        f"{j.irrelevant_share:.1%} of the kept snippets are irrelevant. {j.only_irrelevant:.1%} of "
        f"the queries keep irrelevant snippets only{', which raises m1' if many else ''}.",
        {"irrelevant_share": j.irrelevant_share, "only_irrelevant": j.only_irrelevant},
    )


def _removes(d: Diagnosis) -> Iterator[Finding]:
    c = d.calibration
    evidence = {"m1": d.m1.estimate, "m2": d.m2.estimate, "removal": d.removal}
    if not c.by_group and c.threshold() == math.inf:
        few = (
            f"Everything is kept: the calibration has {c.n_units[None]} units and needs "
            f"{c.n_needed} for a finite threshold."
        )
        yield Finding(
            "threshold",
            "problem" if c.count_missed else "notice",
            OUT_OF_REACH if c.count_missed else few,
            evidence | {"n_units": c.n_units[None], "n_needed": c.n_needed},
        )
        return
    if d.keep_all > 0:
        yield Finding(
            "threshold",
            "notice",
            f"{d.keep_all:.1%} of the queries keep everything: their group is missing, unknown to "
            "the calibration, or too small there.",
            evidence | {"keep_all": d.keep_all},
        )
    if d.keep_none > 0:
        some = f" in {d.keep_none:.1%} of the queries, by their group" if c.by_group else ""
        yield Finding(
            "threshold",
            "notice",
            f"Only unscorable snippets are kept{some}: {WHY_NONE_KEPT}.",
            evidence | {"keep_none": d.keep_none},
        )
    scored = 1 - d.scores.unscorable  # the others are kept, which is no fault of the scores
    if scored > 0 and d.removal <= LITTLE_REMOVED * scored:
        yield Finding(
            "removal",
            "notice",
            f"The filter removes only {d.removal:.1%} of the snippets. Either the scores separate "
            "relevant from irrelevant too poorly at this alpha, or nearly all snippets are "
            "relevant.",
            evidence,
        )
    elif d.m1.estimate < 1 and d.m2.estimate >= ALL_OR_NOTHING * d.m1.estimate > 0:
        yield Finding(
            "all-or-nothing",
            "notice",
            f"Queries keep nearly all of their snippets or none: m1 is {d.m1.estimate:.1%} and m2 "
            f"{d.m2.estimate:.1%}. The scores separate queries, not the snippets of a query.",
            evidence,
        )


def _ties(d: Diagnosis) -> Iterator[Finding]:
    s = d.scores
    evidence = {
        "at_threshold": s.at_threshold,
        "calibration_ties": s.calibration_ties,
        "distinct": s.distinct,
        "n_scores": s.n_scores,
    }
    if s.at_threshold > MANY_TIES:
        yield Finding(
            "ties",
            "notice",
            f"{s.at_threshold:.1%} of the scores equal the threshold, as do "
            f"{s.calibration_ties:.1%} of the calibration's relevant scores. All of these snippets "
            "are kept, more than the guarantee needs; a tie-breaking score removes more.",
            evidence,
        )
    elif s.n_scores and s.distinct <= FEW_VALUES and s.n_scores >= 5 * s.distinct:
        yield Finding(
            "coarse",
            "notice",
            f"The {s.n_scores} scores have only {s.distinct} distinct values, so the threshold "
            "can move in few steps.",
            evidence,
        )
    elif s.n_scores:
        yield Finding(
            "ties",
            "fine",
            f"The {s.n_scores} scores have {s.distinct} distinct values; {s.at_threshold:.1%} "
            "equal the threshold.",
            evidence,
        )


def _unscorable(d: Diagnosis) -> Iterator[Finding]:
    share = d.scores.unscorable
    if share <= 0 or math.isnan(share):
        return
    most = share >= MOSTLY
    advice = (
        "Coverage therefore tests nothing. Check that the scorer accepts these texts, and that "
        "the retriever passes its scores on."
        if most
        else "They count in m1, but not in its band."
    )
    yield Finding(
        "unscorable",
        "problem" if most else "notice",
        f"{share:.1%} of the snippets could not be scored and are kept. {advice}",
        {"unscorable": share},
    )


def _direction(d: Diagnosis) -> Iterator[Finding]:
    j = d.judgements
    if j is None or math.isnan(j.auc_over):
        return
    within = j.auc_within
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


def _groups(d: Diagnosis) -> Iterator[Finding]:
    by_group, target = d.calibration.by_group, 1 - d.calibration.alpha
    tested = [
        (row, row.coverage, row.p_value)
        for row in d.groups
        if row.coverage is not None and row.p_value is not None
    ]
    for row, coverage, p in tested:
        p_value = min(1.0, len(tested) * p)
        if p_value > 1 - d.level:
            continue
        yield Finding(
            "group",
            "problem" if by_group else "notice",
            f"In group {row.group!r}, coverage is {shown(coverage)} on "
            f"{counted_queries(row.n_measured)}, below {target:.1%} (p = {p_value:.2g} for "
            f"{len(tested)} groups)."
            + ("" if by_group else " A calibration by group covers each group."),
            {
                "coverage": coverage.estimate,
                "target": target,
                "p_value": p_value,
                "n_measured": row.n_measured,
            },
        )


RULES: tuple[Callable[[Diagnosis], Iterator[Finding]], ...] = (
    _coverage,
    _scores,
    _ids,
    _direction,
    _m1,
    _missing,
    _irrelevant,
    _removes,
    _ties,
    _unscorable,
    _groups,
)
