"""From judged queries to a calibration: `calibrate`."""

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.fitting import (
    Parts,
    check_given,
    choose,
    parts_of,
    passing,
    provenance_with,
)
from conformal_retrievers.calibration.gates.gate import Gate, check_gate
from conformal_retrievers.calibration.gates.in_front import check_same_queries, check_same_retrieval
from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.calibration.scorer import scorer_for
from conformal_retrievers.calibration.statement import why_none
from conformal_retrievers.calibration.subjects import OnUnscorable
from conformal_retrievers.calibration.wording import say
from conformal_retrievers.data.copies import check_copies
from conformal_retrievers.data.judged import check_not_only_relevant
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.data.sentences import Split
from conformal_retrievers.data.sentences.evidence import by_sentence
from conformal_retrievers.scoring.function import FunctionScorer
from conformal_retrievers.scoring.scorer import (
    Scorer,
    asked_in,
    check_not_fitted_on,
    judged_queries,
    query_digest,
    score_queries,
)
from conformal_retrievers.scoring.shared_scores import shared_in
from conformal_retrievers.theory.ranks import check_probability


def calibrate(
    judged: Iterable[JudgedQuery],
    scorer: Scorer | Sequence[Scorer] | None = None,
    *,
    alpha: float,
    split: Split | None = None,
    guarantee: Guarantee = "query-recall",
    delta: float | None = None,
    by_group: bool = False,
    count_missed: bool = False,
    on_unscorable: OnUnscorable = "raise",
    retrieval: Mapping[str, JsonValue] | None = None,
    labels: Mapping[str, JsonValue] | None = None,
    gate: Gate | None = None,
    progress: bool = False,
) -> Calibration:
    """Score judged queries and return the calibration that their relevant snippets give.

    Without a scorer, the score is learned from the snippets' hits and words: on other collections,
    and from 20 judged queries on also on a quarter of them, which do not calibrate (see
    `fitting.py`).

    Parameters
    ----------
    judged
        Queries with their retrieved snippets and a judgement for each.
    scorer
        Scores the snippets of a query; lower = more relevant. With a list, the score is learned
        from its scorers, hits and words; by default from hits and words.
    alpha
        The risk, in (0, 1): the guarantee holds at 1 − alpha, so that 0.1 guarantees 90 %.
    split
        "sentences", or a function from a text to the ranges of its sentences: cuts the snippets of
        queries with evidence, and the guarantee is about the relevant sentences. Queries whose
        snippets are sentences already need none.
    guarantee
        What is kept at 1 − alpha: "query-recall", the mean share of a query's relevant snippets;
        "snippet", a relevant snippet of any query; "all", all relevant snippets of a query; "any",
        at least one of them.
    delta
        The probability, in (0, 1), that these judged queries are unlucky and the guarantee falls
        short; None: it holds on average over sets of judged queries.
    by_group
        Whether it holds within each group of queries (`JudgedQuery.group`).
    count_missed
        Whether relevant snippets that were not retrieved count as dropped.
    on_unscorable
        "raise" refuses a relevant snippet without a score (NaN); "keep" counts it as
        kept, as the filter keeps it.
    retrieval
        Facts about the retrieval ("retriever", "k", chunking), written into the file.
    labels
        Facts about the judgements (source, prompt, audit), written into the file.
    gate
        A gate in front of the filter, calibrated on the same queries with a smaller alpha. The file
        holds both, and the guarantee is about both together: what the gate silences counts as
        dropped. Questions that chose the gate's score do not calibrate the filter.
    progress
        Whether to show a progress bar.

    Raises
    ------
    TypeError
        For a scorer that is none.
    ValueError
        For queries that are not retrieved yet: of `JudgedQuery.from_ids`, or with nothing but
        relevant snippets, without hits, retriever and k. For copies of a query. As in
        `Calibration.from_scores` and `by_sentence`, for snippets without hits where no scorer is
        given, for a query that the scorer was fitted on, and for queries that were retrieved by
        different retrievers or at different depths.

    Warns
    -----
    UserWarning
        If alpha is above 0.5, which looks like the share to be kept.
        If more than 1 % of the queries are near copies of others.
        If the filter would not drop a single snippet of the judged queries, unless there are too
        few of them for a finite threshold, which the statement says.

    Notes
    -----
    The threshold is the smallest calibration score v with Σ_{A_i ≤ v} m_i ≥ (1 − α)(Σ m_i + 1), see
    `theory/ranks.py` (Angelopoulos et al. 2024, arXiv 2208.02814).

    The file knows a question by its text, unless several queries ask it, as of many contracts:

    >>> from conformal_retrievers.data.queries import with_hits
    >>> lists = [with_hits([f"right {i}", f"wrong {i}"]) for i in range(9)]
    >>> many = [JudgedQuery("Who signed?", found, [True, False]) for found in lists]
    >>> once = JudgedQuery("When?", with_hits(["now", "never"]), [True, False])
    >>> len(calibrate([*many, once], alpha=0.2).digests)
    1
    """
    alpha = check_probability("alpha", alpha, "a risk")  # as a float
    rule: dict[str, Any] = {
        "alpha": alpha,
        "guarantee": guarantee,
        "delta": delta,
        "by_group": by_group,
        "count_missed": count_missed,
        "on_unscorable": on_unscorable,
        "retrieval": retrieval,
        "labels": labels,
    }
    checks.check_scorers(scorer)
    given = scorer if scorer is None or isinstance(scorer, Scorer) else [*scorer]
    queries, parts, rule = _checked(judged, given, split, gate, rule)
    checks.warn_if_large(alpha=alpha, delta=delta)
    parts = Parts(*map(shared_in, parts))
    own, choice = choose(queries, parts, given, guarantee, alpha, progress=progress)
    scored = score_queries(own, parts.calibration, gate=gate, progress=progress)
    provenance = provenance_with(own, choice)
    calibration = Calibration.from_scores(scored, scorer=own, scorer_provenance=provenance, **rule)
    _warn_if_nothing_drops(calibration, scored)
    if choice is None:
        return calibration
    kept = [
        0 if query.silenced else int(calibration.keep(query.scores, query.group).sum())
        for query in scored
        if len(query.scores)
    ]
    asked = Counter(asked_in(query_digest(q.query), q.group) for q in parts.calibration)
    digests = [key for key, n in asked.items() if n == 1]  # not one about each of many documents
    choice = choice.model_copy(update={**passing(calibration.alpha, kept), "digests": digests})
    return replace(calibration, scorer_provenance=provenance_with(own, choice))


def _checked(
    judged: Iterable[JudgedQuery], scorer: Any, split: Split | None, gate: Gate | None, rule: Any
) -> tuple[list[JudgedQuery], Parts, dict[str, Any]]:
    """Return the queries, which of them fit and calibrate, and the rule of `from_scores`.

    Raises, before anything is scored, what scoring or `from_scores` would, but for scores.
    """
    if gate is not None:
        check_gate(gate)
    queries = judged_queries(judged)
    if not queries:
        raise ValueError("judged is empty; give judged queries, such as judge_retriever returns")
    if split is not None:
        queries = by_sentence(queries, split)
    check_not_only_relevant(queries)
    if not any(query.snippets for query in queries):
        raise ValueError(say("nothing returned", n=len(queries)))
    retrieval = checks.with_retrieval(queries, rule["retrieval"])
    rule = {**rule, "retrieval": retrieval, "gate": gate and gate.calibration}
    unscored = _unscored(queries, scorer, rule)
    check_copies(queries)
    parts = Parts([], queries)
    if isinstance(scorer, Scorer):
        check_not_fitted_on(scorer, queries)
    else:
        check_given(queries, scorer or ())
        parts = parts_of(queries, unscored)
    if gate is not None:
        check_same_retrieval(gate.calibration, unscored, "judged")
        _behind(gate, queries, rule)  # raises for those that only fit, too
        parts = parts._replace(calibration=_behind(gate, parts.calibration, rule))
    _unscored(parts.calibration, scorer, rule)
    return queries, parts, rule


def _behind(gate: Gate, queries: Sequence[JudgedQuery], rule: Any) -> list[JudgedQuery]:
    """Return the queries that did not choose the gate's score; raise if others calibrated it."""
    others = [query for query in queries if not gate.calibration.chosen_on(query)]
    check_same_queries(gate.calibration, others, rule["alpha"], by_group=rule["by_group"])
    return others


def _unscored(queries: Sequence[JudgedQuery], scorer: Any, rule: Any) -> Calibration:
    """Return the calibration of queries by scores that are all 0."""
    unpaid = score_queries(FunctionScorer(lambda _, texts: [0.0] * len(texts), "none yet"), queries)
    unpaid = [replace(query, silenced=None if rule["gate"] is None else False) for query in unpaid]
    if not isinstance(scorer, Scorer):
        return Calibration.from_scores(unpaid, scorer="learned", **rule)
    made = provenance_with(scorer, None)
    return Calibration.from_scores(unpaid, scorer=scorer, scorer_provenance=made, **rule)


def _warn_if_nothing_drops(calibration: Calibration, scored: Sequence[ScoredQuery]) -> None:
    """Warn if the filter drops no snippet of the queries, unless these are too few."""
    enough = [group for group, n in calibration.n_units.items() if n >= calibration.n_needed]
    if calibration.keeps_everything and enough:
        why = why_none(calibration, enough[0])
        beyond = " beyond what the gate silences" if calibration.gate else ""
        warnings.warn(f"the threshold is infinite and drops nothing{beyond}: {why}", stacklevel=3)
    queries = [q for q in scored if calibration.threshold(q.group) < math.inf]
    droppable = any(not np.isnan(q.scores[~q.relevant]).all() for q in queries)
    if droppable and all(calibration.keep(q.scores, q.group).all() for q in queries):
        warnings.warn(say("drops none", c=calibration), stacklevel=3)


def score_as_calibrated(
    calibration: Calibration, judged: Iterable[JudgedQuery]
) -> list[ScoredQuery]:
    """Return judged queries with the scores of a calibration that holds all that these need."""
    gate = None if calibration.gate is None else Gate.of(calibration.gate)
    return score_queries(scorer_for(calibration), judged, gate=gate)
