"""The same real text and the same embedding model, as each framework has them."""

from __future__ import annotations

import re
from functools import cache
from zlib import crc32

import numpy as np
from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore, VectorStoreRetriever
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import TextNode

from conformal_retrievers import JudgedQuery, Snippet
from conformal_retrievers.cli.docstrings import docstring_corpus

MODEL = "all-MiniLM-L6-v2"
SIZE = 384
K = 8


@cache
def _vector(text: str) -> tuple[float, ...]:
    """Return a unit vector of the text's words, which stands in for that of the model.

    It is exact and takes microseconds, so that any test can use it. tests/scoring has the model.
    """
    vector = np.zeros(SIZE)
    vector[0] = 0.1  # of a text without words, too
    for word in re.findall(r"\w+", text.casefold()):
        rng = np.random.default_rng(crc32(word[:6].encode()))
        vector += rng.normal(size=SIZE) * min(len(word), 8) / 8
    return tuple((vector / np.linalg.norm(vector)).astype(np.float32).tolist())


def cosine(query: str, text: str) -> float:
    return float(np.dot(_vector(query), _vector(text)))


class MiniLMEmbeddings(Embeddings):
    """all-MiniLM-L6-v2 as a LangChain user has it, counting what it is asked."""

    model_name = MODEL

    def __init__(self) -> None:
        self.calls = 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.calls += 1
        return [list(_vector(text)) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        self.calls += 1
        return list(_vector(text))


class MiniLMEmbedding(BaseEmbedding):
    """all-MiniLM-L6-v2 as a LlamaIndex user has it, counting what it is asked."""

    model_name: str = MODEL
    calls: int = 0

    def _get_query_embedding(self, query: str) -> list[float]:
        self.calls += 1
        return list(_vector(query))

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        self.calls += 1
        return list(_vector(text))


@cache
def snippets() -> tuple[Snippet, ...]:
    """Return some 170 windows of the standard library's docstrings, those of 80 questions."""
    questions = docstring_corpus().questions[::8][:80]
    return tuple(dict.fromkeys(s for question in questions for s in question.snippets))


@cache
def judged() -> tuple[JudgedQuery, ...]:
    """Return the 80 questions, each judged against the whole corpus."""
    return tuple(
        JudgedQuery(q.query, snippets(), [s in q.snippets for s in snippets()], id=q.id)
        for q in docstring_corpus().questions[::8][:80]
    )


def documents() -> list[Document]:
    return [
        Document(s.text, id=s.id, metadata={"source": s.document, "nested": {"start": s.position}})
        for s in snippets()
    ]


@cache
def vector_store() -> InMemoryVectorStore:
    store = InMemoryVectorStore(MiniLMEmbeddings())
    store.add_documents(documents())
    return store


def langchain_retriever(k: int = K) -> VectorStoreRetriever:
    return vector_store().as_retriever(search_kwargs={"k": k})


class Reversed(BaseDocumentTransformer):
    """Reorders documents, without a query."""

    def transform_documents(self, documents, **kwargs):
        return [*documents][::-1]


@cache
def vector_index() -> VectorStoreIndex:
    nodes = [TextNode(text=s.text, id_=s.id) for s in snippets()]
    return VectorStoreIndex(nodes, embed_model=MiniLMEmbedding())


def halves() -> tuple[list[JudgedQuery], list[JudgedQuery]]:
    order = np.random.default_rng(7).permutation(len(judged()))
    return [judged()[i] for i in order[::2]], [judged()[i] for i in order[1::2]]


class OfNodes(LlamaIndexRetriever):
    """Asks another retriever, which it has as an attribute; its own depth is unknown."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def _retrieve(self, query_bundle):
        return self.inside.retrieve(query_bundle)
