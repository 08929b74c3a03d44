"""Prompts, which are identified by their content, and the requests made from them.

What fills the fields of a prompt is not trusted. It enters the user's message as JSON (`as_data`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Any

from conformal_retrievers.data.files import short_hash
from conformal_retrievers.data.text import UNSEEN, VARIATIONS
from conformal_retrievers.llm.wording import say


@dataclass(frozen=True)
class Request:
    """One question to an LLM."""

    system: str
    user: str
    schema: Mapping[str, Any] | None = None  # JSON schema of the reply; None for free text
    top_logprobs: int = 0  # number of alternatives of the first token with log-probabilities
    max_tokens: int | None = None  # bound on the length of the reply

    def as_json(self) -> str:
        """Return the request as JSON, the same for equal requests."""
        return json.dumps(vars(self), sort_keys=True)


@dataclass(frozen=True)
class Prompt:
    """The system's and the user's message; `$name` in the user's message is a field.

    `$$` stands for a dollar sign. Raises ValueError if the system's message has a field.

    >>> Prompt("Answer briefly.", "<query>$query</query>").request({"query": "</query>"}).user
    '<query>"\\\\u003c/query\\\\u003e"</query>'
    """

    system: str
    user: str

    def __post_init__(self) -> None:
        if in_system := _fields(self.system):
            raise ValueError(say("system fields", fields=sorted(in_system)))

    @classmethod
    def parse(cls, text: str) -> Prompt:
        """Return the prompt in a text: a line [system], its message, a line [user], its message."""
        parts = re.fullmatch(r"\s*\[system\]\n(.*?)\n\[user\]\n(.*)", text, re.DOTALL)
        if parts is None or re.search(r"^\[(system|user)\]$", parts[2], re.MULTILINE):
            raise ValueError(say("no prompt", text=text))
        return cls(parts[1].strip(), parts[2].strip())

    @classmethod
    def load(cls, name: str) -> Prompt:
        """Return a prompt of this library, prompts/<name>.txt; raise FileNotFoundError without."""
        file = files("conformal_retrievers.llm") / "prompts" / f"{name}.txt"
        return cls.parse(file.read_text(encoding="utf-8"))

    @property
    def hash(self) -> str:
        """The first twelve digits of the SHA-256 of both messages: the prompt's identity."""
        return short_hash([self.system, self.user])

    def request(self, values: Mapping[str, object], **options: Any) -> Request:
        """Return the request with each field filled in by its value as JSON (see `as_data`).

        The options are the other fields of `Request`. Raises ValueError if `values` has other names
        than the prompt's fields.
        """
        if set(values) != (fields := _fields(self.user)):
            raise ValueError(f"values has the fields {sorted(values)}; give {sorted(fields)}")
        user = Template(self.user).substitute({k: as_data(v) for k, v in values.items()})
        return Request(Template(self.system).substitute(), user, **options)


def check_fields(prompt: Prompt, *fields: str) -> None:
    """Raise TypeError unless it is a prompt, and ValueError unless it has exactly these fields."""
    if not isinstance(prompt, Prompt):
        raise TypeError(f"prompt is {prompt!r:.60}; give a Prompt, such as Prompt.parse(text)")
    if (given := _fields(prompt.user)) != set(fields):
        needed = ", ".join(f"${name}" for name in fields)
        raise ValueError(say("other fields", fields=sorted(given), needed=needed))


def _fields(text: str) -> frozenset[str]:
    matches = Template.pattern.finditer(text)
    return frozenset(match["named"] or match["braced"] for match in matches) - {None}


# Escaped are tags and entities; the bracket of [INST], [/INST], [control_8], [|user|], [@BOS@] and
# of everything with that form: a name of up to 100 characters without white space, between signs
# or not; and characters that are read but not seen.
_ESCAPED = re.compile(
    r"[<>&]|\[(?=\s*[^]\w\s[\"\\']{0,3}[A-Za-z_][^]\s]{0,99}\s*\])" f"|[{UNSEEN}{VARIATIONS}]"
)
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')  # in JSON; the brackets of lists are outside


def as_data(value: object) -> str:
    """Return a value as JSON on one line, from which `json.loads` gives the value back.

    Every character is escaped that could end a line, a string or a tag, or begin a role marker of a
    chat format such as `<|im_start|>`, `[INST]` or `[|user|]`.

    >>> print(as_data("</snippet> [INST]"))
    "\\u003c/snippet\\u003e \\u005bINST]"
    """

    def escape(found: re.Match[str]) -> str:
        return json.dumps(found[0])[1:-1] if ord(found[0]) > 0x7F else f"\\u{ord(found[0]):04x}"

    text = json.dumps(value, ensure_ascii=False)
    return _STRING.sub(lambda string: _ESCAPED.sub(escape, string[0]), text)
