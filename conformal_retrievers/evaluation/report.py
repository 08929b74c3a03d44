"""One HTML file on a calibration and the queries it is to serve: verdict, evidence, pictures.

It needs no network and no scripts, reads well on paper and on a telephone, and is the same for the
same input. Everything that comes from the data is escaped.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from conformal_retrievers.calibration.calibration import Calibration
from conformal_retrievers.data.files import write_whole
from conformal_retrievers.data.queries import ScoredQuery
from conformal_retrievers.evaluation.diagnose import Diagnosis, diagnose
from conformal_retrievers.evaluation.findings import MEANING, shown, summary
from conformal_retrievers.evaluation.sweeps import ALPHAS, Band
from conformal_retrievers.extras import require
from conformal_retrievers.filtering import Filtered
from conformal_retrievers.theory.intervals import Interval

require("report", "jinja2", "matplotlib")

from jinja2 import Environment, PackageLoader, StrictUndefined

from conformal_retrievers.evaluation import figures

TITLE = "Can this filter be trusted here?"


def write(
    path: str | Path,
    calibration: Calibration,
    queries: Iterable[ScoredQuery | Filtered | ArrayLike],
    *,
    reference: Iterable[ScoredQuery | Filtered | ArrayLike] | None = None,
    alphas: Sequence[float] = ALPHAS,
    level: float = 0.95,
    title: str = TITLE,
    sources: Mapping[str, str] | None = None,
) -> Diagnosis:
    """Write the report to a file and return the diagnosis that is in it.

    An old file stays until the new one is complete. `sources` says where things come from, such as
    {"judged queries": "new.jsonl"}. Raises what `diagnose` raises, and OSError, naming the path,
    where it cannot be written.
    """
    given = list(queries)
    d = diagnose(calibration, given, reference=reference, alphas=alphas, level=level)
    page = _page(d, given, title, sources)
    write_whole(path, page.encode("utf-8"), what="report")
    return d


def html(
    calibration: Calibration,
    queries: Iterable[ScoredQuery | Filtered | ArrayLike],
    *,
    reference: Iterable[ScoredQuery | Filtered | ArrayLike] | None = None,
    alphas: Sequence[float] = ALPHAS,
    level: float = 0.95,
    title: str = TITLE,
    sources: Mapping[str, str] | None = None,
) -> str:
    """Return the report on queries as one HTML page; the arguments are those of `write`."""
    given = list(queries)
    d = diagnose(calibration, given, reference=reference, alphas=alphas, level=level)
    return _page(d, given, title, sources)


def _page(
    d: Diagnosis,
    queries: Sequence[ScoredQuery | Filtered | ArrayLike],
    title: str,
    sources: Mapping[str, str] | None,
) -> str:
    environment = Environment(
        loader=PackageLoader("conformal_retrievers.evaluation", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": _percent,
        "number": _number,
        "interval": _interval,
        "ends": _ends,
    }
    page = environment.get_template("report.html.jinja")
    return page.render(
        title=title,
        sources=dict(sources or {}),
        c=d.calibration,
        d=d,
        summary=summary(d),
        meaning=MEANING[d.calibration.guarantee],
        thresholds=_thresholds(d.calibration),
        pictures=_pictures(d, queries),
        provenance=_provenance(d.calibration),
        infinity=math.inf,
    )


# --- pictures -------------------------------------------------------------------------------------


def _pictures(d: Diagnosis, queries: Sequence[object]) -> list[dict[str, str]]:
    target = f"{1 - d.calibration.alpha:.1%}"
    pictures = []
    if d.judgements is not None and d.judgements.n_measured:
        pictures.append(
            _picture(
                "Coverage",
                f"Coverage against the promised one. At the calibration's alpha it is "
                f"{_interval(d.promised_coverage)}, and {target} are promised.",
                "Below the dashed line less is kept than promised; the shaded interval says how "
                "surely these queries tell.",
                figures.coverage(d),
            )
        )
    pictures += [
        _picture(
            "Removal",
            f"Share of snippets removed over alpha, {_percent(d.removal)} at the calibration's.",
            "What the filter saves. The dotted line is the calibration's α.",
            figures.removal(d),
        ),
        _picture(
            "m1 and m2 over α",
            f"m1, the share of queries of which anything is kept, is {shown(d.m1)}, and m2, the "
            f"mean share of a query's snippets kept, {shown(d.m2)}, at the calibration's alpha.",
            f"Shaded is where queries like those calibrated on have them in {d.level:.0%} of "
            "cases, at one α. m1 counts irrelevant snippets too: 1 − α is not what it should be.",
            figures.sweep(d),
        ),
    ]
    if d.depths:
        pictures.append(
            _picture(
                "m1 and m2 over K",
                f"m1 and m2 if only the first K snippets were retrieved, K from 1 to "
                f"{d.depths[-1].k}.",
                "The threshold stays. Where recall@K still rises, a deeper retriever finds more.",
                figures.depths(d),
            )
        )
    parts = _scores(d, queries)
    if sum(np.isfinite(scores).sum() for _, scores in parts):
        names = " and ".join(name for name, _ in parts)
        pictures.append(
            _picture(
                "Scores",
                f"Histograms of the scores: {names}, with the threshold.",
                "Left of the threshold is kept. The further apart, the more can be removed.",
                figures.histogram(parts, list(_thresholds(d.calibration).values())),
            )
        )
    return pictures


def _scores(d: Diagnosis, queries: Sequence[object]) -> list[tuple[str, NDArray[np.float64]]]:
    """Return relevant and irrelevant scores, or unjudged ones beside the calibration's relevant."""
    if d.judgements is not None:
        judged = [query for query in queries if isinstance(query, ScoredQuery)]
        return [
            ("relevant", np.concatenate([q.scores[q.relevant] for q in judged])),
            ("irrelevant", np.concatenate([q.scores[~q.relevant] for q in judged])),
        ]
    scores = [
        np.asarray(q.scores if isinstance(q, (ScoredQuery, Filtered)) else q, dtype=np.float64)
        for q in queries
    ]
    return [
        ("relevant, calibration", np.concatenate([q.scores for q in d.calibration.queries])),
        ("all of these queries", np.concatenate(scores)),
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


def _interval(ends: Interval | Band | None) -> str:
    return "–" if ends is None else f"{ends[-2]:.1%} to {ends[-1]:.1%}"


def _ends(ends: Interval | Band | None) -> str:
    """Return what `_interval` returns as narrow as a column of numbers."""
    if ends is None or ends[-2:] == (0, 1):
        return "–"
    return f"{100 * ends[-2]:.1f} – {100 * ends[-1]:.1f}"
