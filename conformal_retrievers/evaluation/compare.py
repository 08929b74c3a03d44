"""A filter beside others on the same queries: top k, fixed thresholds, and another filter.

What is done without calibration: keep the k snippets of the lowest scores, or those that score at
most a number that somebody chose (Chakraborty et al. 2025, arXiv 2511.17908, section 4, which gives
coverage as mean ± std across queries: `Evaluation.coverage`, `.coverage_std`). Two filters are
compared by the paired bootstrap over queries: both are measured on the same resampled queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.data.queries import JudgedQuery, ScoredQuery
from conformal_retrievers.evaluation.evaluate import (
    Evaluation,
    calibration_of,
    checked,
    measure,
    row_by,
)
from conformal_retrievers.evaluation.measures import Counts, ratios
from conformal_retrievers.filtering import ConformalFilter
from conformal_retrievers.theory.intervals import check_level


def top_k(scored: Sequence[ScoredQuery]) -> dict[int, Evaluation]:
    """Measure keeping the k lowest scores of each query, for k = 1 up to the most snippets of one.

    Equal scores go by the retriever's order, and what could not be scored comes last. Raises
    ValueError where there is no query.
    """
    ranks = [np.argsort(np.argsort(query.scores, kind="stable")) for query in scored]
    most = max((len(rank) for rank in ranks), default=0)
    return {k: measure(scored, [rank < k for rank in ranks]) for k in range(1, max(1, most) + 1)}


def fixed_thresholds(
    scored: Sequence[ScoredQuery], thresholds: Iterable[float]
) -> dict[float, Evaluation]:
    """Measure keeping what scores at most a threshold, and what could not be scored, for each one.

    A cosine of at least 0.6 is a score of at most 0.4. Raises ValueError where there is no query.
    """
    return {
        float(threshold): measure(
            scored, [(query.scores <= threshold) | np.isnan(query.scores) for query in scored]
        )
        for threshold in thresholds
    }


# --- two filters ----------------------------------------------------------------------------------


class Difference(NamedTuple):
    """A measure of one filter less that of another, with the ends of its bootstrap interval.

    The ends are nan where some resamples have nothing to measure: too few queries have it.
    """

    estimate: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        if math.isnan(self.estimate):
            return "      –"
        if math.isnan(self.low):
            return f"{self.estimate:+7.1%} [too few queries for an interval]"
        return f"{self.estimate:+7.1%} [{self.low:+.1%}, {self.high:+.1%}]"


class Differences(dict[str, Difference]):
    """The difference in each measure of an evaluation, by its name; printed, a line for each."""

    def __str__(self) -> str:
        return "\n".join(f"{name:<24} {difference}" for name, difference in self.items())


def compare(
    one: ConformalFilter | Calibration,
    other: ConformalFilter | Calibration,
    judged: Iterable[JudgedQuery] | Iterable[ScoredQuery],
    *,
    rng: np.random.Generator,
    resamples: int = 2000,
    level: float = 0.95,
    count_tokens: Callable[[str], int] = len,
) -> Differences:
    """Measure one filter less another on the same queries: every share of an `Evaluation`, by name.

    Each is one − other: a removal above 0 says that `one` removes more.
    The interval is the percentiles of `resamples` paired bootstraps: queries are drawn with
    replacement, and both filters are measured on those drawn. Where a measure is nan, of all
    queries or in one of the resamples, so is the interval. The queries are read once. Raises what
    `evaluate` raises, and ValueError for fewer than 100 resamples.
    """
    check_level(level)
    if resamples < 100:
        raise ValueError(f"resamples is {resamples!r}; give 100 or more, to have an interval of")
    row_of_one, row_of_other = row_by(one, count_tokens), row_by(other, count_tokens)
    rows_of_one, rows_of_other = [], []
    for query in checked(checked(judged, calibration_of(one)), calibration_of(other)):
        rows_of_one.append(row_of_one(query))
        rows_of_other.append(row_of_other(query))
    counts = Counts.of(rows_of_one), Counts.of(rows_of_other)
    counted = calibration_of(one).count_missed or calibration_of(other).count_missed
    misses_known = counted or bool(counts[0].missed.any())
    ours, theirs = (ratios(c, misses_known=misses_known) for c in counts)
    names = list(ours)
    columns = [column for measures in (ours, theirs) for name in names for column in measures[name]]
    table = np.stack(columns, axis=1).astype(np.float64)  # (K, 2 filters × measures × 2)
    estimates = _differences(table.sum(axis=0)[None])[0]
    drawn = _differences(resampled_sums(table, resamples, rng))
    ends = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Differences(
        (name, Difference(float(estimate), float(low), float(high)))
        for name, estimate, low, high in zip(names, estimates, *ends, strict=True)
    )


def resampled_sums(
    table: NDArray[np.float64], resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the sums of the columns (resamples, columns) over rows drawn with replacement."""
    n = len(table)
    at_once = max(1, math.floor(1_000_000 / n))  # a few MB, however many queries
    sums = []
    for start in range(0, resamples, at_once):
        size = min(at_once, resamples - start)
        drawn = rng.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n)
        sums.append(times.astype(np.float64) @ table)
    return np.concatenate(sums)


def _differences(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the differences of the measures (r, measures) from sums (r, 2 × measures × 2)."""
    with np.errstate(invalid="ignore"):  # 0 / 0 is nan: there is nothing to be a share of
        one, other = np.split(sums[:, ::2] / sums[:, 1::2], 2, axis=1)
    return one - other
