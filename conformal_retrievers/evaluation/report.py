"""One HTML file on a calibration and new queries: verdict, evidence, pictures.

The page needs no network and no scripts, and prints well. The same input gives the same bytes.
Everything that comes from the data is escaped.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.data.files import write_whole
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.evaluation.diagnose import diagnose
from conformal_retrievers.evaluation.diagnosis import Band, Diagnosis
from conformal_retrievers.evaluation.findings import MEANING
from conformal_retrievers.evaluation.measures import guaranteed
from conformal_retrievers.extras import require
from conformal_retrievers.theory.intervals import Interval, percent

require("report", "jinja2", "matplotlib")

from jinja2 import Environment, PackageLoader, StrictUndefined

from conformal_retrievers.evaluation import figures

TITLE = "Can this filter be trusted here?"


def write(
    path: str | Path,
    calibration: Calibration,
    scored: Iterable[ScoredQuery],
    *,
    reference: Iterable[ScoredQuery] | None = None,
    level: float = 0.95,
    title: str = TITLE,
    sources: Mapping[str, str] | None = None,
) -> Diagnosis:
    """Diagnose the queries, write the report to a file, and return the diagnosis.

    Parameters
    ----------
    path
        An old file stays until the new one is complete.
    calibration, scored, reference, level
        As in `diagnose`, which raises ValueError for what is invalid.
    title
        The heading of the page.
    sources
        Where things come from, such as {"judged queries": "new.jsonl"}.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    given = list(scored)
    d = diagnose(calibration, given, reference=reference, level=level)
    page = html(d, given, title=title, sources=sources)
    write_whole(path, page.encode("utf-8"), what="report")
    return d


def html(
    d: Diagnosis,
    scored: Sequence[ScoredQuery],
    *,
    title: str = TITLE,
    sources: Mapping[str, str] | None = None,
) -> str:
    """Return a diagnosis of scored queries as one HTML page.

    Parameters
    ----------
    d, scored
        The diagnosis, and the queries that it was made from.
    title, sources
        As in `write`.
    """
    environment = Environment(
        loader=PackageLoader("conformal_retrievers.evaluation", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "number": _number, "ends": _ends}
    c = d.calibration
    thresholds = {group or "all queries": c.threshold(group) for group in c.n_units}
    given = {"retrieval": c.retrieval, "labels": c.labels, "scorer": c.scorer_provenance}
    scores = _scores(d, scored)
    some_score = any(np.isfinite(of_kind).any() for _, of_kind in scores)
    return environment.get_template("report.html.jinja").render(
        title=title,
        sources=dict(sources or {}),
        c=c,
        d=d,
        meaning=MEANING[c.guarantee],
        guaranteed=guaranteed(c),
        thresholds=thresholds,
        coverage=None if math.isnan(d.coverage.estimate) else _image(figures.coverage(d)),
        removal=_image(figures.removal(d)),
        sweep=_image(figures.sweep(d)),
        histogram=_image(figures.histogram(scores, thresholds.values())) if some_score else None,
        kinds=" and ".join(name for name, _ in scores),
        provenance={f"{name}: {k}": v for name, of in given.items() for k, v in (of or {}).items()},
        infinity=math.inf,
    )


def _image(svg: str) -> str:
    """Return the source of an image: what is inside cannot meet the page's ids, styles or text."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _scores(d: Diagnosis, scored: Sequence[ScoredQuery]) -> list[tuple[str, NDArray[np.float64]]]:
    """Return relevant and irrelevant scores, or unjudged ones and the calibration's relevant."""
    if d.judged:
        return [
            ("relevant", np.concatenate([q.scores[q.relevant] for q in scored])),
            ("irrelevant", np.concatenate([q.scores[~q.relevant] for q in scored])),
        ]
    return [
        ("relevant, calibration", np.concatenate([q.scores for q in d.calibration.queries])),
        ("all of these queries", np.concatenate([q.scores for q in scored])),
    ]


def _number(value: float) -> str:
    if np.isinf(value):
        return "none, everything is kept" if value > 0 else "−∞"
    if np.isnan(value):
        return "–"
    return str(int(value)) if value == int(value) else f"{value:.4g}"


def _ends(ends: Interval | Band | None) -> str:
    if ends is None or ends[-2:] == (0, 1):
        return "–"
    return f"[{100 * ends[-2]:.1f}, {100 * ends[-1]:.1f}]"
