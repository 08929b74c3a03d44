"""`judge_retriever` by ids, sources and evidence, with the stores that people have."""

import json
import logging
from functools import cache

import pandas as pd
import pytest
from frameworks import (
    K,
    MiniLMEmbedding,
    MiniLMEmbeddings,
    by_ids,
    each_package,
    index_retriever,
    langchain_retriever,
    snippets,
)
from frameworks import judged as all_judged
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever as LangChainRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import Document as Page
from llama_index.core import VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexRetriever
from llama_index.core.node_parser import TokenTextSplitter
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor import conformal as llama_index_conformal
from llm_server import fields_of, overlap, verdict_of

import langchain_conformal
from conformal_retrievers import JudgedQuery, calibrate, calibrate_gate
from conformal_retrievers.llm import openai_llm

QUESTIONS = all_judged()[:40]
BY_ID, BY_SOURCE = by_ids(QUESTIONS), by_ids(QUESTIONS, lambda snippet: snippet.document)
DOCUMENT_OF = {s.id: s.document for s in snippets()}


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
        nodes.append(node)
    return VectorStoreIndex(nodes, embed_model=MiniLMEmbedding()).as_retriever(similarity_top_k=K)


EACH = pytest.mark.parametrize(
    ("package", "make", "key"),
    [
        (langchain_conformal, langchain_retriever, "source"),
        (langchain_conformal, store, "source"),
        (llama_index_conformal, index, "file_name"),
        (llama_index_conformal, index_retriever, "ref_doc_id"),
    ],
    ids=["memory", "Chroma", "file_name", "ref_doc_id"],
)


@EACH
def test_ids_judge_as_the_texts_of_the_same_snippets_do(package, make, key):
    retriever = make()
    judged = package.judge_retriever(retriever, BY_ID)
    assert judged == package.judge_retriever(retriever, QUESTIONS)
    assert judged == package.judge_retriever(retriever, BY_ID, key="id")
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
        judged = package.judge_retriever(make(), BY_SOURCE, key=key)
    for query, given in zip(judged, BY_SOURCE, strict=True):
        sources = [DOCUMENT_OF[s.id] for s in query.snippets]
        assert list(query.relevant) == [source in given.relevant_ids for source in sources]
        assert query.missed is None  # nobody knows of how many chunks
    assert any(sum(query.relevant) > 1 for query in judged)
    assert calibrate(judged, alpha=0.2).retrieval["k"] == K
    with pytest.raises(ValueError, match="have no `missed`"):
        calibrate(judged, alpha=0.2, count_missed=True)


@EACH
def test_the_ids_of_another_field_are_told_with_the_key(package, make, key):
    with pytest.raises(ValueError, match=r"relevant ids .* key='(source|file_name|ref_doc_id)'"):
        package.judge_retriever(make(), BY_SOURCE)
    with pytest.raises(ValueError, match=r"key is 'sorce'"):
        package.judge_retriever(make(), BY_SOURCE, key="sorce")


@EACH
@pytest.mark.filterwarnings("ignore:.*ids name documents")
def test_answers_that_are_known_by_source_are_taken_out(package, make, key):
    retriever = make()
    retrieved = package.judge_retriever(retriever, BY_SOURCE, key=key)
    nothing = package.without_answers(retriever, BY_SOURCE, key=key)
    for query, given in zip(nothing, BY_SOURCE, strict=True):
        assert not {DOCUMENT_OF[s.id] for s in query.snippets} & {*given.relevant_ids}
        assert (len(query.snippets), query.answerable) == (K, False)
    assert calibrate_gate(retrieved, nothing, alpha=0.2).calibration.retrieval["k"] == K


# --- evidence in chunks ---------------------------------------------------------------------------


@cache
def pages():
    """Return 30 documents of four snippets each, by name."""
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
    documents = [
        Document(n.text, metadata={"source": n.ref_doc_id, "start_index": n.start_char_idx})
        for n in chunked()
    ]
    store = InMemoryVectorStore.from_documents(documents, MiniLMEmbeddings())
    return store.as_retriever(search_kwargs={"k": 4})


def chunks_in_llama_index():
    index = VectorStoreIndex(chunked(), embed_model=MiniLMEmbedding())
    return index.as_retriever(similarity_top_k=4)


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
            assert relevant == (len([i for i in shared if not pages()[query.id][i].isspace()]) >= 3)
            left -= shared
        left = {i for i in left if not pages()[query.id][i].isspace()}
        assert query.missed == (len(left) > 3)  # most of it was retrieved, or it counts as missed


# --- judged by an LLM -----------------------------------------------------------------------------

ASKED = [query.query for query in QUESTIONS[:20]]


@pytest.fixture
def llm(llm_server):
    llm_server.reply = verdict_of
    return openai_llm("judge", base_url=llm_server.url, max_retries=0)


@each_package
@pytest.mark.filterwarnings("ignore:.*near copies")  # some Pythons have such docstrings
def test_questions_become_judged_queries_with_hits_that_calibrate(package, make, llm, llm_server):
    labelled = package.label_retriever(make(), ASKED, llm, progress=False)
    assert len(llm_server.bodies) == len(ASKED) * K
    assert [(q.query, q.id, q.k) for q in labelled.judged] == [(q, q, K) for q in ASKED]
    for query in labelled.judged:
        assert list(query.relevant) == [overlap(query.query, s.text) >= 0.5 for s in query.snippets]
        assert [s.hits[0].rank for s in query.snippets] == [*range(K)]
        assert query.missed is None  # what is not retrieved was not judged
    assert any(any(query.relevant) for query in labelled.judged)
    calibration = calibrate(labelled.judged, alpha=0.3, labels=labelled.labels)
    assert calibration.retrieval["k"] == K
    assert (calibration.labels["source"], calibration.labels["llm"]) == ("LLM", llm.name)


@each_package
def test_the_number_of_calls_is_told_before_the_first_and_can_be_refused(
    package, make, llm, llm_server, cache, capsys, caplog
):
    retriever = make()
    text = rf"6 questions with {6 * K} snippets take {6 * K} calls of .*judge.*, 0 of them"
    with pytest.raises(ValueError, match=f"most_calls is 0, but {text}"):
        package.label_retriever(retriever, ASKED[:6], llm, most_calls=0)
    assert not llm_server.bodies
    package.label_retriever(retriever, ASKED[:2], llm, cache=cache, most_calls=2 * K)
    assert f"2 questions with {2 * K} snippets take {2 * K} calls" in capsys.readouterr().err
    with pytest.raises(ValueError, match=f"most_calls is {K}.*{2 * K} of them.*calls={4 * K}"):
        package.label_retriever(retriever, ASKED[:6], llm, cache=cache, most_calls=K)
    with caplog.at_level(logging.INFO, "conformal_retrievers"):
        package.label_retriever(make(), ASKED[:2], llm, cache=cache, most_calls=0, progress=False)
    assert f"{2 * K} of them in the cache" in caplog.text
    assert len(llm_server.bodies) == 2 * K


@each_package
def test_an_unknown_option_is_named_before_anything_is_retrieved(package, make, llm):
    with pytest.raises(TypeError, match="'most_call'"):
        package.label_retriever(make(), ["?"], llm, most_call=0)
    with pytest.raises(TypeError, match="spilt"):
        package.without_answers(make(), [], spilt="sentences")


@each_package
def test_a_reference_answer_is_what_a_snippet_must_support(package, make, llm, llm_server):
    answers = [snippets()[0].text[:60], None]
    package.label_retriever(make(), ASKED[:2], llm, answers=answers, progress=False)
    facts = {(fields_of(b)["query"], fields_of(b)["fact"]) for b in llm_server.bodies}
    assert facts == {(ASKED[0], answers[0]), (ASKED[1], ASKED[1])}


@each_package
def test_sentences_are_labelled_with_one_call_a_snippet(package, make, llm, llm_server):
    llm_server.reply = lambda body: json.dumps({"reasoning": "The first.", "sentences": [1]})
    for query in package.label_retriever(
        make(), ASKED[:2], llm, split="sentences", progress=False, most_calls=2 * K
    ).judged:
        assert sum(query.relevant) == len({*query.document_of.tolist()}) == K
        assert query.k == K


@each_package
@pytest.mark.parametrize(
    ("error", "field", "questions", "options"),
    [
        (TypeError, "^questions is .Who", "Who?", {}),
        (TypeError, r"questions\[0\]", [all_judged()[0]], {}),
        (ValueError, r"questions\[1\]", ["Who?", " "], {}),
        (ValueError, r"questions\[1\] repeats questions\[0\]", ["\ufeffWho?\n", "Who?\r"], {}),
        (TypeError, "cache", ["Who?"], {"cache": "labels.db"}),
        (ValueError, "answers", ["Who?"], {"answers": []}),
        (ValueError, "answers", ["Who?"], {"answers": "A"}),
        (ValueError, "answer", ["Who?"], {"answers": [" "]}),
    ],
)
def test_what_cannot_be_labelled_is_refused_before_a_call(
    package, make, llm, llm_server, error, field, questions, options
):
    with pytest.raises(error, match=field):
        package.label_retriever(make(), questions, llm, progress=False, **options)
    assert not llm_server.bodies


class More(LangChainRetriever):
    k: int = 2

    def _get_relevant_documents(self, query, *, run_manager):
        return [Document(text) for text in "abc"]


class MoreNodes(LlamaIndexRetriever):
    similarity_top_k = 2

    def _retrieve(self, query):
        return [NodeWithScore(node=TextNode(text=text)) for text in "abc"]


@pytest.mark.parametrize(
    ("package", "make"), [(langchain_conformal, More), (llama_index_conformal, MoreNodes)]
)
def test_a_retriever_that_returns_more_than_it_is_asked_for_is_asked_for_so_many(package, make):
    [judged] = package.judge_retriever(make(), ["q"])
    assert (judged.k, len(judged.snippets)) == (3, 3)


def test_a_retriever_of_the_other_framework_or_in_the_wrong_place_is_named():
    with pytest.raises(TypeError, match="retriever and judged are swapped"):
        langchain_conformal.judge_retriever([], langchain_retriever())
    with pytest.raises(TypeError, match="retriever and judged are swapped"):
        llama_index_conformal.judge_retriever([], index_retriever())
    with pytest.raises(TypeError, match="give a list of questions, or of judged queries"):
        langchain_conformal.judge_retriever(langchain_retriever(), JudgedQuery("q", [], []))
    table = pd.DataFrame({"question": ["How?"]})
    for refuses in (
        lambda: langchain_conformal.judge_retriever(langchain_retriever(), table),
        lambda: llama_index_conformal.judge_retriever(index_retriever(), table),
        lambda: calibrate(table, alpha=0.1),
    ):
        with pytest.raises(TypeError, match=r"judged is a table; give read\(table\)"):
            refuses()
    with pytest.raises(TypeError, match=r"import from llama_index\.postprocessor\.conformal"):
        langchain_conformal.judge_retriever(index_retriever(), [])
    with pytest.raises(TypeError, match="import from langchain_conformal"):
        llama_index_conformal.judge_retriever(langchain_retriever(), [])
