"""Two calibrations on the same queries, by the paired bootstrap over queries.

Both are measured on the same resampled queries.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_subject
from conformal_retrievers.calibration.subjects import RETRIEVED
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.evaluation.bootstrap import resampled, spans
from conformal_retrievers.evaluation.measures import Columns, ratios
from conformal_retrievers.theory.intervals import check_level


class Difference(NamedTuple):
    """A measure of one calibration minus another's; the ends are NaN for too few queries."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.estimate):
            return "–"
        ends = f"{100 * self.low:+.1f}, {100 * self.high:+.1f}"
        known = not math.isnan(self.low)
        return f"{100 * self.estimate:+.1f} % [{ends if known else 'too few queries'}]"


class Differences(dict[str, Difference]):
    """The difference in each measure of an evaluation, by its name."""

    def __str__(self) -> str:
        return "\n".join(f"{name:<24} {difference}" for name, difference in self.items())


def compare(
    one: Calibration,
    other: Calibration,
    scored: Iterable[ScoredQuery],
    scored_by_other: Iterable[ScoredQuery] | None = None,
    *,
    rng: np.random.Generator,
    resamples: int = 2000,
    level: float = 0.95,
) -> Differences:
    """Measure one calibration minus another on the same queries, by a paired bootstrap.

    Parameters
    ----------
    one, other
        A removal above 0 means that `one` removes more.
    scored
        The queries, scored by the scorer of `one`.
    scored_by_other
        The same queries in the same order, scored by the scorer of `other`; by default `scored`.
    rng
        Draws the resamples; the same seed gives the same intervals.
    resamples
        How often queries are drawn with replacement, 100 or more.
    level
        Share of the resamples that an interval spans, in (0, 1).

    Raises
    ------
    ValueError
        As `evaluate`, and if `scored_by_other` is missing for another scorer or has other queries.
    """
    for calibration in (one, other):
        check_subject(calibration, *RETRIEVED)
    check_level(level)
    if resamples < 100:
        raise ValueError(f"resamples is {resamples!r}; give 100 or more")
    if scored_by_other is None and one.scorer != other.scorer:
        scorers = f"{one.scorer!r} and {other.scorer!r}"
        raise ValueError(f"the scorers differ, {scorers}; give scored_by_other too")
    queries = list(scored)
    again = queries if scored_by_other is None else list(scored_by_other)
    columns = (Columns.of(queries, one), Columns.of(again, other, "scored_by_other"))
    if columns[0].ids != columns[1].ids or columns[0].sizes.tolist() != columns[1].sizes.tolist():
        raise ValueError("scored_by_other has other queries than scored; give the same, in order")
    for c, of in zip(columns, (one, other), strict=True):
        of.held_out(c.ids)
    counts = [c.counts(c.keeps(of)) for c, of in zip(columns, (one, other), strict=True)]
    ours, theirs = (ratios(c) for c in counts)
    names = [name for name in ours if name in theirs]
    parts = [column for measures in (ours, theirs) for name in names for column in measures[name]]
    table = np.stack(parts, axis=1)  # (K, 2 calibrations × measures × 2)
    estimates = _differences(table.sum(axis=0)[None])[0]
    drawn = _differences(resampled(table, rng, resamples))
    ends = spans(drawn, level)
    return Differences(
        (name, Difference(float(estimate), *ends_of_one))
        for name, estimate, ends_of_one in zip(names, estimates, ends, strict=True)
    )


def _differences(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the differences of the measures (r, measures) from sums (r, 2 × measures × 2)."""
    with np.errstate(invalid="ignore"):  # 0 / 0 is nan: there is nothing to be a share of
        one, other = np.split(sums[:, ::2] / sums[:, 1::2], 2, axis=1)
    return one - other
