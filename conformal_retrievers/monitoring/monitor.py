"""Whether live traffic is still like the calibration, and whether it does harm: at any time.

Drift needs no judgements. The lowest score of each new query is ranked among those of the
calibration and of all queries before it; while queries are exchangeable, the smoothed ranks

    p_t = (#{higher} + U_t (1 + #{equal})) / (n + t),   U_t ~ U(0, 1),

are independent and uniform (Vovk, Gammerman, Shafer 2005). A bet against that,

    S_t = a mixture of Π (1 + ε_s (p_s − ½)) over ε_1 … ε_t in {−1, 0, 1}, which change seldom,

is not expected to grow, so it reaches 1/level with probability at most level, whenever one looks
(Ville; the "simple jumper" of Vovk et al. 2021, arXiv 2102.10439).

Harm needs judgements. Each judged query loses a share x_t of what the guarantee is about. The
calibration keeps 1 − alpha on average over calibrations, so that its own loss may be a little above
alpha, up to some u but for a probability level/2 (a betting bound on its own queries). The wealth
Π (1 + λ (x_t − u)), mixed over some λ in (0, 1/u), reaches 2/level with probability at most level/2
if the loss is at most u (Podkopaev and Ramdas 2022, arXiv 2110.06177).

What people do instead fails (benchmarks/README.md shows how often): p-values against a calibration
that stays fixed are not independent, a test that is repeated alarms in the end, and snippets of one
query are no independent draws.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.guarantees import digest, loss
from conformal_retrievers.data.files import cannot_read, write_whole
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.theory.ranks import check_probability
from conformal_retrievers.theory.tolerance import betting_lower

FORMAT = "conformal-retrievers/monitor"
JUMPS = 0.01  # how often the bet on the ranks changes sides
DIRECTIONS = (-1.0, 0.0, 1.0)
STAKES = (0.05, 0.1, 0.2, 0.4, 0.8)  # λ as shares of the largest bet, 1/u


@dataclass(frozen=True)
class Counts:
    """What a filter did to the queries of a stream; counts of several streams add up."""

    queries: int = 0
    snippets: int = 0
    kept: int = 0
    unscorable: int = 0
    with_kept: int = 0
    share_kept: float = 0.0
    judged: int = 0
    lost: float = 0.0

    @property
    def m1(self) -> float:
        """The share of queries of which anything is kept, nan of none."""
        return self.with_kept / self.queries if self.queries else math.nan

    @property
    def m2(self) -> float:
        """The mean share of a query's snippets that is kept, nan of none."""
        return self.share_kept / self.queries if self.queries else math.nan

    @property
    def loss(self) -> float:
        """The mean loss of the judged queries, nan of none; the promise is at most alpha."""
        return self.lost / self.judged if self.judged else math.nan

    def __add__(self, other: Counts) -> Counts:
        mine, theirs = asdict(self), asdict(other)
        return Counts(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True)
class MonitorStatus:
    """What a monitor knows, true if an alarm went off: each stays once it did.

    `drift_evidence` and `harm_evidence` are the largest wealth so far of the bets against "still
    exchangeable" and "no more lost than the calibration's luck explains": e-values, so that 1 / max
    is a p-value at any time.
    """

    level: float
    counts: Counts
    drift_evidence: float
    harm_evidence: float

    @property
    def drift(self) -> bool:
        """Whether new queries differ from the calibration's: a false alarm with P ≤ level."""
        return self.drift_evidence >= 1 / self.level

    @property
    def harm(self) -> bool:
        """Whether more is lost than promised: while exchangeable, a false alarm with P ≤ level."""
        return self.harm_evidence >= 2 / self.level

    def __bool__(self) -> bool:
        """Whether an alarm went off."""
        return self.drift or self.harm

    def __str__(self) -> str:
        c = self.counts
        drift = "differ from the calibration's" if self.drift else "are like the calibration's"
        text = (
            f"{c.queries} queries, m1 {c.m1:.3f}, m2 {c.m2:.3f}, {c.unscorable} snippets "
            f"unscorable: queries {drift} as far as one can tell (evidence "
            f"{self.drift_evidence:.3g}, alarm at {1 / self.level:.3g})"
        )
        if not c.judged:
            return f"{text}; none is judged"
        harm = "more is lost than promised" if self.harm else "no more is lost than promised"
        return (
            f"{text}; of {c.judged} judged ones a mean share {c.loss:.3f} is lost: {harm} "
            f"(evidence {self.harm_evidence:.3g}, alarm at {2 / self.level:.3g})"
        )


@dataclass
class _State:
    """What changes: all of it is in the file."""

    live: list[float] = field(default_factory=list)  # the lowest scores seen, in their order
    capitals: list[float] = field(default_factory=lambda: [1 / 3] * 3)
    log_drift: float = 0.0
    most_log_drift: float = 0.0
    log_stakes: list[float] = field(default_factory=lambda: [0.0] * len(STAKES))
    most_log_harm: float = 0.0
    counts: Counts = field(default_factory=Counts)

    def check(self) -> None:
        """Raise ValueError or TypeError, naming the field, for what no stream leads to."""
        for name, length in (("live", None), ("capitals", 3), ("log_stakes", len(STAKES))):
            numbers = getattr(self, name)
            if not isinstance(numbers, list) or len(numbers) != (length or len(numbers)):
                raise TypeError(f"{name} is {numbers!r:.60}; it is {length or ''} numbers")
            for number in numbers:
                _check_number(name, number)
        for name in ("log_drift", "most_log_drift", "most_log_harm"):
            _check_number(name, getattr(self, name))
        # Sums of floats are exact to a few units in the last place of what was added up.
        if min(self.capitals) < 0 or abs(sum(self.capitals) - 1) > 1e-9:
            raise ValueError(f"capitals is {self.capitals}; they are shares of 1")
        if not self.most_log_drift >= max(0.0, self.log_drift):
            raise ValueError(
                f"most_log_drift is {self.most_log_drift}; it is the highest so far, of 0 and "
                f"log_drift {self.log_drift} too"
            )
        if self.most_log_drift > len(self.live) * math.log(1.5) * (1 + 1e-9):  # a bet wins half
            raise ValueError(
                f"most_log_drift is {self.most_log_drift}, more than the {len(self.live)} queries "
                "of live can give"
            )
        if self.most_log_harm < 0 or (not self.counts.judged and any(self.log_stakes)):
            raise ValueError(
                f"most_log_harm is {self.most_log_harm} and log_stakes {self.log_stakes} of "
                f"{self.counts.judged} judged queries; they start at 0"
            )
        c = self.counts
        for name, count in asdict(c).items():
            _check_number(name, count)
            if count < 0 or (name not in ("share_kept", "lost") and not isinstance(count, int)):
                raise ValueError(f"counts: {name} is {count!r}; it is a count")
        for name, part, whole in (
            ("kept", c.kept, c.snippets),
            ("unscorable", c.unscorable, c.snippets),
            ("with_kept", c.with_kept, c.queries),
            ("share_kept", c.share_kept, c.queries),
            ("lost", c.lost, c.judged),
            ("queries with a score", len(self.live), c.queries),
        ):
            if part > whole * (1 + 1e-9):
                raise ValueError(f"counts: {name} is {part}, which is more than there are, {whole}")


def _check_number(name: str, number: object) -> None:
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError(f"{name} holds {number!r:.60}, which is no number")
    if not math.isfinite(number):
        raise ValueError(f"{name} holds {number!r}, which is not finite")


class Monitor:
    """Watches a stream of queries that are filtered with one calibration.

    `level` in (0, 1) bounds the probability of a false alarm, of drift and of harm each, over the
    whole stream. `seed` decides how equal scores are ranked. One monitor watches one stream, in its
    order; where several workers share a stream, give each a monitor of level / workers, and add up
    their counts. It remembers one number for each query that it saw.

    Raises ValueError for a level out of range, and for a calibration without lowest scores.
    """

    def __init__(self, calibration: Calibration, level: float = 0.05, *, seed: int = 0) -> None:
        check_probability("level", level, "the probability of a false alarm")
        if not calibration.lowest_scores:
            raise ValueError(
                "the calibration has no lowest scores to hold new queries against; calibrate again "
                "with scores of all snippets, not of the relevant ones alone"
            )
        self.calibration = calibration
        self.level = level
        self.seed = seed
        self._state = _State()
        self._ordered = list(calibration.lowest_scores)
        self._tolerated: float | None = None

    def __repr__(self) -> str:
        status = self.status
        alarms = [name for name in ("drift", "harm") if getattr(status, name)]
        return (
            f"Monitor({self.calibration!r}, level={self.level:g}, {status.counts.queries} queries, "
            f"{status.counts.judged} judged, {' and '.join(alarms) or 'no alarm'})"
        )

    # --- what is seen -----------------------------------------------------------------------------

    def observe(self, scores: ArrayLike, group: str | None = None) -> MonitorStatus:
        """Take in the scores (n,) of a new query's snippets, all that were retrieved.

        A query without a finite score is counted, and says nothing on drift.
        """
        s = np.asarray(scores, dtype=np.float64)
        if s.ndim != 1:
            raise ValueError(f"scores has shape {s.shape}; give one score a snippet, (n,)")
        kept = int(np.count_nonzero(self.calibration.keep(s, group)))
        self._state.counts += Counts(
            queries=1,
            snippets=len(s),
            kept=kept,
            unscorable=int(np.count_nonzero(np.isnan(s))),
            with_kept=int(kept > 0),
            share_kept=kept / len(s) if len(s) else 0.0,
        )
        finite = s[np.isfinite(s)]
        if len(finite):
            self._bet_on_rank(float(finite.min()))
        return self.status

    def observe_judged(self, query: ScoredQuery) -> MonitorStatus:
        """Take in a query whose relevant snippets are known, all of them; `observe` is apart.

        Choose the queries to judge at random: not by what was kept. Raises ValueError for a
        calibration whose promise is not one about equal queries ("snippet", groups), and
        for a query that is, by its id, one that the calibration was made from.
        """
        if not isinstance(query, ScoredQuery):
            raise TypeError(
                f"query is {query!r:.60}; give a ScoredQuery, as score_queries(scorer, [judged]) "
                "returns it"
            )
        if query.id in self.calibration.ids:
            raise ValueError(
                f"{query.name} is one of those that the calibration was made from, by its id; what "
                "it loses says nothing on new ones: observe others"
            )
        u = self._most_that_luck_explains()
        lost = self._loss(query)
        if lost is None:
            return self.status
        self._state.counts += Counts(judged=1, lost=lost)
        logs = [
            log + math.log1p(stake / u * (lost - u))
            for log, stake in zip(self._state.log_stakes, STAKES, strict=True)
        ]
        self._state.log_stakes = logs
        most = max(logs)
        mixed = most + math.log(sum(math.exp(log - most) for log in logs) / len(logs))
        self._state.most_log_harm = max(self._state.most_log_harm, mixed)
        return self.status

    @property
    def status(self) -> MonitorStatus:
        """What is known by now."""
        return MonitorStatus(
            self.level,
            self._state.counts,
            _exp(self._state.most_log_drift),
            _exp(self._state.most_log_harm),
        )

    # --- drift ------------------------------------------------------------------------------------

    def _bet_on_rank(self, lowest: float) -> None:
        p = self._smoothed_rank(lowest)
        capitals = self._state.capitals
        total = sum(capitals)
        capitals = [
            ((1 - JUMPS) * capital + JUMPS * total / 3) * (1 + direction * (p - 0.5))
            for capital, direction in zip(capitals, DIRECTIONS, strict=True)
        ]
        grown = sum(capitals)
        self._state.capitals = [capital / grown for capital in capitals]
        self._state.log_drift += math.log(grown)
        self._state.most_log_drift = max(self._state.most_log_drift, self._state.log_drift)

    def _smoothed_rank(self, lowest: float) -> float:
        n = len(self._ordered)
        below = bisect.bisect_left(self._ordered, lowest)
        equal = bisect.bisect_right(self._ordered, lowest) - below
        self._ordered.insert(below, lowest)
        self._state.live.append(lowest)
        u = _uniform(self.seed, len(self._state.live))
        return (n - below - equal + u * (1 + equal)) / (n + 1)

    # --- harm -------------------------------------------------------------------------------------

    def _most_that_luck_explains(self) -> float:
        """Return u: the loss that the calibration's own threshold has, but for level/2, at most."""
        if self._tolerated is None:
            c = self.calibration
            if c.guarantee == "snippet" or c.by_group:
                raise ValueError(
                    f"the calibration's guarantee is {c.guarantee!r}"
                    f"{' by group' if c.by_group else ''}, but harm is measured query by query, "
                    "all alike; calibrate for 'query-recall', 'all' or 'any' without groups"
                )
            # In an order that is no matter of scores, as bets come one after the other.
            order = sorted(range(len(c.queries)), key=lambda i: digest(c.queries[i].id, i))
            losses = [lost for i in order if (lost := self._loss(c.queries[i])) is not None]
            self._tolerated = 1 - betting_lower(1 - np.array(losses), self.level / 2)
        return self._tolerated

    def _loss(self, query: ScoredQuery) -> float | None:
        c = self.calibration
        keeps = c.keep(query.scores, query.group)
        return loss(query, keeps, c.guarantee, count_missed=c.count_missed)

    # --- the file ---------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the state as JSON, whole or not at all.

        Raises OSError, naming the path, where it cannot be written.
        """
        fields = {
            "format": FORMAT,
            "version": 1,
            "calibration": self.calibration.checksum,
            "level": self.level,
            "seed": self.seed,
            **asdict(self._state),
        }
        text = json.dumps(fields, allow_nan=False) + "\n"
        write_whole(path, text.encode("utf-8"), what="monitor")

    @classmethod
    def load(cls, path: str | Path, calibration: Calibration) -> Monitor:
        """Return the monitor that was saved, to go on where it was.

        Raises ValueError, naming the path and the field, where it is no monitor's file, that of
        another calibration, or in a state that no stream leads to; FileNotFoundError where there is
        none.
        """
        try:
            fields = json.loads(Path(path).read_text(encoding="utf-8"))
            if fields.pop("format") != FORMAT or fields.pop("version") != 1:
                raise ValueError("its format is another")
            watched = fields.pop("calibration")
            monitor = cls(calibration, fields.pop("level"), seed=fields.pop("seed"))
            monitor._state = _State(**{**fields, "counts": Counts(**fields["counts"])})
            monitor._state.check()
            monitor._ordered = sorted([*calibration.lowest_scores, *monitor._state.live])
        except OSError as error:
            cannot_read("monitor", path, error)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} is no complete file of a monitor ({error}); start a new Monitor"
            ) from None
        if watched != calibration.checksum:
            raise ValueError(
                f"{path} watches another calibration ({watched[:12]}, not "
                f"{calibration.checksum[:12]}); load that one, or start a new Monitor"
            )
        return monitor


def _uniform(seed: int, t: int) -> float:
    """Return the t-th number of a stream of uniform ones that is the same in every run."""
    digest = hashlib.sha256(f"{seed}:{t}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2.0**53


def _exp(log: float) -> float:
    return math.exp(min(log, 700.0))
