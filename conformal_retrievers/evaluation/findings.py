"""The rules that turn a diagnosis into findings; `wording.txt` has their sentences.

A problem is a reason not to rely on the guarantee for these queries. Most problems are found by
tests, each with a false alarm in at most a share 1 − level of cases: whether the lowest scores
differ, whether more queries have no snippet and, with judgements, whether coverage is too low or
scores are reversed. A notice explains m1, m2 or coverage; the constants below say from where on it
is given. What is fine is listed too.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.statement import why_none, why_none_kept
from conformal_retrievers.data.text import counted, shortened
from conformal_retrievers.evaluation import verdict as verdicts
from conformal_retrievers.evaluation.diagnosis import MEANING, Diagnosis, Finding, Severity
from conformal_retrievers.evaluation.evaluate import Evaluation
from conformal_retrievers.evaluation.share import Share
from conformal_retrievers.evaluation.wording import say
from conformal_retrievers.theory.exchangeability import p_at_threshold
from conformal_retrievers.theory.intervals import in_percent, percent
from conformal_retrievers.theory.ranks import exact_alpha
from conformal_retrievers.theory.tolerance import binomial_lower, tolerance_rank

LITTLE_REMOVED = 0.05  # share removed up to which the filter hardly pays
MANY_IRRELEVANT = 0.05  # share of queries that keep irrelevant snippets only
MANY_TIES = 0.01  # share of scores that equal the threshold
WEAK_AUC = 0.6


def findings(d: Diagnosis) -> tuple[Finding, ...]:
    """Return all findings, the problems first."""
    of_judgements = (_coverage, _direction, _missing, _irrelevant, _groups)
    of_scores = (_scores, _empty, _silence, _m1, _removal, _ties, _unscorable)
    listed = [
        replace(finding, sentence=d.calibration.subject.worded(finding.sentence))
        for rule in (of_judgements if d.judged else ()) + of_scores
        for finding in rule(d)
    ]
    if d.judged and not d.evaluation.held_out_verified:
        listed.append(Finding("ids", "notice", verdicts.UNVERIFIED))
    return ordered(listed)


def ordered(listed: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings, the problems first."""
    return tuple(sorted(listed, key=lambda f: ("problem", "notice", "fine").index(f.severity)))


# --- what judgements show -------------------------------------------------------------------------


def _coverage(d: Diagnosis) -> Iterator[Finding]:
    coverage, verdict, by_group = d.coverage, d.evaluation.verdict, d.calibration.by_group
    if math.isnan(coverage.estimate):
        return
    severity: Severity = "fine"
    chance = ""
    if verdict is not None:
        low = verdict.p_value <= 1 - d.level and not by_group  # each group is tested: `_groups`
        severity = "problem" if low else "notice" if verdict.too_few else "fine"
        if coverage.estimate < d.target and not by_group:
            explains = "does not explain" if low else "can explain"
            chance = f". {say('chance', explains=explains, p=verdict.p_value)}"
    sentence = say(
        "coverage",
        meaning=MEANING[d.calibration.guarantee],
        coverage=coverage,
        n=_measured(d.evaluation, d.calibration, "judged "),
        target=percent(d.target, exact=True),
        where=" in each group with a finite threshold" if by_group else "",
        chance=chance,
    )
    yield Finding("coverage", severity, sentence)


def _direction(d: Diagnosis) -> Iterator[Finding]:
    if math.isnan(d.auc_over):
        return
    auc = say("auc", within=d.auc_within.estimate, over=d.auc_over)
    if d.auc_within.high < 0.5:
        yield Finding("direction", "problem", say("reversed", auc=auc))
    elif min(d.auc_within.estimate, d.auc_over) < WEAK_AUC:
        yield Finding("separation", "notice", say("hardly separate", auc=auc))
    else:
        yield Finding("separation", "fine", say("separate", auc=auc))


def _missing(d: Diagnosis) -> Iterator[Finding]:
    e = d.evaluation
    end_to_end = e.end_to_end[d.calibration.guarantee]
    if not e.recall_at_k.n:
        yield Finding("recall", "notice", say("recall unknown"))
    elif e.n_missed:
        sentence = say("missing", recall=e.recall_at_k, end_to_end=end_to_end)
        severity: Severity = "notice" if end_to_end.high < d.target else "fine"
        advice = f" {say('deeper')}" if severity == "notice" else ""
        yield Finding("missing", severity, sentence + advice)


def _irrelevant(d: Diagnosis) -> Iterator[Finding]:
    e = d.evaluation
    if e.precision.n:
        severity: Severity = "notice" if e.only_irrelevant > MANY_IRRELEVANT else "fine"
        facts = {"share": percent(1 - e.precision.estimate), "only": percent(e.only_irrelevant)}
        yield Finding("irrelevant", severity, say("irrelevant", **facts))


def _groups(d: Diagnosis) -> Iterator[Finding]:
    c, e, target = d.calibration, d.evaluation, percent(d.target, exact=True)
    for name, verdict in e.groups_below.items():
        n = _measured(e.by_group[name], c)
        sentence = say("group", name=name, verdict=verdict, n=n, target=target)
        severity: Severity = "problem" if c.by_group else "notice"
        advice = "" if c.by_group else f" {verdicts.COVER_EACH}"
        yield Finding("group", severity, sentence + advice)


# --- what the scores show -------------------------------------------------------------------------


def _scores(d: Diagnosis) -> Iterator[Finding]:
    c = d.comparison
    if c is None:
        yield Finding("scores", "notice", say("no scores"))
        return
    tested = say("tested", new=counted(c.n_new, "new query"), earlier=c.n_reference, p=c.p_value)
    if c.p_value > 1 - d.level:
        sentence = f"{(d.few_scores or say('scores alike'))[:-1]} ({tested})."
        verdict = d.evaluation.verdict
        if verdict and verdict.p_value <= 1 - d.level and not d.few_scores:
            sentence += f" So if {verdicts.UNLUCKY}"
        yield Finding("scores", "notice" if d.few_scores else "fine", sentence)
        return
    direction, share = ("higher" if c.higher > 0.5 else "lower"), max(c.higher, 1 - c.higher)
    how = say("shifted", direction=direction, share=100 * share) if c.overlap else say("outside")
    yield Finding("scores", "problem", say("scores differ", tested=tested, how=how))


def _empty(d: Diagnosis) -> Iterator[Finding]:
    """Empty lists have no score, so the test of scores and the band of m1 leave them out."""
    n, (before, of) = d.evaluation.n_queries, d.empty_before
    empty = n - int(d.evaluation.m2.n)
    if not empty:
        return
    p = p_at_threshold(before, empty, of, n)
    facts = {"empty": empty, "n": n, "before": before, "of": of, "p": p}
    if of and empty * of > before * n and p <= 1 - d.level:
        yield Finding("empty", "problem", say("more empty", **facts))
    else:
        yield Finding("empty", "notice", say("as empty" if of else "empty", **facts))


def _silence(d: Diagnosis) -> Iterator[Finding]:
    silent, lost, gate = d.evaluation.silent, d.evaluation.false_silence, d.calibration.gate
    if gate is None or silent is None or lost is None:
        return
    seen, most = say("silence", silent=silent), percent(exact_alpha(gate.alpha), exact=True)
    facts = {"seen": seen, "most": most}
    if lost.n:
        passes = Share(1 - lost.estimate, 1 - lost.high, 1 - lost.low, lost.n, lost.effective_n)
        verdict = verdicts.verdict_on(gate, passes)
        sentence = say("false silence", wrongly=lost, **facts)
        if verdict is not None and verdict.too_few:
            yield Finding("silence", "notice", f"{sentence}. {verdict.shortage}")
        elif verdict is None or verdict.p_value > 1 - d.level:
            yield Finding("silence", "fine", f"{sentence}.")
        else:
            chance = say("chance", explains="does not explain", p=verdict.p_value)
            yield Finding("silence", "problem", f"{sentence}. {chance}.")
    elif silent.low > (likely := 1 - _least_passing(gate)):
        facts["unanswerable"] = percent((silent.low - likely) / (1 - likely))
        yield Finding("silence", "notice", say("much silence", likely=percent(likely), **facts))
    else:
        yield Finding("silence", "fine", say("little silence", **facts))


def _least_passing(gate: Calibration) -> float:
    """Return the share of answerable queries that 19 in 20 gates let pass, in any one group."""
    ranks = [(tolerance_rank(n, gate.alpha, gate.delta), n) for n in gate.n_units.values()]
    return min((binomial_lower(k, n, 0.05) for k, n in ranks if k <= n), default=1.0)


def _m1(d: Diagnosis) -> Iterator[Finding]:
    e, target = d.evaluation, percent(d.target, exact=True)
    m1 = e.m1.estimate
    outside = d.m1_band is not None and not d.m1_band[0] <= m1 <= d.m1_band[1]
    band = f"; {say('m1 band', ends=in_percent(*d.m1_band))}" if d.m1_band else ""
    meaning = say("m1 not judged", target=target)
    if d.judged:
        relevant, only = percent(m1 - e.only_irrelevant), percent(e.only_irrelevant)
        meaning = say("m1 judged", relevant=relevant, only=only)
    sentence = say("m1", m1=percent(m1), band=band, meaning=meaning)
    yield Finding("m1", "notice" if outside else "fine", sentence)


def _removal(d: Diagnosis) -> Iterator[Finding]:
    c, e = d.calibration, d.evaluation
    if not c.by_group and c.threshold() == math.inf:
        if c.count_missed:
            yield Finding("threshold", "problem", say("no guarantee", why=why_none(c, None)))
        else:
            sentence = say("all kept", n=c.n_units[None], needed=c.n_needed)
            yield Finding("threshold", "notice", sentence)
        return
    parts = e.by_group or {None: e}

    def share_at(infinite: float) -> float:
        at = (part.n_queries for name, part in parts.items() if c.threshold(name) == infinite)
        return sum(at) / e.n_queries

    if keep_all := share_at(math.inf):
        names = ", ".join(repr(g) if g else "no group" for g in parts if c.threshold(g) == math.inf)
        sentence = say("groups keep all", share=percent(keep_all), groups=shortened(names, 80))
        yield Finding("threshold", "notice", sentence)
    if keep_none := share_at(-math.inf):
        some = f" in {percent(keep_none)} of the queries, by their group" if c.by_group else ""
        sentence = say("none kept", some=some, why=why_none_kept("snippets"))
        yield Finding("threshold", "notice", sentence)
    removal, scored = e.removal.estimate, 1 - e.unscorable.estimate
    if scored > 0 and removal <= LITTLE_REMOVED * scored:  # unscorable snippets are not to blame
        yield Finding("removal", "notice", say("little removed", removal=percent(removal)))


def _ties(d: Diagnosis) -> Iterator[Finding]:
    sentence = say("ties", t=d.ties, share=percent(d.ties.at_threshold))
    if d.ties.at_threshold > MANY_TIES:
        yield Finding("ties", "notice", f"{sentence} {say('many ties')}")
    elif d.ties.n_scores:
        yield Finding("ties", "fine", sentence)


def _unscorable(d: Diagnosis) -> Iterator[Finding]:
    share, most = d.evaluation.unscorable.estimate, d.evaluation.mostly_unscorable
    if share > 0:
        advice = say("mostly unscorable" if most else "some unscorable")
        sentence = say("unscorable", share=percent(share), advice=advice)
        yield Finding("unscorable", "problem" if most else "notice", sentence)


def _measured(e: Evaluation, c: Calibration, kind: str = "") -> str:
    """Write the number of queries with a relevant snippet that counts."""
    return counted(int((e.end_to_end if c.count_missed else e.coverage)["any"].n), f"{kind}query")
