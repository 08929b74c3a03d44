"""An LLM's verdict on whether snippets answer a query, through HTTP."""

import math

import numpy as np
import pytest
from llm_server import fields_of

from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.llm.openai import openai_llm
from conformal_retrievers.scoring import LLMVerdict, ascore_query, score_query
from conformal_retrievers.scoring.query_scorer import query_scores

QUERY = "Which mountain stands highest above Nepal?"  # the server rates its long words
HALF = ["It is a mountain in Nepal.", "Yeast is killed by water."]
WAYS = ["rating", "probability-of-yes"]


@pytest.fixture
def model(llm_server):
    return openai_llm("overlap", base_url=llm_server.url, max_retries=0)


async def both(scorer, snippets, query=QUERY):
    """Return the score, which must be the same synchronously and asynchronously."""
    score = score_query(scorer, query, snippets)
    np.testing.assert_equal(await ascore_query(scorer, query, snippets), score)
    return score


@pytest.mark.parametrize("by", WAYS)
async def test_the_score_is_one_minus_the_servers_verdict_in_one_call(llm_server, model, by):
    score = await both(LLMVerdict(model, by=by), HALF)
    # Two of the words which, mountain, stands, highest, above, Nepal: the server rounds 2/6 to 0.3.
    assert score == pytest.approx(0.7 if by == "rating" else 1 - 2 / 6)
    first, second = llm_server.bodies  # one for each way of asking
    assert first == second
    assert ("0.5 if" in str(first)) is (by == "rating")  # of the prompt for a rating
    numbered = [{"number": i, "text": text} for i, text in enumerate(HALF, start=1)]
    assert fields_of(first) == {"query": QUERY, "snippets": numbered}


@pytest.mark.parametrize(
    ("by", "trouble"),
    [
        *(("rating", t) for t in ("unreadable", "cut off", "refusal", "dropped", "500")),
        *(("probability-of-yes", t) for t in ("refusal", "dropped", "content filter")),
    ],
)
async def test_what_cannot_be_read_is_unknown_and_never_an_answer(llm_server, model, by, trouble):
    llm_server.trouble = lambda body, times: trouble
    assert math.isnan(await both(LLMVerdict(model, by=by), HALF))


async def test_blank_snippets_are_not_sent_and_equal_ones_once(llm_server, model):
    scorer = LLMVerdict(model)
    for nothing in ([" "], ["", "\n\u2003"]):
        assert math.isnan(await both(scorer, nothing))
    assert llm_server.bodies == []
    assert await both(scorer, ["a mountain", " ", "a mountain"]) == pytest.approx(0.8)
    assert [s["text"] for s in fields_of(llm_server.bodies[0])["snippets"]] == ["a mountain"]


def test_the_queries_of_a_calibration_are_asked_about_at_the_same_time(llm_server, model):
    llm_server.latency, llm_server.together = 0.1, 3
    words = ["above", "mountain above", "highest mountain above", "yeast", "stands above"]
    judged = [JudgedQuery(QUERY, [text], [False]) for text in words]
    together = query_scores(LLMVerdict(model, concurrency=3), judged)
    assert llm_server.busiest == 3
    assert together.tolist() == [score_query(LLMVerdict(model), QUERY, [text]) for text in words]
    assert query_scores(LLMVerdict(model), []).shape == (0,)
