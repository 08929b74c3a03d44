"""A cross-encoder's logit as the score: −logit of the pair (query, snippet).

A cross-encoder reads query and snippet together (Nogueira and Cho 2019, arXiv 1901.04085). The
score is the logit and not its sigmoid, which rounds confident pairs to 1 and makes them tie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.data.queries import Snippet, as_snippets


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

    @classmethod
    def from_sentence_transformers(cls, model: Any, *, name: str) -> CrossEncoderScorer:
        """Return the scorer of a `sentence_transformers.CrossEncoder` with one output.

        It asks for raw logits, whatever activation the model was saved with.
        """
        return cls(
            lambda pairs: model.predict(
                pairs, activation_fn=lambda logits: logits, show_progress_bar=False
            ),
            name,
        )

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return −logit of each snippet, (n,)."""
        texts = [s.text for s in as_snippets(snippets)]
        scores = np.full(len(texts), np.nan)
        readable = [i for i, text in enumerate(texts) if text.strip()]
        if readable:
            scores[readable] = -self._logits([(query, texts[i]) for i in readable])
        return np.where(np.isfinite(scores), scores, np.nan)

    def _logits(self, pairs: list[tuple[str, str]]) -> NDArray[np.float64]:
        logits = np.asarray(self.predict(pairs), dtype=np.float64)
        if logits.shape != (len(pairs),):
            raise ValueError(
                f"cross-encoder {self.name!r} returned logits of shape {logits.shape} for "
                f"{len(pairs)} pairs; give a model with one output, or a predict that returns one "
                "number for each pair"
            )
        return logits
