"""Numbers with their intervals, in tables of at most 80 characters."""

from collections.abc import Iterable, Mapping
from textwrap import fill
from typing import NamedTuple

from conformal_retrievers.evaluation.bootstrap import Estimate

WIDTH = 80


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


def filled(text: str) -> str:
    """Return a text in lines of at most 80 characters; none ends between a number and its %."""
    lines = fill(text.replace(" %", "\xa0%"), WIDTH, break_on_hyphens=False)
    return lines.replace("\xa0", " ")


def aligned(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    widths[0] = min(widths[0], WIDTH - sum(width + 2 for width in widths[1:]))
    lines = []
    for row in (head, *rows):
        numbers = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join([_cut(row[0], widths[0]).ljust(widths[0]), *numbers]).rstrip())
    return [lines[0], "  ".join("─" * width for width in widths), *lines[1:]]


def _cut(name: str, width: int) -> str:
    """Cut a name to a width, all but its mark *."""
    mark = " *" if name.endswith(" *") else ""
    return name if len(name) <= width else f"{name[: width - 1 - len(mark)]}…{mark}"
