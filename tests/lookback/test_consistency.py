"""Labels of answer consistency, asked over HTTP."""

import json

import pytest
from llm_server import fields_of

from conformal_retrievers.llm import Prompt, openai_llm
from conformal_retrievers.lookback import Response, label_consistency

RESPONSES = [
    Response("How long to wait?", ("Wait six hours.", "Bread rises."), "six hours"),
    Response("How long to wait?", ("Wait six hours.",), "five hours"),
    Response("Why?", (), "because"),
]


def verdict_of_body(body):
    fields = fields_of(body)
    assert list(fields) == ["query", "context", "answer"]
    said = any(fields["answer"] in snippet for snippet in fields["context"])
    return json.dumps({"reasoning": "It may say yes or no.", "verdict": "yes" if said else "no"})


@pytest.fixture
def llm(llm_server):
    llm_server.reply = verdict_of_body
    return openai_llm("judge", base_url=llm_server.url, max_retries=0)


def test_an_answer_is_consistent_if_the_llm_says_yes(llm, llm_server):
    llm_server.reply = lambda body: (
        "I think so." if fields_of(body)["answer"] == "five hours" else verdict_of_body(body)
    )
    labelled = label_consistency(RESPONSES, llm, concurrency=1)
    assert labelled.consistent == (True, None, False)
    assert labelled.reasons == {1: "unreadable: 'I think so.'"}
    assert labelled.usage.requests == 3
    assert fields_of(llm_server.bodies[0])["context"] == ["Wait six hours.", "Bread rises."]
    of_llm = {"source": "LLM", "llm": llm.name, "prompt": Prompt.load("consistency").hash}
    assert labelled.labels == {**of_llm, "answers": 3, "answers_without_verdict": 1}


def test_snippets_are_a_tuple_of_texts_and_query_and_answer_are_texts():
    for given, name in (
        (("Why?", "y", "z"), "snippets"),
        (("Why?", ("y",), None), "answer is None"),
    ):
        with pytest.raises(TypeError, match=name):
            Response(*given)
