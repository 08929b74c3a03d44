"""Cosine distance of embeddings: score = 1 − cos(emb(query), emb(snippet)), from 0 to 2.

A_emb of Chakraborty et al. 2025 (arXiv 2511.17908, section 3.3).
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
from conformal_retrievers.scoring.scorer import Scores


@dataclass(frozen=True)
class EmbeddingScorer:
    """Scores by cosine distance between the embeddings of query and snippet.

    A blank text, and a vector that is zero or not finite, is unscorable: NaN. Raises ValueError
    unless there is one vector for each text, all of the same length.

    Parameters
    ----------
    embed, name
        Turns n texts into vectors (n, d), as `SentenceTransformer.encode` does; and its identity.
    embed_query
        Embeds the query. Without it, query and snippets go to `embed` as one batch.
    aembed, aembed_query
        Asynchronous twins of `embed` and `embed_query`. Without them, `ascore` uses a thread.
    reuse_embeddings
        Use `Snippet.embedding` if a snippet has one. Set it only if the same model made them.

    Examples
    --------
    >>> vectors = {"query": [3, 4], "same": [6, 8], "across": [4, -3]}
    >>> scorer = EmbeddingScorer(lambda texts: [vectors[text] for text in texts], name="toy")
    >>> scorer.score("query", ["same", "across", " "])
    array([ 0.,  1., nan])
    """

    embed: Callable[[list[str]], ArrayLike]
    name: str
    embed_query: Callable[[str], ArrayLike] | None = None
    aembed: Callable[[list[str]], Awaitable[ArrayLike]] | None = None
    aembed_query: Callable[[str], Awaitable[ArrayLike]] | None = None
    reuse_embeddings: bool = False

    @property
    def text_only(self) -> bool:
        """Whether a score depends on texts alone, and not on the snippets' own embeddings."""
        return not self.reuse_embeddings

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Return 1 − cosine for each snippet, (n,)."""
        snippets = as_snippets(snippets)
        return self._distances(snippets, self.vectors(query, self._texts(snippets)))

    async def ascore(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Asynchronous twin of `score`."""
        snippets = as_snippets(snippets)
        return self._distances(snippets, await self.avectors(query, self._texts(snippets)))

    def vectors(self, query: str, texts: list[str]) -> NDArray[Any]:
        """Return the embeddings of a query and n texts, (1 + n, d)."""
        if self.embed_query is None:
            return self._checked(self.embed([query, *texts]), texts)
        vectors: Any = self.embed(texts) if texts else []
        return self._checked([self.embed_query(query), *vectors], texts)

    async def avectors(self, query: str, texts: list[str]) -> NDArray[Any]:
        """Asynchronous twin of `vectors`."""
        if self.aembed is None:
            return await asyncio.to_thread(self.vectors, query, texts)
        if self.embed_query is None:
            return self._checked(await self.aembed([query, *texts]), texts)
        vectors: Any = await self.aembed(texts) if texts else []
        if self.aembed_query is None:
            query_vector = await asyncio.to_thread(self.embed_query, query)
        else:
            query_vector = await self.aembed_query(query)
        return self._checked([query_vector, *vectors], texts)

    def _checked(self, embeddings: Any, texts: list[str]) -> NDArray[Any]:
        vectors = np.asarray(embeddings)
        if vectors.ndim != 2 or len(vectors) != 1 + len(texts):
            raise ValueError(
                f"embedder {self.name!r} returned shape {vectors.shape} for the query and "
                f"{len(texts)} texts; it must return one vector for each"
            )
        return vectors

    def _texts(self, snippets: Sequence[Snippet]) -> list[str]:
        """Return the m texts that have to be embedded."""
        return [s.text for s in snippets if s.text.strip() and not self._reuses(s)]

    def _reuses(self, snippet: Snippet) -> bool:
        return self.reuse_embeddings and snippet.embedding is not None

    def _distances(self, snippets: Sequence[Snippet], vectors: NDArray[Any]) -> Scores:
        """Return the scores (n,) from the embeddings (1 + m, d) of the query and m texts."""
        vectors = vectors.astype(np.float64)
        query_vector, embedded = vectors[0], iter(vectors[1:])
        rows = np.full((len(snippets), len(query_vector)), np.nan)
        for row, snippet in zip(rows, snippets, strict=True):
            if self._reuses(snippet):
                row[:] = snippet.embedding
            elif snippet.text.strip():
                row[:] = next(embedded)
        return cosine_distances(query_vector, rows)


def cosine_distances(query_vector: Scores, vectors: Scores) -> Scores:
    """Return 1 − cos of a vector (d,) with each of (n, d); NaN for a vector without a direction.

    >>> cosine_distances(np.array([3.0, 4.0]), np.array([[6.0, 8.0], [4.0, -3.0], [0.0, 0.0]]))
    array([ 0.,  1., nan])
    """
    lengths = np.sqrt(_row_by_row(vectors, vectors))
    lengths *= math.sqrt(query_vector @ query_vector)
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = 1 - _row_by_row(vectors, query_vector) / lengths
    distances[~np.isfinite(distances)] = np.nan
    return distances


def _row_by_row(vectors: Scores, others: Scores) -> Scores:
    """Return the product of each row of (n, d) with (d,), or with the same row of (n, d).

    n products of vectors, not one of matrices: no score depends on another, even in its last bit.
    """
    products: Scores = vectors[:, None, :] @ others[..., :, None]
    return products[:, 0, 0]
