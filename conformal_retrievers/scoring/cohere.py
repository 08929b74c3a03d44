"""Cohere's reranker as a scorer, of snippets or, by its relevant spans, of sentences.

The wire format is that of `POST /v2/rerank`, which other servers speak, too.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformal_retrievers.data.snippets import source_of
from conformal_retrievers.scoring.reranker import Placed, Reranking
from conformal_retrievers.scoring.wording import say


@dataclass(frozen=True)
class CohereScorer(Reranking):
    """Scores by minus the relevance that `client.rerank` of Cohere's SDK returns.

    With `spans`, of Rerank 5 and newer, it scores sentences, as `split="sentences"` makes them: the
    sentences of a retrieved document are sent together, and each has the highest score of the
    relevant spans that it is in, or 0 outside of all. A blank text is unscorable, NaN, and so are
    all sentences if the server returns no spans for any document, as older models do. A text that
    the server does not return scores +inf, which no threshold keeps. Raises ValueError for a result
    with the index of no document, or a repeated one.

    >>> scorer = CohereScorer(cohere.ClientV2(), "rerank-v5.0-pro")  # doctest: +SKIP
    """

    client: Any  # with the `rerank` of `cohere.ClientV2`
    model: str
    spans: bool = False

    @property
    def name(self) -> str:  # type: ignore[override]
        """The model, and what of it is read."""
        return f"cohere({self.model}, spans)" if self.spans else f"cohere({self.model})"

    def _rerank(self, query: str, snippets: Placed) -> Mapping[int, Any]:
        documents: dict[object, list[tuple[int, str]]] = {}
        for i, snippet in snippets:
            place = source_of(snippet) if self.spans and snippet.document is not None else i
            documents.setdefault(place, []).append((i, snippet.text))
        # The lowest threshold: a calibration takes its place.
        wanted = {"relevant_spans": {"mode": "enabled", "threshold": 0.0}} if self.spans else {}
        texts = [" ".join(text for _, text in of_document) for of_document in documents.values()]
        response = self.client.rerank(model=self.model, query=query, documents=texts, **wanted)
        left, relevance = dict(enumerate(documents.values())), dict[int, Any]()
        answered = any(self.spans and r.relevant_spans is not None for r in response.results)
        for result in response.results:
            if result.index not in left:
                facts = {"name": self.name, "index": result.index, "last": len(texts) - 1}
                raise ValueError(say("no index", **facts))
            end = -1
            for i, text in left.pop(result.index):
                start, end = end + 1, end + 1 + len(text)
                relevance[i] = None if self.spans else result.relevance_score
                if answered:
                    spans = result.relevant_spans or ()
                    over = [s.score for s in spans if s.start < end and start < s.end]
                    relevance[i] = np.max(np.array(over, dtype=np.float64), initial=0.0)
        return relevance

    async def _arerank(self, query: str, snippets: Placed) -> Mapping[int, Any]:
        return await asyncio.to_thread(self._rerank, query, snippets)
