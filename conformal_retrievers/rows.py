"""What a line of a file of judged queries holds, and how its faults are told.

Imported where a file is read or written, because pydantic takes longer to load than all the rest.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError


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
    propensity: float | None = None


class QueryRow(_Row):
    """A line of a file: one judged query."""

    query: str
    snippets: list[SnippetRow]
    id: str | None = None
    group: str | None = None
    missed: JsonValue = 0
    weight: JsonValue = 1.0
    only_kept: bool = False
    explore: float | None = None
    retriever: str | None = None
    k: JsonValue = None


def explain(error: ValidationError) -> str:
    """Say in one line which fields of a file are wrong, what they hold and what they should be."""
    errors = error.errors(include_url=False)
    said = []
    for one in errors[:3]:
        place = ".".join(str(part) for part in one["loc"]) or "the line"
        given = "" if one["type"] == "missing" else f" (got {str(one['input'])[:60]!r})"
        said.append(f"{place}: {one['msg']}{given}")
    others = [f"{len(errors) - 3} more"] if len(errors) > 3 else []
    return "; ".join(said + others)
