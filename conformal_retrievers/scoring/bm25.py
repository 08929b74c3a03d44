"""BM25 as a score: −BM25 of the query against the snippet, in the corpus that it was built on.

BM25 (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework") weighs words by how rare
they are in a corpus, so the corpus is a part of the scorer, and of its name. Computed by `bm25s`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.extras import require
from conformal_retrievers.judged import Snippet

require("bm25", "bm25s")
import bm25s


class BM25Scorer:
    """Scores by −BM25 (Lucene's variant, k1 = 1.5, b = 0.75, English stop words left out).

    `corpus` is the texts that may be retrieved. A text that is not among them, and a blank one,
    cannot be scored: NaN. Every snippet that shares no word with the query has the score 0.
    """

    def __init__(self, corpus: Iterable[str]) -> None:
        self.corpus = list(dict.fromkeys(corpus))
        _check_texts(self.corpus)
        tokens = _tokens(self.corpus)
        if not any(tokens):
            raise ValueError(
                "corpus holds no words but stop words; give the texts that may be retrieved"
            )
        self._places = {text: i for i, text in enumerate(self.corpus) if text.strip()}
        self._index = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
        self._index.index(tokens, show_progress=False)
        digest = hashlib.sha256(json.dumps(self.corpus).encode()).hexdigest()[:12]
        self.name = f"bm25s(lucene, k1=1.5, b=0.75, stopwords=english, corpus={digest})"

    def score(self, query: str, snippets: Sequence[Snippet]) -> NDArray[np.float64]:
        """Return −BM25 of each snippet, (n,)."""
        similarities = self.similarities(query)
        places = [self._places.get(s.text, -1) for s in snippets]
        return np.array([-similarities[i] if i >= 0 else np.nan for i in places])

    def similarities(self, query: str) -> NDArray[np.float64]:
        """Return the BM25 similarity of the query to each text of the corpus, (len(corpus),)."""
        words = _tokens([query])[0]
        known = [word for word in words if word in self._index.vocab_dict]
        if not known:
            return np.zeros(len(self.corpus))
        return np.asarray(self._index.get_scores(known), dtype=np.float64)


def _check_texts(corpus: Sequence[object]) -> None:
    for text in corpus:
        if not isinstance(text, str):
            raise TypeError(f"corpus holds {text!r:.60}; give the texts of the snippets")


def _tokens(texts: list[str]) -> list[list[str]]:
    tokens: list[list[str]] = bm25s.tokenize(texts, return_ids=False, show_progress=False)
    return tokens
