"""Two scorers as one, and one scorer seen within its query: z-scores, tie-breaks, cascades.

    QueryZScore(s)                     (s − mean) / sd over the query's own snippets
    TieBreak(s, then=t)                s, and where s ties, t: p + (p⁺ − p)·u,
                                       p the score as a float32, p⁺ the next one up, u(t) in [0, 1)
    Cascade(s, t, pass_below=b)        t where s ≤ b, else +inf: t is not asked about the rest

Each is a scorer like any other, calibrated once as a whole, so that one guarantee covers it all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.data.queries import JudgedQuery, Snippet
from conformal_retrievers.scoring.scorer import (
    Scorer,
    ascore_snippets,
    ascore_together,
    check_scorer,
    relative_to_query,
    score_snippets,
)

# --- z-scores within the query --------------------------------------------------------------------


@dataclass(frozen=True)
class QueryZScore:
    """Scores by the z-score of a scorer's scores among the snippets of the same query.

    The same score means more where the others are poor. Where all scores are equal, and of a single
    one, the z-score is 0. NaN and infinite scores stay as they are and are left out of mean and
    standard deviation.
    """

    scorer: Scorer
    relative_to_query: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_scorer(self.scorer)

    @property
    def parts(self) -> tuple[Scorer, ...]:
        """The scorer inside."""
        return (self.scorer,)

    @property
    def name(self) -> str:
        """The scorer's name, within its query."""
        return f"zscore({self.scorer.name})"

    def score(self, query: str, snippets: Sequence[Snippet]) -> NDArray[np.float64]:
        """Return the z-score of each snippet's score, (n,)."""
        return z_scores(score_snippets(self.scorer, query, snippets))

    async def ascore(self, query: str, snippets: Sequence[Snippet]) -> NDArray[np.float64]:
        """Return what `score` returns, without blocking the event loop."""
        return z_scores(await ascore_snippets(self.scorer, query, snippets))


def z_scores(scores: ArrayLike) -> NDArray[np.float64]:
    """Return (score − mean) / sd of the finite scores (n,); 0 where they are all equal."""
    z = np.array(scores, dtype=np.float64)
    finite = np.isfinite(z)
    values = np.sort(z[finite])  # sums of floats depend on the order, a z-score must not
    if len(values):
        # Squares of large numbers overflow; a power of two takes nothing from their digits.
        exponent = -np.frexp(np.abs(values).max())[1]
        scaled = np.ldexp(values, exponent)
        spread = scaled.std() if values[0] < values[-1] else 0.0
        z[finite] = (np.ldexp(z[finite], exponent) - scaled.mean()) / spread if spread > 0 else 0.0
    return z


# --- ties -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TieBreak:
    """Scores by `scorer`, and snippets that it scores alike by `then`: lexicographic order.

    A threshold on coarse scores, such as ratings, keeps all ties at once and so more than it must;
    where another score breaks the ties, it keeps 1 − alpha and little more. The score is that of
    `scorer` to the 24 bits of a float32, moved towards the next float32 by what `then` says, in
    2²⁹ steps (20 bits after the leading one). Scores that differ in more than these bits are never
    put in the wrong order; closer ones count as tied, and `then` decides.

    A score that is ±inf stays so. NaN of either scorer is NaN. Raises ValueError for a finite score
    beyond the range of a float32.
    """

    scorer: Scorer
    then: Scorer = field(kw_only=True)

    def __post_init__(self) -> None:
        check_scorer(self.scorer)
        check_scorer(self.then)

    @property
    def parts(self) -> tuple[Scorer, ...]:
        """Both scorers."""
        return (self.scorer, self.then)

    @property
    def name(self) -> str:
        """Both names, in their order."""
        return f"tiebreak({self.scorer.name}, then={self.then.name})"

    @property
    def relative_to_query(self) -> bool:
        """Whether either score depends on the query's other snippets."""
        return relative_to_query(self.scorer) or relative_to_query(self.then)

    def score(self, query: str, snippets: Sequence[Snippet]) -> NDArray[np.float64]:
        """Return one number for both scores of each snippet, (n,)."""
        first = score_snippets(self.scorer, query, snippets)
        return self._lexicographic(first, score_snippets(self.then, query, snippets))

    async def ascore(self, query: str, snippets: Sequence[Snippet]) -> NDArray[np.float64]:
        """Return what `score` returns, waiting for both scorers at once."""
        first, second = await ascore_together((self.scorer, self.then), query, snippets)
        return self._lexicographic(first, second)

    def _lexicographic(
        self, first: NDArray[np.float64], second: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        beyond = first[np.isfinite(first) & np.isinf(_float32(first))]
        if len(beyond):
            raise ValueError(
                f"scorer {self.scorer.name!r} returned {beyond[0]:g}, beyond the range of a "
                "float32, to which ties are told; scale the score down"
            )
        return lexicographic(first, second)


def lexicographic(first: ArrayLike, second: ArrayLike) -> NDArray[np.float64]:
    """Return numbers (n,) in the order of `first` (n,) as float32, ties in the order of `second`.

    24 bits and 29 bits fit into the 53 of a float64, so p + (p⁺ − p)·u is exact.
    """
    below = _float32(first)
    with np.errstate(over="ignore"):
        above = np.nextafter(below, np.float32(np.inf)).astype(np.float64)
    above[np.isinf(above) & np.isfinite(below)] = 2.0**128  # what follows the largest float32
    p = below.astype(np.float64)
    with np.errstate(invalid="ignore"):  # ±inf
        broken = p + (above - p) * _fraction(second)
    broken = np.where(np.isinf(p), p, broken)
    return np.where(np.isnan(first) | np.isnan(second), np.nan, broken)


def _fraction(second: ArrayLike) -> NDArray[np.float64]:
    """Map floats to multiples of 2⁻²⁹ in [0, 1) in the same order, by their bits as float32."""
    bits = _float32(second).view(np.int32).astype(np.int64)
    # Of negative numbers, the bits after the sign count away from zero.
    ordered = np.where(bits < 0, ~(bits & 0x7FFFFFFF), bits) + 2**31
    return (ordered >> 3) / 2.0**29


def _float32(scores: ArrayLike) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        rounded = np.asarray(scores, dtype=np.float64).astype(np.float32)
    return np.asarray(rounded + np.float32(0))  # −0 becomes 0


# --- cheap first ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cascade:
    """Scores by `costly` what `cheap` scores at most `pass_below`, and the rest by +inf: dropped.

    `costly` is not asked about what `cheap` drops. What `cheap` cannot score passes on. The whole
    is calibrated at once, so relevant snippets that `cheap` drops count against alpha: where they
    are more than that, no threshold can promise anything, and everything is kept. Choose
    `pass_below` on other queries than those of the calibration; `saved` says what it saves.
    """

    cheap: Scorer
    costly: Scorer
    pass_below: float = field(kw_only=True)

    def __post_init__(self) -> None:
        check_scorer(self.cheap)
        check_scorer(self.costly)
        t = self.pass_below
        if isinstance(t, (bool, np.bool_)) or not isinstance(t, Real) or not math.isfinite(t):
            raise ValueError(f"pass_below is {t!r}; give the highest score of cheap that passes")
        object.__setattr__(self, "pass_below", float(t))

    @property
    def parts(self) -> tuple[Scorer, ...]:
        """Both scorers."""
        return (self.cheap, self.costly)

    @property
    def name(self) -> str:
        """Both names, and where the first stage passes on."""
        return f"cascade({self.cheap.name} ≤ {self.pass_below!r}, {self.costly.name})"

    @property
    def relative_to_query(self) -> bool:
        """Whether either score depends on the query's other snippets."""
        return relative_to_query(self.cheap) or relative_to_query(self.costly)

    def passed(self, query: str, snippets: Sequence[Snippet]) -> NDArray[np.bool_]:
        """Return which snippets (n,) the cheap stage passes on."""
        return self._passes(score_snippets(self.cheap, query, snippets))

    def score(self, query: str, snippets: Sequence[Snippet]) -> NDArray[np.float64]:
        """Return the costly score of each snippet that passes, +inf of the others, (n,)."""
        passed = self.passed(query, snippets)
        return _spread(passed, score_snippets(self.costly, query, _chosen(snippets, passed)))

    async def ascore(self, query: str, snippets: Sequence[Snippet]) -> NDArray[np.float64]:
        """Return what `score` returns, without blocking the event loop."""
        passed = self._passes(await ascore_snippets(self.cheap, query, snippets))
        return _spread(passed, await ascore_snippets(self.costly, query, _chosen(snippets, passed)))

    def saved(self, judged: Iterable[JudgedQuery]) -> Saved:
        """Return what the cheap stage spares the costly one on judged queries, and loses."""
        passed = [(self.passed(q.query, q.snippets), np.array(q.relevant, bool)) for q in judged]
        return Saved(
            snippets=sum(len(p) for p, _ in passed),
            passed=sum(int(p.sum()) for p, _ in passed),
            relevant=sum(int(r.sum()) for _, r in passed),
            relevant_passed=sum(int((p & r).sum()) for p, r in passed),
        )

    def _passes(self, scores: NDArray[np.float64]) -> NDArray[np.bool_]:
        return ~(scores > self.pass_below)


@dataclass(frozen=True)
class Saved:
    """How many snippets, and relevant ones, a cheap stage saw and passed on."""

    snippets: int
    passed: int
    relevant: int
    relevant_passed: int

    @property
    def share(self) -> float:
        """The share of snippets that the costly stage is not asked about."""
        return 1 - self.passed / self.snippets if self.snippets else 0.0

    @property
    def relevant_dropped(self) -> float:
        """The share of relevant snippets that the cheap stage drops; alpha must be above it."""
        return 1 - self.relevant_passed / self.relevant if self.relevant else 0.0


def _chosen(snippets: Sequence[Snippet], passed: NDArray[np.bool_]) -> list[Snippet]:
    return [snippet for snippet, passes in zip(snippets, passed, strict=True) if passes]


def _spread(passed: NDArray[np.bool_], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    whole = np.full(len(passed), np.inf)
    whole[passed] = scores
    return whole
