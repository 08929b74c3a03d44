"""The calibration file: plain fields to JSON and back; knows nothing of `Calibration`.

Derived fields are not trusted when a file is read: the checksum is that of the other fields, and
`Calibration.load` derives the threshold again from the scores. No pickle, no eval.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    field_serializer,
    field_validator,
)

from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.calibration.subjects import KeepsAt
from conformal_retrievers.data import files
from conformal_retrievers.data.queries import ScoredQuery

FORMAT: Final = "conformal-retrievers/calibration"
VERSION: Final = 2
KIND = files.Kind(FORMAT, VERSION, saved_by="Calibration.save", what="calibration")

# The fields that a calibration and its record have alike.
SHARED = (
    *("delta", "by_group", "merge_groups", "count_missed", "relative_to_query"),
    *("scorer_provenance", "n_without_relevant", "retrieval", "labels", "details"),
    *("library", "created"),
)
EXACT = ("threshold", "n_queries", "n_relevant")  # derived from the scores
ROUNDED = ("design_effect", "effective_n")  # likewise, but another machine may round otherwise
INFINITE = {"inf": math.inf, "-inf": -math.inf}  # JSON has no numbers for them
NAMES = {number: name for name, number in INFINITE.items()}
Threshold = float | KeepsAt


class QueryRow(BaseModel):
    """One calibration query: the scores of its relevant retrieved snippets, in order."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: str | None
    group: str | None
    missed: int = Field(ge=0)
    scores: list[float]

    @classmethod
    def of(cls, query: ScoredQuery) -> QueryRow:
        """Return the row of a query that has only relevant scores."""
        return cls(
            id=query.id, group=query.group, missed=query.missed, scores=query.scores.tolist()
        )

    def scored(self) -> ScoredQuery:
        """Return the query of this row."""
        relevant = np.ones(len(self.scores), dtype=bool)
        return ScoredQuery(
            np.array(self.scores), relevant, id=self.id, group=self.group, missed=self.missed
        )

    @field_serializer("scores")
    def _with_names(self, scores: list[float]) -> list[float | str]:
        return [NAMES.get(score, score) for score in scores]

    @field_validator("scores", mode="before")
    @classmethod
    def _without_names(cls, scores: object) -> object:
        if not isinstance(scores, list):
            return scores
        return [INFINITE.get(s, s) if isinstance(s, str) else s for s in scores]


class SnippetDetails(BaseModel):
    """What only calibrations of snippets have: nothing."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ClaimDetails(SnippetDetails):
    """What only calibrations of claims have, as `calibrate_claims` writes it."""

    share: float = Field(default=1.0, gt=0, le=1)
    unannotated: list[str] = []
    n_without_claims: int = Field(default=0, ge=0)
    n_unscorable: int = Field(default=0, ge=0)


class FlagDetails(SnippetDetails):
    """What only calibrations of flags have, as `calibrate_flag` writes it."""

    answers: list[str] = []


DETAILS = {"snippets": SnippetDetails, "claims": ClaimDetails, "flags": FlagDetails}


class Record(BaseModel):
    """The fields of a calibration file, in their order, without the checksum."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    format: Literal["conformal-retrievers/calibration"] = FORMAT
    version: Literal[2] = VERSION
    subject: Literal["snippets", "claims", "flags"]
    guarantee: Guarantee
    alpha: float
    delta: float | None
    by_group: bool
    merge_groups: dict[str, str] | None
    count_missed: bool
    threshold: Threshold | dict[str, Threshold]
    scorer: str
    relative_to_query: bool
    scorer_provenance: dict[str, JsonValue] | None
    n_queries: int
    n_relevant: int
    n_without_relevant: int = Field(ge=0)
    design_effect: float
    effective_n: float
    retrieval: dict[str, JsonValue] | None
    labels: dict[str, JsonValue] | None
    details: dict[str, JsonValue]
    library: str
    created: str
    other_ids: list[str]
    lowest_scores: list[float]
    queries: list[QueryRow]


def checksum(record: Record) -> str:
    """Return the SHA-256 of the fields."""
    return files.checksum(record.model_dump())


def to_text(record: Record) -> str:
    """Return the text of a file: one field per line, then the checksum, then one query per line."""
    return files.envelope_text(record.model_dump(), rows="queries")


def write(record: Record, path: str | Path) -> None:
    """Write the file; an old one stays until the new one is complete. Raises OSError."""
    files.write_envelope(path, record.model_dump(), what=KIND.what, rows="queries")


def read(path: str | Path) -> Record:
    """Read and check a file. Raises OSError or ValueError, naming path, field and remedy."""
    return _checked(files.read_envelope(path, KIND), str(path))


def parse(text: str, where: str) -> Record:
    """Check the text of a file, which errors call `where`.

    Raises ValueError for text that is not a calibration, is cut off, has another version, or was
    changed after it was written.
    """
    return _checked(files.parse_envelope(text, where, KIND), where)


def _checked(fields: dict[str, Any], where: str) -> Record:
    try:
        record = Record.model_validate(fields)
        DETAILS[record.subject].model_validate(record.details)
        return record
    except ValidationError as error:
        raise ValueError(f"{where}: {files.explain(error)}; calibrate and save again") from None


def check_derived(where: str, stored: Record, derived: Record) -> None:
    """Raise ValueError, naming the field, if a stored number does not follow from the scores."""
    for name in (*EXACT, *ROUNDED):
        value, follows = getattr(stored, name), getattr(derived, name)
        if value == follows or (name in ROUNDED and math.isclose(value, follows, rel_tol=1e-3)):
            continue
        raise ValueError(
            f"{where}: its field {name!r} is {value!r}, but the other fields give {follows!r}; "
            "calibrate and save again"
        )
