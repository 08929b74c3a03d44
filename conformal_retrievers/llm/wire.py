"""The wire formats of LLM servers, and the names of frameworks' models.

A server's errors, its words for why a reply ended, its tokens and log-probabilities become those of
a `Reply`, or `Unanswered`. Nothing in their answers is trusted.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from conformal_retrievers.llm.prompt import Request
from conformal_retrievers.llm.reply import Finish, Reply, Unanswered
from conformal_retrievers.llm.wording import say

WEIGHTS = ("safetensors", "bin", "gguf", "onnx", "pt")  # the endings of files, best first
BLOCKS, BLOCK = 32, 2**16  # how many parts of a file tell it from others, of so many bytes

# --- requests and errors --------------------------------------------------------------------------


def openai_options(request: Request) -> dict[str, Any]:
    """Return the options of a request (schema, log-probabilities, length) for Chat Completions.

    >>> openai_options(Request("Answer YES or NO.", "Is it?", top_logprobs=5, max_tokens=1))
    {'logprobs': True, 'top_logprobs': 5, 'max_tokens': 1}
    """
    options: dict[str, Any] = {}
    if request.schema is not None:
        form = {"name": "reply", "strict": True, "schema": dict(request.schema)}
        options["response_format"] = {"type": "json_schema", "json_schema": form}
    if request.top_logprobs:
        options |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    if request.max_tokens is not None:
        options["max_tokens"] = request.max_tokens
    return options


# Marks of an exception that concerns every request if each has one: a wrong key, an unknown model,
# no connection. A firewall may refuse the text of one with 403, and a fallback may lack its model.
NO_MODEL: set[object] = {401, 404}
NO_ACCESS = NO_MODEL | {403, "ConnectError", "ConnectTimeout", "ConnectionRefusedError", "gaierror"}


def outcome_of(result: object) -> Reply | Unanswered:
    """Return the answer that a request has by what its model returned or raised.

    A prompt that the server filters is refused. Anything else than a reply leaves it unanswered.
    """
    if isinstance(result, Reply):
        return result
    if not isinstance(result, Exception):
        return Unanswered(f"the model returned a {type(result).__name__}; return a Reply")
    marks = marks_of(result)
    if marks & {"content_filter", "ContentFilterFinishReasonError"}:
        return Reply("", "refusal")
    if "LengthFinishReasonError" in marks:  # of OpenAI's client, if a schema was requested
        return Reply("", "length")
    if isinstance(result, Unanswered):
        return result
    try:
        reason = str(result)
    except Exception:
        reason = "its message cannot be read"
    unanswered = Unanswered(f"{type(result).__name__}: {reason}")
    unanswered.__cause__ = result
    return unanswered


def marks_of(error: BaseException | None) -> set[object]:
    """Return the class names, HTTP statuses and codes of an exception and of its causes.

    HTTP clients give their exceptions these attributes, and frameworks wrap them.
    """
    marks: set[object] = set()
    seen: set[int] = set()  # causes may be a circle
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        marks.add(type(error).__name__)
        for part in (error, part_of(error, "response")):
            codes = part_of(part, "status_code"), part_of(part, "code")
            marks |= {mark for mark in codes if isinstance(mark, int | str)}
        error = error.__cause__ or error.__context__
    return marks


# --- replies --------------------------------------------------------------------------------------

# Words of OpenAI, Anthropic, Gemini, Bedrock, Cohere, Mistral, Ollama and TGI, by their letters; 1
# and 2 are Gemini's numbers.
_ENDS: dict[Finish, str] = {
    "stop": "1|stop(sequence)?|endturn|eos(token)?|endoftext|completed?|finish(ed)?|done",
    "length": "2|(model)?length|max(output)?tokens|modelcontextwindowexceeded",
    "refusal": "contentfilter(ed)?|refusal|safety|recitation|blocklist|prohibitedcontent|spii"
    "|guardrailintervened|errortoxic",
}


def finish_of(reason: object) -> Finish:
    """Return the `Reply.finish` for a server's own word for why a reply ended.

    The word is a text or a member of an enumeration, in any case. A reply without one is taken as
    whole, since many servers give none; an unknown word becomes "unknown", which is not an answer.

    >>> finish_of("MAX_TOKENS")
    'length'
    """
    text = str(getattr(reason, "name", reason) or "stop")
    word = re.sub(r"[^a-z0-9]", "", text.rpartition(".")[2].lower())  # "FinishReason.MAX_TOKENS"
    return next((end for end, words in _ENDS.items() if re.fullmatch(words, word)), "unknown")


def reason_in(answer: object) -> object:
    """Return a server's word for why a reply ended, None if its answer has none.

    It is in the answer (an object or a dict), or in its first choice or candidate.
    """
    names = ("finish_reason", "finishReason", "stop_reason", "stopReason", "done_reason")
    parts = [first_of(answer, "choices"), first_of(answer, "candidates"), answer]
    reasons = [part_of(part, name) for part in parts for name in names]
    reasons.append(part_of(part_of(answer, "incomplete_details"), "reason"))
    return next(filter(None, reasons), None)


def first_token_in(logprobs: object) -> dict[str, float] | None:
    """Return the log-probabilities of the first token's alternatives, None unless all are valid.

    They are content[0].top_logprobs in Chat Completions, as objects or dicts.
    """
    tops = part_of(first_of(logprobs, "content"), "top_logprobs")
    try:
        tokens = {part_of(top, "token"): float(part_of(top, "logprob")) for top in tops}
    except (TypeError, ValueError, OverflowError):  # no list, no number, or one beyond floats
        return None
    return tokens if tokens and all(isinstance(token, str) for token in tokens) else None


def tokens_in(count: object) -> int:
    """Return a server's number of tokens, 0 if it is not a valid one."""
    return max(0, count) if isinstance(count, int) else 0


def first_of(answer: object, name: str) -> Any:
    """Return the first item of the list with this name in a server's answer, None without one."""
    items = part_of(answer, name)
    return items[0] if isinstance(items, list | tuple) and items else None


def part_of(answer: object, name: str) -> Any:
    """Return the part with this name of a server's answer, an object or a dict; None without it."""
    with suppress(Exception):  # of a property
        return answer.get(name) if isinstance(answer, Mapping) else getattr(answer, name)
    return None


# --- names of frameworks' models ------------------------------------------------------------------


def model_name(model: object) -> str | None:
    """Return the `model_name` or `model` of a framework's model, None if it is unknown."""
    names = (getattr(model, attribute, None) for attribute in ("model_name", "model"))
    return next((n for n in names if isinstance(n, str) and n not in ("", "unknown")), None)


@cache  # a retriever's name is compared in every call
def portable(name: str) -> str:
    """Return a model's name; of a path the digest of its weights, which is the same on every host.

    >>> portable("BAAI/bge-small-en"), portable("/no/weights/here/")
    ('BAAI/bge-small-en', 'here')
    """
    expanded = os.path.expanduser(name)
    if not (os.path.exists(expanded) or os.path.isabs(expanded)):
        return name
    path = Path(expanded)
    inside = sorted(p for p in path.rglob("*.*") if "checkpoint-" not in str(p.relative_to(path)))
    of_kinds = ([p for p in inside if p.suffix == f".{kind}"] for kind in WEIGHTS)
    files = next(filter(None, of_kinds), [path])
    files += path.glob("*/config.json")  # of pooling, and of other layers on top
    if not files[0].is_file():
        return path.name
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            digest.update(b"%d" % size)
            for block in range(BLOCKS):  # from all over it: single layers may have been trained
                opened.seek(size * block // BLOCKS)
                digest.update(opened.read(BLOCK))
    return f"weights {digest.hexdigest()[:12]}"


def scorer_name(kind: str, model: object, function: str) -> str:
    """Return "<kind>(<model name>)", the name of the scorer that `function` makes of a model."""
    name = model_name(model)
    if name is None:
        facts = {"model": type(model).__name__, "function": function, "kind": kind}
        raise ValueError(say("no model name", **facts))
    return f"{kind}({portable(name)})"


def name_of(
    model: str | None,
    *,
    temperature: object,
    settings: Mapping[str, Any],
    options: Callable[[Request], Mapping[str, Any]] | None = openai_options,
) -> str:
    """Return the name of a framework's model with all that changes its answers.

    A calibration with one model holds for every model of equal name, in any framework. The name has
    no keys and no address of a server. `options` turn a request into arguments; the name has
    " as text" for None. Raises ValueError for a model without a name and for other `options`.

    >>> name_of("gpt-4o", temperature=0.2, settings={"top_p": 0.1})
    'gpt-4o {"top_p": 0.1}, temperature=0.2'
    """
    if model is None or options not in (None, openai_options):
        raise ValueError(say("no name"))
    shown = json.dumps(_without_secrets(settings), sort_keys=True)
    parts = f" {shown}" if shown != "{}" else ""
    warmth = "" if temperature == 0 else f", temperature={temperature}"
    return f"{model}{parts}{warmth}{', as text' if options is None else ''}"


# Fields that state how a model is reached. They do not change an answer.
_REACHED = re.compile(
    "(openai_)?(api_base|organization)|base_url|api_version|azure_endpoint|(request_)?timeout"
    "|max_retries|http_socket_options"
)

# Nor do fields that state which model it is, or who listens. `temperature` has its own place.
_NO_SETTING = re.compile(
    "model|model_name|deployment_name|temperature|name|class_name|cache|verbose|tags|metadata"
    "|rate_limiter|profile|num_workers|streaming|disable_streaming|stream_usage"
    "|stream_chunk_timeout|output_version|include_response_headers|use_responses_api|strict"
    "|is_function_calling_model|allow_parallel_tool_calls|tokenizer|tiktoken_model_name"
    "|reuse_client"
)

# Names, at any depth, of what says who asks, and where. `eos_token` and its like are none.
_SECRET = re.compile(
    ".*(headers|(default|extra)_query|secret|password|credential|authorization|cookie|prox(y|ies)"
    "|(api|access|subscription)[-_]?key).*|key|base_url|api_base"
    "|(.*(access|auth|api|session|refresh|bearer|azure_ad|hf)[-_]?)?token",
    re.IGNORECASE,
)
_DATA = {"properties", "logit_bias"}  # have keys that name nothing of the kind


def _without_secrets(part: Any) -> Any:
    """Return a part of settings without secrets, and without what has nothing else."""
    if not isinstance(part, Mapping):
        return [*map(_without_secrets, part)] if isinstance(part, list | tuple) else part
    kept = {k: v if k in _DATA else _without_secrets(v) for k, v in part.items()}
    return {k: v for k, v in kept.items() if not _SECRET.fullmatch(str(k)) and (v or not part[k])}


def settings_of(model: object, *, without: Container[str] = ()) -> dict[str, Any]:
    """Return the settings of a framework's model that may change its answers, except defaults.

    They are the pydantic fields that JSON can hold, with sets as sorted lists and pydantic models
    as dicts, except those that are known to change no answer and those in `without`. Clients,
    functions and other objects are left out, as is what the framework itself does not store.
    """
    fields: Mapping[str, Any] = getattr(type(model), "model_fields", {})
    given = {
        name: value
        for name, field in fields.items()
        if not (name in without or field.exclude or _NO_SETTING.fullmatch(name))
        and not _REACHED.fullmatch(name)
        and (value := getattr(model, name, None)) not in ({}, [], "")
        and value != field.get_default(call_default_factory=True)
    }
    return _plain_parts(given)


def _plain_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts that JSON can hold, as it holds them, without those that are None."""
    plain = {}
    for name, part in parts.items():
        if part is not None:
            with suppress(TypeError, ValueError):
                plain[name] = json.loads(json.dumps(part, sort_keys=True, default=_plain))
    return plain


def _plain(value: object) -> object:
    """Return a set as a sorted list and a pydantic model as a dict, for `json.dumps`."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    fields: Mapping[str, Any] | None = getattr(type(value), "model_fields", None)
    if fields is None:
        raise TypeError(f"a {type(value).__name__} is not JSON")  # its repr may be endless
    own = [n for n, field in fields.items() if not (field.exclude or _REACHED.fullmatch(n))]
    return _plain_parts({name: getattr(value, name) for name in own})
