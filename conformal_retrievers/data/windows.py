"""Documents cut into snippets: overlapping windows of text that keep sentences whole if they fit.

The windows follow Chakraborty et al. 2025 (arXiv 2511.17908, section 3.1): 500 characters,
overlapping by 100. Sentences, and code, tables and lists, are those of `split="sentences"`.
Characters are code points, as `len` counts them.
"""

from collections.abc import Iterator, Sequence

from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.data.segments import pieces_in


def split_snippets(
    text: str, size: int = 500, overlap: int = 100, *, document: str | None = None
) -> list[Snippet]:
    """Return the windows of a text in order, with the `position` of their first character.

    A window has as many whole sentences as fit into `size` characters; what does not fit is cut
    between lines, else sentences, words or visible characters. It begins with as many sentences of
    the one before as fit into `overlap` characters beside a new one. White space between windows is
    dropped. `document` is the snippets' `document`, of which their `id` is "<document>:<position>".
    Raises ValueError unless 0 ≤ overlap < size.

    >>> [window.text for window in split_snippets("One two. Three four.  Five six.", 22, 12)]
    ['One two. Three four.', 'Three four.  Five six.']
    """
    if not 0 <= overlap < size:
        raise ValueError(
            f"size is {size} and overlap is {overlap}; give an overlap of 0 or more and a larger "
            "size"
        )
    units = list(pieces_in(text, size))
    return [
        Snippet(
            text[start:end],
            id=None if document is None else f"{document}:{start}",
            document=document,
            position=start,
        )
        for start, end in _windows(units, size, overlap)
    ]


def _windows(
    units: Sequence[tuple[int, int]], size: int, overlap: int
) -> Iterator[tuple[int, int]]:
    first = new = 0  # the window's first unit, and the first unit that is in no window yet
    while new < len(units):
        start, end = units[first][0], units[new][1]
        new += 1
        while new < len(units) and units[new][1] - start <= size:
            end = units[new][1]
            new += 1
        yield start, end
        first = new
        # Going back ends before this window's first unit: the new unit is too far from that.
        while (
            new < len(units)
            and end - units[first - 1][0] <= overlap
            and units[new][1] - units[first - 1][0] <= size
        ):
            first -= 1
