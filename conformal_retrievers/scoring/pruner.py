"""A sentence pruner's probability as the score: 1 − the probability that a sentence is relevant.

A pruner reads the query and a whole document, and marks its sentences (Provence, Chirkova et al.
2025, arXiv 2501.16214). Pruners cut at a guessed probability; a calibration takes its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from conformal_retrievers.data.queries import Snippet, as_scores, as_snippets, source_of
from conformal_retrievers.scoring.scorer import Scores
from conformal_retrievers.scoring.wording import say


@dataclass(frozen=True)
class ProvenceScorer:
    """Scores by 1 − the probability of a sentence from a model with OpenProvence's `process`.

    `name` identifies the model. All documents of a query are one call; the sentences of a retrieved
    document are read together, in their order. A blank text, and the sentences of a document for
    which the model returns others than these, are unscorable: NaN. Raises ValueError if the model
    returns no texts and probabilities of sentences.

    >>> class Longest:  # probability: length of a sentence / 10
    ...     def process(self, question, context, **options):
    ...         return {
    ...             "kept_sentences": context,
    ...             "sentence_probabilities": [[len(s.strip()) / 10 for s in d] for d in context],
    ...         }
    >>> scorer = ProvenceScorer(Longest(), name="longest")
    >>> scorer.score("q", [Snippet("Bread", document="d"), Snippet("Wine", document="d"), " "])
    array([0.5, 0.6, nan])
    """

    model: Any
    name: str
    relative_to_query: ClassVar[bool] = True  # it reads a sentence within its document

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Return 1 − the probability of each sentence, (n,)."""
        given = as_snippets(snippets)
        # A model splits sentences at line breaks, and joins them without a space.
        texts = [" ".join(text.splitlines()).strip() + " " for text in given.texts]
        places: dict[object, list[int]] = {}
        for i, snippet in enumerate(given):
            if not texts[i].isspace():
                alone = snippet.document is None
                places.setdefault(i if alone else source_of(snippet), []).append(i)
        scores = np.full(len(given), np.nan)
        if places:
            context = [[texts[i] for i in of_document] for of_document in places.values()]
            for i, sent, sentences, returned in zip(
                places.values(), context, *self._returned(query, context), strict=True
            ):
                if sentences is None or returned is None or [*sentences] != sent:
                    continue  # it has other sentences than these
                chances = np.atleast_1d(as_scores(returned, f"probabilities of {self.name!r}"))
                if (np.abs(chances[np.isfinite(chances)] - 0.5) > 0.5).any():
                    raise ValueError(say("not probabilities", name=self.name, given=returned))
                if chances.shape == (len(sent),):
                    scores[i] = np.where(np.isfinite(chances), 1 - chances, np.nan)
        return scores

    def _returned(self, query: str, context: list[list[str]]) -> list[Any]:
        """Return the sentences of each document as the model has them, and their probabilities."""
        result: Any = self.model.process(
            question=query,
            context=context,
            threshold=-1.0,  # below any probability: it keeps all sentences, in their order
            return_sentence_metrics=True,
            return_sentence_texts=True,
            show_progress=False,
        )
        known = result if isinstance(result, Mapping) else {}
        columns = [known.get(key) for key in ("kept_sentences", "sentence_probabilities")]
        if any(not isinstance(c, Sequence) or len(c) != len(context) for c in columns):
            raise ValueError(say("no pruner", name=self.name, keys=[*known], n=len(context)))
        return columns
