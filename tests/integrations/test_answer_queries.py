"""A chain of either framework calibrates its own filter, against a real server on loopback."""

from __future__ import annotations

import re

import pytest
from frameworks import index_retriever, judged, langchain_retriever, snippets
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_openai import ChatOpenAI
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
from llama_index.core.schema import QueryBundle
from llama_index.llms.openai_like import OpenAILike
from llm_server import LLMServer

from conformal_retrievers import Snippet
from conformal_retrievers.answers import calibrate_answers, evaluate_answers
from conformal_retrievers.filtering import ConformalFilter
from langchain_conformal import ConformalRetriever
from langchain_conformal import answer_queries as langchain_queries
from llama_index.postprocessor.conformal import ConformalPostprocessor
from llama_index.postprocessor.conformal import answer_queries as llama_index_queries

QUESTIONS = [query.query for query in judged()[:60]]
NEEDED = {
    q.query: next(s.text for s, r in zip(q.snippets, q.relevant, strict=True) if r)
    for q in judged()
}


def reply(body):
    """Answer with the place of the snippet that a question needs, if the prompt has its text."""
    text = body["messages"][-1]["content"]
    question = next(question for question in NEEDED if question in text)
    words = " ".join(NEEDED[question].split())
    known = words[:60] in " ".join(re.sub(r"\\n", " ", text).split())
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


def langchain_chain(server, **settings):
    given = {"base_url": server.url, "api_key": "none", "temperature": 0, **settings}
    chat = ChatOpenAI(model="toy", **given)
    return RunnablePassthrough.assign(context=RunnableLambda(as_context)) | PROMPT | chat


def synthesizer(server, mode=ResponseMode.COMPACT, **settings):
    given = {"api_base": server.url, "api_key": "none", "context_window": 100_000, **settings}
    llm = OpenAILike(model="toy", is_chat_model=True, **given)
    return get_response_synthesizer(llm, response_mode=mode)


def in_langchain(server, questions=QUESTIONS, **settings):
    chain = langchain_chain(server, **settings)
    return langchain_queries(langchain_retriever(), questions, chain)


def in_llama_index(server, questions=QUESTIONS, **settings):
    return llama_index_queries(index_retriever(), questions, synthesizer(server, **settings))


def test_a_langchain_chain_calibrates_its_filter_on_its_answers(server, tmp_path):
    retriever, chain = langchain_retriever(), langchain_chain(server)
    queries, answer = langchain_queries(retriever, QUESTIONS, chain)
    assert [query.query for query in queries] == QUESTIONS
    assert answer.name.startswith("toy, chain=")
    assert queries[0].k == 8
    path = tmp_path / "answers.json"
    calibrate_answers(queries, answer, alpha=0.1).save(path)
    filtered = ConformalRetriever.from_calibration(path, retriever=retriever)
    whole = {"context": filtered, "question": RunnablePassthrough()} | chain | StrOutputParser()
    same = sum(
        whole.invoke(query.query) == answer(query.query, query.snippets) for query in queries
    )
    assert same >= 0.9 * len(queries)
    kept = [len(filtered.invoke(query.query)) for query in queries]
    assert sum(kept) < 0.8 * sum(len(query.snippets) for query in queries)


def test_a_llama_index_synthesizer_or_engine_calibrates_its_filter(server, tmp_path):
    retriever = index_retriever()
    one = synthesizer(server)
    queries, answer = llama_index_queries(retriever, QUESTIONS, one)
    engine = RetrieverQueryEngine(retriever, response_synthesizer=one)
    assert llama_index_queries(retriever, QUESTIONS[:1], engine).answer.name == answer.name
    path = tmp_path / "answers.json"
    calibrate_answers(queries, answer, alpha=0.1).save(path)
    filtered = ConformalPostprocessor.from_calibration(path)
    whole = RetrieverQueryEngine(
        retriever, response_synthesizer=one, node_postprocessors=[filtered]
    )
    same = sum(
        str(whole.query(query.query)) == answer(query.query, query.snippets) for query in queries
    )
    assert same >= 0.9 * len(queries)
    kept = [
        len(filtered.postprocess_nodes(retriever.retrieve(q), QueryBundle(q))) for q in QUESTIONS
    ]
    assert sum(kept) < 0.8 * sum(len(query.snippets) for query in queries)


def test_both_packages_calibrate_alike(server):
    made = in_langchain(server), in_llama_index(server)
    ours, theirs = (calibrate_answers(*of, alpha=0.1) for of in made)
    assert ours.threshold() == pytest.approx(theirs.threshold(), rel=1e-4)


def test_documents_reach_the_chain_as_they_were_retrieved():
    seen = []

    def answer(given):
        seen.append(given["context"])
        return {"answer": "yes"}

    chain = RunnableLambda(answer)
    queries, asked = langchain_queries(langchain_retriever(), QUESTIONS[:1], chain, name="c")
    assert asked(queries[0].query, queries[0].snippets[1:3]) == "yes"
    documents = langchain_retriever().invoke(QUESTIONS[0])[1:3]
    assert [(d.id, d.metadata["nested"]) for d in seen[0]] == [
        (d.id, d.metadata["nested"]) for d in documents
    ]


def test_filters_are_compared_by_what_a_chain_answers(server):
    retriever, chain = langchain_retriever(), langchain_chain(server)
    calibration = calibrate_answers(*langchain_queries(retriever, QUESTIONS, chain), alpha=0.1)
    new = [query.query for query in judged()[60:]]
    found = evaluate_answers(
        {"by answers": ConformalFilter.of(calibration)}, *langchain_queries(retriever, new, chain)
    )
    assert found["by answers"].measures["snippets"].mean() < 8
    assert found["by answers"].estimates["unchanged"].estimate > 0.6


def test_sentences_reach_the_chain_with_the_metadata_of_their_document():
    seen = []
    chain = RunnableLambda(lambda given: seen.append(given["context"]) or "yes")
    queries, answer = langchain_queries(langchain_retriever(), QUESTIONS[:1], chain, name="c")
    answer(queries[0].query, [Snippet("A sentence.", queries[0].snippets[0].id)])
    [[document]] = seen
    assert (document.page_content, document.id) == ("A sentence.", queries[0].snippets[0].id)
    assert "nested" in document.metadata
    with pytest.raises(ValueError, match="snippet 'x' was not retrieved for"):
        answer(queries[0].query, [Snippet("A sentence.", "x")])


def test_chains_that_differ_in_settings_have_other_names(server):
    def named(of, **settings):
        return of(server, QUESTIONS[:1], **settings).answer.name

    for of, others in (
        (in_langchain, [{"temperature": 1.0}, {"max_tokens": 5}]),
        (in_llama_index, [{"temperature": 1.0}, {"mode": ResponseMode.REFINE}]),
    ):
        names = [named(of), *(named(of, **other) for other in others)]
        assert len(set(names)) == 3
        assert named(of) == names[0]


def test_a_blank_reply_is_no_answer_in_either_framework(server):
    server.reply = lambda body: ""
    try:
        for of in (in_langchain, in_llama_index):
            with pytest.raises(ValueError, match="all of the first 3 questions failed"):
                calibrate_answers(*of(server, QUESTIONS[:3]), alpha=0.3)
    finally:
        server.reply = reply


def test_what_is_no_chain_is_named():
    with pytest.raises(TypeError, match="chain is 3; give a Runnable, such as prompt | chat"):
        langchain_queries(langchain_retriever(), QUESTIONS, 3)
    with pytest.raises(TypeError, match="chain is 3; give a response synthesizer or a query"):
        llama_index_queries(index_retriever(), QUESTIONS, 3)
    nameless = RunnableLambda(lambda given: "yes")
    with pytest.raises(ValueError, match="chain has no model whose name is known; give name="):
        langchain_queries(langchain_retriever(), QUESTIONS, nameless)
