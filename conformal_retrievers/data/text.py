"""Text as it is printed: without what cannot be seen, in lines, and in tables."""

import json
import logging
import math
import re
from collections.abc import Mapping
from functools import partial
from textwrap import fill
from typing import Any
from unicodedata import category, east_asian_width

# Characters that are read but not seen: controls, separators, halves of a character, and Unicode's
# Default_Ignorable_Code_Point (directions, fillers, tag letters) except the two joiners and the
# variation selectors, which many scripts need.
UNSEEN = (
    "\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
VARIATIONS = "\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_HIDDEN = re.compile(f"[{UNSEEN}]")
WIDTH = 80  # of a line


def visible(text: str) -> str:
    r"""Return the text with every control character as its JSON escape.

    >>> print(visible("a\x1b[2Jb\n"))
    a\u001b[2Jb\n
    """
    return _HIDDEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def visible_lines(text: str) -> str:
    """Return the text with every control character but the line break made visible."""
    return "\n".join(map(visible, text.split("\n")))


def printable(name: str) -> str:
    """Return a name; raise ValueError if it has a control character."""
    if _HIDDEN.search(name):
        raise ValueError("give a name without control characters")
    return name


def shown(value: object, printer: Any, cycle: bool) -> None:
    """Write a value in a notebook as `print` does: it is IPython's `_repr_pretty_`.

    >>> from types import SimpleNamespace
    >>> shown("a line", SimpleNamespace(text=print), cycle=False)
    a line
    """
    printer.text(str(value))


def number_in(value: Any) -> float:
    """Return a finite number, also one that a text has; NaN for anything else."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):  # the last for a whole number beyond floats
        return math.nan
    return number if math.isfinite(number) else math.nan


def filled(text: str) -> str:
    """Return a text in lines of at most 80 characters; none ends between a number and its %."""
    whole = partial(fill, width=WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(map(whole, text.replace(" %", "\xa0%").split("\n"))).replace("\xa0", " ")


def aligned(head: list[str], rows: list[list[str]], width: int = WIDTH) -> list[str]:
    """Return the lines of a table: names to the left, cut at a width, numbers to the right."""
    widths = [max(map(cells, column)) for column in zip(head, *rows, strict=True)]
    widths[0] = min(widths[0], width - sum(2 + size for size in widths[1:]))
    lines = []
    for row in (head, *rows):
        numbers = (cell.rjust(size) for cell, size in zip(row[1:], widths[1:], strict=True))
        name = shortened(row[0], widths[0])
        name += " " * (widths[0] - cells(name))
        lines.append("  ".join([name, *numbers]).rstrip())
    return [lines[0], "  ".join("─" * size for size in widths), *lines[1:]]


def labelled(rows: Mapping[str, object], width: int = 0) -> list[str]:
    """Return the lines of names with what they stand for, all from one place on."""
    width = max([width, *map(cells, rows)])
    return [f"{name}{' ' * (width - cells(name))} {value}" for name, value in rows.items()]


def plural(noun: str) -> str:
    """Return the plural of a noun of what is counted, such as queries or judged snippets."""
    return f"{noun[:-1]}ies" if noun.endswith("query") else f"{noun}s"


def counted(n: int, one: str, many: str | None = None) -> str:
    """Return a number of things in words.

    >>> counted(1, "judged query"), counted(1200, "judged query"), counted(2, "was", "were")
    ('1 judged query', '1,200 judged queries', '2 were')
    """
    return f"{n:,} {one if n == 1 else many or plural(one)}"


def cells(text: str) -> int:
    """Return how wide a text is in a terminal, where wide characters take two cells.

    >>> cells("top k"), cells("検索"), cells("ที่")
    (5, 4, 1)
    """
    seen = [c for c in text if category(c) not in ("Mn", "Me", "Cf")]  # marks stand on letters
    return len(seen) + sum(east_asian_width(character) in "WF" for character in seen)


def shortened(name: str, width: int) -> str:
    """Return a name cut to a width in a terminal, all but its mark *."""
    mark, kept = " *" if name.endswith(" *") else "", name[: max(width, 0)]
    while kept and cells(kept) > width - (kept != name) * (1 + len(mark)):
        kept = kept[:-1]
    return name if kept == name else f"{kept}…{mark}"


def _make_visible(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    if _HIDDEN.search(message):
        record.msg, record.args = visible(message), ()
    if record.exc_info:  # a formatter takes `exc_text` if it is there
        record.exc_text = visible_lines(logging.Formatter().formatException(record.exc_info))
    return True


logging.getLogger("conformal_retrievers").addFilter(_make_visible)  # the logger of every module
