"""The gate: silence where what was retrieved does not answer the query.

A query score is one number a query, lower if it looks answered (`scoring/query_scorer.py`). With
the scores A_1 … A_n of n answerable queries, to which something relevant was retrieved,

    silent   iff   score > the k-th smallest of A_1 … A_n,   k = ⌈(n + 1)(1 − α)⌉

so P(silent | answerable) ≤ α. On a query where it is not silent, the gate speaks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic_core import CoreSchema, core_schema

from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.gates.in_front import answerable_in, check_same_retrieval
from conformal_retrievers.calibration.scorer import query_scorer_for, scorer_for
from conformal_retrievers.calibration.subjects import ANSWERS, FILTERED, QUERIES
from conformal_retrievers.calibration.wording import say
from conformal_retrievers.data.queries import JudgedQuery, Snippet, as_snippets
from conformal_retrievers.data.snippets import Retrieved
from conformal_retrievers.scoring.hits import lacks
from conformal_retrievers.scoring.query_scorer import (
    QueryScorer,
    ascore_query,
    query_scores,
    score_query,
)
from conformal_retrievers.scoring.scorer import Scorer, query_digest, same_from
from conformal_retrievers.theory.intervals import percent
from conformal_retrievers.theory.ranks import exact_alpha

GateDecision = Literal["speaks", "silent"]


@dataclass(frozen=True)
class Gated:
    """What a gate decided about one query."""

    score: float  # NaN if it is unknown: then the query passes
    calibration: Calibration = field(repr=False)
    group: str | None = None

    @property
    def silent(self) -> bool:
        """Whether nothing is to be returned for the query."""
        return self.score > self.threshold

    @property
    def decision(self) -> GateDecision:
        """The decision as a word, as events have it."""
        return "silent" if self.silent else "speaks"

    @property
    def threshold(self) -> float:
        """The threshold of the query's group; the gate is silent above it."""
        return self.calibration.threshold(self.group)

    @property
    def p_value(self) -> float:
        """The conformal p-value of "this query is answerable"; without delta, silent iff ≤ α."""
        [p] = self.calibration.p_values([self.score], self.group)
        return float(p)


@dataclass(frozen=True)
class Gate:
    """Decides for each query whether what was retrieved may answer it.

    The calibration is one that `calibrate_gate` made. A query without a score passes, because it
    may be answerable, and so does one of an unknown group. Raises `CalibrationMismatch` for a
    calibration of another scorer or subject.
    """

    scorer: QueryScorer
    calibration: Calibration

    def __post_init__(self) -> None:
        checks.check_subject(self.calibration, QUERIES)
        needed = "an object with a name and score_query(query, snippets), such as BestScore(scorer)"
        checks.check_type(QueryScorer, needed, scorer=self.scorer)
        checks.check_same_scorer(self.scorer.name, calibrated=self.calibration.scorer)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        # The frameworks' models would validate each of its fields, and those of its calibration.
        return core_schema.is_instance_schema(cls)

    @classmethod
    def of(cls, calibration: Calibration, scorers: Iterable[Scorer | QueryScorer] = ()) -> Gate:
        """Return the gate of a calibration, given the scorers that its score needs, if any.

        Raises `CalibrationMismatch`, naming it, for a missing scorer.
        """
        checks.check_subject(calibration, QUERIES)
        return cls(query_scorer_for(calibration, scorers), calibration)

    @classmethod
    def load(cls, path: str | Path, scorers: Iterable[Scorer | QueryScorer] = ()) -> Gate:
        """Read a gate that `save` wrote; raises as `Calibration.load` and `of` do."""
        return cls.of(Calibration.load(path), scorers)

    def save(self, path: str | Path) -> None:
        """Write the gate's calibration as JSON, which names the models that its score needs."""
        self.calibration.save(path)

    @property
    def statement(self) -> str:
        """What is guaranteed, and how often the gate is silent on unanswerable queries."""
        return self.calibration.statement

    def __str__(self) -> str:
        """Write the statement, in lines of at most 80 characters."""
        return str(self.calibration)

    def at(self, alpha: float) -> Gate:
        """Return the same gate at another alpha, see `Calibration.at`."""
        return Gate(self.scorer, self.calibration.at(alpha))

    def __call__(self, query: str, snippets: Sequence[Snippet], group: str | None = None) -> Gated:
        """Score a query by what was retrieved for it, and decide.

        The score is unknown if one of the retrievers that it reads failed, for a blank query, or
        for a list that is shorter than those of the calibration, if it compares the snippets.
        """
        checks.check_type(str, "the text of the query", query=query)
        if lacks(self.scorer, query, given := as_snippets(snippets)):
            return self.decide(math.nan, group)
        return self._meant(score_query(self.scorer, query, given), given, group)

    async def acall(
        self, query: str, snippets: Sequence[Snippet], group: str | None = None
    ) -> Gated:
        """Decide without blocking the event loop."""
        checks.check_type(str, "the text of the query", query=query)
        if lacks(self.scorer, query, given := as_snippets(snippets)):
            return self.decide(math.nan, group)
        return self._meant(await ascore_query(self.scorer, query, given), given, group)

    def _meant(self, score: float, snippets: Retrieved, group: str | None) -> Gated:
        gated = self.decide(score, group)
        if len(snippets) >= same_from(self.scorer):
            return gated
        short = self.calibration.is_short(snippets.depth, passes=not gated.silent)
        return self.decide(math.nan, group) if short else gated

    def decide(self, score: float, group: str | None = None) -> Gated:
        """Decide from a query score, NaN if it is unknown."""
        self.calibration.warn_if_unknown(group, "its queries pass the gate")
        return Gated(float(score), self.calibration, group)

    def silenced(self, judged: Sequence[JudgedQuery]) -> list[bool]:
        """Return for each judged query whether the gate is silent.

        One that calibrated the gate counts as silenced above the score that the threshold may fall
        to with one query more, which makes what is calibrated on it behind the gate exact (see
        `in_front.py`).
        """
        c, own = self.calibration, answerable_in(self.calibration)
        scores = query_scores(self.scorer, judged).tolist()
        return [
            score > c.threshold_without_one(query.group)
            if query_digest(query.query) in own
            else self.decide(score, query.group).silent
            for score, query in zip(scores, judged, strict=True)
        ]


def check_gate(gate: object) -> None:
    """Raise TypeError unless it is a gate."""
    checks.check_type(Gate, "a Gate, such as calibrate_gate(…) or Gate.load(path)", gate=gate)


def gate_for(
    calibration: Calibration,
    gate: Gate | str | Path | None,
    scorers: Iterable[Scorer | QueryScorer] = (),
) -> Gate | None:
    """Return the gate in front of a filter: the given one, or else that of its calibration.

    It may be given by its file. Raises `CalibrationMismatch` for another than the one that the
    filter was calibrated with, or for a missing scorer.
    """
    calibrated = calibration.gate
    if isinstance(gate, str | Path):
        gate = Gate.load(gate, scorers)
    if gate is None:
        return None if calibrated is None else Gate.of(calibrated, scorers)
    check_gate(gate)
    if calibration.subject == ANSWERS:
        raise checks.CalibrationMismatch(say("before answers"))
    check_same_retrieval(gate.calibration, calibration, "the filter's calibration")
    if calibrated is not None and gate.calibration != calibrated:
        facts = {"given": gate.calibration, "calibrated": calibrated}
        raise checks.CalibrationMismatch(say("another in front", **facts))
    return gate


def statement_with(calibration: Calibration, gate: Gate | None) -> str:
    """Return a filter's statement, with that of a gate which it was calibrated without.

    By the union bound, both together lose at most the sum of their alphas, on average.
    """
    c = calibration
    if gate is None or c.gate is not None:
        return c.statement
    lost = exact_alpha(c.alpha) + exact_alpha(gate.calibration.alpha)
    of_groups = c.by_group and not gate.calibration.by_group
    summed = c.guarantee != "snippet" and not of_groups and lost < 1
    both = say("sum of alphas" if summed else "no sum", lost=percent(lost, exact=True))
    return f"{c.statement}\n\n{say('two guarantees', both=both)}\n\n{gate.statement}"


def scorer_and_gate(
    calibration: Calibration,
    scorers: Scorer | Iterable[Scorer | QueryScorer],
    gate: Gate | str | Path | None,
) -> tuple[Scorer, Gate | None]:
    """Return the scorer of a calibration and the gate in front, made of the scorers."""
    checks.check_subject(calibration, *FILTERED)
    given = [scorers] if isinstance(scorers, Scorer) else [*scorers]
    made = gate_for(calibration, gate, given)
    return scorer_for(calibration, given, made.calibration if made else None), made
