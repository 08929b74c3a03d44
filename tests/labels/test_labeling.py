"""Labels from an LLM, asked over HTTP."""

import json

import pytest
from llm_server import fields_of

from conformal_retrievers.labels import AnsweredQuery, label_by_llm
from conformal_retrievers.llm import Cache, Prompt, openai_llm

WAIT = ["Wait six hours, no less.", "Everest is high.", "After six hours take one."]
QUERIES = [
    AnsweredQuery("How long to wait?", WAIT, "six hours", id="wait", group="medical"),
    AnsweredQuery("yeast eats sugar", ["Because yeast eats sugar.", "Bread is baked."], id="yeast"),
    AnsweredQuery("Nothing was found for this.", [], "nothing", id="empty"),
]


def verdict_of(body):
    fields = fields_of(body)
    assert list(fields) == ["query", "fact", "snippet"]
    verdict = "yes" if fields["fact"] in fields["snippet"] else "no"
    return json.dumps({"reasoning": "It may say yes or no.", "verdict": verdict})


@pytest.fixture
def server(llm_server):
    llm_server.reply = verdict_of
    return llm_server


def model(server, **options):
    return openai_llm("judge", base_url=server.url, max_retries=0, **options)


def test_a_snippet_is_relevant_if_the_llm_says_yes(server):
    labelled = label_by_llm(QUERIES, model(server), concurrency=1)
    assert [query.relevant for query in labelled.judged] == [(True, False, True), (True, False), ()]
    first = labelled.judged[0]
    assert (first.snippets, first.id, first.group) == (QUERIES[0].snippets, "wait", "medical")
    assert labelled.unlabelled == ()
    assert (labelled.usage.requests, labelled.usage.unanswered) == (5, 0)
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
    server, tmp_path, trouble, reply, reason
):
    def is_bad(body):
        return "one" in fields_of(body)["snippet"] and fields_of(body)["fact"] == "six hours"

    server.trouble = lambda body, times: trouble if is_bad(body) else None
    server.reply = lambda body: reply if is_bad(body) else verdict_of(body)
    cache = Cache(tmp_path / "cache.sqlite")
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
