"""Calibrations and evaluations of results in parts: what each part gives is merged.

`each` applies a function to every part, in order, here or on other machines. The results are those
of all queries at once, bit for bit, whatever the parts are.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from conformal_retrievers.calibration import checks
from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.calibration.sufficient_statistics import Reduced
from conformal_retrievers.cluster.parts import MANIFEST, Folder, Report, files_in
from conformal_retrievers.data.parquet import read_parquet
from conformal_retrievers.data.queries import JudgedQuery
from conformal_retrievers.evaluation.evaluate import Evaluation, evaluation_of, query_counts
from conformal_retrievers.evaluation.measures import QueryCounts

Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


def calibrated(
    source: str | Path,
    each: Each,
    *,
    scorer: str | None = None,
    retrieval: Mapping[str, JsonValue] | None = None,
    labels: Mapping[str, JsonValue] | None = None,
    **options: Any,
) -> Calibration:
    """Return the calibration of scored queries in parts; see `ray.calibrate_dataset`."""
    facts, reports, malformed = _scored(source, scorer, f"scorer is {scorer!r}")
    relative = facts.pop("relative_to_query", False)
    stand_for = {  # a query for each retriever and depth
        JudgedQuery("", (), (), **{name: value})
        for report in reports
        for name in ("retriever", "k")
        for value in report[name]
    }
    calibration = Calibration.from_scores(
        Reduced.merged(each(_reduced, files_in(source))),
        retrieval=checks.with_retrieval([*stand_for], retrieval),
        labels={**(labels or {}), **malformed} or None,
        **{**facts, **options},
    )
    return replace(calibration, relative_to_query=relative)


def evaluated(
    calibration: Calibration, source: str | Path, each: Each, level: float = 0.95
) -> Evaluation:
    """Return the evaluation of scored queries in parts; see `ray.evaluate_dataset`."""
    scorer = calibration.scorer
    _scored(source, scorer, f"the calibration has the scorer {scorer!r}")
    counts = each(partial(_counted, calibration), files_in(source))
    merged = QueryCounts.merged(part for part in counts if part is not None)
    return evaluation_of(calibration, merged, level=level)


def _scored(
    source: str | Path, scorer: str | None, named: str
) -> tuple[dict[str, Any], list[Report], dict[str, int]]:
    """Return the facts of the scorer, the reports of all parts, and how many records have no score.

    Raises ValueError if parts are not done. Warns of malformed records, which are left out.
    """
    folder, facts, reports = Folder(source), dict[str, Any](), list[Report]()
    if folder.fs.exists(f"{folder.root}/{MANIFEST}"):
        manifest, reports = folder.results()
        facts = dict(manifest["by"])
    elif scorer is None:
        raise ValueError(f"{named}, and the source has no {MANIFEST}; give the name of the scorer")
    own = facts.setdefault("scorer", scorer)
    if scorer not in (None, own):
        text = f"{named}, but the source was scored by {own!r}; give the same"
        raise checks.CalibrationMismatch(text)
    n = sum(len(report["errors"]) for report in reports)
    if n:
        text = f"{n} malformed records have no scores, see errors.jsonl of {folder.url}"
        warnings.warn(text, UserWarning, stacklevel=4)
    return facts, reports, {"malformed_records": n} if n else {}


def _reduced(file: str) -> Reduced:
    return Reduced.of(read_parquet(file))


def _counted(calibration: Calibration, file: str) -> QueryCounts | None:
    queries = read_parquet(file)
    return query_counts(calibration, queries) if len(queries) else None
