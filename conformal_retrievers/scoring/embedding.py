"""Cosine distance of embeddings: score = 1 − cos(emb(query), emb(snippet)), from 0 to 2.

A_emb of Chakraborty et al. 2025, "Principled Context Engineering for RAG" (arXiv 2511.17908,
section 3.3). Any embedder enters as a plain function from texts to vectors.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.data.queries import Snippet, as_snippets


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

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return 1 − cosine for each snippet, (n,)."""
        snippets = as_snippets(snippets)
        embeds, texts = self._texts(snippets)
        if self.embed_query is None:
            return self._distances(snippets, embeds, self.embed([query, *texts]))
        vectors: Any = self.embed(texts) if texts else []
        return self._distances(snippets, embeds, [self.embed_query(query), *vectors])

    async def ascore(self, query: str, snippets: Sequence[Snippet | str]) -> NDArray[np.float64]:
        """Return what `score` returns, without blocking the event loop."""
        snippets = as_snippets(snippets)
        if self.aembed is None:
            return await asyncio.to_thread(self.score, query, snippets)
        embeds, texts = self._texts(snippets)
        if self.embed_query is None:
            return self._distances(snippets, embeds, await self.aembed([query, *texts]))
        vectors: Any = await self.aembed(texts) if texts else []
        query_vector = (
            await self.aembed_query(query)
            if self.aembed_query is not None
            else await asyncio.to_thread(self.embed_query, query)
        )
        return self._distances(snippets, embeds, [query_vector, *vectors])

    def _texts(self, snippets: Sequence[Snippet]) -> tuple[list[bool], list[str]]:
        """Return whether each of the n snippets is embedded, and the m texts that are."""
        embeds = [
            not (self.reuse_embeddings and s.embedding is not None) and bool(s.text.strip())
            for s in snippets
        ]
        return embeds, [s.text for s, embedded in zip(snippets, embeds, strict=True) if embedded]

    def _distances(
        self, snippets: Sequence[Snippet], embeds: list[bool], embeddings: Any
    ) -> NDArray[np.float64]:
        """Score the snippets from the embeddings, 1 + m of length d, of query and m texts."""
        vectors = self._matrix(embeddings, sum(embeds))
        query_vector = vectors[0]
        if all(embeds):
            return cosine_distances(query_vector, vectors[1:])
        rows = np.full((len(snippets), len(query_vector)), np.nan)
        rows[embeds] = vectors[1:]
        for row, snippet in zip(rows, snippets, strict=True):
            if self.reuse_embeddings and snippet.embedding is not None:
                embedding = np.asarray(snippet.embedding, dtype=np.float64)
                if embedding.shape != row.shape:
                    raise ValueError(
                        f"a snippet's embedding has shape {embedding.shape} but {self.name!r} "
                        f"embeds the query with shape {row.shape}; reuse embeddings of the same "
                        "model only"
                    )
                row[:] = embedding
        return cosine_distances(query_vector, rows)

    def _matrix(self, embeddings: Any, texts: int) -> NDArray[np.float64]:
        try:
            vectors = np.asarray(embeddings, dtype=np.float64)
        except ValueError:  # of different lengths
            vectors = np.empty(0)
        if vectors.ndim == 2 and len(vectors) == 1 + texts:
            return vectors
        shapes = sorted({np.shape(embedding) for embedding in embeddings})
        raise ValueError(
            f"embedder {self.name!r} returned {len(embeddings)} vectors of shapes "
            f"{', '.join(map(str, shapes))} for the query and {texts} texts; it must return "
            "one vector for each, all of one length"
        )


def cosine_distances(
    query_vector: NDArray[np.float64], vectors: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return 1 − cos of a vector (d,) with each of (n, d); NaN where a vector has no direction."""
    lengths = np.sqrt(_row_by_row(vectors, vectors))
    lengths *= math.sqrt(query_vector @ query_vector)
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = 1 - _row_by_row(vectors, query_vector) / lengths
    distances[~np.isfinite(distances)] = np.nan
    return distances


def _row_by_row(vectors: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the product of each row of (n, d) with (d,), or with the same row of (n, d).

    As n products of two vectors, not one of matrices: a snippet's score must not depend, not even
    in its last bit, on which other snippets were retrieved with it.
    """
    products: NDArray[np.float64] = vectors[:, None, :] @ others[..., :, None]
    return products[:, 0, 0]
