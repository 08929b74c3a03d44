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
    return environment.get_template("report.html.jinja").render(
        title=title,
        sources=dict(sources or {}),
        c=c,
        d=d,
        meaning=MEANING[c.guarantee],
        guaranteed=guaranteed(c),
        infinity=math.inf,
        thresholds=thresholds,
        pictures=_pictures(d, scored, list(thresholds.values())),
        provenance={f"{name}: {k}": v for name, of in given.items() for k, v in (of or {}).items()},
    )


def _pictures(
    d: Diagnosis, scored: Sequence[ScoredQuery], thresholds: Sequence[float]
) -> list[dict[str, str]]:
    shown: list[tuple[str, str, str, str]] = []  # name, alternative text, caption, SVG
    if not math.isnan(d.coverage.estimate):
        alt = f"Coverage at the calibration's alpha: {d.coverage}; target {percent(d.target)}."
        caption = "Below the dashed line, too little is kept. The shaded area is the interval."
        shown.append(("Coverage", alt, caption, figures.coverage(d)))
    alt = f"Share of snippets removed over alpha; {d.evaluation.removal} at the calibration's."
    caption = "What the filter saves. The dotted line is the calibration's α."
    shown.append(("Removal", alt, caption, figures.removal(d)))
    m1, m2 = d.evaluation.m1, d.evaluation.m2
    alt = f"m1 and m2 over alpha; at the calibration's, m1 is {m1} and m2 is {m2}."
    caption = (
        f"The shaded bands hold for exchangeable queries in {100 * d.level:g} % of cases, at one α."
        " m1 counts irrelevant snippets too, so 1 − α is not its target."
    )
    shown.append(("m1 and m2 over α", alt, caption, figures.sweep(d)))
    parts = _scores(d, scored)
    if any(np.isfinite(scores).any() for _, scores in parts):
        names = " and ".join(name for name, _ in parts)
        alt = f"Histograms of the scores: {names}, with the threshold."
        caption = (
            "Left of the threshold, snippets are kept. The further apart, the more is removed."
        )
        shown.append(("Scores", alt, caption, figures.histogram(parts, thresholds)))
    # An image of its own: what is inside cannot meet the page's ids, styles or text.
    source = "data:image/svg+xml;base64,"
    return [
        {"name": n, "alt": a, "caption": c, "src": source + base64.b64encode(svg.encode()).decode()}
        for n, a, c, svg in shown
    ]


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
