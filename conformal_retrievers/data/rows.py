"""What a line of a file of judged queries holds, and how its faults are told.

Imported where a file is read or written, because pydantic takes longer to load than all the rest.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class _Row(BaseModel):
    # An unknown field is more often a misspelt one than one that is safe to drop.
    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True, allow_inf_nan=False)


class SnippetRow(_Row):
    """A snippet of a judged query, and its judgement."""

    text: str
    relevant: JsonValue  # what is true and what is false, JudgedQuery knows
    id: str | None = None
    document: str | None = None
    position: int | None = None
    retrieval_score: float | None = None


class QueryRow(_Row):
    """A line of a file: one judged query."""

    query: str
    snippets: list[SnippetRow]
    id: str | None = None
    group: str | None = None
    missed: JsonValue = 0
    retriever: str | None = None
    k: JsonValue = None


NAMES = frozenset([*QueryRow.model_fields, *SnippetRow.model_fields])


def explain(error: ValidationError, names: Collection[str] = ()) -> str:
    """Say in one line which fields of a file are wrong, what they hold and what they should be.

    `names` are those of its fields: the nearest is told where one is misspelt.
    """
    errors = error.errors(include_url=False)
    said = [_said(one, names) for one in errors[:3]]
    others = [f"{len(errors) - 3} more"] if len(errors) > 3 else []
    return "; ".join(said + others)


def _said(error: ErrorDetails, names: Collection[str]) -> str:
    place = ".".join(str(part) for part in error["loc"]) or "the line"
    if error["type"] == "missing":
        return f"{place} is missing; give it"
    value = error["input"]
    given = repr(value.strip() if isinstance(value, str) else value)
    shown = given if len(given) <= 60 else f"{given[:57]}…"
    if error["type"] == "extra_forbidden":
        near = get_close_matches(str(error["loc"][-1]), names, n=1)
        spelling = f"call it {near[0]!r}" if near else "see to its spelling"
        return f"{place} is {shown}, but there is no such field; remove it, or {spelling}"
    if error["type"] == "json_invalid":
        return f"{place} is {shown}, which is no JSON ({error['ctx']['error']})"
    wanted = next((text for kind, text in WANTED.items() if error["type"].startswith(kind)), None)
    if wanted is None:
        return f"{place} is {shown}: {error['msg']}"
    return f"{place} is {shown}; give {wanted.format(**error.get('ctx', {}))}"


WANTED = {  # how pydantic's kinds of errors begin, what to give
    "model_": "a JSON object",
    "list_": "a list",
    "string_": "a text",
    "int_": "a whole number",
    "float_": "a number",
    "finite_number": "a finite number",
    "bool_": "true or false",
    "literal_error": "{expected}",
    "greater_than_equal": "{ge} or more",
    "greater_than": "a number above {gt}",
    "less_than_equal": "{le} or less",
    "less_than": "a number below {lt}",
}
