"""Files of claims: the calibration, and annotated answers as JSON lines.

Imported where a file is read or written, because pydantic takes longer to load than all the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import (
    Field,
    JsonValue,
    ValidationError,
    field_serializer,
    field_validator,
)

from conformal_retrievers.calibration_file import (
    INFINITE,
    NAMES,
    Record,
    read_fields,
    write_record,
)
from conformal_retrievers.rows import explain

FORMAT = "conformal-retrievers/claims"
VERSION = 1

Threshold = float | Literal["keep_none", "keep_all"]


class AnswerRecord(Record):
    """One annotated answer: its score, "-inf" if all its claims are factual."""

    id: str | None
    group: str | None
    score: float

    @field_serializer("score")
    def _with_name(self, score: float) -> float | str:
        return NAMES.get(score, score)

    @field_validator("score", mode="before")
    @classmethod
    def _without_name(cls, score: object) -> object:
        return INFINITE.get(score, score) if isinstance(score, str) else score


class ClaimsRecord(Record):
    """The fields of a calibration of claims, but for the checksum."""

    format: Literal["conformal-retrievers/claims"]
    version: Literal[1]
    alpha: float
    share: float
    delta: float | None
    by_group: bool
    merge_groups: dict[str, str] | None
    threshold: Threshold | dict[str, Threshold]
    scorer: str
    unannotated: list[str]
    n_without_claims: int = Field(ge=0)
    n_unscorable: int = Field(ge=0)
    labels: dict[str, JsonValue] | None
    library: str
    created: str
    answers: list[AnswerRecord]


def write(record: ClaimsRecord, path: str | Path) -> None:
    """Write the file, replacing an old one only once the new one is complete on disk."""
    write_record(record, path, rows="answers")


def read(path: str | Path) -> ClaimsRecord:
    """Read and check a file; raises ValueError as `read_fields` does, or naming the field."""
    fields = read_fields(path, FORMAT, VERSION, saved_by="ClaimCalibration.save")
    try:
        return ClaimsRecord.model_validate(fields)
    except ValidationError as error:
        raise ValueError(f"{path}: {explain(error)}; calibrate and save again") from None
