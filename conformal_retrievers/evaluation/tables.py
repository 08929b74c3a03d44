"""Numbers with their intervals, in tables of at most 80 characters."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

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


def aligned(*parts: list[Any]) -> list[str]:
    """Return the lines of heads and rows by turns: names to the left, numbers to the right."""
    tables = [(head, rows) for head, rows in zip(parts[::2], parts[1::2], strict=True) if rows]
    cells = [row for head, rows in tables for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    widths[0] = min(widths[0], WIDTH - sum(width + 2 for width in widths[1:]))
    lines = []
    for head, rows in tables:
        for row in (head, *rows):
            name = row[0] if len(row[0]) <= widths[0] else row[0][: widths[0] - 1] + "…"
            numbers = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
            lines.append("  ".join([name.ljust(widths[0]), *numbers]).rstrip())
            if row is head:
                lines.append("  ".join("─" * width for width in widths))
    return lines
