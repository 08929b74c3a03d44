"""What a gate does to new queries: false silence, and false speech by source of unanswerable ones.

Of n answerable queries s are silenced, and on u of m unanswerable ones of a source the gate speaks:

    false silence = s / n, at most alpha is guaranteed     false speech = u / m

each with Clopper and Pearson's interval, which is exact because the thresholds follow from other
queries. Sources differ in how hard they are and are never mixed. Queries with an answer of which
nothing was retrieved are a source of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_new, check_unique_ids
from conformal_retrievers.calibration.gates.calibrate_gate import JUDGED, by_source
from conformal_retrievers.calibration.gates.false_answers import questions_in
from conformal_retrievers.calibration.gates.gate import Gate, Gated, check_gate
from conformal_retrievers.calibration.subjects import QUERIES
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.data.text import WIDTH, aligned, filled, shortened, shown, visible
from conformal_retrievers.evaluation.measures import warn_if_retrieved_otherwise
from conformal_retrievers.evaluation.share import Share
from conformal_retrievers.evaluation.verdict import UNVERIFIED, Verdict, verdict_on, worst_of
from conformal_retrievers.evaluation.wording import say
from conformal_retrievers.scoring.query_scorer import query_scores
from conformal_retrievers.scoring.scorer import check_not_fitted_on, judged_queries, query_digest
from conformal_retrievers.theory.intervals import check_level, percent
from conformal_retrievers.theory.ranks import exact_alpha

ALPHAS = (0.005, 0.01, 0.02, *(k / 40 for k in range(1, 21)))  # of the curve: 0.005 … 0.5
Array = NDArray[np.float64]
Decided = tuple[JudgedQuery, Gated]
Kinds = Mapping[str, Sequence[Decided]]  # answerable queries as "", and others by source
UNNAMED = "unanswerable"  # the source of a list without a name
NOTHING = "nothing relevant retrieved"  # the source of queries whose answer was not retrieved
WORST, SHOWN = 10, 3  # queries of each kind: how many are kept, and written
SEPARATES = 0.5  # the share that it should be silent on at least


class Example(NamedTuple):
    """One query and what the gate decided about it."""

    query: str
    id: str | None
    score: float
    p_value: float
    decision: str


@dataclass(frozen=True)
class Decisions:
    """What a gate decides about n queries of one kind, as shares of them."""

    n: int
    silent: Share
    speaks: Share
    unscored: int  # queries without a score, which pass
    worst: tuple[Example, ...] = field(repr=False)  # for which it is most wrong, or most nearly

    @classmethod
    def of(cls, gated: Sequence[Decided], level: float, *, best: bool) -> Decisions:
        """Return the shares of queries; `best` says whether their best decision is to speak."""
        sign = -1.0 if best else 1.0
        scored = [pair for pair in gated if not np.isnan(pair[1].score)]
        scored.sort(key=lambda pair: (-sign * pair[1].p_value, sign * pair[1].score))
        worst = [
            Example(query.query, query.id, decided.score, decided.p_value, decided.decision)
            for query, decided in scored[:WORST]
        ]
        silent = np.array([decided.silent for _, decided in gated], dtype=bool)
        silences, speaks = (Share.of_counts(yes, level) for yes in (silent, ~silent))
        return cls(len(gated), silences, speaks, len(gated) - len(scored), tuple(worst))


@dataclass(frozen=True, eq=False)
class GateCurve:
    """The share of new queries on which the gate is silent, at each of A values of alpha."""

    alpha: Array  # (A,)
    answerable: Array  # (A,), the measured false silence
    unanswerable: Mapping[str, Array]  # (A,) of each source


@dataclass(frozen=True, eq=False)
class GateEvaluation:
    """What `evaluate_gate` measured; each `Share` has its interval over queries.

    `str` writes both errors and the worst queries in at most 80 columns.
    """

    alpha: float  # false silence is guaranteed to be at most this
    answerable: Decisions
    unanswerable: Mapping[str, Decisions]  # by source
    curve: GateCurve
    verdict: Verdict | None  # on answerable queries; None if nothing could be tested
    held_out_verified: bool = True  # ids prove that no query belongs to the calibration
    by_group: Mapping[str | None, GateEvaluation] = field(default_factory=dict, repr=False)

    @property
    def false_silence(self) -> Share:
        """The share of answerable queries on which the gate is silent."""
        return self.answerable.silent

    @property
    def comparison(self) -> str:
        """False silence and its guarantee, and the silence on unanswerable queries.

        That is not enough, on some source, if it speaks on more than half of the queries, by the
        whole interval of that share.
        """
        alpha = percent(exact_alpha(self.alpha), exact=True)
        silence = say("false silence of gate", share=self.false_silence, alpha=alpha)
        if not self.unanswerable:
            return f"{silence} {say('no unanswerable')}"
        short = any(kind.silent.interval.high < SEPARATES for kind in self.unanswerable.values())
        lead = "Not separable here: at" if short else "At"
        *others, last = [
            f"{kind.silent} of {'the unanswerable' if name == UNNAMED else repr(name)}"
            for name, kind in self.unanswerable.items()
        ]
        shares = f"{', '.join(others)} and {last}" if others else last
        return f"{silence} {say('separability', lead=lead, alpha=alpha, shares=shares)}"

    @property
    def kinds(self) -> list[tuple[str, Decisions]]:
        """What the gate decides about each kind of query, by the name of a row in a table."""
        groups = [(f"  group {name!r}", part.answerable) for name, part in self.by_group.items()]
        sources = [(_row_name(name), kind) for name, kind in self.unanswerable.items()]
        return [("answerable", self.answerable), *groups, *sources]

    _repr_pretty_ = shown

    def __str__(self) -> str:
        return "\n\n".join(_written(self))


def _written(e: GateEvaluation) -> Iterator[str]:
    """Yield the parts of the text, to be divided by empty lines."""
    yield filled(e.comparison)
    rows = [
        [name, f"{kind.n:,}", *(s.interval.written(unit="") for s in (kind.silent, kind.speaks))]
        for name, kind in e.kinds
    ]
    yield "\n".join(aligned(["queries", "n", "silent, %", "speaks, %"], rows))
    yield "\n".join(["Answerable, nearest to silence:", *map(_line, e.answerable.worst[:SHOWN])])
    for name, kind in e.unanswerable.items():
        if kind.worst:
            row = _row_name(name)
            lead = shortened(f"{row[:1].upper()}{row[1:]}, farthest from silence:", WIDTH)
            yield "\n".join([lead, *map(_line, kind.worst[:SHOWN])])
    notes = [str(e.verdict) if e.verdict else say("gate not tested")]
    unscored = sum(kind.unscored for kind in (e.answerable, *e.unanswerable.values()))
    if unscored:
        notes.append(f"Queries without a score, which pass: {unscored}.")
    if not e.held_out_verified:
        notes.append(UNVERIFIED)
    yield "\n".join(map(filled, notes))


def _row_name(source: str) -> str:
    return source if source in (UNNAMED, JUDGED, NOTHING) else f"unanswerable: {source}"


def _line(e: Example) -> str:
    text = visible(" ".join(e.query.split()))
    return shortened(f"  p {e.p_value:<6.3g} score {e.score:<9.4g} {e.decision}   {text}", WIDTH)


# --- measuring -----------------------------------------------------------------------------------


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
        raise ValueError(say("none answerable", n=len(given)))
    nothing = [query for query in given if query.answerable and not any(query.relevant)]
    sources |= {NOTHING: [*sources.get(NOTHING, []), *nothing]} if nothing else {}
    check_unique_ids(query.id for query in given)
    for queries in (given, *sources.values()):
        _check_new(gate, queries)
        warn_if_retrieved_otherwise(queries, gate.calibration)
    c = gate.calibration

    def decided(name: str, queries: Sequence[JudgedQuery]) -> list[Decided]:
        scores = query_scores(gate.scorer, queries, title=f"Scoring: {name}", progress=progress)
        pairs = zip(queries, scores.tolist(), strict=True)
        return [(query, gate.decide(score, query.group)) for query, score in pairs]

    kinds = {"": decided("answerable", known)}
    kinds |= {name: decided(name, queries) for name, queries in sources.items()}
    whole = _measured(c, kinds, level)
    if c.by_group:
        members = sorted({query.group for query in known}, key=str)
        parts = {g: _measured(c, _of_group(kinds, g), level, g, len(members)) for g in members}
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
            raise ValueError(say("asked before", query=query))


def _of_group(kinds: Kinds, group: str | None) -> Kinds:
    return {name: [p for p in pairs if p[0].group == group] for name, pairs in kinds.items()}


def _measured(
    calibration: Calibration, kinds: Kinds, level: float, group: str | None = None, tests: int = 1
) -> GateEvaluation:
    """Return the measures of queries; the verdict is on `group`, one of `tests`."""
    decisions = {name: Decisions.of(pairs, level, best=not name) for name, pairs in kinds.items()}
    answerable = decisions.pop("")
    return GateEvaluation(
        alpha=calibration.alpha,
        answerable=answerable,
        unanswerable=decisions,
        curve=_curve(calibration, kinds),
        verdict=verdict_on(calibration, answerable.speaks, group, tests=tests),
    )


def _curve(calibration: Calibration, kinds: Kinds) -> GateCurve:
    alphas = calibration.possible_alphas(ALPHAS)
    at = [calibration.at(alpha) for alpha in alphas]

    def silent(decided: Sequence[Decided]) -> Array:
        scores = np.array([gated.score for _, gated in decided])
        groups = [gated.group for _, gated in decided]
        if not groups:
            return np.full(len(at), np.nan)
        return np.array([np.mean(scores > [c.threshold(g) for g in groups]) for c in at])

    curves = {name: silent(pairs) for name, pairs in kinds.items()}
    return GateCurve(np.array(alphas), curves.pop(""), curves)
