"""What a plan is, and how it reads."""

from dataclasses import dataclass
from textwrap import fill

from conformal_retrievers.calibration.fitting import FEWEST
from conformal_retrievers.calibration.guarantees import Guarantee, n_needed
from conformal_retrievers.theory.intervals import Interval, in_percent, percent
from conformal_retrievers.theory.ranks import exact_alpha

DELTA = 0.1  # whose cost is stated if none is given
PROBABILITY = 0.9  # that the coverage of a calibration is `within` its target
FIT = (
    f"From {FEWEST} judged queries on, calibrate() fits the score to a quarter of them, which are "
    "not counted here. At the same recall as a dense top k, the filter passed 0.70 of its snippets "
    "with 10 judged queries, 0.64 with 20, 0.59 with 40 and 0.58 with 80: the median of ten "
    "collections, on the best and the worst of which it passed 0.10 and 0.95."
)


@dataclass(frozen=True)
class Outlook:
    """What calibrations with n units give."""

    n: int
    coverage: Interval  # on average over calibrations, and the ends of 8 in 10 of them
    as_alpha: float | None  # without delta, it keeps as much as delta does; None: all is kept


@dataclass(frozen=True)
class Plan:
    """How many units are needed, and what n give: judged queries, or snippets for "snippet"."""

    alpha: float
    delta: float | None
    guarantee: Guarantee
    within: float | None
    n: int | None
    feasible: int  # with fewer units everything is kept
    enough: int | None  # from here on the coverage is `within` its target with probability 0.9
    smallest_alpha: float | None  # that n units allow
    outlooks: tuple[Outlook, ...]  # of n, 2n and 4n units, or of some sizes

    @property
    def needed(self) -> str:
        """How many units are needed."""
        text = f"{self.feasible} {self.unit} before any snippet can be dropped"
        if self.enough is None:
            return f"{text}."
        return (
            f"{text}; {self.about}{self.enough} for a coverage within ± {self.within:g} of "
            f"{1 - self.alpha:g} in {percent(PROBABILITY, exact=True)} of calibrations."
        )

    @property
    def given(self) -> str:
        """What n units give."""
        first = self.outlooks[0]
        least = f"The smallest possible alpha is {self.smallest_alpha:.3g}."
        if first.n < self.feasible:
            return f"With {first.n} {self.unit}, everything is kept. {least}"
        text = (
            f"With {first.n} {self.unit}, the mean coverage of calibrations is {self.about}"
            f"{first.coverage}, with 8 in 10 of them inside the brackets"
        )
        if self.guarantee == "snippet":
            return f"{text}, or fewer, because snippets cluster by query. {least}"
        return f"{text}. {least}"

    @property
    def cost(self) -> str:
        """What delta costs."""
        delta = self.delta or DELTA
        needed = n_needed(self.guarantee, self.alpha, delta)
        target = percent(1 - exact_alpha(self.alpha), exact=True)
        text = (
            f"With delta = {delta:g}, all but {percent(delta, exact=True)} of calibrations cover "
            f"{target} or more. It needs {needed} {self.unit}"
        )
        same = self.outlooks[0].as_alpha
        if same is None:
            return f"{text}."
        return (
            f"{text}, and keeps {self.about}as much on average as alpha = {same:.2g} without delta."
        )

    @property
    def sentences(self) -> str:
        """The plan in sentences, in lines of at most 80 characters."""
        parts = [self.needed]
        if self.n is not None:
            parts += [self.given, *[self.cost] * (self.guarantee != "snippet")]
        return "\n".join(fill(sentence, 80) for sentence in parts)

    @property
    def table(self) -> str:
        """The outlooks, a line each, of at most 80 characters."""
        costs = self.guarantee != "snippet"
        head = [self.unit, "8 in 10 cover, %"]
        rows = [head + [f"delta = {self.delta or DELTA:g} is"] * costs]
        for o in self.outlooks:
            row = [f"{o.n:,}", "keep all" if o.n < self.feasible else in_percent(*o.coverage[1:])]
            row += ["keep all" if o.as_alpha is None else f"alpha = {o.as_alpha:.2g}"] * costs
            rows.append(row)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (zip(row, widths, strict=True) for row in rows)
        return "\n".join("  ".join(f"{c:>{w}}" for c, w in line).rstrip() for line in lines)

    def __str__(self) -> str:
        """Write the sentences and the table."""
        return f"{self.sentences}\n\n{self.table}\n\n{fill(FIT, 80)}"

    @property
    def unit(self) -> str:
        """What is counted."""
        return "relevant snippets" if self.guarantee == "snippet" else "judged queries"

    @property
    def about(self) -> str:
        """Whether numbers are exact, or a guide."""
        return "" if self.guarantee in ("all", "any") else "about "
