"""Cosine distance of embeddings: score = 1 − cos(emb(query), emb(snippet)), from 0 to 2.

A_emb of Chakraborty et al. 2025, "Principled Context Engineering for RAG" (arXiv 2511.17908,
section 3.3). An embedder is a plain function from texts to vectors.
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

    A blank text, and a vector that is zero or not finite, is unscorable: NaN.

    Parameters
    ----------
    embed
        Turns n texts into vectors (n, d), as `SentenceTransformer.encode` does.
    name
        Identifies the model.
    embed_query
        Embeds the query, for models that treat queries differently. Without it, query and snippets
        go to `embed` as one batch.
    aembed, aembed_query
        Asynchronous twins of `embed` and `embed_query`. Without them, `ascore` uses a thread.
    reuse_embeddings
        Use `Snippet.embedding` if a snippet has one. Set it only if the same model made them.

    Raises
    ------
    ValueError
        If the vectors do not match the texts or differ in length.

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

    def __post_init__(self) -> None:
        if self.aembed_query is not None and self.embed_query is None:
            raise ValueError(
                "aembed_query is given without embed_query, so synchronous and asynchronous "
                "scores would differ; give both"
            )

    @property
    def text_only(self) -> bool:
        """Whether a score depends on texts alone, and not on the snippets' own embeddings."""
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
        """Asynchronous twin of `score`."""
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
        """Return which of the n snippets have to be embedded, and their m texts."""
        embeds = [
            not (self.reuse_embeddings and s.embedding is not None) and bool(s.text.strip())
            for s in snippets
        ]
        return embeds, [s.text for s, embedded in zip(snippets, embeds, strict=True) if embedded]

    def _distances(
        self, snippets: Sequence[Snippet], embeds: list[bool], embeddings: Any
    ) -> NDArray[np.float64]:
        """Return the scores (n,) from the embeddings (1 + m, d) of the query and m texts."""
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
                        f"returns shape {row.shape} for the query; set reuse_embeddings only for "
                        "embeddings of the same model"
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
            f"{', '.join(map(str, shapes))} for the query and {texts} texts; it must return one "
            "vector for each, all of the same length"
        )


def cosine_distances(
    query_vector: NDArray[np.float64], vectors: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return 1 − cos of a vector (d,) with each of (n, d); NaN for a vector without a direction."""
    lengths = np.sqrt(_row_by_row(vectors, vectors))
    lengths *= math.sqrt(query_vector @ query_vector)
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = 1 - _row_by_row(vectors, query_vector) / lengths
    distances[~np.isfinite(distances)] = np.nan
    return distances


def _row_by_row(vectors: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the product of each row of (n, d) with (d,), or with the same row of (n, d).

    These are n products of two vectors and not one of matrices: a snippet's score must not depend,
    even in its last bit, on which other snippets were retrieved with it.
    """
    products: NDArray[np.float64] = vectors[:, None, :] @ others[..., :, None]
    return products[:, 0, 0]
