"""Text cut into paragraphs, and into code, tables and lists as Markdown writes them.

A blank line ends any block but fenced code. A line break ends a paragraph after a heading, and
after a line that is shorter than half of one beside it, unless a small letter follows: lines of
wrapped text are about equally long. Any other line break is white space.
"""

import re
from collections.abc import Iterator

UNITS = {"code", "fence", "list", "table"}  # the kinds of blocks that are not cut

_MARK = re.compile(
    r"""[ \t]*(?:
      (?P<fence> (?P<mark> `{3,} (?=[^`]*$) | ~{3,} ) | <(?P<tag> table|pre )\b )
    | (?P<rule> ([-=*_]) (?: [ \t]* \5 ){2,} \s*$ )
    | (?P<item> (?: [-*+•‣⁃◦▪●○■] | (?P<number> \d{1,9} ) [.)] ) [ \t]+ \S )
    | (?P<heading> \#{1,6} \s )
    | (?P<table> \| | \+ [-=+]+ \+ \s*$ )
    )""",
    re.VERBOSE | re.IGNORECASE,
)
_CODE = re.compile(r" {4}| {0,3}\t")
_DELIMITER = re.compile(r"[ \t|:]*-[-:\s|]*$")  # it follows the head of a table


def blocks(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the range of each block and its kind: one of `UNITS`, "item" (a list of one), or other.

    >>> list(blocks("# Title\\nText.\\n\\n- One\\n- Two\\n"))
    [(0, 8, 'heading'), (8, 14, 'text'), (15, 27, 'list')]
    """
    kind = fence = before = earlier = ""  # of the block; what closes it; the lines before
    start = end = 0
    for line in text.splitlines(keepends=True):
        last, position, end = end - len(before), end, end + len(line)  # where lines begin
        if fence:
            fence = "" if _closes(line, fence) else fence
        elif line.isspace():
            if kind:
                yield start, position, kind
            kind = before = earlier = ""
            continue
        else:
            mark_found = _MARK.match(line)
            if kind == "code" and start == last and not _CODE.match(line):
                kind = "text"  # a paragraph whose first line is indented
            if kind == "text" and "|" in line and _DELIMITER.match(line):
                if start < last:
                    yield start, last, kind
                start, kind = last, "table"
            elif joined := _joined(kind, mark_found, line, before, earlier):
                kind = joined
            else:
                if kind:
                    yield start, position, kind
                start, kind = position, _kind(kind, mark_found, line)
            if mark_found and mark_found.lastgroup == "fence":
                fence = mark_found["mark"] or f"</{mark_found['tag'].lower()}>"
                if fence[0] == "<" and _closes(line, fence):
                    fence = ""
        earlier, before = before, line
    if kind:
        yield start, end, kind


def _closes(line: str, fence: str) -> bool:
    if fence[0] == "<":
        return fence in line.lower()
    return fence in line and not line.strip().strip(fence[0])


def _kind(before: str, found: re.Match[str] | None, line: str) -> str:
    """Return the kind of a block that begins with the line, after a block or a blank line."""
    mark = (found and found.lastgroup) or "text"
    return "code" if not before and mark != "fence" and _CODE.match(line) else mark


def _joined(
    kind: str, found: re.Match[str] | None, line: str, before: str, earlier: str
) -> str | None:
    """Return the kind of the block with the line, or None if the line is not of the block."""
    mark = found.lastgroup if found else "text"
    if kind == "code":
        return kind if _CODE.match(line) else None
    if kind == "table":
        return kind if "|" in line or mark == kind else None
    if kind in ("item", "list"):
        if mark == "item":
            return "list"
        inside = line[0].isspace() or (mark == "text" and not _is_hard(earlier, before, line))
        return kind if inside else None
    if kind == "text":
        if mark == "rule":  # beneath a title
            return mark
        inside = found is None or found["number"] not in (None, "1")
        return kind if inside and not _is_hard(earlier, before, line) else None
    return None


def _is_hard(earlier: str, before: str, line: str) -> bool:
    """Return whether the line break before a line, after two others, is more than white space."""
    if before[-1] in "\f\u2029":
        return True
    line = line.strip()
    longest = max(len(line), len(earlier.strip()))
    return 2 * len(before.strip()) < longest and not (line[0].islower() or line[0] in ",.;:!?)")
