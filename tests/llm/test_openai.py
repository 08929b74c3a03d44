"""The OpenAI-compatible client, against a real server on loopback that misbehaves on demand."""

from __future__ import annotations

import asyncio
import gc
import socket
import time

import openai
import pytest

from conformal_retrievers.llm.ask import aask, ask
from conformal_retrievers.llm.openai import openai_llm
from conformal_retrievers.llm.prompt import Prompt, Request
from conformal_retrievers.llm.reply import Reply, Unanswered

QUERY = "What is the highest mountain?"
EVEREST = "Mount Everest is the highest mountain on Earth."
REQUEST = Prompt.load("rating").request(
    {"query": QUERY, "snippet": EVEREST}, schema={"type": "object"}
)
YES_NO = Prompt.load("yes_no").request(
    {"query": QUERY, "snippet": EVEREST}, top_logprobs=5, max_tokens=1
)


@pytest.fixture
def model(llm_server):
    return openai_llm("m", base_url=llm_server.url, max_retries=2)


async def both(llm, request=REQUEST):
    """Return the answer, which must be the same synchronously and asynchronously."""
    (answer,), (other,) = ask(llm, [request]), await aask(llm, [request])
    assert str(answer) == str(other)
    return answer


async def test_the_server_receives_messages_temperature_and_schema(llm_server, model):
    reply = await both(model)
    assert (
        llm_server.bodies
        == [
            {
                "model": "m",
                "messages": [
                    {"role": "system", "content": REQUEST.system},
                    {"role": "user", "content": REQUEST.user},
                ],
                "temperature": 0,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "reply", "strict": True, "schema": {"type": "object"}},
                },
            }
        ]
        * 2
    )
    assert '"rating": 0.7' in reply.text
    assert reply.finish == "stop"
    sent = len(REQUEST.system) + len(REQUEST.user)
    assert (reply.prompt_tokens, reply.completion_tokens) == (sent, len(reply.text))


async def test_log_probabilities_of_the_first_token_are_returned(llm_server, model):
    reply = await both(model, YES_NO)
    assert set(reply.first_token) == {"YES", "NO", "Well"}
    assert max(reply.first_token.values()) < 0
    assert llm_server.bodies[0]["logprobs"] is True
    assert llm_server.bodies[0]["top_logprobs"] == 5
    assert llm_server.bodies[0]["max_tokens"] == 1
    assert "response_format" not in llm_server.bodies[0]


@pytest.mark.parametrize("trouble", ["429", "500"])
async def test_a_busy_or_failing_server_is_asked_again(llm_server, model, trouble):
    llm_server.trouble = lambda body, times: trouble if times in (1, 2, 4, 5) else None
    assert isinstance(await both(model), Reply)
    assert len(llm_server.bodies) == 6
    retries = [headers["x-stainless-retry-count"] for headers in llm_server.headers]
    assert retries == ["0", "1", "2"] * 2


async def test_a_retry_waits_as_long_as_the_server_asks(llm_server, model):
    llm_server.trouble = lambda body, times: "429 later" if times in (1, 3) else None
    began = time.monotonic()
    assert isinstance(await both(model), Reply)
    # Two waits of 0.7 s; the client's own first backoff is at most 0.5 s.
    assert time.monotonic() - began >= 1.4


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        ("429 for good", "RateLimitError"),
        ("500", "InternalServerError"),
        ("malformed", "JSONDecodeError"),
        ("not json", "not a Chat Completion"),
        ("no choices", "not a Chat Completion"),
    ],
)
async def test_a_request_without_a_completion_after_the_retries_is_unanswered(
    llm_server, model, trouble, error
):
    llm_server.trouble = lambda body, times: trouble
    answer = await both(model)
    assert isinstance(answer, Unanswered)
    assert error in str(answer)


def with_choice(**parts):
    """Return what changes these parts of a completion's first choice."""
    return lambda body: {**body, "choices": [{**body["choices"][0], **parts}]}


def with_content(content):
    return with_choice(message={"role": "assistant", "content": content})


@pytest.mark.parametrize(
    "wire",
    {
        "no choices": lambda completion: {"choices": None},
        "a choice without message": lambda completion: {"choices": [{"index": 0}]},
        "no message": with_choice(message=None),
        "content as a list": with_content([{"type": "text", "text": "{}"}]),
        "content as a dict": with_content({"rating": 0.5}),
        "an error": lambda completion: {"error": {"message": "overloaded", "code": 503}},
        "a text": lambda completion: '"overloaded"',
        "no UTF-8": lambda completion: b'{"choices": [{"message": {"content": "\xff"}}]}',
        "too deep": lambda completion: "[" * 100_000,
        "a number of too many digits": lambda completion: "9" * 10_000,
    }.items(),
    ids=lambda case: case[0],
)
async def test_a_malformed_completion_leaves_only_its_own_request_unanswered(
    llm_server, model, wire
):
    other = Request("Rate.", REQUEST.user.replace("Everest", "Blanc"), REQUEST.schema)
    whole = ask(model, [REQUEST])
    for answers in (ask, aask):
        odd = iter([True, False])  # whichever comes first
        llm_server.wire = lambda body, odd=odd: wire[1](body) if next(odd) else body
        asked = answers(model, [other, REQUEST], concurrency=1)
        unanswered, reply = asked if answers is ask else await asked
        assert isinstance(unanswered, Unanswered)
        assert reply == whole[0]


@pytest.mark.parametrize(
    "usage",
    [
        {},
        None,
        {"prompt_tokens": None, "completion_tokens": None, "total_tokens": 3},
        {"prompt_tokens": "7", "completion_tokens": -1},
    ],
    ids=str,
)
async def test_tokens_without_a_valid_count_are_0(llm_server, model, usage):
    llm_server.wire = lambda body: {**body, "usage": usage}
    reply = await both(model)
    assert (reply.finish, reply.prompt_tokens, reply.completion_tokens) == ("stop", 0, 0)
    assert reply.text


YES = {"token": "YES", "logprob": -0.1}


def listed(*tops):
    return {"content": [{**YES, "top_logprobs": list(tops)}]}


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        "none",
        {"content": []},
        {"content": [None]},
        {"content": {"0": YES}},
        {"content": [{**YES, "top_logprobs": {"YES": -0.1}}]},
        {"tokens": ["YES"], "token_logprobs": [-0.1], "top_logprobs": [{"YES": -0.1}]},
        *(listed(YES, {"token": "NO", "logprob": p}) for p in (None, "-2", True, -(10**400))),
        listed(YES, {"token": None, "logprob": -2.0}),
    ],
    ids=lambda logprobs: f"{logprobs!s:.90}",
)
async def test_invalid_log_probabilities_are_none(llm_server, model, logprobs):
    llm_server.wire = with_choice(logprobs=logprobs)
    reply = await both(model, YES_NO)
    assert reply.first_token is None
    assert reply.text in ("YES", "NO")


async def test_log_probabilities_may_be_integers(llm_server, model):
    llm_server.wire = with_choice(logprobs=listed(YES, {"token": "NO", "logprob": -9999}))
    assert (await both(model, YES_NO)).first_token == {"YES": -0.1, "NO": -9999.0}


@pytest.mark.parametrize("trouble", ["slow", "dropped"])
async def test_a_timeout_and_a_broken_connection_leave_the_request_unanswered(llm_server, trouble):
    llm_server.trouble = lambda body, times: trouble
    llm = openai_llm("m", base_url=llm_server.url, max_retries=0, timeout=0.3)
    answer = await both(llm)
    assert isinstance(answer, Unanswered)
    assert "API" in str(answer)
    assert len(llm_server.bodies) == 2


async def test_a_missing_server_leaves_the_request_unanswered():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answer = await both(openai_llm("m", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0))
    assert isinstance(answer, Unanswered)
    assert "APIConnectionError" in str(answer)


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        ("400", openai.BadRequestError),
        ("401", openai.AuthenticationError),
        ("404", openai.NotFoundError),
    ],
)
async def test_an_error_that_a_retry_cannot_help_is_raised(llm_server, model, trouble, error):
    llm_server.trouble = lambda body, times: trouble
    with pytest.raises(error, match=f"error {trouble}"):
        ask(model, [REQUEST])
    with pytest.raises(error, match=f"error {trouble}"):
        await aask(model, [REQUEST])
    assert len(llm_server.bodies) == 2


@pytest.mark.parametrize(
    ("trouble", "finish"),
    [
        ("refusal", "refusal"),
        ("filtered", "refusal"),
        ("content filter", "refusal"),
        ("cut off", "length"),
        ("chatty", "stop"),
    ],
)
async def test_a_reply_has_the_reason_why_it_ended(llm_server, model, trouble, finish):
    llm_server.trouble = lambda body, times: trouble
    assert (await both(model)).finish == finish


def test_one_model_serves_several_event_loops_and_closes_its_connections(llm_server, model):
    async def ask_twice():
        answers = await aask(model, [REQUEST] * 4)
        answers += await aask(model, [YES_NO] * 4)
        return answers, asyncio.all_tasks() - {asyncio.current_task()}

    for _ in range(3):
        answers, tasks = asyncio.run(ask_twice())
        assert all(isinstance(answer, Reply) for answer in answers)
        assert tasks == set()
    gc.collect()  # an unclosed connection would warn here, which is an error


def test_a_model_that_is_dropped_closes_its_connections(llm_server):
    dropped = openai_llm("m", base_url=llm_server.url)
    ask(dropped, [REQUEST])
    [client] = [
        cell.cell_contents
        for cell in dropped.complete.__closure__
        if isinstance(cell.cell_contents, openai.OpenAI)
    ]
    assert not client.is_closed()
    del dropped
    gc.collect()
    assert client.is_closed()


def test_models_that_are_made_and_dropped_share_their_connections(llm_server):
    async def ask_with_new_models():
        for _ in range(2):
            llm = openai_llm("m", base_url=llm_server.url)
            await aask(llm, [REQUEST])
            del llm
            gc.collect()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(ask_with_new_models())
    gc.collect()
    assert len({headers["from"] for headers in llm_server.headers}) == 1


async def test_cancelling_leaves_no_task_behind(llm_server, model):
    llm_server.latency = 30
    task = asyncio.create_task(aask(model, [REQUEST] * 8, concurrency=4))
    while len(llm_server.bodies) < 4:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert len(llm_server.bodies) == 4


async def test_fields_go_into_the_body_and_none_leaves_one_out(llm_server):
    fields = {"temperature": None, "seed": 7, "chat_template_kwargs": {"enable_thinking": False}}
    llm = openai_llm("m", base_url=llm_server.url, fields=fields)
    await both(llm)
    assert set(llm_server.bodies[0]) == {
        *("model", "messages", "response_format", "seed", "chat_template_kwargs")
    }
    assert llm_server.bodies[0]["chat_template_kwargs"] == {"enable_thinking": False}


def test_the_name_has_model_and_fields_but_not_the_server():
    one = openai_llm("m", base_url="http://a/v1")
    assert one.name == openai_llm("m", base_url="http://b/v1").name == "m"
    assert openai_llm("m", base_url="http://a/v1", fields={"seed": 7}).name == 'm {"seed": 7}'
    assert openai_llm("m", base_url="http://a/v1", fields={"seed": 7}, name="mine").name == "mine"


async def test_the_key_for_openai_is_not_sent_to_another_server(llm_server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    await both(openai_llm("m", base_url=llm_server.url))
    await both(openai_llm("m", base_url=llm_server.url, api_key="theirs"))
    keys = [headers["authorization"] for headers in llm_server.headers]
    assert keys == ["Bearer none"] * 2 + ["Bearer theirs"] * 2


def test_openai_itself_needs_a_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(openai.OpenAIError, match="OPENAI_API_KEY"):
        openai_llm("gpt-4o")
