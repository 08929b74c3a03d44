"""BM25 as a score: −BM25 of query and snippet, in the corpus that the scorer was built on.

BM25 (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework") weighs words by how rare
they are in a corpus, so the corpus is a part of the scorer and of its name. `bm25s` computes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.queries import Snippet, as_snippets
from conformal_retrievers.extras import require

require("bm25", "bm25s")
import bm25s

NOT_IN_CORPUS = (
    "its text is not in the corpus that BM25 was built on (in a corpus.jsonl: title, a space and "
    "text)"
)


class BM25Scorer:
    """Scores by −BM25 (Lucene's variant, k1 = 1.5, b = 0.75, without English stop words).

    `corpus` contains the texts that may be retrieved. A text that is not exactly one of them, or
    blank, is unscorable: NaN. Ids do not matter, since a chunk of a text is another text. A snippet
    that shares no word with the query has the score 0.

    >>> scorer = BM25Scorer(["red and blue", "green", "blue"])
    >>> scorer.score("blue", ["blue", "green", "yellow"]).round(2)
    array([-0.21, -0.  ,   nan])
    """

    def __init__(self, corpus: Iterable[str]) -> None:
        self.corpus = list(dict.fromkeys(corpus))
        for text in self.corpus:
            if not isinstance(text, str):
                raise TypeError(f"corpus contains {text!r:.60}; give the texts of the snippets")
        tokens = _tokens(self.corpus)
        if not any(tokens):
            raise ValueError("corpus contains no words except stop words; give the snippets' texts")
        self._places = {text: i for i, text in enumerate(self.corpus) if text.strip()}
        self._index = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
        self._index.index(tokens, show_progress=False)
        digest = hashlib.sha256(json.dumps(self.corpus).encode()).hexdigest()[:12]
        self.name = f"bm25s(lucene, k1=1.5, b=0.75, stopwords=english, corpus={digest})"

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return −BM25 of each snippet, (n,)."""
        return self.score_with_reasons(query, snippets)[0]

    def score_with_reasons(
        self, query: str, snippets: Sequence[Snippet | str]
    ) -> tuple[NDArray[np.float64], list[str | None]]:
        """Return −BM25 of each snippet, (n,), and why it has none: blank, or not in the corpus."""
        similarities = self.similarities(query)
        texts = [s.text for s in as_snippets(snippets)]
        places = [self._places.get(text) for text in texts]
        scores = np.array([np.nan if i is None else -similarities[i] for i in places])
        reasons = [
            None if i is not None else NOT_IN_CORPUS if text.strip() else "blank"
            for i, text in zip(places, texts, strict=True)
        ]
        return scores, reasons

    def similarities(self, query: str) -> NDArray[np.float64]:
        """Return the BM25 similarity of the query to each text of the corpus, (len(corpus),)."""
        words = _tokens([query])[0]
        known = [word for word in words if word in self._index.vocab_dict]
        if not known:
            return np.zeros(len(self.corpus))
        return np.asarray(self._index.get_scores(known), dtype=np.float64)


def _tokens(texts: list[str]) -> list[list[str]]:
    tokens: list[list[str]] = bm25s.tokenize(texts, return_ids=False, show_progress=False)
    return tokens
