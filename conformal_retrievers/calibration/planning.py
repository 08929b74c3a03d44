"""What a calibration with n judged queries gives, and how many it needs.

Of the n, those calibrate that do not fit the default score (`fitting.py`).

Over calibrations with n scalar units, the coverage of the k-th smallest score is Beta(k, n + 1 − k)
(Vovk 2012, arXiv 1209.2673). That is exact for "all" and "any" without ties. For "query-recall" it
is a guide: the share of a query's snippets that is kept varies less than a yes or no. On five data
sets, 68 to 96 % of calibrations are within the bounds of 80 % (benchmarks/plans.py).

`delta` takes a higher rank k'. On average that keeps as much as alpha = 1 − k'/(n + 1) without it.
"""

from dataclasses import dataclass

from conformal_retrievers.calibration.checks import warn_if_large
from conformal_retrievers.calibration.fitting import FEWEST, n_that_fit
from conformal_retrievers.calibration.guarantees import Guarantee, check_guarantee, n_needed
from conformal_retrievers.calibration.wording import say
from conformal_retrievers.data.checks import check_count
from conformal_retrievers.data.text import aligned, filled, shown
from conformal_retrievers.theory.intervals import Interval, in_percent, percent
from conformal_retrievers.theory.ranks import exact_alpha
from conformal_retrievers.theory.tolerance import tolerance_rank

SPREAD = 0.8  # of calibrations: one in ten is below, one in ten above
SIZES = (10, 15, 20, 40, 80, 200, 500, 1000)
DELTA = 0.1  # whose cost is stated if none is given


@dataclass(frozen=True)
class Outlook:
    """What calibrations with n units give."""

    n: int
    fit: int  # of these, which fit the score and do not calibrate
    coverage: Interval  # on average over calibrations, and the ends of 8 in 10 of them
    as_alpha: float | None  # without delta, it keeps as much as delta does; None: all is kept


@dataclass(frozen=True)
class Plan:
    """How many units are needed, and what n give: judged queries, or snippets for "snippet"."""

    alpha: float
    delta: float | None
    guarantee: Guarantee
    n: int | None
    feasible: int  # with fewer units everything is kept
    smallest_alpha: float | None  # that n units allow
    outlooks: tuple[Outlook, ...]  # of n, 2n and 4n units, or of some sizes

    @property
    def needed(self) -> str:
        """How many units are needed."""
        return say("feasible", n=self.feasible, unit=self.unit)

    @property
    def given(self) -> str:
        """What n units give."""
        first = self.outlooks[0]
        least = say("smallest alpha", alpha=self.smallest_alpha)
        if first.n < self.feasible:
            return f"{say('keeps all', n=first.n, unit=self.unit)} {least}"
        mean = f"{self.about}{first.coverage}"
        parts = say("parts", fit=first.fit, rest=first.n - first.fit) if first.fit else ""
        text = say("mean coverage", n=first.n, unit=self.unit, parts=parts, mean=mean)
        if self.guarantee == "snippet":
            text += say("fewer")
        return f"{text}. {least}"

    @property
    def cost(self) -> str:
        """What delta costs."""
        delta = self.delta or DELTA
        needed = n_needed(self.guarantee, self.alpha, delta)
        target = percent(1 - exact_alpha(self.alpha), exact=True)
        share = percent(delta, exact=True)
        text = say("cost", delta=delta, share=share, target=target, n=needed, unit=self.unit)
        same = self.outlooks[0].as_alpha
        return f"{text}." if same is None else text + say("as alpha", about=self.about, alpha=same)

    @property
    def sentences(self) -> str:
        """The plan in sentences, in lines of at most 80 characters."""
        parts = [self.needed]
        if self.n is not None:
            parts += [self.given, self.cost] if self._of_queries else [self.given]
        return filled("\n".join(parts))

    @property
    def table(self) -> str:
        """The outlooks, a line each, of at most 80 characters."""
        head, rows = [self.unit, "8 in 10 cover, %"], []
        if self._of_queries:
            head.append(f"with delta = {self.delta or DELTA:g}")
        for o in self.outlooks:
            covers = "keep all" if o.n < self.feasible else in_percent(*o.coverage[1:])
            row = [f"{o.n:,}".rjust(len(self.unit)), covers]
            if self._of_queries:
                row.append("keep all" if o.as_alpha is None else f"as alpha = {o.as_alpha:.2g}")
            rows.append(row)
        return "\n".join(aligned(head, rows))

    _repr_pretty_ = shown

    def __str__(self) -> str:
        """Write the sentences and the table."""
        parts = [self.sentences, self.table]
        if self._of_queries:
            parts.append(filled(say("fit", fewest=FEWEST)))
        return "\n\n".join(parts)

    @property
    def _of_queries(self) -> bool:
        """Whether queries are the units: only then do some fit a score, and can delta be given."""
        return self.guarantee != "snippet"

    @property
    def unit(self) -> str:
        """What is counted."""
        return "relevant snippets" if self.guarantee == "snippet" else "judged queries"

    @property
    def about(self) -> str:
        """Whether numbers are exact, or a guide."""
        return "" if self.guarantee in ("all", "any") else "about "


def plan(
    alpha: float,
    n: int | None = None,
    *,
    delta: float | None = None,
    guarantee: Guarantee = "query-recall",
) -> Plan:
    """Return how many units a calibration needs and what n give, as a `Plan` that prints as text.

    Raises ValueError for an argument out of range, and warns of alpha or delta above 0.5.

    >>> print(plan(0.1, 50).sentences)
    9 judged queries before any snippet can be dropped.
    With 50 judged queries, of which 12 fit the score and 38 calibrate, the mean
    coverage of calibrations is about 92.3 % [86.6, 97.1], with 8 in 10 of them
    inside the brackets. The smallest possible alpha is 0.0196, if all of them
    calibrate.
    With delta = 0.1, all but 10 % of calibrations cover 90 % or more. It needs 25
    judged queries, and keeps about as much on average as alpha = 0.051 without
    delta.

    Parameters
    ----------
    alpha, delta, guarantee
        As in `calibrate`.
    n
        How many units there are: judged queries, or relevant snippets for "snippet". From 20
        judged queries on, a quarter fits the default score and does not calibrate.

    Notes
    -----
    A finite threshold needs n ≥ ⌈(1 − α)/α⌉ without delta.
    """
    exact_alpha(alpha)
    check_guarantee(guarantee, delta)
    warn_if_large(alpha=alpha, delta=delta)
    least = None if n is None else smallest_alpha(n, delta=delta, guarantee=guarantee)
    outlooks = []
    feasible, whole = n_needed(guarantee, alpha, delta), guarantee != "snippet"
    for size in (n, 2 * n, 4 * n) if n else SIZES:
        fit, as_alpha = n_that_fit(size, feasible) if whole else 0, None
        if whole and size >= (needed := n_needed(guarantee, alpha, delta or DELTA)):
            left = size - n_that_fit(size, needed)
            as_alpha = 1 - tolerance_rank(left, alpha, delta or DELTA) / (left + 1)
        coverage = coverage_of(size - fit, alpha, delta, guarantee)
        outlooks.append(Outlook(size, fit, coverage, as_alpha))
    return Plan(alpha, delta, guarantee, n, feasible, least, tuple(outlooks))


def coverage_of(
    n: int, alpha: float, delta: float | None = None, guarantee: Guarantee = "query-recall"
) -> Interval:
    """Return the coverage of calibrations with n ≥ 1 units: the average, and the ends of 8 in 10.

    >>> print(coverage_of(50, alpha=0.1))  # Beta(46, 5)
    90.2 % [84.6, 95.1]
    """
    from scipy.special import betaincinv

    if n < n_needed(guarantee, alpha, delta):
        return Interval(1.0, 1.0, 1.0)
    k = tolerance_rank(n, alpha, delta)
    low, high = betaincinv(k, n + 1 - k, [(1 - SPREAD) / 2, (1 + SPREAD) / 2])
    return Interval(k / (n + 1), float(low), float(high))


def smallest_alpha(
    n: int, *, delta: float | None = None, guarantee: Guarantee = "query-recall"
) -> float:
    """Return the smallest alpha, to 1e-6 from above, for which n units give a finite threshold.

    This is the inverse of `plan`. Raises ValueError for an n below 1, and as `plan` does.

    >>> smallest_alpha(19)
    0.05
    """
    check_guarantee(guarantee, delta)
    check_count(n, "n")

    def feasible(alpha: float) -> bool:
        return n_needed(guarantee, alpha, delta) <= n

    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if feasible(middle) else (middle, high)
    plain = round(low, 4)  # 0.05, not 0.0500003
    return plain if low < plain < high and feasible(plain) else high
