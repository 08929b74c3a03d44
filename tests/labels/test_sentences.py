"""Labels of sentences: from an LLM that numbers them, asked over HTTP, and from answers."""

import json

import pytest
from llm_server import fields_of
from pages import NAME

from conformal_retrievers import JudgedQuery, Snippet
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.labels import AnsweredQuery, label_by_answer, label_by_llm
from conformal_retrievers.llm import Prompt, openai_llm

RAIN = "It rains. Wait six hours. Six hours it is. Bye."
FOUND = [Snippet(RAIN, id="a"), Snippet(" \n", id="b"), Snippet("No hours.", id="c")]
QUERIES = [
    AnsweredQuery("How long?", with_hits(FOUND), "six hours", id="wait", group="medical"),
    AnsweredQuery("Nothing was found.", [], "nothing", id="empty"),
]
RELEVANT = (False, True, True, False, False, False)


def numbers_of(body):
    fields = fields_of(body)
    assert list(fields) == ["query", "fact", "sentences"]
    fact = fields["fact"].lower()
    numbers = [s["number"] for s in fields["sentences"] if fact in s["text"].lower()]
    return json.dumps({"reasoning": "These do.", "sentences": numbers})


@pytest.fixture
def server(llm_server):
    llm_server.reply = numbers_of
    return llm_server


def model(server):
    return openai_llm("judge", base_url=server.url, max_retries=0)


def test_the_llm_is_asked_once_a_document_for_the_numbers_of_its_sentences(server):
    labelled = label_by_llm(QUERIES, model(server), split="sentences", concurrency=1)
    first, second = labelled.judged
    assert (first.relevant, second.relevant) == (RELEVANT, ())
    texts = ["It rains.", "Wait six hours.", "Six hours it is.", "Bye.", " \n", "No hours."]
    assert [s.text for s in first.snippets] == texts
    assert (first.split, first.id, first.group) == (NAME, "wait", "medical")
    assert first.snippets[5].hits == QUERIES[0].snippets[2].hits
    asked = [fields_of(body)["sentences"] for body in server.bodies]
    assert [[s["number"] for s in one] for one in asked] == [[1, 2, 3, 4], [1]]
    assert labelled.usage.requests == 2
    assert labelled.labels["prompt"] == Prompt.load("label_sentences").hash
    assert (labelled.labels["queries"], labelled.unlabelled) == (2, ())


def test_a_document_with_many_sentences_takes_several_calls_of_fifty(server):
    words = ["six hours" if i in (49, 50, 119) else "dull" for i in range(120)]
    text = " ".join(f"Line {i} is {word}." for i, word in enumerate(words))
    asked = [AnsweredQuery("q", [text, text], "six hours")]
    [query] = label_by_llm(asked, model(server), split="sentences").judged
    assert [i for i, r in enumerate(query.relevant) if r] == [49, 50, 119, 169, 170, 239]
    sizes = sorted(len(fields_of(body)["sentences"]) for body in server.bodies)
    assert sizes == [20, 50, 50]  # equal requests are sent once


@pytest.mark.parametrize(
    "reply",
    [
        "The second.",
        '{"reasoning": "", "sentences": [0]}',
        '{"reasoning": "", "sentences": [5]}',
        '{"reasoning": "", "sentences": ["2"]}',
        '{"reasoning": "", "sentences": [true]}',
    ],
)
def test_a_query_with_a_reply_that_cannot_be_read_is_unlabelled(server, reply):
    is_bad = lambda body: len(fields_of(body)["sentences"]) == 4  # noqa: E731
    server.reply = lambda body: reply if is_bad(body) else numbers_of(body)
    labelled = label_by_llm(QUERIES, model(server), split="sentences")
    assert [query.id for query in labelled.judged] == ["empty"]
    [(query, reasons)] = labelled.unlabelled
    assert (query, list(reasons)) == (QUERIES[0], [0])
    assert reasons[0].startswith("unreadable")


def test_no_sentence_and_repeated_numbers_are_answers(server):
    for numbers, relevant in (([], ()), ([3, 2, 2], (1, 2))):
        server.reply = lambda body, n=numbers: json.dumps({"sentences": n})
        query = AnsweredQuery("q", [RAIN], "six hours")
        [judged] = label_by_llm([query], model(server), split="sentences").judged
        assert [i for i, r in enumerate(judged.relevant) if r] == list(relevant)


# --- by the answer --------------------------------------------------------------------------------


def test_what_holds_the_answers_words_in_a_row_is_relevant():
    labelled = label_by_answer(QUERIES, split="sentences")
    assert labelled.judged[0].relevant == RELEVANT
    assert labelled.judged[0].split == NAME
    assert labelled.labels == {"source": "answer", "queries": 2, "queries_without_relevant": 1}
    whole = label_by_answer(QUERIES).judged[0]
    assert (whole.relevant, whole.split) == ((True, False, False), None)


@pytest.mark.parametrize(
    ("text", "answer", "holds"),
    [
        ("Six, hours!", "six hours", True),
        ("Six long hours", "six hours", False),
        ("hours six", "six hours", False),
        ("ÉTÉ 2020", "été", True),
        ("東京は首都", "東京", True),
        ("e\u0301te\u0301", "Été", True),
        ("हिन्दी में", "हिन्दी भाषा", False),
        ("ภาษาไทย", "ภาษา", True),
        ("กิน", "ก", False),  # a vowel above belongs to its consonant
        ("កា។", "កា", True),  # a full stop of the script is no token
        ("", "six", False),
    ],
)
def test_words_are_compared_without_case_and_punctuation(text, answer, holds):
    [judged] = label_by_answer([AnsweredQuery("q", [text], answer)]).judged
    assert judged.relevant == (holds,)


@pytest.mark.parametrize("answer", [None, "", "?!"])
def test_an_answer_without_words_is_refused(answer):
    with pytest.raises(ValueError, match="'7': answer"):
        label_by_answer([AnsweredQuery("q", ["a"], answer, id="7")])


def test_only_answered_queries_are_labelled_and_others_are_refused_before_the_llm_is_asked(server):
    judged = [JudgedQuery("q", ["a"], [True])]
    for label in (
        lambda: label_by_llm(judged, model(server)),
        lambda: label_by_llm(judged, model(server), split="sentences"),
        lambda: label_by_answer(judged),
    ):
        with pytest.raises(TypeError, match=r"queries\[0\] .*AnsweredQuery"):
            label()
    assert server.bodies == []
