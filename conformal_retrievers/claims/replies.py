"""What is read of an LLM's reply about claims: the fields of its JSON, or why there are none.

What cannot be read is no claim, no verdict, no number and no text, and its reason is told:
"unanswered", "refused", "cut off" or "unreadable".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conformal_retrievers.llm import Prompt, Reply, Unanswered
from conformal_retrievers.reply import parse_json


def reply_fields(answer: Reply | Unanswered) -> tuple[Mapping[str, Any], str | None]:
    """Return the fields of a reply in JSON, or none and the reason why there are none."""
    if isinstance(answer, Unanswered):
        return {}, "unanswered"
    if answer.finish != "stop":
        return {}, {"length": "cut off", "refusal": "refused"}.get(answer.finish, "unreadable")
    fields = parse_json(answer.text)
    return (fields, None) if fields is not None else ({}, "unreadable")


def check_fields(prompt: Prompt, *fields: str) -> None:
    """Raise ValueError unless a prompt has exactly these fields."""
    if prompt.fields != set(fields):
        raise ValueError(
            f"the prompt has the fields {sorted(prompt.fields)}; write "
            f"{', '.join(f'${name}' for name in fields)} into its user's part, and no other"
        )
