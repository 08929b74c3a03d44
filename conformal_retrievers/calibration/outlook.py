"""What a plan is, and how it reads."""

from dataclasses import dataclass
from textwrap import fill

from conformal_retrievers.calibration.fitting import FEWEST
from conformal_retrievers.calibration.guarantees import Guarantee, n_needed
from conformal_retrievers.calibration.wording import wording
from conformal_retrievers.theory.intervals import Interval, in_percent, percent
from conformal_retrievers.theory.ranks import exact_alpha

DELTA = 0.1  # whose cost is stated if none is given
say = wording(__package__)


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
        return f"{self.sentences}\n\n{self.table}\n\n{fill(say('fit', fewest=FEWEST), 80)}"

    @property
    def unit(self) -> str:
        """What is counted."""
        return "relevant snippets" if self.guarantee == "snippet" else "judged queries"

    @property
    def about(self) -> str:
        """Whether numbers are exact, or a guide."""
        return "" if self.guarantee in ("all", "any") else "about "
