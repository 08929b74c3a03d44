"""A cross-encoder's logit as the score: −logit of the pair (query, snippet).

A cross-encoder reads both together (Nogueira and Cho 2019, arXiv 1901.04085). The logit's sigmoid
would round confident pairs to 1 and make them tie.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from conformal_retrievers.data.queries import Snippet, as_scores, as_snippets
from conformal_retrievers.scoring.scorer import Scores


@dataclass(frozen=True)
class CrossEncoderScorer:
    """Scores by −logit; `predict` turns m pairs (query, text) into m logits, higher = relevant.

    `name` identifies the model. All snippets of a query are one call. A blank text, and a logit
    that is not finite, is unscorable: NaN. Raises ValueError unless there is a logit for each pair.

    >>> scorer = CrossEncoderScorer(lambda pairs: [len(text) for query, text in pairs], "length")
    >>> scorer.score("q", ["bread", " "])
    array([-5., nan])
    """

    predict: Callable[[list[tuple[str, str]]], ArrayLike]
    name: str

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Return −logit of each snippet, (n,)."""
        given = as_snippets(snippets)
        readable = [i for i, s in enumerate(given) if s.text.strip()]
        scores = np.full(len(given), np.nan)
        if readable:
            pairs = [(query, given[i].text) for i in readable]
            name = f"logits of {self.name!r}, a model with one output"
            logits = as_scores(self.predict(pairs), name, len(pairs), "pairs")
            scores[readable] = np.where(np.isfinite(logits), -logits, np.nan)
        return scores
