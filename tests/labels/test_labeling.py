"""Labels of snippets and of sentences: from an LLM, asked over HTTP, and from answers."""

import json

import pytest
from llm_server import fields_of, verdict_of
from pages import NAME

from conformal_retrievers import JudgedQuery, Snippet
from conformal_retrievers.data.queries import with_hits
from conformal_retrievers.labels import AnsweredQuery, label_by_answer, label_by_llm
from conformal_retrievers.llm import Prompt, openai_llm

WAIT = ["Wait six hours, no less.", "Everest is high.", "After six hours take one."]
QUERIES = [
    AnsweredQuery("How long to wait?", WAIT, "six hours", id="wait", group="medical"),
    AnsweredQuery("yeast eats sugar", ["Because yeast eats sugar.", "Bread is baked."], id="yeast"),
    AnsweredQuery("Nothing was found for this.", [], "nothing", id="empty"),
]


def numbers_of(body):
    fields = fields_of(body)
    assert list(fields) == ["query", "fact", "sentences"]
    fact = fields["fact"].lower()
    numbers = [s["number"] for s in fields["sentences"] if fact in s["text"].lower()]
    return json.dumps({"reasoning": "These do.", "sentences": numbers})


@pytest.fixture
def server(llm_server):
    llm_server.reply = lambda body: (
        numbers_of(body) if "sentences" in fields_of(body) else verdict_of(body)
    )
    return llm_server


def model(server):
    return openai_llm("judge", base_url=server.url, max_retries=0)


def test_a_snippet_is_relevant_if_the_llm_says_yes(server):
    labelled = label_by_llm(QUERIES, model(server), concurrency=1)
    assert [query.relevant for query in labelled.judged] == [(True, False, True), (True, False), ()]
    first = labelled.judged[0]
    assert (first.snippets, first.id, first.group) == (QUERIES[0].snippets, "wait", "medical")
    assert labelled.unlabelled == ()
    assert (labelled.usage.requests, labelled.usage.unanswered) == (5, 0)
    assert list(fields_of(server.bodies[0])) == ["query", "fact", "snippet"]
    facts = [(fields_of(body)["query"], fields_of(body)["fact"]) for body in server.bodies]
    assert facts == [("How long to wait?", "six hours")] * 3 + [("yeast eats sugar",) * 2] * 2
    labels = {"source": "LLM", "llm": "judge", "prompt": Prompt.load("label").hash}
    assert labelled.labels == labels | {"queries": 3, "queries_without_verdict": 0}


def test_blank_snippets_are_irrelevant_and_equal_ones_are_asked_about_once(server):
    given = ["six hours", " \n", "six hours", "", "Everest"]
    labelled = label_by_llm([AnsweredQuery("q", given, "six hours")], model(server))
    assert labelled.judged[0].relevant == (True, False, True, False, False)
    assert sorted(fields_of(body)["snippet"] for body in server.bodies) == ["Everest", "six hours"]
    assert labelled.usage.requests == 2


@pytest.mark.parametrize("split", [None, "sentences"])
@pytest.mark.parametrize("query", [AnsweredQuery("q", ["s"], " \n"), AnsweredQuery(" ", ["s"])])
def test_a_blank_fact_is_refused_before_the_llm_is_asked(server, query, split):
    with pytest.raises(ValueError, match="query 'q': answer|query ' ': query"):
        label_by_llm([*QUERIES, query], model(server), split=split)
    assert server.bodies == []


@pytest.mark.parametrize(
    ("trouble", "reply", "reason"),
    [
        (None, "I would say yes.", "unreadable: 'I would say yes.'"),
        (None, '{"reasoning": "", "verdict": true}', "unreadable"),
        (None, '{"verdict": "no", "verdict": "yes"}', "unreadable"),
        ("refusal", "", "refused"),
        ("cut off", "{}", "cut off"),
        ("500", "", "unanswered: InternalServerError"),
        ("dropped", "", "unanswered"),
    ],
)
def test_a_query_with_a_snippet_without_a_verdict_is_unlabelled_until_it_has_one(
    server, cache, trouble, reply, reason
):
    def is_bad(body):
        return "one" in fields_of(body)["snippet"] and fields_of(body)["fact"] == "six hours"

    server.trouble = lambda body, times: trouble if is_bad(body) else None
    server.reply = lambda body: reply if is_bad(body) else verdict_of(body)
    labelled = label_by_llm(QUERIES, model(server), cache=cache)
    assert [query.id for query in labelled.judged] == ["yeast", "empty"]
    [(query, reasons)] = labelled.unlabelled
    assert query == QUERIES[0]
    assert list(reasons) == [2]
    assert reasons[2].startswith(reason)
    assert labelled.labels["queries_without_verdict"] == 1
    server.reset()
    server.reply = verdict_of
    again = label_by_llm(QUERIES, model(server), cache=cache)
    assert again.unlabelled == ()
    assert (len(server.bodies), again.usage.cached) == (1, 4)


def test_a_prompt_of_your_own_is_in_the_labels(server):
    prompt = Prompt("Judge.", "$query $fact $snippet")
    server.reply = lambda body: '{"verdict": "no"}'
    assert label_by_llm(QUERIES, model(server), prompt=prompt).labels["prompt"] == prompt.hash
    with pytest.raises(ValueError, match="values"):
        label_by_llm(QUERIES, model(server), prompt=Prompt("Judge.", "$query"))


# --- sentences, which the LLM numbers -------------------------------------------------------------

RAIN = "It rains. Wait six hours. Six hours it is. Bye."
FOUND = [Snippet(RAIN, id="a"), Snippet(" \n", id="b"), Snippet("No hours.", id="c")]
DOCUMENTS = [
    AnsweredQuery("How long?", with_hits(FOUND), "six hours", id="wait", group="medical"),
    AnsweredQuery("Nothing was found.", [], "nothing", id="empty"),
]
OF_SENTENCES = (False, True, True, False, False, False)


def test_the_llm_is_asked_once_a_document_for_the_numbers_of_its_sentences(server):
    labelled = label_by_llm(DOCUMENTS, model(server), split="sentences", concurrency=1)
    first, second = labelled.judged
    assert (first.relevant, second.relevant) == (OF_SENTENCES, ())
    texts = ["It rains.", "Wait six hours.", "Six hours it is.", "Bye.", " \n", "No hours."]
    assert [s.text for s in first.snippets] == texts
    assert (first.split, first.id, first.group) == (NAME, "wait", "medical")
    assert first.snippets[5].hits == DOCUMENTS[0].snippets[2].hits
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
    labelled = label_by_llm(DOCUMENTS, model(server), split="sentences")
    assert [query.id for query in labelled.judged] == ["empty"]
    [(query, reasons)] = labelled.unlabelled
    assert (query, list(reasons)) == (DOCUMENTS[0], [0])
    assert reasons[0].startswith("unreadable")


def test_no_sentence_and_repeated_numbers_are_answers(server):
    for numbers, relevant in (([], ()), ([3, 2, 2], (1, 2))):
        server.reply = lambda body, n=numbers: json.dumps({"sentences": n})
        query = AnsweredQuery("q", [RAIN], "six hours")
        [judged] = label_by_llm([query], model(server), split="sentences").judged
        assert [i for i, r in enumerate(judged.relevant) if r] == list(relevant)


# --- by the answer --------------------------------------------------------------------------------


def test_what_holds_the_answers_words_in_a_row_is_relevant():
    labelled = label_by_answer(DOCUMENTS, split="sentences")
    assert labelled.judged[0].relevant == OF_SENTENCES
    assert labelled.judged[0].split == NAME
    assert labelled.labels == {"source": "answer", "queries": 2, "queries_without_relevant": 1}
    whole = label_by_answer(DOCUMENTS).judged[0]
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
        ("កាប។", "កា", True),  # a full stop of the script is no token
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
