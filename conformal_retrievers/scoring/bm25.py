"""BM25 as a score: −BM25 of query and snippet (Robertson and Zaragoza 2009), computed by `bm25s`.

It weighs words by how rare they are in a corpus, so the corpus is a part of the scorer's name.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from conformal_retrievers.data.files import short_hash
from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.extras import require
from conformal_retrievers.scoring.scorer import Scores

require("text", "bm25s")
import bm25s


class BM25Scorer:
    """Scores by −BM25 (Lucene's variant, k1 = 1.5, b = 0.75, without English stop words).

    `corpus` contains the texts that may be retrieved (those of a corpus.jsonl are title, a space
    and text). A text that is not exactly one of them, such as a chunk of one, or blank is
    unscorable: NaN. A snippet that shares no word with the query has the score 0.

    >>> scorer = BM25Scorer(["red and blue", "green", "blue"])
    >>> scorer.score("blue", ["blue", "green", "yellow"]).round(2)
    array([-0.21, -0.  ,   nan])
    """

    def __init__(self, corpus: Iterable[str]) -> None:
        self.corpus = list(dict.fromkeys(corpus))
        tokens = _tokens(self.corpus)
        if not any(tokens):
            raise ValueError("corpus contains no words except stop words; give the snippets' texts")
        self._places = {text: i for i, text in enumerate(self.corpus) if text.strip()}
        self._index = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
        self._index.index(tokens, show_progress=False)
        digest = short_hash(self.corpus)
        self.name = f"bm25s(lucene, k1=1.5, b=0.75, stopwords=english, corpus={digest})"

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Return −BM25 of each snippet, (n,)."""
        similarities = self.similarities(query)
        places = [self._places.get(text) for text in as_snippets(snippets).texts]
        return np.array([np.nan if i is None else -similarities[i] for i in places])

    def similarities(self, query: str) -> Scores:
        """Return the BM25 similarity of the query to each text of the corpus, (len(corpus),)."""
        words = [word for word in _tokens([query])[0] if word in self._index.vocab_dict]
        similarities = np.zeros(len(self.corpus))
        if words:
            similarities += self._index.get_scores(words)
        return similarities


def _tokens(texts: list[str]) -> list[list[str]]:
    tokens: list[list[str]] = bm25s.tokenize(texts, return_ids=False, show_progress=False)
    return tokens
