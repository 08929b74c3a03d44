"""Two calibrations on the same queries, by the paired bootstrap over queries.

Both are measured on the same resampled queries.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_subject
from conformal_retrievers.calibration.subjects import RETRIEVED
from conformal_retrievers.data.text import labelled, shown
from conformal_retrievers.evaluation import measures
from conformal_retrievers.evaluation.bootstrap import n_to_tell, resampled, spans
from conformal_retrievers.theory.intervals import check_level, in_percent

OTHER = "scored_by_other"
STATED = 0.02  # a difference that should not pass unseen
UNKNOWN = (math.nan, math.nan)


class Difference(NamedTuple):
    """A measure of one calibration minus another's.

    The ends, and `needed`, are NaN for fewer than 10 queries, and where no query differs.
    """

    estimate: float
    low: float
    high: float
    needed: float  # queries that show a difference of 2 points with probability 0.8

    def __str__(self) -> str:
        if math.isnan(self.estimate):
            return "–"
        if math.isnan(self.low):
            why = "too few queries" if self.estimate else "no difference on these queries"
            return f"{100 * self.estimate:+.1f} % [{why}]"
        ends = in_percent(self.low, self.high, "+")
        return f"{100 * self.estimate:+.1f} % {ends:<15}  2 points: {self.needed:,.0f} queries"


class Differences(dict[str, Difference]):
    """The difference in each measure of an evaluation, by its name.

    It prints with its interval, and with the number of queries that show a difference of 2 points.
    """

    _repr_pretty_ = shown

    def __str__(self) -> str:
        return "\n".join(labelled(self, 24))


def compare(
    one: Calibration,
    other: Calibration,
    scored: measures.Given,
    scored_by_other: measures.Given | None = None,
    *,
    level: float = 0.95,
) -> Differences:
    """Measure one calibration minus another on the same queries, by a paired bootstrap.

    Print the result: each difference with its interval. One that holds 0 shows no difference.

    Parameters
    ----------
    one, other
        A removal above 0 means that `one` removes more.
    scored
        The queries, judged, or scored by the scorer of `one`.
    scored_by_other
        The same queries in the same order, scored by the scorer of `other`; by default `scored`.
    level
        Share of 2,000 resamples that an interval spans, in (0, 1).

    Raises
    ------
    ValueError
        As `evaluate`, and if `scored_by_other` is missing for another scorer or has other queries.
    """
    for calibration in (one, other):
        check_subject(calibration, *RETRIEVED)
    check_level(level)
    if scored_by_other is None and one.scorer != other.scorer:
        scorers = f"{one.scorer!r} and {other.scorer!r}"
        raise ValueError(f"the scorers differ, {scorers}; give scored_by_other too")
    queries = measures.checked(scored, one)
    again = measures.checked(queries if scored_by_other is None else scored_by_other, other, OTHER)
    same = queries.ids.tolist() == again.ids.tolist()
    if not same or not np.array_equal(queries.offsets, again.offsets):
        raise ValueError(f"{OTHER} has other queries than scored; give the same, in order")
    for calibration in (one, other):
        calibration.held_out(queries.ids.tolist())
    ours = measures.counts(queries, measures.keeps(queries, one))
    theirs = measures.counts(again, measures.keeps(again, other))
    names = [name for name in measures.measured(ours) if name in measures.measured(theirs)]
    columns_of = [measures.MEASURES[name] for name in names]
    parts = [column for c in (ours, theirs) for columns in columns_of for column in columns(c)]
    table = np.stack(parts, axis=1)  # (K, 2 calibrations × measures × 2)
    estimates = _differences(table.sum(axis=0)[None])[0]
    drawn = _differences(resampled(table))
    ends = spans(drawn, level)
    needed = [n_to_tell(of_one, len(queries), STATED) for of_one in drawn.T]
    return Differences(
        (name, Difference(float(estimate), *(UNKNOWN if math.isnan(n) else ends_of_one), n))
        for name, estimate, ends_of_one, n in zip(names, estimates, ends, needed, strict=True)
    )


def _differences(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the differences of the measures (r, measures) from sums (r, 2 × measures × 2)."""
    with np.errstate(invalid="ignore"):  # 0 / 0 is nan: there is nothing to be a share of
        ours, other = np.split(sums[:, ::2] / sums[:, 1::2], 2, axis=1)
    return ours - other
