"""Documents to snippets: overlapping windows of text that keep sentences whole where they fit.

The windows of Chakraborty et al. 2025 (arXiv 2511.17908, section 3.1): 500 characters, overlapping
by 100. They are cut by `semantic-text-splitter`, which knows Unicode's sentences.
"""

from __future__ import annotations

from conformal_retrievers.extras import require
from conformal_retrievers.judged import Snippet

require("snippets", "semantic_text_splitter")
from semantic_text_splitter import TextSplitter


def split_snippets(
    text: str, *, size: int = 500, overlap: int = 100, document: str | None = None
) -> list[Snippet]:
    """Return the windows of a text, in order, at most `size` characters long.

    Neighbours share up to `overlap` characters, whole sentences of them. A sentence longer than
    `size` is cut between words. `position` is the window's first character in `text`, exactly, and
    `id` is "<document>:<position>" where the document is named. Raises ValueError unless
    0 ≤ overlap < size.
    """
    if not 0 <= overlap < size:
        raise ValueError(
            f"size is {size} and overlap is {overlap}; a window must be longer than what it shares "
            "with the next, and neither is negative"
        )
    windows = TextSplitter(size, overlap=overlap).chunk_indices(text)
    return [
        Snippet(
            window,
            id=None if document is None else f"{document}:{start}",
            document=document,
            position=start,
        )
        for start, window in windows
    ]
