"""The rules that turn a diagnosis into findings, each a sentence.

A problem is a reason not to rely on the guarantee for these queries. Most problems are found by
tests, each with a false alarm in at most a share 1 − level of cases: whether the lowest scores
differ and, with judgements, whether coverage is too low or scores are reversed. A notice explains
m1, m2 or coverage; the constants below say from where on it is given. What is fine is listed too.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.statement import WHY_NONE_KEPT, why_none
from conformal_retrievers.evaluation.diagnosis import MEANING, Diagnosis, Finding, Severity
from conformal_retrievers.evaluation.evaluate import Evaluation
from conformal_retrievers.evaluation.measures import guaranteed
from conformal_retrievers.evaluation.share import Share
from conformal_retrievers.evaluation.verdict import (
    COVER_EACH,
    UNLUCKY,
    UNVERIFIED,
    groups_below,
    verdict_on,
)
from conformal_retrievers.theory.intervals import in_percent, percent
from conformal_retrievers.theory.ranks import exact_alpha

LITTLE_REMOVED = 0.05  # share removed up to which the filter hardly pays
MANY_IRRELEVANT = 0.05  # share of queries that keep irrelevant snippets only
MANY_TIES = 0.01  # share of scores that equal the threshold
WEAK_AUC = 0.6


def findings(d: Diagnosis) -> tuple[Finding, ...]:
    """Return all findings, the problems first."""
    of_judgements = (_coverage, _direction, _missing, _irrelevant, _groups)
    of_scores = (_scores, _silence, _m1, _removal, _ties, _unscorable)
    rules = (of_judgements if d.judged else ()) + of_scores
    found = [
        replace(finding, sentence=d.calibration.subject.worded(finding.sentence))
        for rule in rules
        for finding in rule(d)
    ]
    if d.judged and not d.evaluation.held_out_verified:
        found.append(Finding("ids", "notice", UNVERIFIED))
    return ordered(found)


def ordered(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings, the problems first."""
    return tuple(sorted(found, key=lambda f: ("problem", "notice", "fine").index(f.severity)))


# --- what judgements show -------------------------------------------------------------------------


def _coverage(d: Diagnosis) -> Iterator[Finding]:
    coverage, verdict, by_group = d.coverage, d.evaluation.verdict, d.calibration.by_group
    if math.isnan(coverage.estimate):
        return
    where = " in each group with a finite threshold" if by_group else ""
    severity: Severity = "fine"
    chance = ""
    if verdict is not None:
        low = verdict.p_value <= 1 - d.level and not by_group  # each group is tested: `_groups`
        severity = "problem" if low else "notice" if verdict.too_few else "fine"
        if coverage.estimate < d.target and not by_group:
            explains = "does not explain" if low else "can explain"
            chance = f". Chance {explains} the difference (p = {verdict.p_value:.2g})"
    sentence = (
        f"Coverage ({MEANING[d.calibration.guarantee]}) is {coverage} on "
        f"{_measured(d.evaluation, d.calibration, 'judged ')}; the target is "
        f"{percent(d.target, exact=True)}{where}{chance}."
    )
    yield Finding("coverage", severity, sentence)


def _direction(d: Diagnosis) -> Iterator[Finding]:
    if math.isnan(d.auc_over):
        return
    auc = f"AUC {d.auc_within.estimate:.2f} within queries, {d.auc_over:.2f} over all"
    if d.auc_within.high < 0.5:
        sentence = (
            f"Relevant snippets score higher than irrelevant ones ({auc}). Scores must be lower "
            "for relevant snippets: reverse their sign."
        )
        yield Finding("direction", "problem", sentence)
    elif min(d.auc_within.estimate, d.auc_over) < WEAK_AUC:
        sentence = (
            f"The scores hardly separate relevant from irrelevant snippets ({auc}; chance is 0.5), "
            "so the filter can remove little. This does not affect coverage."
        )
        yield Finding("separation", "notice", sentence)
    else:
        sentence = f"The scores separate relevant from irrelevant snippets ({auc})."
        yield Finding("separation", "fine", sentence)


def _missing(d: Diagnosis) -> Iterator[Finding]:
    e = d.evaluation
    end_to_end = e.end_to_end[d.calibration.guarantee]
    if not e.recall_at_k.n:
        sentence = (
            "Recall@K and end-to-end coverage are unknown: no query has `missed`, the number of "
            "known relevant snippets that were not retrieved."
        )
        yield Finding("recall", "notice", sentence)
    elif e.n_missed:
        short = end_to_end.high < d.target
        sentence = (
            f"The retriever missed some relevant snippets: recall@K is {e.recall_at_k}. If they "
            f"count as dropped, coverage is {end_to_end}."
        )
        if short:
            sentence += " No threshold brings missed snippets back; a deeper retriever might."
        yield Finding("missing", "notice" if short else "fine", sentence)


def _irrelevant(d: Diagnosis) -> Iterator[Finding]:
    e = d.evaluation
    if not e.precision.n:
        return
    many = e.only_irrelevant > MANY_IRRELEVANT
    sentence = (
        f"{percent(1 - e.precision.estimate)} of the kept snippets are irrelevant. "
        f"{percent(e.only_irrelevant)} of the queries keep irrelevant snippets only."
    )
    yield Finding("irrelevant", "notice" if many else "fine", sentence)


def _groups(d: Diagnosis) -> Iterator[Finding]:
    c = d.calibration
    parts = {name: part for name, part in d.evaluation.by_group.items() if name is not None}
    coverages = {name: part.shares[guaranteed(c)] for name, part in parts.items()}
    for name, verdict in groups_below(c, coverages, d.level).items():
        sentence = (
            f"In group {name!r}, coverage is {verdict.coverage} on "
            f"{_measured(parts[name], c)}, below {percent(d.target, exact=True)} "
            f"(p = {verdict.p_value:.2g} for {verdict.tests} groups)."
        )
        if not c.by_group:
            sentence += f" {COVER_EACH}"
        yield Finding("group", "problem" if c.by_group else "notice", sentence)


# --- what the scores show -------------------------------------------------------------------------


def _scores(d: Diagnosis) -> Iterator[Finding]:
    c = d.comparison
    if c is None:
        sentence = "The scores cannot be compared: these queries, or the calibration's, have none."
        yield Finding("scores", "notice", sentence)
        return
    tested = f"{_counted(c.n_new, 'new ')} and {c.n_reference} earlier ones, p = {c.p_value:.2g}"
    if c.p_value > 1 - d.level:
        alike = "The lowest scores of these queries look like those of the calibration."
        sentence = f"{(d.few_scores or alike)[:-1]} ({tested})."
        verdict = d.evaluation.verdict
        if verdict and verdict.p_value <= 1 - d.level and not d.few_scores:
            sentence += f" So {UNLUCKY}"
        yield Finding("scores", "notice" if d.few_scores else "fine", sentence)
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
    yield Finding("scores", "problem", sentence)


def _silence(d: Diagnosis) -> Iterator[Finding]:
    silent, wrongly, gate = d.evaluation.silent, d.evaluation.false_silence, d.calibration.gate
    if gate is None or silent is None or wrongly is None:
        return
    seen = f"The gate is silent on {silent} of the queries"
    most = percent(exact_alpha(gate.alpha), exact=True)
    if wrongly.n:
        passes = Share(
            1 - wrongly.estimate, 1 - wrongly.high, 1 - wrongly.low, wrongly.n, wrongly.effective_n
        )
        verdict = verdict_on(gate, passes)
        sentence = f"{seen}, and on {wrongly} of the answerable ones; {most} at most is guaranteed"
        if verdict is not None and verdict.too_few:
            yield Finding("silence", "notice", f"{sentence}. {verdict.shortage}")
        elif verdict is None or verdict.p_value > 1 - d.level:
            yield Finding("silence", "fine", f"{sentence}.")
        else:
            chance = f"Chance does not explain the difference (p = {verdict.p_value:.2g})"
            yield Finding("silence", "problem", f"{sentence}. {chance}.")
    elif silent.low > gate.alpha:
        unanswerable = (silent.low - gate.alpha) / (1 - gate.alpha)
        sentence = (
            f"{seen}; at most {most} of the answerable ones are guaranteed. So at least "
            f"{percent(unanswerable)} of the queries are unanswerable, or unlike those of the "
            "calibration."
        )
        yield Finding("silence", "notice", sentence)
    else:
        sentence = f"{seen}; the guarantee allows {most} of the answerable ones."
        yield Finding("silence", "fine", sentence)


def _m1(d: Diagnosis) -> Iterator[Finding]:
    e = d.evaluation
    m1 = e.m1.estimate
    kept = f"{percent(m1)} of the queries keep a snippet (m1)"
    outside = False
    if d.m1_band is not None:
        low, high = d.m1_band
        outside = not low <= m1 <= high
        kept += f"; the band for exchangeable queries is {in_percent(low, high)}"
    if d.judged:
        meaning = (
            f"{percent(m1 - e.only_irrelevant)} keep a relevant snippet, "
            f"{percent(e.only_irrelevant)} keep irrelevant ones only"
        )
    else:
        meaning = f"m1 is not coverage and need not be {percent(d.target, exact=True)}"
    yield Finding("m1", "notice" if outside else "fine", f"{kept}. {meaning}.")


def _removal(d: Diagnosis) -> Iterator[Finding]:
    c, e = d.calibration, d.evaluation
    if not c.by_group and c.threshold() == math.inf:
        if c.count_missed:
            why = f"This calibration guarantees nothing: {why_none(c, None)}. Everything is kept."
            yield Finding("threshold", "problem", why)
            return
        sentence = (
            f"Everything is kept: the calibration has {c.n_units[None]} units and needs "
            f"{c.n_needed} for a finite threshold."
        )
        yield Finding("threshold", "notice", sentence)
        return
    parts = e.by_group or {None: e}

    def share_at(infinite: float) -> float:
        at = (part.n_queries for name, part in parts.items() if c.threshold(name) == infinite)
        return sum(at) / e.n_queries

    if keep_all := share_at(math.inf):
        sentence = (
            f"{percent(keep_all)} of the queries keep everything: they have no group, or one that "
            "the calibration does not know or has too few queries of."
        )
        yield Finding("threshold", "notice", sentence)
    if keep_none := share_at(-math.inf):
        some = f" in {percent(keep_none)} of the queries, by their group" if c.by_group else ""
        sentence = f"Only unscorable snippets are kept{some}: {WHY_NONE_KEPT.format('snippets')}."
        yield Finding("threshold", "notice", sentence)
    removal, scored = e.removal.estimate, 1 - e.unscorable.estimate
    if scored > 0 and removal <= LITTLE_REMOVED * scored:  # unscorable snippets are not to blame
        sentence = (
            f"The filter removes only {percent(removal)} of the snippets. Either the scores "
            "separate relevant from irrelevant too poorly at this alpha, or nearly all snippets "
            "are relevant."
        )
        yield Finding("removal", "notice", sentence)


def _ties(d: Diagnosis) -> Iterator[Finding]:
    t = d.ties
    many = t.at_threshold > MANY_TIES
    sentence = (
        f"The {t.n_scores:,} scores have {t.distinct:,} distinct values; {percent(t.at_threshold)} "
        "equal the threshold."
    )
    if many:
        sentence += (
            " All of these snippets are kept, more than the guarantee needs; a tie-breaking score "
            "removes more."
        )
    if t.n_scores:
        yield Finding("ties", "notice" if many else "fine", sentence)


def _unscorable(d: Diagnosis) -> Iterator[Finding]:
    share = d.evaluation.unscorable.estimate
    if not share > 0:
        return
    most = d.evaluation.mostly_unscorable
    advice = (
        "Coverage therefore tests nothing. Check that the scorer accepts these texts, and that "
        "the retriever passes its scores on."
        if most
        else "They count in m1, but not in its band."
    )
    sentence = f"{percent(share)} of the snippets could not be scored and are kept. {advice}"
    yield Finding("unscorable", "problem" if most else "notice", sentence)


def _measured(e: Evaluation, c: Calibration, kind: str = "") -> str:
    """Write the number of queries with a relevant snippet that counts."""
    return _counted(int((e.end_to_end if c.count_missed else e.coverage)["any"].n), kind)


def _counted(n: int, kind: str = "") -> str:
    """Write a number of queries of some kind, such as "1 judged query"."""
    return f"{n:,} {kind}{'query' if n == 1 else 'queries'}"
