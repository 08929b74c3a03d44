"""Files of annotated answers: JSON lines."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from conformal_retrievers.claims.answers import AnnotatedAnswer
from conformal_retrievers.data.files import explain, write_whole
from conformal_retrievers.data.jsonl import placed_lines


class ClaimRow(BaseModel):
    """A claim of an answer; null for a relevance or an annotation that could not be had."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    relevance: float | None
    factual: bool | None
    claim: str | None = None


class AnswerRow(BaseModel):
    """A line of a file: one annotated answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    claims: list[ClaimRow]
    id: str | None = None
    group: str | None = None
    query: str | None = None
    answer: str | None = None


def read_answers(path: str | Path) -> list[AnnotatedAnswer]:
    """Read annotated answers from a file of JSON lines, one answer a line; .gz is unpacked.

    A line is {"id", "group", "query", "answer", "claims": [{"claim", "relevance", "factual"}]};
    "claims", "relevance" and "factual" are required. `relevance` is null for a claim that could not
    be scored, `factual` for one that could not be annotated. Raises ValueError, naming the file,
    the line and the field.
    """
    answers = []
    for place, line in placed_lines(path):
        try:
            row = AnswerRow.model_validate_json(line)
        except ValidationError as error:
            raise ValueError(f"{place}: {explain(error)}") from None
        relevance = [math.nan if c.relevance is None else c.relevance for c in row.claims]
        factual = [c.factual for c in row.claims]
        answers.append(
            AnnotatedAnswer(np.array(relevance), tuple(factual), id=row.id, group=row.group)
        )
    return answers


def write_answers(answers: Iterable[AnnotatedAnswer], path: str | Path) -> None:
    """Write annotated answers as JSON lines that `read_answers` reads back; .gz is packed.

    The fields "claim", "query" and "answer" are left out. Raises ValueError for an infinite
    relevance, which JSON does not have.
    """
    text = ""
    for answer in answers:
        claims = [
            ClaimRow(relevance=None if math.isnan(r) else r, factual=f)
            for r, f in zip(answer.relevance.tolist(), answer.factual, strict=True)
        ]
        row = AnswerRow(id=answer.id, group=answer.group, claims=claims)
        text += f"{row.model_dump_json(exclude_unset=True)}\n"
    packed = gzip.compress(text.encode()) if Path(path).suffix == ".gz" else text.encode()
    write_whole(path, packed, what="annotated answers")
