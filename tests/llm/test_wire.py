"""The wire formats of LLM servers, and the names of frameworks' models."""

import enum
import json
import urllib.error
from types import SimpleNamespace

import httpx
import openai
import pydantic
import pytest

from conformal_retrievers.llm import Reply, Unanswered, wire

WORDS = {
    "stop": "stop end_turn STOP eos FinishReason.STOP stop_sequence COMPLETE endTurn eos_token "
    "end_of_text completed finish finished done",
    "length": "length max_tokens FinishReason.MAX_TOKENS max_output_tokens model_length "
    "model_context_window_exceeded",
    "refusal": "content_filter SAFETY refusal RECITATION BLOCKLIST ERROR_TOXIC FinishReason.SPII "
    "content_filtered guardrail_intervened PROHIBITED_CONTENT",
    "unknown": "error OTHER load cancelled tool_calls FinishReason.FINISH_REASON_UNSPECIFIED",
}


@pytest.mark.parametrize(
    ("reason", "finish"),
    [(word, finish) for finish, words in WORDS.items() for word in words.split()]
    + [(None, "stop"), ("", "stop"), (1, "stop"), (2, "length"), (5, "unknown")],
)
def test_the_words_of_servers_for_the_end_of_a_reply(reason, finish):
    assert wire.finish_of(reason) == finish


@pytest.mark.parametrize(
    ("answer", "finish"),
    [
        ({"choices": [{"finish_reason": "length"}]}, "length"),
        ({"stop_reason": "max_tokens"}, "length"),
        ({"stopReason": "guardrail_intervened"}, "refusal"),
        ({"done_reason": "length", "done": True}, "length"),
        ({"candidates": [{"finish_reason": enum.IntEnum("E", "X SAFETY")(2)}]}, "refusal"),
        (SimpleNamespace(candidates=[SimpleNamespace(finish_reason="SPII")]), "refusal"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        *[(odd, "stop") for odd in ({}, None, {"choices": []}, "text", {"choices": {"0": 1}})],
    ],
)
def test_the_word_for_the_end_of_a_reply_is_found_in_any_format(answer, finish):
    assert wire.finish_of(wire.reason_in(answer)) == finish


class StatusError(Exception):
    def __init__(self, status_code, code=None):
        self.status_code, self.code = status_code, code


REQUEST = httpx.Request("POST", "http://a")


def http_error(status):
    response = httpx.Response(status, request=REQUEST)
    return httpx.HTTPStatusError("", request=REQUEST, response=response)


def wrapped(error):
    """Return an exception that a framework raises from another."""
    outer = RuntimeError("the model failed")
    outer.__cause__ = error
    return outer


def circle(error):
    """Return an exception that is the cause of its cause."""
    error.__cause__ = wrapped(error)
    return error


@pytest.mark.parametrize(
    "error",
    [
        StatusError(400),
        http_error(500),
        httpx.ConnectError("no request yet"),
        openai.APITimeoutError(REQUEST),
    ],
    ids=repr,
)
def test_an_exception_leaves_its_request_unanswered(error):
    outcome = wire.outcome_of(error)
    assert isinstance(outcome, Unanswered)
    assert type(error).__name__ in str(outcome)
    assert wire.outcome_of(outcome) is outcome


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StatusError(401), 401),
        (http_error(401), 401),
        (wrapped(StatusError(404)), 404),
        (urllib.error.HTTPError("http://a", 401, "", {}, None), 401),
        (circle(StatusError(404)), 404),
    ],
    ids=repr,
)
def test_the_status_of_an_exception_is_found_in_it_and_in_its_causes(error, status):
    assert status in wire.marks_of(error)
    assert status in wire.marks_of(wire.outcome_of(error))


class Odd(Exception):
    @property
    def status_code(self):
        raise RuntimeError

    __str__ = status_code.fget


@pytest.mark.parametrize("result", [Odd(), wrapped(Odd()), None, "yes", {"text": "yes"}, Reply])
def test_whatever_a_model_returns_or_raises_leaves_its_request_unanswered(result):
    assert type(result).__name__ in str(wire.outcome_of(result))


def test_a_filtered_prompt_is_refused_and_a_reply_without_its_end_is_cut_off():
    assert wire.outcome_of(wrapped(StatusError(400, "content_filter"))).finish == "refusal"
    assert wire.outcome_of(type("LengthFinishReasonError", (Exception,), {})()).finish == "length"


# --- names of frameworks' models ------------------------------------------------------------------


def test_the_name_of_a_model_has_its_temperature_settings_and_options():
    assert wire.name_of("m", temperature=0.0, settings={}) == "m"
    assert wire.name_of("m", temperature=0.1, settings={}) == "m, temperature=0.1"
    assert wire.name_of("m", temperature=0, settings={"top_p": 0.1}) == 'm {"top_p": 0.1}'
    as_text = wire.name_of("m", temperature=None, settings={}, options=None)
    assert as_text == "m, temperature=None, as text"
    with pytest.raises(ValueError, match="name"):
        wire.name_of("m", temperature=0, settings={}, options=lambda request: {})


class Grammar(pydantic.BaseModel):
    rules: set[str] = {"a"}
    strict: bool = False
    max_retries: int = 1
    account: str = pydantic.Field("", exclude=True)


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    grammar: Grammar | None = None
    banned: set[str] = set()
    bias: dict[int, float] = {}
    more: dict = {}
    key: pydantic.SecretStr | None = None
    account: str = pydantic.Field("", exclude=True)
    client: object = None


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"banned": {"b", "a", "c"}}, {"banned": ["a", "b", "c"]}),
        ({"bias": {7: 1.0}}, {"bias": {"7": 1.0}}),
        (
            {"grammar": Grammar(strict=True, max_retries=9, account="mine")},
            {"grammar": {"rules": ["a"], "strict": True}},
        ),
        ({"key": pydantic.SecretStr("secret"), "client": object(), "account": "mine"}, {}),
        ({"more": {"headers": {1: 1}, "o": {}, "n": [{"KEY": 2}]}}, {"more": {"n": [{}], "o": {}}}),
        ({"more": {"logit_bias": {"key": 1}, "api_key": 1}}, {"more": {"logit_bias": {"key": 1}}}),
        ({"more": {"k": {"headers": {1: 1}, "apitoken": 1}, "tokens": 5}}, {"more": {"tokens": 5}}),
        ({}, {}),
    ],
)
def test_the_name_has_settings_as_plain_json_without_keys(given, settings):
    name = wire.name_of("m", temperature=0, settings=wire.settings_of(Model(**given)))
    assert name == (f"m {json.dumps(settings)}" if settings else "m")


def test_a_model_in_a_folder_is_named_by_its_weights_wherever_it_is(tmp_path):
    for place in ("a/model", "b/model", "c/other"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.json").write_text(f'{{"_name_or_path": "{place}"}}')
        (tmp_path / place / "model.safetensors").write_bytes(bytes(4_000_000))
    changed = bytearray(4_000_000)
    changed[2_000_000:2_100_000] = b"1" * 100_000  # a layer in the midst
    (tmp_path / "b/model/model.safetensors").write_bytes(changed)
    one, trained, copy = (str(tmp_path / place) for place in ("a/model", "b/model", "c/other"))
    assert wire.portable(one) == wire.portable(copy) != wire.portable(trained)
    assert wire.portable(one).startswith("weights ")
    assert wire.portable("/srv/not-here/model") == "model"
