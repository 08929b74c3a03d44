"""`label_retriever`: plain questions through real retrievers, judged by an LLM over HTTP."""

from __future__ import annotations

import json
import logging

import pytest
from frameworks import K, index_retriever, judged, langchain_retriever, snippets
from langchain_core.language_models import FakeListChatModel
from llama_index.postprocessor import conformal as llama_index_conformal
from llm_server import fields_of, overlap

import langchain_conformal
from conformal_retrievers import calibrate
from conformal_retrievers.llm import Cache, openai_llm

QUESTIONS = [query.query for query in judged()[:20]]


def verdict_of(body):
    fields = fields_of(body)
    verdict = "yes" if overlap(fields["fact"], fields["snippet"]) >= 0.5 else "no"
    return json.dumps({"reasoning": "The words say so.", "verdict": verdict})


@pytest.fixture
def server(llm_server):
    llm_server.reply = verdict_of
    return llm_server


@pytest.fixture
def llm(server):
    return openai_llm("judge", base_url=server.url, max_retries=0)


EACH = pytest.mark.parametrize(
    ("package", "make"),
    [(langchain_conformal, langchain_retriever), (llama_index_conformal, index_retriever)],
    ids=["langchain", "llama-index"],
)


@EACH
def test_questions_become_judged_queries_with_hits_that_calibrate(package, make, llm, server):
    labelled = package.label_retriever(make(), QUESTIONS, llm, progress=False)
    assert len(server.bodies) == len(QUESTIONS) * K
    assert [(q.query, q.id, q.k) for q in labelled.judged] == [(q, q, K) for q in QUESTIONS]
    for query in labelled.judged:
        assert list(query.relevant) == [overlap(query.query, s.text) >= 0.5 for s in query.snippets]
        assert [s.hits[0].rank for s in query.snippets] == [*range(K)]
        assert query.missed is None  # what is not retrieved was not judged
    assert any(any(query.relevant) for query in labelled.judged)
    calibration = calibrate(labelled.judged, alpha=0.3, labels=labelled.labels)
    assert calibration.retrieval["k"] == K
    assert (calibration.labels["source"], calibration.labels["llm"]) == ("LLM", llm.name)


@EACH
def test_a_repeated_run_asks_only_for_what_it_lacks(package, make, llm, server, tmp_path):
    cache = Cache(tmp_path / "labels.db")
    retriever = make()
    first = package.label_retriever(retriever, QUESTIONS[:3], llm, cache=cache, progress=False)
    before = len(server.bodies)
    again = package.label_retriever(retriever, QUESTIONS[:4], llm, cache=cache, progress=False)
    assert again.judged[:3] == first.judged
    assert len(server.bodies) - before == K


@EACH
def test_the_number_of_calls_is_told_before_the_first_and_can_be_refused(
    package, make, llm, server, tmp_path, capsys, caplog
):
    cache = Cache(tmp_path / "labels.db")
    retriever = make()
    text = rf"6 questions with {6 * K} snippets take {6 * K} calls of .*judge.*, 0 of them"
    with pytest.raises(ValueError, match=f"most_calls is 0, but {text}"):
        package.label_retriever(retriever, QUESTIONS[:6], llm, most_calls=0)
    assert not server.bodies
    package.label_retriever(retriever, QUESTIONS[:2], llm, cache=cache, most_calls=2 * K)
    error = capsys.readouterr().err
    assert f"2 questions with {2 * K} snippets take {2 * K} calls" in error
    with pytest.raises(ValueError, match=f"most_calls is {K}.*{2 * K} of them.*allow {4 * K}"):
        package.label_retriever(retriever, QUESTIONS[:6], llm, cache=cache, most_calls=K)
    with caplog.at_level(logging.INFO, "conformal_retrievers"):
        package.label_retriever(
            retriever, QUESTIONS[:2], llm, cache=cache, most_calls=0, progress=False
        )
    assert f"{2 * K} of them in the cache" in caplog.text
    assert len(server.bodies) == 2 * K


@EACH
def test_an_unknown_option_is_named_before_anything_is_retrieved(package, make, llm):
    with pytest.raises(TypeError, match="'most_call'"):
        package.label_retriever(make(), ["?"], llm, most_call=0)
    for options in ({"nam": "mine"}, {"spilt": "sentences"}):
        with pytest.raises(TypeError, match=next(iter(options))):
            package.without_answers(make(), [], **options)


@EACH
def test_a_reference_answer_is_what_a_snippet_must_support(package, make, llm, server):
    answers = [snippets()[0].text[:60], None]
    package.label_retriever(make(), QUESTIONS[:2], llm, answers=answers, progress=False)
    facts = {(fields_of(b)["query"], fields_of(b)["fact"]) for b in server.bodies}
    assert facts == {(QUESTIONS[0], answers[0]), (QUESTIONS[1], QUESTIONS[1])}


@EACH
def test_sentences_are_labelled_with_one_call_a_snippet(package, make, llm, server):
    server.reply = lambda body: json.dumps({"reasoning": "The first.", "sentences": [1]})
    labelled = package.label_retriever(
        make(), QUESTIONS[:2], llm, split="sentences", progress=False, most_calls=2 * K
    )
    for query in labelled.judged:
        assert sum(query.relevant) == len({*query.document_of.tolist()}) == K
        assert query.k == K


@EACH
@pytest.mark.parametrize(
    ("error", "field", "questions", "options"),
    [
        (TypeError, "questions is the text", "Who?", {}),
        (TypeError, r"questions\[0\]", [judged()[0]], {}),
        (ValueError, r"questions\[1\]", ["Who?", " "], {}),
        (ValueError, r"questions\[1\] is questions\[0\]", ["Who?", "Who?"], {}),
        (ValueError, r"questions\[1\] is questions\[0\]", ["\ufeffWho?\n", "Who?\r"], {}),
        (TypeError, "cache", ["Who?"], {"cache": "labels.db"}),
        (ValueError, "answers", ["Who?"], {"answers": []}),
        (ValueError, "answers", ["Who?"], {"answers": "A"}),
        (ValueError, "answer", ["Who?"], {"answers": [" "]}),
    ],
)
def test_what_cannot_be_labelled_is_refused_before_a_call(
    package, make, llm, server, error, field, questions, options
):
    with pytest.raises(error, match=field):
        package.label_retriever(make(), questions, llm, progress=False, **options)
    assert not server.bodies


async def test_models_of_both_frameworks_are_judges(server, models):
    chat, like = models()
    one, other = (
        package.label_retriever(make(), QUESTIONS[:2], package.as_llm(model), progress=False)
        for package, make, model in (
            (langchain_conformal, langchain_retriever, chat),
            (llama_index_conformal, index_retriever, like),
        )
    )
    assert [q.relevant for q in one.judged] == [q.relevant for q in other.judged]
    with pytest.raises(TypeError, match="llm is a FakeListChatModel.*as_llm"):
        langchain_conformal.label_retriever(
            langchain_retriever(), QUESTIONS, FakeListChatModel(responses=["yes"])
        )
