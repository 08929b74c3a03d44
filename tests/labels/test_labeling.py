"""Labels from an LLM, asked over HTTP, and from a reference answer with its documents."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm_server import fields_of
from rouge_score.rouge_scorer import RougeScorer

from conformal_retrievers import Snippet
from conformal_retrievers.labels import AnsweredQuery, label_by_llm, label_by_source, rouge_l
from conformal_retrievers.llm.cache import Cache
from conformal_retrievers.llm.openai import openai_llm
from conformal_retrievers.llm.prompt import Prompt

# --- by an LLM ------------------------------------------------------------------------------------

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


# --- by source and reference answer ---------------------------------------------------------------


def chunk(text: str, document: str) -> Snippet:
    return Snippet(text, document=document)


# ROUGE-L against the answer: 1, 2/3, 0 from the right documents; 0, 2/3, 2/5, 0 from wrong ones.
FIRST = [*(chunk(text, "right") for text in ("a b", "b", "x")), chunk("x", "wrong")]
OTHER = [chunk("c", "w"), chunk("d a b", "w"), chunk("y", "v")]
SOURCED = [
    AnsweredQuery("q", FIRST, "a b", documents=["right", "also right"], id="1"),
    AnsweredQuery("p", OTHER, "c d", documents=["r"]),
]


@pytest.mark.parametrize(
    ("beta", "threshold", "relevant"),
    [
        (0, None, (True, True, True, False)),
        (1 / 3, 0.0, (True, True, True, False)),
        (0.5, 0.2, (True, True, False, False)),  # halfway from 0 to 2/5
        (1, 2 / 3, (True, True, False, False)),
    ],
)
def test_snippets_of_the_right_document_close_to_the_answer_are_relevant(beta, threshold, relevant):
    labelled = label_by_source(SOURCED, beta=beta)
    assert [query.relevant for query in labelled.judged] == [relevant, (False,) * 3]
    assert labelled.labels["beta"] == beta
    assert labelled.labels.get("rouge_l_threshold") == (threshold and pytest.approx(threshold))
    assert labelled.judged[0].snippets == SOURCED[0].snippets


@pytest.mark.parametrize(
    ("query", "beta", "match"),
    [
        (AnsweredQuery("n", [chunk("", "d"), "x"], documents=["d"]), 0, r"'n': snippets\[1\]"),
        (AnsweredQuery("n", [], "a", id="7"), 0, "query '7': documents"),
        (AnsweredQuery("n", [chunk("a", "d")], "?!", documents=["e"]), 0.5, "answer"),
        (AnsweredQuery("n", [chunk("a", "d")], "a", documents=["d"]), 0.5, "beta"),
        (SOURCED[0], 90, "beta"),
        (SOURCED[0], float("nan"), "beta"),
    ],
)
def test_missing_sources_and_an_invalid_beta_are_named(query, beta, match):
    with pytest.raises(ValueError, match=match):
        label_by_source([query], beta=beta)
    with pytest.raises(TypeError, match="documents"):
        AnsweredQuery("q", [], documents="d")


ASCII = st.text(st.sampled_from("ab cAB0_.-\n'\t9")) | st.text(st.characters(codec="ascii"))


@given(ASCII, ASCII)
def test_rouge_l_of_ascii_is_that_of_rouge_score(text, reference):
    theirs = RougeScorer(["rougeL"]).score(reference, text)["rougeL"].fmeasure
    assert rouge_l(text, reference) == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        ("Der Löwe schläft", "Löwe: schläft!", 4 / 5),
        ("e\u0301te\u0301", "Été", 1),
        ("हिन्दी में", "हिन्दी भाषा", 1 / 2),
        ("東京は2020年", "東京2020", 6 / 8),
        ("ภาษาไทย", "ภาษาลาว", 2 * 4 / 14),
        ("กิน", "กน", 1 / 2),  # a vowel above belongs to its consonant
        ("កា។", "កា", 1),  # a full stop of the script is no token
    ],
)
def test_rouge_l_counts_the_words_of_any_script(text, reference, expected):
    assert rouge_l(text, reference) == pytest.approx(expected, abs=1e-12)
