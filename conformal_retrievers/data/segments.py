"""Text cut into sentences."""

from collections.abc import Iterator
from importlib.metadata import version

from conformal_retrievers.extras import require

require("snippets", "sentencex")
import sentencex

LIMIT = 1000  # characters of a sentence; a longer one is cut
NAME = f"sentences(sentencex {version('sentencex')}, at most {LIMIT})"


def sentences_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first character of each sentence of a text and the one behind its last.

    >>> list(sentences_in("One two. Three four."))
    [(0, 9), (9, 20)]
    """
    for found in sentencex.get_sentence_boundaries("en", text):
        yield found["start_index"], found["end_index"]
