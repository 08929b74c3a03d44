"""Relevance of claims by the documents that the answer was written from; NaN = not scorable.

    R(c) = max(0, max_j cos(query, d_j) · cos(c, d_j))

This is algorithm 1 of Feng et al. 2025 (Conformal-RAG, arXiv 2506.20978).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.calibration.checks import check_type
from conformal_retrievers.claims.wording import say
from conformal_retrievers.data.checks import all_of
from conformal_retrievers.data.queries import Snippet, as_numbers, as_snippets
from conformal_retrievers.scoring.embedding import EmbeddingScorer


@runtime_checkable
class ClaimScorer(Protocol):
    """A name, which is its identity, and a relevance of claims.

    A scorer with a coroutine function `arelevance` of the same arguments is awaited.
    """

    @property
    def name(self) -> str:
        """The scorer's identity."""

    def relevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet]
    ) -> ArrayLike:
        """Return one number for each claim, (p,): higher = likelier factual, NaN = not scorable."""


def claim_relevance(
    query: ArrayLike, claims: ArrayLike, documents: ArrayLike
) -> NDArray[np.float64]:
    """Return max(0, max_j cos(query, d_j) · cos(claim, d_j)) of each claim, (p,).

    The vectors are query (d,), claims (p, d) and documents (m, d); without documents R is 0. As
    printed, two negative cosines give a positive product. A vector whose square is 0 or not finite
    has no direction: such a document supports nothing, and such a claim or query gives NaN. Raises
    ValueError for other shapes. Algorithm 1 of arXiv 2506.20978.

    >>> claim_relevance([1, 0], [[3, 4], [0, 1]], documents=[[2, 0]]).round(6).tolist()
    [0.6, 0.0]
    """
    given = {"query": query, "claims": claims, "documents": documents}
    q, c, d = (np.asarray(as_numbers(v, name), np.float64) for name, v in given.items())
    c, d = (v if v.size else v.reshape(0, q.size) for v in (c, d))  # none, whatever their width
    if not (q.ndim == 1 and c.ndim == d.ndim == 2 and c.shape[1] == d.shape[1] == q.size):
        raise ValueError(say("other lengths", q=q, c=c, d=d))
    with np.errstate(all="ignore"):
        # Each product is divided by |q| |d_j|² |c|: by |d_j|² before the maximum over j, and by
        # |q| |c|, which is the same for all j, after it. A document without a direction gives NaN,
        # which fmax ignores: x / x is 1, but NaN where x is 0 or not finite.
        squares = np.einsum("ij,ij->i", d, d)
        products = c @ d.T
        products *= d @ q / squares * (squares / squares)
        lengths = np.sqrt(np.einsum("ij,ij->i", c, c)) * np.sqrt(q @ q)
        relevance = np.fmax.reduce(products, axis=1, initial=0.0) / lengths * (lengths / lengths)
    return np.asarray(relevance, dtype=np.float64)


@dataclass(frozen=True)
class ClaimRelevance:
    """Scores claims by `claim_relevance` of the embeddings of query, claims and documents.

    `embedding` is an `EmbeddingScorer(embed, name="…")`, such as `embedding_scorer` of either
    framework's package returns. A blank claim cannot be scored; a blank document supports nothing.
    """

    embedding: EmbeddingScorer

    def __post_init__(self) -> None:
        needed = "an EmbeddingScorer: embedding_scorer(…)"
        check_type(EmbeddingScorer, needed, embedding=self.embedding)

    @property
    def name(self) -> str:
        """The algorithm and the embedding's own name."""
        return f"claim_relevance({self.embedding.name})"

    def relevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet | str]
    ) -> NDArray[np.float64]:
        """Return the relevance of each claim, (p,)."""
        return _relevance(claims, self.embedding.vectors(query, _texts(claims, documents)))

    async def arelevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet | str]
    ) -> NDArray[np.float64]:
        """Do what `relevance` does, without blocking the event loop."""
        return _relevance(claims, await self.embedding.avectors(query, _texts(claims, documents)))


def _texts(claims: Sequence[str], documents: Sequence[Snippet | str]) -> list[str]:
    given = as_snippets(documents, "documents")
    texts = [*all_of(str, claims, "claims"), *(document.text for document in given)]
    return [text for text in texts if text.strip()]


def _relevance(claims: Sequence[str], vectors: NDArray[Any]) -> NDArray[np.float64]:
    """Score from the vectors of the query, the claims and the documents that are not blank."""
    written = np.array([bool(claim.strip()) for claim in claims], dtype=bool)
    n = 1 + int(written.sum())
    relevance = np.full(len(claims), math.nan)
    relevance[written] = claim_relevance(vectors[0], vectors[1:n], vectors[n:])
    return relevance
