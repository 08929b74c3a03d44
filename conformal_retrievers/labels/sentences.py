"""Asking an LLM which of the numbered sentences of a document support a fact.

A document with more than 50 sentences takes several requests, each numbered from 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from conformal_retrievers.llm import reply
from conformal_retrievers.llm.ask import LLM, ask_and_read
from conformal_retrievers.llm.prompt import Prompt, Request
from conformal_retrievers.llm.reply import Reply, Unanswered, Usage

MOST = 50  # sentences of a request
NUMBERS = reply.object_schema(
    {"reasoning": {"type": "string"}, "sentences": {"type": "array", "items": {"type": "integer"}}}
)


def ask_numbers(
    llm: LLM,
    prompt: Prompt,
    documents: Sequence[tuple[Mapping[str, str], Sequence[str]]],
    **options: Any,
) -> tuple[list[list[bool] | str], Usage]:
    """Return for each document which of its sentences count, or why a reply cannot be read.

    A document is the fields of the prompt and its sentences, none of them blank. The options are
    those of `ask`.
    """
    parts = [
        (number, fields, texts[i : i + MOST])
        for number, (fields, texts) in enumerate(documents)
        for i in range(0, len(texts), MOST)
    ]
    requests = [_request(prompt, fields, texts) for _, fields, texts in parts]
    marks_of_parts, usage = ask_and_read(
        llm, requests, lambda i, answer: marks_of(answer, len(parts[i][2])), **options
    )
    marks: list[list[bool] | str] = [[] for _ in documents]
    for (number, _, _), part in zip(parts, marks_of_parts, strict=True):
        before = marks[number]
        if isinstance(before, list):
            marks[number] = part if isinstance(part, str) else before + part
    return marks, usage


def marks_of(answer: Reply | Unanswered, n: int) -> list[bool] | str:
    """Return which of n sentences a reply numbers, from 1, or why it cannot be read.

    >>> marks_of(Reply('{"reasoning": "So.", "sentences": [2]}'), 3)
    [False, True, False]
    """
    fields, _ = reply.reply_fields(answer)
    numbers = fields.get("sentences")
    if not isinstance(numbers, list) or not all(
        type(number) is int and 1 <= number <= n for number in numbers
    ):
        return reply.failure_of(answer)
    return [i in numbers for i in range(1, n + 1)]


def _request(prompt: Prompt, fields: Mapping[str, str], texts: Sequence[str]) -> Request:
    numbered = [{"number": i, "text": text} for i, text in enumerate(texts, start=1)]
    return prompt.request({**fields, "sentences": numbered}, schema=NUMBERS)
