"""The same real text and the same embedding model, as each framework has them."""

import re
from dataclasses import replace
from functools import cache
from itertools import compress
from types import SimpleNamespace
from zlib import crc32

import numpy as np
import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline
from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore, VectorStoreRetriever
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.postprocessor import conformal as llama_index_conformal
from lookup import QueryFunction

import langchain_conformal
from conformal_retrievers import Calibration, ConformalFilter, Gate, calibrate_gate
from conformal_retrievers.cli.docstrings import docstring_corpus
from conformal_retrievers.data import Evidence, JudgedQuery, ScoredQuery, Snippet
from conformal_retrievers.data.sentences import splitter
from conformal_retrievers.scoring.bm25 import BM25Scorer

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
        return self.embed_documents([text])[0]


class MiniLMEmbedding(BaseEmbedding):
    """all-MiniLM-L6-v2 as a LlamaIndex user has it, counting what it is asked."""

    model_name: str = MODEL
    calls: int = 0

    def _get_text_embedding(self, text: str) -> list[float]:
        self.calls += 1
        return list(_vector(text))

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)


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


def retriever_of(texts, k: int) -> VectorStoreRetriever:
    """Return a retriever of these texts, which are their own ids."""
    store = InMemoryVectorStore.from_texts(texts, MiniLMEmbeddings(), ids=texts)
    return store.as_retriever(search_kwargs={"k": k})


def langchain_retriever(k: int = K) -> VectorStoreRetriever:
    return vector_store().as_retriever(search_kwargs={"k": k})


def compressing(retriever, *compressors):
    """Return a retriever whose documents go through compressors, one after the other."""
    first, *others = compressors
    compressor = DocumentCompressorPipeline(transformers=[first, *others]) if others else first
    return ContextualCompressionRetriever(base_compressor=compressor, base_retriever=retriever)


class Reversed(BaseDocumentTransformer):
    """Reorders documents, without a query."""

    def transform_documents(self, documents, **kwargs):
        return [*documents][::-1]


class BM25(BaseRetriever):
    """A search for words in LangChain."""

    search: BM25Scorer
    documents: list[Document]
    k: int = K

    def _get_relevant_documents(self, query, *, run_manager):
        best = np.argsort(-self.search.similarities(query), kind="stable")[: self.k]
        return [self.documents[i] for i in best]


@cache
def vector_index() -> VectorStoreIndex:
    nodes = []
    for s in snippets():
        source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=s.document)}  # as in LangChain
        nodes.append(TextNode(text=s.text, id_=s.id, relationships=source))
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


def index_retriever(k: int = K) -> LlamaIndexRetriever:
    return vector_index().as_retriever(similarity_top_k=k)


each_package = pytest.mark.parametrize(
    ("package", "make"),
    [(langchain_conformal, langchain_retriever), (llama_index_conformal, index_retriever)],
    ids=["langchain", "llama-index"],
)


def by_ids(queries, of=lambda snippet: snippet.id):
    """Return queries with something of their relevant snippets, such as ids, as relevant ids."""
    return [
        JudgedQuery.from_ids(q.query, [*map(of, compress(q.snippets, q.relevant))], id=q.id)
        for q in queries
    ]


def with_evidence(queries):
    """Return queries with the first sentence of each relevant snippet as evidence."""
    return [
        replace(
            query,
            evidence=tuple(
                Evidence(s.id, *splitter("sentences")(s.text)[0])
                for s in compress(query.snippets, query.relevant)
            ),
        )
        for query in queries
    ]


# --- filters, and the components that they are in -------------------------------------------------


def calibration_at(scorer, threshold=0.5, *, alpha=0.5, n=1, **fields) -> Calibration:
    """Return a calibration of a scorer with that threshold."""
    queries = [ScoredQuery([threshold], [True], **fields)] * n
    return Calibration.from_scores(queries, alpha=alpha, scorer=scorer.name)


def filter_at(scorer, threshold=0.5, **options) -> ConformalFilter:
    return ConformalFilter(scorer, calibration_at(scorer, threshold), **options)


def query_gate(score) -> Gate:
    """Return a gate by a score of the query's text, calibrated on the queries 0.1 to 0.9."""
    queries = [JudgedQuery(f"{i / 10}", ["near", "far"], [True, False]) for i in range(1, 10)]
    scorer = QueryFunction(lambda query, texts: score(query), "query")
    return calibrate_gate(queries, scorer=scorer, alpha=0.2)


class InCompressor:
    """Makes a component, and asks it about texts, as one does in its framework."""

    package, embeddings, argument = langchain_conformal, MiniLMEmbeddings, "embeddings"
    component = langchain_conformal.ConformalCompressor

    def given(self, texts):
        """Return the texts, of which a dict has the ids, as they are retrieved."""
        ids = texts if isinstance(texts, dict) else {text: text for text in texts}
        return [Document(text, id=id, metadata={"own": 1}) for id, text in ids.items()]

    def retriever(self, found):
        """Return a retriever of what a function of the query returns."""
        return RunnableLambda(found)

    def made(self, texts, **fields):
        return self.component(**fields)

    def opened(self, texts, calibration, **options):
        return self.component.from_calibration(calibration, **options)

    def ask(self, made, texts, query="q", callbacks=None):
        return made.compress_documents(self.given(texts), query, callbacks)

    async def aask(self, made, texts, query="q", callbacks=None):
        return await made.acompress_documents(self.given(texts), query, callbacks)

    async def kept(self, made, texts, query="q"):
        """Return the texts that are kept, which are the same asynchronously."""
        found = texts_of(self.ask(made, texts, query))
        assert texts_of(await self.aask(made, texts, query)) == found
        return found


class InRetriever(InCompressor):
    component = langchain_conformal.ConformalRetriever

    def made(self, texts, **fields):
        fields["retriever"] = self.retriever(lambda query: self.given(texts))
        return self.component(**fields)

    def opened(self, texts, calibration, **options):
        options["retriever"] = self.retriever(lambda query: self.given(texts))
        return self.component.from_calibration(calibration, **options)

    def ask(self, made, texts, query="q", callbacks=None):
        return made.invoke(query, {"callbacks": callbacks})

    async def aask(self, made, texts, query="q", callbacks=None):
        return await made.ainvoke(query, {"callbacks": callbacks})


class InPostprocessor(InCompressor):
    package, embeddings, argument = llama_index_conformal, MiniLMEmbedding, "embed_model"
    component = llama_index_conformal.ConformalPostprocessor

    def given(self, texts):
        documents = super().given(texts)
        inside = [TextNode(text=d.page_content, id_=d.id, metadata=d.metadata) for d in documents]
        return [NodeWithScore(node=node, score=0.5) for node in inside]

    def retriever(self, found):
        return OfNodes(SimpleNamespace(retrieve=found))

    def ask(self, made, texts, query="q", callbacks=None):
        return made.postprocess_nodes(self.given(texts), query_str=query)

    async def aask(self, made, texts, query="q", callbacks=None):
        return await made.apostprocess_nodes(self.given(texts), query_str=query)


COMPONENTS = [InCompressor(), InRetriever(), InPostprocessor()]
each_component = pytest.mark.parametrize("of", COMPONENTS, ids=lambda of: type(of).__name__)
each_framework = pytest.mark.parametrize("of", COMPONENTS[::2], ids=["langchain", "llama-index"])


def texts_of(kept) -> list[str]:
    return [d.page_content if isinstance(d, Document) else d.node.get_content() for d in kept]


def ids_of(kept) -> list[str]:
    return [d.id if isinstance(d, Document) else d.node_id for d in kept]
