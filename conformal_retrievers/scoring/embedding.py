"""Cosine distance of embeddings: score = 1 − cos(emb(query), emb(snippet)), from 0 to 2.

A_emb of Chakraborty et al. 2025, "Principled Context Engineering for RAG" (arXiv 2511.17908,
section 3.3). Any embedder enters as a plain function from texts to vectors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.judged import Snippet


@dataclass(frozen=True)
class EmbeddingScorer:
    """Scores by cosine distance between the embeddings of query and snippet.

    `embed` turns n texts into vectors (n, d), as `SentenceTransformer.encode` does; `name`
    identifies the model. `embed_query` embeds the query where a model treats queries differently;
    without it, query and snippets go to `embed` as one batch. `aembed` and `aembed_query` are their
    asynchronous twins; without them `ascore` runs in a thread. With `reuse_embeddings`,
    `Snippet.embedding` is taken where there is one: say so only if the same model made it.

    A blank text, and a vector that is zero or not finite, cannot be scored: NaN. Raises ValueError
    where vectors do not fit the texts or one another.
    """

    embed: Callable[[list[str]], ArrayLike]
    name: str
    embed_query: Callable[[str], ArrayLike] | None = None
    aembed: Callable[[list[str]], Awaitable[ArrayLike]] | None = None
    aembed_query: Callable[[str], Awaitable[ArrayLike]] | None = None
    reuse_embeddings: bool = False

    def __post_init__(self) -> None:
        if self.aembed_query is not None and self.embed_query is None:
            raise ValueError(
                "aembed_query is given without embed_query; synchronous and asynchronous scores "
                "would differ, so give both"
            )

    @property
    def goes_by_texts(self) -> bool:
        """Whether a score depends on texts alone, and not on embeddings that snippets bring."""
        return not self.reuse_embeddings

    def score(self, query: str, snippets: Sequence[Snippet]) -> NDArray[np.float64]:
        """Return 1 − cosine for each snippet, (n,)."""
        texts = self._texts(snippets)
        if self.embed_query is None:
            return self._distances(snippets, self.embed([query, *texts]))
        vectors: Any = self.embed(texts) if texts else []
        return self._distances(snippets, [self.embed_query(query), *vectors])

    async def ascore(self, query: str, snippets: Sequence[Snippet]) -> NDArray[np.float64]:
        """Return what `score` returns, without blocking the event loop."""
        if self.aembed is None:
            return await asyncio.to_thread(self.score, query, snippets)
        texts = self._texts(snippets)
        if self.embed_query is None:
            return self._distances(snippets, await self.aembed([query, *texts]))
        vectors: Any = await self.aembed(texts) if texts else []
        query_vector = (
            await self.aembed_query(query)
            if self.aembed_query is not None
            else await asyncio.to_thread(self.embed_query, query)
        )
        return self._distances(snippets, [query_vector, *vectors])

    def _texts(self, snippets: Sequence[Snippet]) -> list[str]:
        return [s.text for s in snippets if self._embeds(s)]

    def _embeds(self, snippet: Snippet) -> bool:
        reused = self.reuse_embeddings and snippet.embedding is not None
        return not reused and bool(snippet.text.strip())

    def _distances(self, snippets: Sequence[Snippet], embeddings: Any) -> NDArray[np.float64]:
        """Score the snippets from the embeddings, 1 + m of length d, of query and m texts."""
        embedded = sum(map(self._embeds, snippets))
        shapes = sorted({np.shape(embedding) for embedding in embeddings})
        if len(embeddings) != 1 + embedded or len(shapes) != 1 or len(shapes[0]) != 1:
            raise ValueError(
                f"embedder {self.name!r} returned {len(embeddings)} vectors of shapes "
                f"{', '.join(map(str, shapes))} for the query and {embedded} texts; it must return "
                "one vector for each, all of one length"
            )
        vectors = np.asarray(embeddings)
        query_vector, rest = vectors[0].astype(np.float64), iter(vectors[1:])
        unscorable = np.full_like(query_vector, np.nan)
        rows = []
        for snippet in snippets:
            if self._embeds(snippet):
                rows.append(next(rest))
            elif self.reuse_embeddings and snippet.embedding is not None:
                rows.append(np.asarray(snippet.embedding))
            else:
                rows.append(unscorable)
        odd = next((r for r in rows if r.shape != query_vector.shape), None)
        if odd is not None:
            raise ValueError(
                f"a snippet's embedding has shape {odd.shape} but {self.name!r} embeds the query "
                f"with shape {query_vector.shape}; reuse embeddings of the same model only"
            )
        return cosine_distances(query_vector, np.array(rows, dtype=np.float64))


def cosine_distances(
    query_vector: NDArray[np.float64], vectors: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return 1 − cos of a vector (d,) with each of (n, d); NaN where a vector has no direction."""
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query_vector)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Row by row, not as one matrix product: a snippet's score must not depend, not even in its
        # last bit, on which other snippets were retrieved with it.
        distances = 1 - (vectors * query_vector).sum(axis=1) / lengths
    return np.where(np.isfinite(distances), distances, np.nan)
