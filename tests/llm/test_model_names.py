"""The names of frameworks' models, and the settings in them."""

from __future__ import annotations

import json

import pydantic
import pytest

from conformal_retrievers.llm.model_names import name_of, settings_of
from conformal_retrievers.llm.wire import openai_options


def test_a_models_name_tells_its_temperature_and_how_it_is_asked():
    def named(temperature, options, **settings):
        return name_of("m", temperature=temperature, options=options, settings=settings)

    assert named(0.0, openai_options) == "m"
    assert named(0.1, openai_options) == "m, temperature=0.1"
    assert named(None, None) == "m, temperature=None, as text"
    assert named(0, openai_options, top_p=0.1) == 'm {"top_p": 0.1}'
    with pytest.raises(ValueError, match=r"give a name"):
        named(0, lambda request: {})


class Grammar(pydantic.BaseModel):
    rules: set[str] = {"a"}
    strict: bool = False
    api_key: str = ""
    client: object = None


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    grammar: Grammar | None = None
    banned: set[str] = set()
    bias: dict[int, float] = {}
    key: pydantic.SecretStr | None = None
    client: object = None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"banned": {"b", "a", "c"}}, {"banned": ["a", "b", "c"]}),
        ({"bias": {7: 1.0}}, {"bias": {7: 1.0}}),
        ({"grammar": Grammar()}, {"grammar": {"rules": ["a"], "strict": False}}),
        (
            {"grammar": Grammar(strict=True, api_key="secret", client=object())},
            {"grammar": {"rules": ["a"], "strict": True}},
        ),
        ({"key": pydantic.SecretStr("secret"), "client": object()}, {}),
        ({}, {}),
    ],
    ids=["set", "dict", "defaults of a part", "part", "no JSON", "nothing"],
)
def test_settings_are_told_as_plain_json(given, told):
    assert settings_of(Model(**given)) == told
    json.dumps(told)
