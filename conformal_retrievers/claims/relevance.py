"""Relevance of claims by the documents that the answer was written from; NaN = cannot be scored.

    R(c) = max(0, max_j cos(query, d_j) · cos(c, d_j))

This is algorithm 1 of Feng et al. 2025 (Conformal-RAG, arXiv 2506.20978).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.claims.texts import as_claims, as_documents
from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.scoring.embedding import EmbeddingScorer


def claim_relevance(
    query: ArrayLike, claims: ArrayLike, documents: ArrayLike
) -> NDArray[np.float64]:
    """Return max(0, max_j cos(query, d_j) · cos(claim, d_j)) of each claim, (p,).

    The vectors are query (d,), claims (p, d) and documents (m, d); without documents it is 0. As
    printed, two negative cosines make a positive product; documents that were retrieved for the
    query have none. A document without a direction (zero, not finite, or a square that is) supports
    nothing; a claim or query without one cannot be scored: NaN. All in float32 are multiplied as
    such. Raises ValueError for other shapes. Algorithm 1 of arXiv 2506.20978.
    """
    q, c, d = np.asarray(query), np.asarray(claims), np.asarray(documents)
    if not q.dtype == c.dtype == d.dtype == np.float32:
        q, c, d = (np.asarray(v, dtype=np.float64) for v in (q, c, d))
    c, d = (v if v.size else v.reshape(0, q.size) for v in (c, d))  # none, whatever their width
    if not (q.ndim == 1 and c.ndim == d.ndim == 2 and c.shape[1] == d.shape[1] == q.size):
        raise ValueError(
            f"query has shape {q.shape}, claims {c.shape} and documents {d.shape}; give vectors of "
            "one length: (d,), (p, d) and (m, d)"
        )
    with np.errstate(all="ignore"):
        # Each product is divided by |q| |d_j|² |c|: by |d_j|² before the maximum over j, by the
        # rest, which is the same for all j, after it. Of a document without a direction they are
        # NaN, which the maximum passes over: x / x is 1, but NaN where x is 0 or not finite.
        squares = np.einsum("ij,ij->i", d, d)
        products = c @ d.T
        products *= d @ q / squares * (squares / squares)
        lengths = np.sqrt(np.einsum("ij,ij->i", c, c)) * np.sqrt(q @ q)
        relevance = np.fmax.reduce(products, axis=1, initial=0.0) / lengths * (lengths / lengths)
    return np.asarray(relevance, dtype=np.float64)


@dataclass(frozen=True)
class ClaimRelevance:
    """Scores claims by `claim_relevance` of the embeddings of query, claims and documents.

    `embedding` says how texts are embedded: `EmbeddingScorer(embed, name="…")`, or what
    `embedding_scorer` of either framework's package returns. A blank claim cannot be scored; a
    blank document supports nothing. What a model makes of a text may differ in the last bit with
    how many others it is embedded with, and so may a relevance. Raises ValueError where vectors do
    not fit the texts, and TypeError for an embedding of another kind.
    """

    embedding: EmbeddingScorer

    def __post_init__(self) -> None:
        if not isinstance(self.embedding, EmbeddingScorer):
            raise TypeError(
                f"embedding is a {type(self.embedding).__name__}; give an EmbeddingScorer: "
                "EmbeddingScorer(embed, name='…'), or embedding_scorer(model) of "
                "langchain_conformal or llama_index.postprocessor.conformal"
            )

    @property
    def name(self) -> str:
        """The algorithm and the embedding's own name."""
        return f"claim_relevance({self.embedding.name})"

    def relevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet | str]
    ) -> NDArray[np.float64]:
        """Return the relevance of each claim, (p,)."""
        e, texts = self.embedding, _texts(claims, documents)
        if e.embed_query is None:
            return self._relevance(claims, len(texts), e.embed([query, *texts]))
        vectors: Any = e.embed(texts) if texts else []
        return self._relevance(claims, len(texts), [e.embed_query(query), *vectors])

    async def arelevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet | str]
    ) -> NDArray[np.float64]:
        """Return what `relevance` returns, without blocking the event loop."""
        e, texts = self.embedding, _texts(claims, documents)
        if e.aembed is None or (e.embed_query is not None and e.aembed_query is None):
            return await asyncio.to_thread(self.relevance, query, claims, documents)
        if e.aembed_query is None:
            return self._relevance(claims, len(texts), await e.aembed([query, *texts]))
        vectors: Any = await e.aembed(texts) if texts else []
        return self._relevance(claims, len(texts), [await e.aembed_query(query), *vectors])

    def _relevance(
        self, claims: Sequence[str], n_texts: int, embeddings: Any
    ) -> NDArray[np.float64]:
        """Score from the vectors of the query, of the claims that are not blank, of documents."""
        vectors = np.asarray(embeddings)
        if vectors.ndim != 2 or len(vectors) != 1 + n_texts:
            raise ValueError(
                f"embedder {self.embedding.name!r} returned vectors of shape {vectors.shape} for "
                f"the query and {n_texts} claims and documents; it must return one for each text"
            )
        told = np.array([bool(claim.strip()) for claim in claims], dtype=bool)
        n = 1 + int(told.sum())
        relevance = np.full(len(claims), math.nan)
        relevance[told] = claim_relevance(vectors[0], vectors[1:n], vectors[n:])
        return relevance


def _texts(claims: Sequence[str], documents: Sequence[Snippet | str]) -> list[str]:
    texts = [*as_claims(claims), *(document.text for document in as_documents(documents))]
    return [text for text in texts if text.strip()]
