"""Calibrations, evaluations and diagnoses of results in parts: what each part gives is merged.

`each` applies a function to every part, in order, here or on other machines. The results are those
of all queries at once, bit for bit, whatever the parts are.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import JsonValue

from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.checks import check_subject
from conformal_retrievers.calibration.subjects import FILTERED
from conformal_retrievers.calibration.sufficient_statistics import Reduced
from conformal_retrievers.data.columns import ScoredQueries
from conformal_retrievers.data.parquet import read_parquet
from conformal_retrievers.data.parts import MANIFEST, Folder, files_in, local_copy
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.evaluation.diagnose import diagnosis_of
from conformal_retrievers.evaluation.diagnosis import Diagnosis
from conformal_retrievers.evaluation.evaluate import Evaluation, evaluation_of, query_counts
from conformal_retrievers.evaluation.measures import QueryCounts
from conformal_retrievers.evaluation.per_query_counts import Observed
from conformal_retrievers.monitoring.log import events_in
from conformal_retrievers.monitoring.logged import logged

Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Scored:
    """Files of scored queries, and what the folder of `score_dataset` states of them."""

    files: list[str]
    scorer: str | None = None
    by: Mapping[str, Any] | None = None  # what a calibration has of the scorer beside its name
    labels: Mapping[str, JsonValue] | None = None
    retrieved: tuple[JudgedQuery, ...] = ()  # queries that stand for each retriever and depth

    @classmethod
    def at(cls, source: str | Path) -> "Scored":
        """Return what is at a path or URL.

        Raises ValueError if parts are not done. Warns of malformed records, which are left out.
        """
        folder = Folder(source)
        if not folder.fs.exists(f"{folder.root}/{MANIFEST}"):
            return cls(files_in(source))
        manifest, reports = folder.results("score")
        labels = dict(manifest["labels"] or {})
        if n := sum(len(report["errors"]) for report in reports):
            text = f"{n} malformed records have no scores, see errors.jsonl of {folder.url}"
            warnings.warn(text, UserWarning, stacklevel=4)
            labels["malformed_records"] = n + labels.get("malformed_records", 0)
        by = dict(manifest["by"])
        retrieved = {
            JudgedQuery("", (), (), **{name: value})
            for report in reports
            for name in ("retriever", "k")
            for value in report[name]
        }
        return cls(files_in(source), by.pop("scorer"), by, labels or None, tuple(retrieved))


def calibrated(
    source: str | Path,
    each: Each,
    *,
    scorer: str | None = None,
    retrieval: Mapping[str, JsonValue] | None = None,
    labels: Mapping[str, JsonValue] | None = None,
    **options: Any,
) -> Calibration:
    """Return the calibration of scored queries in parts; see `distributed.calibrate_dataset`."""
    scored = Scored.at(source)
    name = _scorer(scored, scorer, f"scorer is {scorer!r}")
    by = dict(scored.by or {})
    relative = by.pop("relative_to_query", False)
    calibration = Calibration.from_scores(
        Reduced.merged(each(_reduced, scored.files)),
        scorer=name,
        retrieval=checks.with_retrieval(scored.retrieved, retrieval),
        labels={**(labels or {}), **(scored.labels or {})} or None,
        **{**by, **options},
    )
    return replace(calibration, relative_to_query=relative)


def evaluated(
    calibration: Calibration, source: str | Path, each: Each, level: float = 0.95
) -> Evaluation:
    """Return the evaluation of scored queries in parts; see `distributed.evaluate_dataset`."""
    scored = Scored.at(source)
    _scorer(scored, calibration.scorer, f"the calibration has the scorer {calibration.scorer!r}")
    counts = each(partial(_counted, calibration), scored.files)
    merged = QueryCounts.merged(part for part in counts if part is not None)
    return evaluation_of(calibration, merged, level=level)


def diagnosed_log(
    calibration: Calibration, source: str | Path, each: Each, level: float = 0.95
) -> Diagnosis:
    """Return the diagnosis of a filter log in files; see `distributed.diagnose_log_dataset`."""
    check_subject(calibration, *FILTERED)
    files, seen, first = files_in(source, ("",)), set[str](), []
    for file, (ids, said) in zip(files, each(partial(_asked, calibration), files), strict=True):
        first.append((file, tuple(id not in seen for id in ids)))
        seen.update(ids)
        for text in said:
            warnings.warn(f"{file}: {text}", UserWarning, stacklevel=3)
    if not seen:
        raise ValueError(
            f"{source} has no event of this calibration with a query that is new to it; give the "
            "logs of its filter"
        )
    observed = each(partial(_observed, calibration), [file for file in first if any(file[1])])
    return diagnosis_of(calibration, Observed.merged(observed), level=level)


def _scorer(scored: Scored, given: str | None, named: str) -> str:
    if scored.scorer is None and given is None:
        raise ValueError(f"{named}, and the source has no {MANIFEST}; give the name of the scorer")
    if None not in (scored.scorer, given) and scored.scorer != given:
        raise checks.CalibrationMismatch(
            f"{named}, but the source was scored by {scored.scorer!r}; give the same"
        )
    return str(scored.scorer or given)


def _read(file: str) -> ScoredQueries:
    with local_copy(file) as path:
        return read_parquet(path)


def _reduced(file: str) -> Reduced:
    return Reduced.of(_read(file))


def _counted(calibration: Calibration, file: str) -> QueryCounts | None:
    queries = _read(file)
    return query_counts(calibration, queries) if len(queries) else None


def _logged(calibration: Calibration, file: str) -> ScoredQueries:
    with local_copy(file) as path:
        return logged(events_in([Path(path)]), calibration, f"{file}, event").queries


def _asked(calibration: Calibration, file: str) -> tuple[list[str], list[str]]:
    """Return the ids of a file's queries, and the warnings, which another machine cannot show."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return _logged(calibration, file).ids.tolist(), [str(warning.message) for warning in caught]


def _observed(calibration: Calibration, given: tuple[str, tuple[bool, ...]]) -> Observed:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are known
        queries = _logged(calibration, given[0])
    return Observed.of(calibration, queries.select(np.array(given[1])))
