"""Numbers with their intervals, as tables show them."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from conformal_retrievers.evaluation.bootstrap import Estimate


class Scale(NamedTuple):
    """How the numbers of a measure are written, the same in all rows."""

    measure: str
    unit: float
    digits: int

    @classmethod
    def of(cls, measure: str, estimates: Iterable[Estimate]) -> "Scale":
        """Return the scale that shows three digits of the largest estimate, or percent."""
        if measure == "recall":
            return cls(measure, 0.01, 1)
        largest = max((of_row.estimate for of_row in estimates), default=0)
        unit = 1000 if largest >= 1000 else 1
        return cls(measure, unit, 2 if largest < 10 * unit else 1 if largest < 100 * unit else 0)

    def parts(self, estimates: Mapping[str, Estimate], sign: str = "") -> tuple[str, str]:
        """Write a number and its interval, with its sign if `sign` is "+"."""
        estimate, low, high = (
            f"{value / self.unit:{sign},.{self.digits}f}" for value in estimates[self.measure]
        )
        return estimate, "[–]" if "nan" in low else f"[{low}, {high}]"

    def written(self, estimates: Mapping[str, Estimate], sign: str = "") -> str:
        """Write a number with its interval."""
        return " ".join(self.parts(estimates, sign))
