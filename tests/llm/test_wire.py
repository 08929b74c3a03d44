"""What servers of LLMs tell in many words, and are asked in those of Chat Completions."""

from __future__ import annotations

import asyncio
import enum
import types

import httpx
import openai
import pytest

from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.wire import finish_of, no_reply, openai_options, reason_in


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        *[(word, "stop") for word in ("stop", "end_turn", "STOP", "eos", None, "")],
        *[
            (word, "stop")
            for word in ("FinishReason.STOP", "stop_sequence", "COMPLETE", "endTurn", 1)
        ],
        *[(word, "stop") for word in ("eos_token", "end_of_text", "completed")],
        *[(word, "stop") for word in ("finish", "finished", "done")],
        *[(word, "length") for word in ("length", "max_tokens", "MAX_TOKENS", 2)],
        *[(word, "length") for word in ("FinishReason.MAX_TOKENS", "max_output_tokens")],
        *[(word, "length") for word in ("model_context_window_exceeded", "model_length")],
        *[(word, "refusal") for word in ("content_filter", "SAFETY", "refusal")],
        *[(word, "refusal") for word in ("RECITATION", "BLOCKLIST", "ERROR_TOXIC")],
        *[(word, "refusal") for word in ("FinishReason.SPII", "content_filtered")],
        *[(word, "refusal") for word in ("guardrail_intervened", "PROHIBITED_CONTENT")],
        *[(word, "unknown") for word in ("error", "OTHER", "load", "cancelled", "tool_calls", 5)],
        ("FinishReason.FINISH_REASON_UNSPECIFIED", "unknown"),
    ],
)
def test_servers_have_many_words_for_how_a_reply_ended(reason, finish):
    assert finish_of(reason) == finish


class Ended(enum.IntEnum):  # its text is the number, as of Python 3.11
    MAX_TOKENS = 2
    SAFETY = 3


@pytest.mark.parametrize(
    ("told", "finish"),
    [
        ({"choices": [{"finish_reason": "length"}]}, "length"),
        ({"finish_reason": "length"}, "length"),
        ({"stop_reason": "max_tokens"}, "length"),
        ({"stopReason": "guardrail_intervened"}, "refusal"),
        ({"done_reason": "length", "done": True}, "length"),
        ({"candidates": [{"finish_reason": Ended.MAX_TOKENS}]}, "length"),
        ({"candidates": [{"finish_reason": Ended.SAFETY}]}, "refusal"),
        ({"candidates": [{"finishReason": "SPII"}]}, "refusal"),
        (types.SimpleNamespace(stop_reason="refusal"), "refusal"),
        (types.SimpleNamespace(candidates=[types.SimpleNamespace(finish_reason="STOP")]), "stop"),
        ({"finish_reason": None, "stop_reason": "max_tokens"}, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        *[(nothing, "stop") for nothing in ({}, None, {"choices": []}, "text", {"done": True})],
        *[(odd, "stop") for odd in ({"choices": {"0": 1}}, {"candidates": 3}, {"choices": "abc"})],
    ],
)
def test_how_a_reply_ended_is_found_wherever_servers_say_it(told, finish):
    assert finish_of(reason_in(told)) == finish


class StatusError(Exception):
    def __init__(self, status_code):
        self.status_code = status_code
        self.request = self.response = "…"


def test_what_a_later_try_may_mend_is_no_reply():
    for status, mended in ((429, True), (503, True), (408, True), (400, False), (401, False)):
        assert no_reply(StatusError(status)) == mended
    request = httpx.Request("POST", "http://a")
    for status, mended in ((429, True), (500, True), (404, False)):
        response = httpx.Response(status, request=request)
        assert no_reply(httpx.HTTPStatusError("", request=request, response=response)) == mended
    assert no_reply(httpx.ReadTimeout("", request=request))
    assert no_reply(httpx.ConnectError("no request yet"))
    assert no_reply(openai.APIConnectionError(request=request))
    assert no_reply(openai.APITimeoutError(request))
    assert no_reply(TimeoutError())
    assert no_reply(asyncio.TimeoutError())
    assert no_reply(ConnectionResetError())
    assert no_reply(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"))
    assert not no_reply(ValueError("bad"))
    assert not no_reply(KeyError("choices"))


def test_a_request_asks_in_the_words_of_chat_completions():
    assert openai_options(Request("s", "u")) == {}
    options = openai_options(Request("s", "u", {"type": "object"}, 5, 9))
    assert options == {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "reply", "strict": True, "schema": {"type": "object"}},
        },
        "logprobs": True,
        "top_logprobs": 5,
        "max_tokens": 9,
    }
