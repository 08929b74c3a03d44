"""A chain of either framework calibrates its own filter, against a real server on loopback."""

import re
from dataclasses import replace
from itertools import compress

import numpy as np
import pytest
from frameworks import index_retriever, judged, langchain_retriever, snippets
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.globals import set_llm_cache
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_openai import ChatOpenAI
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.llms.openai_like import OpenAILike
from llm_server import LLMServer

from conformal_retrievers import ConformalFilter, Snippet
from conformal_retrievers.answers import calibrate_answers, evaluate_answers
from langchain_conformal import ConformalRetriever, HybridRetriever
from langchain_conformal import answer_queries as langchain_queries
from llama_index.postprocessor.conformal import ConformalPostprocessor
from llama_index.postprocessor.conformal import answer_queries as llama_index_queries

QUESTIONS = [query.query for query in judged()[:20]]
NEEDED = {q.query: next(compress(q.snippets, q.relevant)).text for q in judged()}


def reply(body):
    """Answer with the place of the snippet that a question needs, if the prompt has its text."""
    text = body["messages"][-1]["content"]
    question = next(question for question in NEEDED if question in text)
    known = " ".join(NEEDED[question].split())[:60] in " ".join(re.sub(r"\\n", " ", text).split())
    return f"number {[s.text for s in snippets()].index(NEEDED[question])}" if known else "unknown"


@pytest.fixture(scope="module")
def server():
    server = LLMServer(reply=reply)
    server.start()
    yield server
    server.stop()


PROMPT = ChatPromptTemplate.from_template("Answer {question} by {context}")


def as_context(given):
    return "\n\n".join(document.page_content for document in given["context"])


def langchain_chain(server):
    chat = ChatOpenAI(model="toy", base_url=server.url, api_key="none", temperature=0)
    return RunnablePassthrough.assign(context=RunnableLambda(as_context)) | PROMPT | chat


def synthesizer(server):
    given = {"api_base": server.url, "api_key": "none", "context_window": 100_000}
    return get_response_synthesizer(OpenAILike(model="toy", is_chat_model=True, **given))


def in_langchain(server, questions=QUESTIONS):
    chain = langchain_chain(server)
    return langchain_queries(langchain_retriever(), questions, chain, name="toy, 1")


def in_llama_index(server, questions=QUESTIONS):
    return llama_index_queries(index_retriever(), questions, synthesizer(server), name="toy, 1")


def langchain_whole(server, path):
    filtered = ConformalRetriever.from_calibration(path, retriever=langchain_retriever())
    whole = {"context": filtered, "question": RunnablePassthrough()} | langchain_chain(server)
    return lambda question: (whole.invoke(question).text, filtered.invoke(question))


def llama_index_whole(server, path):
    keep = ConformalPostprocessor.from_calibration(path)
    options = {"response_synthesizer": synthesizer(server), "node_postprocessors": [keep]}
    engine = RetrieverQueryEngine(index_retriever(), **options)

    def ask(question):
        response = engine.query(question)
        return str(response), response.source_nodes

    return ask


@pytest.fixture(scope="module")
def calibrations(server):
    return {of: calibrate_answers(*of(server), alpha=0.1) for of in (in_langchain, in_llama_index)}


@pytest.mark.parametrize(
    ("of", "whole"), [(in_langchain, langchain_whole), (in_llama_index, llama_index_whole)]
)
def test_a_chain_calibrates_its_filter_on_its_answers(of, whole, server, calibrations, tmp_path):
    queries, answer = of(server)
    assert [query.query for query in queries] == QUESTIONS
    assert (answer.name, queries[0].k) == ("toy, 1", 8)
    calibrations[of].save(tmp_path / "answers.json")
    ask = whole(server, tmp_path / "answers.json")
    same = n_kept = 0
    for query in queries:
        text, kept = ask(query.query)
        same, n_kept = same + (text == answer(query.query, query.snippets)), n_kept + len(kept)
    assert same >= 0.9 * len(queries)
    assert n_kept < 0.8 * sum(len(query.snippets) for query in queries)


def test_both_packages_need_the_same_of_each_question(calibrations):
    ours, theirs = (np.array([q.scores.max() for q in c.queries]) for c in calibrations.values())
    asked = np.isfinite(ours)  # LlamaIndex answers "Empty Response" from nothing, and asks no model
    assert asked.sum() > 9
    np.testing.assert_allclose(ours[asked], theirs[asked], rtol=1e-4)


def test_documents_and_sentences_reach_the_chain_with_the_metadata_that_were_retrieved():
    seen = []
    chain = RunnableLambda(lambda given: seen.append(given["context"]) or {"answer": "yes"})
    queries, asked = langchain_queries(langchain_retriever(), QUESTIONS[:1], chain, name="c")
    (query,), documents = queries, langchain_retriever().invoke(QUESTIONS[0])
    assert asked(query.query, query.snippets[1:3]) == "yes"
    assert seen.pop() == documents[1:3]
    asked(query.query, [replace(query.snippets[0], text="A sentence.")])
    [[document]] = seen
    assert (document.page_content, document.id) == ("A sentence.", documents[0].id)
    assert document.metadata["nested"] == documents[0].metadata["nested"]
    with pytest.raises(ValueError, match="snippet 'x' was not retrieved for"):
        asked(query.query, [Snippet("A sentence.", "x")])


def test_a_sentence_of_a_document_without_an_id_reaches_the_chain_with_its_metadata():
    documents = [Document(f"{i} is it.", metadata={"source": f"page {i}"}) for i in range(3)]
    chain = RunnableLambda(lambda given: f"{given['context'][0].metadata}")
    found = RunnableLambda(lambda query: documents)
    (query,), asked = langchain_queries(found, ["Which?"], chain, name="c")
    assert asked("Which?", [replace(query.snippets[1], text="It.")]) == "{'source': 'page 1'}"


def test_a_chain_is_given_what_a_filter_without_a_prefix_returns():
    retriever, seen = HybridRetriever({"dense": langchain_retriever()}), []
    chain = RunnableLambda(lambda given: seen.append(given["context"]) or "x")
    set_llm_cache(InMemoryCache())
    with pytest.warns(UserWarning, match="contradicts itself; set_llm_cache"):
        queries, asked = langchain_queries(retriever, QUESTIONS[:1], chain, name="c")
    set_llm_cache(None)
    keep = ConformalFilter.of(calibrate_answers(queries, asked, alpha=0.1))  # drops nothing yet
    served = ConformalRetriever(retriever=retriever, filter=keep, metadata_prefix=None)
    assert served.invoke(QUESTIONS[0]) == seen[0] != retriever.invoke(QUESTIONS[0])


def test_filters_are_compared_by_what_a_chain_answers(server, calibrations):
    new = in_langchain(server, [query.query for query in judged()[60:]])
    found = evaluate_answers({"by answers": ConformalFilter.of(calibrations[in_langchain])}, *new)
    assert found.measures["by answers"]["snippets"].mean() < 8
    assert found.estimates["by answers"]["unchanged"].estimate > 0.6


@pytest.mark.parametrize("of", [in_langchain, in_llama_index])
def test_a_blank_reply_is_no_answer_in_either_framework(of, server, monkeypatch):
    monkeypatch.setattr(server, "reply", lambda body: "")
    with pytest.raises(ValueError, match="all of the first 3 questions failed"):
        calibrate_answers(*of(server, QUESTIONS[:3]), alpha=0.3)


def test_what_is_no_chain_is_named():
    for chain in (3, str.upper):
        with pytest.raises(TypeError, match=r"give a Runnable, such as prompt"):
            langchain_queries(langchain_retriever(), QUESTIONS, chain, name="c")
    with pytest.raises(TypeError, match="chain is 3; give a response synthesizer or a query"):
        llama_index_queries(index_retriever(), QUESTIONS, 3, name="c")


def test_a_chain_that_does_not_take_what_it_is_given_is_told_what_that_is(caplog):
    def calibrated(function):
        chain = RunnableLambda(function)
        asked = langchain_queries(langchain_retriever(), QUESTIONS[:8], chain, name="c")
        return calibrate_answers(*asked, alpha=0.5)

    with pytest.raises(ValueError, match="no attribute 'upper'; the chain is given {'question': "):
        calibrated(lambda text: text.upper())

    def needs_context(answered):
        return lambda given: "x" if given["question"] in answered or given["context"][0] else ""

    calibrated(needs_context(QUESTIONS[:6]))
    assert "asked with 0 snippets: the chain must accept an empty context" in caplog.text
    with pytest.raises(ValueError, match="^3 questions failed: .* must accept an empty context"):
        calibrated(needs_context(QUESTIONS[:5]))
    with pytest.raises(ValueError, match=r"failed: OSError\(\)$"):  # as of a server that is down
        calibrated(lambda given: "a" if given["context"] else (_ for _ in ()).throw(OSError()))
