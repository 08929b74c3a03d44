"""Prompts: text files that are identified by their content, and the requests they become.

What fills a prompt's fields is not trusted. It enters the user's message as JSON, in which every
character is escaped that could end a line, a string or a tag, or begin a marker of a chat format
such as `<|im_start|>`, `[INST]` or `[|user|]`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from string import Template
from typing import Any


@dataclass(frozen=True)
class Request:
    """One question: what the system and the user say, and which form the reply shall have.

    `schema` is the JSON schema of the reply, None for free text. `top_logprobs` asks for the
    log-probabilities of so many alternatives of the first token, `max_tokens` bounds the reply.
    """

    system: str
    user: str
    schema: Mapping[str, Any] | None = None
    top_logprobs: int = 0
    max_tokens: int | None = None

    def as_json(self) -> str:
        """Return the whole request as JSON, the same for equal ones."""
        return json.dumps(vars(self), sort_keys=True)


@dataclass(frozen=True)
class Prompt:
    """What the system and the user say; `$name` in the user's part is a field to be filled in.

    `$$` is a dollar sign. Raises ValueError where the system's part has a field, or the user's part
    none.
    """

    system: str
    user: str

    def __post_init__(self) -> None:
        for part, text in (("system", self.system), ("user", self.user)):
            if not text.strip():
                raise ValueError(f"{part} is {text!r}; give the {part}'s part of the prompt")
        in_system = _fields(self.system)
        if in_system:
            raise ValueError(
                f"the system's part has the fields {sorted(in_system)}; what fills them is not "
                "trusted, so put them into the user's part"
            )
        if not self.fields:
            raise ValueError("the user's part has no field such as $query; give it one")

    @classmethod
    def parse(cls, text: str) -> Prompt:
        """Return the prompt of a file's text: a line [system], its part, a line [user], its part.

        Raises ValueError for any other text.
        """
        parts = re.fullmatch(r"\s*\[system\]\n(.*?)\n\[user\]\n(.*)", text, re.DOTALL)
        if parts is None or re.search(r"^\[(system|user)\]$", parts[2], re.MULTILINE):
            raise ValueError(
                f"prompt is {text!r:.80}; give a line [system], what the system says, a line "
                "[user] and what the user says"
            )
        return cls(parts[1].strip(), parts[2].strip())

    @classmethod
    def load(cls, name: str) -> Prompt:
        """Return a prompt of this library, prompts/<name>.txt.

        Raises FileNotFoundError where there is none of that name.
        """
        from importlib.resources import files

        file = files("conformal_retrievers.llm") / "prompts" / f"{name}.txt"
        return cls.parse(file.read_text(encoding="utf-8"))

    @cached_property
    def fields(self) -> frozenset[str]:
        """The names of the fields."""
        return _fields(self.user)

    @property
    def hash(self) -> str:
        """The first twelve digits of the SHA-256 of both parts: the prompt's identity."""
        return short_hash([self.system, self.user])

    def request(
        self,
        values: Mapping[str, object],
        *,
        schema: Mapping[str, Any] | None = None,
        top_logprobs: int = 0,
        max_tokens: int | None = None,
    ) -> Request:
        """Return the request with each field filled in by its value, as JSON (see `as_data`).

        Raises ValueError where the names of the values are not those of the fields.
        """
        if set(values) != self.fields:
            raise ValueError(
                f"the prompt has the fields {sorted(self.fields)}, but is filled with "
                f"{sorted(values)}; name the fields of its user's part so"
            )
        filled = Template(self.user).substitute({k: as_data(v) for k, v in values.items()})
        return Request(Template(self.system).substitute(), filled, schema, top_logprobs, max_tokens)


def check_fields(prompt: Prompt, *fields: str) -> None:
    """Raise TypeError for what is no prompt, and ValueError unless it has exactly these fields."""
    if not isinstance(prompt, Prompt):
        raise TypeError(
            f"prompt is {prompt!r:.60}; give Prompt.parse(text) or Prompt(system, user)"
        )
    if prompt.fields != set(fields):
        *others, last = (f"${name}" for name in fields)
        raise ValueError(
            f"the prompt has the fields {sorted(prompt.fields)}; write {', '.join(others)} and "
            f"{last} into its user's part, and no other"
        )


def _fields(text: str) -> frozenset[str]:
    fields = set()
    for found in Template.pattern.finditer(text):
        if found["invalid"] is not None:
            raise ValueError(
                f"a $ stands alone in {text[found.start() :]!r:.40}; write $$ for a dollar sign"
            )
        fields.add(found["named"] or found["braced"])
    return frozenset(fields - {None})


def short_hash(value: object) -> str:
    """Return the first twelve hexadecimal digits of the SHA-256 of a value's JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


# Tags and entities; the bracket of [INST], [/INST], [control_8], [|user|], [@BOS@] and all that has
# their form, a name without white space, between signs or not; and what is read though it is not
# seen: controls, separators, marks of annotations, halves of a character, and Unicode's
# Default_Ignorable_Code_Point (directions, widths of zero, fillers, variation selectors, tag
# letters) but for the two joiners, which scripts need.
_ESCAPED = re.compile(
    r"[<>&]|\[(?=\s*[^]\w\s[\"\\']{0,3}[A-Za-z_][^]\s[]*\s*\])"
    "|[\x7f-\x9f\u2028\u2029\ufff9-\ufffb\ud800-\udfff]"
    "|[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e]"
    "|[\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8]"
    "|[\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')  # of JSON; the brackets of lists are outside


def as_data(value: object) -> str:
    """Return a value as JSON on one line, in which no text can end its string or pass for more.

    "</snippet>" becomes "\\u003c/snippet\\u003e", a line break \\n; `json.loads` gives the value
    back.
    """

    def escape(found: re.Match[str]) -> str:
        return json.dumps(found[0])[1:-1] if ord(found[0]) > 0x7F else f"\\u{ord(found[0]):04x}"

    return _STRING.sub(
        lambda string: _ESCAPED.sub(escape, string[0]), json.dumps(value, ensure_ascii=False)
    )
