"""What a gate does to new queries: false silence, and false speech by source of unanswerable ones.

Of n answerable queries s are silenced, and on u of m unanswerable ones of a source the gate speaks:

    false silence = s / n, at most alpha is guaranteed     false speech = u / m

each with Clopper and Pearson's interval, which is exact because the thresholds follow from other
queries. Sources differ in how hard they are and are never mixed. Queries with an answer of which
nothing was retrieved are a source of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_new, check_unique_ids
from conformal_retrievers.calibration.false_answers import questions_in
from conformal_retrievers.calibration.gate import Gate, check_gate
from conformal_retrievers.calibration.gating import by_source
from conformal_retrievers.calibration.subjects import QUERIES
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.evaluation.gate_evaluation import (
    NOTHING,
    Array,
    Decided,
    Decisions,
    GateCurve,
    GateEvaluation,
)
from conformal_retrievers.evaluation.verdict import verdict_on, worst_of
from conformal_retrievers.scoring.query_scorer import query_scores
from conformal_retrievers.scoring.scorer import check_not_fitted_on, judged_queries, query_digest
from conformal_retrievers.theory.intervals import check_level

ALPHAS = (0.005, 0.01, 0.02, *(k / 40 for k in range(1, 21)))  # of the curve: 0.005 … 0.5


def evaluate_gate(
    gate: Gate,
    answerable: Iterable[JudgedQuery],
    unanswerable: Iterable[JudgedQuery] | Mapping[str, Iterable[JudgedQuery]] = (),
    *,
    level: float = 0.95,
    progress: bool = False,
) -> GateEvaluation:
    """Measure how often a gate is wrong on new answerable and unanswerable queries.

    Parameters
    ----------
    gate
        From `calibrate_gate` or `Gate.load`.
    answerable, unanswerable
        As in `calibrate_gate`, of new questions. Queries of the first without a relevant snippet
        are not answerable: they are the sources "judged unanswerable" and "nothing relevant
        retrieved".
    level
        Confidence of every interval, in (0, 1).
    progress
        Whether to show a progress bar.

    Raises
    ------
    TypeError
        For anything but a gate and judged queries.
    ValueError
        For no answerable query, an id that occurs twice, an unanswerable query with a relevant
        snippet, and a question that the gate was calibrated or fitted on, by its id or its text.
    """
    check_level(level)
    check_gate(gate)
    given = judged_queries(answerable, "answerable")
    sources = by_source(given, unanswerable)
    known = [query for query in given if any(query.relevant)]
    if not known:
        raise ValueError(
            f"answerable has {len(given)} queries, none with a relevant snippet; give judged "
            "queries, as the retriever returns snippets for them"
        )
    nothing = [query for query in given if query.answerable and not any(query.relevant)]
    sources |= {NOTHING: [*sources.get(NOTHING, []), *nothing]} if nothing else {}
    check_unique_ids(query.id for query in given)
    for queries in (given, *sources.values()):
        _check_new(gate, queries)
    c = gate.calibration

    def decided(name: str, queries: Sequence[JudgedQuery]) -> list[Decided]:
        scores = query_scores(gate.scorer, queries, title=f"Scoring: {name}", progress=progress)
        pairs = zip(queries, scores.tolist(), strict=True)
        return [(query, gate.decide(score, query.group)) for query, score in pairs]

    of_known = decided("answerable", known)
    of_sources = {name: decided(name, queries) for name, queries in sources.items()}
    whole = _measured(c, of_known, of_sources, level)
    if c.by_group:
        members = {query.group for query in known}
        parts = {
            group: _measured(
                c,
                _of_group(of_known, group),
                {name: _of_group(queries, group) for name, queries in of_sources.items()},
                level,
                group,
                len(members),
            )
            for group in sorted(members, key=str)
        }
        verdict = worst_of(part.verdict for part in parts.values())
        whole = replace(whole, by_group=parts, verdict=verdict)
    return replace(whole, held_out_verified=c.held_out(query.id for query in given))


def _check_new(gate: Gate, queries: Sequence[JudgedQuery]) -> None:
    """Raise ValueError for a question that the gate was calibrated or fitted on."""
    c = gate.calibration
    check_new((query.id for query in queries), c.used_ids, QUERIES)
    check_not_fitted_on(gate.scorer, queries)
    calibrated = questions_in(c)
    for query in queries:
        if query_digest(query.query) in calibrated or c.chosen_on(query):
            raise ValueError(
                f"the gate was calibrated on the question of {query.name}; give new questions"
            )


def _of_group(decided: Sequence[Decided], group: str | None) -> list[Decided]:
    return [pair for pair in decided if pair[0].group == group]


def _measured(
    calibration: Calibration,
    answerable: Sequence[Decided],
    unanswerable: Mapping[str, Sequence[Decided]],
    level: float,
    group: str | None = None,
    tests: int = 1,
) -> GateEvaluation:
    """Return the measures of queries; the verdict is on `group`, one of `tests`."""
    of_known = Decisions.of(answerable, level, best=True)
    return GateEvaluation(
        alpha=calibration.alpha,
        answerable=of_known,
        unanswerable={
            name: Decisions.of(queries, level, best=False) for name, queries in unanswerable.items()
        },
        curve=_curve(calibration, answerable, unanswerable),
        verdict=verdict_on(calibration, of_known.speaks, group, tests=tests),
    )


def _curve(
    calibration: Calibration,
    answerable: Sequence[Decided],
    unanswerable: Mapping[str, Sequence[Decided]],
) -> GateCurve:
    alphas = calibration.possible_alphas(ALPHAS)
    at = [calibration.at(alpha) for alpha in alphas]

    def silent(decided: Sequence[Decided]) -> Array:
        scores = np.array([gated.score for _, gated in decided])
        groups = [gated.group for _, gated in decided]
        if not groups:
            return np.full(len(at), np.nan)
        return np.array([np.mean(scores > [c.threshold(g) for g in groups]) for c in at])

    sources = {name: silent(queries) for name, queries in unanswerable.items()}
    return GateCurve(np.array(alphas), silent(answerable), sources)
