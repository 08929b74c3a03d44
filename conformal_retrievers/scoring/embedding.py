"""Cosine distance of embeddings: score = 1 − cos(emb(query), emb(snippet)), from 0 to 2.

A_emb of Chakraborty et al. 2025 (arXiv 2511.17908, section 3.3).
"""

import asyncio
import math
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.data.queries import Snippet, as_numbers, as_snippets
from conformal_retrievers.scoring.scorer import Scores
from conformal_retrievers.scoring.wording import say

BLOCK = 128  # vectors in one product, which a processor's cache holds


@dataclass(frozen=True)
class EmbeddingScorer:
    """Scores by cosine distance between the embeddings of query and snippet.

    A blank text, and a vector that is zero or not finite, is unscorable: NaN. Raises ValueError
    unless there is one vector for each text, all of the same length.

    >>> vectors = {"query": [3, 4], "same": [6, 8], "across": [4, -3]}
    >>> scorer = EmbeddingScorer(lambda texts: [vectors[text] for text in texts], name="toy")
    >>> scorer.score("query", ["same", "across", " "])
    array([ 0.,  1., nan])

    Parameters
    ----------
    embed
        Turns n texts into vectors (n, d), as `SentenceTransformer.encode` does.
    name
        The name of the model, which is its identity.
    embed_query
        Embeds the query; without it, query and snippets go to `embed` as one batch.
    aembed, aembed_query
        Asynchronous twins of both; without them, `ascore` uses a thread.
    reuse_embeddings
        Use `Snippet.embedding` if a snippet has one. Set it only if the same model made them.
    """

    embed: Callable[[list[str]], ArrayLike]
    name: str
    embed_query: Callable[[str], ArrayLike] | None = None
    aembed: Callable[[list[str]], Awaitable[ArrayLike]] | None = None
    aembed_query: Callable[[str], Awaitable[ArrayLike]] | None = None
    reuse_embeddings: bool = False

    def score(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Return 1 − cosine for each snippet, (n,)."""
        sources, texts = self._sources(snippets)
        return self._distances(sources, self._embedded(query, texts))

    async def ascore(self, query: str, snippets: Sequence[Snippet | str]) -> Scores:
        """Asynchronous twin of `score`."""
        sources, texts = self._sources(snippets)
        return self._distances(sources, await self._aembedded(query, texts))

    def vectors(self, query: str, texts: list[str]) -> NDArray[Any]:
        """Return the embeddings of a query and n texts, (1 + n, d), in the model's precision."""
        return self._matrix(self._embedded(query, texts))

    async def avectors(self, query: str, texts: list[str]) -> NDArray[Any]:
        """Asynchronous twin of `vectors`."""
        return self._matrix(await self._aembedded(query, texts))

    def _embedded(self, query: str, texts: list[str]) -> Any:
        """Ask the model for the embeddings of a query and n texts: an array or a list of 1 + n."""
        if self.embed_query is None:
            return self._counted(self.embed([query, *texts]), texts)
        vectors: Any = self.embed(texts) if texts else []
        return self._counted([self.embed_query(query), *vectors], texts)

    async def _aembedded(self, query: str, texts: list[str]) -> Any:
        """Asynchronous twin of `_embedded`."""
        if self.aembed is None:
            return await asyncio.to_thread(self._embedded, query, texts)
        if self.embed_query is None:
            return self._counted(await self.aembed([query, *texts]), texts)
        vectors: Any = await self.aembed(texts) if texts else []
        if self.aembed_query is None:
            query_vector = await asyncio.to_thread(self.embed_query, query)
        else:
            query_vector = await self.aembed_query(query)
        return self._counted([query_vector, *vectors], texts)

    def _counted(self, embeddings: Any, texts: list[str]) -> Any:
        if not isinstance(embeddings, list):
            embeddings = np.atleast_1d(as_numbers(embeddings, f"vectors of {self.name!r}"))
        if len(embeddings) != 1 + len(texts):
            raise ValueError(say("vectors", name=self.name, n=len(embeddings), of=len(texts)))
        return embeddings

    def _sources(self, snippets: Sequence[Any]) -> tuple[list[Any], list[str]]:
        """Return each snippet's text or own vector, or None if it is blank; and the m texts."""
        given = as_snippets(snippets)
        sources: list[Any] = [text if text.strip() else None for text in given.texts]
        if self.reuse_embeddings:
            own = zip(given.embeddings, sources, strict=True)
            sources = [source if vector is None else vector for vector, source in own]
        return sources, [source for source in sources if isinstance(source, str)]

    def _distances(self, sources: list[Any], embedded: Any) -> Scores:
        """Return the scores (n,) from the embeddings (1 + m) of the query and m texts."""
        if len(embedded) <= len(sources):  # some are blank, or have a vector of their own
            none = np.zeros_like(as_numbers(embedded[0], f"vectors of {self.name!r}"))
            made = iter(embedded[1:])
            vectors = [
                none if source is None else next(made) if isinstance(source, str) else source
                for source in sources
            ]
            embedded = [embedded[0], *vectors]
        distances = np.empty(len(embedded))
        query_vector, width = np.empty(0), None
        for start in range(0, len(embedded), BLOCK):
            block = self._matrix(embedded[start : start + BLOCK], width, np.float64)
            if start == 0:
                query_vector, width = block[0], block.shape[1]
            distances[start : start + BLOCK] = cosine_distances(query_vector, block)
        return distances[1:]

    def _matrix(self, vectors: Any, width: int | None = None, dtype: Any = None) -> NDArray[Any]:
        """Return n vectors as (n, d); raise ValueError unless they are numbers, d in each."""
        wrong = "vectors that are not lists of numbers of one length"
        invalid = f"embedder {self.name!r} returned {wrong}"
        try:
            lists = {*map(type, vectors)} == {list}
            numbers = _packed(vectors) if lists else as_numbers(vectors, "they")
            matrix = np.ascontiguousarray(numbers, dtype)
        except (TypeError, ValueError, OverflowError, struct.error) as error:
            raise ValueError(f"{invalid}: {error}") from error
        if matrix.ndim != 2 or width not in (None, matrix.shape[1]):
            raise ValueError(f"{invalid}: they have shape {matrix.shape}")
        return matrix


def _packed(vectors: list[list[float]]) -> NDArray[np.float64]:
    """Return lists of floats as an array (n, d), in a third of the time that numpy takes."""
    pack = struct.Struct(f"{len(vectors[0])}d").pack
    return np.frombuffer(b"".join([pack(*vector) for vector in vectors])).reshape(len(vectors), -1)


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
