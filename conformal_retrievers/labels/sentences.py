"""Asking an LLM which of the numbered sentences of a document support a fact.

A document with more than 50 sentences takes several requests, each numbered from 1.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from conformal_retrievers.llm.ask import LLM, ask
from conformal_retrievers.llm.prompt import Prompt, Request
from conformal_retrievers.llm.reply import (
    Reply,
    Unanswered,
    Usage,
    failure_of,
    object_schema,
    reply_fields,
)

MOST = 50  # sentences of a request
NUMBERS = object_schema(
    {
        "reasoning": {"type": "string"},
        "sentences": {"type": "array", "items": {"type": "integer"}},
    }
)


def ask_numbers(
    llm: LLM,
    prompt: Prompt,
    documents: Sequence[tuple[Mapping[str, str], Sequence[str]]],
    **options: Any,
) -> tuple[list[list[bool] | str], Usage]:
    """Return for each document which of its sentences count, or why a reply cannot be read.

    A document is the fields of the prompt and its sentences, none of them blank. Equal requests are
    sent once. The options are those of `ask`; the cache stores only replies that can be read.
    """
    parts = [
        [(fields, texts[i : i + MOST]) for i in range(0, len(texts), MOST)]
        for fields, texts in documents
    ]
    requests = [[_request(prompt, *part) for part in of_document] for of_document in parts]
    different = {
        request.as_json(): (request, len(texts))
        for of_document, of_parts in zip(requests, parts, strict=True)
        for request, (_, texts) in zip(of_document, of_parts, strict=True)
    }
    sizes = [n for _, n in different.values()]
    answers = ask(
        llm,
        [request for request, _ in different.values()],
        is_answer=lambda i, reply: isinstance(marks_of(reply, sizes[i]), list),
        **options,
    )
    marks = dict(zip(different, map(marks_of, answers, sizes), strict=True))
    found = [[marks[request.as_json()] for request in of_document] for of_document in requests]
    return [_joined(of_document) for of_document in found], Usage.of(answers)


def marks_of(answer: Reply | Unanswered, n: int) -> list[bool] | str:
    """Return which of n sentences a reply numbers, from 1, or why it cannot be read.

    >>> marks_of(Reply('{"reasoning": "So.", "sentences": [2]}'), 3)
    [False, True, False]
    """
    fields, _ = reply_fields(answer)
    numbers = fields.get("sentences")
    if not isinstance(numbers, list) or not all(
        type(number) is int and 1 <= number <= n for number in numbers
    ):
        return failure_of(answer)
    return [i in numbers for i in range(1, n + 1)]


def _request(prompt: Prompt, fields: Mapping[str, str], texts: Sequence[str]) -> Request:
    numbered = [{"number": i, "text": text} for i, text in enumerate(texts, start=1)]
    return prompt.request({**fields, "sentences": numbered}, schema=NUMBERS)


def _joined(parts: Sequence[list[bool] | str]) -> list[bool] | str:
    marks: list[bool] = []
    for part in parts:
        if isinstance(part, str):
            return part
        marks += part
    return marks
