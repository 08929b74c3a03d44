"""Relevance of claims: higher = likelier factual, NaN = cannot be scored.

`ClaimRelevance` is algorithm 1 of Feng et al. 2025 (Conformal-RAG, arXiv 2506.20978), from the
documents that the answer was written from:

    R(c) = max(0, max_j cos(query, d_j) · cos(c, d_j))

`SelfConfidence` and `Agreement` ask an LLM and need no documents: the scores of Mohri and Hashimoto
2024 (arXiv 2402.10978, section 5), which the paper calls Conformal-LLM.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.cache import Cache
from conformal_retrievers.claim_llm import check_fields, reply_fields, reply_schema
from conformal_retrievers.judged import Snippet
from conformal_retrievers.llm import LLM, Prompt, Reply, Request, Unanswered, aask, ask
from conformal_retrievers.scoring.embedding import EmbeddingScorer

# --- by the documents -----------------------------------------------------------------------------


def claim_relevance(
    query: ArrayLike, claims: ArrayLike, documents: ArrayLike
) -> NDArray[np.float64]:
    """Return max(0, max_j cos(query, d_j) · cos(claim, d_j)) of each claim, (p,).

    The vectors are query (d,), claims (p, d) and documents (m, d); without documents it is 0. As
    printed, two negative cosines make a positive product; documents that were retrieved for the
    query have none. A document without a direction (zero or not finite) supports nothing; a claim
    or query without one cannot be scored: NaN. Algorithm 1 of arXiv 2506.20978.
    """
    q, c = np.asarray(query, dtype=np.float64), np.asarray(claims, dtype=np.float64)
    d = np.asarray(documents, dtype=np.float64)
    d = d if d.size else d.reshape(0, len(q))
    with np.errstate(invalid="ignore"):
        # Each product is divided by |q| |d_j|² |c|: by |d_j|² before the maximum over j, by the
        # rest, which is the same for all j, after it. Of a document without a direction they are
        # NaN, which the maximum passes over.
        products = c @ d.T
        products *= d @ q / np.einsum("ij,ij->i", d, d)
        lengths = np.sqrt(np.einsum("ij,ij->i", c, c) * (q @ q))
        relevance = np.fmax.reduce(products, axis=1, initial=0.0) / lengths
    return np.asarray(relevance)


@dataclass(frozen=True)
class ClaimRelevance:
    """Scores claims by `claim_relevance` of the embeddings of query, claims and documents.

    `embedding` says how texts are embedded: `EmbeddingScorer(embed, name="…")`, or what
    `embedding_scorer` of either framework's package returns. A blank claim cannot be scored; a
    blank document supports nothing. Raises ValueError where vectors do not fit the texts.
    """

    embedding: EmbeddingScorer

    @property
    def name(self) -> str:
        """The algorithm and the embedding's own name."""
        return f"claim_relevance({self.embedding.name})"

    def relevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet]
    ) -> NDArray[np.float64]:
        """Return the relevance of each claim, (p,)."""
        e, texts = self.embedding, _texts(claims, documents)
        if e.embed_query is None:
            return self._relevance(claims, e.embed([query, *texts]))
        vectors: Any = e.embed(texts) if texts else []
        return self._relevance(claims, [e.embed_query(query), *vectors])

    async def arelevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet]
    ) -> NDArray[np.float64]:
        """Return what `relevance` returns, without blocking the event loop."""
        e, texts = self.embedding, _texts(claims, documents)
        if e.aembed is None or (e.embed_query is not None and e.aembed_query is None):
            return await asyncio.to_thread(self.relevance, query, claims, documents)
        if e.aembed_query is None:
            return self._relevance(claims, await e.aembed([query, *texts]))
        vectors: Any = await e.aembed(texts) if texts else []
        return self._relevance(claims, [await e.aembed_query(query), *vectors])

    def _relevance(self, claims: Sequence[str], embeddings: Any) -> NDArray[np.float64]:
        """Score from the vectors of the query, of the claims that are not blank, of documents."""
        vectors = np.asarray(embeddings, dtype=np.float64)
        told = np.array([bool(claim.strip()) for claim in claims], dtype=bool)
        n = 1 + int(told.sum())
        if vectors.ndim != 2 or len(vectors) < n:
            raise ValueError(
                f"embedder {self.embedding.name!r} returned vectors of shape {vectors.shape} for "
                f"the query, {n - 1} claims and the documents; it must return one for each text"
            )
        relevance = np.full(len(claims), math.nan)
        relevance[told] = claim_relevance(vectors[0], vectors[1:n], vectors[n:])
        return relevance


def _texts(claims: Sequence[str], documents: Sequence[Snippet]) -> list[str]:
    texts = [*claims, *(document.text for document in documents)]
    return [text for text in texts if text.strip()]


# --- by an LLM alone ------------------------------------------------------------------------------


@dataclass(frozen=True)
class SelfConfidence:
    """Scores claims by the probability, from 0 to 1, that an LLM gives to each being true.

    All claims of an answer are asked about in one call. `prompt` has the fields $query and $claims,
    a list of {"id", "claim"}; it is prompts/confidence.txt by default. A claim of which the reply
    says nothing, twice something or no number from 0 to 1 cannot be scored. Raises ValueError for a
    prompt with other fields.
    """

    llm: LLM
    prompt: Prompt = field(default_factory=lambda: Prompt.load("confidence"))
    cache: Cache | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_fields(self.prompt, "query", "claims")

    @property
    def name(self) -> str:
        """Model, and prompt by its hash."""
        return f"self_confidence({self.llm.name}, prompt={self.prompt.hash})"

    def relevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet]
    ) -> NDArray[np.float64]:
        """Return the confidence in each claim, (p,)."""
        return self._read(ask(self.llm, self._requests(query, claims), cache=self.cache), claims)

    async def arelevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet]
    ) -> NDArray[np.float64]:
        """Return what `relevance` returns, without blocking the event loop."""
        requests = self._requests(query, claims)
        return self._read(await aask(self.llm, requests, cache=self.cache), claims)

    def _requests(self, query: str, claims: Sequence[str]) -> list[Request]:
        values = {"query": query, "claims": _numbered(claims)}
        return [self.prompt.request(values, schema=_schema("confidence"))] if claims else []

    def _read(
        self, answers: list[Reply | Unanswered], claims: Sequence[str]
    ) -> NDArray[np.float64]:
        confidence = [_of_each(answer, "confidence", len(claims), 0, 1) for answer in answers]
        return np.array(confidence[0] if confidence else [], dtype=np.float64)


@dataclass(frozen=True)
class Agreement:
    """Scores claims by how other answers to the query agree: the mean of 1, 0 and −1 over them.

    `alternatives` gives other answers of the generator, drawn anew (at a temperature above 0);
    `drawn` names how, and belongs to the score's name. An LLM tells of each of them which claims it
    supports, contradicts or leaves open, at most `concurrency` calls at a time. `prompt` has the
    fields $query, $text and $claims; it is prompts/agreement.txt by default. The mean is over the
    answers that were told of; a claim of which none was told cannot be scored. Raises ValueError
    for a prompt with other fields. Mohri and Hashimoto's frequency score.
    """

    llm: LLM
    alternatives: Callable[[str], Iterable[str]]
    drawn: str
    prompt: Prompt = field(default_factory=lambda: Prompt.load("agreement"))
    concurrency: int = field(default=8, kw_only=True)
    cache: Cache | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_fields(self.prompt, "query", "text", "claims")

    @property
    def name(self) -> str:
        """Model, prompt by its hash, and how the other answers are drawn."""
        return f"agreement({self.llm.name}, prompt={self.prompt.hash}, drawn={self.drawn})"

    def relevance(
        self, query: str, claims: Sequence[str], documents: Sequence[Snippet]
    ) -> NDArray[np.float64]:
        """Return the mean agreement with each claim, (p,), from −1 to 1."""
        requests = [
            self.prompt.request(
                {"query": query, "text": text, "claims": _numbered(claims)},
                schema=_schema("agreement"),
            )
            for text in self.alternatives(query)
        ]
        answers = ask(self.llm, requests, concurrency=self.concurrency, cache=self.cache)
        told = np.array([_of_each(a, "agreement", len(claims), -1, 1) for a in answers])
        told = told.reshape(len(answers), len(claims))
        known = ~np.isnan(told)
        return np.where(
            known.any(axis=0),
            np.where(known, told, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1),
            math.nan,
        )


def _numbered(claims: Sequence[str]) -> list[dict[str, object]]:
    return [{"id": i, "claim": claim} for i, claim in enumerate(claims, start=1)]


def _schema(name: str) -> dict[str, Any]:
    one = reply_schema({"id": {"type": "integer"}, name: {"type": "number"}})
    return reply_schema({"claims": {"type": "array", "items": one}})


def _of_each(answer: Reply | Unanswered, name: str, n: int, low: int, high: int) -> list[float]:
    """Return the numbers of the claims 1 to n; none where the reply speaks of any other."""
    entries = reply_fields(answer)[0].get("claims")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return [math.nan] * n
    by_id: dict[str, list[float]] = {str(i): [] for i in range(1, n + 1)}
    for entry in entries:
        if str(entry.get("id")) not in by_id:  # counted from 0, perhaps: then all are another's
            return [math.nan] * n
        number = entry.get(name)
        readable = isinstance(number, (int, float)) and not isinstance(number, bool)
        told = float(number) if readable and low <= number <= high else math.nan
        by_id[str(entry["id"])].append(told)
    return [told[0] if len(told) == 1 else math.nan for told in by_id.values()]
