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
from conformal_retrievers.evaluation.diagnosis import Diagnosis
from conformal_retrievers.evaluation.findings import MEANING, shown
from conformal_retrievers.evaluation.sweeps import Band
from conformal_retrievers.extras import require
from conformal_retrievers.theory.intervals import Interval

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
    path : path-like
        An old file stays until the new one is complete.
    calibration, scored, reference, level
        As in `diagnose`.
    title : str
    sources : mapping of str to str, optional
        Where things come from, such as {"judged queries": "new.jsonl"}.

    Returns
    -------
    Diagnosis

    Raises
    ------
    OSError
        If the file cannot be written; ValueError as `diagnose`.

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
    """Return a diagnosis of scored queries as one HTML page."""
    environment = Environment(
        loader=PackageLoader("conformal_retrievers.evaluation", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": _percent, "number": _number, "ends": _ends}
    page = environment.get_template("report.html.jinja")
    return page.render(
        title=title,
        sources=dict(sources or {}),
        c=d.calibration,
        d=d,
        meaning=MEANING[d.calibration.guarantee],
        thresholds=_thresholds(d.calibration),
        pictures=_pictures(d, scored),
        provenance=_provenance(d.calibration),
        infinity=math.inf,
    )


# --- pictures -------------------------------------------------------------------------------------


def _pictures(d: Diagnosis, scored: Sequence[ScoredQuery]) -> list[dict[str, str]]:
    pictures = []
    if d.coverage is not None and d.judgements is not None and d.judgements.n_measured:
        pictures.append(
            _picture(
                "Coverage",
                f"Coverage against its target. At the calibration's alpha it is "
                f"{shown(d.coverage)}, and the target is {1 - d.calibration.alpha:.1%}.",
                "Below the dashed line, less is kept than guaranteed. The shaded area is the "
                "interval.",
                figures.coverage(d),
            )
        )
    pictures += [
        _picture(
            "Removal",
            f"Share of snippets removed over alpha; {_percent(d.removal)} at the calibration's.",
            "What the filter saves. The dotted line is the calibration's α.",
            figures.removal(d),
        ),
        _picture(
            "m1 and m2 over α",
            f"m1, the share of queries with a kept snippet, is {shown(d.m1)}, and m2, the mean "
            f"share of a query's snippets kept, {shown(d.m2)}, at the calibration's alpha.",
            f"The shaded bands hold for exchangeable queries in {d.level:.0%} of cases, at one α. "
            "m1 counts irrelevant snippets too, so 1 − α is not its target.",
            figures.sweep(d),
        ),
    ]
    if d.depths:
        pictures.append(
            _picture(
                "m1 and m2 over K",
                f"m1 and m2 if only the first K snippets are retrieved, for K from 1 to "
                f"{d.depths[-1].k}.",
                "At the same threshold. Where recall@K still rises, a deeper retriever finds more.",
                figures.depths(d),
            )
        )
    parts = _scores(d, scored)
    if sum(np.isfinite(scores).sum() for _, scores in parts):
        names = " and ".join(name for name, _ in parts)
        pictures.append(
            _picture(
                "Scores",
                f"Histograms of the scores: {names}, with the threshold.",
                "Snippets left of the threshold are kept. The further apart the two, the more can "
                "be removed.",
                figures.histogram(parts, list(_thresholds(d.calibration).values())),
            )
        )
    return pictures


def _scores(d: Diagnosis, scored: Sequence[ScoredQuery]) -> list[tuple[str, NDArray[np.float64]]]:
    """Return relevant and irrelevant scores, or unjudged ones and the calibration's relevant."""
    if d.judgements is not None:
        return [
            ("relevant", np.concatenate([q.scores[q.relevant] for q in scored])),
            ("irrelevant", np.concatenate([q.scores[~q.relevant] for q in scored])),
        ]
    return [
        ("relevant, calibration", np.concatenate([q.scores for q in d.calibration.queries])),
        ("all of these queries", np.concatenate([q.scores for q in scored])),
    ]


def _picture(name: str, alt: str, caption: str, svg: str) -> dict[str, str]:
    # An image of its own: what is inside cannot meet the page's ids, styles or text.
    data = base64.b64encode(svg.encode("utf-8")).decode("ascii")
    return {
        "name": name,
        "alt": alt,
        "caption": caption,
        "src": f"data:image/svg+xml;base64,{data}",
    }


# --- words and numbers ----------------------------------------------------------------------------


def _thresholds(calibration: Calibration) -> dict[str, float]:
    """Return the threshold of each group by its name, or of all queries."""
    return {group or "all queries": calibration.threshold(group) for group in calibration.n_units}


def _provenance(calibration: Calibration) -> list[tuple[str, str]]:
    given = (
        ("retrieval", calibration.retrieval),
        ("labels", calibration.labels),
        ("scorer", calibration.scorer_provenance),
    )
    return [
        (f"{name}: {key}", str(value)) for name, of in given for key, value in (of or {}).items()
    ]


def _percent(share: float | None) -> str:
    return "–" if share is None or np.isnan(share) else f"{share:.1%}"


def _number(value: float) -> str:
    if np.isinf(value):
        return "none, everything is kept" if value > 0 else "−∞"
    if np.isnan(value):
        return "–"
    return str(int(value)) if value == int(value) else f"{value:.4g}"


def _ends(ends: Interval | Band | None) -> str:
    if ends is None or ends[-2:] == (0, 1):
        return "–"
    return f"[{ends[-2]:.1%}, {ends[-1]:.1%}]"
