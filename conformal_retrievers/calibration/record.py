"""The calibration file: readable JSON with a version and a checksum, written whole or not at all.

What can be derived is not trusted when it is read: the checksum is that of the other fields, and
`Calibration.load` derives the threshold again from the scores. No pickle, no eval. `Record`,
`write_record`, `read_fields` and `check_derived` serve every file of this kind.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

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

from conformal_retrievers.calibration.calibration import Calibration, relevant_only
from conformal_retrievers.data.files import cannot_read, write_whole
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.data.rows import explain

FORMAT: Final = "conformal-retrievers/calibration"
VERSION: Final = 1
INFINITE = {"inf": math.inf, "-inf": -math.inf}  # which JSON has no numbers for
NAMES = {number: name for name, number in INFINITE.items()}


Threshold = float | Literal["keep_all", "-inf"]


class Record(BaseModel):
    """The fields of a file, but for the checksum."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @property
    def sha256(self) -> str:
        """The checksum: SHA-256 of the fields as JSON with sorted keys and no white space."""
        return _sha256(self.model_dump())


class QueryRecord(Record):
    """One calibration query: its relevant snippets' scores in order, as far as retrieved."""

    id: str | None
    group: str | None
    missed: int = Field(ge=0)
    scores: list[float]

    @field_serializer("scores")
    def _with_names(self, scores: list[float]) -> list[float | str]:
        return [NAMES.get(score, score) for score in scores]

    @field_validator("scores", mode="before")
    @classmethod
    def _without_names(cls, scores: object) -> object:
        if not isinstance(scores, list):
            return scores
        return [INFINITE.get(s, s) if isinstance(s, str) else s for s in scores]


class CalibrationRecord(Record):
    """The fields of a calibration file, but for the checksum."""

    format: Literal["conformal-retrievers/calibration"]
    version: Literal[1]
    guarantee: Literal["query-recall", "snippet", "all", "any"]
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
    library: str
    created: str
    other_ids: list[str]
    lowest_scores: list[float]
    queries: list[QueryRecord]


def record_of(calibration: Calibration) -> CalibrationRecord:
    """Return the fields of a calibration's file, derived ones too."""
    named: dict[float, Literal["keep_all", "-inf"]] = {math.inf: "keep_all", -math.inf: "-inf"}
    by_group = {group or "": calibration.threshold(group) for group in calibration.n_units}
    thresholds: dict[str, Threshold] = {g: named.get(t, t) for g, t in by_group.items()}
    return CalibrationRecord(
        format=FORMAT,
        version=VERSION,
        guarantee=calibration.guarantee,
        alpha=calibration.alpha,
        delta=calibration.delta,
        by_group=calibration.by_group,
        merge_groups=None if calibration.merge_groups is None else dict(calibration.merge_groups),
        count_missed=calibration.count_missed,
        threshold=thresholds if calibration.by_group else thresholds[""],
        scorer=calibration.scorer,
        relative_to_query=calibration.relative_to_query,
        scorer_provenance=(
            None if calibration.scorer_provenance is None else dict(calibration.scorer_provenance)
        ),
        n_queries=calibration.n_queries,
        n_relevant=calibration.n_relevant,
        n_without_relevant=calibration.n_without_relevant,
        design_effect=round(calibration.design_effect, 3),
        effective_n=round(calibration.effective_n, 3),
        retrieval=None if calibration.retrieval is None else dict(calibration.retrieval),
        labels=None if calibration.labels is None else dict(calibration.labels),
        library=calibration.library,
        created=calibration.created,
        other_ids=list(calibration.other_ids),
        lowest_scores=list(calibration.lowest_scores),
        queries=[
            QueryRecord(
                id=query.id,
                group=query.group,
                missed=query.missed,
                scores=query.scores.tolist(),
            )
            for query in calibration.queries
        ],
    )


def calibration_of(record: CalibrationRecord) -> Calibration:
    """Return the calibration that a record is of; raises ValueError where there can be none."""
    queries = [
        ScoredQuery(
            np.array(query.scores),
            np.ones(len(query.scores), dtype=bool),
            id=query.id,
            group=query.group,
            missed=query.missed,
        )
        for query in record.queries
    ]
    return Calibration(
        record.alpha,
        record.guarantee,
        record.scorer,
        tuple(map(relevant_only, queries)),
        delta=record.delta,
        by_group=record.by_group,
        merge_groups=record.merge_groups,
        count_missed=record.count_missed,
        n_without_relevant=record.n_without_relevant,
        other_ids=tuple(record.other_ids),
        lowest_scores=tuple(record.lowest_scores),
        relative_to_query=record.relative_to_query,
        scorer_provenance=record.scorer_provenance,
        retrieval=record.retrieval,
        labels=record.labels,
        library=record.library,
        created=record.created,
    )


def write(record: CalibrationRecord, path: str | Path) -> None:
    """Write the file, replacing an old one only once the new one is complete on disk.

    Raises OSError, naming the path and the remedy, and leaves an old file as it was.
    """
    write_record(record, path, rows="queries")


def text_of(record: CalibrationRecord) -> str:
    """Return what `write` writes."""
    return record_text(record, rows="queries")


def parse(text: str, where: str) -> CalibrationRecord:
    """Read and check the text of a file; `where` is what errors call it.

    Raises ValueError, naming the file, the field and the remedy, where the text is not a
    calibration, is cut off, was made by a newer version or was changed since it was written.
    """
    fields = parse_fields(text, where, FORMAT, VERSION, saved_by="Calibration.save")
    try:
        return CalibrationRecord.model_validate(fields)
    except ValidationError as error:
        raise ValueError(f"{where}: {explain(error)}; calibrate and save again") from None


# --- what every such file has ---------------------------------------------------------------------


def write_record(record: Record, path: str | Path, *, rows: str) -> None:
    """Write a record as `record_text` lays it out. Raises OSError as `write_whole` does."""
    write_whole(path, record_text(record, rows=rows).encode("utf-8"), what="calibration")


def record_text(record: Record, *, rows: str) -> str:
    """Return a record and its checksum, laid out for a reader: one field a line, then one row a
    line of the field that is named `rows`."""
    fields = record.model_dump()
    entries = fields.pop(rows)
    lines = [f"  {json.dumps(k)}: {_json(v)}" for k, v in fields.items()]
    lines.append(f'  "sha256": {json.dumps(record.sha256)}')
    listed = ",\n".join(f"    {_json(entry)}" for entry in entries)
    return "{\n" + ",\n".join(lines) + f',\n  "{rows}": [\n' + listed + "\n  ]\n}\n"


def read_fields(path: str | Path, format: str, version: int, *, saved_by: str) -> dict[str, Any]:
    """Return a file's fields as `parse_fields` does."""
    return parse_fields(read_text(path), str(path), format, version, saved_by=saved_by)


def read_text(path: str | Path) -> str:
    """Return a file's text. Raises ValueError, naming the path, where it is not UTF-8.

    Raises OSError, with the remedy, where it cannot be read, and TypeError for what is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path is {path!r:.60}; give the path of a calibration's file, as a str")
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        cannot_read("calibration", path, error)
    except ValueError as error:
        raise ValueError(_incomplete(path, error)) from None


def parse_fields(
    text: str, where: str, format: str, version: int, *, saved_by: str
) -> dict[str, Any]:
    """Return a file's fields without the checksum, once format, version and checksum are right.

    Raises ValueError, naming the file as `where`, the field and the remedy, where one is not.
    """
    try:
        fields = json.loads(
            text,
            object_pairs_hook=_without_repetition,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:  # not JSON, NaN, or no end of lists
        raise ValueError(_incomplete(where, error)) from None
    if not isinstance(fields, dict) or fields.get("format") != format:
        raise ValueError(
            f"{where} is not a calibration file: its field 'format' is not {format!r}; give a file "
            f"that {saved_by} wrote"
        )
    stored_version = fields.get("version")
    if stored_version != version or not isinstance(stored_version, int):
        raise ValueError(
            f"{where} has version {stored_version!r}, but this library reads version {version}: "
            "upgrade conformal-retrievers, or calibrate again"
        )
    stored = fields.pop("sha256", None)
    if stored != _sha256(fields):
        raise ValueError(
            f"{where} was changed after it was written: its field 'sha256' is {stored!r}, the "
            f"other fields give {_sha256(fields)!r}; take the original file, or calibrate again"
        )
    return fields


def check_derived(
    path: str | Path,
    stored: Record,
    derived: Record,
    *,
    exact: tuple[str, ...],
    sums: tuple[str, ...] = (),
) -> None:
    """Raise ValueError, naming path and field, where a stored field does not follow from scores.

    Those named `sums` may be rounded otherwise.
    """
    for name in (*exact, *sums):
        told, follows = getattr(stored, name), getattr(derived, name)
        if told == follows or (name in sums and math.isclose(told, follows, rel_tol=1e-3)):
            continue
        raise ValueError(
            f"{path}: its field {name!r} is {told!r}, but its scores give {follows!r}; calibrate "
            "and save again"
        )


def _incomplete(where: object, error: Exception) -> str:
    return (
        f"{where} is not a complete calibration file ({error}); give one that was saved, or "
        "calibrate and save again"
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _sha256(fields: dict[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field stands twice")
    return fields


def _finite(number: str) -> float:
    if math.isinf(float(number)):
        raise ValueError(f"{number} is too large for a number")
    return float(number)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, which no calibration has")
