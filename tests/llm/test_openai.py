"""The OpenAI-compatible client, against a real server on loopback that misbehaves on demand."""

import asyncio
import os
import subprocess
import sys

import pytest
from openai import APIConnectionError

from conformal_retrievers.llm import Prompt, Reply, Unanswered, openai_llm
from conformal_retrievers.llm.ask import aask, ask

QUERY = "What is the highest mountain?"
EVEREST = "Mount Everest is the highest mountain on Earth."
FIELDS = {"query": QUERY, "snippet": EVEREST}
REQUEST = Prompt.load("rating").request(FIELDS, schema={"type": "object"})
YES_NO = Prompt.load("yes_no").request(FIELDS, top_logprobs=5, max_tokens=1)


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
    sent = {
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
    assert llm_server.bodies == [sent] * 2
    assert '"rating": 0.7' in reply.text
    assert reply.finish == "stop"
    characters = len(REQUEST.system) + len(REQUEST.user)
    assert (reply.prompt_tokens, reply.completion_tokens) == (characters, len(reply.text))


async def test_log_probabilities_of_the_first_token_are_returned(llm_server, model):
    reply = await both(model, YES_NO)
    assert set(reply.first_token) == {"YES", "NO", "Well"}
    assert max(reply.first_token.values()) < 0
    assert set(llm_server.bodies[0]) == {
        *("model", "messages", "temperature", "logprobs", "top_logprobs", "max_tokens")
    }


@pytest.mark.parametrize("trouble", ["429", "500"])
async def test_a_busy_or_failing_server_is_asked_again(llm_server, model, trouble):
    llm_server.trouble = lambda body, times: trouble if times in (1, 2, 4, 5) else None
    assert isinstance(await both(model), Reply)
    assert len(llm_server.bodies) == 6
    retries = [headers["x-stainless-retry-count"] for headers in llm_server.headers]
    assert retries == ["0", "1", "2"] * 2


def with_choice(**parts):
    """Return what changes these parts of a completion's first choice."""
    return lambda body: {**body, "choices": [{**body["choices"][0], **parts}]}


@pytest.mark.parametrize(
    "wire",
    [
        lambda completion: {"choices": None},
        lambda completion: {"choices": [{"index": 0}]},
        with_choice(message={"content": [{"type": "text", "text": "{}"}]}),
        lambda completion: {"error": {"message": "overloaded", "code": 503}},
        lambda completion: b'{"choices": [{"message": {"content": "\xff"}}]}',
        lambda completion: "[" * 100_000,
    ],
)
async def test_a_malformed_completion_leaves_its_request_unanswered(llm_server, model, wire):
    llm_server.wire = wire
    assert isinstance(await both(model), Unanswered)


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        "none",
        {"content": [{"top_logprobs": {"YES": -0.1}}]},
        {"content": [{"top_logprobs": [{"token": "NO", "logprob": None}]}]},
        {"content": [{"top_logprobs": [{"token": "NO", "logprob": -(10**400)}]}]},
        {"content": [{"top_logprobs": [{"token": None, "logprob": -2}]}]},
        {"tokens": ["YES"], "token_logprobs": [-0.1], "top_logprobs": [{"YES": -0.1}]},
    ],
    ids=lambda logprobs: f"{logprobs!s:.90}",
)
@pytest.mark.parametrize("usage", [None, {"prompt_tokens": "7", "completion_tokens": -1}])
async def test_invalid_log_probabilities_and_counts_are_none(llm_server, model, logprobs, usage):
    llm_server.wire = lambda body: {**with_choice(logprobs=logprobs)(body), "usage": usage}
    reply = await both(model, YES_NO)
    assert (reply.first_token, reply.prompt_tokens, reply.completion_tokens) == (None, 0, 0)
    assert reply.text in ("YES", "NO")


@pytest.mark.parametrize("trouble", ["slow", "drips"])
async def test_a_try_ends_at_its_timeout(llm_server, trouble):
    llm_server.trouble = lambda body, times: trouble
    llm = openai_llm("m", base_url=llm_server.url, max_retries=0, timeout=1)
    assert "APITimeoutError" in str(await both(llm))


def test_an_address_without_a_server_is_named():
    llm = openai_llm("m", base_url="http://me:secret@127.0.0.1:1/v1?key=secret", max_retries=0)
    with pytest.raises(APIConnectionError, match=r"address is http://127\.0\.0\.1:1/v1$"):
        ask(llm, [REQUEST])


def test_event_loops_share_the_connections_of_a_model(llm_server, model):
    for _ in range(2):
        asyncio.run(aask(model, [REQUEST]))
    ask(model, [REQUEST])
    assert len({headers["from"] for headers in llm_server.headers}) == 1


FORK = """
import os, sys
from conformal_retrievers.llm import Prompt, openai_llm

request = Prompt.load("rating").request({"query": "q", "snippet": "s"})
llm = openai_llm("m", base_url=sys.argv[1])
llm.complete(request)
if os.fork() == 0:
    llm.complete(request)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_has_connections_of_its_own_and_leaves_nothing_open(llm_server):
    command = [sys.executable, "-W", "error", "-c", FORK, llm_server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    assert len({headers["from"] for headers in llm_server.headers}) == 2


BUSY_FORK = """
import itertools, os, signal, sys, threading, time
from conformal_retrievers.llm import Cache, Prompt, openai_llm
from conformal_retrievers.llm.ask import ask

prompt = Prompt.load("rating")
llm, cache = openai_llm("m", base_url=sys.argv[1]), Cache(sys.argv[2])
places = itertools.count()

def work():
    fields = [{"query": "q", "snippet": str(next(places))} for _ in range(8)]
    assert all(reply.text for reply in ask(llm, [*map(prompt.request, fields)], cache=cache))

def always():
    while True:
        work()

work()  # imports what it needs: Python hangs if a thread imports while another forks
for _ in range(2):
    threading.Thread(target=always, daemon=True).start()
for i in range(10):
    time.sleep(0.1)
    if os.fork() == 0:
        signal.alarm(100)  # it hangs
        work()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 7, i
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_asks_while_threads_of_its_parent_ask(llm_server, tmp_path):
    llm_server.latency = 0.02
    command = [sys.executable, "-Wignore", "-c", BUSY_FORK, llm_server.url, str(tmp_path / "c.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")


async def test_fields_go_into_the_body_and_the_name_and_none_leaves_one_out(llm_server):
    fields = {"temperature": None, "seed": 7}
    llm = openai_llm("m", base_url=llm_server.url, fields=fields)
    await both(llm)
    assert set(llm_server.bodies[0]) == {"model", "messages", "response_format", "seed"}
    assert llm.name == 'm {"seed": 7, "temperature": null}'
    assert openai_llm("m", base_url="http://a/v1").name == "m"
    assert openai_llm("m", base_url="http://a/v1", fields=fields, name="mine").name == "mine"


async def test_the_key_for_openai_is_not_sent_to_another_server(llm_server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    await both(openai_llm("m", base_url=llm_server.url))
    await both(openai_llm("m", base_url=llm_server.url, api_key="theirs"))
    keys = [headers["authorization"] for headers in llm_server.headers]
    assert keys == ["Bearer none"] * 2 + ["Bearer theirs"] * 2


def test_a_missing_key_is_an_error_that_says_where_to_give_one(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_ADMIN_KEY", raising=False)
    with pytest.raises(ValueError, match="api_key is missing; give it, OPENAI_API_KEY"):
        openai_llm("m")
