"""The fields of a calibration file; knows nothing of `Calibration`.

Derived fields are not trusted when a file is read: `Calibration.load` derives the threshold again
from the scores. No pickle, no eval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypedDict  # pydantic requires this one below Python 3.12

from conformal_retrievers.calibration.guarantees import Guarantee
from conformal_retrievers.calibration.subjects import KeepsAt
from conformal_retrievers.calibration.wording import say
from conformal_retrievers.data import files
from conformal_retrievers.data.checks import MAX_COUNT
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.retrieval import Name

KIND = files.Kind("conformal-retrievers/calibration", 3, "Calibration.save", "calibration")

# The fields that a calibration and its record have alike.
SHARED = (
    *("guarantee", "alpha", "delta", "by_group", "count_missed", "scorer"),
    *("relative_to_query", "scorer_provenance", "n_without_relevant", "retrieval", "labels"),
    *("details", "library", "created"),
)
# The fields that follow from the scores, and the lists that are sorted.
EXACT = ("threshold", "n_queries", "n_relevant", "queries", "lowest_scores")
ROUNDED = ("design_effect", "effective_n")  # these follow too, but may differ by rounding

INFINITE = {"inf": math.inf, "-inf": -math.inf}  # JSON has no numbers for them
NAMES = {number: name for name, number in INFINITE.items()}
Score = Annotated[
    float,
    pydantic.BeforeValidator(lambda x: INFINITE.get(x, x) if isinstance(x, str) else x),
    pydantic.PlainSerializer(lambda score: NAMES.get(score, score)),
]
Threshold = float | KeepsAt


class Fields(pydantic.BaseModel):
    """The fields of an object of the file: each of its own type, and no others."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)


@pydantic.with_config(pydantic.ConfigDict(extra="forbid", strict=True))
class StoredQuery(TypedDict):
    """One calibration query: the scores of its relevant retrieved snippets, in order."""

    id: str | None
    group: str | None
    # 0: none was missed; None: unknown.
    missed: Annotated[int, pydantic.Field(ge=0, le=MAX_COUNT)] | None
    scores: list[Score]


@Sequence.register
@dataclass(frozen=True)
class Rows:
    """The rows of queries that have only relevant scores; a slice of them is made when read."""

    queries: ScoredQueries

    def __len__(self) -> int:
        return len(self.queries)

    def __getitem__(self, part: slice) -> list[StoredQuery]:
        queries = self.queries.select(range(*part.indices(len(self))))
        scores = [NAMES.get(score, score) for score in queries.scores.tolist()]
        ends = queries.offsets.tolist()
        columns = (queries.ids, queries.groups, queries.missed, ends, ends[1:])
        return [
            {
                "id": id,
                "group": group,
                "missed": None if math.isnan(missed) else int(missed),
                "scores": scores[start:end],
            }
            for id, group, missed, start, end in zip(*columns, strict=False)
        ]


def stored_queries(rows: Any, validated: Callable[[Any], list[StoredQuery]]) -> ScoredQueries:
    """Return the queries of a file's rows as columns; columns are returned as they are."""
    if isinstance(rows, ScoredQueries):
        return rows
    given = validated(rows)
    scores = [score for row in given for score in row["scores"]]
    return ScoredQueries(
        scores,
        np.ones(len(scores), dtype=np.bool_),
        np.cumsum([0, *[len(row["scores"]) for row in given]]),
        ids=[row["id"] for row in given],
        groups=[row["group"] for row in given],
        missed=np.array([row["missed"] for row in given], dtype=np.float64),  # None is NaN
    )


def _schema(_: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
    return core_schema.no_info_wrap_validator_function(
        stored_queries,
        handler.generate_schema(list[StoredQuery]),
        serialization=core_schema.plain_serializer_function_ser_schema(lambda of: Rows(of)[:]),
    )


class Added(Fields):
    """What is kept with a scorer, and without it."""

    with_it: float
    without: float


class Choice(Fields):
    """How the score was chosen or fitted, and on which queries: `scorer_provenance["choice"]`."""

    chosen: Name
    given: list[Name]  # the scorers that it reads or was chosen among, beside the hits
    alpha: float | None = None  # at which costs are compared
    costs: dict[Name, float] = {}  # snippets per query, see `fitting.py`
    best: Name | None = None  # the one that costs least, by more than the noise
    adds: dict[Name, Added] = {}  # by the name of a given scorer
    contributions: dict[Name, float] = {}  # of each source to the score, see `contributions`
    on: Literal["fit", "calibration"] = "fit"  # the part of the queries that costs are of
    unreached: list[Name] = []  # each top k that does not reach the recall of the comparison
    # Of a query of the other part, if anything is retrieved: snippets at this alpha's threshold,
    passes: float | None = None
    none_pass: float = 0.0  # and the share of these queries of which none passes
    n_fit: int = 0  # the number of queries; 0 if they were too few to choose on
    fit_ids: list[str] = []  # of those that have an id
    fit_digests: list[str] = []  # see `query_digest`
    digests: list[str] = []  # of questions that one calibrating query asks, see `asked_in`

    @classmethod
    def of(cls, provenance: Mapping[str, pydantic.JsonValue] | None) -> Choice | None:
        """Return the choice in a scorer's provenance, None without one."""
        stored = provenance or {}
        return cls.model_validate(stored["choice"]) if {"score", "choice"} <= {*stored} else None


class ClaimDetails(Fields):
    """What only calibrations of claims have, as `calibrate_claims` writes it."""

    share: float = pydantic.Field(default=1.0, gt=0, le=1)
    unannotated: list[str] = []
    n_without_claims: int = pydantic.Field(default=0, ge=0)
    n_unscorable: int = pydantic.Field(default=0, ge=0)


class AnswerDetails(Fields):
    """What only calibrations of answers have, as `calibrate_answers` writes it."""

    right: bool  # compared with reference answers, not with the answer from all snippets
    count_wrong: bool = False
    same: Name  # what compared them
    chain: Name  # what answered
    n_questions: int = pydantic.Field(ge=1)  # that were answered
    n_wrong: int = pydantic.Field(ge=0)  # whose first answer from all snippets is wrong
    n_contradicting: int = pydantic.Field(ge=0)  # whose second one is not like the first
    n_needing_all: int = pydantic.Field(ge=0)
    n_needing_none: int = pydantic.Field(default=0, ge=0)
    failed: list[str] = []  # how questions begin that were left out, since a call failed


class FlagDetails(Fields):
    """What only calibrations of flags have, as `calibrate_flag` writes it."""

    answers: list[str] = []


class Unanswerable(Fields):
    """The scores of unanswerable queries of one source."""

    scores: list[Score]
    groups: list[str | None]
    questions: list[str]  # the `query_digest` of each


class QueryDetails(Fields):
    """What only calibrations of gates have, as `calibrate_gate` writes it."""

    # By source.
    unanswerable: dict[Annotated[Name, pydantic.Field(min_length=1)], Unanswerable] = {}
    answerable: list[str] = []  # the `query_digest` of each query that calibrates


DETAILS: dict[str, type[Fields]] = {
    "snippets": Fields,
    "sentences": Fields,
    "answers": AnswerDetails,
    "claims": ClaimDetails,
    "flags": FlagDetails,
    "queries": QueryDetails,
}


def details_of(calibration: Any) -> Any:
    """Return what only calibrations of a subject have, with its fields."""
    return DETAILS[calibration.subject.name].model_validate(dict(calibration.details))


class Record(Fields):
    """The fields of a calibration file, in their order, without the checksum."""

    format: str = KIND.format  # files.py checks both
    version: int = KIND.version
    subject: Literal["snippets", "sentences", "answers", "claims", "flags", "queries"]
    guarantee: Guarantee
    alpha: float
    delta: float | None
    by_group: bool
    count_missed: bool
    threshold: Threshold | dict[str, Threshold]
    scorer: str
    relative_to_query: bool
    scorer_provenance: dict[str, pydantic.JsonValue] | None
    n_queries: int
    n_relevant: int
    n_without_relevant: int = pydantic.Field(ge=0, le=MAX_COUNT)
    design_effect: float
    effective_n: float
    retrieval: dict[str, pydantic.JsonValue] | None
    labels: dict[str, pydantic.JsonValue] | None
    details: dict[str, pydantic.JsonValue]
    gate: Record | None = None  # in front of the filter
    library: Name
    created: Name
    other_ids: list[Annotated[str, pydantic.Field(min_length=1)]]
    lowest_scores: list[float]
    queries: Annotated[ScoredQueries, pydantic.GetPydanticSchema(_schema)]


def checked(fields: dict[str, Any], where: str) -> Record:
    """Return the record of a file's fields; `where` names the file in errors.

    Raises ValueError, naming the field, for a value of another type or out of range.
    """
    try:
        record = Record.model_validate(fields)
        for part in (record, record.gate) if record.gate else (record,):
            DETAILS[part.subject].model_validate(part.details)
            Choice.of(part.scorer_provenance)
        return record
    except pydantic.ValidationError as error:
        raise ValueError(f"{where}: {files.explain(error)}; calibrate and save again") from None


def check_derived(where: str, stored: Record, derived: Record) -> None:
    """Raise ValueError, naming the field, if a stored number does not follow from the scores."""
    for name in (*EXACT, *ROUNDED):
        value, follows = getattr(stored, name), getattr(derived, name)
        if name == "queries":  # their scores ascend
            value, follows = value.scores.tolist(), follows.scores.tolist()
        if value == follows or (name in ROUNDED and math.isclose(value, follows, rel_tol=1e-3)):
            continue
        facts = {"name": name, "value": value, "follows": follows}
        raise ValueError(say("does not follow", where=where, **facts))
