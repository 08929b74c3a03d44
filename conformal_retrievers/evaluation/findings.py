"""From a diagnosis to words: findings, each with its evidence, and the verdict that sums them up.

A problem is a reason not to rely on the promise for these queries. Tests find most of them, each
with a false alarm in a share 1 − level of cases at most: whether the lowest scores differ, and with
judgements, whether coverage is too low, or scores are reversed. A notice is worth knowing and
explains m1, m2 or coverage; the limits from which on something is said are the constants below.
What is fine is said too, with its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from conformal_retrievers.calibration.statement import WHY_NONE_KEPT
from conformal_retrievers.evaluation.measures import MOSTLY
from conformal_retrievers.evaluation.verdict import NOT_TOLD_APART
from conformal_retrievers.theory.intervals import Interval

if TYPE_CHECKING:
    from conformal_retrievers.evaluation.diagnose import Diagnosis

Severity = Literal["problem", "notice", "fine"]

ALL_OR_NOTHING = 0.95  # m2 / m1 from which on nearly all of a query is kept, or nothing
LITTLE_REMOVED = 0.05  # share removed up to which the filter hardly pays
MANY_IRRELEVANT = 0.05  # share of queries of which only irrelevant snippets are kept
MANY_TIES = 0.01  # share of scores that equal the threshold
FEW_VALUES = 20  # distinct scores, of at least five times as many
WEAK_AUC = 0.6


@dataclass(frozen=True)
class Finding:
    """One thing that a diagnosis found: its name, how bad it is, a sentence, and the numbers."""

    name: str
    severity: Severity
    sentence: str
    evidence: Mapping[str, float]


def findings(d: Diagnosis) -> tuple[Finding, ...]:
    """Return what there is to say, the problems first."""
    found = [finding for rule in RULES for finding in rule(d)]
    return tuple(sorted(found, key=lambda f: ("problem", "notice", "fine").index(f.severity)))


def verdict(d: Diagnosis) -> str:
    """Return the findings that matter as one paragraph, behind the sentence that sums them up."""
    problems = [f for f in d.findings if f.severity == "problem"]
    evidence = [f for f in d.findings if f.severity == "fine" and f.name in ("coverage", "scores")]
    notices = [f for f in d.findings if f.severity == "notice"]
    return " ".join([summary(d), *(f.sentence for f in (*problems, *evidence, *notices))])


def summary(d: Diagnosis) -> str:
    """Return the sentence that sums the findings up."""
    if d.fails:
        return "Do not rely on this calibration for these queries."
    if d.judgements is not None and d.judgements.n_measured:
        return "As far as these queries tell, the promise holds for them."
    if d.comparison is not None:
        return (
            "Nothing speaks against the promise, and without judged relevant snippets nothing can "
            "speak for it: judge some of these queries to know their coverage."
        )
    return (
        "No relevant snippet of these queries is judged, and there is nothing to hold them "
        "against, so that they say nothing about the promise: judge some of them, or give "
        "reference queries."
    )


# --- rules: each looks at one thing ---------------------------------------------------------------


def _coverage(d: Diagnosis) -> Iterator[Finding]:
    judged, coverage = d.judgements, d.promised_coverage
    if judged is None or coverage is None or math.isnan(coverage.estimate):
        return
    target = 1 - d.calibration.alpha
    by_group = d.calibration.by_group  # then each group is tested, see `_groups`
    low = judged.p_value <= 1 - d.level and not by_group
    meaning = MEANING[d.calibration.guarantee]
    measured = (
        f"{meaning[0].upper()}{meaning[1:]} is {shown(coverage)} on "
        f"{counted_queries(judged.n_measured, 'judged ')}, and {target:.1%} are promised"
        + (" in each group that has a threshold" if by_group else "")
    )
    comparison = ""
    if coverage.estimate < target and not by_group:
        explained = "more than chance explains" if low else "which chance explains"
        comparison = f": less, {explained} (p = {judged.p_value:.2g})"
    yield Finding(
        "coverage",
        "problem" if low else "fine",
        f"{measured}{comparison}.",
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
        if not d.calibration.lowest_scores:
            reason = "it holds no lowest scores"
        else:
            reason = "not one of these queries has a score"
        sentence = f"The queries are not held against those of the calibration: {reason}."
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
    counted = f"{counted_queries(c.n_new)} against {c.n_reference}"
    if c.p_value > 1 - d.level:
        yield Finding(
            "scores",
            "fine",
            f"The lowest scores of these queries look like those of the calibration ({counted}, "
            f"p = {c.p_value:.2g}).",
            evidence,
        )
        return
    where = (
        "not one is within the calibration's range, as with another scorer, another scale or a "
        "reversed sign"
        if c.overlap == 0
        else f"{'higher' if c.higher > 0.5 else 'lower'} than a calibration query's with "
        f"probability {max(c.higher, 1 - c.higher):.0%}"
        if abs(c.higher - 0.5) > 0.02
        else "about as high, but spread differently"
    )
    yield Finding(
        "scores",
        "problem",
        f"The lowest scores of these queries are not those of the calibration: {where} ({counted}, "
        f"p = {c.p_value:.2g}), so that the two are not exchangeable.",
        evidence,
    )


def _ids(d: Diagnosis) -> Iterator[Finding]:
    if not d.told_apart:
        without = {"calibration_without_id": d.calibration.n_without_id}
        yield Finding("ids", "notice", NOT_TOLD_APART, without)


def _m1(d: Diagnosis) -> Iterator[Finding]:
    target = 1 - d.calibration.alpha
    j = d.judgements
    evidence = {"m1": d.m1.estimate, "m2": d.m2.estimate, "target": target}
    kept = f"Something is kept of {d.m1.estimate:.1%} of the queries (m1)"
    outside = False
    if d.m1_band is not None:
        evidence |= {"band_low": d.m1_band[0], "band_high": d.m1_band[1]}
        outside = not d.m1_band[0] <= d.m1.estimate <= d.m1_band[1]
        kept += f", where exchangeable queries have {d.m1_band[0]:.1%} to {d.m1_band[1]:.1%}"
    if j is None:
        meaning = f"It is no coverage, and {target:.0%} is not what it should be"
    else:
        evidence |= {"relevant_kept": j.relevant_kept, "only_irrelevant": j.only_irrelevant}
        meaning = (
            f"Of the judged ones, {j.relevant_kept:.1%} keep a relevant snippet and "
            f"{j.only_irrelevant:.1%} irrelevant ones alone"
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
            "No query says how many relevant snippets it misses, so that recall@K and what is kept "
            "end to end are unknown.",
            {"n_missed": 0},
        )
        return
    if j.n_missed == 0:
        return
    target = 1 - d.calibration.alpha
    short = j.end_to_end.high < target
    yield Finding(
        "missing",
        "notice" if short else "fine",
        f"Relevant snippets are missing from those retrieved: recall@K is {shown(j.recall_at_k)}, "
        f"and counting the missing ones {MEANING[d.calibration.guarantee]} is {shown(j.end_to_end)}"
        + ("; no threshold brings them back, a deeper retriever might." if short else "."),
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
        f"Irrelevant snippets pass: they are {j.irrelevant_share:.1%} of what is kept, and all "
        f"that is kept of {j.only_irrelevant:.1%} of the judged queries"
        + (", which raises m1 without any use." if many else "."),
        {"irrelevant_share": j.irrelevant_share, "only_irrelevant": j.only_irrelevant},
    )


def _removes(d: Diagnosis) -> Iterator[Finding]:
    c = d.calibration
    evidence = {"m1": d.m1.estimate, "m2": d.m2.estimate, "removal": d.removal}
    if not c.by_group and c.threshold() == math.inf:
        yield Finding(
            "threshold",
            "problem" if c.count_missed else "notice",
            "No threshold keeps the promise, because too many relevant snippets are missing or too "
            "few queries are judged: everything is kept."
            if c.count_missed
            else f"The calibration keeps everything: {c.n_units[None]} judged units are too few, "
            f"it takes {c.n_needed}.",
            evidence | {"n_units": c.n_units[None], "n_needed": c.n_needed},
        )
        return
    if d.keep_all > 0:
        yield Finding(
            "threshold",
            "notice",
            f"Everything is kept of {d.keep_all:.1%} of the queries, because their group is not "
            "named, not known to the calibration, or too small there.",
            evidence | {"keep_all": d.keep_all},
        )
    if d.keep_none > 0:
        of_some = f" of {d.keep_none:.1%} of the queries, by their group" if c.by_group else ""
        yield Finding(
            "threshold",
            "notice",
            f"Nothing that has a score is kept{of_some}: {WHY_NONE_KEPT}.",
            evidence | {"keep_none": d.keep_none},
        )
    scored = 1 - d.scores.unscorable  # the others are kept, which is no fault of the scores
    if scored > 0 and d.removal <= LITTLE_REMOVED * scored:
        yield Finding(
            "removal",
            "notice",
            f"The filter removes {d.removal:.1%} of the snippets: at this alpha the scores tell "
            "relevant from irrelevant too poorly, or nearly all that is retrieved is relevant.",
            evidence,
        )
    elif d.m1.estimate < 1 and d.m2.estimate >= ALL_OR_NOTHING * d.m1.estimate > 0:
        yield Finding(
            "all-or-nothing",
            "notice",
            f"Nearly all of a query's snippets are kept or none: m1 is {d.m1.estimate:.1%} and m2 "
            f"{d.m2.estimate:.1%}. The scores tell queries apart, not the snippets of one.",
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
            f"{s.at_threshold:.1%} of the snippets score exactly the threshold, and so do "
            f"{s.calibration_ties:.1%} of the calibration's relevant ones: all of them are kept, "
            "more than the promise asks for; a second score that breaks ties removes more.",
            evidence,
        )
    elif s.n_scores and s.distinct <= FEW_VALUES and s.n_scores >= 5 * s.distinct:
        yield Finding(
            "coarse",
            "notice",
            f"The {s.n_scores} scores have {s.distinct} different values only, so that the "
            "threshold can move in few steps.",
            evidence,
        )
    elif s.n_scores:
        yield Finding(
            "ties",
            "fine",
            f"The {s.n_scores} scores have {s.distinct} different values, and {s.at_threshold:.1%} "
            "of them equal the threshold.",
            evidence,
        )


def _unscorable(d: Diagnosis) -> Iterator[Finding]:
    share = d.scores.unscorable
    if share >= MOSTLY:
        yield Finding(
            "unscorable",
            "problem",
            f"{share:.1%} of the snippets could not be scored, and are kept whatever they are, so "
            "that coverage says nothing of the promise: see that the scorer knows these texts, and "
            "that the retriever gives its scores.",
            {"unscorable": share},
        )
    elif share > 0:
        yield Finding(
            "unscorable",
            "notice",
            f"{share:.1%} of the snippets could not be scored, and are kept; m1 counts them, and "
            "its band does not.",
            {"unscorable": share},
        )


def _direction(d: Diagnosis) -> Iterator[Finding]:
    j = d.judgements
    if j is None or math.isnan(j.auc_over):
        return
    within = j.auc_within
    evidence = {"auc_within": within.estimate, "high": within.high, "auc_over": j.auc_over}
    numbers = f"{within.estimate:.2f} within queries, {j.auc_over:.2f} over all"
    if within.high < 0.5:
        sentence = (
            f"Relevant snippets score higher than irrelevant ones (AUC {numbers}), but a score is "
            "a nonconformity, lower = more relevant: the direction seems reversed."
        )
        yield Finding("direction", "problem", sentence, evidence)
    elif min(within.estimate, j.auc_over) < WEAK_AUC:
        bad = any(f.severity == "problem" for r in (_coverage, _scores, _unscorable) for f in r(d))
        sentence = (
            f"The scores hardly tell relevant from irrelevant (AUC {numbers}; 0.5 is a coin)"
            + (", so that " if bad else ": the promise does not suffer, but ")
            + "little can be removed."
        )
        yield Finding("separation", "notice", sentence, evidence)
    else:
        sentence = f"The scores tell relevant from irrelevant (AUC {numbers})."
        yield Finding("separation", "fine", sentence, evidence)


def _groups(d: Diagnosis) -> Iterator[Finding]:
    judged = [row for row in d.groups if row.p_value is not None and row.coverage is not None]
    for row in judged:
        assert row.p_value is not None and row.coverage is not None  # noqa: PT018
        p_value = min(1.0, len(judged) * row.p_value)
        if p_value > 1 - d.level:
            continue
        remedy = "" if d.calibration.by_group else "; calibrating by group promises it to each"
        yield Finding(
            "group",
            "problem" if d.calibration.by_group else "notice",
            f"In group {row.group!r}, {MEANING[d.calibration.guarantee]} is "
            f"{shown(row.coverage)} on {counted_queries(row.n_measured)}, below "
            f"{1 - d.calibration.alpha:.1%} (p = {p_value:.2g} for {len(judged)} groups){remedy}.",
            {
                "coverage": row.coverage.estimate,
                "target": 1 - d.calibration.alpha,
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

MEANING = {
    "query-recall": "the mean share of a query's relevant snippets that is kept",
    "snippet": "the share of all relevant snippets that is kept",
    "all": "the share of queries that lose no relevant snippet",
    "any": "the share of queries that keep a relevant snippet",
}


def counted_queries(n: int, kind: str = "") -> str:
    """Write a number of queries of some kind, one of them in the singular."""
    return f"{n:,} {kind}{'query' if n == 1 else 'queries'}"


def shown(interval: Interval) -> str:
    """Write an interval without the padding of tables."""
    return str(interval).strip()
