"""Names of frameworks' models: all that changes what they answer, by which scores are known.

Where two names are equal, a calibration with the one model holds for the other; so a name tells
settings and how the model is asked, but neither keys nor where its server is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from typing import Any

from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.wire import openai_options


def name_of(
    model: str,
    *,
    temperature: object,
    options: Callable[[Request], Mapping[str, Any]] | None,
    settings: Mapping[str, Any],
) -> str:
    """Return the name of a framework's model with its settings, see `name_with_settings`, and how
    it is asked unless that is with `openai_options`, as `openai_llm` asks.

    Raises ValueError for options of one's own: two of them cannot be told apart.
    """
    if options not in (None, openai_options):
        raise ValueError(
            f"options is {options!r}, and another way to ask may be another score: give a name "
            "that tells it, name='…'"
        )
    named = name_with_settings(model, temperature=temperature, settings=settings)
    return f"{named}, as text" if options is None else named


def name_with_settings(model: str, *, temperature: object, settings: Mapping[str, Any]) -> str:
    """Return the name of a framework's model: with its temperature unless that is 0, and with its
    other `settings` if there are any."""
    warmth = "" if temperature == 0 else f", temperature={temperature}"
    told = f" {json.dumps(settings, sort_keys=True)}" if settings else ""
    return f"{model}{told}{warmth}"


# Fields of frameworks' models that say how it is reached, and keys: they change nothing that it
# answers, and no key belongs into a name.
_REACHED = frozenset(
    {
        *("api_key", "api_base", "base_url", "api_version", "azure_endpoint", "organization"),
        *("openai_api_key", "openai_api_base", "openai_organization", "openai_proxy"),
        *("timeout", "request_timeout", "max_retries", "default_headers", "http_socket_options"),
    }
)

# As little do those that say which model it is, or who listens. `temperature` has its own place in
# the name.
_NO_SETTINGS = _REACHED | {
    *("model", "model_name", "deployment_name", "temperature", "name", "class_name"),
    *("cache", "verbose", "tags", "metadata", "rate_limiter", "profile", "num_workers"),
    *("streaming", "disable_streaming", "stream_usage", "stream_chunk_timeout"),
    *("output_version", "include_response_headers", "use_responses_api", "strict"),
    *("is_function_calling_model", "allow_parallel_tool_calls"),
    *("tokenizer", "tiktoken_model_name", "reuse_client"),
}


def settings_of(model: object, *, without: Container[str] = ()) -> dict[str, Any]:
    """Return the settings of a framework's model that may change its answers, but for defaults.

    They are its pydantic fields that can be told as JSON, sets as sorted lists and pydantic models
    as dicts, and are not known to change nothing; those named in `without` are known so of this
    model. Clients, functions and other objects are not told.
    """
    fields: Mapping[str, Any] = getattr(type(model), "model_fields", {})
    found: dict[str, Any] = {}
    for name, field in fields.items():
        value = getattr(model, name, None)
        if name in _NO_SETTINGS or name in without:
            continue
        if value == field.get_default(call_default_factory=True):
            continue
        if value in (None, {}, [], ""):
            continue
        plain = _plain(value)
        if _is_json(plain):
            found[name] = plain
    return found


def _plain(value: object) -> object:
    """Return a setting with its sets as sorted lists and its pydantic models as dicts."""
    fields: Mapping[str, Any] | None = getattr(type(value), "model_fields", None)
    if fields is not None:
        parts = {name: _plain(getattr(value, name)) for name in fields if name not in _REACHED}
        return {name: p for name, p in parts.items() if p is not None and _is_json(p)}
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value), key=repr)
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        return False
    return True
