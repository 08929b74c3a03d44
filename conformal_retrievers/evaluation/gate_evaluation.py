"""The values of a gate's evaluation, and its text: both errors, the curve, the worst queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.gate import Gated
from conformal_retrievers.calibration.gating import JUDGED
from conformal_retrievers.calibration.wording import wording
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.data.text import WIDTH, aligned, filled, visible
from conformal_retrievers.evaluation.share import Share
from conformal_retrievers.evaluation.verdict import UNVERIFIED, Verdict
from conformal_retrievers.theory.intervals import percent
from conformal_retrievers.theory.ranks import exact_alpha

Array = NDArray[np.float64]
Decided = tuple[JudgedQuery, Gated]
UNNAMED = "unanswerable"  # the source of a list without a name
NOTHING = "nothing relevant retrieved"  # the source of queries whose answer was not retrieved
WORST, SHOWN = 10, 3  # queries of each kind: how many are kept, and written
COLUMNS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3)  # alphas of which the text has the curve
SEPARATES = 0.5  # the share that it should be silent on at least
say = wording(__package__)


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

    `str` writes both errors, the curve and the worst queries in at most 80 columns.
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
    def separability(self) -> str:
        """How often the gate is silent on unanswerable queries, and whether that is enough.

        It is not, on some source, if it speaks on more than half of the queries, by the whole
        interval of that share.
        """
        if not self.unanswerable:
            return say("no unanswerable")
        short = any(kind.silent.interval.high < SEPARATES for kind in self.unanswerable.values())
        lead = "Not separable here: at" if short else "At"
        *others, last = [
            f"{kind.silent} of {'the unanswerable' if name == UNNAMED else repr(name)}"
            for name, kind in self.unanswerable.items()
        ]
        shares = f"{', '.join(others)} and {last}" if others else last
        return say("separability", lead=lead, alpha=_exact(self.alpha), shares=shares)

    @property
    def comparison(self) -> str:
        """False silence and its guarantee, and what is known of unanswerable queries."""
        alpha = _exact(self.alpha)
        silence = say("false silence of gate", share=self.false_silence, alpha=alpha)
        return f"{silence} {self.separability}"

    @property
    def kinds(self) -> list[tuple[str, Decisions]]:
        """What the gate decides about each kind of query, by the name of a row in a table."""
        groups = [(f"  group {name!r}", part.answerable) for name, part in self.by_group.items()]
        sources = [(_row_name(name), kind) for name, kind in self.unanswerable.items()]
        return [("answerable", self.answerable), *groups, *sources]

    def __str__(self) -> str:
        return "\n\n".join(_written(self))


def _written(e: GateEvaluation) -> Iterator[str]:
    """Yield the parts of the text, to be divided by empty lines."""
    yield filled(e.comparison)
    yield "\n".join(_table(e))
    yield "\n".join(_curve(e))
    yield "\n".join(["Answerable, nearest to silence:", *map(_line, e.answerable.worst[:SHOWN])])
    for name, kind in e.unanswerable.items():
        if kind.worst:
            row = _row_name(name)
            lead = _cut(f"{row[:1].upper()}{row[1:]}, farthest from silence:")
            yield "\n".join([lead, *map(_line, kind.worst[:SHOWN])])
    notes = [str(e.verdict) if e.verdict else say("gate not tested")]
    unscored = sum(kind.unscored for kind in (e.answerable, *e.unanswerable.values()))
    if unscored:
        notes.append(f"Queries without a score, which pass: {unscored}.")
    notes += [UNVERIFIED] * (not e.held_out_verified)
    yield "\n".join(map(filled, notes))


def _table(e: GateEvaluation) -> list[str]:
    rows = [
        [name, f"{kind.n:,}", *(s.interval.written(unit="") for s in (kind.silent, kind.speaks))]
        for name, kind in e.kinds
    ]
    return aligned(["queries", "n", "silent, %", "speaks, %"], rows)


def _curve(e: GateEvaluation) -> list[str]:
    c = e.curve
    chosen = [i for i, a in enumerate(c.alpha.tolist()) if a in (*COLUMNS, e.alpha)]
    rows = [("answerable", c.answerable)]
    rows += [(_row_name(name), silent) for name, silent in c.unanswerable.items()]
    return aligned(
        ["silent, in %, at alpha =", *(f"{c.alpha[i]:g}" for i in chosen)],
        [[name, *(percent(silent[i], unit="") for i in chosen)] for name, silent in rows],
    )


def _row_name(source: str) -> str:
    return source if source in (UNNAMED, JUDGED, NOTHING) else f"unanswerable: {source}"


def _line(e: Example) -> str:
    text = visible(" ".join(e.query.split()))
    return _cut(f"  p {e.p_value:<6.3g} score {e.score:<9.4g} {e.decision}   {text}")


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def _exact(share: float) -> str:
    return percent(exact_alpha(share), exact=True)
