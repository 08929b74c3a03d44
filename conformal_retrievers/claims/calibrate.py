"""The calibration of claims: a claim is kept iff its relevance is above the threshold.

The threshold q is the k(n, α)-th smallest of the answers' scores S (`answers.py`), and a new
exchangeable answer has S ≤ q with probability ≥ 1 − α: all claims c with R(c) > q are factual.
Mohri and Hashimoto 2024 (arXiv 2402.10978, theorem 4.1). Conformal-RAG (arXiv 2506.20978, eq. 4)
keeps R(c) ≥ q, and so the false claim itself if relevances tie.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.file_schema import details_of
from conformal_retrievers.calibration.subjects import CLAIMS, OnUnscorable
from conformal_retrievers.claims.answers import AnnotatedAnswer, answer_scores
from conformal_retrievers.claims.wording import say
from conformal_retrievers.data.checks import all_of
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.theory.intervals import ordered_pairs
from conformal_retrievers.theory.ranks import exact_share


def calibrate_claims(
    answers: Iterable[AnnotatedAnswer],
    *,
    alpha: float,
    scorer: str,
    delta: float | None = None,
    by_group: bool = False,
    share: float = 1.0,
    on_unscorable: OnUnscorable = "raise",
    labels: Mapping[str, JsonValue] | None = None,
) -> Calibration:
    """Return the calibration of claims that annotated answers give.

    An answer without claims is not used, and neither is one with a claim that has a relevance but
    no annotation, since its score is unknown. `details` of the calibration counts them.

    Parameters
    ----------
    answers
        With a relevance and an annotation for each claim.
    alpha
        Miscoverage rate in (0, 1): kept claims are all factual with probability ≥ 1 − alpha.
    scorer
        The name of the scorer that gave the relevances.
    delta, by_group, labels
        As in `calibrate`.
    share
        The share of an answer's kept claims that must be factual, in (0, 1]; 1 for all.
    on_unscorable
        "raise" refuses a claim without a relevance (NaN) that may not be factual; "drop" counts it
        as dropped, as the filter drops it, which assumes that new claims fail as often.

    Raises
    ------
    ValueError
        For an argument out of range, a repeated id, a missing group, no usable answer, or too few
        answers for delta.

    Warns
    -----
    UserWarning
        If alpha or delta is above 0.5, and if factual claims have the lower relevances, by more
        than chance.
    """
    exact_share(share)
    checks.check_flags(by_group=by_group)
    checks.check_on_unscorable(on_unscorable, CLAIMS)
    given = all_of(AnnotatedAnswer, answers, "answers")
    names = [f"answer {a.id!r}" if a.id else f"answer number {i}" for i, a in enumerate(given, 1)]
    unannotated = [name for name, answer in zip(names, given, strict=True) if not answer.annotated]
    used = [answer for answer in given if answer.annotated and answer.factual]
    without_claims = len(given) - len(unannotated) - len(used)
    if not used:
        facts = {"n": len(given), "without": without_claims, "unannotated": len(unannotated)}
        raise ValueError(say("none used", **facts))
    relevance = np.concatenate([a.relevance for a in used])
    factual = np.array([f is True for a in used for f in a.factual], dtype=bool)
    ordered, pairs = ordered_pairs(relevance[~factual], relevance[factual])
    checks.warn_if_reversed(ordered, pairs, CLAIMS, len(factual))
    for name, answer in zip(names, given, strict=True) if on_unscorable == "raise" else ():
        false = np.array([factual is not True for factual in answer.factual], dtype=bool)
        lost = np.flatnonzero(np.isnan(answer.relevance) & false)
        if answer.annotated and len(lost):
            raise ValueError(say("no relevance", name=name, i=lost[0]))
    calibration = Calibration(
        alpha,
        "all",
        scorer,
        ScoredQueries.of_units(answer_scores(used, share), used),
        subject=CLAIMS,
        delta=delta,
        by_group=by_group,
        labels=checks.json_copy("labels", labels),
        details={
            "share": float(share),
            "unannotated": [*unannotated],
            "n_without_claims": without_claims,
            "n_unscorable": int(np.isnan(relevance).sum()),
        },
    )
    checks.warn_if_large(alpha=calibration.alpha, delta=calibration.delta)
    return calibration


def share_of(calibration: Calibration) -> Fraction:
    """Return the share of an answer's kept claims that a calibration of claims is about."""
    return exact_share(details_of(calibration).share)
